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
//! The earliest due is sent first; what is being sent is finished. The price is that an urgent request waits for one
//! other at most, and that nobody knows a request's time before its turn has come.

use std::fmt;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_tier::{Completions, ReadRequest, Tier, TierProfile};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::gate::{Entry, Gate, Gated, Line, Turn, Turns, Waiter, Wakes};

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
    /// What is being sent: it is not overtaken, or the time that it has had would be lost.
    sending: Option<Sending>,
    line: Line,
    joined: u64,
}

struct Sending {
    entry: Entry,
    end: Instant,
    rest: u64,
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
        // Cut at a century, so that the sum below stays an instant.
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).min(u64::MAX / 5));
        (clear + took, rest as u64)
    }

    /// Time that lies further back than the credit is lost; says from when the link is free.
    fn free_from(&mut self, now: Instant) -> Instant {
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        match self.clear {
            Some(clear) if clear >= earliest => return clear,
            Some(_) => (self.clear, self.rest) = (Some(earliest), 0),
            None => self.clear = Some(now),
        }
        self.clear.unwrap_or(now)
    }

    /// Lets through what has been sent and sends what is next; returns when that will have been sent, if it is
    /// `me`'s to wait for.
    fn advance(&mut self, now: Instant, me: &Arc<Waiter>, wakes: &mut Wakes) -> Option<Instant> {
        let mut new = false;
        loop {
            match &self.sending {
                Some(sending) if sending.end > now => break,
                Some(sending) => {
                    let waiter = &sending.entry.waiter;
                    waiter.give(Turn { place: sending.entry.place, marked: None });
                    if !Arc::ptr_eq(me, waiter) {
                        wakes.add(waiter);
                    }
                    (self.clear, self.rest) = (Some(sending.end), sending.rest);
                    self.sending = None;
                }
                None => {
                    let entry = self.line.pop()?;
                    let clear = self.free_from(now);
                    let (end, rest) = self.sent(clear, entry.cost);
                    self.sending = Some(Sending { entry, end, rest });
                    new = true;
                }
            }
        }
        let sending = self.sending.as_ref()?;
        if Arc::ptr_eq(me, &sending.entry.waiter) {
            return Some(sending.end);
        }
        // Whose request is being sent keeps the time for all; somebody new has to learn that it is his turn.
        if new {
            wakes.add(&sending.entry.waiter);
        }
        None
    }
}

impl Throttle {
    /// A link of `bytes_per_second`.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        let rate = bytes_per_second.get();
        Self(Arc::new(Mutex::new(State {
            rate,
            clear: None,
            rest: 0,
            sending: None,
            line: Line::default(),
            joined: 0,
        })))
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
        for (request, place) in requests.iter().zip(0..) {
            let (number, cost) = (state.joined, request.len());
            state.joined += 1;
            state.line.push(Entry { number, cost, ..Entry::new(waiter, request.due, place) });
        }
    }

    fn poll(&self, waiter: &Arc<Waiter>, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Turns {
        waiter.waker.register(cx.waker());
        loop {
            let mut wakes = Wakes::default();
            let next = self.lock().advance(Instant::now(), waiter, &mut wakes);
            wakes.wake();
            let Some(next) = next else { return waiter.take() };
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            if sleep.deadline() != next {
                sleep.as_mut().reset(next);
            }
            match Future::poll(sleep.as_mut(), cx) {
                Poll::Pending => return waiter.take(),
                Poll::Ready(()) => {}
            }
        }
    }

    fn ended(&self, _requests: usize) {}

    fn leave(&self, waiter: &Arc<Waiter>, _requests: usize) {
        let mut wakes = Wakes::default();
        let mut state = self.lock();
        state.line.leave(waiter);
        if state.sending.as_ref().is_some_and(|sending| Arc::ptr_eq(&sending.entry.waiter, waiter)) {
            state.sending = None;
            state.advance(Instant::now(), waiter, &mut wakes);
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use foreread_tier::Completion;
    use foreread_tier_testing::FakeOrigin;
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use futures::future::join_all;
    use futures::{StreamExt, stream};

    use super::*;

    const MB: u64 = 1_000_000;

    /// Answers at once, and notes when it was asked for how many bytes.
    #[derive(Debug, Default)]
    struct Probe(Mutex<Vec<(Instant, u64)>>);

    impl Tier for Probe {
        fn name(&self) -> &str {
            "probe"
        }

        fn profile(&self) -> &TierProfile {
            const { &TierProfile::new(1) }
        }

        fn read(&self, batch: Vec<ReadRequest>) -> Completions {
            let now = Instant::now();
            self.0.lock().unwrap().extend(batch.iter().map(|request| (now, request.len())));
            stream::iter(batch)
                .map(|request| Completion { tag: request.tag, result: Ok(Bytes::new()) })
                .boxed()
        }
    }

    fn request(tag: u32, size: u64, due: u64) -> ReadRequest {
        let key = SampleKey::new(DatasetId(0), SampleId(u64::from(tag)));
        let object = foreread_tier::Object { path: "x".into(), size, version: None };
        ReadRequest { tag, key, object, span: foreread_tier::Span::Whole, due: Tick(due) }
    }

    fn probed(rate: u64) -> (Arc<Probe>, Throttled<Probe>) {
        let probe = Arc::new(Probe::default());
        (Arc::clone(&probe), Throttled::new(probe, NonZeroU64::new(rate).unwrap()))
    }

    /// No window holds more than the rate, the credit and one request allow.
    fn assert_never_above(rate: u64, passed: &[(Instant, u64)]) {
        // With `ahead` the sum of bytes up to a request less what the rate allows up to then: none may exceed that of
        // any earlier one, its own bytes not counted, by more than the credit and a request.
        let largest = passed.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
        let (mut sum, mut least) = (0, f64::MAX);
        for &(at, bytes) in passed {
            let allowed = rate as f64 * (at - passed[0].0).as_secs_f64();
            least = least.min(sum as f64 - allowed);
            sum += bytes;
            let above = sum as f64 - allowed - least - rate as f64 * CREDIT.as_secs_f64() - largest as f64;
            assert!(above <= 1.0, "{above} bytes too many up to {:?}", at - passed[0].0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_epoch_takes_its_bytes_over_the_rate() {
        for (count, size, rate) in
            [(4000u32, 100_000, 100 * MB), (1000, 110_017, 33 * MB), (50_000, 3_000, 300 * MB)]
        {
            let (probe, throttled) = probed(rate);
            let began = Instant::now();
            let batches = (0..count / 50)
                .map(|at| (0..50).map(move |tag| request(tag, size, u64::from(at * 50 + tag))));
            // A few batches at a time, as a look-ahead does it.
            stream::iter(batches)
                .map(|batch| throttled.read(batch.collect()).count())
                .buffered(4)
                .count()
                .await;
            let (took, expected) =
                (began.elapsed().as_secs_f64(), f64::from(count) * size as f64 / rate as f64);
            assert!((took / expected - 1.0).abs() < 0.002, "{took} s instead of {expected} s");
            assert_never_above(rate, &probe.0.lock().unwrap());
        }
    }

    #[tokio::test]
    async fn a_running_clock_is_never_ahead_of_the_rate() {
        let (_, throttled) = probed(100 * MB);
        let began = Instant::now();
        let batches =
            (0..10u32).map(|at| (0..50).map(move |tag| request(tag, 100_000, u64::from(at * 50 + tag))));
        stream::iter(batches).map(|batch| throttled.read(batch.collect()).count()).buffered(4).count().await;
        let took = began.elapsed().as_secs_f64();
        println!("0.5 s of transmission took {took:.4} s");
        // A busy machine can be late by any time; it cannot be early.
        assert!(took >= 0.499, "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_of_any_size_takes_its_time_and_passes() {
        let (_, throttled) = probed(10 * MB);
        let began = Instant::now();
        throttled.read(vec![request(0, 50 * MB, 0), request(1, 0, 1), request(2, 10 * MB, 2)]).count().await;
        assert_eq!(began.elapsed(), Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_due_goes_first_whichever_batch_it_is_in() {
        let (probe, throttled) = probed(MB);
        let late = throttled.read(vec![request(0, 50_001, 6), request(1, 50_007, 7)]);
        let early = throttled.read(vec![request(0, 50_005, 5), request(1, 50_002, 2)]);
        futures::join!(late.count(), early.count());
        let order: Vec<u64> = probe.0.lock().unwrap().iter().map(|(_, bytes)| bytes % 10).collect();
        assert_eq!(order, [1, 2, 5, 7]); // the first was being sent before anybody else came
    }

    #[tokio::test(start_paused = true)]
    async fn an_urgent_request_costs_no_time_but_its_own() {
        let (_, throttled) = probed(MB);
        let began = Instant::now();
        let large = throttled.read((0..3).map(|tag| request(tag, MB, 100)).collect()).count();
        let urgent = async {
            for tag in 0..3 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                throttled.read(vec![request(tag, 1000, 0)]).count().await;
            }
        };
        futures::join!(large, urgent);
        assert_eq!(began.elapsed().as_millis(), 3003);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_is_worth_twenty_milliseconds_at_most() {
        let (_, throttled) = probed(MB);
        let mut spent = Vec::new();
        for _ in 0..2 {
            let began = Instant::now();
            throttled.read((0..10).map(|tag| request(tag, 10_000, 0)).collect()).count().await;
            spent.push(began.elapsed().as_millis());
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(spent, [100, 80]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_keeps_the_time_may_be_dropped() {
        let (probe, throttled) = probed(MB);
        let mut first = throttled.read(vec![request(0, 100_000, 0), request(1, 100_000, 0)]);
        let second = tokio::spawn(throttled.read(vec![request(0, 100_000, 1)]).count());
        let third = tokio::spawn(throttled.read(vec![request(0, 100_000, 2)]).count());
        let began = Instant::now();
        assert!(first.next().await.is_some());
        assert!(futures::poll!(first.next()).is_pending());
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!((second.await.unwrap(), third.await.unwrap()), (1, 1));
        assert_eq!(began.elapsed(), Duration::from_millis(300));
        assert_eq!(probe.0.lock().unwrap().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_late_gets_no_burst() {
        let (probe, throttled) = probed(MB);
        let mut stream = throttled.read((0..100).map(|tag| request(tag, 10_000, 0)).collect());
        assert!(futures::poll!(stream.next()).is_pending());
        tokio::time::sleep(Duration::from_millis(500)).await; // and nobody polls
        stream.count().await;
        assert_never_above(MB, &probe.0.lock().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn latency_below_is_added_once() {
        let origin = Arc::new(FakeOrigin::uniform(1000, 100_000).with_latency(Duration::from_millis(40)));
        let throttled = Throttled::new(Arc::clone(&origin), NonZeroU64::new(100 * MB).unwrap());
        let batch = (0..1000).map(|id| origin.request(id, SampleId(u64::from(id)), Tick(0))).collect();
        let began = Instant::now();
        throttled.read(batch).count().await;
        assert_eq!(began.elapsed(), Duration::from_millis(1040));
    }

    proptest::proptest! {
        #[test]
        fn never_above_the_rate_and_never_slower_than_it(
            rate in 1_000u64..1_000_000_000,
            batches in proptest::collection::vec((0u64..40, proptest::collection::vec((0u64..2_000_000, 0u64..9), 0..12)), 1..10),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let (probe, throttled) = probed(rate);
                let began = Instant::now();
                join_all(batches.iter().map(|(wait, sizes)| {
                    let batch: Vec<_> = (0u32..).zip(sizes).map(|(tag, &(size, due))| request(tag, size, due)).collect();
                    let (throttled, length) = (&throttled, batch.len());
                    async move {
                        tokio::time::sleep(Duration::from_millis(*wait)).await;
                        assert_eq!(throttled.read(batch).count().await, length);
                    }
                })).await;
                let total: u64 = batches.iter().flat_map(|(_, sizes)| sizes).map(|(size, _)| size).sum();
                let last = batches.iter().map(|(wait, _)| *wait).max().unwrap_or(0);
                let most = total as f64 / rate as f64 + last as f64 / 1e3 + 0.003;
                let took = began.elapsed().as_secs_f64();
                assert!(took <= most, "{took} s, at most {most} s");
                assert_never_above(rate, &probe.0.lock().unwrap());
            });
        }
    }
}
