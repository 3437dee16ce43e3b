//! The samples to keep if not all fit.
//!
//! A kept sample in a store without eviction saves every use of it except the first. So its value
//! is `(uses - 1) * (latency + size / bandwidth)` origin seconds, and its weight is its footprint.
//! The samples with the most value per weight go in first. If requests limit the origin these are
//! the smallest, and if bytes limit it, any. Samples that are used once have no value and take no
//! space.
//!
//! # The decision, and its price
//!
//! Greedy (Dantzig, "Discrete-variable extremum problems", 1957), level by level, the fastest
//! first. Samples are small compared with stores, so it loses little. The fractional optimum
//! exceeds the greedy choice by less than the value of the first sample that did not fit. Later
//! samples are still tried, so the remaining space is smaller than every sample left out. An exact
//! knapsack would gain less than one sample and cost capacity times samples.
//!
//! A dataset of samples with equal length and uses is one item here, whatever its number of
//! samples. Its first ids are kept, without memory or time per sample.

use foreread_types::{Footprint, SampleId, Sizes};

use crate::cluster::CacheStore;
use crate::demand::{Demand, UseCounts};
use crate::error::PlanReason;
use crate::level::{LevelIndex, MAX_LEVELS};
use crate::origin::Origin;
use crate::placement::LevelTable;
use crate::servers::{OriginServers, by_remaining_time};
use crate::wide::narrow;

/// The result of the choice.
pub(crate) struct Knapsack {
    /// One for each dataset.
    pub(crate) tables: Vec<LevelTable>,
    /// One per level, for each dataset.
    pub(crate) filled: Vec<Vec<LevelFill>>,
    /// For each dataset, the saved origin bytes: those of all uses except the first of kept
    /// samples.
    pub(crate) saved: Vec<u128>,
    /// Whether every sample that is used more than once is kept.
    pub(crate) complete: bool,
}

/// The content of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelFill {
    pub(crate) samples: u64,
    pub(crate) bytes: u128,
    pub(crate) footprint: u64,
}

impl LevelFill {
    /// `samples` samples of `bytes` bytes and `footprint` bytes of space each.
    pub(crate) fn of(samples: u64, bytes: u64, footprint: u64) -> Self {
        Self { samples, bytes: u128::from(samples) * u128::from(bytes), footprint: samples * footprint }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            bytes: self.bytes + other.bytes,
            footprint: self.footprint + other.footprint,
        }
    }
}

/// Fills the levels of a store with the samples of the highest worth. With `servers`, the remaining
/// times of the servers become equal, and worth decides within each.
pub(crate) fn choose(
    sizes: &[Sizes],
    demand: &Demand,
    store: &CacheStore,
    origin: &Origin,
    servers: Option<&OriginServers>,
) -> Result<Knapsack, PlanReason> {
    let uses = demand.datasets.iter().map(|dataset| &dataset.uses);
    let mut parts: Vec<_> =
        sizes.iter().zip(uses).map(|(sizes, uses)| DatasetFill::new(sizes, uses, servers)).collect();
    let mut complete = parts.iter().all(|part| part.left(Footprint::EXACT).samples == 0);
    for (index, level) in store.levels.iter().enumerate() {
        if complete {
            break;
        }
        parts.iter_mut().for_each(|part| part.filled.push(LevelFill::default()));
        let mut space =
            LevelSpace { at: LevelIndex(index as u8), left: level.capacity, footprint: level.footprint };
        let left: Vec<_> = parts.iter().map(|part| part.left(level.footprint)).collect();
        complete = left.iter().map(|left| left.footprint).sum::<u128>() <= u128::from(level.capacity);
        if complete {
            for (dataset, (part, left)) in parts.iter_mut().zip(&left).enumerate() {
                part.keep_rest(dataset, left, &mut space)?;
            }
        } else {
            let mut items = Vec::new();
            for (dataset, part) in parts.iter().enumerate() {
                part.items(dataset, level.footprint, origin, &mut items)?;
            }
            match servers {
                None => items.sort_unstable(),
                Some(servers) => even_out(&mut items, &parts, servers)?,
            }
            for item in items {
                parts[item.dataset as usize].keep(&item, &mut space)?;
            }
        }
    }
    let mut choice = Knapsack { tables: Vec::new(), filled: Vec::new(), saved: Vec::new(), complete };
    for mut part in parts {
        part.filled.resize(store.levels.len(), LevelFill::default());
        choice.tables.push(part.kept);
        choice.filled.push(part.filled);
        choice.saved.push(part.saved);
    }
    Ok(choice)
}

/// One sample, or one dataset of equal samples. Sorts by worth, best first, then by dataset and id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    /// `u64::MAX` minus the origin nanoseconds saved per byte of footprint, in units of 2^-24.
    inverse_worth: u64,
    dataset: u32,
    id: u64,
}

/// A level while it is filled.
struct LevelSpace {
    at: LevelIndex,
    left: u64,
    footprint: Footprint,
}

/// The samples of a dataset that are worth keeping and are not kept yet.
struct Left {
    samples: u64,
    footprint: u128,
}

/// One dataset while levels are filled.
struct DatasetFill<'a> {
    sizes: &'a Sizes,
    uses: &'a UseCounts,
    /// The length and the uses of all samples, if they are equal.
    equal: Option<(u64, u64)>,
    kept: LevelTable,
    saved: u128,
    /// By level.
    filled: Vec<LevelFill>,
}

impl<'a> DatasetFill<'a> {
    fn new(sizes: &'a Sizes, uses: &'a UseCounts, servers: Option<&OriginServers>) -> Self {
        let equal = match uses {
            // Samples of different servers are not equal.
            _ if servers.is_some() => None,
            UseCounts::Same(uses) if sizes.is_empty() => Some((0, *uses)),
            UseCounts::Same(uses) if sizes.is_uniform() => Some((sizes.bytes(SampleId(0)), *uses)),
            _ => None,
        };
        Self { sizes, uses, equal, kept: LevelTable::NOTHING, saved: 0, filled: Vec::new() }
    }

    /// Takes the space of as many samples of `bytes` bytes as fit, at most `most`. Returns their
    /// number.
    fn take(&mut self, space: &mut LevelSpace, bytes: u64, most: u64) -> u64 {
        let footprint = space.footprint.of(bytes);
        let samples = space.left.checked_div(footprint).unwrap_or(u64::MAX).min(most);
        space.left -= samples * footprint;
        let filled = &mut self.filled[usize::from(space.at.0)];
        *filled = filled.and(LevelFill::of(samples, bytes, footprint));
        samples
    }

    /// If all samples are equal, the ids below this are already kept.
    fn start(&self) -> u64 {
        match &self.kept {
            LevelTable::Ranges(ends) => ends[MAX_LEVELS - 1],
            LevelTable::Bits(_) => 0,
        }
    }

    /// If samples differ: the samples that are worth keeping and are not kept, with their uses.
    fn candidates(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.sizes.len())
            .map(|id| (id, self.uses.of(SampleId(id))))
            .filter(|&(id, uses)| uses > 1 && self.kept.level(SampleId(id)).is_none())
    }

    fn left(&self, footprint: Footprint) -> Left {
        match self.equal {
            Some((bytes, uses)) => {
                let samples = if uses > 1 { self.sizes.len() - self.start() } else { 0 };
                Left { samples, footprint: u128::from(samples) * u128::from(footprint.of(bytes)) }
            }
            None => self.candidates().fold(Left { samples: 0, footprint: 0 }, |left, (id, _)| Left {
                samples: left.samples + 1,
                footprint: left.footprint + u128::from(footprint.of(self.sizes.bytes(SampleId(id)))),
            }),
        }
    }

    fn items(
        &self,
        dataset: usize,
        footprint: Footprint,
        origin: &Origin,
        items: &mut Vec<Item>,
    ) -> Result<(), PlanReason> {
        let item = |id, bytes, uses| Item {
            inverse_worth: u64::MAX - worth(uses, bytes, footprint.of(bytes), origin),
            dataset: dataset as u32,
            id,
        };
        match self.equal {
            Some((bytes, uses)) => items.extend((uses > 1).then(|| item(self.start(), bytes, uses))),
            None => {
                let samples = self.left(footprint).samples;
                let space = usize::try_from(samples).ok().and_then(|samples| items.try_reserve(samples).ok());
                space.ok_or(too_large(dataset, self.sizes))?;
                items.extend(
                    self.candidates().map(|(id, uses)| item(id, self.sizes.bytes(SampleId(id)), uses)),
                );
            }
        }
        Ok(())
    }

    /// Keeps an item if it fits. Of equal samples, keeps as many as fit.
    fn keep(&mut self, item: &Item, space: &mut LevelSpace) -> Result<(), PlanReason> {
        match self.equal {
            Some((bytes, uses)) => {
                let samples = self.take(space, bytes, self.sizes.len() - item.id);
                self.keep_ids(item.id + samples, space.at);
                self.saved += u128::from(samples) * u128::from(bytes) * u128::from(uses - 1);
            }
            None => {
                let id = SampleId(item.id);
                let bytes = self.sizes.bytes(id);
                if self.take(space, bytes, 1) == 1 {
                    self.bits(item.dataset as usize)?.keep(item.id, space.at);
                    self.saved += u128::from(bytes) * u128::from(self.uses.of(id) - 1);
                }
            }
        }
        Ok(())
    }

    /// Keeps all remaining samples that are worth keeping. They must fit.
    fn keep_rest(&mut self, dataset: usize, left: &Left, space: &mut LevelSpace) -> Result<(), PlanReason> {
        if left.samples == 0 {
            return Ok(());
        }
        if self.equal.is_some() {
            return self.keep(&Item { inverse_worth: 0, dataset: dataset as u32, id: self.start() }, space);
        }
        if left.samples == self.sizes.len() {
            self.kept = LevelTable::all(left.samples, space.at);
            for id in (0..left.samples).map(SampleId) {
                let bytes = self.sizes.bytes(id);
                self.take(space, bytes, 1);
                self.saved += u128::from(bytes) * u128::from(self.uses.of(id) - 1);
            }
            return Ok(());
        }
        let ids: Vec<u64> = self.candidates().map(|(id, _)| id).collect();
        ids.into_iter()
            .try_for_each(|id| self.keep(&Item { inverse_worth: 0, dataset: dataset as u32, id }, space))
    }

    /// Keeps the ids below `end` that are not kept yet.
    fn keep_ids(&mut self, end: u64, at: LevelIndex) {
        if let LevelTable::Ranges(ends) = &mut self.kept {
            ends[usize::from(at.0)..].fill(end);
        }
    }

    /// The table of bits, created if there is none yet.
    fn bits(&mut self, dataset: usize) -> Result<&mut LevelTable, PlanReason> {
        if matches!(self.kept, LevelTable::Ranges(_)) {
            self.kept = LevelTable::bits(self.sizes.len()).ok_or(too_large(dataset, self.sizes))?;
        }
        Ok(&mut self.kept)
    }
}

/// Orders items by the remaining times of their servers.
fn even_out(
    items: &mut Vec<Item>,
    parts: &[DatasetFill<'_>],
    servers: &OriginServers,
) -> Result<(), PlanReason> {
    let server = |item: &Item| servers.of(item.dataset as usize, SampleId(item.id));
    let ns = |item: &Item| {
        let (part, id) = (&parts[item.dataset as usize], SampleId(item.id));
        let read = u128::from(servers.nanoseconds(server(item), part.sizes.bytes(id)));
        read.saturating_mul(u128::from(part.uses.of(id).saturating_sub(1)))
    };
    let largest = (0..parts.len()).max_by_key(|&dataset| parts[dataset].sizes.len()).unwrap_or(0);
    by_remaining_time(items, servers.count(), server, ns)
        .ok_or_else(|| too_large(largest, parts[largest].sizes))
}

fn too_large(dataset: usize, sizes: &Sizes) -> PlanReason {
    PlanReason::Memory { dataset: (dataset as u32).into(), samples: sizes.len() }
}

/// The origin nanoseconds that a kept sample saves per byte of its footprint, in units of 2^-24,
/// rounded down.
///
/// One exact fraction, rounded once, so samples of equal worth compare as equal. Saturates for
/// samples that are tiny compared with the latency, which then all go first.
pub(crate) fn worth(uses: u64, bytes: u64, footprint: u64, origin: &Origin) -> u64 {
    let bandwidth = u128::from(origin.bytes_per_second);
    let once = (u128::from(origin.latency_ns) * bandwidth).saturating_add(u128::from(bytes) * 1_000_000_000);
    let all = once.saturating_mul(u128::from(uses.saturating_sub(1))).saturating_mul(1 << 24);
    let worth = all.checked_div(u128::from(footprint) * bandwidth).unwrap_or(u128::MAX);
    narrow(worth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worth_ties_exactly_and_saturates() {
        let origin =
            |latency_ns, bytes_per_second| Origin { latency_ns, bytes_per_second, ..Origin::default() };
        let at = |bytes| worth(3, bytes, bytes, &origin(0, 7));
        assert!((1..1000).all(|bytes| at(bytes) == at(1)));
        let by_requests = &Origin::default();
        assert!(worth(2, 100, 100, by_requests) > worth(2, 101, 101, by_requests));
        assert!(worth(3, 101, 101, by_requests) > worth(2, 100, 100, by_requests));
        assert_eq!(worth(1, 100, 100, by_requests), 0);
        assert_eq!(worth(2, 0, 0, by_requests), u64::MAX);
        let slow = &origin(u64::MAX, u64::MAX);
        assert_eq!(worth(u64::MAX, u64::MAX, 1, slow), u64::MAX);
    }
}
