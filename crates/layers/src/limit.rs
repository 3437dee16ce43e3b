//! At most so many requests under way at once.
//!
//! A store has a concurrency beyond which more requests only queue inside of it, where nobody can reorder them. Here
//! they queue outside, the earliest due first. The number is fixed ([`Limit::new`]) or finds itself
//! ([`Limit::adaptive`]).
//!
//! Some stores also have a ceiling on requests a second, and say so by refusing (503 SlowDown). A limit that finds itself
//! learns it as well, from the refusals alone: a rate for each origin (`rate.rs`). A user may set a limit in bytes a second
//! (`bandwidth.rs`). It is one gate and one queue: a request leaves when there is a place and both rates allow, the
//! earliest due first.
//!
//! No task keeps the time. Where a rate alone holds up the next request, that request's own future has the timer.

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::Tick;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Bandwidth;
use crate::adaptive::{Adaptive, Decisions, Gauges};
use crate::controller::AdaptivePolicy;
use crate::queue::{Position, Queues, Waiter};
use crate::rate::Verdict;

/// A number of places that requests take one each; clones share them.
#[derive(Clone)]
pub struct Limit(Arc<Shared>);

struct Shared {
    most: usize,
    state: Mutex<State>,
}

struct State {
    places: usize,
    taken: usize,
    peak: usize,
    queues: Queues,
    /// The request whose future has the timer: a rate lets it go then.
    timer_owner: Option<(Instant, Arc<Waiter>)>,
    adaptive: Option<Adaptive>,
    gauges: Option<Gauges>,
}

impl State {
    /// Tells whoever measures what is under way now.
    fn note(&mut self, now: Instant) {
        self.peak = self.peak.max(self.taken);
        if let Some(adaptive) = &mut self.adaptive {
            // Who waits for a rate waits for no place.
            let waiting = if self.taken < self.places { 0 } else { self.queues.waiting() };
            adaptive.load(now, self.taken, waiting);
        }
        if let Some(gauges) = &self.gauges {
            gauges.in_flight.set(self.taken as f64);
        }
    }

    /// Gives free places to those whose turn it is, and the timer to the first that is held up by a rate alone. Whom to
    /// wake is added to `wake`; `me` looks for itself.
    fn give(&mut self, now: Instant, me: Option<&Arc<Waiter>>, wake: &mut Vec<Arc<Waiter>>) {
        let is_me = |waiter: &Arc<Waiter>| me.is_some_and(|me| Arc::ptr_eq(me, waiter));
        while self.taken < self.places
            && let Some(waiter) = self.queues.pop(now)
        {
            self.taken += 1;
            waiter.grant();
            if !is_me(&waiter) {
                wake.push(waiter);
            }
        }
        let next = if self.taken < self.places { self.queues.next() } else { None };
        if let Some((at, waiter)) = &next {
            let before = self.timer_owner.as_ref();
            let knows = before.is_some_and(|(before, owner)| at == before && Arc::ptr_eq(owner, waiter));
            if !is_me(waiter) && !knows {
                wake.push(Arc::clone(waiter));
            }
        }
        self.timer_owner = next;
        self.note(now);
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Limit")
            .field("places", &state.places)
            .field("most", &self.0.most)
            .field("taken", &state.taken)
            .field("waiting", &state.queues.waiting())
            .finish()
    }
}

impl Limit {
    /// `places` places, all free.
    pub fn new(places: NonZeroUsize) -> Self {
        Self::with(places.get(), places.get(), None)
    }

    /// Places whose number follows what the store can do and what is needed, within `policy`; how, the head of
    /// `controller.rs` says.
    pub fn adaptive(policy: AdaptivePolicy) -> Self {
        let adaptive = Adaptive::new(policy);
        Self::with(adaptive.limit(), policy.most.get(), Some(adaptive))
    }

    fn with(places: usize, most: usize, adaptive: Option<Adaptive>) -> Self {
        let (queues, timer_owner, gauges) = (Queues::new(), None, None);
        let state = State { places, taken: 0, peak: 0, queues, timer_owner, adaptive, gauges };
        Self(Arc::new(Shared { most, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, and the time: read under the lock, so that it never goes back from one holder to the next.
    fn lock_now(&self) -> (MutexGuard<'_, State>, Instant) {
        let state = self.lock();
        let now = Instant::now();
        (state, now)
    }

    /// How many places there are now.
    pub fn places(&self) -> usize {
        self.lock().places
    }

    /// How many there may ever be: [`places`](Self::places) where the number is fixed.
    pub fn most(&self) -> usize {
        self.0.most
    }

    /// How many of them are taken; for a while more than there are, where an adaptive limit has fallen.
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// How many requests wait for one.
    pub fn waiting(&self) -> usize {
        self.lock().queues.waiting()
    }

    /// What was decided so far, and why.
    pub fn decisions(&self) -> Decisions {
        let state = self.lock();
        let fixed = Decisions::fixed(state.places);
        let decided = state.adaptive.as_ref().map_or(fixed, Adaptive::decisions);
        let rate = state.queues.lowest_rate().map(|rate| rate.round() as u64);
        Decisions { rate, in_flight: state.taken, peak_in_flight: state.peak, ..decided }
    }

    /// A queue for one more origin, held to `bandwidth`, and the metrics of this limit under the name of the first.
    pub(crate) fn origin(&self, tier: &str, bandwidth: Option<Bandwidth>) -> Gate {
        let mut state = self.lock();
        if state.gauges.is_none() {
            let gauges = Gauges::of(tier);
            gauges.limit.set(state.places as f64);
            state.gauges = Some(gauges);
        }
        Gate { limit: self.clone(), number: state.queues.add(bandwidth) }
    }
}

/// One origin's part in a limit.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_limit` | gauge | `tier` (of a limit that tiers share: the first of them) |
/// | `foreread_tier_in_flight` | gauge | `tier`; places taken now |
/// | `foreread_tier_limit_changes_total` | counter | `tier`, `why`: decisions of an adaptive limit |
/// | `foreread_tier_rate_limit` | gauge | `tier`; requests a second that a store puts up with, the lowest of all; 0 while none complains |
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    limit: Limit,
    number: usize,
}

impl Gate {
    /// Takes a place, or joins the queue at once: the earliest due first, among equals the first to come.
    pub(crate) fn enter(&self, due: Tick, bytes: u64) -> Turn {
        let (mut state, now) = self.limit.lock_now();
        let state = &mut *state;
        let turn = if state.taken < state.places && state.queues.pass(now, self.number, bytes) {
            state.taken += 1; // the common case
            Place::Granted
        } else {
            let waiter = Arc::default();
            let position = state.queues.join(self.number, due, bytes, &waiter);
            Place::Waiting { waiter, position, timer: None }
        };
        state.note(now);
        Turn { gate: self.clone(), place: turn }
    }

    /// The store has complained of a read that left at `started`, and nobody waits for that answer.
    pub(crate) fn complained(&self, started: Instant) {
        self.back(0, |state, number, now| {
            if state.adaptive.is_some() && state.queues.refused_beside(now, started, number) {
                state.slowed();
            }
        });
    }

    /// Gives back `places`, after `told` has told who measures about it.
    fn back(&self, places: usize, told: impl FnOnce(&mut State, usize, Instant)) {
        let mut wake = Vec::new();
        {
            let (mut state, now) = self.limit.lock_now();
            state.taken -= places;
            told(&mut state, self.number, now);
            state.give(now, None, &mut wake);
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
                if state.taken < state.places && state.queues.waiting() > 0 {
                    state.give(now, Some(waiter), &mut wake);
                }
                let mine = state.timer_owner.as_ref().filter(|(_, owner)| Arc::ptr_eq(owner, waiter));
                mine.map(|(at, _)| *at)
            };
            wake.iter().for_each(|waiter| waiter.waker.wake());
            if waiter.may_go() {
                return Poll::Ready(());
            }
            let Some(next) = next else { return Poll::Pending };
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if sleep.deadline() != next {
                sleep.as_mut().reset(next);
            }
            if Future::poll(sleep.as_mut(), cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl State {
    /// A rate became lower.
    fn slowed(&mut self) {
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.slowed();
        }
        self.changed();
    }

    fn answered(&mut self, number: usize, started: Instant, now: Instant, result: &Result<Bytes, TierError>) {
        let Some(adaptive) = &mut self.adaptive else { return };
        let before = adaptive.decisions().changes;
        adaptive.answered(now, started, result.is_ok());
        self.places = adaptive.limit();
        if adaptive.decisions().changes != before {
            self.changed();
        }
        let is_refused = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Throttled);
        let verdict = if is_refused { Verdict::Refused } else { Verdict::Admitted };
        if self.queues.answered(now, started, number, verdict) {
            self.slowed();
        }
    }

    #[cold]
    fn changed(&self) {
        if let (Some(gauges), Some(adaptive)) = (&self.gauges, &self.adaptive) {
            gauges.changed(self.places, self.queues.lowest_rate(), adaptive.decisions().why);
        }
    }
}

/// A request that waits for its place.
///
/// # Cancel safety
/// Dropping it leaves the queue; a place that was given and not yet taken goes to the next.
#[must_use = "dropping a turn leaves the queue"]
pub(crate) struct Turn {
    gate: Gate,
    place: Place,
}

enum Place {
    Granted,
    Waiting {
        waiter: Arc<Waiter>,
        position: Position,
        timer: Option<Pin<Box<Sleep>>>,
    },
    /// A [`Permit`] has it.
    Taken,
}

impl Turn {
    /// The place, if there is one already.
    ///
    /// # Errors
    /// The turn, if it has to be waited for.
    pub(crate) fn take(mut self) -> Result<Permit, Self> {
        match self.place {
            Place::Granted => Ok(self.permit()),
            _ => Err(self),
        }
    }

    fn permit(&mut self) -> Permit {
        self.place = Place::Taken;
        Permit { gate: self.gate.clone(), started: Instant::now(), is_back: false }
    }
}

impl Future for Turn {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        if let Place::Waiting { waiter, timer, .. } = &mut this.place {
            std::task::ready!(this.gate.poll(waiter, timer, cx));
        }
        Poll::Ready(this.permit())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match &self.place {
            Place::Taken => {}
            Place::Granted => self.gate.back(1, |_, _, _| {}),
            Place::Waiting { position, .. } => {
                let position = *position;
                self.gate.back(0, |state, number, _| {
                    // One that does not wait any longer has been given a place.
                    state.taken -= usize::from(!state.queues.leave(number, position));
                });
            }
        }
    }
}

/// A place of a [`Limit`], given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a permit gives its place back"]
pub(crate) struct Permit {
    gate: Gate,
    started: Instant,
    is_back: bool,
}

impl Permit {
    /// Gives the place back, and tells the limit what came.
    pub(crate) fn answered(mut self, result: &Result<Bytes, TierError>) {
        self.is_back = true;
        let started = self.started;
        self.gate.back(1, |state, number, now| state.answered(number, started, now, result));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.is_back {
            self.gate.back(1, |_, _, _| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    async fn never_more_under_way_than_places_and_never_fewer_while_some_wait() {
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
    async fn the_earliest_due_goes_first_whichever_batch_it_is_in() {
        let origin = origin(12);
        let (limited, _) = limited(&origin, 1);
        let late = limited.read_all(batch(&origin, [11, 3, 9, 1]));
        let early = limited.read_all(batch(&origin, [10, 2, 0, 8]));
        futures::join!(late.count(), early.count());
        let order: Vec<u64> = origin.counts().order().iter().map(|key| key.id.0).collect();
        assert_eq!(order, [11, 0, 1, 2, 3, 8, 9, 10]); // 11 found the place free before anybody else came
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_stream_gives_its_places_and_its_turns_to_others() {
        let origin = origin(30);
        let (limited, limit) = limited(&origin, 4);
        let mut first = limited.read_all(batch(&origin, 0..10));
        let mut second = limited.read_all(batch(&origin, 10..20));
        assert!(futures::poll!(first.next()).is_pending());
        assert!(futures::poll!(second.next()).is_pending());
        assert_eq!((limit.taken(), limit.waiting()), (4, 16));
        drop(first); // gives four places to `second`, which is dropped before it looks
        assert_eq!((limit.taken(), limit.waiting()), (4, 6));
        drop(second);
        assert_eq!((limit.taken(), limit.waiting()), (0, 0));
        assert_eq!(limited.read_all(batch(&origin, 20..30)).count().await, 10);
        drop(limited.read_all(batch(&origin, 0..10))); // never polled
        assert_eq!(limit.taken(), 0);
    }

    #[tokio::test]
    async fn turn_that_was_given_a_place_and_dropped_gives_it_to_the_next() {
        let limit = Limit::new(places(1));
        let gate = limit.origin("test", None);
        let Ok(held) = gate.enter(Tick(5), 1).take() else { panic!("it is free") };
        let mut late = Box::pin(gate.enter(Tick(9), 1));
        let mut early = Box::pin(gate.enter(Tick(1), 1));
        assert!(futures::poll!(&mut late).is_pending());
        assert!(futures::poll!(&mut early).is_pending());
        drop(held);
        drop(early); // had been given the place
        let permit = late.await;
        assert_eq!((limit.taken(), limit.waiting()), (1, 0));
        drop(permit);
        assert_eq!(limit.taken(), 0);
    }

    proptest::proptest! {
        #[test]
        fn any_batches_dropped_at_any_point_leave_no_place_taken(
            count in 1usize..5,
            batches in proptest::collection::vec((0u64..20, 0u64..10, 0u64..50), 1..8),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(
                    FakeOrigin::uniform(100, 1).with_latency(Duration::from_millis(1)).with_jitter(Duration::from_millis(9)),
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
