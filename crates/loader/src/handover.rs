//! Hands complete batches from the driver to the trainer.
//!
//! One lock is held for a push or a pop. The trainer's side works from async code (a waker) and
//! from plain threads. These use a condition variable with a timeout, never `block_on`, so that a
//! caller can check for signals. The report is kept here too, so that it always agrees with the
//! batches taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_oracle::Run;
use foreread_tier::lock;
use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::account::RunAccount;
use crate::batch::Batch;
use crate::core::BATCHING_FRACTION;
use crate::error::LoadError;
use crate::history::History;
use crate::instruments::Instruments;
use crate::look_ahead::{LookAhead, LookAheadTuner};
use crate::report::RunReport;

/// The trainer's actions since the last call of [`Handover::drain_events`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrainerEvents {
    pub(crate) waiting: bool,
    pub(crate) batches_taken: u64,
    pub(crate) released: u64,
    /// The new look-ahead, where it has changed.
    pub(crate) look_ahead: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Handover {
    state: Mutex<HandoverState>,
    trainer: AtomicWaker,
    arrived: Condvar,
    driver: Notify,
    released: AtomicU64,
    /// The driver is woken when this many bytes were released. Fewer wait for the next request of a
    /// batch.
    wake_at: u64,
    began: Instant,
}

#[derive(Debug)]
struct HandoverState {
    run: Run,
    queue: VecDeque<Batch>,
    end: Option<Result<(), LoadError>>,
    waiting_since: Option<Duration>,
    /// Threads that wait for a batch.
    sleepers: usize,
    waiting: bool,
    batches_taken: u64,
    last: Option<(usize, u64)>,
    account: RunAccount,
    history: History,
    tuner: LookAheadTuner,
    new_look_ahead: Option<u64>,
    instruments: Instruments,
}

impl HandoverState {
    fn is_ready(&self) -> bool {
        !self.queue.is_empty() || self.end.is_some()
    }

    /// Records that the trainer waits. Whether it has only just begun to.
    fn request(&mut self, now: Duration) -> bool {
        let is_first = self.waiting_since.is_none();
        if is_first {
            self.waiting_since = Some(now);
            self.waiting = true;
        }
        is_first
    }
}

impl Handover {
    pub(crate) fn new(run: Run, look_ahead: u64) -> Self {
        let state = HandoverState {
            run,
            queue: VecDeque::new(),
            end: None,
            waiting_since: None,
            sleepers: 0,
            waiting: false,
            batches_taken: 0,
            last: None,
            account: RunAccount::default(),
            history: History::default(),
            tuner: LookAheadTuner::new(look_ahead),
            new_look_ahead: None,
            instruments: Instruments::new(look_ahead),
        };
        Self {
            state: Mutex::new(state),
            trainer: AtomicWaker::new(),
            arrived: Condvar::new(),
            driver: Notify::new(),
            released: AtomicU64::new(0),
            wake_at: (look_ahead / BATCHING_FRACTION).max(1),
            began: Instant::now(),
        }
    }

    // ---- the driver's side ----

    pub(crate) fn push(&self, batch: Batch) {
        lock(&self.state).queue.push_back(batch);
        self.wake_trainer();
    }

    /// Ends the run after the queued batches. Only the first end counts.
    pub(crate) fn finish(&self, end: Result<(), LoadError>) {
        lock(&self.state).end.get_or_insert(end);
        self.wake_trainer();
    }

    fn wake_trainer(&self) {
        self.trainer.wake();
        self.arrived.notify_all();
    }

    pub(crate) fn drain_events(&self) -> TrainerEvents {
        let released = self.released.swap(0, Ordering::AcqRel);
        let mut state = lock(&self.state);
        let look_ahead = state.new_look_ahead.take();
        let events = TrainerEvents {
            waiting: state.waiting,
            batches_taken: state.batches_taken,
            released,
            look_ahead,
        };
        (state.waiting, state.batches_taken) = (false, 0);
        events
    }

    /// Waits for an action of the trainer.
    ///
    /// # Cancel safety
    /// Dropping the future loses no action.
    pub(crate) async fn changed(&self) {
        self.driver.notified().await;
    }

    /// Wakes the driver because a budget has room.
    pub(crate) fn wake_driver(&self) {
        self.driver.notify_one();
    }

    /// Called by charges when they end, on any thread.
    pub(crate) fn release(&self, bytes: u64) {
        let before = self.released.fetch_add(bytes, Ordering::AcqRel);
        if before < self.wake_at && before + bytes >= self.wake_at {
            self.driver.notify_one();
        }
    }

    // ---- the trainer's side ----

    /// The next batch, the end (`Some(None)`), or `None` if there is neither yet.
    fn take(&self) -> Option<Option<Result<Batch, LoadError>>> {
        let (item, wakes_driver) = self.take_from(&mut lock(&self.state));
        if wakes_driver {
            self.driver.notify_one();
        }
        item
    }

    /// The same with the lock held. Also returns whether the driver is to be woken.
    fn take_from(&self, state: &mut HandoverState) -> (Option<Option<Result<Batch, LoadError>>>, bool) {
        let now = self.began.elapsed();
        if let Some(batch) = state.queue.pop_front() {
            let requested = state.waiting_since.take().unwrap_or(now);
            // This batch answers the request, unless another thread waits for the next one.
            state.waiting = state.sleepers > 0 && state.queue.is_empty();
            state.waiting_since = state.waiting.then_some(now);
            state.batches_taken += 1;
            state.last = Some((batch.pass, batch.index));
            if let Some(pass) = state.run.pass(batch.pass) {
                state.account.take(&pass, &batch.counts, requested, now);
                state.history.take(&pass, &batch.counts, requested, now);
            }
            state.instruments.batch(&batch.counts, now.saturating_sub(requested));
            if let Some(reach) = state.tuner.taken(batch.counts.reads.total().bytes, requested, now) {
                state.instruments.look_ahead(reach);
                state.new_look_ahead = Some(reach);
            }
            return (Some(Some(Ok(batch))), true);
        }
        match &mut state.end {
            Some(Ok(())) => (Some(None), false),
            Some(end) => {
                // The error is returned once. After that the run is over.
                let error = std::mem::replace(end, Ok(()));
                (Some(error.err().map(Err)), false)
            }
            None => (None, state.request(now)),
        }
    }

    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<Batch, LoadError>>> {
        if let Some(item) = self.take() {
            return Poll::Ready(item);
        }
        self.trainer.register(context.waker());
        // Again, because a batch may have arrived before the waker was registered.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits at most `timeout` for the next batch or the end. `None` after the timeout.
    pub(crate) fn next_timeout(&self, timeout: Duration) -> Option<Option<Result<Batch, LoadError>>> {
        let (item, wakes_driver) = self.take_from(&mut *self.ready(timeout)?);
        if wakes_driver {
            self.driver.notify_one();
        }
        item
    }

    /// Waits at most `timeout` until there is a batch or the end, and takes neither. Whether there
    /// is one.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> bool {
        self.ready(timeout).is_some()
    }

    fn ready(&self, timeout: Duration) -> Option<MutexGuard<'_, HandoverState>> {
        // `None` means unlimited.
        let until = Instant::now().checked_add(timeout);
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let mut state = lock(&self.state);
        loop {
            if state.is_ready() {
                return Some(state);
            }
            let wakes_driver = state.request(self.began.elapsed());
            if left() == Some(Duration::ZERO) {
                drop(state);
                if wakes_driver {
                    self.driver.notify_one();
                }
                return None;
            }
            // Counted under the lock: a thread that takes the next batch must know of this wait.
            state.sleepers += 1;
            if wakes_driver {
                drop(state);
                self.driver.notify_one();
                state = lock(&self.state);
            }
            if !state.is_ready() {
                state = match left() {
                    None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            state.sleepers -= 1;
        }
    }

    pub(crate) fn report(&self) -> RunReport {
        lock(&self.state).account.report().clone()
    }

    pub(crate) fn history(&self) -> History {
        lock(&self.state).history.clone()
    }

    pub(crate) fn look_ahead(&self) -> LookAhead {
        lock(&self.state).tuner.look_ahead()
    }

    /// The pass and the index of the last batch taken.
    pub(crate) fn last_taken(&self) -> Option<(usize, u64)> {
        lock(&self.state).last
    }
}
