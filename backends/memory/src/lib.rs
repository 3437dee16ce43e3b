//! A cache in this process's memory.
//!
//! [`MemoryTier`] is a map from samples to handles on their bytes, bounded by a [`Budget`] of
//! footprints. Nothing is copied: a stored sample keeps its allocation, and only its charge moves
//! from the look-ahead to the memory tier. So the bytes of a sample are counted once. A removed
//! sample that the trainer still holds stays counted here until it is dropped.
//!
//! # What is counted
//!
//! A sample's [`Footprint`] is its length and its overhead. The overhead is its slot in the map,
//! the charge shared with its handles, the boxes that own its bytes, and the allocator's headers.
//! In the program's allocator, that header and the alignment to a cache line take up to 88 bytes.
//! An arena, where kept samples lie, rounds them up to a cache line. The figure is measured
//! (`tests/footprint.rs`) for the map at its emptiest, just after it grew. Not counted are the
//! allocator's losses by fragmentation and by rounding large allocations up to pages.
//!
//! The figure holds only if the bytes are in a separate allocation, because a slice keeps the whole
//! allocation. [`ReadFuture`] guarantees that for every tier, and the conformance suite tests it.
//! It cannot be seen from the bytes, so nothing checks it here.
//!
//! # Locks
//!
//! The map has 64 shards with a lock each. Contention is low and not the reason. A table that
//! doubles moves all its entries under its lock, which takes 100 ms for a million. Lookups must not
//! wait for that. Samples and charges are dropped outside the locks, because a release hook may
//! call back.

mod map;

use std::future::ready;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use foreread_tier::{
    Budget, CacheTier, Charge, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError,
    TierProfile,
};
use foreread_types::{Footprint, SampleKey};

use crate::map::ShardedMap;

const NAME: &str = "memory";

/// The overhead of a sample. See `tests/footprint.rs`.
const FOOTPRINT: Footprint = Footprint::new(272, 16);

/// Samples in memory, bounded by a number of bytes.
#[derive(Debug)]
pub struct MemoryTier {
    profile: TierProfile,
    budget: Budget,
    map: Arc<ShardedMap>,
}

impl MemoryTier {
    /// An empty tier with a capacity of `limit` bytes of footprints.
    pub fn new(limit: u64) -> Self {
        Self::with_budget(Budget::new(limit))
    }

    /// An empty tier with the capacity of `budget`, which must not be charged elsewhere.
    pub fn with_budget(budget: Budget) -> Self {
        Self { profile: TierProfile::new(1), budget, map: Arc::default() }
    }

    /// Counts stored and reserved samples, and removed ones with remaining handles.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The number of stored samples. It sums the shards one after another, so it is approximate
    /// during writes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no sample is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn answer(map: &ShardedMap, request: &ReadRequest) -> Result<Bytes, TierError> {
    let error = |kind| TierError::new(kind, NAME).with_object(request.key.to_string());
    let sample = map.get(request.key).ok_or_else(|| error(ErrorKind::Absent))?;
    if sample.len() as u64 != request.len() {
        let detail = format!("{} bytes are stored, {} were requested", sample.len(), request.len());
        return Err(error(ErrorKind::Changed).with_detail(detail));
    }
    Ok(sample.bytes())
}

impl Tier for MemoryTier {
    fn name(&self) -> &str {
        NAME
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    /// Answers from the map. The bytes are the stored ones and keep their charge.
    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        Box::pin(ready(answer(&self.map, &request)))
    }

    /// Nothing is delayed.
    fn submit(&self) {}
}

#[async_trait]
impl CacheTier for MemoryTier {
    fn footprint(&self) -> Footprint {
        FOOTPRINT
    }

    fn read_memory(&self) -> Footprint {
        Footprint::EXACT
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    /// [`Lookup::Ready`] or [`Lookup::Absent`].
    fn lookup(&self, key: SampleKey) -> Lookup {
        match self.map.get(key) {
            Some(sample) => Lookup::Ready(sample),
            None => Lookup::Absent,
        }
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.budget.try_charge(bytes)
    }

    /// Stores a handle on the sample and moves its charge to this tier. Never waits.
    ///
    /// # Errors
    /// `Invalid` if the reservation is of another tier, or smaller than the sample's footprint.
    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        if !room.is_of(&self.budget) || room.bytes() < FOOTPRINT.of(sample.len() as u64) {
            return Err(TierError::new(ErrorKind::Invalid, NAME)
                .with_object(key.to_string())
                .with_detail("the room was not reserved for this sample"));
        }
        if self.map.insert(key, &sample) {
            sample.recharge(room);
        }
        Ok(())
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        for key in keys {
            drop(self.map.remove(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::{DatasetId, SampleId};

    use super::*;

    const KEY: SampleKey = SampleKey::new(DatasetId(0), SampleId(1));

    #[tokio::test]
    // semantics: CACHE-5
    async fn cache_conformance() {
        foreread_tier_testing::conformance::cache(Arc::new(MemoryTier::new(8 << 20))).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn cache_conformance_on_several_threads() {
        foreread_tier_testing::conformance::cache(Arc::new(MemoryTier::new(8 << 20))).await;
    }

    #[tokio::test]
    async fn store_moves_the_charge_without_a_copy() {
        let (look_ahead, memory) = (Budget::new(1000), MemoryTier::new(2000));
        let sample = Sample::new(Bytes::from(vec![7; 100]), look_ahead.charge(100));
        let room = memory.reserve(FOOTPRINT.of(100)).unwrap();
        memory.store(room, KEY, sample.clone()).await.unwrap();
        assert_eq!((look_ahead.used(), memory.budget().used()), (0, FOOTPRINT.of(100)));
        let Lookup::Ready(kept) = memory.lookup(KEY) else { panic!("it was just stored") };
        assert_eq!(kept.as_ptr(), sample.as_ptr());
    }

    #[tokio::test]
    async fn wrong_or_short_reservation_is_refused() {
        let (other, memory) = (Budget::new(1000), MemoryTier::new(2000));
        let sample = Sample::uncharged(Bytes::from(vec![7; 100]));
        for room in [other.charge(600), memory.reserve(100).unwrap()] {
            let error = memory.store(room, KEY, sample.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        assert!(memory.is_empty() && memory.budget().used() == 0 && other.used() == 0);
    }

    #[tokio::test]
    async fn released_charge_may_call_back() {
        let slot: Arc<std::sync::OnceLock<Arc<MemoryTier>>> = Arc::default();
        let seen = Arc::clone(&slot);
        let budget = Budget::with_release(10_000, move |_| {
            if let Some(tier) = seen.get() {
                assert!(matches!(tier.lookup(KEY), Lookup::Absent | Lookup::Ready(_)));
                assert!(tier.len() <= 1);
            }
        });
        let memory = Arc::new(MemoryTier::with_budget(budget));
        slot.set(Arc::clone(&memory)).unwrap();
        for _ in 0..2 {
            let room = memory.reserve(FOOTPRINT.of(3)).unwrap();
            memory.store(room, KEY, Sample::uncharged(Bytes::from_static(b"abc"))).await.unwrap();
        }
        memory.remove(vec![KEY]).await;
        assert_eq!(memory.budget().used(), 0);
    }
}
