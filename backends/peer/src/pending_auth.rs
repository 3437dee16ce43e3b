//! Connections that have not authenticated yet.
//!
//! Their number is bounded. A new connection evicts another one when the limit is reached: first a
//! connection that has not named this job, otherwise the oldest. A rank names the job at once and
//! completes its handshake in two round trips. Ten thousand silent connections therefore evict each
//! other. Refusing new connections instead would let the first attackers lock all ranks out for the
//! duration of the handshake timeout.
//!
//! Refused connections are logged once a minute, in one line with their number.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_connection::WireError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use foreread_tier::lock;

/// How often refused connections are logged.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(60);

/// The connections of one listener that have not authenticated.
#[derive(Debug)]
pub(crate) struct PendingAuth {
    most: usize,
    queue: Mutex<VecDeque<PendingConnection>>,
}

#[derive(Debug)]
struct PendingConnection {
    named_job: Arc<AtomicBool>,
    /// Dropping it notifies the connection's task.
    _evicted: oneshot::Sender<()>,
}

/// A slot among the pending connections, released when dropped.
#[derive(Debug)]
pub(crate) struct AuthSlot {
    pending: Arc<PendingAuth>,
    /// Set once the connection has named this job.
    pub(crate) named_job: Arc<AtomicBool>,
    /// Resolves when another connection evicts this one.
    pub(crate) evicted: oneshot::Receiver<()>,
}

impl PendingAuth {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), queue: Mutex::default() }
    }

    /// Adds a connection. Evicts another one if necessary.
    pub(crate) fn admit(self: &Arc<Self>) -> AuthSlot {
        let mut queue = lock(&self.queue);
        if queue.len() >= self.most {
            evict(&mut queue);
        }
        let (sender, evicted) = oneshot::channel();
        let named_job = Arc::new(AtomicBool::new(false));
        queue.push_back(PendingConnection { named_job: Arc::clone(&named_job), _evicted: sender });
        drop(queue);
        AuthSlot { pending: Arc::clone(self), named_job, evicted }
    }

    /// Evicts one connection, if there is any.
    pub(crate) fn evict(&self) {
        evict(&mut lock(&self.queue));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).len()
    }
}

/// Evicts a connection that has not named this job, otherwise the oldest.
fn evict(queue: &mut VecDeque<PendingConnection>) {
    let silent = queue.iter().position(|waiting| !waiting.named_job.load(Relaxed));
    queue.remove(silent.unwrap_or(0));
}

impl Drop for AuthSlot {
    fn drop(&mut self) {
        let is_other = |waiting: &PendingConnection| !Arc::ptr_eq(&waiting.named_job, &self.named_job);
        lock(&self.pending.queue).retain(is_other);
    }
}

/// Counts refused connections and logs them once a minute.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    label: &'static str,
    /// Connections that are not logged yet, and when the last line was written.
    since: Mutex<(u64, Option<Instant>)>,
}

impl RefusalLog {
    pub(crate) fn new(label: &'static str) -> Self {
        Self { label, since: Mutex::default() }
    }

    /// Writes a line if it is due. `last` is the connection that was refused just now.
    pub(crate) fn note(&self, last: Option<(&str, &WireError)>) {
        let Some(count) = self.count(last.is_some(), Instant::now()) else { return };
        let (from, error) = last.unzip();
        let error = error.map(tracing::field::display);
        tracing::warn!(count, last = from, error, "refused connections of {}", self.label);
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
        let pending = Arc::new(PendingAuth::new(3));
        let mut slots: Vec<AuthSlot> = (0..3).map(|_| pending.admit()).collect();
        slots[0].named_job.store(true, Relaxed);
        let out = |slot: &mut AuthSlot| slot.evicted.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        slots.push(pending.admit());
        assert_eq!(slots.iter_mut().map(out).collect::<Vec<_>>(), [false, true, false, false]);
        slots.iter().for_each(|slot| slot.named_job.store(true, Relaxed));
        slots.push(pending.admit());
        assert_eq!(slots.iter_mut().map(out).collect::<Vec<_>>(), [true, true, false, false, false]);
        assert_eq!(pending.len(), 3);
        drop(slots);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn refusals_are_logged_at_once_and_then_once_a_minute() {
        let (log, start) = (RefusalLog::new("unauthenticated peers"), Instant::now());
        assert_eq!(log.count(true, start), Some(1));
        for second in 1..60 {
            assert_eq!(log.count(true, start + Duration::from_secs(second)), None);
        }
        assert_eq!(log.count(false, start + LOG_EVERY), Some(59));
        assert_eq!(log.count(false, start + LOG_EVERY * 5), None, "nothing to write");
        assert_eq!(log.count(true, start + LOG_EVERY * 6), Some(1));
    }
}
