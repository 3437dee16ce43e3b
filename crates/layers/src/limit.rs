//! At most so many requests under way at once.
//!
//! A store has a concurrency beyond which more requests only queue inside of it, where nobody can reorder them. Here
//! they queue outside, the earliest due first. The number is fixed ([`Limit::new`]) or finds itself
//! ([`Limit::adaptive`]); neither [`Limited`] nor its users notice which.
//!
//! Some stores also have a ceiling on requests a second, for all of them or below a prefix, and say so by refusing
//! (503 SlowDown). A limit that finds itself learns these as well, from the refusals alone: a rate for each origin
//! and for each prefix that is refused by itself (`rate.rs`, `suspects.rs`). It is the same gate and the same
//! queue: a request leaves when there is a place and its rate allows, the earliest due first.

use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use foreread_tier::{Completion, Completions, ErrorKind, ReadRequest, Tier, TierError, TierProfile};
use foreread_types::Tick;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::adaptive::{Adaptive, Decisions, Gauges};
use crate::controller::AdaptivePolicy;
use crate::gate::{Entry, Gate, Gated, Turns, Waiter, Wakes};
use crate::rate::Verdict;
use crate::rates::{Mark, Marked, Rates};

/// A number of places that requests take one each; clones share them.
#[derive(Clone)]
pub struct Limit(Arc<Shared>);

struct Shared {
    most: usize,
    /// Whether somebody wants to know how long requests take.
    timed: bool,
    state: Mutex<State>,
}

struct State {
    places: usize,
    taken: usize,
    peak: usize,
    lines: Rates,
    /// Who waits for the time at which a rate lets the next one go.
    keeper: Option<(Instant, Arc<Waiter>)>,
    adaptive: Option<Adaptive>,
    gauges: Option<Gauges>,
}

impl State {
    /// Tells whoever measures what is under way now; `now` where the limit is adaptive.
    fn note(&mut self, now: Option<Instant>) {
        self.peak = self.peak.max(self.taken);
        if let (Some(adaptive), Some(now)) = (&mut self.adaptive, now) {
            // Who waits for a rate waits for no place.
            let waiting = if self.taken < self.places { 0 } else { self.lines.waiting() };
            adaptive.load(now, self.taken, waiting);
        }
        if let Some(gauges) = &self.gauges {
            gauges.in_flight.set(self.taken as f64);
        }
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Limit")
            .field("places", &state.places)
            .field("most", &self.0.most)
            .field("taken", &state.taken)
            .field("waiting", &state.lines.waiting())
            .finish()
    }
}

impl Limit {
    /// `places` places, all free.
    pub fn new(places: NonZeroUsize) -> Self {
        Self::with(places.get(), places.get(), None)
    }

    /// Places whose number follows what the store can do and what is needed, within `policy`; how is told in the
    /// head of the module that decides it, [`Controller`](crate::Controller).
    pub fn adaptive(policy: AdaptivePolicy) -> Self {
        let adaptive = Adaptive::new(policy);
        Self::with(adaptive.limit(), policy.most.get(), Some(adaptive))
    }

    fn with(places: usize, most: usize, adaptive: Option<Adaptive>) -> Self {
        let timed = adaptive.is_some();
        let mut lines = Rates::default();
        lines.add_origin(); // that of permits
        let state = State { places, taken: 0, peak: 0, lines, keeper: None, adaptive, gauges: None };
        Self(Arc::new(Shared { most, timed, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Option<Instant> {
        self.0.timed.then(Instant::now)
    }

    /// The state, and the time: read under the lock, so that it never goes back from one holder to the next.
    fn lock_now(&self) -> (MutexGuard<'_, State>, Option<Instant>) {
        let state = self.lock();
        let now = self.now();
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
        self.lock().lines.waiting()
    }

    /// What was decided so far, and why.
    pub fn decisions(&self) -> Decisions {
        let state = self.lock();
        let fixed = Decisions::fixed(state.places);
        let decided = state.adaptive.as_ref().map_or(fixed, Adaptive::decisions);
        let rate = state.lines.lowest().map(|rate| rate.round() as u64);
        Decisions { rate, in_flight: state.taken, peak_in_flight: state.peak, ..decided }
    }

    /// A line for one more origin, and the metrics of this limit under the name of the first.
    pub(crate) fn origin(&self, tier: &str) -> Origin {
        let mut state = self.lock();
        if state.gauges.is_none() {
            let gauges = Gauges::of(tier);
            gauges.limit.set(state.places as f64);
            state.gauges = Some(gauges);
        }
        Origin { limit: self.clone(), number: state.lines.add_origin() }
    }

    /// Takes a place, waiting for one if need be: the earliest due first, among equals the first to come.
    ///
    /// An adaptive limit learns nothing from how long a permit is held: only reads have a latency.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line; a place that was given and not yet taken goes to the next.
    pub async fn acquire(&self, due: Tick) -> Permit {
        struct Leave<'a>(&'a Limit, Arc<Waiter>);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.leave(&self.1, 0);
            }
        }
        let leave = Leave(self, Arc::default());
        self.lock().lines.join(PERMITS, Mark::default(), Entry::new(&leave.1, due, 0));
        let mut timer = None;
        poll_fn(|cx| match self.poll(&leave.1, &mut timer, cx) {
            Turns::None => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        Permit(self.clone())
    }

    /// Gives free places to those whose turn it is; wakes all who got some but `me`, who looks for itself. Where only a
    /// rate holds up the next, that one's waiter keeps the time.
    fn give(&self, state: &mut State, now: Option<Instant>, me: Option<&Arc<Waiter>>, wakes: &mut Wakes) {
        let is_me = |waiter: &Arc<Waiter>| me.is_some_and(|me| Arc::ptr_eq(me, waiter));
        while state.taken < state.places
            && let Some((waiter, turn)) = state.lines.pop(now)
        {
            state.taken += 1;
            waiter.give(turn);
            if !is_me(&waiter) {
                wakes.add(&waiter);
            }
        }
        let next = if state.taken < state.places { state.lines.next() } else { None };
        if let Some((at, waiter)) = &next
            && !is_me(waiter)
            && !state
                .keeper
                .as_ref()
                .is_some_and(|(before, keeper)| at == before && Arc::ptr_eq(keeper, waiter))
        {
            wakes.add(waiter);
        }
        state.keeper = next;
        state.note(now);
    }

    fn poll(&self, waiter: &Arc<Waiter>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Turns {
        waiter.waker.register(cx.waker());
        loop {
            let mut wakes = Wakes::default();
            let next = {
                let mut state = self.lock();
                if state.taken < state.places && state.lines.waiting() > 0 {
                    self.give(&mut state, self.now(), Some(waiter), &mut wakes);
                }
                let mine = state.keeper.as_ref().filter(|(_, keeper)| Arc::ptr_eq(keeper, waiter));
                mine.map(|(at, _)| *at)
            };
            wakes.wake();
            // Whoever keeps the time keeps it also when some may start at once.
            let Some(next) = next else { return waiter.take() };
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if sleep.deadline() != next {
                sleep.as_mut().reset(next);
            }
            if Future::poll(sleep.as_mut(), cx).is_pending() {
                return waiter.take();
            }
        }
    }

    /// Takes back `places`, after `told` has told who measures about it.
    fn back(&self, places: usize, told: impl FnOnce(&mut Adaptive, &mut Rates, Instant)) {
        let mut wakes = Wakes::default();
        let (mut state, now) = self.lock_now();
        state.taken -= places;
        if let (Some(now), State { adaptive: Some(adaptive), places, gauges, lines, .. }) = (now, &mut *state)
        {
            let before = adaptive.decisions().changes;
            told(adaptive, lines, now);
            *places = adaptive.limit();
            if let Some(gauges) = gauges
                && adaptive.decisions().changes != before
            {
                gauges.changed(*places, lines.lowest(), adaptive.decisions().why);
            }
        }
        self.give(&mut state, now, None, &mut wakes);
        drop(state);
        wakes.wake();
    }

    fn leave(&self, waiter: &Arc<Waiter>, requests: usize) {
        let mut wakes = Wakes::default();
        let mut state = self.lock();
        state.lines.leave(waiter);
        state.taken -= match waiter.take() {
            Turns::None => 0,
            Turns::All => requests,
            Turns::Some(places) => places.len(),
        };
        self.give(&mut state, self.now(), None, &mut wakes);
        drop(state);
        wakes.wake();
    }
}

/// What permits are counted under: no store complains of them.
const PERMITS: usize = 0;

/// One origin's part in a limit.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    limit: Limit,
    number: usize,
}

impl Origin {
    /// A read that left at `started` has failed, and its caller hears nothing of it, because another read of the same sample
    /// is waited for. If the store has refused it, the rate learns of that.
    pub(crate) fn withheld(&self, request: &ReadRequest, started: Instant, error: &TierError) {
        if error.kind() != ErrorKind::Throttled {
            return;
        }
        self.limit.back(0, |adaptive, lines, now| {
            if lines.refused_beside(now, started, self.number, Mark::of(&request.object)) {
                adaptive.slowed();
            }
        });
    }
}

impl Gate for Origin {
    fn join(&self, waiter: &Arc<Waiter>, requests: &[ReadRequest]) {
        let (mut state, now) = self.limit.lock_now();
        let room = state.places.saturating_sub(state.taken) >= requests.len();
        if room && state.lines.is_free(now) {
            state.taken += requests.len(); // the common case
            state.lines.left(now, self.number, requests.len());
            waiter.give_all();
        } else {
            for (request, place) in requests.iter().zip(0..) {
                let mark = if state.adaptive.is_some() { Mark::of(&request.object) } else { Mark::default() };
                state.lines.join(self.number, mark, Entry::new(waiter, request.due, place));
            }
        }
        state.note(now);
    }

    fn poll(&self, waiter: &Arc<Waiter>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Turns {
        self.limit.poll(waiter, timer, cx)
    }

    fn clock(&self) -> Option<Instant> {
        self.limit.now()
    }

    fn answered(&self, started: Option<Instant>, mark: Option<Marked>, completion: &Completion) {
        let verdict = match &completion.result {
            Err(error) if error.kind() == ErrorKind::Throttled => Verdict::Refused,
            _ => Verdict::Admitted,
        };
        let named = completion.result.as_ref().err().and_then(|error| error.object());
        let (mark, ticket) = match mark {
            Some(Marked { mark, ticket }) => (Some(mark), ticket),
            None => (named.map(Mark::of_path), None),
        };
        self.limit.back(1, |adaptive, lines, now| {
            let started = started.unwrap_or(now);
            adaptive.answered(now, started, completion);
            if lines.answered(now, started, self.number, (mark, ticket), verdict) {
                adaptive.slowed();
            }
        });
    }

    fn ended(&self, requests: usize) {
        self.limit.back(requests, |_, _, _| {});
    }

    fn leave(&self, waiter: &Arc<Waiter>, requests: usize) {
        self.limit.leave(waiter, requests);
    }
}

/// A place of a [`Limit`], given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a permit gives its place back"]
pub struct Permit(Limit);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.back(1, |_, _, _| {});
    }
}

/// A tier with at most so many requests under way at once.
///
/// A dropped stream gives its places back at once, although a request that had started may still occupy the store
/// until it ends by itself.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_limit` | gauge | `tier` (of a limit that tiers share: the first of them) |
/// | `foreread_tier_in_flight` | gauge | `tier`; places taken now |
/// | `foreread_tier_limit_changes_total` | counter | `tier`, `why`: decisions of an adaptive limit |
/// | `foreread_tier_rate_limit` | gauge | `tier`; requests a second that a store puts up with, the lowest of all; 0 while none complains |
#[derive(Debug)]
pub struct Limited<T: ?Sized> {
    origin: Origin,
    profile: TierProfile,
    inner: Arc<T>,
}

impl<T: Tier + ?Sized> Limited<T> {
    /// `inner` with at most `places` requests under way.
    pub fn new(inner: Arc<T>, places: NonZeroUsize) -> Self {
        Self::with_limit(inner, Limit::new(places))
    }

    /// The same with a limit that others share, or that adapts itself.
    pub fn with_limit(inner: Arc<T>, limit: Limit) -> Self {
        let origin = limit.origin(inner.name());
        Self::as_origin(inner, origin)
    }

    /// The same of an origin that has its part in a limit already.
    pub(crate) fn as_origin(inner: Arc<T>, origin: Origin) -> Self {
        let mut profile = inner.profile().clone();
        profile.parallelism = profile.parallelism.min(origin.limit.most());
        Self { origin, profile, inner }
    }
}

impl<T: ?Sized> Limited<T> {
    /// The places.
    pub fn limit(&self) -> &Limit {
        &self.origin.limit
    }
}

impl<T: Tier + ?Sized> Tier for Limited<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// The inner tier's, with no more parallelism than there are places.
    fn profile(&self) -> &TierProfile {
        &self.profile
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        Gated::read(self.origin.clone(), &self.inner, batch)
    }
}

pass_through!(Limited);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use foreread_tier_testing::FakeOrigin;
    use foreread_types::SampleId;
    use futures::StreamExt;
    use futures::future::join_all;

    use super::*;

    fn places(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    fn origin(samples: u64) -> Arc<FakeOrigin> {
        Arc::new(FakeOrigin::uniform(samples, 10).with_latency(Duration::from_millis(10)))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(id as u32, SampleId(id), Tick(id))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn never_more_under_way_than_places_and_never_fewer_while_some_wait() {
        let origin = origin(90);
        let limited = Limited::new(Arc::clone(&origin), places(7));
        assert_eq!(limited.profile().parallelism, 7);
        let began = Instant::now();
        let batches = (0..3).map(|part| limited.read(batch(&origin, part * 30..(part + 1) * 30)).count());
        assert_eq!(join_all(batches).await, [30, 30, 30]);
        assert_eq!(origin.counts().tally().peak_in_flight, 7);
        assert_eq!(began.elapsed(), Duration::from_millis(10 * 90u64.div_ceil(7)));
        assert_eq!((limited.limit().taken(), limited.limit().waiting()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_due_goes_first_whichever_batch_it_is_in() {
        let origin = origin(12);
        let limited = Limited::new(Arc::clone(&origin), places(1));
        let late = limited.read(batch(&origin, [11, 3, 9, 1]));
        let early = limited.read(batch(&origin, [10, 2, 0, 8]));
        futures::join!(late.count(), early.count());
        let order: Vec<u64> = origin.counts().order().iter().map(|key| key.id.0).collect();
        assert_eq!(order, [1, 0, 2, 3, 8, 9, 10, 11]); // 1 found the place free before anybody else came
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_stream_gives_its_places_and_its_turns_to_others() {
        let origin = origin(30);
        let limited = Limited::new(Arc::clone(&origin), places(4));
        let mut first = limited.read(batch(&origin, 0..10));
        let mut second = limited.read(batch(&origin, 10..20));
        assert!(futures::poll!(first.next()).is_pending());
        assert!(futures::poll!(second.next()).is_pending());
        assert_eq!((limited.limit().taken(), limited.limit().waiting()), (4, 16));
        drop(first); // gives four places to `second`, which is dropped before it looks
        assert_eq!((limited.limit().taken(), limited.limit().waiting()), (4, 6));
        drop(second);
        assert_eq!((limited.limit().taken(), limited.limit().waiting()), (0, 0));
        assert_eq!(limited.read(batch(&origin, 20..30)).count().await, 10);
        drop(limited.read(batch(&origin, 0..10))); // never polled: never in line
        assert_eq!(limited.limit().taken(), 0);
    }

    #[tokio::test]
    async fn permits_and_requests_wait_in_one_line() {
        let limit = Limit::new(places(1));
        let held = limit.acquire(Tick(5)).await;
        let mut late = Box::pin(limit.acquire(Tick(9)));
        let mut early = Box::pin(limit.acquire(Tick(1)));
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
                let limited = Limited::new(Arc::clone(&origin), places(count));
                join_all(batches.iter().map(|&(length, taken, from)| {
                    let stream = limited.read(batch(&origin, from..from + length));
                    async move {
                        let got = stream.take(taken as usize).count().await;
                        assert_eq!(got as u64, taken.min(length));
                    }
                })).await;
                assert_eq!((limited.limit().taken(), limited.limit().waiting()), (0, 0));
                assert!(origin.counts().tally().peak_in_flight <= count as u64);
            });
        }
    }
}
