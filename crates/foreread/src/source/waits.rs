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
}

/// Somebody waits, until this is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Arc<Waits>);

impl Waits {
    /// Somebody asks now.
    pub(super) fn begin(self: &Arc<Self>) -> Waiting {
        let now = Instant::now();
        let mut spans = self.lock();
        spans.waiting += 1;
        spans.since.get_or_insert(now);
        spans.first.get_or_insert(now);
        Waiting(Arc::clone(self))
    }

    /// What comes next is another epoch: the time until then is nobody's.
    pub(super) fn pause(&self) {
        let mut spans = self.lock();
        if spans.waiting == 0
            && let (Some(first), Some(last)) = (spans.first.take(), spans.last.take())
        {
            spans.before += last.saturating_duration_since(first);
        }
    }

    /// From the first time that somebody asked to the last that somebody had what was asked for; and how much of it was waited.
    pub(super) fn read(&self) -> (Duration, Duration) {
        let spans = self.lock();
        let now = Instant::now();
        let last = if spans.waiting > 0 { Some(now) } else { spans.last };
        let whole = last
            .zip(spans.first)
            .map_or(Duration::ZERO, |(last, first)| last.saturating_duration_since(first));
        let open = spans.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        (spans.before + whole, spans.waited + open)
    }

    fn lock(&self) -> MutexGuard<'_, Spans> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut spans = self.0.lock();
        spans.last = Some(now);
        spans.waiting -= 1;
        if spans.waiting == 0
            && let Some(since) = spans.since.take()
        {
            spans.waited += now.saturating_duration_since(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    #[test]
    fn who_wait_together_are_counted_once_and_pauses_not_at_all() {
        let waits = Arc::new(Waits::default());
        assert_eq!(waits.read(), (Duration::ZERO, Duration::ZERO));
        let (one, other) = (waits.begin(), waits.begin());
        std::thread::sleep(STEP);
        drop(one);
        let (whole, waited) = waits.read();
        assert!(whole >= STEP && waited >= STEP && waited <= whole + STEP);
        drop(other);
        let (whole, waited) = waits.read();
        assert_eq!(whole, waited, "all of the time was waited");

        // What is computed between two waits is part of the time.
        std::thread::sleep(STEP);
        drop(waits.begin());
        let (with_computing, still) = waits.read();
        assert!(with_computing >= whole + STEP && still < waited + STEP);

        waits.pause();
        std::thread::sleep(STEP);
        assert_eq!(waits.read(), (with_computing, still));
        drop(waits.begin());
        assert!(waits.read().0 < with_computing + STEP, "the pause was not counted");
    }
}
