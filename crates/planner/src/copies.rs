//! Second copies (replicas), in the space that is left after every sample has an owner.
//!
//! A second copy saves the network later uses in its store. It saves the origin nothing, so it has
//! the lowest priority. It is made from the sample that the first use in its store fetched, so it
//! costs no read.
//!
//! # The decision, and its price
//!
//! Copies are chosen by free space, and no uses are counted. A store with space for every sample
//! that it does not own gets a copy of each. Any other store gets copies of the samples that its
//! ranks read first, until it is full. These serve the most later uses, because a shuffled order
//! favours no sample. Such a store computes orders until it is full. After [`BUDGET`] positions it
//! fills the rest by sample number, and these copies are made later in the run. The price is that
//! the store cannot prefer the samples that its ranks happen to read most often.
//!
//! A rank chooses the copies of its store, two bits per sample. Of other stores it needs only the
//! number of uses that they serve: [`expected`].

use foreread_oracle::Run;
use foreread_types::{DatasetId, SampleId, SampleKey};

use crate::assign::DatasetSamples;
use crate::cluster::Cluster;
use crate::error::{PlanError, PlanReason};
use crate::knapsack::LevelFill;
use crate::level::{LevelIndex, MAX_LEVELS};
use crate::owners::{PackedOwner, unpack};
use crate::placement::LevelTable;
use crate::readers::{cost, list, used, walk};
use crate::wide::narrow;

/// Positions of orders that are computed to fill stores: two thirds of a second with shuffled
/// orders.
const BUDGET: u64 = 1 << 26;

/// A store's copy of a sample that another store owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecondCopy {
    /// The sample.
    pub key: SampleKey,
    /// The position of the store in [`Cluster::stores`].
    pub store: usize,
    /// The level of that store.
    pub level: LevelIndex,
}

/// The second copies of one store.
#[derive(Debug)]
pub(crate) struct StoreCopies {
    /// The position of the store.
    pub(crate) store: usize,
    /// By dataset.
    pub(crate) tables: Vec<LevelTable>,
    pub(crate) filled: [LevelFill; MAX_LEVELS],
    left: [u64; MAX_LEVELS],
    /// Whether a sample did not fit.
    full: bool,
}

impl StoreCopies {
    /// The copies, by dataset and sample number.
    pub(crate) fn list(&self) -> impl Iterator<Item = SecondCopy> + '_ {
        let store = self.store;
        (0..).zip(&self.tables).flat_map(move |(dataset, table)| {
            let key = move |id| SampleKey::new(DatasetId(dataset), SampleId(id));
            table.kept().map(move |(id, level)| SecondCopy { key: key(id), store, level })
        })
    }
}

/// The input for the choice of second copies.
pub(crate) struct CopyChooser<'a> {
    pub(crate) run: &'a Run,
    pub(crate) cluster: &'a Cluster,
    pub(crate) datasets: &'a [DatasetSamples<'a>],
    /// By dataset, by sample.
    pub(crate) owners: &'a [Vec<PackedOwner>],
    /// By rank.
    pub(crate) stores: &'a [u16],
}

impl CopyChooser<'_> {
    /// Chooses the second copies of some stores, each with the free space of its levels.
    pub(crate) fn choose(
        &self,
        wanted: impl Iterator<Item = (usize, [u64; MAX_LEVELS])>,
    ) -> Result<Vec<StoreCopies>, PlanError> {
        let mut chosen = Vec::new();
        let mut partial = Vec::new();
        for (store, left) in wanted {
            let mut copies = self.empty(store, left)?;
            self.fill(&mut copies);
            if copies.full {
                copies = self.empty(store, left)?;
                partial.push(chosen.len());
            }
            chosen.push(copies);
        }
        if !partial.is_empty() && !self.fill_by_use(&mut chosen, &partial)? {
            partial.iter().for_each(|&at| self.fill(&mut chosen[at]));
        }
        Ok(chosen)
    }

    fn empty(&self, store: usize, left: [u64; MAX_LEVELS]) -> Result<StoreCopies, PlanReason> {
        let mut tables = Vec::new();
        for part in self.datasets {
            tables.push(LevelTable::bits(part.sizes.len()).ok_or(part.too_large())?);
        }
        Ok(StoreCopies { store, tables, filled: Default::default(), left, full: left == [0; MAX_LEVELS] })
    }

    /// Keeps copies in order of sample numbers until the store is full.
    fn fill(&self, copies: &mut StoreCopies) {
        for (at, part) in self.datasets.iter().enumerate() {
            for id in 0..part.sizes.len() {
                if copies.full {
                    return;
                }
                self.keep(copies, at, id);
            }
        }
    }

    /// Keeps copies in the order in which the stores' ranks read samples. Returns true if all of
    /// these stores are full or the run has ended, and false if the budget is used up.
    fn fill_by_use(&self, chosen: &mut [StoreCopies], partial: &[usize]) -> Result<bool, PlanError> {
        let mut of_rank: Vec<Option<usize>> = vec![None; self.stores.len()];
        for (place, &store) in of_rank.iter_mut().zip(self.stores) {
            *place = partial.iter().copied().find(|&at| chosen[at].store == usize::from(store));
        }
        let mut budget = BUDGET;
        for pass in self.run.passes() {
            if partial.iter().all(|&at| chosen[at].full) {
                return Ok(true);
            }
            let Some(left) = budget.checked_sub(cost(self.run, &pass)) else { return Ok(false) };
            budget = left;
            let list = list(self.run, &pass)?;
            walk(&list, 0..used(&list), |rank, id| {
                if let Some(at) = of_rank[rank.0 as usize]
                    && !chosen[at].full
                {
                    self.keep(&mut chosen[at], pass.dataset.0 as usize, id.0);
                }
            });
        }
        Ok(true)
    }

    /// Keeps a copy of a sample that another store owns, if it serves a use and fits. With two uses
    /// it serves none: the owner serves the first, and the second fetches the copy.
    fn keep(&self, copies: &mut StoreCopies, part: usize, id: u64) {
        let (owners, samples) = (&self.owners[part], &self.datasets[part]);
        let owned_elsewhere = unpack(owners[id as usize]).is_some_and(|(owner, _)| owner != copies.store);
        if !owned_elsewhere
            || samples.uses.of(SampleId(id)) <= 2
            || copies.tables[part].level(SampleId(id)).is_some()
        {
            return;
        }
        let bytes = samples.sizes.bytes(SampleId(id));
        let levels = self.cluster.stores[copies.store].levels.iter().enumerate();
        let mut fits = levels.map(|(at, level)| (at, level.footprint.of(bytes)));
        let Some((at, footprint)) = fits.find(|&(at, footprint)| footprint <= copies.left[at]) else {
            copies.full = true;
            return;
        };
        copies.left[at] -= footprint;
        copies.tables[part].keep(id, LevelIndex(at as u8));
        let filled = &mut copies.filled[at];
        *filled = filled.and(LevelFill::of(1, bytes, footprint));
    }
}

/// The expected uses of other stores' samples by a store's ranks, in samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignUses {
    /// Samples that other stores own.
    pub(crate) samples: u64,
    /// Those of them that may get a copy here.
    pub(crate) eligible: u64,
    /// Copies that fit.
    pub(crate) places: u64,
    /// Uses by the store's ranks after the first epoch.
    pub(crate) uses: u64,
    /// The number of epochs over which these uses are spread.
    pub(crate) epochs: u64,
}

/// The number of second copies that a store has in the end, and the uses that they serve. Every
/// epoch draws a new order. A use of a sample with a copy is served. A use of another sample that
/// may get a copy makes one.
pub(crate) fn expected(foreign: ForeignUses) -> (u64, u64) {
    // In units of 2^-16 samples.
    let scale = |samples: u64| u128::from(samples) << 16;
    let (samples, places) = (scale(foreign.samples).max(1), scale(foreign.places.min(foreign.eligible)));
    let uses = scale(foreign.uses) / u128::from(foreign.epochs.max(1));
    let (mut copies, mut served) = (0u128, 0u128);
    for left in (1..=u128::from(foreign.epochs)).rev() {
        let of_copies = uses.saturating_mul(copies) / samples;
        let new = uses.saturating_mul(scale(foreign.eligible).saturating_sub(copies)) / samples;
        let next = (copies + new).min(places);
        if next == copies {
            served += of_copies.saturating_mul(left);
            break;
        }
        served += of_copies;
        copies = next;
    }
    ((copies >> 16) as u64, narrow(served >> 16).min(foreign.uses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_uses_are_limited_by_space_and_samples() {
        let foreign =
            ForeignUses { samples: 750, eligible: 750, places: 750, uses: 250 * 89 * 3 / 4, epochs: 89 };
        let (copies, served) = expected(foreign);
        // All samples are copied. The owner serves the first use of each.
        assert_eq!(copies, 749);
        assert!(served.abs_diff(foreign.uses - 750) < 10, "{served} of {}", foreign.uses);
        let (copies, served) = expected(ForeignUses { places: 100, ..foreign });
        assert_eq!(copies, 100);
        assert!(served.abs_diff(foreign.uses * 100 / 750 * 88 / 89) < 20, "{served}");
        assert_eq!(expected(ForeignUses { places: 0, ..foreign }), (0, 0));
        assert_eq!(expected(ForeignUses { epochs: 0, uses: 0, ..foreign }), (0, 0));
        assert_eq!(expected(ForeignUses { samples: 0, eligible: 0, ..foreign }), (0, 0));
    }

    #[test]
    fn expected_uses_of_a_million_epochs_do_not_overflow() {
        let epochs = 1_000_000;
        let foreign =
            ForeignUses { samples: 1 << 40, eligible: 1 << 40, places: 1 << 39, uses: 1 << 62, epochs };
        let (copies, served) = expected(foreign);
        assert_eq!(copies, 1 << 39);
        assert!(served.abs_diff(1 << 61) < 1 << 45, "{served}");
    }
}
