//! The controller of an adaptive concurrency limit, without a clock and a runtime.
//!
//! The model is Little's law. An origin that answers after its own latency `base`, at most `rate`
//! answers per second, contains `rate * base` requests when it is just full. More only queue.
//! Neither number is known and both change. So the controller measures in *rounds*. A round is
//! about one generation of requests under one limit, of which it keeps the mean latency and the
//! mean number in flight. Their quotient is the rate.
//!
//! * The next limit is `GAIN * in flight * base / latency`, plus up to its square root if latencies
//!   vary or requests fail. While the origin is not full, the latency is `base` and the limit
//!   grows. Once it is full, the number in flight and the latency rise together, and the formula
//!   stays at `GAIN * rate * base`, independent of earlier limits. An eighth of the requests queue,
//!   and nothing oscillates. Where latencies are even, the limit is at most a fourth above the
//!   number that fills the origin.
//! * *Starting*: the gain is 2 until a round's latency shows that the origin is full. So a thousand
//!   requests are reached in seven round trips, and never more than twice the number that fills the
//!   origin.
//! * `base` falls with every round of lower latency. It rises only on proof that the latency is not
//!   our own doing: fewer requests in flight, and the latency did not fall with them. Every cut is
//!   such a test, so an origin that slows down is distinguished from an overloaded one within two
//!   rounds. If no round has confirmed `base` for a while, the limit drops just below `rate * base`
//!   for a round to test it (*draining*).
//! * If the queue outside the origin runs empty, the trainer is the bottleneck. The limit becomes
//!   the need of its demand over the last second.
//! * Refusals for too many requests carry no latency. The rate handles them.
//! * The requests that the origin answers within a millisecond are always allowed: a page cache
//!   must not be fed one read at a time.
//!
//! `base` is the mean and not the minimum of latencies: Little's law is about means, and an origin
//! with jitter would be starved by its fastest answer. The price is that a round needs several
//! answers. Occasional rounds below capacity confirm `base` (under one per cent of the time).
//!
//! Sources: Little 1961. Slow start and draining are from BBR (Cardwell et al., ACM Queue 14(5),
//! 2016). The limit from a ratio of latencies is from TCP Vegas (Brakmo and Peterson, 1995) and
//! Netflix's concurrency-limits ("gradient").

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

/// The number in flight relative to the number that just fills the origin, where all latencies are
/// the same.
const GAIN: f64 = 1.15;
/// The same where they vary.
const UNEVEN_GAIN: f64 = 1.25;
/// The limit relative to the demand, if the trainer is the bottleneck.
const SPARE: f64 = 1.25;
/// The same while starting.
const START_GAIN: f64 = 2.0;
/// The same at the very beginning, as long as latencies stay at those of the first answers.
const LEAP: f64 = 4.0;
/// The ratio of `base` to the latency that counts as unchanged.
const EVEN: f64 = 0.98;
/// Starting ends when the latency is above `base` by this factor.
const FULL: f64 = 4.0 / 3.0;
/// The least number of additional requests for small limits.
const SLACK: f64 = 2.0;
/// Latencies vary if their standard deviation is this part of their mean.
const UNEVEN: f64 = 0.25;
/// The part of earlier unevenness that remains after an even round.
const REMEMBERED: f64 = 0.5;
/// The number in flight, relative to the number that just fills the origin, while testing `base`.
const DRAIN: f64 = 0.85;
/// A latency within these factors of `base` counts as the same.
const ABOVE: f64 = 1.1;
const BELOW: f64 = 0.93;
/// The origin was not full if the rate followed at least this fraction of a change of the number in
/// flight.
const ELASTIC: f64 = 0.6;
/// The origin was full if the rate followed less than this fraction.
const IN_STEP: f64 = 0.15;
/// The smallest change of the number in flight (as a logarithm) that is significant, and that
/// proves something.
const TELLING: f64 = 0.15;
const PROVING: f64 = 0.3;
/// The limit below which draining stops.
const SMALL: usize = 2;
/// A test is void if the latency rose by more than this factor.
const CHANGED: f64 = 1.2;
/// The smallest factor of one round.
const CUT: f64 = 0.5;
/// One latency counts at most this many times the mean of those before it.
const OUTLIER: f64 = 4.0;
/// A latency above `base` by this factor ends a round early.
const ALARM: f64 = 2.0;
/// Changes below this part of the limit are not made.
const DEAD_BAND: f64 = 0.08;

/// A queue that is answered within this time is ignored: splitting batches to avoid it would cost
/// more.
const FINEST: Duration = Duration::from_millis(1);
/// The shortest round: timers and schedulers are not exact to less.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);
/// A round with the fewest answers ends after this time and a few latencies, whatever the limit.
const LONG_ROUND: Duration = Duration::from_millis(250);
/// A round has at least this many answers if they come within `SHORT_ROUND`, whatever the limit:
/// means of few are noise.
const ENOUGH: u32 = 48;
const SHORT_ROUND: Duration = Duration::from_millis(100);
/// The fewest answers of a round.
const FEWEST: u32 = 8;
/// How long `base` is trusted without confirmation: this, and at least this many latencies.
const BELIEVED: Duration = Duration::from_secs(1);
const BELIEVED_LATENCIES: f64 = 16.0;
/// Demand is counted in windows of this length. The last few are kept.
const DEMAND_WINDOW: Duration = Duration::from_millis(250);
const DEMAND_WINDOWS: usize = 4;
/// The trainer was the bottleneck in a window if this fraction of it had no queue.
const IDLE: f64 = 0.05;

/// The bounds of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptivePolicy {
    /// The initial limit (at most `most`).
    pub first: NonZeroUsize,
    /// The upper bound of the limit.
    pub most: NonZeroUsize,
}

impl Default for AdaptivePolicy {
    /// From 32 to at most 1,024.
    fn default() -> Self {
        Self::up_to(NonZeroUsize::MIN.saturating_add(1023))
    }
}

impl AdaptivePolicy {
    /// At most `most`.
    pub const fn up_to(most: NonZeroUsize) -> Self {
        Self { first: NonZeroUsize::MIN.saturating_add(31), most }
    }
}

setters! { AdaptivePolicy:
    /// The same with another first limit.
    beginning_at(first: NonZeroUsize);
}

/// The reason of the last change of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitReason {
    /// It has not been changed.
    #[default]
    Fixed,
    /// The origin is unknown yet or has become faster: the limit doubles.
    Starting,
    /// More requests in flight did not raise the latency.
    Growing,
    /// The latency rose without a higher rate.
    Latency,
    /// Below capacity for one round, to measure the origin's own latency.
    Draining,
    /// The trainer needs no more.
    Demand,
    /// The origin refused requests because they were too many.
    Throttled,
}

impl LimitReason {
    /// The reason as text, for reports and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Starting => "starting",
            Self::Growing => "growing",
            Self::Latency => "latency",
            Self::Draining => "draining",
            Self::Demand => "demand",
            Self::Throttled => "throttled",
        }
    }
}

/// The measurements of one round.
#[derive(Clone, Copy, Debug)]
struct MeasuredRound {
    latency: f64,
    in_flight: f64,
    /// The fraction of the round in which requests waited for a slot.
    queued: f64,
    /// See [`Round::chance`].
    chance: f64,
}

impl Round {
    /// How much chance there is in latencies: 0 where all are equal, 1 where they vary or requests
    /// fail.
    fn chance(&self) -> f64 {
        if self.failures > 0 || self.answers == 0 {
            return 1.0;
        }
        let mean = self.latencies / f64::from(self.answers);
        let variance = self.squares / f64::from(self.answers) - mean * mean;
        (variance.max(0.0).sqrt() / (UNEVEN * mean)).min(1.0)
    }
}

impl MeasuredRound {
    /// How far the rate followed the change of the number in flight since `before`: 1 if the origin
    /// has capacity, 0 if it is full, `None` if the change is too small.
    fn elasticity(&self, before: &Self) -> Option<f64> {
        let change = (self.in_flight / before.in_flight).ln();
        (change.abs() >= TELLING).then(|| 1.0 - (self.latency / before.latency).ln() / change)
    }
}

/// The current round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// The first time with at most the limit in flight. Requests that started earlier do not count.
    begun: Option<Duration>,
    answers: u32,
    latencies: f64,
    /// The sum of their squares.
    squares: f64,
    failures: u32,
    /// The mean latency of the first few answers.
    early: f64,
    area: f64,
    queued: f64,
}

/// Demand in one window of time.
#[derive(Clone, Copy, Debug, Default)]
struct DemandWindow {
    answers: u32,
    /// The time, later the fraction of the window, without waiting requests.
    idle: f64,
    /// The most waiting requests.
    longest: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ControllerMode {
    #[default]
    Starting,
    Cruising {
        linear: u8,
    },
    Draining,
}

/// The number in flight for an origin that `full` requests just fill. The square root covers
/// chance, which is relatively larger for small numbers. `chance` is 0 to 1: see [`Round::chance`].
fn wanted(full: f64, chance: f64) -> f64 {
    let gain = GAIN + chance * (UNEVEN_GAIN - GAIN);
    gain * full + chance * full.max(0.0).sqrt().max(SLACK)
}

/// The state machine. Times are those of one monotonic clock. A time that goes back counts as no
/// time passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controller {
    most: usize,
    limit: usize,
    why: LimitReason,
    mode: ControllerMode,
    round: Round,
    before: Option<MeasuredRound>,
    /// [`Round::chance`] of the last round without a queue.
    chance: f64,
    /// Whether the last round ended early.
    alarmed: bool,
    /// Answers per second before the last drain. 0 before the first.
    rate: f64,
    /// The origin's own latency in seconds, and when a round last confirmed it.
    base: Option<f64>,
    confirmed: Duration,
    now: Duration,
    in_flight: usize,
    waiting: usize,
    window: DemandWindow,
    window_ends: Option<Duration>,
    windows: VecDeque<DemandWindow>,
}

impl Controller {
    /// A controller without measurements.
    pub(crate) fn new(policy: AdaptivePolicy) -> Self {
        let limit = policy.first.min(policy.most).get();
        Self { most: policy.most.get(), limit, chance: 1.0, ..Self::default() }
    }

    /// The limit: at least 1, at most the policy's maximum.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The reason of its last change.
    pub(crate) fn why(&self) -> LimitReason {
        self.why
    }

    /// Sets the number of requests in flight and waiting from `now` on.
    pub(crate) fn load(&mut self, now: Duration, in_flight: usize, waiting: usize) {
        self.pass(now);
        (self.in_flight, self.waiting) = (in_flight, waiting);
        self.window.longest = self.window.longest.max(waiting);
        if self.round.begun.is_none() && in_flight > 0 && in_flight <= self.limit {
            self.round.begun = Some(self.now);
        }
    }

    /// Records the end of a request that started at `started`. [`load`](Self::load) follows with
    /// the new number in flight. A failed request carries no latency.
    pub(crate) fn finished(&mut self, now: Duration, started: Duration, is_answered: bool) {
        self.pass(now);
        if !is_answered {
            self.round.failures += 1;
            return;
        }
        self.window.answers += 1;
        let Some(begun) = self.round.begun.filter(|begun| started >= *begun) else { return };
        let latency = now.saturating_sub(started).as_secs_f64();
        let Round { answers, latencies, .. } = self.round;
        let usual = if answers > 0 { latencies / f64::from(answers) } else { f64::INFINITY };
        let usual = self
            .before
            .map_or(usual, |before| if answers > 0 { usual.max(before.latency) } else { before.latency });
        let latency = latency.min(OUTLIER * usual);
        self.round.answers += 1;
        self.round.latencies += latency;
        self.round.squares += latency * latency;
        if self.round.answers as usize <= self.limit.div_ceil(16) {
            self.round.early = self.round.latencies / f64::from(self.round.answers);
        }
        self.end_round(self.now.saturating_sub(begun));
    }

    /// Advances the time.
    fn pass(&mut self, now: Duration) {
        let now = now.max(self.now);
        let seconds = (now - self.now).as_secs_f64();
        if self.round.begun.is_some() {
            self.round.area += seconds * self.in_flight as f64;
            self.round.queued += if self.waiting > 0 { seconds } else { 0.0 };
        }
        let ends = *self.window_ends.get_or_insert(now + DEMAND_WINDOW);
        let idle = if self.waiting == 0 { seconds } else { 0.0 };
        self.window.idle += idle;
        if now >= ends {
            // A long idle time goes into one window, and older ones are dropped as usual.
            let length = (DEMAND_WINDOW + (now - ends)).as_secs_f64();
            let rate = f64::from(self.window.answers) * DEMAND_WINDOW.as_secs_f64() / length;
            self.windows.push_back(DemandWindow {
                answers: rate.ceil() as u32,
                idle: self.window.idle / length,
                longest: self.window.longest,
            });
            while self.windows.len() > DEMAND_WINDOWS {
                self.windows.pop_front();
            }
            self.window = DemandWindow::default();
            self.window_ends = Some(now + DEMAND_WINDOW);
        }
        self.now = now;
    }

    fn end_round(&mut self, length: Duration) {
        let Round { answers, latencies, area, queued, .. } = self.round;
        let generation = self.limit.max(FEWEST as usize);
        let seconds = length.as_secs_f64();
        let latency = latencies / f64::from(answers.max(1));
        let long = length >= LONG_ROUND && seconds >= 4.0 * latency && answers >= FEWEST;
        // A far too high latency is clear before all answers have come.
        let alarm = self.base.is_some_and(|base| latency > ALARM * base)
            && answers as usize >= generation.div_ceil(4).max(FEWEST as usize);
        let enough = answers >= ENOUGH || length >= SHORT_ROUND || self.mode == ControllerMode::Starting;
        let complete = enough && answers as usize >= generation || long || alarm;
        if length < SHORTEST_ROUND || !complete || latency <= 0.0 || area <= 0.0 {
            return;
        }
        // A queue makes latencies uneven, too. Rounds without one show those of the origin.
        let has_queue = self.base.is_none_or(|base| latency > base * ABOVE);
        let chance = self.round.chance();
        if !has_queue || self.round.failures > 0 {
            self.chance = chance.max(self.chance * REMEMBERED);
        }
        let chance = self.chance;
        let measured = MeasuredRound { latency, in_flight: area / seconds, queued: queued / seconds, chance };
        // A latency that rose while fewer were in flight shows a change in between, and nothing
        // else yet.
        let elasticity = self.before.and_then(|before| {
            let fewer = (before.in_flight / measured.in_flight).ln() >= PROVING;
            let test = fewer && latency <= before.latency * CHANGED;
            measured.elasticity(&before).filter(|_| test)
        });
        // The first requests, and requests that a doubled limit releases at once, meet a growing
        // queue. Their latency is not comparable.
        let burst = self.base.is_none() || self.why == LimitReason::Starting;
        // The latency of a round during which the origin changed is not reliable either.
        let sudden = !std::mem::replace(&mut self.alarmed, alarm) && alarm;
        let base = self.learn(&measured, elasticity);
        let (target, why) = self.decide(&measured, base, elasticity);
        let (target, why) = self.not_below_finest(&measured, target, why);
        self.before = Some(measured).filter(|_| !burst && !sudden);
        self.change(target, why);
        self.begin_round();
    }

    fn begin_round(&mut self) {
        self.round = Round::default();
        if self.in_flight <= self.limit {
            self.round.begun = Some(self.now);
        }
    }

    /// Updates the origin's own latency from a round. `elasticity` is that of a cut.
    fn learn(&mut self, measured: &MeasuredRound, elasticity: Option<f64>) -> f64 {
        let latency = measured.latency;
        let base = match self.base {
            // The first requests leave together: the first answers had the shortest queue.
            None => self.round.early,
            Some(base) if latency < base * BELOW => latency,
            // Among many rounds, one is the lowest by chance.
            Some(base) if latency < base => base + (latency - base) / 4.0,
            // Fewer in flight, and the latency stayed: it is the origin's own.
            Some(base) if latency > base * ABOVE && elasticity.is_some_and(|part| part > ELASTIC) => {
                if measured.queued > 0.5 {
                    self.mode = ControllerMode::Starting;
                }
                latency
            }
            Some(base) => base,
        };
        if latency <= base * ABOVE {
            self.confirmed = self.now;
        }
        self.base = Some(base);
        base
    }

    /// The next limit, not yet rounded or bounded.
    fn decide(&mut self, measured: &MeasuredRound, base: f64, elasticity: Option<f64>) -> (f64, LimitReason) {
        let ratio = base / measured.latency;
        let full = measured.in_flight * ratio; // just fills the origin, or is known to fit
        if let Some(needed) = self.demand(measured) {
            self.mode = ControllerMode::Cruising { linear: 0 };
            let allowed = SPARE * full + full.sqrt().max(SLACK);
            return if needed <= allowed.max(self.limit as f64) {
                (needed, LimitReason::Demand)
            } else {
                (allowed, LimitReason::Growing)
            };
        }
        match self.mode {
            ControllerMode::Starting if ratio >= EVEN && self.rate == 0.0 => {
                return (LEAP * full, LimitReason::Starting);
            }
            ControllerMode::Starting if ratio * FULL >= 1.0 => {
                return (START_GAIN * full + SLACK, LimitReason::Starting);
            }
            ControllerMode::Starting => return self.drain(measured, full),
            ControllerMode::Draining => {
                let found = elasticity.is_some_and(|part| part > ELASTIC);
                match measured.latency / base {
                    // Still above `base`: the queue is not empty yet.
                    above
                        if above > ABOVE && !found && (DRAIN * full).ceil() < measured.in_flight.floor() =>
                    {
                        return (DRAIN * full, LimitReason::Draining);
                    }
                    // The minimum is reached, so the queue is not ours.
                    above if above > ABOVE && !found => {
                        self.mode = ControllerMode::Cruising { linear: 0 };
                        (self.base, self.confirmed) = (Some(measured.latency), self.now);
                        return (wanted(measured.in_flight, measured.chance), LimitReason::Growing);
                    }
                    // It fell in step with the cut: `base` may be lower still.
                    _ if !found && self.in_step(measured) && self.limit > SMALL => {
                        return (0.7 * measured.in_flight, LimitReason::Draining);
                    }
                    // Back to the previous limit, corrected by `base`.
                    _ => {
                        self.mode = ControllerMode::Cruising { linear: 0 };
                        let full = if found { full } else { full.max(self.rate * base) };
                        return (wanted(full, measured.chance), LimitReason::Growing);
                    }
                }
            }
            ControllerMode::Cruising { .. } => {}
        }
        let ControllerMode::Cruising { linear } = &mut self.mode else {
            return (wanted(full, measured.chance), LimitReason::Growing);
        };
        let queued = measured.queued > 0.9;
        *linear = if queued && ratio * ABOVE >= 1.0 { linear.saturating_add(1) } else { 0 };
        if *linear >= 3 && self.limit < self.most {
            self.mode = ControllerMode::Starting;
            return (START_GAIN * full + SLACK, LimitReason::Starting);
        }
        let believed = BELIEVED.as_secs_f64().max(BELIEVED_LATENCIES * measured.latency);
        if queued && (self.now.saturating_sub(self.confirmed)).as_secs_f64() > believed {
            return self.drain(measured, full);
        }
        let target = wanted(full, measured.chance);
        (target, if target > self.limit as f64 { LimitReason::Growing } else { LimitReason::Latency })
    }

    /// Requests that are answered faster than any timer fires are always allowed. A drain below
    /// that ends here, because the allowed queue would hide its end.
    fn not_below_finest(
        &mut self,
        measured: &MeasuredRound,
        target: f64,
        why: LimitReason,
    ) -> (f64, LimitReason) {
        let finest = FINEST.as_secs_f64() * measured.in_flight / measured.latency;
        if target >= finest {
            return (target, why);
        }
        if why != LimitReason::Draining {
            return (finest, why);
        }
        (self.mode, self.confirmed) = (ControllerMode::Cruising { linear: 0 }, self.now);
        (finest, LimitReason::Latency)
    }

    fn drain(&mut self, measured: &MeasuredRound, full: f64) -> (f64, LimitReason) {
        self.mode = ControllerMode::Draining;
        self.rate = measured.in_flight / measured.latency;
        (DRAIN * full, LimitReason::Draining)
    }

    /// Whether the latency fell like the number in flight, so that the origin was still full.
    fn in_step(&self, measured: &MeasuredRound) -> bool {
        let elasticity = self.before.and_then(|before| measured.elasticity(&before));
        elasticity.is_some_and(|part| part < IN_STEP)
    }

    /// The limit that the trainer's demand needs, if the trainer is the bottleneck.
    fn demand(&mut self, measured: &MeasuredRound) -> Option<f64> {
        self.windows.back().filter(|window| window.idle > IDLE)?;
        let usual = self.windows.iter().map(|window| window.longest).max()?;
        if self.waiting > usual + usual / 2 && measured.queued > 0.9 {
            // The demand has risen: earlier windows are void.
            self.windows.clear();
            (self.window, self.window_ends) = (DemandWindow::default(), Some(self.now + DEMAND_WINDOW));
            self.mode = ControllerMode::Starting;
            return None;
        }
        let most = self.windows.iter().map(|window| window.answers).max()?;
        Some(SPARE * f64::from(most) / DEMAND_WINDOW.as_secs_f64() * measured.latency + SLACK)
    }

    fn change(&mut self, target: f64, why: LimitReason) {
        let limit = self.limit as f64;
        let target = target.clamp((limit * CUT).floor(), LEAP * limit);
        let settled = why != LimitReason::Draining;
        if settled && (target - limit).abs() <= limit * DEAD_BAND && target < self.most as f64 {
            return;
        }
        let target = if why == LimitReason::Draining { target.ceil() } else { target.round() };
        let limit = (target as usize).clamp(1, self.most);
        if limit != self.limit {
            (self.limit, self.why) = (limit, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;

    /// An origin with `places` slots and a latency. Further requests wait. There is always more to
    /// read.
    struct SimulatedOrigin {
        places: usize,
        latency: Duration,
        controller: Controller,
        now: Duration,
        started: VecDeque<Duration>,
        ends: BinaryHeap<Reverse<(Duration, Duration)>>,
    }

    impl SimulatedOrigin {
        fn new(policy: AdaptivePolicy, places: usize, latency: Duration) -> Self {
            let controller = Controller::new(policy);
            Self {
                places,
                latency,
                controller,
                now: Duration::ZERO,
                started: VecDeque::new(),
                ends: BinaryHeap::new(),
            }
        }

        fn fill(&mut self) {
            while self.started.len() + self.ends.len() < self.controller.limit() {
                self.started.push_back(self.now);
            }
            while self.ends.len() < self.places
                && let Some(started) = self.started.pop_front()
            {
                self.ends.push(Reverse((self.now + self.latency, started)));
            }
            self.controller.load(self.now, self.started.len() + self.ends.len(), 1000);
        }

        fn run(&mut self, until: Duration, mut each: impl FnMut(&Controller, Duration)) {
            self.fill();
            while let Some(&Reverse((at, started))) = self.ends.peek()
                && at < until
            {
                self.ends.pop();
                self.now = at;
                self.controller.finished(at, started, true);
                each(&self.controller, at);
                self.fill();
            }
        }
    }

    fn up_to(most: usize) -> AdaptivePolicy {
        AdaptivePolicy::up_to(NonZeroUsize::new(most).unwrap())
    }

    #[test]
    fn controller_tolerates_a_clock_that_goes_back() {
        let mut controller = Controller::new(AdaptivePolicy::default());
        let at = Duration::from_millis;
        controller.load(at(100), 1, 0);
        controller.load(at(50), 40, 3);
        for _ in 0..1000 {
            controller.finished(at(20), at(300), true);
        }
        assert!((1..=1024).contains(&controller.limit()));
    }

    proptest::proptest! {
        #[test]
        fn within_its_bounds_whatever_happens(
            first in 1usize..100,
            most in 1usize..300,
            events in proptest::collection::vec(
                (0u64..50_000, 0u64..100_000, proptest::bool::weighted(0.8), 0usize..400, 0usize..100),
                0..2000,
            ),
        ) {
            let policy = up_to(most).beginning_at(NonZeroUsize::new(first).unwrap());
            let mut controller = Controller::new(policy);
            let mut now = Duration::ZERO;
            for (step, latency, is_answered, in_flight, waiting) in events {
                now += Duration::from_micros(step);
                let started = now.saturating_sub(Duration::from_micros(latency));
                controller.finished(now, started, is_answered);
                controller.load(now, in_flight, waiting);
                assert!((1..=most).contains(&controller.limit()));
            }
        }
    }

    /// Eight seconds of a run of an origin, from second `from` on: lowest and highest limit, number
    /// of changes, and mean number of used slots.
    fn watched(places: usize, latency: Duration, from: u64) -> (usize, usize, u32, f64) {
        let mut origin = SimulatedOrigin::new(up_to(1024), places, latency);
        let begin = Duration::from_secs(from);
        origin.run(begin, |_, _| {});
        let (mut low, mut high, mut changes, mut last) = (usize::MAX, 0, 0, origin.controller.limit());
        let (mut area, mut before) = (0.0, begin);
        origin.run(begin + Duration::from_secs(8), |controller, now| {
            let limit = controller.limit();
            (low, high) = (low.min(limit), high.max(limit));
            changes += u32::from(limit != last);
            area += (now - before).as_secs_f64() * limit.min(places) as f64;
            (last, before) = (limit, now);
        });
        (low, high, changes, area / 8.0)
    }

    /// Each round found the origin full and drained it below the requests that it answers within a
    /// millisecond.
    #[test]
    fn drain_below_the_minimum_ends_at_once() {
        for (places, latency_us) in [(43, 519), (252, 531), (464, 600), (464, 690)] {
            let (low, high, changes, _) = watched(places, Duration::from_micros(latency_us), 4);
            assert!(changes <= 8, "{changes} changes, {low}..{high} for {places} places, {latency_us} us");
        }
    }

    /// More requests than fill the origin only queue in it.
    #[test]
    // semantics: FAIL-7
    fn requests_beyond_the_knee_are_few() {
        for places in [8, 32, 128] {
            for latency_ms in [2, 10, 40] {
                let (low, high, _, used) = watched(places, Duration::from_millis(latency_ms), 10);
                println!("knee {places} at {latency_ms} ms: {low} to {high}, {used:.1} used");
                assert!(high as f64 <= 1.25 * places as f64, "{low}..{high} for {places}, {latency_ms} ms");
                assert!(used >= 0.95 * places as f64, "{used} of {places} used, {latency_ms} ms");
            }
        }
    }

    proptest::proptest! {
        // Each is twelve seconds of an origin.
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
        #[test]
        fn limit_settles_on_the_capacity_of_the_origin(
            places in 1usize..500,
            latency_us in 500u64..60_000,
        ) {
            let (low, high, changes, used) = watched(places, Duration::from_micros(latency_us), 4);
            // Never far from the knee, seldom changed, and hardly ever below it.
            let knee = places as f64;
            let finest = knee / (latency_us as f64 / 1e6) * FINEST.as_secs_f64();
            assert!(high as f64 <= (1.6 * knee + 8.0).max(1.1 * finest + 1.0), "{low}..{high} for {places}");
            assert!(low as f64 >= 0.5 * knee - 1.0, "{low}..{high} for {places}");
            assert!(changes <= 8 * 8, "{changes} changes in 8 s");
            assert!(used >= 0.95 * knee, "{used} of {places} used");
        }
    }
}
