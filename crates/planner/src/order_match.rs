//! Which known order a program uses its files in, by the first files of an epoch.
//!
//! # The decision, and its price
//!
//! * An order is recognised by the predecessor of each file in it. Loaders have several readers,
//!   each of which reads a part of the order, so the other files do not count. Most files come
//!   after their predecessors, or nearly all come close to them: threads that share one list open
//!   its files a little early or late. Files in a random order do neither: 3 of 10,000 random
//!   orders of 48 files are recognised, and of more files still fewer. So hundreds of orders can be
//!   tried. The price is that these files are not copied ahead.
//! * Ranks divide an order among them: rank r of W uses the places r, r + W, and so on. A node
//!   with some of the ranks uses a part of all places, which [`OrderShare`] finds from the same
//!   files. It needs no launcher. A node with more than eight ranks is not recognised by it, and
//!   files of other nodes are copied ahead, too.
//!
//! All results are functions of the arguments.

use std::collections::HashMap;

/// Files that are compared with an order.
pub const FIRST_USES: usize = 48;

/// Of the first files, so many may be elsewhere: those of another dataset.
const STRAYS: usize = FIRST_USES / 12;

/// So many of the first files come after their predecessors. Of a random order 24 do, and 31 or
/// more in one of 4,000.
const AFTER: usize = 31;

/// Or so many come close to their predecessors. Of a random order 27 do.
const CLOSE: usize = 40;

/// Close are so many files before or after: 16 threads open files of one list.
const CLOSE_FILES: usize = 16;

/// The first place of the first files is at most this many times their number.
const FRONT: usize = 2;

/// The most ranks that share an order.
const MOST_RANKS: usize = 4096;

/// Each rank of a node must have used so many of the first files that unseen ranks are elsewhere.
const USES_PER_RANK: usize = 6;

/// The part of an order that the first files of an epoch are from, if that is the order that they
/// come in. `places` are their places in it, in the order of their uses. Other files have none.
///
/// ```
/// use foreread_planner::share_of_order;
///
/// let first = (0..48).map(Some).collect::<Vec<_>>();
/// assert!(share_of_order(&first).is_some_and(|share| share.is_whole()));
/// let other = (0..48).map(|place| Some(place * 31 % 97)).collect::<Vec<_>>();
/// assert_eq!(share_of_order(&other), None);
/// ```
pub fn share_of_order(places: &[Option<usize>]) -> Option<OrderShare> {
    let mut known: Vec<usize> = places.iter().flatten().copied().collect();
    if known.len() + STRAYS < places.len() {
        return None;
    }
    known.sort_unstable();
    let share = OrderShare::of(&known);
    let times: HashMap<usize, usize> = places
        .iter()
        .enumerate()
        .filter_map(|(time, place)| Some((share.own_place((*place)?), time)))
        .collect();
    let (mut after, mut close) = (0, 0);
    for (own, time) in &times {
        // The first file of an order has no predecessor.
        let before = own.checked_sub(1).map_or(Some(time), |before| times.get(&before));
        after += usize::from(before.is_some_and(|before| before <= time));
        close += usize::from(before.is_some_and(|before| before.abs_diff(*time) <= CLOSE_FILES));
    }
    let first = times.keys().min().copied().unwrap_or_default();
    ((after >= AFTER || close >= CLOSE) && first <= FRONT * FIRST_USES).then_some(share)
}

/// The places of an order that the ranks of one node use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderShare {
    /// Whether places with this remainder are used. Its length is the number of ranks.
    remainders: Vec<bool>,
}

impl OrderShare {
    /// All places.
    pub fn whole() -> Self {
        Self { remainders: vec![true] }
    }

    /// The smallest share that has these places.
    ///
    /// ```
    /// use foreread_planner::OrderShare;
    ///
    /// // Ranks 2 and 3 of 8.
    /// let share = OrderShare::of(&(0..48).map(|use_| use_ / 2 * 8 + 2 + use_ % 2).collect::<Vec<_>>());
    /// assert!(share.has(2) && share.has(11) && !share.has(4) && !share.is_whole());
    /// ```
    pub fn of(places: &[usize]) -> Self {
        let most_seen = places.len() / USES_PER_RANK;
        let mut best = Self::whole();
        let mut best_seen = 1;
        for ranks in 2..=MOST_RANKS {
            let mut remainders = vec![false; ranks];
            let mut seen = 0;
            for place in places {
                let is_seen = &mut remainders[place % ranks];
                seen += usize::from(!std::mem::replace(is_seen, true));
                if seen > most_seen {
                    break;
                }
            }
            // A smaller part of all, where equal ones are multiples of the first.
            if seen <= most_seen && seen * best.remainders.len() < best_seen * ranks {
                (best, best_seen) = (Self { remainders }, seen);
            }
        }
        best
    }

    /// The number of used places before this one.
    fn own_place(&self, place: usize) -> usize {
        let (rounds, rest) = (place / self.remainders.len(), place % self.remainders.len());
        let used = |places: &[bool]| places.iter().filter(|is_used| **is_used).count();
        rounds * used(&self.remainders) + used(&self.remainders[..rest])
    }

    /// Whether the node uses the file at a place.
    pub fn has(&self, place: usize) -> bool {
        self.remainders[place % self.remainders.len()]
    }

    /// Whether the node uses all places.
    pub fn is_whole(&self) -> bool {
        self.remainders.iter().all(|is_used| *is_used)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The places from `before` on in a random order.
    fn random_order(seed: u64, before: usize, files: usize) -> Vec<Option<usize>> {
        let random = |number: u64| {
            let mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 7
        };
        let mut order: Vec<usize> = (before..before + files).collect();
        order.sort_by_key(|place| random(*place as u64));
        order[..FIRST_USES].iter().copied().map(Some).collect()
    }

    /// Three of four were recognised.
    #[test]
    fn random_orders_of_the_fewest_files_are_not_recognised() {
        let recognised = |files: usize| {
            (0..2_000).filter(|seed| share_of_order(&random_order(*seed, 60, files)).is_some()).count()
        };
        assert!(recognised(FIRST_USES) < 5 && recognised(FIRST_USES + 4) < 3);
    }

    #[test]
    fn places_of_a_large_world_are_no_smaller_world() {
        // With places of the front only, a world that is larger than the front has one remainder
        // for each place, which is no evidence.
        let share = OrderShare::of(&(0..48).collect::<Vec<_>>());
        assert!(share.is_whole());
    }

    proptest! {
        /// Whatever ranks a node has, their places are found, in any progress of the ranks.
        #[test]
        fn shares_of_nodes_are_found(
            (world, first, local) in (1_usize..600).prop_flat_map(|world| {
                (Just(world), 0..world, 1..=world.min(8))
            }),
            leads in prop::collection::vec(0_usize..3, 8),
        ) {
            let mut places: Vec<usize> = (0..FIRST_USES)
                .map(|number| {
                    let rank = number % local;
                    (number / local + leads[rank]) * world + (first + rank) % world
                })
                .collect();
            places.sort_unstable();
            let share = OrderShare::of(&places);
            for rank in 0..world {
                let is_local = (0..local).any(|each| (first + each) % world == rank);
                prop_assert_eq!(share.has(rank + 7 * world), is_local, "{} of {}", rank, world);
            }
        }

        /// Files of a directory in a random order, of whatever size it is and wherever it is.
        #[test]
        fn other_orders_are_not_recognised(
            seed in any::<u64>(), files in FIRST_USES..2000, before in 0_usize..200,
        ) {
            prop_assert_eq!(share_of_order(&random_order(seed, before, files)), None);
        }

        /// Threads that share one list, and open a file up to 16 files early or late.
        #[test]
        fn threads_of_one_list_are_recognised(early in prop::collection::vec(0_usize..16, 100)) {
            let mut order: Vec<usize> = (0..100).collect();
            order.sort_by_key(|place| place + early[*place]);
            let first: Vec<_> = order[..FIRST_USES].iter().copied().map(Some).collect();
            prop_assert!(share_of_order(&first).is_some());
        }

        /// Several workers, each with a batch, in any progress.
        #[test]
        fn readers_of_one_order_are_recognised(
            batch in 4_usize..64, workers in 1_usize..9, steps in prop::collection::vec(0_usize..9, 400),
        ) {
            let mut at: Vec<usize> = (0..workers).map(|worker| worker * batch).collect();
            let mut places = Vec::new();
            for step in steps.into_iter().cycle().take(4000) {
                let place = &mut at[step % workers];
                places.push(Some(*place));
                *place += 1;
                if place.is_multiple_of(batch) {
                    *place += (workers - 1) * batch;
                }
                if places.len() == FIRST_USES {
                    break;
                }
            }
            prop_assert!(share_of_order(&places).is_some());
        }
    }
}
