//! Origins that refuse requests above a rate: the ceiling is found and kept from their refusals
//! alone.

use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{MeterReading, Stack};
use foreread_tier::{ErrorKind, OriginTier};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, Trainer, TrainerReport, When};
use foreread_types::{SampleId, Tick};
use futures::StreamExt;
use tokio::time::Instant;

const SIZE: u64 = 110_000;
const SAMPLES: u64 = 10_000;

/// The requests and refusals of an origin at the end of each tenth of a second.
struct Run {
    course: Vec<(u64, u64)>,
}

const STEP: f64 = 0.1;

impl Run {
    /// Answers per second, and the refused fraction of requests, between two moments in seconds.
    fn between(&self, from: f64, to: f64) -> (f64, f64) {
        let at = |seconds: f64| match (seconds / STEP).round() as usize {
            0 => (0, 0),
            step => self.course[step - 1],
        };
        let ((requested, refused), (all, errors)) = (at(from), at(to));
        let (requested, refused) = ((all - requested) as f64, (errors - refused) as f64);
        ((requested - refused) / (to - from), refused / requested)
    }

    fn settles(&self, what: &str, ceiling: f64, from: f64, to: f64) {
        let (rate, refused) = self.between(from, to);
        println!("{what}: {rate:.1}/s of {ceiling}, {:.2} % refused", refused * 100.0);
        assert!((rate / ceiling - 1.0).abs() <= 0.1, "{what}: {rate} of {ceiling}");
        assert!(refused < 0.02, "{what}: {refused} refused");
    }
}

/// An origin with a latency in milliseconds, and a ceiling in requests per second with a burst of
/// 20 ms of them.
fn origin(latency_ms: u64, ceiling: f64, retry_after: Option<Duration>) -> FakeOrigin {
    let origin =
        FakeOrigin::uniform(SAMPLES, SIZE).with_zeroes().with_latency(Duration::from_millis(latency_ms));
    origin.with_ceiling("", ceiling, (ceiling / 50.0).max(2.0), retry_after)
}

/// Reads for `seconds` as fast as possible. `at` is called with the time after each step.
async fn drive(stack: &Stack, origin: &FakeOrigin, seconds: f64, at: impl FnMut(f64)) -> Run {
    drive_through(stack, Arc::new(origin.clone()), origin, seconds, at).await
}

/// The same with `tier` in front of the origin.
async fn drive_through(
    stack: &Stack,
    tier: Arc<dyn OriginTier>,
    origin: &FakeOrigin,
    seconds: f64,
    mut at: impl FnMut(f64),
) -> Run {
    let tier = stack.wrap(tier);
    let mut course = Vec::new();
    // An order that is independent of the directories.
    let request = |sample| origin.request(SampleId(sample * 7919 % SAMPLES), Tick(sample));
    let trainer =
        Trainer { step: Duration::from_secs_f64(STEP), ..Trainer::new(Duration::from_micros(1600)) };
    let until = Duration::from_secs_f64(seconds + STEP / 2.0);
    let fared = trainer
        .run(tier, u64::from(u32::MAX), until, request, |time| {
            let tally = origin.counts().tally();
            course.push((tally.requests, tally.errors));
            at(time.as_secs_f64());
            0
        })
        .await;
    assert!(fared.failed.is_empty(), "{:?}", fared.failed.first());
    Run { course }
}

async fn holds(latency_ms: u64, ceiling: f64, retry_after: Option<Duration>) {
    let origin = origin(latency_ms, ceiling, retry_after);
    let stack = Stack::new(1);
    let seconds = if ceiling < 100.0 { 80.0 } else { 20.0 };
    let run = drive(&stack, &origin, seconds, |_| {}).await;
    let what = format!("{ceiling}/s at {latency_ms} ms, {retry_after:?}");
    let (start, refused) = run.between(0.0, 2.0);
    println!("{what}: first two seconds {start:.1}/s, {:.1} % refused", refused * 100.0);
    // Two seconds, or the time of two hundred requests.
    run.settles(&what, ceiling, (200.0 / ceiling).max(2.0), seconds);
    let (_, refused) = run.between(0.0, seconds);
    assert!(ceiling < 100.0 || refused < 0.03, "{what}: {refused} refused, the start included");
    let decisions = stack.limit.map(|limit| limit.decisions());
    println!("{what}: {decisions:?}");
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-8
async fn ceiling_of_200_per_second_is_found_at_any_latency() {
    for latency_ms in [1, 10, 100] {
        holds(latency_ms, 200.0, None).await;
        holds(latency_ms, 200.0, Some(Duration::from_secs(1))).await;
    }
}

/// Several requests leave before the first answer.
#[tokio::test(start_paused = true)]
async fn rate_is_used_despite_slow_answers() {
    let origin = origin(2000, 100.0, None);
    let run = drive(&Stack::new(1), &origin, 120.0, |_| {}).await;
    run.settles("100/s at 2 s", 100.0, 60.0, 120.0);
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-8
async fn ceilings_of_20_to_5000_a_second_are_found() {
    for ceiling in [20.0, 1000.0, 5000.0] {
        for latency_ms in [1, 20, 100] {
            holds(latency_ms, ceiling, None).await;
        }
    }
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-8
async fn changing_ceiling_is_followed() {
    for latency_ms in [5, 50] {
        let origin = origin(latency_ms, 200.0, None);
        let run = drive(&Stack::new(1), &origin, 40.0, |now| {
            for (moment, ceiling) in [(10.0, 1000.0), (28.0, 100.0)] {
                if (now - moment).abs() < STEP / 2.0 {
                    origin.set_ceiling("", ceiling);
                }
            }
        })
        .await;
        run.settles("200", 200.0, 2.0, 10.0);
        run.settles("1000", 1000.0, 18.0, 28.0);
        run.settles("100", 100.0, 30.0, 40.0);
    }
}

/// Reads an origin with 64 slots and 10 ms of latency, with random refusals at any rate.
async fn by_chance(
    seed: u64,
    part: f64,
    compute: Duration,
    look_ahead: u64,
) -> (TrainerReport, MeterReading) {
    let origin = FakeOrigin::uniform(2 * SAMPLES, 100_000).with_zeroes();
    let origin = origin.with_latency(Duration::from_millis(10)).with_parallelism(64);
    let failing = FailingTier::new(Arc::new(origin.clone())).with_seed(seed);
    let failing = failing.on(When::Chance(part), Fault::Error(ErrorKind::Throttled));
    let stack = Stack::new(seed);
    let tier = stack.wrap(Arc::new(failing));
    let request = |sample| origin.request(SampleId(sample), Tick(sample));
    let trainer = Trainer { look_ahead, ..Trainer::new(compute) };
    let fared = trainer.run(tier, 2 * SAMPLES, Duration::from_secs(600), request, |_| 0).await;
    assert!(fared.failed.is_empty(), "{:?}", fared.failed.first());
    (fared, stack.meter.read())
}

const SEEDS: u64 = 9;

/// Beyond a tenth, the time is spent in waits before retries. A trainer that takes 640 MB/s has
/// read its 256 MiB of look-ahead before a sample arrives that was refused three times. With 1 GiB
/// it has not.
#[tokio::test(start_paused = true)]
// semantics: FAIL-9
async fn random_refusals_cost_little() {
    let (slow, greedy) = (Duration::from_millis(10), Duration::ZERO);
    for (compute, look_ahead) in [(slow, 256 << 20), (greedy, 256 << 20), (greedy, 1 << 30)] {
        let (usual, _) = by_chance(0, 0.0, compute, look_ahead).await;
        for (part, most) in [(0.01, 0.1), (0.1, if look_ahead == 256 << 20 { 0.35 } else { 0.25 })] {
            // The median, because the few waits and the refused samples are random.
            let mut all = Vec::new();
            for seed in 1..=SEEDS {
                let (fared, reading) = by_chance(seed, part, compute, look_ahead).await;
                let one = fared.took.as_secs_f64() / usual.took.as_secs_f64() - 1.0;
                println!("{part}, {compute:?} a batch, {look_ahead}: {:+.1} %, {reading:?}", one * 100.0);
                all.push(one);
            }
            all.sort_by(f64::total_cmp);
            let more = all[all.len() / 2];
            assert!(more < most, "{part}: {more}");
        }
    }
}

/// Every read is refused twice, with `Retry-After`.
#[tokio::test(start_paused = true)]
// semantics: FAIL-10
async fn retries_respect_retry_after_and_spread() {
    let requested = Duration::from_secs(2);
    let origin = Arc::new(FakeOrigin::uniform(50, SIZE).with_zeroes().with_latency(Duration::from_millis(5)));
    let moments = |seed| {
        let origin = Arc::clone(&origin);
        async move {
            let failing = FailingTier::new(Arc::clone(&origin));
            let failing =
                failing.on(When::FirstOfEach(2), Fault::RetryAfter(ErrorKind::Throttled, requested));
            let began = Instant::now();
            let batch = (0..50).map(|id| origin.request(SampleId(id), Tick(id))).collect();
            let stream = Stack::new(seed).with_hedge(None).wrap(Arc::new(failing)).read_all(batch);
            let answers: Vec<_> =
                stream.map(|answer| (answer.tag, answer.result.is_ok(), began.elapsed())).collect().await;
            assert!(answers.iter().all(|(_, fine, _)| *fine));
            answers
        }
    };
    let first = moments(1).await;
    assert!(first.iter().all(|(_, _, after)| *after >= 2 * requested), "{first:?}");
    let mut distinct: Vec<_> = first.iter().map(|(_, _, after)| after.as_millis() / 10).collect();
    distinct.dedup();
    assert!(distinct.len() >= 10, "{distinct:?}");
    assert_eq!(first, moments(1).await);
    assert_ne!(first, moments(2).await);
}

/// A ceiling and random refusals below it: both are found.
#[tokio::test(start_paused = true)]
// semantics: FAIL-9
async fn ceiling_is_found_among_random_refusals() {
    let origin = origin(10, 500.0, None);
    let failing = FailingTier::new(Arc::new(origin.clone())).with_seed(7);
    let failing = failing.on(When::Chance(0.05), Fault::Error(ErrorKind::Throttled));
    let run = drive_through(&Stack::new(1), Arc::new(failing), &origin, 30.0, |_| {}).await;
    let (rate, refused) = run.between(5.0, 30.0);
    println!("{rate:.1}/s of 500, {:.2} % refused by the ceiling", refused * 100.0);
    assert!(rate >= 0.8 * 500.0 && refused < 0.05, "{rate}, {refused}");
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-8
async fn origins_have_separate_rates() {
    let (slow, fast) = (origin(10, 100.0, None), origin(10, 2000.0, None));
    let stack = Stack::new(1);
    let (slow, fast) = futures::join!(drive(&stack, &slow, 20.0, |_| {}), drive(&stack, &fast, 20.0, |_| {}));
    slow.settles("the slow one", 100.0, 2.0, 20.0);
    fast.settles("the fast one", 2000.0, 2.0, 20.0);
}
