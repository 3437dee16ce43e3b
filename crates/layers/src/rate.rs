//! The tolerated request rate of an origin, learnt from its refusals alone, without a clock and a
//! runtime.
//!
//! A concurrency limit cannot enforce an origin's ceiling on requests per second: 200 per second at
//! a latency of 1 ms are a fifth of a request. So there is also a rate limit. There is none until
//! the origin first refuses a request (503 SlowDown, 429). Then:
//!
//! * An origin at its ceiling refuses the excess and answers the rest, so the rate of *answers*
//!   during refusals is the ceiling. The rate becomes 0.95 of it, and then follows CUBIC's curve:
//!   flat around the old ceiling, then ever steeper. So a raised ceiling is found (five times as
//!   high: in about six seconds). Each time it meets the ceiling again costs a few refused
//!   requests, under one in a hundred.
//! * If hardly any request is answered, the ceiling is unknown. The rate starts at the rate of
//!   answers. It grows by half with each slice of time without refusals (*rising*) until it has met
//!   the ceiling.
//! * Some origins refuse some requests at any rate. A ceiling refuses nothing below it, so refusals
//!   below the last known rate of answers are random. Their fraction is taken for granted, refusals
//!   count only beyond it, and a cut that did not reduce them is reverted.
//!
//! Requests are counted in slices of time by when they *left*, and a slice is judged when its
//! answers have come. Counting by the time of the answer would count refusals first, because they
//! are fast. Only if a quarter or more is refused at once, the judgement is immediate.
//!
//! The price: up to a quarter of refusals counts as random if it does not depend on the rate. One
//! refusal in two hundred is ignored. A ceiling that varies from second to second is followed at
//! its lower end.
//!
//! Sources: CUBIC (RFC 9438), and the AWS SDKs' adaptive retry mode, which uses it for a rate.

use std::collections::VecDeque;
use std::time::Duration;

/// The rate after a refusal, relative to the rate of answers.
const BACKOFF: f64 = 0.95;
/// CUBIC: by this fraction the rate exceeds the old ceiling one unit of time after reaching it
/// again.
const STEEP: f64 = 0.03;
/// The unit of time: the longest of a second, the time of 100 requests, and four latencies.
const UNIT: f64 = 1.0;
const UNIT_REQUESTS: f64 = 100.0;
const UNIT_LATENCIES: f64 = 4.0;
/// The growth factor of a rising rate.
const RISE: f64 = 1.5;
/// The largest divisor of one cut.
const MOST_CUT: f64 = 8.0;
/// The lowest rate, in requests per second.
const MIN_RATE: f64 = 1.0;
/// The minimum length and number of requests of a slice, and its maximum length.
const SLICE: Duration = Duration::from_millis(100);
const SLICE_REQUESTS: u32 = 8;
const LONGEST_SLICE: Duration = Duration::from_secs(1);
/// Slices that wait for answers. Beyond that, the oldest are dropped.
const SLICES: usize = 64;
/// The fraction of refusals that is ignored.
const IGNORED: f64 = 0.005;
/// Refusals above this fraction are never random, and `ALARM` of them are judged at once.
const SEVERE: f64 = 0.25;
const ALARM: u32 = 8;
/// A slice below this fraction of the last rate of answers measures the random refusals.
const BELOW: f64 = 0.98;
/// The fraction of the rate that must be used for it to grow.
const USED: f64 = 0.7;
/// The refusals needed to know the random fraction.
const MIN_REFUSALS: f64 = 3.0;
/// Above this fraction of refusals, the rate of answers is not known well.
const MAX_KNOWN_REFUSALS: f64 = 0.5;
/// Requests that are judged together where a slice has few.
const RECENT: f64 = 128.0;
/// Requests that measure the random fraction.
const CHANCE_SAMPLE: f64 = 2048.0;
/// The expected refusals whose absence disproves the random fraction.
const DISPROVED: f64 = 6.0;
/// A cut was useless if this fraction of the earlier refusals remains.
const UNCHANGED: f64 = 0.6;
/// Unused time that is credited: the precision of timers.
const CREDIT: Duration = Duration::from_millis(5);

/// The current decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum RatePace {
    /// No limit.
    #[default]
    Free,
    /// A rate in requests per second that grows with every slice without refusals.
    Rising(f64),
    /// CUBIC's curve around a known ceiling, `units` of time after it was met.
    Around { peak: f64, units: f64 },
}

impl RatePace {
    fn per_second(self) -> Option<f64> {
        match self {
            Self::Free => None,
            Self::Rising(rate) => Some(rate),
            Self::Around { peak, units } => {
                let flat = ((1.0 - BACKOFF) / STEEP).cbrt();
                Some((peak * (1.0 + STEEP * (units - flat).powi(3))).clamp(MIN_RATE, 1e9))
            }
        }
    }
}

/// The requests of one slice of time.
#[derive(Clone, Copy, Debug)]
struct RateSlice {
    begun: Duration,
    left: u32,
    admitted: u32,
    refused: u32,
    /// When the next slice began, and the rate limit of this one. `None` while it is current.
    ended: Option<(Duration, Option<f64>)>,
}

impl RateSlice {
    fn new(begun: Duration) -> Self {
        Self { begun, left: 0, admitted: 0, refused: 0, ended: None }
    }

    fn seconds(&self, now: Duration) -> f64 {
        self.ended.map_or(now, |(ended, _)| ended).saturating_sub(self.begun).as_secs_f64()
    }
}

/// Requests and refusals. Old ones fade.
#[derive(Clone, Copy, Debug, Default)]
struct RefusalCounts {
    all: f64,
    refused: f64,
}

impl RefusalCounts {
    fn add(&mut self, slice: &RateSlice, most: f64) {
        self.all += f64::from(slice.left);
        self.refused += f64::from(slice.refused);
        if self.all > most {
            self.all /= 2.0;
            self.refused /= 2.0;
        }
    }

    fn part(&self) -> f64 {
        if self.all > 0.0 { self.refused / self.all } else { 0.0 }
    }

    /// Whether there are more refusals than `chance` explains. Small numbers vary more, so they get
    /// more tolerance.
    fn exceeds(&self, chance: f64) -> bool {
        let (usual, spread, few) =
            if chance > IGNORED { (1.25 * chance, 3.0, 1.5) } else { (IGNORED, 2.0, 0.0) };
        let expected = self.all * usual;
        self.refused >= 2.0 && self.refused > expected + spread * expected.sqrt() + few
    }
}

/// The rate of requests that share one ceiling. Times are those of one monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    pace: RatePace,
    /// When the next request may leave.
    clear: Duration,
    /// Requests that left before this time are ignored.
    changed: Duration,
    slices: VecDeque<RateSlice>,
    /// Refusals since the last change.
    recent: RefusalCounts,
    /// Random refusals, once known: of requests sent below the earlier rate of answers.
    below: RefusalCounts,
    /// The decision before a cut and its fraction of refusals. Until the cut is confirmed or
    /// reverted, further cuts do not replace it: at low rates a single cut proves nothing. `since`
    /// counts the refusals after it.
    cut: Option<(RatePace, f64)>,
    since: RefusalCounts,
    /// The lowest rate of answers since that cut. 0 if unknown.
    met: f64,
    /// The mean latency of answers without refusals, in seconds.
    latency: f64,
}

impl Rate {
    /// The rate limit in requests per second. `None` without a limit.
    pub(crate) fn per_second(&self) -> Option<f64> {
        self.pace.per_second()
    }

    /// When the next request may leave. `None` without a limit.
    pub(crate) fn clear(&self) -> Option<Duration> {
        (self.pace != RatePace::Free).then_some(self.clear)
    }

    /// Replaces the decision.
    fn set(&mut self, now: Duration, pace: RatePace) {
        if self.pace == RatePace::Free && pace != RatePace::Free {
            self.clear = now;
        }
        self.pace = pace;
        self.changed = now;
        self.slices.clear();
        self.recent = RefusalCounts::default();
    }

    /// Counts requests that leave now.
    pub(crate) fn left(&mut self, now: Duration, requests: usize) {
        let limit = self.per_second();
        let over = |slice: &RateSlice| {
            let length = now.saturating_sub(slice.begun);
            length >= LONGEST_SLICE || length >= SLICE && slice.left >= SLICE_REQUESTS
        };
        match self.slices.back_mut() {
            _ if now <= self.changed && self.pace != RatePace::Free => {} // as old as the change
            Some(last) if !over(last) => last.left += requests as u32,
            last => {
                if let Some(last) = last {
                    last.ended = Some((now, limit));
                    let last = *last;
                    self.grow_around(&last);
                }
                let mut slice = RateSlice::new(now);
                slice.left = requests as u32;
                self.slices.push_back(slice);
                if self.slices.len() > SLICES {
                    self.slices.pop_front(); // its answers never came
                }
            }
        }
        if let Some(limit) = self.per_second() {
            let step = Duration::from_secs_f64(requests as f64 / limit);
            self.clear = self.clear.max(now.saturating_sub(CREDIT)) + step;
        }
    }

    /// Counts a hedge that left at `started`. Hedges are so few that they do not use up the rate.
    pub(crate) fn other_left(&mut self, started: Duration) {
        if let Some(slice) = self.slices.iter_mut().rev().find(|slice| slice.begun <= started) {
            slice.left += 1;
        }
    }

    /// Counts the answer to a request that left at `started`. Returns whether the rate was cut.
    pub(crate) fn answered(&mut self, now: Duration, started: Duration, is_refused: bool) -> bool {
        if !is_refused {
            let took = now.saturating_sub(started).as_secs_f64();
            self.latency += (took - self.latency) * if self.latency > 0.0 { 1.0 / 32.0 } else { 1.0 };
        }
        if started <= self.changed && self.pace != RatePace::Free {
            return false;
        }
        let Some(slice) = self.slices.iter_mut().rev().find(|slice| slice.begun <= started) else {
            return false;
        };
        *(if is_refused { &mut slice.refused } else { &mut slice.admitted }) += 1;
        is_refused && self.alarm(now) || self.judge(now)
    }

    /// The fraction of random refusals.
    fn chance(&self) -> f64 {
        if self.below.refused >= MIN_REFUSALS { self.below.part().min(SEVERE) } else { 0.0 }
    }

    /// Cuts at once if very many requests are refused.
    fn alarm(&mut self, now: Duration) -> bool {
        let sum = |of: fn(&RateSlice) -> u32| self.slices.iter().map(of).sum::<u32>();
        let (left, admitted, refused) =
            (sum(|slice| slice.left), sum(|slice| slice.admitted), sum(|slice| slice.refused));
        if refused < ALARM || f64::from(refused) < SEVERE * f64::from(left) {
            return false;
        }
        let seconds = self
            .slices
            .front()
            .map_or(0.0, |slice| slice.seconds(now).max(now.saturating_sub(slice.begun).as_secs_f64()));
        let answered = f64::from(admitted) / f64::from(admitted + refused);
        let Some(limit) = self.per_second() else {
            // Requests in flight count as admitted. Later cuts correct that.
            let rate = f64::from(left - refused) / seconds.max(SLICE.as_secs_f64());
            self.cut(now, RatePace::Rising((BACKOFF * rate).max(MIN_RATE)), 1.0 - answered);
            return true;
        };
        let seen = f64::from(admitted) / seconds.max(f64::EPSILON);
        let share = f64::from(left) / seconds.max(f64::EPSILON) * answered;
        self.cut_to(now, seen.max(share).min(limit), 1.0 - answered);
        true
    }

    /// Cuts the rate below the rate of answers. If that is not known well (many refusals, or no
    /// even rate before), the new rate rises from there.
    fn cut_to(&mut self, now: Duration, answered: f64, part: f64) {
        let least = (self.per_second().unwrap_or(0.0) / MOST_CUT).max(MIN_RATE);
        let peak = answered.max(least);
        let known = part < MAX_KNOWN_REFUSALS && self.pace != RatePace::Free;
        self.cut(
            now,
            if known { RatePace::Around { peak, units: 0.0 } } else { RatePace::Rising(BACKOFF * peak) },
            part,
        );
        self.met = if self.met > 0.0 { self.met.min(peak) } else { peak };
    }

    fn cut(&mut self, now: Duration, pace: RatePace, part: f64) {
        if part >= SEVERE || !self.is_undecided() {
            self.cut = Some((self.pace, part));
            self.since = RefusalCounts::default();
            self.met = 0.0;
        }
        self.set(now, pace);
        // The requests in flight may exceed the number that the origin tolerates.
        self.changed += Duration::from_secs_f64(self.latency.min(1.0));
    }

    /// Judges the slices whose answers have come. Returns whether the rate was cut.
    fn judge(&mut self, now: Duration) -> bool {
        let patience = Duration::from_secs_f64((2.0 * self.latency).min(60.0));
        while let Some(first) = self.slices.front().copied() {
            let Some((ended, _)) = first.ended else { return false };
            let answered = first.admitted + first.refused;
            let there = answered >= first.left || now >= ended + patience;
            if !there {
                return false;
            }
            self.slices.pop_front();
            if self.judge_one(now, &first) {
                return true;
            }
        }
        false
    }

    fn judge_one(&mut self, now: Duration, slice: &RateSlice) -> bool {
        let sent = f64::from(slice.left) / slice.seconds(now).max(f64::EPSILON);
        let mut alone = RefusalCounts::default();
        alone.add(slice, f64::INFINITY);
        self.test_chance(&alone, slice, sent);
        if self.take_back(now) {
            return false;
        }
        let chance = self.chance();
        self.recent.add(slice, RECENT);
        // A slice with few requests does not determine the rate of answers.
        let part = match (alone.exceeds(chance), self.recent.exceeds(chance)) {
            (true, _) if slice.refused >= ALARM => alone.part(),
            (true, _) | (_, true) => self.recent.part(),
            (false, false) => {
                self.rise(now, slice, sent);
                return false;
            }
        };
        self.cut_to(now, sent * (1.0 - part), part);
        true
    }

    /// Measures random refusals below the known ceiling, which refuses nothing there.
    fn test_chance(&mut self, alone: &RefusalCounts, slice: &RateSlice, sent: f64) {
        let chance = self.chance();
        let limit = slice.ended.and_then(|(_, limit)| limit).unwrap_or(f64::INFINITY);
        let below = sent.min(limit) <= BELOW * self.met || chance > 0.0 && !alone.exceeds(chance);
        if !below {
            return;
        }
        self.since.add(slice, f64::INFINITY);
        if chance > 0.0 {
            self.below.add(slice, CHANCE_SAMPLE);
            if self.since.all * chance >= DISPROVED && self.since.part() < chance / 2.0 {
                self.below = RefusalCounts::default();
            }
        }
    }

    /// Whether it is still unknown if the cut has reduced the refusals.
    fn is_undecided(&self) -> bool {
        self.cut.is_some_and(|(_, part)| {
            self.since.all * part < MIN_REFUSALS || self.since.part() >= UNCHANGED * part
        })
    }

    /// Reverts a cut that has not reduced the refusals: they are random.
    fn take_back(&mut self, now: Duration) -> bool {
        let Some((before, part)) = self.cut else { return false };
        let same = self.since.part() >= UNCHANGED * part && self.since.part() < SEVERE;
        if self.since.refused < MIN_REFUSALS || !same {
            return false;
        }
        self.below = self.since;
        self.cut = None;
        self.set(now, before);
        true
    }

    /// Raises a rising rate after a slice without refusals.
    fn rise(&mut self, now: Duration, slice: &RateSlice, sent: f64) {
        if let RatePace::Rising(rate) = self.pace
            && sent >= USED * rate
            && slice.begun >= self.changed
        {
            self.set(now, RatePace::Rising((RISE * rate).min(1e9)));
        }
    }

    /// Advances the time on CUBIC's curve while the rate is used.
    fn grow_around(&mut self, slice: &RateSlice) {
        let Some(limit) = self.per_second() else { return };
        let seconds = slice.seconds(slice.begun);
        if let RatePace::Around { peak, units } = &mut self.pace
            && f64::from(slice.left) >= USED * limit * seconds
        {
            *units += seconds / UNIT.max(UNIT_REQUESTS / *peak).max(UNIT_LATENCIES * self.latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn rare_refusals_set_no_rate() {
        let mut rate = Rate::default();
        for request in 0..20_000 {
            rate.left(at(request), 1);
            assert!(!rate.answered(at(request), at(request), request % 400 == 7));
        }
        assert_eq!((rate.per_second(), rate.clear()), (None, None));
    }

    #[test]
    fn refusals_from_before_a_cut_are_ignored() {
        let mut rate = Rate::default();
        rate.left(at(0), 100);
        (0..20).for_each(|_| {
            rate.answered(at(5), at(0), false);
        });
        let cuts = (0..80).filter(|_| rate.answered(at(6), at(0), true)).count();
        assert_eq!(cuts, 1);
        assert!(rate.per_second().is_some_and(|rate| rate < 1000.0), "{rate:?}");
    }

    #[test]
    fn cubic_is_flat_near_the_ceiling_and_steep_far_from_it() {
        let rate = |units| RatePace::Around { peak: 1000.0, units }.per_second().unwrap();
        assert!((rate(0.0) / 950.0 - 1.0).abs() < 1e-9);
        assert!((990.0..=1000.0).contains(&rate(1.0)) && (1000.0..1020.0).contains(&rate(1.8)));
        assert!(rate(6.5) > 5000.0, "{}", rate(6.5));
    }

    /// Simulates `demand` requests per second for a minute. The origin refuses a random fraction
    /// `chance` of all, and the excess above its `ceiling`. Returns the fraction of the demand that
    /// leaves, and the refused fraction of these.
    fn share(demand: f64, chance: f64, ceiling: f64, seed: u64) -> (f64, f64) {
        const SECONDS: f64 = 60.0;
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let (mut rate, mut answers) = (Rate::default(), VecDeque::new());
        let (mut now, mut tokens, mut left, mut refused) = (0.0_f64, 1.0_f64, 0.0, 0.0);
        let instant = Duration::from_secs_f64;
        while now < SECONDS {
            // A program with little processor time sends requests unevenly.
            let pause = (1.5 - f64::from(random.next_u32()) / f64::from(u32::MAX)) / demand;
            let next = (now + pause).max(rate.clear().map_or(0.0, |clear| clear.as_secs_f64()));
            while let Some(&(at, started, is_refused)) = answers.front()
                && at <= next
            {
                rate.answered(instant(at), instant(started), is_refused);
                answers.pop_front();
            }
            tokens = (tokens + (next - now) * ceiling).min(ceiling / 20.0).min(1e9);
            now = next;
            let is_refused = tokens < 1.0 || f64::from(random.next_u32()) < chance * f64::from(u32::MAX);
            tokens -= f64::from(u8::from(!is_refused));
            rate.left(instant(now), 1);
            answers.push_back((now + 0.005, now, is_refused));
            left += 1.0;
            refused += f64::from(u8::from(is_refused));
        }
        (left / demand / SECONDS, refused / left)
    }

    /// Two random refusals in a hundred cut the rate repeatedly, down to 12 requests per second.
    #[test]
    // semantics: FAIL-9
    fn random_refusals_keep_a_low_rate() {
        let demands = [20.0, 100.0, 500.0, 2000.0];
        for (demand, chance) in
            demands.iter().flat_map(|&demand| [0.01, 0.022, 0.05, 0.1].map(|chance| (demand, chance)))
        {
            let mut shares: Vec<f64> =
                (0..20).map(|seed| share(demand, chance, f64::INFINITY, seed).0).collect();
            shares.sort_by(f64::total_cmp);
            println!("{demand}/s, {chance}: {:.2} at least, {:.2} in the middle", shares[0], shares[10]);
            // A minute at 20 requests per second is too short to learn it every time.
            let (least, middle) = if demand < 100.0 { (0.25, 0.9) } else { (0.7, 0.9) };
            assert!(shares[0] >= least && shares[10] >= middle, "{demand}/s, {chance}: {shares:?}");
        }
    }

    #[test]
    fn ceiling_is_kept_where_refusals_are_few() {
        for ceiling in [100.0, 500.0, 2000.0] {
            for seed in 0..20 {
                let (share, refused) = share(3.0 * ceiling, 0.0, ceiling, seed);
                assert!((0.95..=1.05).contains(&(3.0 * share)), "{ceiling}/s: {share}");
                assert!(refused <= 0.04, "{ceiling}/s: {refused} refused");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn within_its_bounds_whatever_happens(
            events in proptest::collection::vec((0u64..2_000, 0usize..40, 0u64..5_000, 0u8..4), 0..3000),
        ) {
            let (mut rate, mut now) = (Rate::default(), at(0));
            for (step, left, ago, answer) in events {
                now += at(step);
                rate.left(now, left);
                for _ in 0..left {
                    rate.answered(now, now.saturating_sub(at(ago)), answer == 0);
                }
                if let Some(rate) = rate.per_second() {
                    assert!((0.9 * MIN_RATE..=1e9).contains(&rate), "{rate}");
                }
                assert!(rate.slices.len() <= SLICES && (0.0..=SEVERE).contains(&rate.chance()));
            }
        }
    }
}
