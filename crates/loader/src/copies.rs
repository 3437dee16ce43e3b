//! Samples on their way into a cache that does not hold them at once.
//!
//! # Copies of disk reads
//!
//! A disk reads whole file-system blocks, which a memory tier would then keep. So a task copies the
//! sample once per run, and its use does not wait. A removal cancels the copies that have not been
//! stored. Otherwise a sample would stay in a cache with no use left to remove it. Until the copy
//! is stored, uses get the disk's buffer, because the disk may have removed the sample. The price
//! is a lock, held only while a store begins.
//!
//! # Samples of stored units
//!
//! A disk has a sample only when it is written, and refuses samples while its queue is full. A use
//! in between would read and decode the whole unit again. So samples of a unit stay available until
//! they are written, and wait for the queue. The price is their memory meanwhile, which the caller
//! charges.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{Buffers, CacheTier, Charge, ErrorKind, Lifetime, Sample, lock};
use foreread_types::SampleKey;
use futures::FutureExt;

use crate::cache_stores::{count_skip, lifetime_in, log_store_error, store_sample};
use crate::unit_offers::{OffersEnd, UnitOffers};

/// How long a refused sample waits before it is offered again: at first, and at most.
const OFFER_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// The sample and the level of the cache.
type CopyKey = (SampleKey, usize);

/// The copies in flight. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PendingCopies {
    table: Arc<Mutex<CopyTable>>,
    buffers: Arc<dyn Buffers>,
    offers: Arc<UnitOffers>,
}

#[derive(Debug, Default)]
struct CopyTable {
    /// The number of the latest copy.
    latest: u64,
    /// Copies that are not cancelled: the number, and the sample.
    pending: HashMap<CopyKey, (u64, Sample)>,
}

/// How a sample of a unit ended its waiting.
enum OfferEnd {
    Stored,
    /// It is to be removed.
    Cancelled,
    /// The cache has no room, or does not work.
    Lost,
}

/// One copy in flight.
#[derive(Debug)]
struct CopyGuard {
    copies: PendingCopies,
    copy: CopyKey,
    number: u64,
}

impl PendingCopies {
    /// No copies yet. Their memory comes from `buffers`.
    pub(crate) fn new(buffers: Arc<dyn Buffers>) -> Self {
        Self { table: Arc::default(), buffers, offers: Arc::default() }
    }

    /// The event that ends the waiting of samples of units.
    pub(crate) fn offers_end(&self) -> OffersEnd {
        OffersEnd(Arc::clone(&self.offers))
    }

    /// Whether samples of units wait for a disk that stores nothing.
    pub(crate) fn is_stuck(&self) -> bool {
        self.offers.is_stuck()
    }

    /// Copies bytes into an allocation of exactly their length. `None` if memory is exhausted.
    fn copy(&self, bytes: &[u8], lifetime: Lifetime) -> Option<Bytes> {
        let mut copy = self.buffers.allocate_for(lifetime, bytes.len(), 1)?;
        copy.extend(bytes);
        Some(copy.freeze())
    }

    /// Copies `sample` and stores it in the cache at `level`. Must be called within a runtime.
    pub(crate) fn begin(
        &self,
        (level, cache): (usize, Arc<dyn CacheTier>),
        room: Charge,
        key: SampleKey,
        sample: Sample,
    ) {
        let guard = self.guard((key, level), sample.clone());
        // The sample holds the disk's buffer until then, and is charged for it.
        tokio::spawn(async move {
            let copied = guard.copies.copy(&sample, lifetime_in(Some(&cache)));
            let Some(bytes) = copied else { return count_skip(&*cache, key) };
            drop(sample);
            let store = async move { store_sample(&*cache, room, key, Sample::uncharged(bytes)).await };
            guard.store_unless_cancelled(store).await;
        });
    }

    /// Stores a sample of a unit in the cache at `level`, as soon as the cache takes it. Until it
    /// is stored, uses get this sample. `lost` gets its bytes if the cache does not take them. Must
    /// be called within a runtime.
    pub(crate) fn begin_of_unit(
        &self,
        (level, cache): (usize, Arc<dyn CacheTier>),
        key: SampleKey,
        sample: Sample,
        lost: impl FnOnce(Bytes) + Send + 'static,
    ) {
        let (guard, waiting) = (self.guard((key, level), sample.clone()), self.offers.enter());
        tokio::spawn(async move {
            match guard.offers(&*cache, key, &sample).await {
                OfferEnd::Stored => guard.copies.offers.advanced(),
                OfferEnd::Cancelled => {}
                OfferEnd::Lost => {
                    count_skip(&*cache, key);
                    lost(sample.bytes());
                }
            }
            drop(waiting);
        });
    }

    /// Cancels the copy of a sample that is to be removed from the cache at `level`.
    pub(crate) fn cancel(&self, key: SampleKey, level: usize) {
        let cancelled = lock(&self.table).pending.remove(&(key, level));
        drop(cancelled); // outside of the lock, because a released charge may call back
    }

    /// The sample that is being copied into the cache at `level`.
    pub(crate) fn get(&self, key: SampleKey, level: usize) -> Option<Sample> {
        lock(&self.table).pending.get(&(key, level)).map(|(_, sample)| sample.clone())
    }

    fn guard(&self, copy: CopyKey, sample: Sample) -> CopyGuard {
        let mut table = lock(&self.table);
        table.latest += 1;
        let number = table.latest;
        let replaced = table.pending.insert(copy, (number, sample));
        drop(table);
        drop(replaced); // outside of the lock
        CopyGuard { copies: self.clone(), copy, number }
    }
}

impl CopyGuard {
    /// Removes the copy, unless it was cancelled or replaced.
    fn end(&self, table: &mut CopyTable) -> Option<(u64, Sample)> {
        let number = table.pending.get(&self.copy).map(|(number, _)| *number);
        if number == Some(self.number) { table.pending.remove(&self.copy) } else { None }
    }

    /// Offers a sample to a cache until the cache takes it, has no room, or stores nothing.
    async fn offers(&self, cache: &dyn CacheTier, key: SampleKey, sample: &Sample) -> OfferEnd {
        let (offers, mut pause) = (&self.copies.offers, OFFER_AGAIN.0);
        let bytes = cache.footprint().of(sample.len() as u64);
        let Some(_place) = offers.place(bytes).await else { return OfferEnd::Lost };
        loop {
            let Some(room) = cache.reserve(bytes) else { return OfferEnd::Lost };
            let mut store = Box::pin(cache.store(room, key, sample.clone()));
            // Under the lock, so that a removal comes after it or cancels it.
            let begun = {
                let table = lock(&self.copies.table);
                if table.pending.get(&self.copy).is_none_or(|(number, _)| *number != self.number) {
                    return OfferEnd::Cancelled;
                }
                store.as_mut().now_or_never()
            };
            match begun {
                // Its queue is full.
                Some(Err(error)) if error.kind() == ErrorKind::Full => {}
                begun => {
                    let stored = match begun {
                        Some(stored) => stored,
                        None => store.await,
                    };
                    return match stored {
                        Ok(()) => OfferEnd::Stored,
                        Err(error) => {
                            log_store_error(cache, key, &error);
                            OfferEnd::Lost
                        }
                    };
                }
            }
            drop(store);
            tokio::time::sleep(pause).await;
            if offers.is_closed() || offers.is_stuck() {
                return OfferEnd::Lost;
            }
            pause = (pause * 2).min(OFFER_AGAIN.1);
        }
    }

    /// Runs `store` unless the copy was cancelled. It begins under the lock, so that a removal
    /// comes after it or cancels it.
    async fn store_unless_cancelled(self, store: impl Future<Output = ()> + Send) {
        let mut store = Box::pin(store);
        let _original = {
            let mut table = lock(&self.copies.table);
            let Some((_, original)) = self.end(&mut table) else { return };
            if store.as_mut().now_or_never().is_some() {
                drop(table);
                return;
            }
            original
        };
        store.await;
    }
}

impl Drop for CopyGuard {
    fn drop(&mut self) {
        let ended = self.end(&mut lock(&self.copies.table));
        drop(ended); // outside of the lock
    }
}

#[cfg(test)]
mod tests {
    use foreread_memory::MemoryTier;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use foreread_tier::{Budget, HeapBuffers, Lookup, ReadFuture, ReadRequest, Tier, TierError, TierProfile};
    use foreread_types::{DatasetId, Footprint, SampleId};

    use super::*;

    /// The copy was stored after the removal and stayed in the cache for the rest of the run.
    #[tokio::test]
    async fn copy_of_a_removed_sample_is_not_stored() {
        let memory = Arc::new(MemoryTier::new(10_000));
        let cache = || (0, Arc::clone(&memory) as Arc<dyn CacheTier>);
        let (copies, staging) = (PendingCopies::new(Arc::new(HeapBuffers)), Budget::new(10_000));
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let begin = |id| {
            let room = memory.reserve(memory.footprint().of(100)).unwrap();
            let sample = Sample::new(vec![id as u8; 100].into(), staging.charge(512));
            copies.begin(cache(), room, key(id), sample);
        };
        (0..4).for_each(begin);
        copies.cancel(key(1), 0);
        copies.cancel(key(2), 1);
        copies.cancel(key(3), 0);
        // A later use wants it again.
        begin(3);
        while staging.used() > 0 || !lock(&copies.table).pending.is_empty() {
            tokio::task::yield_now().await;
        }
        let kept: Vec<u64> =
            (0..4).filter(|id| matches!(memory.lookup(key(*id)), Lookup::Ready(_))).collect();
        assert_eq!(kept, [0, 2, 3]);
    }

    /// A cache that refuses a number of samples, because its queue is full.
    #[derive(Debug)]
    struct Busy(MemoryTier, AtomicUsize);

    impl Tier for Busy {
        fn name(&self) -> &str {
            "busy"
        }

        fn profile(&self) -> &TierProfile {
            self.0.profile()
        }

        fn submit(&self) {}

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            self.0.read(request)
        }
    }

    #[async_trait::async_trait]
    impl CacheTier for Busy {
        fn footprint(&self) -> Footprint {
            self.0.footprint()
        }

        fn read_memory(&self) -> Footprint {
            self.0.read_memory()
        }

        fn keeps_memory(&self) -> bool {
            false
        }

        fn lookup(&self, key: SampleKey) -> Lookup {
            self.0.lookup(key)
        }

        fn reserve(&self, bytes: u64) -> Option<Charge> {
            self.0.reserve(bytes)
        }

        async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
            if self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                return Err(TierError::new(ErrorKind::Full, "busy"));
            }
            self.0.store(room, key, sample).await
        }

        async fn remove(&self, keys: Vec<SampleKey>) {
            self.0.remove(keys).await;
        }
    }

    /// A disk whose queue was full dropped samples of units. Each cost a read of the whole unit.
    #[tokio::test(start_paused = true)]
    // semantics: FORMAT-6
    async fn samples_of_units_wait_for_a_busy_cache() {
        let cache = Arc::new(Busy(MemoryTier::new(10_000_000), AtomicUsize::new(50)));
        let (copies, staging) = (PendingCopies::new(Arc::new(HeapBuffers)), Budget::new(1_000_000));
        let key = |id| SampleKey::new(DatasetId(0), SampleId(id));
        let at = || (0, Arc::clone(&cache) as Arc<dyn CacheTier>);
        for id in 0..2000 {
            let sample = Sample::new(vec![7; 100].into(), staging.charge(100));
            copies.begin_of_unit(at(), key(id), sample, |_| panic!("it is stored"));
        }
        copies.cancel(key(1999), 0);
        while staging.used() > 0 {
            let is_stored = |id| matches!(cache.lookup(key(id)), Lookup::Ready(_));
            assert!((0..1999).all(|id| copies.get(key(id), 0).is_some() || is_stored(id)));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!((0..1999).all(|id| matches!(cache.lookup(key(id)), Lookup::Ready(_))));
        assert_eq!(cache.0.len(), 1999);
    }

    /// The samples of a hung disk would stay in memory after the loader.
    #[tokio::test(start_paused = true)]
    async fn samples_of_units_wait_no_longer_than_the_loader() {
        let cache = Arc::new(Busy(MemoryTier::new(10_000_000), AtomicUsize::new(usize::MAX)));
        let (copies, staging) = (PendingCopies::new(Arc::new(HeapBuffers)), Budget::new(1_000_000));
        let (end, lost) = (copies.offers_end(), Arc::new(AtomicUsize::new(0)));
        for id in 0..1000 {
            let sample = Sample::new(vec![7; 100].into(), staging.charge(100));
            let key = SampleKey::new(DatasetId(0), SampleId(id));
            let lost = Arc::clone(&lost);
            let at = (0, Arc::clone(&cache) as Arc<dyn CacheTier>);
            copies.begin_of_unit(at, key, sample, move |_| {
                lost.fetch_add(1, Relaxed);
            });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!((staging.used(), lost.load(Relaxed)), (100_000, 0));
        drop(end);
        while staging.used() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(cache.0.is_empty() && lock(&copies.table).pending.is_empty());
        assert_eq!(lost.load(Relaxed), 1000);
    }

    /// Units were not read ahead for the rest of a run.
    #[tokio::test(start_paused = true)]
    // semantics: CACHE-14
    async fn samples_of_units_do_not_wait_for_a_hung_cache() {
        let cache = Arc::new(Busy(MemoryTier::new(10_000_000), AtomicUsize::new(usize::MAX)));
        let (copies, staging) = (PendingCopies::new(Arc::new(HeapBuffers)), Budget::new(1_000_000));
        let end = copies.offers_end();
        let sample = Sample::new(vec![7; 100].into(), staging.charge(100));
        let at = (0, Arc::clone(&cache) as Arc<dyn CacheTier>);
        copies.begin_of_unit(at, SampleKey::new(DatasetId(0), SampleId(1)), sample, drop);
        assert!(!copies.is_stuck());
        end.stored().await;
        while staging.used() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(cache.0.is_empty() && !copies.is_stuck());
    }

    /// The disk had removed it, and memory did not hold it yet. A use of the next epoch read it
    /// from the origin.
    #[tokio::test]
    // semantics: DISK-7
    async fn sample_is_available_until_its_copy_is_stored() {
        let memory = Arc::new(MemoryTier::new(10_000));
        let (copies, staging) = (PendingCopies::new(Arc::new(HeapBuffers)), Budget::new(10_000));
        let key = SampleKey::new(DatasetId(0), SampleId(7));
        let room = memory.reserve(memory.footprint().of(100)).unwrap();
        let sample = Sample::new(vec![7; 100].into(), staging.charge(512));
        copies.begin((0, Arc::clone(&memory) as Arc<dyn CacheTier>), room, key, sample);
        while matches!(memory.lookup(key), Lookup::Absent) {
            assert_eq!(copies.get(key, 0).as_deref(), Some(&[7; 100][..]));
            assert!(copies.get(key, 1).is_none());
            tokio::task::yield_now().await;
        }
        assert!(copies.get(key, 0).is_none());
        assert_eq!(staging.used(), 0);
    }
}
