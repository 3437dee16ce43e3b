//! The queue of a limit: who waits, and who may go next.
//!
//! Every origin has a queue, a [`Rate`] that follows its store's complaints, and the [`Bandwidth`] that the user has set, if
//! any. Both hold up the queue; of the queues that are not held up, the request that is due first goes first. A throttled
//! prefix slows its whole origin, until the store splits it, as with every SDK.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foreread_types::Tick;
use futures::task::AtomicWaker;
use tokio::time::Instant;

use crate::Bandwidth;
use crate::rate::{Rate, Verdict};

/// A request that waits.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    pub(crate) waker: AtomicWaker,
    may_go: AtomicBool,
}

impl Waiter {
    /// Lets it go. Only while the queue is locked; waking comes after.
    pub(crate) fn grant(&self) {
        self.may_go.store(true, Ordering::Release);
    }

    pub(crate) fn may_go(&self) -> bool {
        self.may_go.load(Ordering::Acquire)
    }
}

/// A request's position: when it is due, and among equals when it came.
pub(crate) type Position = (Tick, u64);

#[derive(Debug)]
struct Entry {
    bytes: u64,
    waiter: Arc<Waiter>,
}

/// The requests of one origin.
#[derive(Debug)]
struct Queue {
    rate: Rate,
    bandwidth: Option<Bandwidth>,
    waiting: BTreeMap<Position, Entry>,
}

impl Queue {
    /// Until when no request may leave; `None` if one may at any time.
    fn held_until(&self, began: Instant) -> Option<Instant> {
        let by_rate = self.rate.clear().map(|clear| began + clear);
        by_rate.max(self.bandwidth.as_ref().and_then(Bandwidth::clear))
    }

    fn may_leave(&self, began: Instant, now: Instant) -> bool {
        self.held_until(began).is_none_or(|until| until <= now)
    }

    /// A request of so many bytes leaves now, if it may.
    fn leave(&mut self, began: Instant, now: Instant, bytes: u64) -> bool {
        let leaves = self.may_leave(began, now)
            && self.bandwidth.as_ref().is_none_or(|bandwidth| bandwidth.leave(now, bytes));
        if leaves {
            self.rate.left(now.saturating_duration_since(began), 1);
        }
        leaves
    }
}

/// The queues of all origins of a limit.
#[derive(Debug)]
pub(crate) struct Queues {
    began: Instant,
    queues: Vec<Queue>,
    /// Requests that have come.
    joined: u64,
    waiting: usize,
}

impl Queues {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), queues: Vec::new(), joined: 0, waiting: 0 }
    }

    /// A queue for one more origin; its number.
    pub(crate) fn add(&mut self, bandwidth: Option<Bandwidth>) -> usize {
        self.queues.push(Queue { rate: Rate::new(), bandwidth, waiting: BTreeMap::new() });
        self.queues.len() - 1
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The lowest of all rates, in requests a second.
    pub(crate) fn lowest_rate(&self) -> Option<f64> {
        self.queues.iter().filter_map(|queue| queue.rate.per_second()).min_by(f64::total_cmp)
    }

    /// Lets a request of an origin leave at once, if nobody waits and nothing holds it up.
    pub(crate) fn pass(&mut self, now: Instant, origin: usize, bytes: u64) -> bool {
        let began = self.began;
        self.waiting == 0 && self.queues[origin].leave(began, now, bytes)
    }

    /// A request of an origin waits.
    pub(crate) fn join(&mut self, origin: usize, due: Tick, bytes: u64, waiter: &Arc<Waiter>) -> Position {
        let position = (due, self.joined);
        (self.joined, self.waiting) = (self.joined + 1, self.waiting + 1);
        self.queues[origin].waiting.insert(position, Entry { bytes, waiter: Arc::clone(waiter) });
        position
    }

    /// The request that leaves now, if any may.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Arc<Waiter>> {
        let began = self.began;
        let open = self.queues.iter_mut().filter(|queue| !queue.waiting.is_empty());
        let open = open.filter(|queue| queue.may_leave(began, now));
        let first =
            open.min_by_key(|queue| queue.waiting.first_key_value().map(|(position, _)| *position))?;
        let bytes = first.waiting.first_key_value()?.1.bytes;
        if !first.leave(began, now, bytes) {
            return None; // another limit's request has just taken the link
        }
        let (_, Entry { waiter, .. }) = first.waiting.pop_first()?;
        self.waiting -= 1;
        Some(waiter)
    }

    /// When the next request that is held up may leave, and which it is.
    pub(crate) fn next(&self) -> Option<(Instant, Arc<Waiter>)> {
        let held = |queue: &Queue| {
            let (_, entry) = queue.waiting.first_key_value()?;
            Some((queue.held_until(self.began)?, Arc::clone(&entry.waiter)))
        };
        self.queues.iter().filter_map(held).min_by_key(|(until, _)| *until)
    }

    /// A request goes away; whether it was still waiting.
    pub(crate) fn leave(&mut self, origin: usize, position: Position) -> bool {
        let waited = self.queues[origin].waiting.remove(&position).is_some();
        self.waiting -= usize::from(waited);
        waited
    }

    /// A request was refused beside another one of the same sample, which is answered for both. Whether a rate became lower.
    pub(crate) fn refused_beside(&mut self, now: Instant, started: Instant, origin: usize) -> bool {
        self.queues[origin].rate.left_beside(started.saturating_duration_since(self.began));
        self.answered(now, started, origin, Verdict::Refused)
    }

    /// A request that left at `started` has been answered. Whether a rate became lower.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        started: Instant,
        origin: usize,
        verdict: Verdict,
    ) -> bool {
        let at = |instant: Instant| -> Duration { instant.saturating_duration_since(self.began) };
        let (now, started) = (at(now), at(started));
        self.queues[origin].rate.answered(now, started, verdict)
    }
}
