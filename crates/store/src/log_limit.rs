//! Limits a log message: at once, then once a minute with the count.
//!
//! Every process in the network namespace can connect, so its actions must not fill the log. The
//! price is that the messages in between are lost, except for their count.

use std::time::{Duration, Instant};

/// The shortest time between two messages.
const EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    count: u64,
    last: Option<Instant>,
}

impl LogLimit {
    /// Counts one event. Returns the count if it is to be logged now.
    pub(crate) fn note(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        self.due(now)
    }

    /// The count to log now, if any.
    pub(crate) fn due(&mut self, now: Instant) -> Option<u64> {
        if self.count == 0 || self.due_at().is_some_and(|at| now < at) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }

    /// When the events counted since the last message are due. `None` without events.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.last.filter(|_| self.count > 0).map(|last| last + EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: WORKER-7
    fn log_limit_writes_at_once_and_then_once_a_minute() {
        let (mut limit, start) = (LogLimit::default(), Instant::now() + Duration::from_secs(3600));
        assert_eq!((limit.due_at(), limit.due(start)), (None, None));
        assert_eq!(limit.note(start), Some(1));
        for second in 1..60 {
            assert_eq!(limit.note(start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.due_at(), Some(start + EVERY));
        assert_eq!(limit.due(start + EVERY), Some(59));
        assert_eq!(limit.due(start + EVERY * 5), None, "nothing to write");
        assert_eq!(limit.note(start + EVERY * 6), Some(1));
    }
}
