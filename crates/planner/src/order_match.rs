//! Which known order a program uses its files in, by the first files of an epoch.
//!
//! # The decision, and its price
//!
//! * An order is recognised if nearly all of the first [`FIRST_USES`] files are in its first half.
//!   Files in another order are there by chance with a probability below 10^-9. So hundreds of
//!   orders can be tried. The price is that these files are not copied ahead.
//! * Ranks divide an order among them: rank r of W uses the places r, r + W, and so on. A node
//!   with some of the ranks uses a part of all places, which [`OrderShare`] finds from the same
//!   files. It needs no launcher. A node with more than eight ranks is not recognised by it, and
//!   files of other nodes are copied ahead, too.
//!
//! All results are functions of the arguments.

/// Files that are compared with an order.
pub const FIRST_USES: usize = 48;

/// Of the first files, so many may be elsewhere: those of another dataset, or of a late worker.
const STRAYS: usize = FIRST_USES / 12;

/// They must be in this part of the order.
const FRONT_PART: usize = 2;

/// The most ranks that share an order.
const MOST_RANKS: usize = 4096;

/// Each rank of a node must have used so many of the first files that unseen ranks are elsewhere.
const USES_PER_RANK: usize = 6;

/// The sorted places of the first files in an order of `files`, if that is the order that they come
/// in. Files that are not in the order have no place.
///
/// ```
/// use foreread_planner::front_places;
///
/// let first = (0..48).rev().map(Some);
/// assert_eq!(front_places(first, 1000), Some((0..48).collect()));
/// let elsewhere = (0..48).map(|place| Some(place * 20));
/// assert_eq!(front_places(elsewhere, 1000), None);
/// ```
pub fn front_places(places: impl Iterator<Item = Option<usize>>, files: usize) -> Option<Vec<usize>> {
    let (mut front, mut strays) = (Vec::new(), 0);
    for place in places {
        match place.filter(|place| *place < files / FRONT_PART) {
            Some(place) => front.push(place),
            None => strays += 1,
        }
    }
    front.sort_unstable();
    (strays <= STRAYS && front.len() >= FIRST_USES - STRAYS).then_some(front)
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

        #[test]
        fn other_orders_are_not_recognised(seed in any::<u64>()) {
            // Random places, as of a program with an order of its own.
            let place = |number: u64| {
                let mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
                Some(((mixed ^ mixed >> 33) % 2000) as usize)
            };
            prop_assert_eq!(front_places((0..FIRST_USES as u64).map(place), 2000), None);
        }
    }
}
