//! What limiting and throttling share: a line of requests ordered by need, and a stream that starts them in turn.
//!
//! All batches of a tier wait in one line, the earliest due first. Each batch is told only *how many* of its requests
//! may start: it keeps them in the line's order itself, so the line knows nothing of requests but their due tick and
//! their cost. Requests that may start together go on as one batch.

use std::collections::BinaryHeap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use foreread_tier::{Completion, Completions, ReadRequest, Tier};
use foreread_types::Tick;
use futures::task::AtomicWaker;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, Sleep};

use crate::running::{Running, Since};

/// One who waits in a [`Line`], with any number of entries.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// Woken when turns were given.
    pub(crate) waker: AtomicWaker,
    given: AtomicUsize,
}

impl Waiter {
    /// Gives `turns` to it. Only while the line is locked; waking comes after.
    pub(crate) fn give(&self, turns: usize) {
        self.given.fetch_add(turns, Ordering::AcqRel);
    }

    /// Takes what was given.
    pub(crate) fn take(&self) -> usize {
        match self.given.load(Ordering::Acquire) {
            0 => 0,
            _ => self.given.swap(0, Ordering::AcqRel),
        }
    }
}

/// One entry of a [`Line`]; the greatest is the one whose turn is next.
#[derive(Debug)]
pub(crate) struct Entry {
    due: Tick,
    number: u64,
    pub(crate) cost: u64,
    pub(crate) waiter: Arc<Waiter>,
}

impl Entry {
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

/// Who waits, the earliest due first and among equals the first to come.
#[derive(Debug, Default)]
pub(crate) struct Line {
    heap: BinaryHeap<Entry>,
    next: u64,
}

impl Line {
    pub(crate) fn join(&mut self, waiter: &Arc<Waiter>, due: Tick, cost: u64) {
        self.heap.push(Entry { due, number: self.next, cost, waiter: Arc::clone(waiter) });
        self.next += 1;
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

    /// How many of the waiter's requests may start now; arranges for it to be woken when more may. `timer` is the
    /// waiter's own, for the gate to use.
    fn poll(&self, waiter: &Arc<Waiter>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> usize;

    /// The time, for a gate that wants to know how long requests take.
    fn clock(&self) -> Option<Instant> {
        None
    }

    /// A request that started at `started` has been answered.
    fn answered(&self, started: Option<Instant>, completion: &Completion) {
        let _ = (started, completion);
        self.ended(1);
    }

    /// So many requests that had started have ended without an answer.
    fn ended(&self, requests: usize);

    /// The waiter goes away: its entries leave the line, turns that it did not take are given to others.
    fn leave(&self, waiter: &Arc<Waiter>);
}

/// A batch whose requests start as a gate lets them.
///
/// It joins the line when it is first polled, not before: a batch that nobody polls must not hold up the others.
pub(crate) struct Gated<T: ?Sized, G: Gate> {
    gate: G,
    inner: Arc<T>,
    waiter: Arc<Waiter>,
    joined: bool,
    waiting: Vec<ReadRequest>, // in the order of their start
    started: usize,            // how many of `waiting` have started; they are taken out in one go at the end
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

    fn start(&mut self, turns: usize) {
        let all = self.started == 0 && turns >= self.waiting.len();
        let batch = if all {
            std::mem::take(&mut self.waiting)
        } else {
            let end = self.waiting.len().min(self.started + turns);
            let batch = self.waiting[self.started..end].to_vec();
            self.started = end;
            if end == self.waiting.len() {
                self.waiting = Vec::new();
                self.started = 0;
            }
            batch
        };
        self.under_way += batch.len();
        let started = self.gate.clock();
        self.running.push(Since { started, answers: self.inner.read(batch) });
    }

    fn answered(&mut self, started: Option<Instant>, completion: &Completion) {
        if self.under_way > 0 {
            self.under_way -= 1;
            self.gate.answered(started, completion);
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
                if turns > 0 {
                    this.start(turns);
                }
            }
            match this.running.poll_next(cx) {
                Poll::Ready(Some((started, completion))) => {
                    this.answered(started, &completion);
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
            self.gate.leave(&self.waiter);
        }
    }
}
