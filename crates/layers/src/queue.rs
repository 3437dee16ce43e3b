//! The queues of a limit: which requests wait, and which may leave next.
//!
//! Every origin has a queue, a [`Rate`] that follows its origin's refusals, and the user's
//! [`Bandwidth`], if any. Both can hold up the queue. Of the queues that are not held up, the
//! request that is due first leaves first. A throttled prefix slows its whole origin until the
//! origin splits it, as with every SDK.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foreread_types::Tick;
use futures::task::AtomicWaker;
use tokio::time::Instant;

use crate::Bandwidth;
use crate::rate::Rate;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) waker: AtomicWaker,
    is_granted: AtomicBool,
    bytes: u64,
}

impl Waiter {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { waker: AtomicWaker::new(), is_granted: AtomicBool::new(false), bytes }
    }

    /// Grants it a slot. Only while the queue is locked. The caller wakes it later.
    pub(crate) fn grant(&self) {
        self.is_granted.store(true, Ordering::Release);
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.is_granted.load(Ordering::Acquire)
    }
}

/// A request's position: its due time, then its arrival.
pub(crate) type Position = (Tick, u64);

/// The requests of one origin.
#[derive(Debug)]
struct OriginQueue {
    rate: Rate,
    bandwidth: Option<Bandwidth>,
    waiting: BTreeMap<Position, Arc<Waiter>>,
}

impl OriginQueue {
    /// Until when no request may leave. `None` if one may at any time.
    fn held_until(&self, start: Instant) -> Option<Duration> {
        let link = self.bandwidth.as_ref().and_then(Bandwidth::clear);
        self.rate.clear().max(link.map(|clear| clear.saturating_duration_since(start)))
    }

    fn may_leave(&self, start: Instant, now: Duration) -> bool {
        self.held_until(start).is_none_or(|until| until <= now)
    }

    /// Lets a request of `bytes` leave now, if it may.
    fn leave(&mut self, start: Instant, now: Duration, bytes: u64) -> bool {
        let leaves = self.may_leave(start, now)
            && self.bandwidth.as_ref().is_none_or(|bandwidth| bandwidth.leave(start + now, bytes));
        if leaves {
            self.rate.left(now, 1);
        }
        leaves
    }
}

/// The queues of all origins of a limit. Times are counted from the limit's start.
#[derive(Debug)]
pub(crate) struct Queues {
    start: Instant,
    queues: Vec<OriginQueue>,
    /// Requests that have come.
    arrivals: u64,
    waiting: usize,
}

impl Queues {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), queues: Vec::new(), arrivals: 0, waiting: 0 }
    }

    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    pub(crate) fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// Adds a queue for one more origin, and returns its number.
    pub(crate) fn add(&mut self, bandwidth: Option<Bandwidth>) -> usize {
        self.queues.push(OriginQueue { rate: Rate::default(), bandwidth, waiting: BTreeMap::new() });
        self.queues.len() - 1
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn rate(&mut self, origin: usize) -> &mut Rate {
        &mut self.queues[origin].rate
    }

    /// The lowest of all rates, in requests per second.
    pub(crate) fn lowest_rate(&self) -> Option<f64> {
        self.queues.iter().filter_map(|queue| queue.rate.per_second()).min_by(f64::total_cmp)
    }

    /// Lets a request of an origin leave at once, if no request waits and nothing holds it up.
    pub(crate) fn pass(&mut self, now: Duration, origin: usize, bytes: u64) -> bool {
        self.waiting == 0 && self.queues[origin].leave(self.start, now, bytes)
    }

    /// Queues a request of an origin.
    pub(crate) fn join(&mut self, origin: usize, due: Tick, waiter: &Arc<Waiter>) -> Position {
        let position = (due, self.arrivals);
        (self.arrivals, self.waiting) = (self.arrivals + 1, self.waiting + 1);
        self.queues[origin].waiting.insert(position, Arc::clone(waiter));
        position
    }

    /// The request that leaves now, if any may.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<Arc<Waiter>> {
        let start = self.start;
        let open = self.queues.iter_mut().filter(|queue| !queue.waiting.is_empty());
        let open = open.filter(|queue| queue.may_leave(start, now));
        let first =
            open.min_by_key(|queue| queue.waiting.first_key_value().map(|(position, _)| *position))?;
        let bytes = first.waiting.first_key_value()?.1.bytes;
        if !first.leave(start, now, bytes) {
            return None; // a request of another limit has just taken the link
        }
        self.waiting -= 1;
        first.waiting.pop_first().map(|(_, waiter)| waiter)
    }

    /// The next request that a rate holds up, and when it may leave.
    pub(crate) fn next(&self) -> Option<(Duration, Arc<Waiter>)> {
        let held = |queue: &OriginQueue| {
            let (_, waiter) = queue.waiting.first_key_value()?;
            Some((queue.held_until(self.start)?, Arc::clone(waiter)))
        };
        self.queues.iter().filter_map(held).min_by_key(|(until, _)| *until)
    }

    /// Removes a request. Returns whether it was still waiting.
    pub(crate) fn leave(&mut self, origin: usize, position: Position) -> bool {
        let waited = self.queues[origin].waiting.remove(&position).is_some();
        self.waiting -= usize::from(waited);
        waited
    }
}
