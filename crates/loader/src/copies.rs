//! Copies of samples on their way from a disk's blocks into a cache.
//!
//! What a disk has read lies in whole blocks, and memory would keep those. A task copies the sample once per run, and its
//! use does not wait for it. By the time of the copy the sample may no longer belong into the cache. So a removal
//! cancels the copies that have not been stored, or a sample would stay there that no use is left to remove. The price
//! is a lock, which both hold only while a store begins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_tier::{CacheTier, Charge, Sample};
use foreread_types::SampleKey;
use futures::FutureExt;

use crate::driver::{keep, own_copy, skipped};

/// A sample's copies into one cache have one of these.
type Slot = (SampleKey, usize);

/// The copies under way. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    /// The number of the latest copy.
    latest: u64,
    /// By number, those that nothing has cancelled.
    wanted: HashMap<Slot, u64>,
}

/// One copy under way.
#[derive(Debug)]
struct Ticket {
    copies: Copies,
    slot: Slot,
    number: u64,
}

impl Copies {
    /// No change is made in more than one step.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies `sample` and stores it in the cache at `level`; `nothing` is what the copy is counted in until then. Within a
    /// runtime.
    pub(crate) fn begin(
        &self,
        cache: (usize, Arc<dyn CacheTier>),
        room: Charge,
        key: SampleKey,
        sample: Sample,
        nothing: Charge,
    ) {
        let (level, cache) = cache;
        let ticket = self.ticket((key, level));
        // It holds the blocks until then, and is charged for them.
        tokio::spawn(async move {
            let Some(bytes) = own_copy(&sample) else { return skipped(&*cache) };
            drop(sample);
            let store = async move { keep(&*cache, room, key, Sample::new(bytes, nothing)).await };
            ticket.carry_out(store).await;
        });
    }

    /// Cancels the copy of a sample that is to be removed from the cache at `level`.
    pub(crate) fn cancel(&self, key: SampleKey, level: usize) {
        self.open().wanted.remove(&(key, level));
    }

    fn ticket(&self, slot: Slot) -> Ticket {
        let mut open = self.open();
        open.latest += 1;
        let number = open.latest;
        open.wanted.insert(slot, number);
        Ticket { copies: self.clone(), slot, number }
    }
}

impl Ticket {
    /// Carries out `store` unless the copy was cancelled. It begins at once or not at all: a removal finds it begun.
    async fn carry_out(self, store: impl Future<Output = ()> + Send) {
        let mut store = Box::pin(store);
        {
            let mut open = self.copies.open();
            if open.wanted.get(&self.slot) != Some(&self.number) {
                return;
            }
            open.wanted.remove(&self.slot);
            if store.as_mut().now_or_never().is_some() {
                return;
            }
        }
        store.await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut open = self.copies.open();
        if open.wanted.get(&self.slot) == Some(&self.number) {
            open.wanted.remove(&self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_memory::MemoryTier;
    use foreread_tier::{Budget, Lookup};
    use foreread_types::{DatasetId, SampleId};

    use super::*;

    /// The copy was stored after the removal, and stayed in the cache for the rest of the run.
    #[tokio::test]
    async fn copy_of_a_removed_sample_is_not_stored() {
        let memory = Arc::new(MemoryTier::new(10_000));
        let cache = || (0, Arc::clone(&memory) as Arc<dyn CacheTier>);
        let (copies, staging) = (Copies::default(), Budget::new(10_000));
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let begin = |id| {
            let room = memory.reserve(memory.footprint().of(100)).unwrap();
            let sample = Sample::new(vec![id as u8; 100].into(), staging.charge(512));
            copies.begin(cache(), room, key(id), sample, staging.charge(0));
        };
        (0..4).for_each(begin);
        copies.cancel(key(1), 0);
        copies.cancel(key(2), 1);
        copies.cancel(key(3), 0);
        // It is wanted after all.
        begin(3);
        while staging.used() > 0 || !copies.open().wanted.is_empty() {
            tokio::task::yield_now().await;
        }
        let kept: Vec<u64> =
            (0..4).filter(|id| matches!(memory.lookup(key(*id)), Lookup::Ready(_))).collect();
        assert_eq!(kept, [0, 2, 3]);
    }
}
