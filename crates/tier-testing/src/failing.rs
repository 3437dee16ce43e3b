//! Fault injection, and counts of a tier's reads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use foreread_tier::{
    CacheTier, Charge, ErrorKind, Lookup, Object, OriginTier, ReadFuture, ReadRequest, Sample, Tier,
    TierError, TierProfile,
};
use foreread_types::{Footprint, SampleKey, mix};
use futures::FutureExt;
use futures::future::{BoxFuture, pending, ready};
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::ReadCounter;
use crate::content::unit;

/// The fault of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// An error of this kind. The inner tier gets no request.
    Error(ErrorKind),
    /// The same with `Retry-After`.
    RetryAfter(ErrorKind, Duration),
    /// The answer lacks its last byte (an empty one stays empty).
    Short,
    /// The answer has a byte too many.
    Long,
    /// The first byte of the answer has one bit flipped.
    Flip,
    /// There is never an answer. The inner tier gets no request.
    Never,
    /// The answer is delayed by this time.
    Stall(Duration),
}

/// Which reads get a fault.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum When {
    /// All.
    Always,
    /// The `k`-th read of all, from 0.
    Read(u64),
    /// Every `n`-th read, beginning with the `n`-th.
    Every(u64),
    /// The last `reads` of every `of` reads.
    Burst {
        /// The length of the burst.
        reads: u64,
        /// The length of the period.
        of: u64,
    },
    /// Every read of this sample.
    Key(SampleKey),
    /// The first reads of this sample.
    First(SampleKey, u32),
    /// The first reads of each sample.
    FirstOfEach(u32),
    /// All reads before this moment of the runtime's clock, as in an outage.
    Before(Instant),
    /// Reads drawn with this probability from the seed, the sample and its earlier reads. So the
    /// order of reads does not matter.
    Chance(f64),
}

/// A tier with faults by rules. Reads without a fault pass to the inner tier. All reads are
/// counted. A request starts when it is read, and is in flight until it is answered or its future
/// is dropped.
///
/// Listings, lookups and reservations always pass.
#[derive(Debug)]
pub struct FailingTier<T: ?Sized> {
    seed: u64,
    rules: Vec<(When, Fault)>,
    stores: Option<ErrorKind>,
    reads: AtomicU64,
    of_key: Mutex<HashMap<SampleKey, u32>>,
    faults: AtomicU64,
    counts: ReadCounter,
    inner: Arc<T>,
}

impl<T: ?Sized> FailingTier<T> {
    /// Wraps `inner`, without rules.
    pub fn new(inner: Arc<T>) -> Self {
        Self {
            seed: 0,
            rules: Vec::new(),
            stores: None,
            reads: AtomicU64::new(0),
            of_key: Mutex::default(),
            faults: AtomicU64::new(0),
            counts: ReadCounter::default(),
            inner,
        }
    }

    /// Adds a rule. The first matching rule applies.
    #[must_use]
    pub fn on(mut self, when: When, fault: Fault) -> Self {
        self.rules.push((when, fault));
        self
    }

    /// The same with another seed than 0 for [`When::Chance`].
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The same, where every store fails.
    #[must_use]
    pub fn with_failing_stores(self, kind: ErrorKind) -> Self {
        Self { stores: Some(kind), ..self }
    }

    /// The number of reads with a fault.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// The counts of its reads, with and without faults.
    pub fn counts(&self) -> &ReadCounter {
        &self.counts
    }

    fn judge(&self, key: SampleKey) -> Option<Fault> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let before = {
            let mut of_key = self.of_key.lock().unwrap_or_else(PoisonError::into_inner);
            let count = of_key.entry(key).or_default();
            *count += 1;
            *count - 1
        };
        let fits = |when: &When| match when {
            When::Always => true,
            When::Read(k) => read == *k,
            When::Every(n) => (read + 1).is_multiple_of(*n),
            When::Burst { reads, of } => read % of >= of - reads,
            When::Key(which) => key == *which,
            When::First(which, times) => key == *which && before < *times,
            When::FirstOfEach(times) => before < *times,
            When::Before(end) => Instant::now() < *end,
            When::Chance(probability) => {
                let sample = mix(key.id.0 ^ mix(u64::from(key.dataset.0)));
                unit(self.seed ^ mix(sample ^ mix(u64::from(before)))) < *probability
            }
        };
        let fault = self.rules.iter().find(|(when, _)| fits(when)).map(|(_, fault)| fault.clone());
        self.faults.fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
        fault
    }
}

fn spoil(fault: &Fault, bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    match fault {
        Fault::Short => {
            bytes.pop();
        }
        Fault::Long => bytes.push(0),
        Fault::Flip => {
            if let Some(first) = bytes.first_mut() {
                *first ^= 1;
            }
        }
        Fault::Error(_) | Fault::RetryAfter(..) | Fault::Never | Fault::Stall(_) => {}
    }
    Bytes::from(bytes)
}

impl<T: Tier + ?Sized> FailingTier<T> {
    fn answer(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let path = Arc::clone(&request.object.path);
        let error = |kind| TierError::new(kind, self.name()).with_object(&*path).with_detail("on command");
        let fault = match self.judge(request.key) {
            None => return self.inner.read(request),
            Some(Fault::Error(kind)) => return ready(Err(error(kind))).boxed(),
            Some(Fault::RetryAfter(kind, wait)) => {
                return ready(Err(error(kind).with_retry_after(wait))).boxed();
            }
            Some(Fault::Never) => return pending().boxed(),
            Some(fault) => fault,
        };
        let answer = self.inner.read(request);
        async move {
            let result = answer.await;
            if let Fault::Stall(time) = fault {
                tokio::time::sleep(time).await;
                return result;
            }
            result.map(|bytes| spoil(&fault, &bytes))
        }
        .boxed()
    }
}

impl<T: Tier + ?Sized> Tier for FailingTier<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let flight = self.counts.start(request.key);
        let answer = self.answer(request);
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

impl<T: OriginTier + ?Sized> OriginTier for FailingTier<T> {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.inner.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.inner.stat(path)
    }

    fn directories(&self) -> BoxFuture<'static, Result<Vec<String>, TierError>> {
        self.inner.directories()
    }

    fn layouts(&self, paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        self.inner.layouts(paths)
    }
}

#[async_trait]
impl<T: CacheTier + ?Sized> CacheTier for FailingTier<T> {
    fn footprint(&self) -> Footprint {
        self.inner.footprint()
    }

    fn read_memory(&self) -> Footprint {
        self.inner.read_memory()
    }

    fn keeps_memory(&self) -> bool {
        self.inner.keeps_memory()
    }

    fn lookup(&self, key: SampleKey) -> Lookup {
        self.inner.lookup(key)
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.inner.reserve(bytes)
    }

    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        match self.stores {
            Some(kind) => Err(TierError::new(kind, self.name()).with_object(key.to_string())),
            None => self.inner.store(room, key, sample).await,
        }
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        self.inner.remove(keys).await;
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::{DatasetId, SampleId, Tick};
    use futures::StreamExt;

    use super::*;
    use crate::{Answered, FakeOrigin, ReadAll};

    const KEY: SampleKey = SampleKey::new(DatasetId(0), SampleId(3));

    async fn kinds(tier: &impl Tier, origin: &FakeOrigin) -> Vec<(u32, Result<usize, ErrorKind>)> {
        let batch = (0..6).map(|id| origin.request(SampleId(id), Tick(0))).collect();
        let mut answers: Vec<_> = tier.read_all(batch).collect().await;
        answers.sort_by_key(|answer| answer.tag);
        let kind = |answer: Answered| answer.result.map(|bytes| bytes.len()).map_err(|error| error.kind());
        answers.into_iter().map(|answer| (answer.tag, kind(answer))).collect()
    }

    #[tokio::test]
    async fn rules_select_reads_and_others_pass() {
        let origin = Arc::new(FakeOrigin::uniform(6, 10));
        let counting = Arc::new(FailingTier::new(Arc::clone(&origin)));
        let failing = FailingTier::new(Arc::clone(&counting))
            .on(When::Read(1), Fault::Error(ErrorKind::Transient))
            .on(When::First(KEY, 1), Fault::RetryAfter(ErrorKind::Throttled, Duration::from_secs(1)))
            .on(When::Key(SampleKey { id: SampleId(4), ..KEY }), Fault::Short)
            .on(When::Every(6), Fault::Long);
        let transient = Err(ErrorKind::Transient);
        let throttled = Err(ErrorKind::Throttled);
        let first = [(0, Ok(10)), (1, transient), (2, Ok(10)), (3, throttled), (4, Ok(9)), (5, Ok(11))];
        assert_eq!(kinds(&failing, &origin).await, first);
        let second = [(0, Ok(10)), (1, Ok(10)), (2, Ok(10)), (3, Ok(10)), (4, Ok(9)), (5, Ok(11))];
        assert_eq!(kinds(&failing, &origin).await, second);
        assert_eq!(failing.faults(), 6);
        let tally = counting.counts().tally();
        assert_eq!((tally.requests, tally.bytes, tally.errors, tally.in_flight), (10, 100, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_read_delays_no_other() {
        let origin = Arc::new(FakeOrigin::uniform(6, 10));
        let failing = FailingTier::new(Arc::clone(&origin)).on(When::Key(KEY), Fault::Never);
        let batch = (0..6).map(|id| origin.request(SampleId(id), Tick(0))).collect();
        let mut stream = failing.read_all(batch);
        for _ in 0..5 {
            assert!(stream.next().await.unwrap().result.is_ok());
        }
        assert!(tokio::time::timeout(Duration::from_secs(3600), stream.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_read_is_late_and_bursts_are_consecutive() {
        let origin = Arc::new(FakeOrigin::uniform(6, 10).with_latency(Duration::from_millis(2)));
        let failing = FailingTier::new(Arc::clone(&origin))
            .on(When::Key(KEY), Fault::Stall(Duration::from_secs(5)))
            .on(When::Burst { reads: 2, of: 6 }, Fault::Error(ErrorKind::Transient));
        let began = Instant::now();
        let transient = Err(ErrorKind::Transient);
        let expected = [(0, Ok(10)), (1, Ok(10)), (2, Ok(10)), (3, Ok(10)), (4, transient), (5, transient)];
        assert_eq!(kinds(&failing, &origin).await, expected);
        assert_eq!(began.elapsed(), Duration::from_millis(5002));
    }

    #[tokio::test]
    async fn chance_is_independent_of_read_order() {
        let origin = Arc::new(FakeOrigin::uniform(6, 10));
        let build = || {
            let rule = (When::Chance(0.5), Fault::Error(ErrorKind::Transient));
            FailingTier::new(Arc::clone(&origin)).on(rule.0, rule.1).with_seed(1)
        };
        let (forward, backward) = (build(), build());
        let one = |tier: &FailingTier<FakeOrigin>, id| tier.judge(SampleKey { id: SampleId(id), ..KEY });
        let first: Vec<_> = (0..100).map(|id| one(&forward, id)).collect();
        let mut second: Vec<_> = (0..100).rev().map(|id| one(&backward, id)).collect();
        second.reverse();
        assert_eq!(first, second);
        assert!((30..70).contains(&forward.faults()), "{} of 100", forward.faults());
    }
}
