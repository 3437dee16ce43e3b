//! A fake cache that is read like a disk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use foreread_tier::{
    Budget, CacheTier, Charge, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError,
    TierProfile,
};
use foreread_types::{Footprint, SampleKey};
use futures::FutureExt;
use tokio::time::sleep;

use crate::ReadCounter;
use crate::content::copied;

const FOOTPRINT: Footprint = Footprint::new(0, 4096);

/// A cache whose lookup returns [`Lookup::Stored`] and which is then read, like a disk. A store
/// copies, so the sample's own charge ends with the sample. A read takes time and returns a copy.
/// The capacity is released when the sample is removed and no read of it is in flight. With a
/// [write-behind](Self::with_write_behind), samples are copied at once and written one after
/// another. Clones share everything.
#[derive(Clone, Debug)]
pub struct StoredCache {
    name: String,
    profile: TierProfile,
    read_latency: Duration,
    write_latency: Duration,
    budget: Budget,
    write_behind: Option<WriteBehind>,
    kept: Arc<Mutex<HashMap<SampleKey, Arc<CachedSample>>>>,
    counts: ReadCounter,
}

/// The write-behind queue.
#[derive(Clone, Debug)]
struct WriteBehind {
    room: Budget,
    /// Held during a write.
    writing: Arc<tokio::sync::Mutex<()>>,
    hangs: bool,
    refused: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CachedSample {
    bytes: Bytes,
    _room: Charge,
}

impl StoredCache {
    /// An empty cache of `capacity` bytes without latencies, with blocks of 4096 bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            name: "stored".to_owned(),
            profile: TierProfile::new(16),
            read_latency: Duration::ZERO,
            write_latency: Duration::ZERO,
            budget: Budget::new(capacity),
            write_behind: None,
            kept: Arc::default(),
            counts: ReadCounter::default(),
        }
    }

    /// The same where every read takes `read` and every store `write`.
    #[must_use]
    pub fn with_latency(self, read: Duration, write: Duration) -> Self {
        Self { read_latency: read, write_latency: write, ..self }
    }

    /// The same with a write-behind of at most `bytes` of samples. More is
    /// [`Full`](ErrorKind::Full). If it `hangs`, no write ever ends.
    #[must_use]
    pub fn with_write_behind(self, bytes: u64, hangs: bool) -> Self {
        let write_behind =
            WriteBehind { room: Budget::new(bytes), hangs, writing: Arc::default(), refused: Arc::default() };
        Self { write_behind: Some(write_behind), ..self }
    }

    /// The number of samples that were refused because the write-behind was full.
    pub fn refused(&self) -> u64 {
        self.write_behind.as_ref().map_or(0, |write_behind| write_behind.refused.load(Relaxed))
    }

    /// The counts of its reads.
    pub fn counts(&self) -> &ReadCounter {
        &self.counts
    }

    /// The capacity in use, in bytes.
    pub fn used(&self) -> u64 {
        self.budget.used()
    }

    /// The number of stored samples.
    pub fn len(&self) -> usize {
        self.kept().len()
    }

    /// Whether no sample is stored.
    pub fn is_empty(&self) -> bool {
        self.kept().is_empty()
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<SampleKey, Arc<CachedSample>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self, request: Arc<ReadRequest>) -> Result<Bytes, TierError> {
        let flight = self.counts.start(request.key);
        let kept = self.kept().get(&request.key).cloned();
        if !self.read_latency.is_zero() {
            sleep(self.read_latency).await;
        }
        let error = |kind| TierError::new(kind, &*self.name).with_object(request.key.to_string());
        let result = match kept {
            None => Err(error(ErrorKind::Absent)),
            Some(kept) if kept.bytes.len() as u64 != request.len() => Err(error(ErrorKind::Changed)),
            Some(kept) => Ok(copied(&kept.bytes)),
        };
        flight.end(&result);
        result
    }
}

impl Tier for StoredCache {
    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.clone().answer(request).boxed()
    }

    /// Nothing is delayed.
    fn submit(&self) {}
}

#[async_trait]
impl CacheTier for StoredCache {
    fn footprint(&self) -> Footprint {
        FOOTPRINT
    }

    fn read_memory(&self) -> Footprint {
        FOOTPRINT
    }

    fn keeps_memory(&self) -> bool {
        false
    }

    fn lookup(&self, key: SampleKey) -> Lookup {
        if self.kept().contains_key(&key) { Lookup::Stored } else { Lookup::Absent }
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.budget.try_charge(bytes)
    }

    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        let error = |kind| TierError::new(kind, &*self.name).with_object(key.to_string());
        if !room.is_of(&self.budget) || room.bytes() < FOOTPRINT.of(sample.len() as u64) {
            return Err(error(ErrorKind::Invalid).with_detail("the room was not reserved for this sample"));
        }
        let Some(write_behind) = &self.write_behind else {
            if !self.write_latency.is_zero() {
                sleep(self.write_latency).await;
            }
            let bytes = copied(&sample);
            self.kept().entry(key).or_insert_with(|| Arc::new(CachedSample { bytes, _room: room }));
            return Ok(());
        };
        let Some(_waits) = write_behind.room.try_charge(sample.len() as u64) else {
            write_behind.refused.fetch_add(1, Relaxed);
            return Err(error(ErrorKind::Full));
        };
        let bytes = copied(&sample);
        drop(sample);
        let _writing = write_behind.writing.lock().await;
        if write_behind.hangs {
            std::future::pending::<()>().await;
        }
        sleep(self.write_latency).await;
        self.kept().entry(key).or_insert_with(|| Arc::new(CachedSample { bytes, _room: room }));
        Ok(())
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        let removed: Vec<_> = keys.iter().filter_map(|key| self.kept().remove(key)).collect();
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn cache_conformance() {
        let slow = Duration::from_millis(3);
        crate::conformance::cache(Arc::new(StoredCache::new(8 << 20).with_latency(slow, 2 * slow))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn cache_conformance_with_write_behind() {
        let slow = StoredCache::new(8 << 20).with_latency(Duration::ZERO, Duration::from_millis(1));
        crate::conformance::cache(Arc::new(slow.with_write_behind(8 << 20, false))).await;
    }
}
