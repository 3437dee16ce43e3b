//! Where the driver leaves complete batches and the trainer takes them.
//!
//! One lock, held for a push or a pop. The trainer's side works from async code (a waker) and from plain threads (a
//! condition variable with a time-out, never `block_on`, so that a caller can look for signals in between). The account
//! is kept here because this is where batches change hands: what the trainer has seen and what the report says can
//! then never differ.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_oracle::Run;
use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::account::RunAccount;
use crate::batch::Batch;
use crate::core::BATCHING_FRACTION;
use crate::error::LoadError;
use crate::instruments::Instruments;
use crate::look_ahead::{LookAhead, LookAheadTuner};
use crate::report::RunReport;

/// What the trainer has done since the driver looked last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrainerEvents {
    pub(crate) waiting: bool,
    pub(crate) batches_taken: u64,
    pub(crate) released: u64,
    /// The look-ahead from now on, where it has changed.
    pub(crate) look_ahead: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Handover {
    state: Mutex<HandoverState>,
    trainer: AtomicWaker,
    arrived: Condvar,
    driver: Notify,
    released: AtomicU64,
    /// The driver is woken when this many bytes have been given back; fewer wait for the next batch to be asked for.
    wake_at: u64,
    began: Instant,
}

#[derive(Debug)]
struct HandoverState {
    run: Run,
    queue: VecDeque<Batch>,
    end: Option<Result<(), LoadError>>,
    waiting_since: Option<Duration>,
    /// Threads that sleep until there is a batch.
    sleepers: usize,
    waiting: bool,
    batches_taken: u64,
    last: Option<(usize, u64)>,
    account: RunAccount,
    tuner: LookAheadTuner,
    new_look_ahead: Option<u64>,
    instruments: Instruments,
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

    /// A panic elsewhere cannot leave the state half changed: every change is a few assignments.
    fn lock(&self) -> MutexGuard<'_, HandoverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- the driver's side ----

    pub(crate) fn push(&self, batch: Batch) {
        self.lock().queue.push_back(batch);
        self.wake_trainer();
    }

    /// Ends the run after the batches that are there; only the first end counts.
    pub(crate) fn finish(&self, end: Result<(), LoadError>) {
        self.lock().end.get_or_insert(end);
        self.wake_trainer();
    }

    fn wake_trainer(&self) {
        self.trainer.wake();
        self.arrived.notify_all();
    }

    pub(crate) fn drain_events(&self) -> TrainerEvents {
        let released = self.released.swap(0, Ordering::AcqRel);
        let mut state = self.lock();
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

    /// Until the trainer has done something. Cancel safe: what it did is kept.
    pub(crate) async fn changed(&self) {
        self.driver.notified().await;
    }

    /// Wakes the driver: something that it waits for has room.
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

    /// The next batch, the end (`Some(None)`), or `None`: not yet.
    fn take(&self) -> Option<Option<Result<Batch, LoadError>>> {
        let (item, wakes_driver) = self.take_from(&mut self.lock());
        if wakes_driver {
            self.driver.notify_one();
        }
        item
    }

    /// The same of a state that is locked, and whether the driver is to be notified of it.
    fn take_from(&self, state: &mut HandoverState) -> (Option<Option<Result<Batch, LoadError>>>, bool) {
        let now = self.began.elapsed();
        if let Some(batch) = state.queue.pop_front() {
            let asked = state.waiting_since.take().unwrap_or(now);
            // What was asked for is this, unless another thread waits for the next.
            state.waiting = state.sleepers > 0 && state.queue.is_empty();
            state.waiting_since = state.waiting.then_some(now);
            state.batches_taken += 1;
            state.last = Some((batch.pass, batch.index));
            if let Some(pass) = state.run.pass(batch.pass) {
                state.account.take(&pass, &batch.counts, asked, now);
            }
            state.instruments.batch(&batch.counts, now.saturating_sub(asked));
            if let Some(reach) = state.tuner.taken(batch.counts.reads.total().bytes, asked, now) {
                state.instruments.look_ahead(reach);
                state.new_look_ahead = Some(reach);
            }
            return (Some(Some(Ok(batch))), true);
        }
        match &mut state.end {
            Some(Ok(())) => (Some(None), false),
            Some(end) => {
                // Said once; after that the run is over.
                let error = std::mem::replace(end, Ok(()));
                (Some(error.err().map(Err)), false)
            }
            None => {
                let is_first = state.waiting_since.is_none();
                if is_first {
                    state.waiting_since = Some(now);
                    state.waiting = true;
                }
                (None, is_first)
            }
        }
    }

    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<Batch, LoadError>>> {
        if let Some(item) = self.take() {
            return Poll::Ready(item);
        }
        self.trainer.register(context.waker());
        // Once more, or a batch that came before the waker was there would be slept through.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits at most `timeout` for the next batch or the end; `None` when neither came.
    pub(crate) fn next_timeout(&self, timeout: Duration) -> Option<Option<Result<Batch, LoadError>>> {
        // None: for ever.
        let until = Instant::now().checked_add(timeout);
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let mut state = self.lock();
        loop {
            let (item, wakes_driver) = self.take_from(&mut state);
            if item.is_some() || left() == Some(Duration::ZERO) {
                drop(state);
                if wakes_driver {
                    self.driver.notify_one();
                }
                return item;
            }
            // Counted before the lock is let go: another thread that takes what comes meanwhile must know of this wait.
            state.sleepers += 1;
            if wakes_driver {
                drop(state);
                self.driver.notify_one();
                state = self.lock();
            }
            if state.queue.is_empty() && state.end.is_none() {
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
        self.lock().account.report().clone()
    }

    pub(crate) fn look_ahead(&self) -> LookAhead {
        self.lock().tuner.look_ahead()
    }

    /// The pass and the number of the batch that was taken last.
    pub(crate) fn last_taken(&self) -> Option<(usize, u64)> {
        self.lock().last
    }
}
