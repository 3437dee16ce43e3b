//! Tunes the look-ahead to the trainer's demand.
//!
//! The look-ahead that the user sets is a limit. A trainer that takes 5 MB/s gains nothing from 256
//! MiB of waiting samples, which are 50 seconds early. The look-ahead bridges the time in which an
//! origin is slow or silent. So it is measured in seconds of the trainer's demand: the bytes that
//! it takes per second, without the time it waits.
//!
//! * The look-ahead shrinks only after a window of time has shown the demand.
//! * After a wait the trainer gets the whole look-ahead, because the reduced one was not enough.
//! * It is never less than a few batches or a few megabytes. They are cheap, and reads should leave
//!   in groups.
//!
//! The price: an origin that is silent for longer than [`TIME_AHEAD`] stalls the trainer, where the
//! whole look-ahead might have bridged it. Times are arguments, so tests need no clock.

use std::time::Duration;

/// The demand that is kept ahead: twice the five seconds after which a silent read has long been
/// abandoned.
const TIME_AHEAD: Duration = Duration::from_secs(10);

/// How long the whole look-ahead is used after a wait.
const WAIT_MEMORY: Duration = Duration::from_secs(60);

/// Demand is measured over at least this time and this many batches.
const WINDOW: Duration = Duration::from_secs(2);
const WINDOW_BATCHES: u32 = 8;

/// A shorter wait is the hand-over itself.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// The lower bound of the look-ahead: this, and this many of the largest batches.
const MIN_AHEAD: u64 = 16 << 20;
const MIN_BATCHES: u64 = 4;

/// Smaller relative changes are not made.
const DEAD_BAND: u64 = 8;

/// How far reads run ahead of the trainer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookAhead {
    /// The user's limit, at most an epoch.
    pub allowed: u64,
    /// The part in use now.
    pub now: u64,
    /// The smallest part in use so far.
    pub lowest: u64,
}

/// One measuring window.
#[derive(Clone, Copy, Debug, Default)]
struct DemandWindow {
    began: Duration,
    waited: Duration,
    batches: u32,
    bytes: u64,
    largest: u64,
}

#[derive(Debug)]
pub(crate) struct LookAheadTuner {
    look_ahead: LookAhead,
    /// `None` before the first batch, which is always waited for.
    window: Option<DemandWindow>,
    full_until: Duration,
}

impl LookAheadTuner {
    pub(crate) fn new(allowed: u64) -> Self {
        let look_ahead = LookAhead { allowed, now: allowed, lowest: allowed };
        Self { look_ahead, window: None, full_until: Duration::ZERO }
    }

    pub(crate) fn look_ahead(&self) -> LookAhead {
        self.look_ahead
    }

    /// Records that the trainer took a batch of `bytes` bytes at `now`, requested at `requested`.
    /// Returns the new look-ahead if it changes.
    pub(crate) fn taken(&mut self, bytes: u64, requested: Duration, now: Duration) -> Option<u64> {
        let Some(window) = &mut self.window else {
            self.window = Some(DemandWindow { began: now, ..DemandWindow::default() });
            return None;
        };
        let waited = now.saturating_sub(requested);
        if waited >= MIN_WAIT {
            window.waited += waited;
            self.full_until = now + WAIT_MEMORY;
        }
        window.batches += 1;
        window.bytes = window.bytes.saturating_add(bytes);
        window.largest = window.largest.max(bytes);
        let long = now.saturating_sub(window.began) >= WINDOW && window.batches >= WINDOW_BATCHES;
        // After a wait the look-ahead grows at once, without a further window.
        if now < self.full_until {
            if long {
                self.window = Some(DemandWindow { began: now, ..DemandWindow::default() });
            }
            return self.set(self.look_ahead.allowed);
        }
        if !long {
            return None;
        }
        let wanted = window.wanted(now);
        self.window = Some(DemandWindow { began: now, ..DemandWindow::default() });
        self.set(wanted)
    }

    fn set(&mut self, wanted: u64) -> Option<u64> {
        let LookAhead { allowed, now, lowest } = self.look_ahead;
        let wanted = wanted.min(allowed);
        let small = wanted.abs_diff(now) < now / DEAD_BAND && wanted != allowed;
        if wanted == now || small {
            return None;
        }
        self.look_ahead = LookAhead { allowed, now: wanted, lowest: lowest.min(wanted) };
        Some(wanted)
    }
}

impl DemandWindow {
    /// The demand in [`TIME_AHEAD`] of a trainer that never waits.
    fn wanted(&self, now: Duration) -> u64 {
        let busy = now.saturating_sub(self.began).saturating_sub(self.waited).max(Duration::from_millis(1));
        let bytes = u128::from(self.bytes) * TIME_AHEAD.as_millis() / busy.as_millis();
        let appetite = u64::try_from(bytes).unwrap_or(u64::MAX);
        appetite.max(MIN_AHEAD).max(self.largest.saturating_mul(MIN_BATCHES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: u64 = 256 << 20;

    /// Takes batches of `bytes` every `every` seconds between `from` and `until`, waiting `wait`
    /// seconds for each. Returns the time of the last one.
    fn train(tuner: &mut LookAheadTuner, bytes: u64, every: f64, wait: f64, from: f64, until: f64) -> f64 {
        let mut now = from;
        while now < until {
            now += every + wait;
            let requested = Duration::from_secs_f64(now - wait);
            tuner.taken(bytes, requested, Duration::from_secs_f64(now));
        }
        now
    }

    #[test]
    fn slow_trainer_releases_unneeded_look_ahead() {
        let mut tuner = LookAheadTuner::new(ALLOWED);
        let now = train(&mut tuner, 3_200_000, 0.64, 0.0, 0.0, 4.0);
        assert_eq!(tuner.look_ahead().now, ALLOWED, "before there is a window of batches");
        train(&mut tuner, 3_200_000, 0.64, 0.0, now, 20.0);
        let look_ahead = tuner.look_ahead();
        // 5 MB/s.
        assert!((49_000_000..=51_000_000).contains(&look_ahead.now), "{look_ahead:?}");
        assert_eq!((look_ahead.lowest, look_ahead.allowed), (look_ahead.now, ALLOWED));
    }

    #[test]
    fn fast_trainer_keeps_the_whole_look_ahead() {
        let mut tuner = LookAheadTuner::new(ALLOWED);
        train(&mut tuner, 6_400_000, 0.064, 0.0, 0.0, 30.0);
        assert_eq!(tuner.look_ahead(), LookAhead { allowed: ALLOWED, now: ALLOWED, lowest: ALLOWED });
    }

    #[test]
    // semantics: CACHE-7
    fn waiting_trainer_gets_the_whole_look_ahead_for_a_while() {
        let mut tuner = LookAheadTuner::new(ALLOWED);
        train(&mut tuner, 320_000, 0.064, 0.0, 0.0, 10.0);
        let given_back = tuner.look_ahead().now;
        assert!(given_back < ALLOWED / 4);
        let (requested, now) = (Duration::from_millis(10_100), Duration::from_millis(10_150));
        assert_eq!(tuner.taken(320_000, requested, now), Some(ALLOWED));
        train(&mut tuner, 320_000, 0.064, 0.0, 10.2, 69.0);
        assert_eq!(tuner.look_ahead().now, ALLOWED);
        train(&mut tuner, 320_000, 0.064, 0.0, 69.0, 76.0);
        assert!(tuner.look_ahead().now < ALLOWED / 4);
        assert_eq!(tuner.look_ahead().lowest, given_back);
    }

    #[test]
    fn waiting_time_is_not_demand() {
        let window =
            DemandWindow { waited: Duration::from_secs(9), bytes: 10_000_000, ..DemandWindow::default() };
        assert_eq!(window.wanted(Duration::from_secs(10)), 100_000_000);
    }

    #[test]
    fn look_ahead_keeps_a_few_batches_and_megabytes() {
        let mut tuner = LookAheadTuner::new(1 << 30);
        train(&mut tuner, 1000, 0.1, 0.0, 0.0, 10.0);
        assert_eq!(tuner.look_ahead().now, MIN_AHEAD);
        let mut tuner = LookAheadTuner::new(1 << 30);
        train(&mut tuner, 100 << 20, 100.0, 0.0, 0.0, 2000.0);
        assert_eq!(tuner.look_ahead().now, 400 << 20);
        let mut tuner = LookAheadTuner::new(1 << 20);
        train(&mut tuner, 1000, 0.1, 0.0, 0.0, 10.0);
        assert_eq!(tuner.look_ahead().now, 1 << 20, "more than is allowed");
    }

    #[test]
    fn overflowing_demand_is_bounded() {
        let mut tuner = LookAheadTuner::new(u64::MAX);
        train(&mut tuner, u64::MAX, 0.5, 0.0, 0.0, 10.0);
        assert_eq!(tuner.look_ahead().now, u64::MAX);
    }
}
