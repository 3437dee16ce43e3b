//! Joined ranges of one object: the same bytes as single reads, in separate allocations, and only
//! where it pays.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foreread_layers::{MergePolicy, Stack};
use foreread_tier::{
    Buffer, Buffers, ErrorKind, HeapBuffers, Object, OriginTier, ReadBlock, ReadFuture, ReadRequest, Span,
    Tier, TierError, TierProfile,
};
use foreread_tier_testing::{Answered, FailingTier, FakeOrigin, Fault, ReadAll, When};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

const LATENCY: Duration = Duration::from_millis(20);
const BANDWIDTH: u64 = 50_000_000;
const SHARDS: u64 = 3;
const SHARD: u64 = 1_000_000;

fn shards() -> FakeOrigin {
    FakeOrigin::uniform(SHARDS, SHARD).with_latency(LATENCY)
}

fn range(origin: &FakeOrigin, tag: u32, shard: u64, start: u64, length: u64) -> ReadRequest {
    let key = SampleKey::new(DatasetId(0), SampleId(u64::from(tag)));
    let object: Object = origin.object(SampleId(shard));
    ReadRequest::new(key, object, Span::Range(start..start + length), Tick(u64::from(tag)))
}

async fn answers(tier: &dyn Tier, batch: Vec<ReadRequest>) -> BTreeMap<u32, Answered> {
    let (count, mut by_tag) = (batch.len(), BTreeMap::new());
    let mut stream = tier.read_all(batch);
    while let Some(answer) = stream.next().await {
        assert!(by_tag.insert(answer.tag, answer).is_none(), "a tag twice");
    }
    assert_eq!(by_tag.len(), count);
    by_tag
}

/// A stack that only joins.
fn merged(origin: Arc<impl OriginTier>, policy: MergePolicy) -> Arc<dyn OriginTier> {
    Stack::bare().with_merge(Some(policy)).wrap(origin)
}

fn given() -> MergePolicy {
    MergePolicy::default().with_given(LATENCY, BANDWIDTH)
}

/// Records the requests.
#[derive(Debug, Default)]
struct Recorded(Mutex<Vec<usize>>);

impl Buffers for Recorded {
    fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(length);
        HeapBuffers.allocate(length, align)
    }
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-13
async fn neighbours_are_joined_with_separate_allocations() {
    let origin = Arc::new(shards());
    let buffers = Arc::new(Recorded::default());
    let stack =
        Stack::bare().with_merge(Some(given())).with_buffers(Arc::clone(&buffers) as Arc<dyn Buffers>);
    let merged = stack.wrap(Arc::clone(&origin) as Arc<dyn OriginTier>);
    // Ten in a row with 100 bytes between them, one far away, one of another shard, and a whole
    // one.
    let mut batch: Vec<_> =
        (0..10).rev().map(|at| range(&origin, at, 0, u64::from(at) * 5100, 5000)).collect();
    batch.push(range(&origin, 10, 0, 900_000, 5000));
    batch.push(range(&origin, 11, 1, 51_000, 5000));
    batch.push(origin.request(SampleId(2), Tick(12)));
    let answers = answers(&*merged, batch).await;
    for (position, answer) in answers {
        // The first ten come in reverse.
        let tag = if position < 10 { 9 - position } else { position };
        let (shard, start, length) = match tag {
            10 => (0, 900_000, 5000),
            11 => (1, 51_000, 5000),
            12 => (2, 0, SHARD as usize),
            at => (0, at as usize * 5100, 5000),
        };
        let Ok(bytes) = answer.result else { panic!("{tag}: {:?}", answer.result) };
        assert_eq!(bytes, origin.expected(SampleId(shard)).slice(start..start + length), "{tag}");
    }
    assert_eq!(*buffers.0.lock().unwrap(), [5000; 10]);
    let tally = origin.counts().tally();
    assert_eq!((tally.requests, tally.bytes), (4, 9 * 5100 + 5000 + 5000 + 5000 + SHARD));
}

#[tokio::test(start_paused = true)]
async fn joined_read_is_as_urgent_as_its_most_urgent_part() {
    let origin = Arc::new(shards());
    let counting = Arc::new(FailingTier::new(Arc::clone(&origin)));
    let merged = merged(Arc::clone(&counting), given());
    let batch = vec![
        range(&origin, 7, 1, 0, 1000),
        range(&origin, 9, 0, 0, 1000),
        range(&origin, 3, 0, 1000, 1000),
        range(&origin, 5, 2, 0, 1000),
    ];
    answers(&*merged, batch).await;
    let order: Vec<u64> = counting.counts().order().iter().map(|key| key.id.0).collect();
    assert_eq!(order, [3, 5, 7]);
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-13, FAIL-14
async fn joined_failures_are_counted_and_retried_together() {
    let origin = Arc::new(shards());
    let batch =
        |origin: &FakeOrigin| (0..10).map(|at| range(origin, at, 0, u64::from(at) * 5000, 5000)).collect();
    let failing = || {
        let failing = FailingTier::new(Arc::clone(&origin));
        Arc::new(failing.on(When::Read(0), Fault::Error(ErrorKind::Transient)))
    };
    for answer in answers(&*merged(failing(), given()), batch(&origin)).await.into_values() {
        let Err(error) = answer.result else { panic!("an answer") };
        assert_eq!((error.kind(), error.object()), (ErrorKind::Transient, Some("00000/00000000")));
    }
    let stack = Stack::new(1).with_merge(Some(given()));
    for (tag, answer) in answers(&*stack.wrap(failing()), batch(&origin)).await {
        let Ok(bytes) = answer.result else { panic!("{tag}: {:?}", answer.result) };
        let start = tag as usize * 5000;
        assert_eq!(bytes, origin.expected(SampleId(0)).slice(start..start + 5000), "{tag}");
    }
    assert_eq!(stack.meter.read().retried, 1);
    for fault in [Fault::Short, Fault::Long] {
        let tier = Arc::new(FailingTier::new(Arc::clone(&origin)).on(When::FirstOfEach(1), fault.clone()));
        let answers = answers(&*Stack::new(1).with_merge(Some(given())).wrap(tier), batch(&origin)).await;
        let failed = answers.values().filter(|answer| answer.result.is_err()).count();
        assert_eq!(failed, if fault == Fault::Long { 10 } else { 0 }, "{fault:?}");
    }
}

/// Regression: a refused read of 8 MiB came back as a request per sample.
#[tokio::test(start_paused = true)]
// semantics: FAIL-14
async fn refused_joined_read_is_retried_as_one() {
    for samples in [80u64, 8192] {
        let length = (8 << 20) / samples;
        let origin = Arc::new(FakeOrigin::uniform(2, 8 << 20).with_latency(LATENCY));
        // Two joined reads: the first is refused three times, the second once.
        let refused = || {
            let throttled = Fault::Error(ErrorKind::Throttled);
            let first = SampleKey::new(DatasetId(0), SampleId(0));
            let second = SampleKey::new(DatasetId(0), SampleId(samples));
            let failing = FailingTier::new(Arc::clone(&origin)).on(When::First(first, 3), throttled.clone());
            Arc::new(failing.on(When::First(second, 1), throttled))
        };
        let batch =
            (0..2 * samples).map(|at| range(&origin, at as u32, at / samples, at % samples * length, length));
        let (failing, stack) = (refused(), Stack::new(1).with_merge(Some(given())));
        let answers =
            answers(&*stack.wrap(Arc::clone(&failing) as Arc<dyn OriginTier>), batch.collect()).await;
        assert!(answers.values().all(|answer| answer.result.is_ok()));
        let tally = origin.counts().tally();
        assert_eq!(
            (tally.requests, tally.bytes, failing.faults()),
            (2, 2 * samples * length, 4),
            "{samples}"
        );
        assert_eq!(stack.meter.read().retried, 4);
    }
}

/// Fails long reads, like a proxy that cuts long answers.
#[derive(Debug)]
struct Cuts(FakeOrigin);

impl Tier for Cuts {
    fn name(&self) -> &str {
        "cuts"
    }

    fn profile(&self) -> &TierProfile {
        self.0.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        if request.len() > 5000 {
            return Box::pin(std::future::ready(Err(TierError::new(ErrorKind::Transient, "cuts"))));
        }
        self.0.read(request)
    }

    fn submit(&self) {}
}

impl OriginTier for Cuts {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.0.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.0.stat(path)
    }

    fn place(&self) -> &str {
        self.0.place()
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn persistently_failing_joined_read_is_split() {
    let origin = shards();
    let batch = (0..10).map(|at| range(&origin, at, 0, u64::from(at) * 5000, 5000)).collect();
    let stack = Stack::new(1).with_merge(Some(given()));
    for (tag, answer) in answers(&*stack.wrap(Arc::new(Cuts(origin.clone()))), batch).await {
        let start = tag as usize * 5000;
        assert_eq!(answer.result.unwrap(), origin.expected(SampleId(0)).slice(start..start + 5000), "{tag}");
    }
    let (read, tally) = (stack.meter.read(), origin.counts().tally());
    assert_eq!((read.requests, read.errors, tally.requests), (13, 3, 10));
}

/// A joined read ends with its last part.
#[tokio::test(start_paused = true)]
async fn joined_read_is_cancelled_with_its_last_part() {
    let origin = Arc::new(shards());
    let merged = merged(Arc::clone(&origin), given());
    let mut reads: Vec<_> =
        (0..3).map(|at| merged.read(Arc::new(range(&origin, at, 0, u64::from(at) * 5000, 5000)))).collect();
    merged.submit();
    for read in &mut reads {
        assert!(futures::poll!(read).is_pending());
    }
    assert_eq!(origin.counts().tally().in_flight, 1);
    drop(reads.split_off(1));
    assert_eq!(origin.counts().tally().in_flight, 1, "one part is waited for");
    drop(reads);
    let tally = origin.counts().tally();
    assert_eq!((tally.requests, tally.in_flight, tally.cancelled), (1, 0, 1));
}

/// A read that is dropped before its burst ends is not sent.
#[tokio::test(start_paused = true)]
async fn range_dropped_within_its_burst_is_not_read() {
    let origin = Arc::new(shards());
    let merged = merged(Arc::clone(&origin), given());
    let read = |at: u32| merged.read(Arc::new(range(&origin, at, 0, u64::from(at) * 5000, 5000)));
    let (first, last) = (read(0), read(9));
    drop(last);
    merged.submit();
    assert_eq!(first.await.unwrap(), origin.expected(SampleId(0)).slice(..5000));
    assert_eq!(origin.counts().tally().bytes, 5000);
}

/// A read of 5,000 bytes out of a block of every 20,000th, that many reads long.
fn in_block(origin: &FakeOrigin, shard: u64, at: u64, reads: usize) -> Arc<ReadRequest> {
    let request = range(origin, (shard * 100 + at) as u32, shard, at * 20_000, 5000);
    Arc::new(ReadRequest { block: Some(Arc::new(ReadBlock { bytes: 0..SHARD, reads })), ..request })
}

/// Two concurrent callers: one ends its burst while the block of the other is half requested.
#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn block_is_always_one_request() {
    let cached = shards().with_profile(TierProfile::new(64).with_kernel_cached(true));
    let slow = shards().with_latency(Duration::from_millis(1)).with_bandwidth(1_000_000);
    for origin in [Arc::new(cached), Arc::new(slow)] {
        let tier = merged(Arc::clone(&origin), MergePolicy::default());
        let reads: Vec<_> = (0..10)
            .flat_map(|at| [0, 1].map(|shard| (shard, at)))
            .map(|(shard, at)| {
                let read = tier.read(in_block(&origin, shard, at, 10));
                tier.submit();
                (shard, at as usize * 20_000, read)
            })
            .collect();
        for (shard, start, read) in reads {
            assert_eq!(read.await.unwrap(), origin.expected(SampleId(shard)).slice(start..start + 5000));
        }
        let tally = origin.counts().tally();
        assert_eq!((tally.requests, tally.bytes), (2, 2 * (9 * 20_000 + 5000)));
    }
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-14
async fn incomplete_block_is_read_when_awaited() {
    let origin = Arc::new(shards());
    let merged = merged(Arc::clone(&origin), MergePolicy::default());
    let mut reads: Vec<_> = (0..4).map(|at| merged.read(in_block(&origin, 0, at, 10))).collect();
    drop(reads.pop());
    merged.submit();
    assert_eq!(origin.counts().tally().requests, 0);
    for (at, read) in reads.into_iter().enumerate() {
        let expected = origin.expected(SampleId(0)).slice(at * 20_000..at * 20_000 + 5000);
        assert_eq!(read.await.unwrap(), expected);
    }
    let tally = origin.counts().tally();
    assert_eq!((tally.requests, tally.bytes), (1, 45_000), "what was dropped is not read");
    // A dropped read is not sent.
    drop(merged.read(in_block(&origin, 1, 0, 2)));
    let read = merged.read(in_block(&origin, 1, 1, 2));
    assert_eq!(read.await.unwrap(), origin.expected(SampleId(1)).slice(20_000..25_000));
    assert_eq!(origin.counts().tally().bytes, 50_000);
}

/// A stack measures the cost. Reads that are bound by bandwidth stay separate, and so do those of
/// an origin that the kernel caches.
#[tokio::test(start_paused = true)]
// semantics: FAIL-13
async fn unprofitable_ranges_are_not_joined() {
    let requests = async |origin: FakeOrigin, length: u64| {
        let tier = Stack::new(1).wrap(Arc::new(origin.clone()) as Arc<dyn OriginTier>);
        let mut last = 0;
        for round in 0..4u64 {
            last = origin.counts().tally().requests;
            // Several lengths, so that the cost can be measured.
            let batch = (0..20u32).map(|at| {
                range(&origin, at, round % SHARDS, u64::from(at) * length, length - 37 * u64::from(at))
            });
            answers(&*tier, batch.collect()).await;
        }
        origin.counts().tally().requests - last
    };
    assert_eq!(requests(shards(), 5000).await, 1);
    // 40 ms for the bytes of each, 1 ms for the request.
    let narrow = FakeOrigin::uniform(SHARDS, SHARD).with_latency(Duration::from_millis(1));
    assert_eq!(requests(narrow.with_parallelism(1).with_bandwidth(1_000_000), 40_000).await, 20);
    let cached = shards().with_profile(TierProfile::new(64).with_kernel_cached(true));
    assert_eq!(requests(cached, 5000).await, 20);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    // semantics: FAIL-13
    fn joined_ranges_equal_single_reads_within_the_waste_bound(
        latency_us in 0u64..50_000,
        bandwidth in 1_000u64..1_000_000_000,
        most in 1u64..200_000,
        waste in 0.0f64..2.0,
        ranges in proptest::collection::vec((0u64..SHARDS, 0u64..SHARD - 30_000, 1u64..30_000), 0..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let latency = Duration::from_micros(latency_us);
            let policy = MergePolicy::default().with_given(latency, bandwidth).with_bounds(most, waste);
            let origin = Arc::new(shards());
            let merged = merged(Arc::clone(&origin), policy);
            let batch: Vec<_> = ranges
                .iter()
                .zip(0..)
                .map(|(&(shard, start, length), tag)| range(&origin, tag, shard, start, length))
                .collect();
            let requested: u64 = batch.iter().map(ReadRequest::len).sum();
            for (tag, answer) in answers(&*merged, batch).await {
                let (shard, start, length) = ranges[tag as usize];
                let (start, end) = (start as usize, (start + length) as usize);
                assert_eq!(answer.result.unwrap(), origin.expected(SampleId(shard)).slice(start..end));
            }
            let tally = origin.counts().tally();
            let saved = ranges.len() as u64 - tally.requests;
            // The gaps take less time than the saved requests, and are within the bound.
            let between = latency.as_secs_f64() * bandwidth as f64 * saved as f64;
            let over = tally.bytes.saturating_sub(requested) as f64;
            let bound = between.min(waste * requested as f64);
            assert!(over <= bound, "{over} bytes more, {saved} requests saved");
            if most < 30_000 && saved > 0 {
                assert!(tally.bytes <= requested + most * saved);
            }
        });
    }
}
