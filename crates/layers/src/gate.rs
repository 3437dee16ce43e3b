//! What limiting and throttling share: a line of requests ordered by need, and a stream that starts them in turn.
//!
//! All batches of a tier wait together, the earliest due first. Each batch keeps its requests itself and is told which of
//! them may start, by their places in it: a line knows nothing of requests but when they are due, what they cost and
//! what they are counted under. Requests that may start together go on as one batch.

use std::collections::BinaryHeap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use foreread_tier::{Completion, Completions, ReadRequest, Tier};
use foreread_types::Tick;
use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};

use crate::rates::{Mark, Marked};
use crate::running::{Running, Since};

/// Which requests of a batch may start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Turns {
    /// None for now.
    #[default]
    None,
    /// All of them.
    All,
    /// These.
    Some(Vec<Turn>),
}

/// One request that may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Its place in the batch.
    pub(crate) place: u32,
    /// What it is counted under, where somebody counts.
    pub(crate) marked: Option<Marked>,
}

/// One who waits in a [`Line`], with any number of entries.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// Woken when turns were given.
    pub(crate) waker: AtomicWaker,
    /// Whether there are any, so that most looks cost no lock.
    any: AtomicBool,
    given: Mutex<Turns>,
}

impl Waiter {
    fn given(&self) -> MutexGuard<'_, Turns> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one request start. Only while the line is locked; waking comes after.
    pub(crate) fn give(&self, turn: Turn) {
        match &mut *self.given() {
            Turns::Some(turns) => turns.push(turn),
            given => *given = Turns::Some(vec![turn]),
        }
        self.any.store(true, Ordering::Release);
    }

    /// Lets all requests start.
    pub(crate) fn give_all(&self) {
        *self.given() = Turns::All;
        self.any.store(true, Ordering::Release);
    }

    /// Takes what was given.
    pub(crate) fn take(&self) -> Turns {
        if !self.any.load(Ordering::Acquire) {
            return Turns::None;
        }
        let mut given = self.given();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut given)
    }
}

/// One entry of a [`Line`]; the greatest is the one whose turn is next.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) due: Tick,
    /// Among equals the lowest is first.
    pub(crate) number: u64,
    pub(crate) cost: u64,
    pub(crate) mark: Mark,
    /// Its place in the waiter's batch.
    pub(crate) place: u32,
    pub(crate) waiter: Arc<Waiter>,
}

impl Entry {
    /// The request that is due at `due` and has this place in the batch of `waiter`; it costs one.
    pub(crate) fn new(waiter: &Arc<Waiter>, due: Tick, place: u32) -> Self {
        Self { due, number: 0, cost: 1, mark: Mark::default(), place, waiter: Arc::clone(waiter) }
    }

    fn rank(&self) -> (std::cmp::Reverse<Tick>, std::cmp::Reverse<u64>) {
        (std::cmp::Reverse(self.due), std::cmp::Reverse(self.number))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Entry {}

/// Who waits, the earliest due first and among equals the one with the lowest number.
#[derive(Debug, Default)]
pub(crate) struct Line {
    heap: BinaryHeap<Entry>,
}

impl Line {
    pub(crate) fn push(&mut self, entry: Entry) {
        self.heap.push(entry);
    }

    pub(crate) fn peek(&self) -> Option<&Entry> {
        self.heap.peek()
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        self.heap.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Removes all entries of `waiter`.
    pub(crate) fn leave(&mut self, waiter: &Arc<Waiter>) {
        self.heap.retain(|entry| !Arc::ptr_eq(&entry.waiter, waiter));
    }

    /// Takes out those that are counted under `mark`.
    pub(crate) fn split_off(&mut self, mark: Mark) -> Self {
        let (own, others) = self.heap.drain().partition(|entry| entry.mark == mark);
        self.heap = others;
        Self { heap: own }
    }
}

/// Those to wake once the lock on a line is released.
#[derive(Default)]
pub(crate) struct Wakes(Vec<Arc<Waiter>>);

impl Wakes {
    pub(crate) fn add(&mut self, waiter: &Arc<Waiter>) {
        if !self.0.last().is_some_and(|last| Arc::ptr_eq(last, waiter)) {
            self.0.push(Arc::clone(waiter));
        }
    }

    pub(crate) fn wake(self) {
        for waiter in self.0 {
            waiter.waker.wake();
        }
    }
}

/// Decides when requests may start.
pub(crate) trait Gate: Send + Unpin + 'static {
    /// Adds requests to the line, in the order in which they shall start.
    fn join(&self, waiter: &Arc<Waiter>, requests: &[ReadRequest]);

    /// Which of the waiter's requests may start now; arranges for it to be woken when more may. `timer` is the
    /// waiter's own, for the gate to use.
    fn poll(&self, waiter: &Arc<Waiter>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Turns;

    /// The time, for a gate that wants to know how long requests take.
    fn clock(&self) -> Option<Instant> {
        None
    }

    /// A request that started at `started` and was counted under `mark` has been answered.
    fn answered(&self, started: Option<Instant>, mark: Option<Marked>, completion: &Completion) {
        let _ = (started, mark, completion);
        self.ended(1);
    }

    /// So many requests that had started have ended without an answer.
    fn ended(&self, requests: usize);

    /// The waiter goes away with so many requests that have not started: its entries leave the line, turns that it did
    /// not take are given to others.
    fn leave(&self, waiter: &Arc<Waiter>, requests: usize);
}

/// A batch whose requests start as a gate lets them.
///
/// It joins the line when it is first polled, not before: a batch that nobody polls must not hold up the others.
pub(crate) struct Gated<T: ?Sized, G: Gate> {
    gate: G,
    inner: Arc<T>,
    waiter: Arc<Waiter>,
    joined: bool,
    waiting: Vec<ReadRequest>, // those that have started are taken out in one go at the end
    started: usize,            // how many of `waiting` have started
    under_way: usize,
    running: Running<Since>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T: Tier + ?Sized, G: Gate> Gated<T, G> {
    pub(crate) fn read(gate: G, inner: &Arc<T>, mut batch: Vec<ReadRequest>) -> Completions {
        if !batch.is_sorted_by_key(|request| request.due) {
            batch.sort_by_key(|request| request.due);
        }
        Self {
            gate,
            inner: Arc::clone(inner),
            waiter: Arc::default(),
            joined: false,
            waiting: batch,
            started: 0,
            under_way: 0,
            running: Running::default(),
            timer: None,
        }
        .boxed()
    }

    fn start(&mut self, turns: Turns) {
        let mut marks = Vec::new();
        let batch = match turns {
            Turns::None => return,
            Turns::All => std::mem::take(&mut self.waiting),
            Turns::Some(turns) => {
                let mut batch = Vec::with_capacity(turns.len());
                for Turn { place, marked } in turns {
                    let Some(request) = self.waiting.get(place as usize) else { continue };
                    marks.extend(marked.map(|marked| (request.tag, marked)));
                    batch.push(request.clone());
                }
                self.started += batch.len();
                if self.started >= self.waiting.len() {
                    self.waiting = Vec::new();
                }
                batch
            }
        };
        self.under_way += batch.len();
        let started = self.gate.clock();
        self.running.push(Since { started, marks, answers: self.inner.read(batch) });
    }

    fn answered(&mut self, started: Option<Instant>, mark: Option<Marked>, completion: &Completion) {
        if self.under_way > 0 {
            self.under_way -= 1;
            self.gate.answered(started, mark, completion);
        }
    }
}

impl<T: Tier + ?Sized, G: Gate> Stream for Gated<T, G> {
    type Item = Completion;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = self.get_mut();
        loop {
            if !this.waiting.is_empty() {
                if !this.joined {
                    this.joined = true;
                    this.gate.join(&this.waiter, &this.waiting);
                }
                let turns = this.gate.poll(&this.waiter, &mut this.timer, cx);
                this.start(turns);
            }
            match this.running.poll_next(cx) {
                Poll::Ready(Some((started, mark, completion))) => {
                    this.answered(started, mark, &completion);
                    return Poll::Ready(Some(completion));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) if this.under_way > 0 => {
                    this.gate.ended(std::mem::take(&mut this.under_way)); // the tier below broke its word
                }
                Poll::Ready(None) if this.waiting.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Pending,
            }
        }
    }
}

impl<T: ?Sized, G: Gate> Drop for Gated<T, G> {
    fn drop(&mut self) {
        if self.under_way > 0 {
            self.gate.ended(self.under_way);
        }
        if self.joined && !self.waiting.is_empty() {
            self.gate.leave(&self.waiter, self.waiting.len() - self.started);
        }
    }
}
