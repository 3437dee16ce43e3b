//! How long whoever asks for samples has waited.
//!
//! Time is counted once, however many wait: from when somebody begins to until nobody does any longer. A worker that reads
//! ahead for its trainer waits like the trainer itself, because from here nobody can tell the two apart.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What has been waited so far.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<Spans>);

#[derive(Debug, Default)]
struct Spans {
    /// How many wait now, and since when anybody does.
    waiting: usize,
    since: Option<Instant>,
    waited: Duration,
    /// When it was first asked since the last pause, and when the last one who asked had what was asked for.
    first: Option<Instant>,
    last: Option<Instant>,
    /// The time before that pause.
    before: Duration,
    /// There is to be one when nobody waits any longer: workers go on for a while behind an epoch that was left early.
    pausing: bool,
}

/// Somebody waits, until this is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Waits>);

impl Waits {
    /// Somebody asks now.
    pub(super) fn begin(self: &Arc<Self>) -> Waiting {
        self.lock().begin(Instant::now());
        Waiting(Arc::clone(self))
    }

    /// What comes next is another epoch: the time until then is nobody's.
    pub(super) fn pause(&self) {
        self.lock().pause();
    }

    /// From the first time that somebody asked to the last that somebody had what was asked for; and how much of it was waited.
    pub(super) fn read(&self) -> (Duration, Duration) {
        self.lock().read(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Spans> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lock().end(Instant::now());
    }
}

impl Spans {
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
    fn who_wait_together_are_counted_once_and_pauses_not_at_all() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut spans = Spans::default();
        let read = |spans: &Spans, second| {
            let (whole, waited) = spans.read(at(second));
            (whole.as_secs(), waited.as_secs())
        };
        assert_eq!(read(&spans, 1), (0, 0));
        spans.begin(at(1));
        spans.begin(at(2));
        assert_eq!(read(&spans, 4), (3, 3));
        spans.end(at(5));
        assert_eq!(read(&spans, 6), (5, 5), "one of them waits still");
        spans.end(at(7));
        // What is computed between two waits is part of the time, and what comes after the last one is not.
        assert_eq!(read(&spans, 50), (6, 6));
        spans.begin(at(10));
        spans.end(at(11));
        assert_eq!(read(&spans, 50), (10, 7));
        spans.pause();
        assert_eq!(read(&spans, 50), (10, 7));
        spans.begin(at(100));
        assert_eq!(read(&spans, 102), (12, 9));
        // Who waits is not cut off by it.
        spans.pause();
        spans.end(at(103));
        assert_eq!(read(&spans, 200), (13, 10));
        // And when nobody waits any longer, it is the pause that was asked for.
        spans.begin(at(300));
        spans.end(at(301));
        assert_eq!(read(&spans, 400), (14, 11));
    }

    #[test]
    fn who_has_what_was_asked_for_waits_no_longer() {
        let waits = Arc::new(Waits::default());
        let (one, other) = (waits.begin(), waits.begin());
        assert_eq!(waits.lock().waiting, 2);
        drop((one, other));
        assert_eq!(waits.lock().waiting, 0);
        waits.pause();
        let (whole, waited) = waits.read();
        assert_eq!(whole, waited, "all of it was waited");
    }
}
