//! An adaptive limit in the whole stack, in front of origins of every kind, without tuning. It must
//! reach the possible throughput, with no more requests in flight than that takes.

use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{AdaptivePolicy, Bandwidth, Decisions, Limit, LimitReason, Stack};
use foreread_tier::OriginTier;
use foreread_tier_testing::{FakeOrigin, OriginModel, Trainer, TrainerReport};
use foreread_types::{SampleId, Tick};

const BATCH: f64 = OriginModel::BATCH as f64;

/// The result of a run, and the limit at the end of each step.
struct Run {
    step: Duration,
    fared: TrainerReport,
    course: Vec<Decisions>,
}

impl Run {
    fn rate(&self, from: f64, to: f64) -> f64 {
        self.fared.rate(self.step, Duration::from_secs_f64(from), Duration::from_secs_f64(to))
    }

    fn course(&self, from: f64, to: f64) -> &[Decisions] {
        let at = |seconds: f64| (seconds / self.step.as_secs_f64()) as usize;
        &self.course[at(from)..at(to).min(self.course.len())]
    }

    fn mean_in_flight(&self, from: f64, to: f64) -> f64 {
        let course = self.course(from, to);
        course.iter().map(|now| now.in_flight as f64).sum::<f64>() / course.len() as f64
    }

    fn most_in_flight(&self, from: f64, to: f64) -> usize {
        self.course(from, to).iter().map(|now| now.in_flight).max().unwrap_or(0)
    }
}

/// A trainer that needs 20,000 samples per second.
fn greedy() -> Trainer {
    Trainer::new(OriginModel::greedy())
}

/// Reads `origin` for `seconds`. `at` is called with the time after each step.
async fn drive(origin: &FakeOrigin, trainer: &Trainer, seconds: f64, at: impl FnMut(f64)) -> Run {
    let limit = Limit::adaptive(AdaptivePolicy::default());
    drive_through(&Stack::new(1).with_limit(Some(limit)), origin, trainer, seconds, at).await
}

async fn drive_through(
    stack: &Stack,
    origin: &FakeOrigin,
    trainer: &Trainer,
    seconds: f64,
    mut at: impl FnMut(f64),
) -> Run {
    let Some(limit) = stack.limit.clone() else { panic!("a stack without a limit") };
    let tier: Arc<dyn OriginTier> = stack.wrap(Arc::new(origin.clone()));
    let mut course = Vec::new();
    let request = |sample| origin.request(SampleId(sample % OriginModel::SAMPLES), Tick(sample));
    let until = Duration::from_secs_f64(seconds);
    let fared = trainer
        .run(tier, u64::from(u32::MAX), until, request, |time| {
            at(time.as_secs_f64());
            course.push(limit.decisions());
            0
        })
        .await;
    assert!(fared.failed.is_empty(), "{:?}", fared.failed.first());
    Run { step: trainer.step, fared, course }
}

async fn check(cell: OriginModel, origin: FakeOrigin, possible: f64, over_the_run: f64) {
    let seconds = 8.0;
    let run = drive(&origin, &greedy(), seconds, |_| {}).await;
    // The trainer takes whole batches: one may be missing at the end.
    let late = run.rate(1.0, seconds) + BATCH / (seconds - 1.0);
    let whole = run.rate(0.0, seconds) + BATCH / seconds;
    let peak = run.course.last().map_or(0, |last| last.peak_in_flight);
    println!(
        "{cell:?}: possible {possible:.0}/s, after a second {:.3} of it, over the run {:.3}; \
         in flight: mean {:.1}, peak {peak}, allowed {:.0}",
        run.rate(1.0, seconds) / possible,
        run.rate(0.0, seconds) / possible,
        run.mean_in_flight(1.0, seconds),
        cell.allowed(),
    );
    let after = over_the_run.clamp(0.9, 0.95);
    assert!(late >= after * possible, "{cell:?}: {late:.0} of {possible:.0} after a second");
    assert!(whole >= over_the_run * possible, "{cell:?}: {whole:.0} of {possible:.0} over the run");
    assert!(peak as f64 <= cell.allowed(), "{cell:?}: {peak} in flight");
}

async fn matrix(latency_ms: u64) {
    for cell in OriginModel::of_latency(latency_ms) {
        check(cell, cell.origin(), cell.possible(), 0.95).await;
    }
}

#[tokio::test(start_paused = true)]
async fn full_throughput_at_one_millisecond() {
    matrix(1).await;
}

#[tokio::test(start_paused = true)]
async fn full_throughput_at_ten_milliseconds() {
    matrix(10).await;
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-7
async fn full_throughput_at_fifty_milliseconds() {
    matrix(50).await;
}

/// A latency that varies threefold has a mean that is twice its minimum: a limit by minima would
/// starve.
#[tokio::test(start_paused = true)]
async fn full_throughput_with_varying_latencies() {
    for (cell, jitter_ms) in [
        (OriginModel::new(20, 1024, None), 40),
        (OriginModel::new(20, 64, None), 40),
        (OriginModel::new(20, 1024, Some(100)), 40),
        (OriginModel::new(5, 16, Some(400)), 30),
    ] {
        let origin = cell.origin().with_jitter(Duration::from_millis(jitter_ms));
        let mean = cell.latency + Duration::from_millis(jitter_ms) / 2;
        let cell = OriginModel { latency: mean, ..cell };
        // The first second distinguishes jitter from a queue.
        check(cell, origin, cell.possible(), 0.9).await;
    }
}

/// Each read keeps its slot until its bytes are sent, so the queue of the link takes slots.
#[tokio::test(start_paused = true)]
async fn full_throughput_where_transfers_take_slots() {
    for (latency_ms, parallelism, megabytes) in [(1, 64, 50), (10, 64, 400), (50, 1024, 50), (10, 1024, 400)]
    {
        let cell = OriginModel::new(latency_ms, parallelism, Some(megabytes));
        let origin = FakeOrigin::uniform(OriginModel::SAMPLES, OriginModel::SIZE)
            .with_zeroes()
            .with_latency(cell.latency);
        let origin = origin.with_parallelism(parallelism).with_bandwidth(megabytes * 1_000_000);
        check(cell, origin, cell.possible(), 0.95).await;
    }
}

#[tokio::test(start_paused = true)]
async fn user_bandwidth_queues_nothing_at_the_origin() {
    let cell = OriginModel::new(10, 1024, Some(50));
    let origin = OriginModel { bandwidth: None, ..cell }.origin();
    let rate = cell.bandwidth.and_then(std::num::NonZeroU64::new).expect("a rate");
    let stack = Stack::new(1).with_bandwidth(Some(Bandwidth::new(rate)));
    let run = drive_through(&stack, &origin, &greedy(), 6.0, |_| {}).await;
    assert!(run.rate(1.0, 6.0) >= 0.95 * cell.possible(), "{}", run.rate(1.0, 6.0));
    assert!(run.most_in_flight(0.0, 6.0) as f64 <= cell.allowed(), "{}", run.most_in_flight(0.0, 6.0));
}

/// A change in the middle and back, each followed within two seconds or eight latencies.
async fn followed(usual: OriginModel, slow: OriginModel, change: impl Fn(&FakeOrigin, OriginModel)) {
    let origin = usual.origin();
    let (from, to, end) = (4.0, 12.0, 18.0);
    let run = drive(&origin, &greedy(), end, |now| {
        // Steps are shorter than a hundredth of a second away from the moments of change.
        if (now - from).abs() < 0.005 {
            change(&origin, slow);
        } else if (now - to).abs() < 0.005 {
            change(&origin, usual);
        }
    })
    .await;
    let patience = (8.0 * slow.latency.as_secs_f64()).max(2.0);
    for (cell, begin, finish) in [(usual, 1.0, from), (slow, from + patience, to), (usual, to + 2.0, end)] {
        let rate = run.rate(begin, finish) + BATCH / (finish - begin);
        let most = run.most_in_flight(begin, finish);
        println!("{cell:?}: {rate:.0}/s of {:.0}, at most {most} in flight", cell.possible());
        assert!(rate >= 0.95 * cell.possible(), "{cell:?}: {rate:.0} of {:.0}", cell.possible());
        assert!(most as f64 <= cell.allowed(), "{cell:?}: {most} in flight");
    }
}

#[tokio::test(start_paused = true)]
async fn bandwidth_drop_to_a_tenth_is_followed() {
    let set =
        |origin: &FakeOrigin, cell: OriginModel| origin.set_bandwidth(cell.bandwidth.unwrap_or(u64::MAX));
    followed(OriginModel::new(10, 1024, Some(400)), OriginModel::new(10, 1024, Some(40)), set).await;
    followed(OriginModel::new(50, 1024, Some(400)), OriginModel::new(50, 1024, Some(40)), set).await;
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-7
async fn tenfold_latency_is_followed() {
    let set = |origin: &FakeOrigin, cell: OriginModel| origin.set_latency(cell.latency);
    followed(OriginModel::new(10, 64, None), OriginModel::new(100, 64, None), set).await;
    followed(OriginModel::new(10, 1024, None), OriginModel::new(100, 1024, None), set).await;
    followed(OriginModel::new(5, 1024, Some(400)), OriginModel::new(50, 1024, Some(400)), set).await;
    followed(OriginModel::new(50, 16, None), OriginModel::new(500, 16, None), set).await;
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-7
async fn computing_trainer_gets_what_it_needs_and_no_more() {
    for latency_ms in [1, 10, 50] {
        let cell = OriginModel::new(latency_ms, 1024, None);
        let run = drive(&cell.origin(), &Trainer::new(Duration::from_millis(5)), 8.0, |_| {}).await;
        let needed = BATCH / 0.005 * cell.latency.as_secs_f64();
        let (mean, last) = (run.mean_in_flight(2.0, 8.0), run.course.last().expect("a course"));
        let limits = run.course(2.0, 8.0).iter().map(|now| now.limit);
        let most = limits.max().unwrap_or(0);
        println!("{latency_ms} ms: {needed:.0} needed, {mean:.1} in flight, limit at most {most}, {last:?}");
        let first_steps = run.fared.course.iter().take(30).map(|step| step.stalled).sum::<Duration>();
        assert_eq!(run.fared.stalled, first_steps, "{latency_ms} ms: after the first 0.3 s");
        // The latency of the first requests, before anything is known about the origin.
        assert!(run.fared.stalled <= 2 * cell.latency, "{:?} at {latency_ms} ms", run.fared.stalled);
        assert!(mean <= needed * 1.05 + 1.0, "{mean} in flight, {needed} needed");
        assert!(most as f64 <= needed * 1.5 + 4.0, "a limit of {most}, {needed} needed");
    }
}

/// The trainer slows down and speeds up again: the requests in flight follow.
#[tokio::test(start_paused = true)]
async fn released_concurrency_is_regained_on_demand() {
    let cell = OriginModel::new(50, 1024, None);
    let origin = cell.origin();
    let limit = Limit::adaptive(AdaptivePolicy::default());
    let stack = Stack::new(1).with_limit(Some(limit));
    for (compute_ms, needed) in [(4, 400.0), (40, 40.0), (4, 400.0)] {
        let trainer = Trainer::new(Duration::from_millis(compute_ms));
        let run = drive_through(&stack, &origin, &trainer, 5.0, |_| {}).await;
        let (mean, last) = (run.mean_in_flight(2.0, 5.0), run.course.last().expect("a course"));
        println!("{compute_ms} ms: {needed} needed, {mean:.1} in flight, {last:?}");
        assert!(run.fared.stalled <= Duration::from_millis(150), "{:?}", run.fared.stalled);
        assert!(mean <= needed * 1.05 + 1.0 && last.limit as f64 <= needed * 1.5 + 4.0, "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn throttling_origin_gets_less_and_slowly_more() {
    let origin = OriginModel::new(20, 1024, None).origin().with_refusals_above(100);
    let run = drive(&origin, &greedy(), 10.0, |_| {}).await;
    let possible = 100.0 / 0.020;
    println!("{:.0}/s of {possible:.0}, {:?}", run.rate(1.0, 10.0), run.course.last());
    assert!(run.rate(1.0, 10.0) >= 0.6 * possible, "{}", run.rate(1.0, 10.0));
    assert!(origin.counts().tally().errors < origin.counts().tally().requests / 20);
    assert!(run.course.iter().any(|now| now.why == LimitReason::Throttled));
}
