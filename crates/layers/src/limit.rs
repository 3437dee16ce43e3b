//! At most so many requests under way at once.
//!
//! A store has a concurrency beyond which more requests only queue inside of it, where nobody can reorder them. Here
//! they queue outside, the earliest due first. The number is fixed; what adapts it to a measured latency will set it
//! behind [`Limit`], and neither [`Limited`] nor its users will notice.

use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use foreread_tier::{Completions, ReadRequest, Tier, TierProfile};
use foreread_types::Tick;
use tokio::time::Sleep;

use crate::gate::{Gate, Gated, Line, Waiter, Wakes};

/// A number of places that requests take one each; clones share them.
#[derive(Clone)]
pub struct Limit(Arc<Mutex<State>>);

struct State {
    places: usize,
    taken: usize,
    line: Line,
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Limit")
            .field("places", &state.places)
            .field("taken", &state.taken)
            .field("waiting", &state.line.len())
            .finish()
    }
}

impl Limit {
    /// `places` places, all free.
    pub fn new(places: NonZeroUsize) -> Self {
        Self(Arc::new(Mutex::new(State { places: places.get(), taken: 0, line: Line::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.lock().places
    }

    /// How many of them are taken.
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// How many requests wait for one.
    pub fn waiting(&self) -> usize {
        self.lock().line.len()
    }

    /// Takes a place, waiting for one if need be: the earliest due first, among equals the first to come.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the line; a place that was given and not yet taken goes to the next.
    pub async fn acquire(&self, due: Tick) -> Permit {
        struct Leave<'a>(&'a Limit, Arc<Waiter>);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.leave(&self.1);
            }
        }
        let leave = Leave(self, Arc::default());
        self.lock().line.join(&leave.1, due, 1);
        poll_fn(|cx| match Gate::poll(self, &leave.1, &mut None, cx) {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        Permit(self.clone())
    }

    /// Gives free places to the head of the line; wakes all who got some but `me`, who looks for itself.
    fn give(state: &mut State, me: Option<&Arc<Waiter>>, wakes: &mut Wakes) {
        while state.taken < state.places
            && let Some(entry) = state.line.pop()
        {
            state.taken += 1;
            entry.waiter.give(1);
            if !me.is_some_and(|me| Arc::ptr_eq(me, &entry.waiter)) {
                wakes.add(&entry.waiter);
            }
        }
    }
}

impl Gate for Limit {
    fn join(&self, waiter: &Arc<Waiter>, requests: &[ReadRequest]) {
        let mut state = self.lock();
        if state.line.len() == 0 && state.places - state.taken >= requests.len() {
            state.taken += requests.len(); // the common case: room for all
            waiter.give(requests.len());
            return;
        }
        for request in requests {
            state.line.join(waiter, request.due, 1);
        }
    }

    fn poll(&self, waiter: &Arc<Waiter>, _: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> usize {
        waiter.waker.register(cx.waker());
        match waiter.take() {
            0 => {}
            turns => return turns,
        }
        let mut wakes = Wakes::default();
        Self::give(&mut self.lock(), Some(waiter), &mut wakes);
        wakes.wake();
        waiter.take()
    }

    fn ended(&self, requests: usize) {
        let mut wakes = Wakes::default();
        let mut state = self.lock();
        state.taken -= requests;
        Self::give(&mut state, None, &mut wakes);
        drop(state);
        wakes.wake();
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        let mut wakes = Wakes::default();
        let mut state = self.lock();
        state.line.leave(waiter);
        state.taken -= waiter.take();
        Self::give(&mut state, None, &mut wakes);
        drop(state);
        wakes.wake();
    }
}

/// A place of a [`Limit`], given back when dropped.
#[derive(Debug)]
#[must_use = "dropping a permit gives its place back"]
pub struct Permit(Limit);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.ended(1);
    }
}

/// A tier with at most so many requests under way at once.
///
/// A dropped stream gives its places back at once, although a request that had started may still occupy the store
/// until it ends by itself.
#[derive(Debug)]
pub struct Limited<T: ?Sized> {
    limit: Limit,
    profile: TierProfile,
    inner: Arc<T>,
}

impl<T: Tier + ?Sized> Limited<T> {
    /// `inner` with at most `places` requests under way.
    pub fn new(inner: Arc<T>, places: NonZeroUsize) -> Self {
        Self::with_limit(inner, Limit::new(places))
    }

    /// The same with a limit that others share.
    pub fn with_limit(inner: Arc<T>, limit: Limit) -> Self {
        let mut profile = inner.profile().clone();
        profile.parallelism = profile.parallelism.min(limit.places());
        Self { limit, profile, inner }
    }
}

impl<T: ?Sized> Limited<T> {
    /// The places.
    pub fn limit(&self) -> &Limit {
        &self.limit
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
        Gated::read(self.limit.clone(), &self.inner, batch)
    }
}

pass_through!(Limited);
