//! The requests of a job that the agent has not answered.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use foreread_store::attach::JobReads;
use foreread_store::{Received, RequestStream, StoreRequest};
use foreread_tier::{CacheTier, TierError};
use foreread_types::{SampleKey, Tick};
use tokio::sync::oneshot;

use crate::connection::Connection;
use crate::job::{JobOrders, StallTime};

/// Samples of a job by the way they came, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// Samples from the agent.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples that were read directly, because the agent was absent, silent or unable.
    pub direct_samples: u64,
    /// Their bytes.
    pub direct_bytes: u64,
}

/// The state that the tier, the receiver and the announcer share.
#[derive(Default)]
pub(crate) struct ClientLink {
    state: Mutex<LinkState>,
    /// Signals changes that the announcer waits for.
    pub(crate) changed: Condvar,
    /// The furthest position that was requested, and the position that the announcer waits for. A
    /// wake-up for each request would be most of its cost.
    furthest: AtomicU64,
    awaited: AtomicU64,
    samples: AtomicU64,
    bytes: AtomicU64,
    direct_samples: AtomicU64,
    direct_bytes: AtomicU64,
}

/// A request that is not sent.
struct Unsent {
    key: SampleKey,
    due: Tick,
    answer: oneshot::Sender<Bytes>,
}

#[derive(Default)]
pub(crate) struct LinkState {
    connection: Option<Arc<Connection>>,
    /// The cache while there is no connection.
    alone: Option<Arc<dyn CacheTier>>,
    /// Whether the agent has given no sign of life for too long.
    silent: bool,
    /// A warning for the next request that is read directly.
    warning: Option<String>,
    unsent: VecDeque<Unsent>,
    /// By request. A dropped sender has its sample read directly.
    pending: HashMap<u32, oneshot::Sender<Bytes>>,
    /// Since when requests are open without a pause.
    open_since: Option<Instant>,
    /// The agent's reads for this job: on earlier connections, and on this one.
    earlier_reads: JobReads,
    reads: JobReads,
    pub(crate) orders: Option<Arc<dyn JobOrders>>,
    pub(crate) stalled: Option<StallTime>,
    /// Increases with each connection and each set of orders.
    pub(crate) generation: u64,
    /// The memory of the last agent. `None` before the first one.
    capacity: Option<u64>,
    pub(crate) closed: bool,
}

impl Unsent {
    /// The request with the function that a store in this process calls.
    fn answered(self) -> StoreRequest {
        let Self { key, due, answer } = self;
        let answered = move |read: Result<Bytes, TierError>| match read {
            // A receiver that was dropped needs no sample.
            Ok(sample) => drop(answer.send(sample)),
            Err(error) => cannot_read(&error),
        };
        StoreRequest { key, due, answer: Box::new(answered) }
    }
}

/// Its sample is read directly.
fn cannot_read(error: &dyn std::fmt::Display) {
    tracing::debug!(%error, "the agent could not read a sample");
}

impl std::fmt::Debug for ClientLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientLink").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl ClientLink {
    /// Every change is complete before the lock is released, even after a panic.
    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> AgentCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AgentCounts {
            samples: read(&self.samples),
            bytes: read(&self.bytes),
            direct_samples: read(&self.direct_samples),
            direct_bytes: read(&self.direct_bytes),
        }
    }

    pub(crate) fn count(&self, bytes: u64, from_agent: bool) {
        let (samples, total) = match from_agent {
            true => (&self.samples, &self.bytes),
            false => (&self.direct_samples, &self.direct_bytes),
        };
        samples.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Queues a request. `None` if the agent is absent or silent.
    pub(crate) fn request(&self, key: SampleKey, due: Tick) -> Option<oneshot::Receiver<Bytes>> {
        let mut state = self.lock();
        if state.silent || state.connection.is_none() {
            let warning = state.warning.take();
            drop(state);
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
            }
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        state.unsent.push_back(Unsent { key, due, answer });
        drop(state);
        let before = self.furthest.fetch_max(due.0, Ordering::SeqCst);
        let awaited = self.awaited.load(Ordering::SeqCst);
        if before < awaited && awaited <= due.0 {
            // With the lock, the announcer waits already, or has not looked.
            drop(self.lock());
            self.changed.notify_all();
        }
        Some(receiver)
    }

    /// The furthest position that was requested.
    pub(crate) fn furthest(&self) -> Tick {
        Tick(self.furthest.load(Ordering::SeqCst))
    }

    /// Whether a position was requested. Otherwise a request of it will signal a change.
    pub(crate) fn has_reached(&self, position: Tick) -> bool {
        // Sequentially consistent with requests: one of both sees the other.
        self.awaited.store(position.0, Ordering::SeqCst);
        self.furthest() >= position
    }

    /// Sends the queued requests, as many as the agent takes.
    pub(crate) fn send(&self) {
        let mut state = self.lock();
        if state.unsent.is_empty() {
            return;
        }
        let Some(connection) = state.connection.clone() else { return };
        match &*connection {
            Connection::Served(_, stream) => self.send_to(stream, state),
            Connection::Here(store) => {
                let unsent = std::mem::take(&mut state.unsent);
                drop(state);
                if store.request(unsent.into_iter().map(Unsent::answered).collect()).is_err() {
                    self.give_up(true);
                }
            }
        }
    }

    /// Sends them through a socket.
    fn send_to(&self, stream: &RequestStream, mut state: MutexGuard<'_, LinkState>) {
        let mut abandoned = VecDeque::new();
        while !state.unsent.is_empty() {
            let samples: Vec<_> = state.unsent.iter().take(512).map(|one| (one.key, one.due)).collect();
            let Ok(numbers) = stream.send(&samples) else {
                // The receiver notices the end, too.
                abandoned = std::mem::take(&mut state.unsent);
                break;
            };
            if numbers.is_empty() {
                break;
            }
            state.open_since.get_or_insert_with(Instant::now);
            for number in numbers {
                if let Some(Unsent { answer, .. }) = state.unsent.pop_front() {
                    state.pending.insert(number, answer);
                }
            }
        }
        drop(state);
        drop(abandoned);
    }

    /// Hands samples to their requests. A sample without one is released, and a failed one is read
    /// directly.
    pub(crate) fn distribute(&self, received: Vec<Received>) {
        let mut answers = Vec::with_capacity(received.len());
        let mut state = self.lock();
        for (number, received) in received {
            let answer = state.pending.remove(&number);
            answers.push((answer, received));
        }
        if state.pending.is_empty() {
            state.open_since = None;
        }
        drop(state);
        for (answer, received) in answers {
            match (answer, received) {
                // A receiver that was dropped needs no sample.
                (Some(answer), Ok(sample)) => drop(answer.send(Bytes::from_owner(sample))),
                (Some(_), Err(error)) => cannot_read(&error),
                (None, _) => {}
            }
        }
    }

    /// Uses a new connection.
    pub(crate) fn connect(&self, connection: Arc<Connection>, capacity: u64) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        (state.connection, state.silent, state.warning) = (Some(connection), false, None);
        state.capacity = Some(capacity);
        state.earlier_reads = state.all_reads();
        state.reads = JobReads::default();
        state.generation += 1;
        let alone = state.alone.take();
        drop(state);
        // Its memory is the agent's again.
        drop(alone);
        self.changed.notify_all();
    }

    /// The memory of the last agent. `None` before the first one.
    pub(crate) fn capacity(&self) -> Option<u64> {
        self.lock().capacity
    }

    /// Waits until a time. `false` if the job ends before.
    pub(crate) fn wait_until(&self, time: Instant) -> bool {
        let mut state = self.lock();
        while !state.closed {
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Has all open requests read directly, and says whether there were any. `end` says whether the
    /// connection has ended.
    pub(crate) fn give_up(&self, end: bool) -> bool {
        let mut state = self.lock();
        state.silent = true;
        if end {
            state.connection = None;
            state.generation += 1;
        }
        state.open_since = None;
        let open = (std::mem::take(&mut state.unsent), std::mem::take(&mut state.pending));
        drop(state);
        self.changed.notify_all();
        !open.0.is_empty() || !open.1.is_empty()
    }

    /// Logs a warning before the next request that is read directly. A job that has read all of its
    /// samples gets none.
    pub(crate) fn warn_later(&self, warning: String) {
        self.lock().warning = Some(warning);
    }

    /// Uses a cache until there is a connection.
    pub(crate) fn set_alone(&self, cache: Arc<dyn CacheTier>) {
        self.lock().alone = Some(cache);
    }

    /// The cache while there is no connection.
    pub(crate) fn alone(&self) -> Option<Arc<dyn CacheTier>> {
        self.lock().alone.clone()
    }

    /// Notes that the agent answers again.
    pub(crate) fn resume(&self) {
        self.lock().silent = false;
    }

    /// Since when requests are open without a pause.
    pub(crate) fn open_since(&self) -> Option<Instant> {
        self.lock().open_since
    }

    /// Sets the orders to announce, in place of earlier ones.
    pub(crate) fn set_orders(&self, orders: Arc<dyn JobOrders>) {
        let mut state = self.lock();
        state.orders = Some(orders);
        state.generation += 1;
        self.furthest.store(0, Ordering::SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    /// The current connection.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.lock().connection()
    }

    /// Notes the agent's reads for this job on a connection.
    pub(crate) fn set_reads(&self, connection: &Connection, reads: JobReads) {
        let mut state = self.lock();
        if state.connection.as_deref().is_some_and(|current| std::ptr::eq(current, connection)) {
            state.reads = reads;
        }
    }

    /// The reads of agents for this job, as far as this process knows.
    pub(crate) fn reads(&self) -> JobReads {
        self.lock().all_reads()
    }

    /// Whether the job has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Ends all threads.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl LinkState {
    /// Whether the agent has given no sign of life for too long.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent
    }

    fn all_reads(&self) -> JobReads {
        let (earlier, now) = (self.earlier_reads, self.reads);
        JobReads {
            samples: earlier.samples + now.samples,
            bytes: earlier.bytes + now.bytes,
            requests: earlier.requests + now.requests,
        }
    }

    /// The current connection.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.clone()
    }
}
