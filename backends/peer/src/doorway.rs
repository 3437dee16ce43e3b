//! Connections that have not authenticated yet.
//!
//! Their number is bounded. A new connection evicts another one when the limit is reached: first
//! one that has not named this job, otherwise the oldest. A rank names the job at once and
//! completes its handshake in two round trips. Ten thousand silent connections therefore evict each
//! other. Refusing new connections instead would let the first attackers lock all ranks out for the
//! duration of the handshake timeout.
//!
//! Refused connections are logged once a minute, in one line with their number.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::{WireError, lock};

/// How often refused connections are logged.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(60);

/// The connections of one listener that have not authenticated.
#[derive(Debug)]
pub(crate) struct Doorway {
    most: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    spoke: Arc<AtomicBool>,
    /// Dropping it notifies the connection's task.
    _out: oneshot::Sender<()>,
}

/// A place among the pending connections, released when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    doorway: Arc<Doorway>,
    number: u64,
    /// Set once the connection has named this job.
    pub(crate) spoke: Arc<AtomicBool>,
    /// Resolves when another connection evicts this one.
    pub(crate) out: oneshot::Receiver<()>,
}

impl Doorway {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), inside: Mutex::default() }
    }

    /// Adds a connection. Evicts another one if necessary.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        let mut inside = lock(&self.inside);
        if inside.waiting.len() >= self.most {
            inside.push_out();
        }
        let (sender, out) = oneshot::channel();
        let spoke = Arc::new(AtomicBool::new(false));
        let number = inside.next;
        inside.next += 1;
        inside.waiting.push_back(Waiting { number, spoke: Arc::clone(&spoke), _out: sender });
        drop(inside);
        Place { doorway: Arc::clone(self), number, spoke, out }
    }

    /// Evicts one connection, if there is any.
    pub(crate) fn push_out(&self) {
        lock(&self.inside).push_out();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.inside).waiting.len()
    }
}

impl Inside {
    fn push_out(&mut self) {
        let silent = self.waiting.iter().position(|waiting| !waiting.spoke.load(Relaxed));
        self.waiting.remove(silent.unwrap_or(0));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.doorway.inside).waiting.retain(|waiting| waiting.number != self.number);
    }
}

/// Counts refused connections and logs them once a minute.
#[derive(Debug)]
pub(crate) struct StrangerLog {
    whom: &'static str,
    /// Connections that are not logged yet, and when the last line was written.
    since: Mutex<(u64, Option<Instant>)>,
}

impl StrangerLog {
    pub(crate) fn new(whom: &'static str) -> Self {
        Self { whom, since: Mutex::default() }
    }

    /// Writes a line if it is due. `last` is the connection that was refused just now.
    pub(crate) fn note(&self, last: Option<(&str, &WireError)>) {
        let Some(count) = self.count(last.is_some(), Instant::now()) else { return };
        let (from, error) = last.unzip();
        let error = error.map(tracing::field::display);
        tracing::warn!(count, last = from, error, "refused connections of {}", self.whom);
    }

    /// The number to log now, if any.
    fn count(&self, one_more: bool, now: Instant) -> Option<u64> {
        let mut since = lock(&self.since);
        let (count, last) = &mut *since;
        *count += u64::from(one_more);
        let early = last.is_some_and(|last| now.duration_since(last) < LOG_EVERY);
        if early || *count == 0 {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_are_evicted_before_the_oldest() {
        let doorway = Arc::new(Doorway::new(3));
        let mut places: Vec<Place> = (0..3).map(|_| doorway.enter()).collect();
        places[0].spoke.store(true, Relaxed);
        let out = |place: &mut Place| place.out.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        places.push(doorway.enter());
        assert_eq!(places.iter_mut().map(out).collect::<Vec<_>>(), [false, true, false, false]);
        places.iter().for_each(|place| place.spoke.store(true, Relaxed));
        places.push(doorway.enter());
        assert_eq!(places.iter_mut().map(out).collect::<Vec<_>>(), [true, true, false, false, false]);
        assert_eq!(doorway.len(), 3);
        drop(places);
        assert_eq!(doorway.len(), 0);
    }

    #[test]
    fn refusals_are_logged_at_once_and_then_once_a_minute() {
        let (log, start) = (StrangerLog::new("strangers"), Instant::now());
        assert_eq!(log.count(true, start), Some(1));
        for second in 1..60 {
            assert_eq!(log.count(true, start + Duration::from_secs(second)), None);
        }
        assert_eq!(log.count(false, start + LOG_EVERY), Some(59));
        assert_eq!(log.count(false, start + LOG_EVERY * 5), None, "nothing to write");
        assert_eq!(log.count(true, start + LOG_EVERY * 6), Some(1));
    }
}
