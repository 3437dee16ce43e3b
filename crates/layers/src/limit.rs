//! The concurrency limit: at most so many requests in flight.
//!
//! An origin has a concurrency beyond which more requests only queue inside it, where they cannot
//! be reordered. Here they queue outside, ordered by due time. The limit is fixed ([`Limit::new`])
//! or adaptive ([`Limit::adaptive`]).
//!
//! Some origins also have a ceiling on requests per second, and enforce it by refusals (503
//! SlowDown). An adaptive limit learns that rate from the refusals, one rate per origin
//! (`rate.rs`). A user may set a limit in bytes per second (`bandwidth.rs`). All of them share one
//! gate and one queue. A request leaves when a slot is free and both rates allow it, the earliest
//! due first.
//!
//! There is no timer task. If the next request is only rate-limited, that request's own future owns
//! the timer.

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError, lock};
use foreread_types::Tick;
use metrics::Gauge;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Bandwidth;
use crate::controller::{AdaptivePolicy, Controller, LimitReason};
use crate::queue::{Position, Queues, Waiter};

/// How long a request that waits for a rate sleeps at most, before it looks at the rate again.
const RATE_POLL: Duration = Duration::from_millis(250);

/// A number of slots, of which each request in flight takes one. Clones share them.
#[derive(Clone)]
pub struct Limit(Arc<LimitShared>);

struct LimitShared {
    most: usize,
    state: Mutex<LimitState>,
}

/// The limit's value and its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decisions {
    /// The current limit.
    pub limit: usize,
    /// The highest limit so far.
    pub highest: usize,
    /// The lowest limit so far.
    pub lowest: usize,
    /// How often it was changed.
    pub changes: u64,
    /// The reason of the last change.
    pub why: LimitReason,
    /// The origin's ceiling in requests per second, as far as its refusals show it: the lowest of
    /// several origins, or `None` while none refuses.
    pub rate: Option<u64>,
    /// Requests in flight now.
    pub in_flight: usize,
    /// The most requests that were in flight at once.
    pub peak_in_flight: usize,
}

struct LimitState {
    decisions: Decisions,
    queues: Queues,
    /// The rate-limited request whose future owns the timer, and the time at which it may leave.
    timer_owner: Option<(Duration, Arc<Waiter>)>,
    controller: Option<Controller>,
    gauges: Option<Gauges>,
}

impl LimitState {
    fn has_free_slot(&self) -> bool {
        self.decisions.in_flight < self.decisions.limit
    }

    /// Reports the requests in flight to the controller and the metrics.
    fn report(&mut self, now: Duration) {
        let has_free_slot = self.has_free_slot();
        let Decisions { in_flight, peak_in_flight, .. } = &mut self.decisions;
        *peak_in_flight = (*peak_in_flight).max(*in_flight);
        if let Some(controller) = &mut self.controller {
            // A request that waits for a rate does not wait for a slot.
            let waiting = if has_free_slot { 0 } else { self.queues.waiting() };
            controller.load(now, *in_flight, waiting);
        }
        if let Some(gauges) = &self.gauges {
            gauges.in_flight.set(*in_flight as f64);
        }
    }

    /// Grants free slots in due order. Adds every grantee except `caller` to `wake`. If the next
    /// request is only rate-limited, its future gets the timer.
    fn grant(&mut self, now: Duration, caller: Option<&Arc<Waiter>>, wake: &mut Vec<Arc<Waiter>>) {
        let is_caller = |waiter: &Arc<Waiter>| caller.is_some_and(|caller| Arc::ptr_eq(caller, waiter));
        while self.has_free_slot()
            && let Some(waiter) = self.queues.pop(now)
        {
            self.decisions.in_flight += 1;
            waiter.grant();
            if !is_caller(&waiter) {
                wake.push(waiter);
            }
        }
        let next = if self.has_free_slot() { self.queues.next() } else { None };
        if let Some((at, waiter)) = &next {
            let before = self.timer_owner.as_ref();
            let knows = before.is_some_and(|(before, owner)| at == before && Arc::ptr_eq(owner, waiter));
            if !is_caller(waiter) && !knows {
                wake.push(Arc::clone(waiter));
            }
        }
        self.timer_owner = next;
        self.report(now);
    }

    /// Learns from an answer. A fixed limit learns nothing.
    fn answered(
        &mut self,
        origin: usize,
        started: Instant,
        now: Duration,
        result: &Result<Bytes, TierError>,
    ) {
        let Some(controller) = &mut self.controller else { return };
        let started = self.queues.since_start(started);
        controller.finished(now, started, result.is_ok());
        let (limit, why) = (controller.limit(), controller.why());
        let decisions = &mut self.decisions;
        if limit != decisions.limit {
            decisions.limit = limit;
            (decisions.highest, decisions.lowest) =
                (decisions.highest.max(limit), decisions.lowest.min(limit));
            self.changed(why);
        }
        let is_refused = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Throttled);
        if self.queues.rate(origin).answered(now, started, is_refused) {
            self.changed(LimitReason::Throttled);
        }
    }

    #[cold]
    fn changed(&mut self, why: LimitReason) {
        let decisions = &mut self.decisions;
        (decisions.changes, decisions.why) = (decisions.changes + 1, why);
        tracing::trace!(limit = decisions.limit, why = why.as_str(), "the limit or the rate has changed");
        if let Some(gauges) = &self.gauges {
            gauges.limit.set(decisions.limit as f64);
            gauges.rate.set(self.queues.lowest_rate().unwrap_or(0.0));
            // Rare enough (once per round trip) for a look-up by name.
            let labels = [("tier", gauges.tier.clone()), ("why", why.as_str().to_owned())];
            metrics::counter!("foreread_tier_limit_changes_total", &labels).increment(1);
        }
    }
}

/// A limit's metrics.
struct Gauges {
    tier: String,
    limit: Gauge,
    rate: Gauge,
    in_flight: Gauge,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limit").field(&self.decisions()).finish()
    }
}

impl Limit {
    /// A fixed limit.
    pub fn new(limit: NonZeroUsize) -> Self {
        Self::with(limit.get(), limit.get(), None)
    }

    /// A limit that follows the origin's capacity and the trainer's demand, within `policy`. The
    /// head of `controller.rs` describes how.
    pub fn adaptive(policy: AdaptivePolicy) -> Self {
        let controller = Controller::new(policy);
        Self::with(controller.limit(), policy.most.get(), Some(controller))
    }

    fn with(limit: usize, most: usize, controller: Option<Controller>) -> Self {
        let decisions = Decisions { limit, highest: limit, lowest: limit, ..Decisions::default() };
        let (queues, timer_owner, gauges) = (Queues::new(), None, None);
        let state = Mutex::new(LimitState { decisions, queues, timer_owner, controller, gauges });
        Self(Arc::new(LimitShared { most, state }))
    }

    /// The state and the time since the limit was made. The clock is read under the lock, so it
    /// never goes back from one holder to the next.
    fn lock_now(&self) -> (MutexGuard<'_, LimitState>, Duration) {
        let state = lock(&self.0.state);
        let now = state.queues.since_start(Instant::now());
        (state, now)
    }

    /// The upper bound of the limit.
    pub fn most(&self) -> usize {
        self.0.most
    }

    /// Requests in flight. They exceed the limit for a while after an adaptive limit has fallen.
    pub fn taken(&self) -> usize {
        lock(&self.0.state).decisions.in_flight
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        lock(&self.0.state).queues.waiting()
    }

    /// The current limit and its history.
    pub fn decisions(&self) -> Decisions {
        let state = lock(&self.0.state);
        Decisions { rate: state.queues.lowest_rate().map(|rate| rate.round() as u64), ..state.decisions }
    }

    /// Adds a queue for one more origin, held to `bandwidth`. The limit's metrics are named after
    /// the first origin.
    pub(crate) fn origin(&self, tier: &str, bandwidth: Option<Bandwidth>) -> Gate {
        let mut state = lock(&self.0.state);
        if state.gauges.is_none() {
            let tier = tier.to_owned();
            let limit = metrics::gauge!("foreread_tier_limit", "tier" => tier.clone());
            let rate = metrics::gauge!("foreread_tier_rate_limit", "tier" => tier.clone());
            let in_flight = metrics::gauge!("foreread_tier_in_flight", "tier" => tier.clone());
            limit.set(state.decisions.limit as f64);
            state.gauges = Some(Gauges { tier, limit, rate, in_flight });
        }
        Gate { limit: self.clone(), origin: state.queues.add(bandwidth) }
    }
}

/// One origin's entrance to a limit.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_limit` | gauge | `tier` (of a limit that tiers share: the first of them) |
/// | `foreread_tier_in_flight` | gauge | `tier`; requests in flight |
/// | `foreread_tier_limit_changes_total` | counter | `tier`, `why`: decisions of an adaptive limit |
/// | `foreread_tier_rate_limit` | gauge | `tier`; requests per second that an origin tolerates, the lowest of all; 0 while none refuses |
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    limit: Limit,
    origin: usize,
}

impl Gate {
    /// Takes a slot, or joins the queue at once. The queue is ordered by due time, then by arrival.
    ///
    /// # Errors
    /// The position in the queue, if the request has to wait.
    pub(crate) fn enter(&self, due: Tick, bytes: u64) -> Result<Permit, QueuedRequest> {
        let (mut state, now) = self.limit.lock_now();
        let state = &mut *state;
        let is_free = state.has_free_slot() && state.queues.pass(now, self.origin, bytes);
        let entered = if is_free {
            state.decisions.in_flight += 1; // the common case
            Ok(Permit::new(self.clone()))
        } else {
            let waiter = Arc::new(Waiter::new(bytes));
            let position = state.queues.join(self.origin, due, &waiter);
            Err(QueuedRequest { gate: self.clone(), waiter, position, timer: None, is_granted: false })
        };
        state.report(now);
        entered
    }

    /// Counts a refusal of a read that left at `started`, if that answer is not used.
    pub(crate) fn other_refused(&self, started: Instant) {
        self.give_back(0, |state, origin, now| {
            let started = state.queues.since_start(started);
            let rate = state.queues.rate(origin);
            rate.other_left(started);
            if state.controller.is_some() && rate.answered(now, started, true) {
                state.changed(LimitReason::Throttled);
            }
        });
    }

    /// Gives back `slots`, after `first` has updated the state.
    fn give_back(&self, slots: usize, first: impl FnOnce(&mut LimitState, usize, Duration)) {
        let mut wake = Vec::new();
        {
            let (mut state, now) = self.limit.lock_now();
            state.decisions.in_flight -= slots;
            first(&mut state, self.origin, now);
            state.grant(now, None, &mut wake);
        }
        wake.iter().for_each(|waiter| waiter.waker.wake());
    }

    fn poll(
        &self,
        waiter: &Arc<Waiter>,
        timer: &mut Option<Pin<Box<Sleep>>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        waiter.waker.register(cx.waker());
        loop {
            let mut wake = Vec::new();
            let next = {
                let (mut state, now) = self.limit.lock_now();
                if state.has_free_slot() && state.queues.waiting() > 0 {
                    state.grant(now, Some(waiter), &mut wake);
                }
                let own = state.timer_owner.as_ref().filter(|(_, owner)| Arc::ptr_eq(owner, waiter));
                own.map(|(at, _)| state.queues.start() + *at)
            };
            wake.iter().for_each(|waiter| waiter.waker.wake());
            if waiter.is_granted() {
                return Poll::Ready(());
            }
            let Some(next) = next else { return Poll::Pending };
            // The rate may rise meanwhile.
            let next = next.min(Instant::now() + RATE_POLL);
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if sleep.is_elapsed() || sleep.deadline() > next {
                sleep.as_mut().reset(next);
            }
            ready!(Future::poll(sleep.as_mut(), cx));
        }
    }
}

/// A request in the queue. Resolves to its slot.
///
/// # Cancel safety
/// Dropping it leaves the queue. A slot that was granted and not yet taken goes to the next
/// request.
#[must_use = "dropping a queued request leaves the queue"]
pub(crate) struct QueuedRequest {
    gate: Gate,
    waiter: Arc<Waiter>,
    position: Position,
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether a [`Permit`] has the slot.
    is_granted: bool,
}

impl Future for QueuedRequest {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        ready!(this.gate.poll(&this.waiter, &mut this.timer, cx));
        this.is_granted = true;
        Poll::Ready(Permit::new(this.gate.clone()))
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if !self.is_granted {
            self.gate.give_back(0, |state, origin, _| {
                // A request that has left the queue has been granted a slot.
                state.decisions.in_flight -= usize::from(!state.queues.leave(origin, self.position));
            });
        }
    }
}

/// A slot of a [`Limit`], given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a permit gives its slot back"]
pub(crate) struct Permit {
    gate: Gate,
    started: Instant,
    is_back: bool,
}

impl Permit {
    fn new(gate: Gate) -> Self {
        Self { gate, started: Instant::now(), is_back: false }
    }

    /// Gives the slot back and reports the answer to the limit.
    pub(crate) fn answered(mut self, result: &Result<Bytes, TierError>) {
        self.is_back = true;
        self.gate.give_back(1, |state, origin, now| state.answered(origin, self.started, now, result));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_back {
            self.gate.give_back(1, |_, _, _| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::{OriginTier, ReadRequest};
    use foreread_tier_testing::{FakeOrigin, ReadAll};
    use foreread_types::SampleId;
    use futures::StreamExt;
    use futures::future::join_all;

    use super::*;
    use crate::Stack;

    fn limited(origin: &Arc<FakeOrigin>, count: usize) -> (Arc<dyn OriginTier>, Limit) {
        let limit = Limit::new(places(count));
        let stack = Stack::bare().with_limit(Some(limit.clone()));
        (stack.wrap(Arc::clone(origin) as Arc<dyn OriginTier>), limit)
    }

    fn places(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    fn origin(samples: u64) -> Arc<FakeOrigin> {
        Arc::new(FakeOrigin::uniform(samples, 10).with_latency(Duration::from_millis(10)))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(SampleId(id), Tick(id))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn limit_is_neither_exceeded_nor_left_idle() {
        let origin = origin(90);
        let (limited, limit) = limited(&origin, 7);
        assert_eq!(limited.profile().parallelism, 7);
        let began = Instant::now();
        let batches = (0..3).map(|part| limited.read_all(batch(&origin, part * 30..(part + 1) * 30)).count());
        assert_eq!(join_all(batches).await, [30, 30, 30]);
        assert_eq!(origin.counts().tally().peak_in_flight, 7);
        assert_eq!(began.elapsed(), Duration::from_millis(10 * 90u64.div_ceil(7)));
        assert_eq!((limit.taken(), limit.waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_due_leaves_first_across_batches() {
        let origin = origin(12);
        let (limited, _) = limited(&origin, 1);
        let late = limited.read_all(batch(&origin, [11, 3, 9, 1]));
        let early = limited.read_all(batch(&origin, [10, 2, 0, 8]));
        futures::join!(late.count(), early.count());
        let order: Vec<u64> = origin.counts().order().iter().map(|key| key.id.0).collect();
        assert_eq!(order, [11, 0, 1, 2, 3, 8, 9, 10]); // 11 found the slot free
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_stream_frees_slots_and_queue_positions() {
        let origin = origin(30);
        let (limited, limit) = limited(&origin, 4);
        let mut first = limited.read_all(batch(&origin, 0..10));
        let mut second = limited.read_all(batch(&origin, 10..20));
        assert!(futures::poll!(first.next()).is_pending());
        assert!(futures::poll!(second.next()).is_pending());
        assert_eq!((limit.taken(), limit.waiting()), (4, 16));
        drop(first); // grants four slots to `second`, which is dropped before its next poll
        assert_eq!((limit.taken(), limit.waiting()), (4, 6));
        drop(second);
        assert_eq!((limit.taken(), limit.waiting()), (0, 0));
        assert_eq!(limited.read_all(batch(&origin, 20..30)).count().await, 10);
        drop(limited.read_all(batch(&origin, 0..10))); // never polled
        assert_eq!(limit.taken(), 0);
    }

    #[tokio::test]
    async fn dropped_grant_passes_to_the_next_request() {
        let limit = Limit::new(places(1));
        let gate = limit.origin("test", None);
        let Ok(held) = gate.enter(Tick(5), 1) else { panic!("it is free") };
        let mut late = Box::pin(gate.enter(Tick(9), 1).err().unwrap());
        let mut early = Box::pin(gate.enter(Tick(1), 1).err().unwrap());
        assert!(futures::poll!(&mut late).is_pending());
        assert!(futures::poll!(&mut early).is_pending());
        drop(held);
        drop(early); // had been granted the slot
        let permit = late.await;
        assert_eq!((limit.taken(), limit.waiting()), (1, 0));
        drop(permit);
        assert_eq!(limit.taken(), 0);
    }

    proptest::proptest! {
        #[test]
        fn dropped_batches_leave_no_slot_taken(
            count in 1usize..5,
            batches in proptest::collection::vec((0u64..20, 0u64..10, 0u64..50), 1..8),
        ) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(
                    FakeOrigin::uniform(100, 1)
                        .with_latency(Duration::from_millis(1))
                        .with_jitter(Duration::from_millis(9)),
                );
                let (limited, limit) = limited(&origin, count);
                join_all(batches.iter().map(|&(length, taken, from)| {
                    let stream = limited.read_all(batch(&origin, from..from + length));
                    async move {
                        let got = stream.take(taken as usize).count().await;
                        assert_eq!(got as u64, taken.min(length));
                    }
                })).await;
                assert_eq!((limit.taken(), limit.waiting()), (0, 0));
                assert!(origin.counts().tally().peak_in_flight <= count as u64);
            });
        }
    }
}
