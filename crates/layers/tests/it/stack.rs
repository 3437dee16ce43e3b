//! All layers together keep the contract of the inner tier.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{Bandwidth, Limit, Meter, RetryPolicy, Stack as Layers};
use foreread_tier::{ErrorKind, OriginTier};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, When, conformance};
use foreread_types::{SampleId, Tick};
use futures::StreamExt;

fn stack(inner: Arc<dyn OriginTier>, rate: u64, places: usize) -> (Arc<dyn OriginTier>, Meter) {
    let layers = Layers::bare()
        .with_retry(RetryPolicy::default())
        .with_bandwidth(NonZeroU64::new(rate).map(Bandwidth::new))
        .with_limit(NonZeroUsize::new(places).map(Limit::new));
    (layers.wrap(inner), layers.meter)
}

fn conforming() -> FakeOrigin {
    let objects = conformance::samples(3).into_iter().map(|known| (known.object.path, known.object.size));
    let hidden = conformance::HIDDEN.iter().map(|&(path, size)| (path.into(), size));
    FakeOrigin::new(objects.chain(hidden)).with_seed(3)
}

#[tokio::test(start_paused = true)]
async fn origin_conformance_of_a_stack() {
    let slow = conforming().with_latency(Duration::from_millis(2)).with_jitter(Duration::from_millis(7));
    let origin: Arc<dyn OriginTier> = Arc::new(slow);
    let (stack, meter) = stack(origin, 1_000_000_000, 3);
    assert_eq!((stack.name(), stack.profile().parallelism), ("fake", 3));
    conformance::origin(&*stack, &conformance::samples(3)).await;
    assert_eq!(meter.read().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn origin_conformance_with_first_reads_failing() {
    let flaky = FailingTier::new(Arc::new(conforming()))
        .on(When::FirstOfEach(1), Fault::Error(ErrorKind::Transient))
        .on(When::Chance(0.1), Fault::RetryAfter(ErrorKind::Throttled, Duration::from_millis(20)));
    let (stack, meter) = stack(Arc::new(flaky), 1_000_000_000, 3);
    conformance::origin(&*stack, &conformance::samples(3)).await;
    assert!(meter.read().retried > 12, "{:?}", meter.read());
}

#[tokio::test(start_paused = true)]
async fn origin_conformance_of_all_layers() {
    let slow = conforming().with_latency(Duration::from_millis(2)).with_jitter(Duration::from_millis(50));
    let flaky = FailingTier::new(Arc::new(slow))
        .on(When::FirstOfEach(1), Fault::Short)
        .on(When::Every(7), Fault::Stall(Duration::from_secs(5)))
        .on(When::Every(11), Fault::Error(ErrorKind::Transient));
    let layers = Layers::new(5);
    let origin = layers.wrap(Arc::new(flaky));
    assert_eq!((origin.name(), origin.profile().parallelism), ("fake", 64));
    conformance::origin(&*origin, &conformance::samples(3)).await;
    assert_eq!(layers.meter.read().in_flight, 0);
    assert_eq!(layers.limit.map(|limit| (limit.taken(), limit.waiting())), Some((0, 0)));
}

#[tokio::test(start_paused = true)]
async fn retries_take_bandwidth_but_no_slot_while_waiting() {
    let origin = Arc::new(FakeOrigin::uniform(100, 100_000));
    let flaky = FailingTier::new(Arc::clone(&origin))
        .on(When::FirstOfEach(1), Fault::RetryAfter(ErrorKind::Throttled, Duration::from_secs(10)));
    let (stack, meter) = stack(Arc::new(flaky), 10_000_000, 4);
    let batch = (0..100).map(|id| origin.request(SampleId(id), Tick(id))).collect();
    let began = tokio::time::Instant::now();
    assert_eq!(
        stack.read_all(batch).filter(|answer| std::future::ready(answer.result.is_ok())).count().await,
        100
    );
    // A second of failures, ten of waiting while the others fail, a second of successes.
    let took = began.elapsed().as_secs_f64();
    assert!((11.0..11.3).contains(&took), "{took} s");
    let read = meter.read();
    assert_eq!((read.requests, read.errors, read.retried, read.bytes), (200, 100, 100, 10_000_000));
}

/// The paused clock has one thread. A lost wake-up between threads would hang this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_on_several_threads_all_end() {
    let origin = Arc::new(FakeOrigin::uniform(64, 1000));
    let flaky =
        FailingTier::new(Arc::clone(&origin)).on(When::Chance(0.02), Fault::Error(ErrorKind::Transient));
    let flaky: Arc<dyn OriginTier> = Arc::new(flaky);
    let (fixed, fixed_meter) = stack(Arc::clone(&flaky), 200_000_000, 3);
    together(&origin, fixed).await;
    assert_eq!(fixed_meter.read().in_flight, 0);
    let layers = Layers::new(5);
    together(&origin, layers.wrap(flaky)).await;
    assert_eq!(layers.meter.read().in_flight, 0);
    assert_eq!(layers.limit.map(|limit| (limit.taken(), limit.waiting())), Some((0, 0)));
}

async fn together(origin: &Arc<FakeOrigin>, stack: Arc<dyn OriginTier>) {
    let tasks: Vec<_> = (0..16u32)
        .map(|task| {
            let (origin, stack) = (Arc::clone(origin), Arc::clone(&stack));
            tokio::spawn(async move {
                for round in 0..40u32 {
                    let request = |id: u32| origin.request(SampleId(u64::from(id)), Tick(u64::from(round)));
                    let batch: Vec<_> = (0..(task + round) % 30).map(request).collect();
                    let (length, dropped) = (batch.len(), (task + round).is_multiple_of(5));
                    let taken = if dropped { length / 2 } else { length };
                    assert_eq!(stack.read_all(batch).take(taken).count().await, taken);
                }
            })
        })
        .collect();
    for task in tasks {
        match tokio::time::timeout(Duration::from_secs(60), task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("{error}"),
            Err(_) => panic!("a stream that does not end"),
        }
    }
}

/// Regression: with a single slot, three requests were in flight.
#[tokio::test(start_paused = true)]
// semantics: FAIL-7
async fn hedges_take_slots_of_the_users_limit() {
    for places in [1, 2, 5] {
        let origin = Arc::new(FakeOrigin::uniform(200, 1000).with_latency(Duration::from_millis(20)));
        let stalls = FailingTier::new(Arc::clone(&origin))
            .on(When::Every(10), Fault::Stall(Duration::from_secs(50)))
            .on(When::Every(13), Fault::Error(ErrorKind::Transient));
        // A stalled read is in flight.
        let seen = Arc::new(stalls);
        let layers = Layers::new(5)
            .with_limit(Some(Limit::new(NonZeroUsize::new(places).unwrap())))
            .with_hedge_within_limit(true);
        let stack = layers.wrap(Arc::clone(&seen) as Arc<dyn OriginTier>);
        for round in 0..4u32 {
            let request =
                |tag: u32| origin.request(SampleId(u64::from(50 * round + tag)), Tick(u64::from(tag)));
            let answers: Vec<_> = stack.read_all((0..50).map(request).collect()).collect().await;
            assert_eq!(answers.iter().filter(|answer| answer.result.is_ok()).count(), 50);
        }
        let (tally, meter) = (seen.counts().tally(), layers.meter.read());
        assert_eq!(tally.peak_in_flight, places as u64);
        assert!(places == 1 || meter.hedged > 0, "{places}: {meter:?}");
        assert_eq!(layers.limit.map(|limit| (limit.taken(), limit.waiting())), Some((0, 0)));
    }
}

/// Regression: each origin had a separate queue, so due order did not hold across origins.
#[tokio::test(start_paused = true)]
async fn origins_share_one_bandwidth_queue() {
    for is_urgent_first in [false, true] {
        let origin = FakeOrigin::uniform(1100, 10_000).with_zeroes();
        let counting = Arc::new(FailingTier::new(Arc::new(origin.clone())));
        let layers = Layers::bare().with_bandwidth(NonZeroU64::new(1_000_000).map(Bandwidth::new));
        let [training, validation] = [(); 2].map(|()| layers.wrap(Arc::clone(&counting) as _));
        let read = |tier: &Arc<dyn OriginTier>, ids: std::ops::Range<u64>| {
            tier.read_all(ids.map(|id| origin.request(SampleId(id), Tick(id))).collect()).count()
        };
        if is_urgent_first {
            let (urgent, later) = (read(&training, 0..100), read(&validation, 1000..1100));
            futures::join!(urgent, later);
        } else {
            let (later, urgent) = (read(&validation, 1000..1100), read(&training, 0..100));
            futures::join!(later, urgent);
        }
        let order: Vec<u64> = counting.counts().order().iter().map(|key| key.id.0).collect();
        let last = order.iter().rposition(|id| *id < 1000).unwrap();
        let before = order[..last].iter().filter(|id| **id >= 1000).count();
        assert!(
            before <= 1,
            "{before} that are due later left before the last of those due first: {order:?}"
        );
    }
}
