//! How many requests are worth having under way: the decision, without a clock and without a runtime.
//!
//! The model is Little's law. A store that answers after a latency of its own, `base`, and gives at most `rate`
//! answers a second has `rate * base` requests inside of it when it is just full; more only queue. Neither number is
//! known and both change, so the controller measures in *rounds*: about one generation of requests under one limit,
//! of which it keeps the mean latency and the mean number under way. Their quotient is the rate.
//!
//! * The next limit is `GAIN * under way * base / latency` and its square root. While the store is not full the
//!   latency is `base` and the limit grows; once it is full the number under way and the latency rise together, and the
//!   formula stands still at `GAIN * rate * base`, whatever the limit was before: a fifth of it queues, and nothing
//!   oscillates.
//! * *Starting*: the gain is 2 until a round's latency says that the store is full, so a thousand requests are reached
//!   in seven round trips, and never more than twice what fills the store.
//! * `base` falls with every round whose latency is lower. It rises only on proof that the latency is not our own
//!   doing: fewer requests under way, and the latency did not fall with them. Every cut is such a test, so a store
//!   that slows down is told from one that is overloaded within two rounds. Where no round has confirmed `base` for a
//!   while, the limit goes to just below `rate * base` for a round to test it (*draining*).
//! * Where the queue outside of the store runs empty, the trainer is the bottleneck: the limit becomes what its
//!   demand over the last second needs.
//! * What a store refuses because it is asked too often says nothing of its latency: that is the rate's business.
//! * What the store answers within a millisecond is always allowed: a page cache is not fed one read at a time.
//!
//! The mean and not the minimum of latencies makes `base`: Little's law is about means, and a store with jitter would
//! be starved by its luckiest answer. The price is that rounds cannot be shorter than a few answers, and that a round
//! below capacity is paid now and then for knowing `base` (under one per cent of the time).
//!
//! Sources: Little 1961; slow start and draining from BBR (Cardwell et al., ACM Queue 14(5), 2016); the limit from a
//! ratio of latencies from TCP Vegas (Brakmo and Peterson, 1995) and Netflix's concurrency-limits ("gradient").

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

/// What is kept under way relative to what just fills the store.
const GAIN: f64 = 1.25;
/// The same while starting.
const START_GAIN: f64 = 2.0;
/// The same at the very beginning, as long as no answer comes later than the first ones.
const LEAP: f64 = 4.0;
/// How even that is.
const EVEN: f64 = 0.98;
/// Starting ends when the latency is above `base` by this factor.
const FULL: f64 = 4.0 / 3.0;
/// Requests that are allowed beyond that at least, for the sake of small numbers.
const SLACK: f64 = 2.0;
/// What is kept under way, relative to what just fills the store, while testing `base`.
const DRAIN: f64 = 0.85;
/// How much a latency may be above or below `base` and count as the same.
const ABOVE: f64 = 1.1;
const BELOW: f64 = 0.93;
/// The part of a change of the number under way that has to show in the rate for the store not to have been full.
const ELASTIC: f64 = 0.6;
/// The part below which it was.
const IN_STEP: f64 = 0.15;
/// The smallest change of the number under way (as a logarithm) that says anything, and that proves something.
const TELLING: f64 = 0.15;
const PROVING: f64 = 0.3;
/// A limit that is not worth draining further.
const SMALL: usize = 2;
/// A latency that rose by more than this during a test makes it void.
const CHANGED: f64 = 1.2;
/// The most that one round takes away.
const CUT: f64 = 0.5;
/// One answer counts at most so many times the mean of those before it.
const OUTLIER: f64 = 4.0;
/// A latency above `base` by this factor ends a round early.
const ALARM: f64 = 2.0;
/// Changes below this part of the limit are not made.
const DEAD_BAND: f64 = 0.08;

/// A queue of requests that are answered in this time is none: breaking batches up to avoid it would cost more.
const FINEST: Duration = Duration::from_millis(1);
/// The shortest round: timers and schedulers are not exact to less.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);
/// After this and a few latencies a round that has the fewest answers ends, whatever the limit.
const LONG_ROUND: Duration = Duration::from_millis(250);
/// Where so many answers take no longer than this, a round has as many, whatever the limit: means of few are noise.
const ENOUGH: u32 = 48;
const SHORT_ROUND: Duration = Duration::from_millis(100);
/// The fewest answers of a round.
const FEWEST: u32 = 8;
/// How long `base` is believed without confirmation: this, and so many latencies.
const BELIEVED: Duration = Duration::from_secs(1);
const BELIEVED_LATENCIES: f64 = 16.0;
/// Demand is counted in windows of this length, of which the last few are kept.
const DEMAND_WINDOW: Duration = Duration::from_millis(250);
const DEMAND_WINDOWS: usize = 4;
/// The part of a window without a queue that makes it one in which the trainer was the bottleneck.
const IDLE: f64 = 0.05;

/// The bounds within which a limit adapts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptivePolicy {
    /// The limit at the beginning (at most `most`).
    pub first: NonZeroUsize,
    /// What the limit never exceeds.
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

/// LimitReason a limit is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitReason {
    /// It has not been changed.
    #[default]
    Fixed,
    /// Nothing is known of the store yet, or it has become faster: doubling.
    Starting,
    /// More under way was answered no later.
    Growing,
    /// Answers came later without coming more often.
    Latency,
    /// For one round less than the store can do, to learn its own latency.
    Draining,
    /// The trainer needs no more.
    Demand,
    /// The store asked to be asked less.
    Throttled,
}

impl LimitReason {
    /// A word for it, as it stands in reports and in metrics' labels.
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

/// What one round measured.
#[derive(Clone, Copy, Debug)]
struct MeasuredRound {
    latency: f64,
    under_way: f64,
    /// The part of the round in which requests waited for a place.
    queued: f64,
}

impl MeasuredRound {
    /// How much of the change of the number under way since `before` the rate has followed: 1 where the store has
    /// room, 0 where it is full; `None` where the change is too small to tell.
    fn elasticity(&self, before: &Self) -> Option<f64> {
        let change = (self.under_way / before.under_way).ln();
        (change.abs() >= TELLING).then(|| 1.0 - (self.latency / before.latency).ln() / change)
    }
}

/// A round in the making.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// When no more than the limit were under way; what started before does not count.
    begun: Option<Duration>,
    answers: u32,
    latencies: f64,
    /// The mean latency of the first few answers, as far as they have come.
    early: f64,
    area: f64,
    queued: f64,
}

/// Demand in one window of time.
#[derive(Clone, Copy, Debug, Default)]
struct DemandWindow {
    answers: u32,
    /// The time, later the part of the time, in which nobody waited for a place.
    idle: f64,
    /// The most who did.
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

/// What to keep under way of a store that `full` requests just fill: the square root is for chance, which is relatively
/// the greater the fewer they are.
fn wanted(full: f64) -> f64 {
    GAIN * full + full.max(0.0).sqrt().max(SLACK)
}

/// The state machine. Times are those of any one clock that does not go back; a time that does is taken as no time
/// passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controller {
    most: usize,
    limit: usize,
    why: LimitReason,
    mode: ControllerMode,
    round: Round,
    before: Option<MeasuredRound>,
    /// Whether the last round ended early.
    alarmed: bool,
    /// Answers a second before draining last began; 0 before the first time.
    rate: f64,
    /// The store's own latency in seconds, and when a round last agreed with it.
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
    /// One that knows nothing yet.
    pub(crate) fn new(policy: AdaptivePolicy) -> Self {
        let limit = policy.first.min(policy.most).get();
        Self { most: policy.most.get(), limit, ..Self::default() }
    }

    /// How many requests may be under way: at least 1, never more than the policy allows.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// LimitReason it is that.
    pub(crate) fn why(&self) -> LimitReason {
        self.why
    }

    /// From `now` on so many requests are under way, and so many wait for a place.
    pub(crate) fn load(&mut self, now: Duration, in_flight: usize, waiting: usize) {
        self.pass(now);
        (self.in_flight, self.waiting) = (in_flight, waiting);
        self.window.longest = self.window.longest.max(waiting);
        if self.round.begun.is_none() && in_flight > 0 && in_flight <= self.limit {
            self.round.begun = Some(self.now);
        }
    }

    /// A request that started at `started` has ended; [`load`](Self::load) follows with what is then under way. One that was
    /// not answered says nothing of the store's speed.
    pub(crate) fn finished(&mut self, now: Duration, started: Duration, is_answered: bool) {
        self.pass(now);
        if !is_answered {
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
        if self.round.answers as usize <= self.limit.div_ceil(16) {
            self.round.early = self.round.latencies / f64::from(self.round.answers);
        }
        self.end_round(self.now.saturating_sub(begun));
    }

    /// Time goes by with what is under way.
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
            // Where nothing happened for long it is all put into one window, and older ones are forgotten as usual.
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
        // Far too late is clear before all are in.
        let alarm = self.base.is_some_and(|base| latency > ALARM * base)
            && answers as usize >= generation.div_ceil(4).max(FEWEST as usize);
        let enough = answers >= ENOUGH || length >= SHORT_ROUND || self.mode == ControllerMode::Starting;
        let complete = enough && answers as usize >= generation || long || alarm;
        if length < SHORTEST_ROUND || !complete || latency <= 0.0 || area <= 0.0 {
            return;
        }
        let measured = MeasuredRound { latency, under_way: area / seconds, queued: queued / seconds };
        // A latency that rose while fewer were under way tells of a change in between, and nothing else yet.
        let elasticity = self.before.and_then(|before| {
            let fewer = (before.under_way / measured.under_way).ln() >= PROVING;
            let test = fewer && latency <= before.latency * CHANGED;
            measured.elasticity(&before).filter(|_| test)
        });
        // The first requests, and those that a doubled limit lets go at once, find a queue that is still growing:
        // nothing can be compared with their latency.
        let burst = self.base.is_none() || self.why == LimitReason::Starting;
        // Nor with that of a round in whose middle the store has changed.
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

    /// What a round says of the store's own latency; `elasticity` is that of a cut.
    fn learn(&mut self, measured: &MeasuredRound, elasticity: Option<f64>) -> f64 {
        let latency = measured.latency;
        let base = match self.base {
            // All of the first requests leave together: the first to be answered had the least of a queue.
            None => self.round.early,
            Some(base) if latency < base * BELOW => latency,
            // Of many rounds one is the lowest by chance alone.
            Some(base) if latency < base => base + (latency - base) / 4.0,
            // Fewer under way, and the latency stayed: it is the store's own.
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
        let full = measured.under_way * ratio; // what just fills the store, or is known to fit into it
        if let Some(needed) = self.demand(measured) {
            self.mode = ControllerMode::Cruising { linear: 0 };
            let allowed = wanted(full);
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
                    // Still above what was known: the queue is not gone yet.
                    above
                        if above > ABOVE && !found && (DRAIN * full).ceil() < measured.under_way.floor() =>
                    {
                        return (DRAIN * full, LimitReason::Draining);
                    }
                    // So few that there is no fewer, and no queue of ours.
                    above if above > ABOVE && !found => {
                        self.mode = ControllerMode::Cruising { linear: 0 };
                        (self.base, self.confirmed) = (Some(measured.latency), self.now);
                        return (wanted(measured.under_way), LimitReason::Growing);
                    }
                    // It fell in step with the cut: there may be a lower one to find.
                    _ if !found && self.in_step(measured) && self.limit > SMALL => {
                        return (0.7 * measured.under_way, LimitReason::Draining);
                    }
                    // Back to what was right before, as `base` now says.
                    _ => {
                        self.mode = ControllerMode::Cruising { linear: 0 };
                        let full = if found { full } else { full.max(self.rate * base) };
                        return (wanted(full), LimitReason::Growing);
                    }
                }
            }
            ControllerMode::Cruising { .. } => {}
        }
        let ControllerMode::Cruising { linear } = &mut self.mode else {
            return (wanted(full), LimitReason::Growing);
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
        let target = wanted(full);
        (target, if target > self.limit as f64 { LimitReason::Growing } else { LimitReason::Latency })
    }

    /// What the store answers sooner than any timer notices is not worth withholding. A drain to below that ends here:
    /// the queue that it is to empty is allowed, so its end would never be seen.
    fn not_below_finest(
        &mut self,
        measured: &MeasuredRound,
        target: f64,
        why: LimitReason,
    ) -> (f64, LimitReason) {
        let finest = FINEST.as_secs_f64() * measured.under_way / measured.latency;
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
        self.rate = measured.under_way / measured.latency;
        (DRAIN * full, LimitReason::Draining)
    }

    /// Whether the latency fell as the number under way did, so that the store was still full.
    fn in_step(&self, measured: &MeasuredRound) -> bool {
        let elasticity = self.before.and_then(|before| measured.elasticity(&before));
        elasticity.is_some_and(|part| part < IN_STEP)
    }

    /// What the trainer's demand needs, where it is the bottleneck.
    fn demand(&mut self, measured: &MeasuredRound) -> Option<f64> {
        self.windows.back().filter(|window| window.idle > IDLE)?;
        let usual = self.windows.iter().map(|window| window.longest).max()?;
        if self.waiting > usual + usual / 2 && measured.queued > 0.9 {
            // More than before is asked for: what was enough until now says nothing.
            self.windows.clear();
            (self.window, self.window_ends) = (DemandWindow::default(), Some(self.now + DEMAND_WINDOW));
            self.mode = ControllerMode::Starting;
            return None;
        }
        let most = self.windows.iter().map(|window| window.answers).max()?;
        Some(GAIN * f64::from(most) / DEMAND_WINDOW.as_secs_f64() * measured.latency + SLACK)
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

    /// A store of `places` places and a latency; requests beyond the places wait. Always more to read.
    struct Store {
        places: usize,
        latency: Duration,
        controller: Controller,
        now: Duration,
        started: VecDeque<Duration>,
        ends: BinaryHeap<Reverse<(Duration, Duration)>>,
    }

    impl Store {
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
            while let Some(Reverse((at, started))) = self.ends.pop()
                && at < until
            {
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
            events in proptest::collection::vec((0u64..50_000, 0u64..100_000, proptest::bool::weighted(0.8), 0usize..400, 0usize..100), 0..2000),
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

    /// What a run of a store shows from its fourth to its twelfth second: the lowest and the highest limit, how often
    /// it changed, and how many places were used in the mean.
    fn watched(places: usize, latency: Duration) -> (usize, usize, u32, f64) {
        let mut store = Store::new(up_to(1024), places, latency);
        store.run(Duration::from_secs(4), |_, _| {});
        let (mut low, mut high, mut changes, mut last) = (usize::MAX, 0, 0, store.controller.limit());
        let (mut area, mut before) = (0.0, Duration::from_secs(4));
        store.run(Duration::from_secs(12), |controller, now| {
            let limit = controller.limit();
            (low, high) = (low.min(limit), high.max(limit));
            changes += u32::from(limit != last);
            area += (now - before).as_secs_f64() * limit.min(places) as f64;
            (last, before) = (limit, now);
        });
        (low, high, changes, area / 8.0)
    }

    /// Each round found the store full and wanted to drain it to less than what it answers within a millisecond.
    #[test]
    fn drain_below_the_minimum_ends_at_once() {
        for (places, latency_us) in [(43, 519), (252, 531), (464, 600), (464, 690)] {
            let (low, high, changes, _) = watched(places, Duration::from_micros(latency_us));
            assert!(changes <= 8, "{changes} changes, {low}..{high} for {places} places, {latency_us} us");
        }
    }

    proptest::proptest! {
        // Each is twelve seconds of a store.
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
        #[test]
        fn limit_settles_on_the_capacity_of_the_store(
            places in 1usize..500,
            latency_us in 500u64..60_000,
        ) {
            let (low, high, changes, used) = watched(places, Duration::from_micros(latency_us));
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
