//! Failing origins with the whole stack: the bytes are right, or there is one clear error, and
//! faults cost little.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{AdaptivePolicy, Bandwidth, HedgePolicy, Limit, MeterReading, RetryPolicy, Stack};
use foreread_tier::{ErrorKind, OriginTier, Tier};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, Trainer, TrainerReport, When};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use tokio::time::Instant;

const SAMPLES: u64 = 20_000;

fn origin() -> Arc<FakeOrigin> {
    let origin = FakeOrigin::uniform(SAMPLES, 100_000).with_zeroes();
    Arc::new(origin.with_latency(Duration::from_millis(10)).with_parallelism(64))
}

/// Reads a faulty origin like a trainer that computes 5 ms per batch.
async fn train(rules: &[(When, Fault)], compute: Duration) -> (TrainerReport, MeterReading) {
    let origin = origin();
    let mut failing = FailingTier::new(Arc::clone(&origin)).with_seed(11);
    for (when, fault) in rules {
        failing = failing.on(when.clone(), fault.clone());
    }
    let stack = Stack::new(3);
    let tier: Arc<dyn OriginTier> = stack.wrap(Arc::new(failing));
    let request = |sample| origin.request(SampleId(sample), Tick(sample));
    let fared = Trainer::new(compute).run(tier, SAMPLES, Duration::from_secs(600), request, |_| 0).await;
    assert_eq!(stack.meter.read().in_flight, 0);
    (fared, stack.meter.read())
}

/// The time relative to the same run without faults, with the trainer as the bottleneck and with
/// the origin.
async fn cost(what: &str, rules: &[(When, Fault)]) -> f64 {
    let mut worst: f64 = 0.0;
    for compute in [Duration::from_millis(10), Duration::ZERO] {
        let (usual, _) = train(&[], compute).await;
        let (fared, reading) = train(rules, compute).await;
        let more = fared.took.as_secs_f64() / usual.took.as_secs_f64() - 1.0;
        println!(
            "{what}, {compute:?} a batch: {:?} instead of {:?} ({:+.1} %), stalled {:?}, {reading:?}",
            fared.took,
            usual.took,
            more * 100.0,
            fared.stalled,
        );
        assert!(fared.failed.is_empty(), "{:?}", fared.failed.first());
        assert_eq!(fared.taken, SAMPLES);
        worst = worst.max(more);
    }
    worst
}

#[tokio::test(start_paused = true)]
async fn frequent_faults_bursts_and_outages_are_survived() {
    let transient = Fault::Error(ErrorKind::Transient);
    let more = cost("10 %", &[(When::Chance(0.1), transient.clone())]).await;
    assert!(more < 0.5, "{more}");
    let more = cost("bursts", &[(When::Burst { reads: 200, of: 4000 }, transient.clone())]).await;
    assert!(more < 0.2, "{more}");
    let more = cost(
        "all at once",
        &[
            (When::Every(51), transient),
            (When::Every(67), Fault::Short),
            (When::Every(211), Fault::Stall(Duration::from_secs(5))),
            (When::Every(1999), Fault::Never),
        ],
    )
    .await;
    assert!(more < 0.4, "{more}");
}

#[tokio::test(start_paused = true)]
async fn unreadable_object_is_one_clear_error() {
    let origin = origin();
    let key = SampleKey::new(DatasetId(0), SampleId(17));
    for (fault, kind, reported) in [
        (
            Fault::Short,
            ErrorKind::Transient,
            "fake: 00000/00000017: transient failure: 99999 bytes instead of 100000, after 4",
        ),
        (
            Fault::Long,
            ErrorKind::Changed,
            "fake: 00000/00000017: changed since it was indexed: 100001 bytes instead of 100000",
        ),
        (Fault::Never, ErrorKind::Transient, "fake: 00000/00000017: transient failure: no answer in 3"),
        (
            Fault::Error(ErrorKind::NotFound),
            ErrorKind::NotFound,
            "fake: 00000/00000017: not found: on command",
        ),
        (
            Fault::Error(ErrorKind::Denied),
            ErrorKind::Denied,
            "fake: 00000/00000017: permission denied: on command",
        ),
    ] {
        let failing = FailingTier::new(Arc::clone(&origin)).on(When::Key(key), fault.clone());
        let attempts = std::num::NonZeroU32::MIN.saturating_add(3);
        let stack = Stack::new(3).with_retry(RetryPolicy::default().with_attempts(attempts));
        let tier = stack.wrap(Arc::new(failing));
        let batch = (0..64).map(|id| origin.request(SampleId(id), Tick(id))).collect();
        let answers: Vec<_> = tier.read_all(batch).collect().await;
        assert_eq!(answers.len(), 64);
        let errors: Vec<_> = answers.iter().filter_map(|answer| answer.result.as_ref().err()).collect();
        let [error] = errors[..] else { panic!("{fault:?}: {errors:?}") };
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().starts_with(reported), "{error}");
        assert_eq!(stack.limit.map(|limit| limit.taken()), Some(0));
    }
}

/// A silent connection, or a connection that stops in the middle of an answer: for a tier both are
/// a read without an answer.
#[tokio::test(start_paused = true)]
// semantics: FAIL-12
async fn stalled_connection_costs_one_hedge_and_no_timeout() {
    let reads = |ids: std::ops::Range<u64>, origin: &FakeOrigin| {
        ids.map(|id| origin.request(SampleId(id), Tick(id))).collect::<Vec<_>>()
    };
    for fault in [Fault::Never, Fault::Stall(Duration::from_secs(3600))] {
        let origin = origin();
        let stalled = [500, 700, 900].map(|id| SampleKey::new(DatasetId(0), SampleId(id)));
        let failing = stalled.into_iter().fold(FailingTier::new(Arc::clone(&origin)), |tier, key| {
            tier.on(When::First(key, 1), fault.clone())
        });
        let stack = Stack::new(3);
        let tier = stack.wrap(Arc::new(failing));
        let mut slowest = Duration::ZERO;
        for from in (0..1000).step_by(50) {
            let began = Instant::now();
            let answers: Vec<_> = tier.read_all(reads(from..from + 50, &origin)).collect().await;
            assert!(answers.len() == 50 && answers.iter().all(|answer| answer.result.is_ok()));
            slowest = slowest.max(began.elapsed());
        }
        let MeterReading { requests, errors, retried, hedged, in_flight, .. } = stack.meter.read();
        println!("{fault:?}: {hedged} hedges, the slowest 50 reads took {slowest:?}");
        assert_eq!((hedged, requests, errors, retried, in_flight), (3, 1003, 0, 0, 0), "{fault:?}");
        // Three times the 95th percentile, and the time of a read. A timeout is 30 s.
        assert!(slowest < Duration::from_millis(60), "{fault:?}: {slowest:?}");
    }
}

/// Refusals that all waited for a hedge did not lower the rate.
#[tokio::test(start_paused = true)]
// semantics: FAIL-12
async fn refusal_mended_by_a_hedge_lowers_the_rate() {
    let origin = origin();
    let late = (1000..1012).map(|id| SampleKey::new(DatasetId(0), SampleId(id)));
    let first = |key| When::First(key, 1);
    // A hedge is sent after 31 to 34 ms and takes 10. The first read is refused meanwhile.
    let refusing = late.clone().fold(FailingTier::new(Arc::clone(&origin)), |tier, key| {
        tier.on(first(key), Fault::Error(ErrorKind::Throttled))
    });
    let refusing = late.fold(FailingTier::new(Arc::new(refusing)), |tier, key| {
        tier.on(first(key), Fault::Stall(Duration::from_millis(38)))
    });
    let stack = Stack::new(3);
    let tier = stack.wrap(Arc::new(refusing));
    let reads =
        |ids: std::ops::Range<u64>| ids.map(|id| origin.request(SampleId(id), Tick(id))).collect::<Vec<_>>();
    for from in (0..192).step_by(32) {
        assert_eq!(tier.read_all(reads(from..from + 32)).count().await, 32);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let answers: Vec<_> = tier.read_all(reads(1000..1012)).collect().await;
    assert!(answers.len() == 12 && answers.iter().all(|answer| answer.result.is_ok()), "{answers:?}");
    let MeterReading { hedged, retried, errors, .. } = stack.meter.read();
    assert_eq!((hedged, retried, errors), (12, 0, 12), "second reads have mended them");
    let rate = stack.limit.and_then(|limit| limit.decisions().rate);
    assert!(rate.is_some_and(|rate| rate < 1000), "{rate:?}");
}

/// If many reads stall, hedges keep to their budget, and the deadline ends the rest.
#[tokio::test(start_paused = true)]
// semantics: FAIL-12
async fn hedges_are_a_few_per_cent_at_most() {
    let (fared, reading) =
        train(&[(When::Chance(0.1), Fault::Stall(Duration::from_secs(5)))], Duration::ZERO).await;
    println!("{:?}, {reading:?}", fared.took);
    assert!(fared.failed.is_empty() && fared.taken == SAMPLES);
    assert!(reading.hedged as f64 <= 0.03 * SAMPLES as f64 + 2.0, "{reading:?}");
}

/// A hanging read holds its slot no longer than its deadline, even without hedges.
#[tokio::test(start_paused = true)]
// semantics: FAIL-4
async fn hanging_reads_free_their_slots() {
    let origin = origin();
    let failing = FailingTier::new(Arc::clone(&origin)).on(When::FirstOfEach(1), Fault::Never);
    let places = NonZeroUsize::MIN.saturating_add(3);
    let limit = Limit::new(places);
    let stack = Stack::new(3).with_hedge(None).with_limit(Some(limit));
    let tier: Arc<dyn Tier> = stack.wrap(Arc::new(failing));
    let batch = (0..12).map(|id| origin.request(SampleId(id), Tick(id))).collect();
    let began = Instant::now();
    let answers: Vec<_> = tier.read_all(batch).collect().await;
    assert!(answers.iter().all(|answer| answer.result.is_ok()));
    // Twelve hang, in three rounds of four.
    let took = began.elapsed().as_secs();
    assert!((90..=95).contains(&took), "{took} s");
}

/// With a bandwidth limit, hedges waited for the slots of the hanging reads: half a minute instead
/// of two seconds.
#[tokio::test(start_paused = true)]
// semantics: FAIL-12
async fn hedges_need_no_slot_of_an_adaptive_limit() {
    let mut took = Vec::new();
    for rate in [None, NonZeroU64::new(1_000_000_000)] {
        let origin = Arc::new(FakeOrigin::uniform(100, 1000).with_latency(Duration::from_millis(10)));
        let hang = (0..4).map(|id| SampleKey::new(DatasetId(0), SampleId(id)));
        let failing = hang.fold(FailingTier::new(Arc::clone(&origin)), |tier, key| {
            tier.on(When::First(key, 1), Fault::Never)
        });
        let policy = AdaptivePolicy::default().beginning_at(NonZeroUsize::new(4).unwrap());
        let stack =
            Stack::new(1).with_limit(Some(Limit::adaptive(policy))).with_bandwidth(rate.map(Bandwidth::new));
        assert!(!stack.hedge_within_limit);
        let tier = stack.wrap(Arc::new(failing) as Arc<dyn OriginTier>);
        let began = Instant::now();
        let batch = (0..32).map(|id| origin.request(SampleId(id), Tick(id))).collect();
        let answers: Vec<_> = tier.read_all(batch).collect().await;
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
        took.push(began.elapsed());
    }
    assert!(took.iter().all(|took| *took < Duration::from_secs(3)), "{took:?}");
}

/// Hedges that found no budget at their turn had used bandwidth.
#[tokio::test(start_paused = true)]
async fn unsent_hedge_takes_no_bandwidth() {
    for bytes in [100_000u64, 1_000_000] {
        let mut took = Vec::new();
        for hedge in [None, Some(HedgePolicy::default())] {
            let origin =
                FakeOrigin::uniform(1000, bytes).with_zeroes().with_latency(Duration::from_millis(20));
            let stack = Stack::bare()
                .with_hedge(hedge)
                .with_bandwidth(NonZeroU64::new(100_000_000).map(Bandwidth::new));
            let tier = stack.wrap(Arc::new(origin.clone()));
            let reads = |ids: std::ops::Range<u64>| {
                tier.read_all(ids.map(|id| origin.request(SampleId(id), Tick(id))).collect()).count()
            };
            assert_eq!(reads(0..200).await, 200);
            origin.set_latency(Duration::from_secs(1));
            let (began, before) = (Instant::now(), stack.meter.read().requests);
            assert_eq!(reads(200..1000).await, 800);
            let requests = stack.meter.read().requests - before;
            let link = requests as f64 * bytes as f64 / 1e8;
            took.push(began.elapsed().as_secs_f64() - link);
        }
        assert!(took[1] < took[0] + 0.2, "seconds beyond what the link sent: {took:?}");
    }
}
