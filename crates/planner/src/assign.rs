//! Gives every sample that is worth keeping one owner, as long as there is room.
//!
//! # The decision, and its price
//!
//! Greedy: the samples in order of what keeping them saves for each byte of room, in nanoseconds of reading: the
//! origin's for all uses but the first, and the network's for the uses that the owner makes itself. Each goes to the
//! store that reads it most (what a store holds already has been placed there before); where that is full, it is put back into the order with what it saves at the next store;
//! where none of its readers has room, it goes to wherever most is left. So which samples are kept is the knapsack of
//! one store, and among samples that save the origin equally much, those go first that can lie near their readers.
//!
//! Saved time is compared as a number of 32 bits with a mantissa of 25, so that the order of 14 million samples is a
//! table of 8 bytes each; samples that differ by less than 3e-8 are ordered by id. Where all samples are alike and
//! few, [`improve`](crate::improve) makes the greedy choice the best one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreread_types::{DatasetId, Footprint, SampleId, Sizes};

use crate::cluster::{Cluster, LevelIndex, MAX_LEVELS};
use crate::demand::{Uses, table};
use crate::error::Reason;
use crate::forecast::narrow;
use crate::improve;
use crate::knapsack::Filled;
use crate::owners::{NOBODY, Packed, pack, unpack};
use crate::readers::Readers;
use crate::rooms::Rooms;

/// What is to be assigned, of one dataset.
pub(crate) struct Part<'a> {
    pub(crate) dataset: DatasetId,
    pub(crate) sizes: &'a Sizes,
    pub(crate) uses: &'a Uses,
    pub(crate) readers: &'a Readers,
    /// Whether the first reader comes before the most frequent ones.
    pub(crate) first: bool,
}

impl Part<'_> {
    /// The store that a sample should lie in, and its uses there; then the second best, and so on.
    #[inline]
    fn candidate(&self, id: usize, nth: usize) -> Option<(usize, u64)> {
        match (self.first, nth) {
            (true, 0) => self.readers.first_of(id),
            (true, nth) => self.readers.candidate(id, nth - 1),
            (false, nth) => self.readers.candidate(id, nth),
        }
    }
}

/// Where the samples of one dataset lie.
pub(crate) struct Assigned {
    /// By sample.
    pub(crate) owners: Vec<Packed>,
    /// By store, by level.
    pub(crate) filled: Vec<[Filled; MAX_LEVELS]>,
}

/// Assigns all samples of all parts; `rooms` is all room before and what is left afterwards.
pub(crate) fn assign(
    cluster: &Cluster,
    parts: &[Part<'_>],
    rooms: &mut Rooms,
) -> Result<Vec<Assigned>, Reason> {
    let mut assigned = Vec::new();
    let mut starts = vec![0u64];
    for part in parts {
        let samples = part.sizes.len();
        let owners = table(samples).ok_or(Reason::Memory { dataset: part.dataset, samples })?;
        let filled = vec![[Filled::default(); MAX_LEVELS]; cluster.stores.len()];
        assigned.push(Assigned { owners, filled });
        starts.push(starts.last().copied().unwrap_or(0) + samples);
    }
    if cluster.capacity() == 0 {
        return Ok(assigned);
    }
    let prices = Prices::new(cluster);
    for (part, assigned) in parts.iter().zip(&mut assigned) {
        for (id, store, level) in cluster.held.of(part.dataset.0 as usize) {
            let known = id < part.sizes.len() && part.uses.of(SampleId(id)) > 0;
            if known && rooms.take_in(store, level, part.sizes.bytes(SampleId(id))) {
                assigned.owners[id as usize] = pack(store, level);
            }
        }
    }
    let keys = keys(parts, &assigned, &starts, &prices)?;
    let mut greedy = Greedy { parts, starts: &starts, prices: &prices, rooms, assigned: &mut assigned };
    greedy.run(&keys);
    drop(keys);
    for (part, assigned) in parts.iter().zip(&mut assigned) {
        if parts.len() == 1 && part.sizes.is_uniform() && !part.first && cluster.held.is_nothing() {
            let value = |id: usize, near: u64| {
                let (uses, bytes) =
                    (part.uses.of(SampleId(id as u64)), part.sizes.bytes(SampleId(id as u64)));
                prices.saved_ns(uses, bytes, near)
            };
            improve::improve(cluster, part, assigned, value);
        }
        fill(cluster, part, assigned);
    }
    *rooms = Rooms::new(cluster);
    assigned.iter().for_each(|assigned| rooms.fill(&assigned.filled));
    Ok(assigned)
}

/// What lies in each level, counted from the owners.
fn fill(cluster: &Cluster, part: &Part<'_>, assigned: &mut Assigned) {
    let footprints: Vec<Vec<Footprint>> = cluster
        .stores
        .iter()
        .map(|store| store.levels.iter().map(|level| level.footprint).collect())
        .collect();
    for (id, &packed) in assigned.owners.iter().enumerate() {
        let Some((store, level)) = unpack(packed) else { continue };
        let bytes = part.sizes.bytes(SampleId(id as u64));
        let filled = &mut assigned.filled[store][usize::from(level.0)];
        filled.samples += 1;
        filled.bytes += u128::from(bytes);
        filled.footprint += footprints[store][usize::from(level.0)].of(bytes);
    }
}

/// What uses cost, by where they are served from.
pub(crate) struct Prices<'a> {
    cluster: &'a Cluster,
    /// A footprint that stands for all: that of the first level that there is.
    footprint: Footprint,
    /// Nanoseconds a byte, in units of 2^-32: two divisions less for each sample.
    origin: u64,
    network: u64,
}

impl<'a> Prices<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Self {
        let first = cluster.stores.iter().find_map(|store| store.levels.first());
        let footprint = first.map_or(Footprint::EXACT, |level| level.footprint);
        let per_byte = |rate: u64| (1_000_000_000u64 << 32) / rate.max(1);
        let origin = per_byte(cluster.origin.bytes_per_second);
        Self { cluster, footprint, origin, network: per_byte(cluster.network.bytes_per_second) }
    }

    /// Nanoseconds that a sample's place saves over the run: `near` of its uses are made where it lies.
    pub(crate) fn saved_ns(&self, uses: u64, bytes: u64, near: u64) -> u64 {
        let transfer = |per_byte: u64| narrow((u128::from(bytes) * u128::from(per_byte)) >> 32);
        let origin = self.cluster.origin.latency_ns.saturating_add(transfer(self.origin));
        // A use nearby is always worth something, or nothing would tell two readers apart.
        let network = self.cluster.network.latency_ns.saturating_add(transfer(self.network)).max(1);
        uses.saturating_sub(1).saturating_mul(origin).saturating_add(near.saturating_mul(network))
    }

    /// The order of samples: smaller is better.
    pub(crate) fn rank(&self, uses: u64, bytes: u64, near: u64) -> u32 {
        !ratio(self.saved_ns(uses, bytes, near), self.footprint.of(bytes))
    }
}

/// `value / weight` as a floating-point number of 7 bits of exponent and 25 of mantissa, whose order is that of the
/// ratios; rounded down. 0 for a value of 0, and the largest for a weight of 0.
fn ratio(value: u64, weight: u64) -> u32 {
    if value == 0 {
        return 0;
    }
    let shift = value.leading_zeros();
    let Some(quotient) = (value << shift).checked_div(weight) else { return u32::MAX };
    if quotient == 0 {
        return 0;
    }
    let bits = 64 - quotient.leading_zeros();
    let exponent = (bits + 63 - shift).min(127);
    // The leading bit is implied.
    let mantissa = (quotient << (64 - bits) << 1) >> 39;
    exponent << 25 | mantissa as u32
}

/// The samples that are worth keeping and have no place yet, `rank << 32 | number`, the best first.
fn keys(
    parts: &[Part<'_>],
    assigned: &[Assigned],
    starts: &[u64],
    prices: &Prices<'_>,
) -> Result<Vec<u64>, Reason> {
    let mut keys: Vec<u64> = Vec::new();
    for ((part, assigned), start) in parts.iter().zip(assigned).zip(starts) {
        let samples = part.sizes.len();
        let worth = (0..samples).filter(|&id| part.uses.of(SampleId(id)) > 1).count();
        let memory = Reason::Memory { dataset: part.dataset, samples };
        keys.try_reserve_exact(worth).map_err(|_| memory)?;
        for id in 0..samples {
            let uses = part.uses.of(SampleId(id));
            if uses > 1 && assigned.owners[id as usize] == NOBODY {
                let near = part.candidate(id as usize, 0).map_or(0, |(_, uses)| uses);
                let rank = prices.rank(uses, part.sizes.bytes(SampleId(id)), near);
                keys.push(u64::from(rank) << 32 | (start + id));
            }
        }
    }
    keys.sort_unstable();
    Ok(keys)
}

/// How many samples are looked up together.
const BATCH: usize = 64;

/// A sample that is to be placed at its `nth` reader, if it has so many.
struct Item {
    key: u64,
    nth: u16,
    part: usize,
    id: usize,
    bytes: u64,
    store: Option<usize>,
}

struct Greedy<'a> {
    parts: &'a [Part<'a>],
    starts: &'a [u64],
    prices: &'a Prices<'a>,
    rooms: &'a mut Rooms,
    assigned: &'a mut [Assigned],
}

impl Greedy<'_> {
    fn run(&mut self, keys: &[u64]) {
        // Samples whose best readers are full, by what they save at the next.
        let mut later: BinaryHeap<Reverse<(u64, u16)>> = BinaryHeap::new();
        let mut items = Vec::with_capacity(BATCH);
        for batch in keys.chunks(BATCH) {
            // Samples in order of worth lie anywhere in the tables; looked up together, their misses overlap.
            items.clear();
            items.extend(batch.iter().map(|&key| self.item(key, 0)));
            for item in &mut items {
                item.store = self.parts[item.part].candidate(item.id, 0).map(|(store, _)| store);
            }
            for item in &items {
                while later.peek().is_some_and(|next| next.0.0 < item.key) {
                    self.place_next(&mut later);
                }
                later.extend(self.place(item).map(Reverse));
            }
        }
        while !later.is_empty() {
            self.place_next(&mut later);
        }
    }

    fn place_next(&mut self, later: &mut BinaryHeap<Reverse<(u64, u16)>>) {
        if let Some(Reverse((key, nth))) = later.pop() {
            let mut item = self.item(key, nth);
            let candidate = self.parts[item.part].candidate(item.id, usize::from(nth));
            item.store = candidate.map(|(store, _)| store);
            later.extend(self.place(&item).map(Reverse));
        }
    }

    /// A sample, without its store.
    fn item(&self, key: u64, nth: u16) -> Item {
        let number = key & u64::from(u32::MAX);
        let part = self.starts.partition_point(|&start| start <= number) - 1;
        let id = (number - self.starts[part]) as usize;
        let bytes = self.parts[part].sizes.bytes(SampleId(id as u64));
        Item { key, nth, part, id, bytes, store: None }
    }

    /// Places a sample at its `nth` reader, or says what it saves at the next.
    fn place(&mut self, item: &Item) -> Option<(u64, u16)> {
        let Item { key, nth, part: at, id, bytes, store } = *item;
        let part = &self.parts[at];
        let owner = &mut self.assigned[at].owners[id];
        let Some(store) = store else {
            if let Some((store, level)) = self.rooms.take_anywhere(bytes) {
                *owner = pack(store, level);
            }
            return None;
        };
        if let Some(level) = self.rooms.take(store, bytes) {
            *owner = pack(store, level);
            return None;
        }
        if !self.rooms.fits(bytes) {
            return None;
        }
        let near = part.candidate(id, usize::from(nth) + 1).map_or(0, |(_, uses)| uses);
        let rank = self.prices.rank(part.uses.of(SampleId(id as u64)), bytes, near);
        Some((u64::from(rank) << 32 | key & u64::from(u32::MAX), nth + 1))
    }
}

/// The levels of the samples in a store, best first, when which of them lie there has been decided.
pub(crate) fn levels_of(cluster: &Cluster, store: usize, bytes: u64) -> Vec<(LevelIndex, u64)> {
    let levels = cluster.stores[store].levels.iter().enumerate();
    levels
        .map(|(index, level)| {
            let room = level.capacity.checked_div(level.footprint.of(bytes)).unwrap_or(u64::MAX);
            (LevelIndex(index as u8), room)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_ordered() {
        let pairs =
            [(0, 1), (1, u64::MAX), (1, 1000), (1, 3), (2, 3), (1, 1), (3, 2), (1000, 1), (u64::MAX, 1)];
        let found: Vec<u32> = pairs.iter().map(|&(value, weight)| ratio(value, weight)).collect();
        assert!(found.windows(2).all(|pair| pair[0] <= pair[1]), "{found:?}");
        assert!(found[1..].windows(2).skip(1).all(|pair| pair[0] < pair[1]), "{found:?}");
        assert_eq!(ratio(1, 0), u32::MAX);
        assert_eq!(ratio(10, 5), ratio(2_000_000, 1_000_000));
        let (near, nearer) = (ratio(1_000_000_000, 100_000), ratio(1_000_000_100, 100_000));
        assert!(near < nearer);
    }
}
