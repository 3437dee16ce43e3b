//! How many bytes a connection brings in a second, lately.
//!
//! Two marks, of which the older lies between half a second and a second back while bytes come: enough to tell what is
//! going to come in the next second, for the price of a comparison where bytes have come.

use std::time::Duration;

use tokio::time::Instant;

/// How far apart the marks are at least.
const APART: Duration = Duration::from_millis(500);

/// What has come when, roughly.
#[derive(Debug)]
pub(crate) struct Pace {
    older: (Instant, u64),
    newer: (Instant, u64),
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { older: (now, 0), newer: (now, 0) }
    }

    /// By `now`, `came` bytes have come in all.
    pub(crate) fn note(&mut self, now: Instant, came: u64) {
        if now.duration_since(self.newer.0) >= APART {
            self.older = std::mem::replace(&mut self.newer, (now, came));
        }
    }

    /// How many bytes will come in `time`, if they go on coming as they did.
    pub(crate) fn bytes_in(&self, time: Duration, now: Instant, came: u64) -> u64 {
        let (since, had) = self.older;
        let seconds = now.duration_since(since).as_secs_f64();
        if seconds <= 0.0 {
            return 0;
        }
        ((came - had) as f64 / seconds * time.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_came_lately_counts_and_what_came_long_ago_does_not() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.bytes_in(SECOND, start, 0), 0);
        let mut came = 0;
        let mut at = |milliseconds: u64, by: u64| {
            came += by;
            let now = start + Duration::from_millis(milliseconds);
            pace.note(now, came);
            pace.bytes_in(SECOND, now, came)
        };
        for step in 1..=20 {
            at(step * 100, 1_000);
        }
        assert_eq!(at(2100, 1_000), 10_000);
        // A rest, and then faster.
        at(60_000, 5_000);
        at(60_500, 5_000);
        assert_eq!(at(61_000, 5_000), 10_000);
    }
}
