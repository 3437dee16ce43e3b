//! A tier held to a rate in bytes a second.
//!
//! The tier is made to look like a link of that rate: requests are sent over it one after another, and a request goes
//! on to the tier below at the moment when its last byte would have passed. So `n` bytes take `n / rate` and the
//! tier's own latency once, and the first request waits as the others do. What counts is the end of the link's last
//! transmission in absolute time, to the nanosecond; a timer that fires a millisecond late lets the requests go that
//! have become due meanwhile, and nothing adds up.
//!
//! A link that was idle (or a caller that came late) gets up to 20 ms of transmission back, so that short gaps between
//! requests do not cost bandwidth. Over any window of `w` seconds at most `rate * (w + 0.02)` bytes and one request
//! go through. A request of any size passes: it only takes its time.
//!
//! The price of sending requests in the order of need is that a request's time is not known until its turn comes.

use std::fmt;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_tier::{Completions, ReadRequest, Tier, TierProfile};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::gate::{Gate, Gated, Line, Waiter, Wakes};

/// How much unused transmission time is kept.
const CREDIT: Duration = Duration::from_millis(20);

const NANOS: u128 = 1_000_000_000;

/// A rate in bytes a second that all requests share; clones share it too.
#[derive(Clone)]
pub struct Throttle(Arc<Mutex<State>>);

struct State {
    rate: u64,
    /// When the link has sent all that was let through; `None` before the first request.
    clear: Option<Instant>,
    /// What `clear` lacks, in nanoseconds times `rate`: less than one nanosecond.
    rest: u64,
    line: Line,
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Throttle").field("rate", &state.rate).field("waiting", &state.line.len()).finish()
    }
}

impl State {
    /// When the link would have sent `bytes` more, and the rest.
    fn sent(&self, clear: Instant, bytes: u64) -> (Instant, u64) {
        let scaled = u128::from(bytes) * NANOS + u128::from(self.rest);
        let (nanos, rest) = (scaled / u128::from(self.rate), scaled % u128::from(self.rate));
        // A transmission of more than 500 years ends never; a century is never too.
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).min(u64::MAX / 5));
        (clear + took, rest as u64)
    }

    /// Time that lies further back than the credit is lost.
    fn forget(&mut self, now: Instant) {
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        match self.clear {
            Some(clear) if clear >= earliest => {}
            Some(_) => (self.clear, self.rest) = (Some(earliest), 0),
            None => self.clear = Some(now),
        }
    }

    /// Lets through what is due; returns when the head of the line will be, if that is `me`.
    fn advance(&mut self, now: Instant, me: &Arc<Waiter>, wakes: &mut Wakes) -> Option<Instant> {
        let mut passed = false;
        let next = loop {
            let (Some(head), Some(clear)) = (self.line.head(), self.clear) else { break None };
            let (sent, rest) = self.sent(clear, head.cost);
            if sent > now {
                break Some(sent);
            }
            if !Arc::ptr_eq(me, &head.waiter) {
                wakes.add(&head.waiter);
            }
            head.waiter.give(1);
            self.line.pop();
            (self.clear, self.rest) = (Some(sent), rest);
            self.forget(now);
            passed = true;
        };
        let head = self.line.head()?;
        if Arc::ptr_eq(me, &head.waiter) {
            return next;
        }
        // The head keeps the time for all; a new one has to learn that it is its turn to do so.
        if passed {
            wakes.add(&head.waiter);
        }
        None
    }
}

impl Throttle {
    /// A link of `bytes_per_second`.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        let rate = bytes_per_second.get();
        Self(Arc::new(Mutex::new(State { rate, clear: None, rest: 0, line: Line::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rate in bytes a second.
    pub fn bytes_per_second(&self) -> u64 {
        self.lock().rate
    }
}

impl Gate for Throttle {
    fn join(&self, waiter: &Arc<Waiter>, requests: &[ReadRequest]) {
        let mut state = self.lock();
        if state.line.len() == 0 {
            state.forget(Instant::now());
        }
        for request in requests {
            state.line.join(waiter, request.due, request.len());
        }
    }

    fn poll(&self, waiter: &Arc<Waiter>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> usize {
        waiter.waker.register(cx.waker());
        let mut turns = 0;
        loop {
            let mut wakes = Wakes::default();
            let next = self.lock().advance(Instant::now(), waiter, &mut wakes);
            wakes.wake();
            turns += waiter.take();
            let Some(next) = next else { return turns };
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if sleep.deadline() != next {
                sleep.as_mut().reset(next);
            }
            match Future::poll(sleep.as_mut(), cx) {
                Poll::Pending => return turns,
                Poll::Ready(()) => {}
            }
        }
    }

    fn ended(&self, _requests: usize) {}

    fn leave(&self, waiter: &Arc<Waiter>) {
        let mut wakes = Wakes::default();
        let mut state = self.lock();
        state.line.leave(waiter);
        if let Some(head) = state.line.head() {
            wakes.add(&head.waiter);
        }
        drop(state);
        wakes.wake();
    }
}

/// A tier held to a rate.
#[derive(Debug)]
pub struct Throttled<T: ?Sized> {
    throttle: Throttle,
    inner: Arc<T>,
}

impl<T: ?Sized> Throttled<T> {
    /// `inner` held to `bytes_per_second`.
    pub fn new(inner: Arc<T>, bytes_per_second: NonZeroU64) -> Self {
        Self::with_throttle(inner, Throttle::new(bytes_per_second))
    }

    /// `inner` held to a rate that others share.
    pub fn with_throttle(inner: Arc<T>, throttle: Throttle) -> Self {
        Self { throttle, inner }
    }

    /// The rate.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }
}

impl<T: Tier + ?Sized> Tier for Throttled<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        Gated::read(self.throttle.clone(), &self.inner, batch)
    }
}

pass_through!(Throttled);
