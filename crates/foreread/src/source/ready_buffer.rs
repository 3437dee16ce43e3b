//! Samples that the engine has delivered and no caller has requested yet.
//!
//! The engine delivers in the announced order. Several callers request in nearly that order. This
//! buffer holds a bounded number of bytes in between. A sample that is evicted before its request
//! is read a second time.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

#[derive(Debug, Default)]
pub(super) struct ReadyBuffer {
    /// By arrival.
    samples: BTreeMap<u64, (u64, Bytes)>,
    /// The arrival numbers of each id. Several if it is announced several times.
    arrivals: HashMap<u64, VecDeque<u64>>,
    next: u64,
    bytes: u64,
    limit: u64,
}

impl ReadyBuffer {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Adds a sample, and evicts the oldest beyond the limit. The new sample itself is never
    /// evicted.
    pub(super) fn put(&mut self, id: u64, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.samples.insert(self.next, (id, bytes));
        self.arrivals.entry(id).or_default().push_back(self.next);
        self.next += 1;
        while self.bytes > self.limit && self.samples.len() > 1 {
            let Some((_, (id, bytes))) = self.samples.pop_first() else { return };
            self.bytes -= bytes.len() as u64;
            self.forget_oldest(id);
        }
    }

    /// The oldest copy of a sample.
    pub(super) fn take(&mut self, id: u64) -> Option<Bytes> {
        let arrival = *self.arrivals.get(&id)?.front()?;
        self.forget_oldest(id);
        let (_, bytes) = self.samples.remove(&arrival)?;
        self.bytes -= bytes.len() as u64;
        Some(bytes)
    }

    fn forget_oldest(&mut self, id: u64) {
        if let Some(arrivals) = self.arrivals.get_mut(&id) {
            arrivals.pop_front();
            if arrivals.is_empty() {
                self.arrivals.remove(&id);
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
    fn oldest_samples_are_evicted() {
        let mut buffer = ReadyBuffer::new(10);
        for id in 0..5 {
            buffer.put(id, Bytes::from_static(b"abcd"));
        }
        assert_eq!((0..5).filter(|&id| buffer.take(id).is_some()).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((buffer.bytes, buffer.arrivals.len()), (0, 0));
        buffer.put(7, Bytes::from_static(b"longer than the limit"));
        assert!(buffer.take(7).is_some());
    }

    proptest! {
        #[test]
        fn ready_buffer_matches_a_list(
            steps in prop::collection::vec((any::<bool>(), 0u64..6, 0usize..9), 0..200),
        ) {
            let (mut buffer, mut list) = (ReadyBuffer::new(20), Vec::<(u64, Bytes)>::new());
            for (put, id, len) in steps {
                if put {
                    let bytes = Bytes::from(vec![id as u8; len]);
                    buffer.put(id, bytes.clone());
                    list.push((id, bytes));
                    while list.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 20 && list.len() > 1 {
                        list.remove(0);
                    }
                } else {
                    let at = list.iter().position(|(other, _)| *other == id);
                    prop_assert_eq!(buffer.take(id), at.map(|at| list.remove(at).1));
                }
                prop_assert_eq!(buffer.bytes, list.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
                prop_assert_eq!(buffer.samples.len(), list.len());
            }
        }
    }
}
