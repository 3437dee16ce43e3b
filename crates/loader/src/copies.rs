//! Copies of samples on their way from a disk's blocks into a cache.
//!
//! What a disk has read lies in whole blocks, and memory would keep those. A task copies the sample once per run, and its
//! use does not wait for it. By the time of the copy the sample may no longer belong into the cache. So a removal
//! cancels the copies that have not been stored, or a sample would stay there that no use is left to remove. A sample that
//! moves stays where it was until its copy is stored, or its next use would find it nowhere and read the origin. The price
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
    /// Those that nothing has cancelled.
    wanted: HashMap<Slot, Wanted>,
}

#[derive(Debug)]
struct Wanted {
    number: u64,
    /// Where the sample is to be removed when the copy has been stored, or will not be.
    then: Option<Removal>,
}

/// A sample that is to be removed from a cache.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) key: SampleKey,
    pub(crate) cache: Arc<dyn CacheTier>,
}

impl Removal {
    pub(crate) async fn carry_out(self) {
        self.cache.remove(vec![self.key]).await;
    }
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
            let Some(bytes) = own_copy(&sample) else {
                skipped(&*cache);
                return ticket.give_up().await;
            };
            drop(sample);
            let store = async move { keep(&*cache, room, key, Sample::new(bytes, nothing)).await };
            ticket.carry_out(store).await;
        });
    }

    /// Cancels the copy of a sample that is to be removed from the cache at `level`; what was to be removed after it.
    pub(crate) fn cancel(&self, key: SampleKey, level: usize) -> Option<Removal> {
        self.open().wanted.remove(&(key, level))?.then
    }

    /// Has a removal wait for the sample's copy into another of so many `levels`, or gives it back if there is none.
    pub(crate) fn defer(&self, removal: Removal, levels: usize) -> Option<Removal> {
        let mut open = self.open();
        let target = (0..levels).find(|level| open.wanted.contains_key(&(removal.key, *level)));
        match target.and_then(|level| open.wanted.get_mut(&(removal.key, level))) {
            Some(wanted) => wanted.then.replace(removal),
            None => Some(removal),
        }
    }

    fn ticket(&self, slot: Slot) -> Ticket {
        let mut open = self.open();
        open.latest += 1;
        let number = open.latest;
        // A copy that this one takes the place of leaves it what was to follow.
        let then = open.wanted.remove(&slot).and_then(|wanted| wanted.then);
        open.wanted.insert(slot, Wanted { number, then });
        Ticket { copies: self.clone(), slot, number }
    }
}

impl Ticket {
    /// Ends it, if nothing has cancelled it; what is to follow.
    fn end(&self, open: &mut Open) -> Option<Wanted> {
        let is_wanted = open.wanted.get(&self.slot).is_some_and(|wanted| wanted.number == self.number);
        if is_wanted { open.wanted.remove(&self.slot) } else { None }
    }

    /// Carries out `store` unless the copy was cancelled. It begins at once or not at all: a removal finds it begun.
    async fn carry_out(self, store: impl Future<Output = ()> + Send) {
        let mut store = Box::pin(store);
        let (then, is_stored) = {
            let mut open = self.copies.open();
            let Some(Wanted { then, .. }) = self.end(&mut open) else { return };
            (then, store.as_mut().now_or_never().is_some())
        };
        if !is_stored {
            store.await;
        }
        if let Some(removal) = then {
            removal.carry_out().await;
        }
    }

    /// There is no copy.
    async fn give_up(self) {
        let ended = self.end(&mut self.copies.open());
        if let Some(removal) = ended.and_then(|wanted| wanted.then) {
            removal.carry_out().await;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end(&mut self.copies.open());
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

    /// Between its removal from the disk and its copy into memory, a use of the next epoch read it from the origin.
    #[tokio::test]
    async fn sample_that_moves_stays_where_it_was_until_its_copy_is_stored() {
        let tiers = [(); 2].map(|()| Arc::new(MemoryTier::new(10_000)));
        let caches = tiers.clone().map(|tier| tier as Arc<dyn CacheTier>);
        let (copies, staging) = (Copies::default(), Budget::new(10_000));
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let removal = |id| Removal { key: key(id), cache: Arc::clone(&caches[1]) };
        let has = |at: usize, id| matches!(tiers[at].lookup(key(id)), Lookup::Ready(_));
        for id in 0..3 {
            let sample = || Sample::new(vec![id as u8; 100].into(), staging.charge(512));
            let room = |cache: &MemoryTier| cache.reserve(cache.footprint().of(100)).unwrap();
            tiers[1].store(room(&tiers[1]), key(id), sample()).await.unwrap();
            copies.begin((0, Arc::clone(&caches[0])), room(&tiers[0]), key(id), sample(), staging.charge(0));
            assert!(copies.defer(removal(id), 2).is_none());
            if id == 1 {
                // It is read once more, and copied again.
                copies.begin(
                    (0, Arc::clone(&caches[0])),
                    room(&tiers[0]),
                    key(id),
                    sample(),
                    staging.charge(0),
                );
            }
        }
        assert_eq!([0, 1, 2].map(|id| (has(0, id), has(1, id))), [(false, true); 3]);
        let cancelled = copies.cancel(key(2), 0).unwrap();
        assert_eq!(cancelled.key, key(2));
        cancelled.carry_out().await;
        while staging.used() > 0 || !copies.open().wanted.is_empty() || has(1, 1) {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            [0, 1, 2].map(|id| (has(0, id), has(1, id))),
            [(true, false), (true, false), (false, false)]
        );
        assert!(copies.defer(removal(0), 2).is_some(), "there is no copy left to wait for");
    }
}
