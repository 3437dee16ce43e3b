//! Counts the reads of a tier.

use std::sync::Arc;

use async_trait::async_trait;
use foreread_tier::{
    CacheTier, Charge, Lookup, Object, OriginTier, ReadFuture, ReadRequest, Sample, Tier, TierError,
    TierProfile,
};
use foreread_types::{Footprint, SampleKey};
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::ReadCounter;

/// A tier whose reads are counted and recorded. A request starts when it is read, and is in flight
/// until it is answered or its future is dropped.
#[derive(Debug)]
pub struct CountingTier<T: ?Sized> {
    counts: ReadCounter,
    inner: Arc<T>,
}

impl<T: ?Sized> CountingTier<T> {
    /// Wraps `inner`.
    pub fn new(inner: Arc<T>) -> Self {
        Self { counts: ReadCounter::default(), inner }
    }

    /// The counts.
    pub fn counts(&self) -> &ReadCounter {
        &self.counts
    }

    /// The tier below.
    pub fn inner(&self) -> &Arc<T> {
        &self.inner
    }
}

impl<T: Tier + ?Sized> Tier for CountingTier<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let flight = self.counts.start(request.key);
        let answer = self.inner.read(request);
        Box::pin(async move {
            let result = answer.await;
            flight.end(&result);
            result
        })
    }

    fn submit(&self) {
        self.inner.submit();
    }
}

impl<T: OriginTier + ?Sized> OriginTier for CountingTier<T> {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.inner.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.inner.stat(path)
    }
}

#[async_trait]
impl<T: CacheTier + ?Sized> CacheTier for CountingTier<T> {
    fn footprint(&self) -> Footprint {
        self.inner.footprint()
    }

    fn lookup(&self, key: SampleKey) -> Lookup {
        self.inner.lookup(key)
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.inner.reserve(bytes)
    }

    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        self.inner.store(room, key, sample).await
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        self.inner.remove(keys).await;
    }
}
