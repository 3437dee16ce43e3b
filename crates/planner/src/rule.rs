//! Owners by arithmetic, for runs whose tables would not fit in memory.
//!
//! The rule needs a computed order (`feistel`, `sequential`) and samples of one size. Then the
//! position of a sample in the first order gives its first reader. The inverse of the order gives
//! that position. So:
//!
//! * Every rank gets an equal part of the places in its store, level by level. It keeps the first
//!   samples that it reads, as many as it has places.
//! * Samples beyond a rank's places, and samples that the first pass drops, are numbered in order
//!   of ranks. So are the free places of other ranks. The n-th sample without a place gets the n-th
//!   place without a sample.
//!
//! A query takes two searches among the ranks and one inverse. A rank takes some bytes. The price:
//! only first readers own, so the local share is that of chance.

use std::fmt;

use foreread_oracle::{Dealing, Fingerprinter, Order, OrderInverse};
use foreread_types::{Fingerprint, Rank, SampleId};

use crate::level::{LevelIndex, MAX_LEVELS};

/// The rule of one dataset.
#[derive(Clone)]
pub(crate) struct OwnerRule {
    positions: OrderInverse,
    len: u64,
    dealing: Dealing,
    ranks: Vec<RankPlaces>,
    /// Samples beyond their ranks' places, over all ranks. Samples that the first pass drops come
    /// after them.
    over: u64,
    free: u64,
    print: Fingerprint,
}

/// One rank's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RankPlaces {
    store: u16,
    /// Samples that it reads first.
    reads: u64,
    /// The places up to the end of each level.
    ends: [u64; MAX_LEVELS],
    /// Samples without a place and places without a sample of the ranks before it.
    over_before: u64,
    free_before: u64,
}

impl RankPlaces {
    fn places(&self) -> u64 {
        self.ends[MAX_LEVELS - 1]
    }

    fn level(&self, place: u64) -> Option<LevelIndex> {
        self.ends.iter().position(|&end| place < end).map(|level| LevelIndex(level as u8))
    }
}

/// The number of samples in each level of a store under a rule, and the number that their first
/// reader keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleCounts {
    pub(crate) levels: [u64; MAX_LEVELS],
    pub(crate) first: u64,
}

impl OwnerRule {
    /// For the samples of `order`, the first order of the run. `stores` is the store of each rank.
    /// `places` is the number of samples that fit in each level of each store.
    pub(crate) fn new(
        order: &Order,
        dealing: Dealing,
        stores: &[u16],
        places: &[[u64; MAX_LEVELS]],
        print: Fingerprinter,
    ) -> Self {
        let len = order.len();
        let share = dealing.share(len, 0);
        let mut ranks: Vec<RankPlaces> =
            stores.iter().map(|&store| RankPlaces { store, reads: share, ..RankPlaces::default() }).collect();
        // Padding does not count as a first read. It has fewer places than ranks, unless there are
        // fewer samples than ranks.
        let list = share * u64::from(dealing.world_size());
        let mut readers = [Rank(0); 1024];
        let mut at = len;
        while at < list {
            let some = (list - at).min(readers.len() as u64) as usize;
            dealing.fill_ranks(len, 0, at, &mut readers[..some]);
            for rank in &readers[..some] {
                ranks[rank.0 as usize].reads -= 1;
            }
            at += some as u64;
        }
        let mut of_store = vec![0u64; places.len()];
        stores.iter().for_each(|&store| of_store[usize::from(store)] += 1);
        let mut before = vec![0u64; places.len()];
        let (mut over, mut free) = (0, 0);
        for rank in &mut ranks {
            let store = usize::from(rank.store);
            let (nth, of) = (before[store], of_store[store]);
            before[store] += 1;
            let mut end = 0;
            for (level, &places) in places[store].iter().enumerate() {
                end += places / of + u64::from(nth < places % of);
                rank.ends[level] = end;
            }
            (rank.over_before, rank.free_before) = (over, free);
            over += rank.reads.saturating_sub(end);
            free += end.saturating_sub(rank.reads);
        }
        let print = stores.iter().fold(print.number(len), |print, &store| print.number(store.into()));
        let print = places.iter().fold(print, |print, places| print.numbers(places.iter().copied()));
        Self { positions: order.inverse(), len, dealing, ranks, over, free, print: print.finish() }
    }

    pub(crate) fn owner(&self, id: SampleId) -> Option<(usize, LevelIndex)> {
        let position = self.positions.next(id, 0)?;
        let without = match self.dealing.locate(self.len, 0, position) {
            Some((Rank(rank), index)) => {
                let rank = &self.ranks[rank as usize];
                if let Some(level) = rank.level(index) {
                    return Some((usize::from(rank.store), level));
                }
                rank.over_before + (index - rank.places())
            }
            None => self.over + position - self.dealt(),
        };
        if without >= self.free {
            return None;
        }
        let taker = self.ranks.partition_point(|rank| rank.free_before <= without).checked_sub(1)?;
        let taker = &self.ranks[taker];
        let level = taker.level(taker.reads + (without - taker.free_before))?;
        Some((usize::from(taker.store), level))
    }

    /// The content of each store.
    pub(crate) fn held(&self, stores: usize) -> Vec<RuleCounts> {
        let mut held = vec![RuleCounts::default(); stores];
        let taken = self.free.min(self.over + (self.len - self.dealt()));
        for rank in &self.ranks {
            let held = &mut held[usize::from(rank.store)];
            let free = rank.places().saturating_sub(rank.reads);
            let samples = rank.reads.min(rank.places()) + free.min(taken.saturating_sub(rank.free_before));
            let mut start = 0;
            for (level, &end) in rank.ends.iter().enumerate() {
                held.levels[level] += samples.min(end) - samples.min(start);
                start = end;
            }
            held.first += rank.reads.min(rank.places());
        }
        held
    }

    /// The number of positions that the first pass reads.
    fn dealt(&self) -> u64 {
        self.len.min(self.dealing.share(self.len, 0) * u64::from(self.dealing.world_size()))
    }

    pub(crate) fn memory(&self) -> usize {
        size_of_val::<[RankPlaces]>(&self.ranks)
    }

    pub(crate) fn describe(&self, print: Fingerprinter) -> Fingerprinter {
        print.part(self.print)
    }
}

impl PartialEq for OwnerRule {
    fn eq(&self, other: &Self) -> bool {
        self.print == other.print
    }
}

impl Eq for OwnerRule {}

impl fmt::Debug for OwnerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({} samples, {} ranks)", self.len, self.ranks.len())
    }
}

#[cfg(test)]
mod tests {
    use foreread_oracle::{Deal, Feistel, Sampler};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_used_once_and_first_readers_come_first(
            samples in 0u64..400,
            stores in prop::collection::vec(0u16..4, 1..9),
            places in prop::collection::vec([0u64..60, 0u64..60, 0u64..60], 4),
            batch in prop::option::of(1u64..6),
            (blocks, drop_last) in any::<(bool, bool)>(),
        ) {
            let order = Feistel::new(samples, 3).unwrap().order(0).unwrap();
            let deal = if blocks { Deal::Blocks } else { Deal::Torch };
            let dealing = Dealing::new(deal, stores.len() as u32, batch, drop_last).unwrap();
            let rule = OwnerRule::new(&order, dealing, &stores, &places, Fingerprinter::new("test"));
            let mut held = [[0u64; MAX_LEVELS]; 4];
            let mut first = [0u64; 4];
            for position in 0..samples {
                if let Some((store, level)) = rule.owner(order.at(position)) {
                    held[store][usize::from(level.0)] += 1;
                    let reader = dealing.locate(samples, 0, position);
                    let reader = reader.map(|(rank, _)| stores[rank.0 as usize]);
                    first[store] += u64::from(reader == Some(store as u16));
                }
            }
            let counts = rule.held(4);
            for store in 0..4 {
                prop_assert_eq!(held[store], counts[store].levels);
                prop_assert!(first[store] >= counts[store].first);
                prop_assert!(held[store].iter().zip(&places[store]).all(|(held, places)| held <= places));
            }
            // Stores without ranks keep nothing. In the others, no place is free while a sample has
            // none.
            let used = |store: usize| stores.contains(&(store as u16));
            let room: u64 = (0..4).filter(|&store| used(store)).flat_map(|store| places[store]).sum();
            prop_assert_eq!(held.iter().flatten().sum::<u64>(), room.min(samples));
        }
    }
}
