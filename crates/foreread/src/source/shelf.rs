//! Samples that the engine has brought and nobody has asked for yet.
//!
//! The engine delivers in the announced order; whoever asks does so in nearly that order, several askers side by side.
//! In between samples lie here, a bounded number of bytes of them. What is pushed out, because it was announced and never
//! asked for, is read once more if it is asked for after all.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// By the order in which they came.
    samples: BTreeMap<u64, (u64, Bytes)>,
    /// Where a sample lies, by its id; several times if it is announced several times.
    places: HashMap<u64, VecDeque<u64>>,
    next: u64,
    bytes: u64,
    limit: u64,
}

impl Shelf {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Adds a sample, and drops the oldest ones beyond the limit; never the one that was just added.
    pub(super) fn put(&mut self, id: u64, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.samples.insert(self.next, (id, bytes));
        self.places.entry(id).or_default().push_back(self.next);
        self.next += 1;
        while self.bytes > self.limit && self.samples.len() > 1 {
            let Some((_, (id, bytes))) = self.samples.pop_first() else { return };
            self.bytes -= bytes.len() as u64;
            self.forget_oldest(id);
        }
    }

    /// The oldest copy of a sample.
    pub(super) fn take(&mut self, id: u64) -> Option<Bytes> {
        let place = *self.places.get(&id)?.front()?;
        self.forget_oldest(id);
        let (_, bytes) = self.samples.remove(&place)?;
        self.bytes -= bytes.len() as u64;
        Some(bytes)
    }

    fn forget_oldest(&mut self, id: u64) {
        if let Some(places) = self.places.get_mut(&id) {
            places.pop_front();
            if places.is_empty() {
                self.places.remove(&id);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_oldest_make_way() {
        let mut shelf = Shelf::new(10);
        for id in 0..5 {
            shelf.put(id, Bytes::from_static(b"abcd"));
        }
        assert_eq!((0..5).filter(|&id| shelf.take(id).is_some()).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((shelf.bytes, shelf.places.len()), (0, 0));
        shelf.put(7, Bytes::from_static(b"longer than the limit"));
        assert!(shelf.take(7).is_some());
    }

    proptest! {
        #[test]
        fn a_list_does_the_same(steps in prop::collection::vec((any::<bool>(), 0u64..6, 0usize..9), 0..200)) {
            let (mut shelf, mut list) = (Shelf::new(20), Vec::<(u64, Bytes)>::new());
            for (put, id, len) in steps {
                if put {
                    let bytes = Bytes::from(vec![id as u8; len]);
                    shelf.put(id, bytes.clone());
                    list.push((id, bytes));
                    while list.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 20 && list.len() > 1 {
                        list.remove(0);
                    }
                } else {
                    let at = list.iter().position(|(other, _)| *other == id);
                    prop_assert_eq!(shelf.take(id), at.map(|at| list.remove(at).1));
                }
                prop_assert_eq!(shelf.bytes, list.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
                prop_assert_eq!(shelf.samples.len(), list.len());
            }
        }
    }
}
