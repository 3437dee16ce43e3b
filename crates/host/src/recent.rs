//! Rates and shares over the last seconds, out of totals.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time that they cover.
const COVERED: Duration = Duration::from_secs(5);

/// The most values that are kept.
const MOST: usize = 64;

/// The growth of a total.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent(VecDeque<(Instant, f64)>);

impl Recent {
    /// Notes the total at a time.
    pub(crate) fn add(&mut self, now: Instant, total: f64) {
        while self.0.len() >= MOST || self.0.front().is_some_and(|(at, _)| now - *at > COVERED) {
            self.0.pop_front();
        }
        self.0.push_back((now, total));
    }

    /// The growth per second, at `now`. Zero until two totals are known.
    pub(crate) fn per_second(&self, now: Instant) -> f64 {
        let (Some((begun, first)), Some((_, last))) = (self.0.front(), self.0.back()) else { return 0.0 };
        let seconds = now.saturating_duration_since(*begun).as_secs_f64();
        if seconds > 0.0 { (last - first).max(0.0) / seconds } else { 0.0 }
    }
}

/// The share of its time that a trainer waits. It says how long it has waited in all.
#[derive(Clone, Debug, Default)]
pub(crate) struct StallShare(Recent);

impl StallShare {
    /// Notes how many seconds the trainer has waited.
    pub(crate) fn add(&mut self, now: Instant, stalled_seconds: f64) {
        self.0.add(now, stalled_seconds);
    }

    /// The share of the last seconds, from 0 to 1.
    pub(crate) fn share(&self, now: Instant) -> f64 {
        self.0.per_second(now).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_the_last_seconds_only() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut recent = Recent::default();
        assert_eq!(recent.per_second(at(0)), 0.0);
        for second in 0..10 {
            recent.add(at(second), 1000.0 * second as f64);
        }
        assert_eq!(recent.per_second(at(9)), 1000.0);
        for second in 10..20 {
            recent.add(at(second), 9000.0);
        }
        assert_eq!(recent.per_second(at(19)), 0.0);
        let mut stall = StallShare::default();
        stall.add(at(0), 3.0);
        stall.add(at(2), 4.0);
        assert_eq!(stall.share(at(2)), 0.5);
    }
}
