//! How long callers have waited for samples.
//!
//! Time counts once, however many callers wait: from the first waiter until none is left. A worker
//! that prefetches for its trainer counts as waiting, because it cannot be distinguished from the
//! trainer itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The waiting time so far.
#[derive(Debug, Default)]
pub(super) struct WaitTime(Mutex<WaitSpans>);

#[derive(Debug, Default)]
struct WaitSpans {
    /// How many callers wait now, and since when any does.
    waiting: usize,
    since: Option<Instant>,
    waited: Duration,
    /// The first request since the last pause, and the last answer.
    first: Option<Instant>,
    last: Option<Instant>,
    /// The time before that pause.
    before: Duration,
    /// A pause begins when the last waiter is done: workers continue for a while after an epoch
    /// that ended early.
    pausing: bool,
}

/// A caller waits until this is dropped.
#[derive(Debug)]
pub(super) struct WaitGuard(Arc<WaitTime>);

impl WaitTime {
    /// A caller begins to wait.
    pub(super) fn begin(self: &Arc<Self>) -> WaitGuard {
        self.lock().begin(Instant::now());
        WaitGuard(Arc::clone(self))
    }

    /// Another epoch follows: the time until its first request does not count.
    pub(super) fn pause(&self) {
        self.lock().pause();
    }

    /// The time from the first request to the last answer, and the waiting time in it.
    pub(super) fn read(&self) -> (Duration, Duration) {
        self.lock().read(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, WaitSpans> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.0.lock().end(Instant::now());
    }
}

impl WaitSpans {
    fn begin(&mut self, now: Instant) {
        self.waiting += 1;
        self.since.get_or_insert(now);
        self.first.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.last = Some(now);
        self.waiting -= 1;
        if self.waiting == 0
            && let Some(since) = self.since.take()
        {
            self.waited += now.saturating_duration_since(since);
            if self.pausing {
                self.pause();
            }
        }
    }

    fn pause(&mut self) {
        self.pausing = self.waiting > 0;
        if !self.pausing
            && let (Some(first), Some(last)) = (self.first.take(), self.last.take())
        {
            self.before += last.saturating_duration_since(first);
        }
    }

    fn read(&self, now: Instant) -> (Duration, Duration) {
        let last = if self.waiting > 0 { Some(now) } else { self.last };
        let until = |last: Instant, since: Option<Instant>| {
            since.map_or(Duration::ZERO, |since| last.saturating_duration_since(since))
        };
        let whole = last.map_or(Duration::ZERO, |last| until(last, self.first));
        (self.before + whole, self.waited + until(now, self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_waits_count_once_and_pauses_not_at_all() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut spans = WaitSpans::default();
        let read = |spans: &WaitSpans, second| {
            let (whole, waited) = spans.read(at(second));
            (whole.as_secs(), waited.as_secs())
        };
        assert_eq!(read(&spans, 1), (0, 0));
        spans.begin(at(1));
        spans.begin(at(2));
        assert_eq!(read(&spans, 4), (3, 3));
        spans.end(at(5));
        assert_eq!(read(&spans, 6), (5, 5), "one of them still waits");
        spans.end(at(7));
        // Time between two waits counts as time, but time after the last one does not.
        assert_eq!(read(&spans, 50), (6, 6));
        spans.begin(at(10));
        spans.end(at(11));
        assert_eq!(read(&spans, 50), (10, 7));
        spans.pause();
        assert_eq!(read(&spans, 50), (10, 7));
        spans.begin(at(100));
        assert_eq!(read(&spans, 102), (12, 9));
        // A pause does not interrupt a waiter.
        spans.pause();
        spans.end(at(103));
        assert_eq!(read(&spans, 200), (13, 10));
        // The pause begins after the last waiter.
        spans.begin(at(300));
        spans.end(at(301));
        assert_eq!(read(&spans, 400), (14, 11));
    }

    #[test]
    fn answered_caller_waits_no_longer() {
        let wait_time = Arc::new(WaitTime::default());
        let (one, other) = (wait_time.begin(), wait_time.begin());
        assert_eq!(wait_time.lock().waiting, 2);
        drop((one, other));
        assert_eq!(wait_time.lock().waiting, 0);
        wait_time.pause();
        let (whole, waited) = wait_time.read();
        assert_eq!(whole, waited, "all of it is waiting time");
    }
}
