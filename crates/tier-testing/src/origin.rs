//! A fake origin that simulates latency, bandwidth and parallelism.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{
    Buffers, ErrorKind, ListRange, Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError,
    TierProfile, Version, check_path,
};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick, mix};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

use crate::ceiling::RateCeiling;
use crate::content::{content_range, unit};
use crate::{KnownSample, ReadCounter};

/// A store of generated objects ([`content`](crate::content)) with a latency, a shared bandwidth
/// and a parallelism.
///
/// A read waits for one of `parallelism` slots, then for the latency, then for the shared link. The
/// link sends `bandwidth` bytes per second, one answer after another. Without latency and bandwidth
/// it answers at once. A read begins at the first poll of its future. Clones share the objects and
/// the counts.
///
/// Latency and bandwidth can be changed during reads ([`set_latency`](Self::set_latency)). Started
/// reads keep their latency.
#[derive(Clone, Debug)]
pub struct FakeOrigin {
    name: Arc<str>,
    profile: TierProfile,
    paths: Arc<[Arc<str>]>,
    server: Arc<FakeServer>,
}

#[derive(Debug)]
struct FakeServer {
    seed: u64,
    latency: AtomicU64, // nanoseconds
    jitter: Duration,
    bandwidth: AtomicU64, // bytes/s, 0 for unlimited
    slots: Semaphore,
    pipe_outside: bool,
    refuses_above: u64,
    ceilings: Vec<RateCeiling>,
    zeroes: Option<Bytes>,
    buffers: Option<Arc<dyn Buffers>>,
    contents: BTreeMap<Arc<str>, Bytes>,
    pipe_free: Mutex<Option<Instant>>,
    objects: Mutex<BTreeMap<Arc<str>, (u64, u64)>>, // path -> (size, generation)
    counts: ReadCounter,
}

impl FakeOrigin {
    /// A store of the given objects (path and size). Sample `i` of dataset 0 is the `i`-th of them.
    /// It answers any number of reads at once.
    pub fn new<P: Into<Arc<str>>>(objects: impl IntoIterator<Item = (P, u64)>) -> Self {
        let objects: Vec<(Arc<str>, u64)> =
            objects.into_iter().map(|(path, size)| (path.into(), size)).collect();
        Self {
            name: "fake".into(),
            profile: TierProfile::new(64),
            paths: objects.iter().map(|(path, _)| Arc::clone(path)).collect(),
            server: Arc::new(FakeServer {
                seed: 0,
                latency: AtomicU64::new(0),
                jitter: Duration::ZERO,
                bandwidth: AtomicU64::new(0),
                slots: Semaphore::new(Semaphore::MAX_PERMITS),
                pipe_outside: false,
                refuses_above: u64::MAX,
                ceilings: Vec::new(),
                zeroes: None,
                buffers: None,
                contents: BTreeMap::new(),
                pipe_free: Mutex::new(None),
                objects: Mutex::new(objects.into_iter().map(|(path, size)| (path, (size, 0))).collect()),
                counts: ReadCounter::default(),
            }),
        }
    }

    /// A store of objects with these contents, such as shards.
    pub fn of_contents<P: Into<Arc<str>>>(objects: impl IntoIterator<Item = (P, Bytes)>) -> Self {
        let contents: BTreeMap<Arc<str>, Bytes> =
            objects.into_iter().map(|(path, content)| (path.into(), content)).collect();
        let sizes = contents.iter().map(|(path, content)| (Arc::clone(path), content.len() as u64));
        Self::new(sizes.collect::<Vec<_>>()).configure(|server| server.contents = contents)
    }

    /// `samples` objects of `size` bytes each, a hundred to a directory: `00000/00000017`.
    pub fn uniform(samples: u64, size: u64) -> Self {
        Self::new((0..samples).map(|id| (format!("{:05}/{id:08}", id / 100), size)))
    }

    fn configure(mut self, change: impl FnOnce(&mut FakeServer)) -> Self {
        match Arc::get_mut(&mut self.server) {
            Some(server) => change(server),
            None => panic!("a fake origin must be configured before it is cloned or read"),
        }
        self
    }

    /// The same with another name than `fake`.
    #[must_use]
    pub fn with_name(self, name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The same with the contents of another seed than 0.
    ///
    /// # Panics
    /// If it was cloned or read already, as all `with_` methods.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        self.configure(|server| server.seed = seed)
    }

    /// The same with a latency before the first byte of every read.
    #[must_use]
    pub fn with_latency(self, latency: Duration) -> Self {
        self.set_latency(latency);
        self
    }

    /// Sets the latency of reads that start from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.server.latency.store(latency.as_nanos() as u64, Relaxed);
    }

    /// The same with additional latency up to `jitter`, which depends on the seed and the sample,
    /// so that answers come in another order than requests.
    #[must_use]
    pub fn with_jitter(self, jitter: Duration) -> Self {
        self.configure(|server| server.jitter = jitter)
    }

    /// The same where all reads together get `bytes_per_second`.
    ///
    /// # Panics
    /// If it is 0.
    #[must_use]
    pub fn with_bandwidth(self, bytes_per_second: u64) -> Self {
        self.set_bandwidth(bytes_per_second);
        self
    }

    /// Sets the bandwidth of all reads together.
    ///
    /// # Panics
    /// If it is 0.
    pub fn set_bandwidth(&self, bytes_per_second: u64) {
        assert!(bytes_per_second > 0, "a store that never answers is a FailingTier");
        self.server.bandwidth.store(bytes_per_second, Relaxed);
    }

    /// The same where `parallelism` reads are served at once and the others wait.
    #[must_use]
    pub fn with_parallelism(mut self, parallelism: usize) -> Self {
        self.profile.parallelism = parallelism;
        self.configure(|server| server.slots = Semaphore::new(parallelism))
    }

    /// The same where a read frees its slot before its bytes are sent. So the throughput is the
    /// lesser of `parallelism / latency` reads and `bandwidth` bytes per second, whatever the
    /// sizes. Otherwise a read keeps its slot, and a narrow link makes slots scarce as well.
    #[must_use]
    pub fn with_pipe_outside(self) -> Self {
        self.configure(|server| server.pipe_outside = true)
    }

    /// The same where a read is refused at once as [`Throttled`](ErrorKind::Throttled) while
    /// `reads` are in flight.
    #[must_use]
    pub fn with_refusals_above(self, reads: u64) -> Self {
        self.configure(|server| server.refuses_above = reads)
    }

    /// The same with a ceiling of `per_second` reads of objects whose paths start with `prefix`
    /// (empty: all), and a `burst` of at least one. Excess reads are refused after the latency as
    /// [`Throttled`](ErrorKind::Throttled) with `retry_after`, and cost the store nothing. Ceilings
    /// of several prefixes are independent. The first matching prefix applies.
    #[must_use]
    pub fn with_ceiling(
        self,
        prefix: &str,
        per_second: f64,
        burst: f64,
        retry_after: Option<Duration>,
    ) -> Self {
        self.configure(|server| {
            server.ceilings.push(RateCeiling::new(prefix, per_second, burst, retry_after));
        })
    }

    /// Changes the ceiling of `prefix`.
    ///
    /// # Panics
    /// If there is none.
    pub fn set_ceiling(&self, prefix: &str, per_second: f64) {
        match self.server.ceilings.iter().find(|ceiling| ceiling.is_of(prefix)) {
            Some(ceiling) => ceiling.set(per_second),
            None => panic!("no ceiling for {prefix:?}"),
        }
    }

    /// The same with zero bytes and one allocation for all answers. For tests of timing, where
    /// generating contents would be most of the work.
    #[must_use]
    pub fn with_zeroes(self) -> Self {
        let largest = self.server.objects().values().map(|&(size, _)| size).max().unwrap_or(0);
        self.configure(|server| server.zeroes = Some(Bytes::from(vec![0; largest as usize])))
    }

    /// The same with answers in memory of `buffers`.
    #[must_use]
    pub fn with_buffers(self, buffers: Arc<dyn Buffers>) -> Self {
        self.configure(|server| server.buffers = Some(buffers))
    }

    /// The same with another profile. The number of reads served at once stays.
    #[must_use]
    pub fn with_profile(self, profile: TierProfile) -> Self {
        Self { profile, ..self }
    }

    /// The counts of its reads.
    pub fn counts(&self) -> &ReadCounter {
        &self.server.counts
    }

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.paths.len() as u64
    }

    /// The current object of a sample.
    ///
    /// # Panics
    /// If the sample does not exist, or its object was removed.
    pub fn object(&self, id: SampleId) -> Object {
        let path = &self.paths[id.0 as usize];
        match self.server.objects().get(path) {
            Some(&(size, generation)) => {
                Object { path: Arc::clone(path), size, version: version(generation) }
            }
            None => panic!("{path} was removed"),
        }
    }

    /// The content of a sample.
    ///
    /// # Panics
    /// As [`object`](Self::object).
    pub fn expected(&self, id: SampleId) -> Bytes {
        let object = self.object(id);
        self.server.content(&object.path, object.size, 0..object.size)
    }

    /// A read of a whole sample.
    ///
    /// # Panics
    /// As [`object`](Self::object).
    pub fn request(&self, id: SampleId, due: Tick) -> ReadRequest {
        let key = SampleKey::new(DatasetId(0), id);
        ReadRequest::new(key, self.object(id), Span::Whole, due)
    }

    /// All samples with their contents, for the conformance suite.
    pub fn known(&self) -> Vec<KnownSample> {
        (0..self.samples())
            .map(SampleId)
            .map(|id| KnownSample {
                key: SampleKey::new(DatasetId(0), id),
                object: self.object(id),
                content: self.expected(id),
            })
            .collect()
    }

    /// Replaces an object by one of `size` bytes: reads of its earlier state are `Changed`.
    pub fn change(&self, id: SampleId, size: u64) {
        let mut objects = self.server.objects();
        let entry = objects.entry(Arc::clone(&self.paths[id.0 as usize])).or_default();
        *entry = (size, entry.1 + 1);
    }

    /// Removes an object: reads are `NotFound`.
    pub fn remove(&self, id: SampleId) {
        self.server.objects().remove(&self.paths[id.0 as usize]);
    }
}

fn version(generation: u64) -> Option<Version> {
    Some(Version::ETag(format!("v{generation}").into()))
}

impl FakeServer {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, (u64, u64)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency.load(Relaxed))
    }

    fn content(&self, path: &str, size: u64, range: Range<u64>) -> Bytes {
        match self.zeroes.as_ref().or_else(|| self.contents.get(path)) {
            Some(content) => content.slice(range.start as usize..range.end as usize),
            None => content_range(self.seed, path, size, range),
        }
    }

    async fn answer(self: Arc<Self>, name: Arc<str>, request: Arc<ReadRequest>) -> Result<Bytes, TierError> {
        if self.refuses_above < u64::MAX && self.counts.tally().in_flight >= self.refuses_above {
            let error = TierError::new(ErrorKind::Throttled, &*name).with_object(&*request.object.path);
            let result = Err(error.with_detail("too many reads"));
            self.counts.start(request.key).end(&result);
            return result;
        }
        let ceiling = self.ceilings.iter().find(|ceiling| ceiling.covers(&request.object.path));
        if let Some(ceiling) = ceiling.filter(|ceiling| !ceiling.admits()) {
            let flight = self.counts.start(request.key);
            sleep(self.latency()).await;
            let error = TierError::new(ErrorKind::Throttled, &*name).with_object(&*request.object.path);
            let result = Err(error.with_detail("slow down").with_retry_after(ceiling.retry_after()));
            flight.end(&result);
            return result;
        }
        let mut place = Some(self.slots.acquire().await);
        let flight = self.counts.start(request.key);
        let stretch = mix(self.seed ^ mix(request.key.id.0 ^ (u64::from(request.key.dataset.0) << 48)));
        let latency = self.latency() + self.jitter.mul_f64(unit(stretch));
        if !latency.is_zero() {
            sleep(latency).await;
        }
        let result = self.find(&name, &request);
        if self.pipe_outside {
            place = None;
        }
        if let (Ok(bytes), bandwidth @ 1..) = (&result, self.bandwidth.load(Relaxed)) {
            self.send(bytes.len() as u64, bandwidth).await;
        }
        flight.end(&result);
        drop(place);
        result
    }

    fn find(&self, name: &str, request: &ReadRequest) -> Result<Bytes, TierError> {
        let object = &request.object;
        let error = |kind| TierError::new(kind, name).with_object(&*object.path);
        if check_path(&object.path).is_err() {
            return Err(error(ErrorKind::Invalid));
        }
        let Some((size, generation)) = self.objects().get(&object.path).copied() else {
            return Err(error(ErrorKind::NotFound));
        };
        if size != object.size || object.version.is_some() && object.version != version(generation) {
            return Err(error(ErrorKind::Changed).with_detail(format!("{size} bytes, state {generation}")));
        }
        let range = request.range().map_err(|why| error(ErrorKind::Invalid).with_detail(why))?;
        let content = self.content(&object.path, size, range);
        let Some(buffers) = &self.buffers else { return Ok(content) };
        let buffer = buffers.allocate_for(request.lifetime, content.len(), 1);
        let mut buffer = buffer.ok_or_else(|| error(ErrorKind::Other).with_detail("no memory"))?;
        buffer.extend(&content);
        Ok(buffer.freeze())
    }

    /// Waits until the link has sent `bytes` after everything before.
    async fn send(&self, bytes: u64, bandwidth: u64) {
        let sent = {
            let mut free = self.pipe_free.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let begin = free.map_or(now, |free| free.max(now));
            let took = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth);
            let end = begin + Duration::from_nanos(u64::try_from(took).unwrap_or(u64::MAX));
            *free = Some(end);
            end
        };
        sleep_until(sent).await;
    }
}

impl Tier for FakeOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        Arc::clone(&self.server).answer(Arc::clone(&self.name), request).boxed()
    }

    /// Nothing is delayed.
    fn submit(&self) {}
}

impl OriginTier for FakeOrigin {
    fn place(&self) -> &str {
        &self.name
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        let range = ListRange::new(prefix, after);
        let found: Vec<_> = self
            .server
            .objects()
            .iter()
            .filter(|(path, _)| range.includes(path))
            .map(|(path, &(size, generation))| {
                Ok(Object { path: Arc::clone(path), size, version: version(generation) })
            })
            .collect();
        let latency = self.server.latency();
        stream::once(async move {
            if !latency.is_zero() {
                sleep(latency).await;
            }
            stream::iter(found)
        })
        .flatten()
        .boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        let found = self.server.objects().get(path).copied();
        let (latency, name, path) = (self.server.latency(), Arc::clone(&self.name), Arc::from(path));
        async move {
            if !latency.is_zero() {
                sleep(latency).await;
            }
            let Some((size, generation)) = found else {
                let kind = if check_path(&path).is_err() { ErrorKind::Invalid } else { ErrorKind::NotFound };
                return Err(TierError::new(kind, &*name).with_object(&*path));
            };
            Ok(Object { path, size, version: version(generation) })
        }
        .boxed()
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReadAll, conformance};

    #[tokio::test(start_paused = true)]
    async fn origin_conformance() {
        let objects = conformance::samples(3).into_iter().map(|known| (known.object.path, known.object.size));
        let hidden = conformance::HIDDEN.iter().map(|&(path, size)| (path.into(), size));
        let origin = FakeOrigin::new(objects.chain(hidden)).with_seed(3);
        let slow = origin.with_latency(Duration::from_millis(5)).with_jitter(Duration::from_millis(9));
        let slow = slow.with_bandwidth(50_000_000).with_parallelism(4);
        conformance::origin(&slow, &conformance::samples(3)).await;
        assert_eq!(slow.counts().tally().peak_in_flight, 4);
    }

    #[tokio::test]
    async fn given_contents_are_read_by_range() {
        let origin = FakeOrigin::of_contents([("a", Bytes::from("0123456789"))]);
        let whole = origin.request(SampleId(0), Tick(0));
        assert_eq!(origin.read(Arc::new(whole.clone())).await.unwrap(), "0123456789");
        let part = ReadRequest { span: Span::Range(3..6), ..whole };
        assert_eq!(origin.read(Arc::new(part)).await.unwrap(), "345");
        assert_eq!(origin.counts().tally().bytes, 13);
    }

    #[tokio::test(start_paused = true)]
    async fn latency_bandwidth_and_parallelism_are_simulated() {
        let origin = FakeOrigin::uniform(100, 1_000_000).with_latency(Duration::from_millis(50));
        let batch = || (0..100).map(|id| origin.request(SampleId(id), Tick(0))).collect();
        let began = Instant::now();
        assert_eq!(origin.read_all(batch()).count().await, 100);
        assert_eq!(began.elapsed(), Duration::from_millis(50));

        let narrow = FakeOrigin::uniform(100, 1_000_000).with_bandwidth(100_000_000);
        let began = Instant::now();
        assert_eq!(narrow.read_all(batch()).count().await, 100);
        assert_eq!(began.elapsed(), Duration::from_secs(1));

        let few = FakeOrigin::uniform(100, 1).with_latency(Duration::from_millis(50)).with_parallelism(10);
        let began = Instant::now();
        let batch = (0..100).map(|id| few.request(SampleId(id), Tick(0))).collect();
        assert_eq!(few.read_all(batch).count().await, 100);
        assert_eq!(began.elapsed(), Duration::from_millis(500));
        assert_eq!(
            few.counts().order(),
            (0..100).map(|id| few.request(SampleId(id), Tick(0)).key).collect::<Vec<_>>()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changed_removed_and_dropped_reads_are_counted() {
        let origin = FakeOrigin::uniform(2, 10).with_latency(Duration::from_millis(1));
        let stale = |id| origin.request(SampleId(id), Tick(0));
        let batch = vec![stale(0), stale(1)];
        origin.change(SampleId(0), 10);
        origin.remove(SampleId(1));
        let mut answers: Vec<_> = origin.read_all(batch.clone()).collect().await;
        answers.sort_by_key(|answer| answer.tag);
        let kinds: Vec<_> = answers.into_iter().map(|answer| answer.result.unwrap_err().kind()).collect();
        assert_eq!(kinds, [ErrorKind::Changed, ErrorKind::NotFound]);

        let mut stream = origin.read_all(batch);
        assert!(futures::poll!(stream.next()).is_pending());
        assert_eq!(origin.counts().tally().in_flight, 2);
        drop(stream);
        let tally = origin.counts().tally();
        assert_eq!((tally.in_flight, tally.cancelled, tally.errors), (0, 2, 2));
    }
}
