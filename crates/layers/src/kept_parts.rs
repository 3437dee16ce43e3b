//! Decoded parts of samples in memory, in the order of their next use.
//!
//! A stored unit brings many samples at once, and each of them has a next use. While there is room,
//! all are kept. After that a part is kept if it is used sooner than the last one, which is
//! dropped. Whole units would need far more reads: with 100 samples per unit and memory for a tenth
//! of the data, 90 times the data per epoch instead of 7 (`foreread_planner::unit_reads`).

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use foreread_types::{SampleKey, Tick};

/// A sample, and the number of one of its parts.
pub(crate) type PartKey = (SampleKey, u32);

/// Memory of an entry beyond its bytes: two nodes of trees and the buffer's head.
pub(crate) const OVERHEAD: u64 = 256;

/// Parts by their next use.
#[derive(Debug, Default)]
pub(crate) struct KeptParts {
    by_use: BTreeMap<(Tick, PartKey), Bytes>,
    uses: HashMap<PartKey, Tick>,
    charged: u64,
}

impl KeptParts {
    /// The bytes that its parts take, with their overhead.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Removes a part. `None` if it is not there.
    pub(crate) fn take(&mut self, part: PartKey) -> Option<Bytes> {
        let next = self.uses.remove(&part)?;
        let bytes = self.by_use.remove(&(next, part))?;
        self.charged -= charge(bytes.len() as u64);
        Some(bytes)
    }

    /// Whether a part is there.
    pub(crate) fn contains(&self, part: PartKey) -> bool {
        self.uses.contains_key(&part)
    }

    /// Whether a part of `length` bytes would be kept that is used at `next`, within `limit` bytes.
    pub(crate) fn takes(&self, next: Tick, length: u64, limit: u64) -> bool {
        let last = self.by_use.last_key_value().map(|((tick, _), _)| *tick);
        charge(length) <= limit
            && (self.charged + charge(length) <= limit || last.is_some_and(|last| next < last))
    }

    /// Keeps a part that is used at `next`. Parts that are used later are dropped for it.
    pub(crate) fn insert(&mut self, part: PartKey, next: Tick, bytes: Bytes, limit: u64) {
        let length = bytes.len() as u64;
        if self.contains(part) || !self.takes(next, length, limit) {
            return;
        }
        let mut room = limit.saturating_sub(self.charged);
        let later = self.by_use.iter().rev().take_while(|((tick, _), _)| *tick > next);
        let mut dropped = Vec::new();
        for ((_, key), bytes) in later {
            if room >= charge(length) {
                break;
            }
            room += charge(bytes.len() as u64);
            dropped.push(*key);
        }
        if room < charge(length) {
            return;
        }
        dropped.into_iter().for_each(|key| drop(self.take(key)));
        self.charged += charge(length);
        self.uses.insert(part, next);
        self.by_use.insert((next, part), bytes);
    }

    /// Drops the parts whose use has passed: another tier has delivered their samples.
    pub(crate) fn forget_before(&mut self, now: Tick) {
        while let Some((&(next, part), _)) = self.by_use.first_key_value() {
            if next >= now {
                break;
            }
            self.take(part);
        }
    }

    /// Drops all parts.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

const fn charge(length: u64) -> u64 {
    length.saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests {
    use foreread_types::{DatasetId, SampleId};
    use proptest::prelude::*;

    use super::*;

    fn part(id: u64) -> PartKey {
        (SampleKey::new(DatasetId(0), SampleId(id)), 0)
    }

    fn bytes(length: usize) -> Bytes {
        Bytes::from(vec![0; length])
    }

    #[test]
    // semantics: FORMAT-6
    fn parts_that_are_used_last_are_dropped_first() {
        let (mut kept, limit) = (KeptParts::default(), 3 * charge(100));
        for (id, next) in [(1, 50), (2, 10), (3, 70), (4, 60), (5, 90)] {
            kept.insert(part(id), Tick(next), bytes(100), limit);
        }
        let ids = |kept: &KeptParts| (1..=5).filter(|id| kept.contains(part(*id))).collect::<Vec<_>>();
        assert_eq!(ids(&kept), [1, 2, 4]);
        // Two are dropped for a long part, and none for a part that is used later than all.
        kept.insert(part(5), Tick(55), bytes(200), limit);
        assert_eq!(ids(&kept), [1, 2, 4], "a part that is used sooner stays");
        kept.insert(part(5), Tick(20), bytes(200), limit);
        assert_eq!(ids(&kept), [2, 5]);
        kept.forget_before(Tick(20));
        assert_eq!(ids(&kept), [5]);
        assert_eq!(kept.take(part(5)).map(|bytes| bytes.len()), Some(200));
        assert_eq!((kept.charged(), kept.take(part(5))), (0, None));
    }

    proptest! {
        /// The model is a list of all parts.
        #[test]
        // semantics: FORMAT-6
        fn parts_stay_within_the_limit_and_in_order(
            steps in proptest::collection::vec((0_u64..20, 0_u64..100, 0_usize..300, 0_u8..8), 1..100),
        ) {
            let limit = 4 * charge(150);
            let (mut kept, mut model) = (KeptParts::default(), Vec::<(u64, u64, usize)>::new());
            for (id, next, length, step) in steps {
                match step {
                    0 => {
                        let at = model.iter().position(|one| one.0 == id);
                        let expected = at.map(|at| model.remove(at).2);
                        prop_assert_eq!(kept.take(part(id)).map(|bytes| bytes.len()), expected);
                    }
                    1 => {
                        kept.forget_before(Tick(next));
                        model.retain(|one| one.1 >= next);
                    }
                    _ => {
                        kept.insert(part(id), Tick(next), bytes(length), limit);
                        let used = |model: &[(u64, u64, usize)]| -> u64 {
                            model.iter().map(|one| charge(one.2 as u64)).sum()
                        };
                        let sooner: Vec<_> = model.iter().copied().filter(|one| one.1 <= next).collect();
                        let fits = used(&sooner) + charge(length as u64) <= limit;
                        if fits && model.iter().all(|one| one.0 != id) {
                            while used(&model) + charge(length as u64) > limit {
                                let last = (0..model.len()).max_by_key(|&at| (model[at].1, model[at].0));
                                model.remove(last.unwrap());
                            }
                            model.push((id, next, length));
                        }
                    }
                }
                let expected: u64 = model.iter().map(|one| charge(one.2 as u64)).sum();
                prop_assert_eq!(kept.charged(), expected);
                prop_assert!(kept.charged() <= limit);
                prop_assert!(model.iter().all(|one| kept.contains(part(one.0))));
            }
        }
    }
}
