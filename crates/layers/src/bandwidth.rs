//! A limit in bytes per second.
//!
//! It simulates a link of that rate: a request leaves when the link has sent everything before it.
//! The state is the absolute end of the last transmission, to the nanosecond. A timer that fires a
//! millisecond late releases the requests that have become due meanwhile, so errors do not add up.
//!
//! An idle link (or a late caller) gets up to 20 ms of transmission back, so short gaps between
//! requests do not cost bandwidth. In any window of `w` seconds at most `rate * (w + 0.02)` bytes
//! and one request leave. A request of any size passes, and those after it wait for it.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_tier::lock;
use tokio::time::Instant;

/// Unused transmission time that is credited.
const CREDIT: Duration = Duration::from_millis(20);

const NANOS: u128 = 1_000_000_000;

/// A limit in bytes per second for all requests together. Clones share it.
#[derive(Clone, Debug)]
pub struct Bandwidth(Arc<Mutex<LinkState>>);

#[derive(Debug)]
struct LinkState {
    /// `None`: unlimited, at present.
    rate: Option<NonZeroU64>,
    /// The end of the last transmission. `None` before the first request.
    clear: Option<Instant>,
    /// The fraction of a nanosecond that `clear` lacks, times `rate`.
    rest: u64,
}

impl Bandwidth {
    /// At most `bytes_per_second`.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Self::changeable(Some(bytes_per_second))
    }

    /// At most `bytes_per_second`, or any number, until that is [changed](Self::set_rate).
    pub fn changeable(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self(Arc::new(Mutex::new(LinkState { rate: bytes_per_second, clear: None, rest: 0 })))
    }

    /// Changes the rate, or ends the limit. Requests that wait leave by the new rate a fourth of a
    /// second later at most. Bytes that are being sent are sent at the new rate.
    pub fn set_rate(&self, bytes_per_second: Option<NonZeroU64>) {
        lock(&self.0).set_rate(bytes_per_second, Instant::now());
    }

    /// When the next request may leave. `None` if at once.
    pub(crate) fn clear(&self) -> Option<Instant> {
        lock(&self.0).clear
    }

    /// Lets a request of `bytes` leave now, unless the link is busy: two limits may share it.
    pub(crate) fn leave(&self, now: Instant, bytes: u64) -> bool {
        let mut link = lock(&self.0);
        if link.clear.is_some_and(|clear| clear > now) {
            return false;
        }
        link.take(now, bytes);
        true
    }

    /// Lets a request of `bytes` leave now, even on a busy link.
    pub(crate) fn take(&self, now: Instant, bytes: u64) {
        lock(&self.0).take(now, bytes);
    }
}

impl LinkState {
    fn set_rate(&mut self, rate: Option<NonZeroU64>, now: Instant) {
        let left = self.clear.map(|clear| clear.saturating_duration_since(now));
        let scaled = self.rate.zip(rate).zip(left).map(|((old, new), left)| {
            let nanos = left.as_nanos() * u128::from(old.get()) / u128::from(new.get());
            now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).min(u64::MAX / 5))
        });
        (self.rate, self.clear, self.rest) = (rate, scaled, 0);
    }

    fn take(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate.map(|rate| u128::from(rate.get())) else { return };
        // Idle time beyond the credit is lost.
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let (clear, rest) = match self.clear {
            Some(clear) if clear >= earliest => (clear, self.rest),
            Some(_) => (earliest, 0),
            None => (now, 0),
        };
        let scaled = u128::from(bytes) * NANOS + u128::from(rest);
        let (nanos, rest) = (scaled / rate, scaled % rate);
        // Capped at a century, so that the sum below is a valid instant.
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).min(u64::MAX / 5));
        (self.clear, self.rest) = (Some(clear + took), rest as u64);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use foreread_tier::{Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError, TierProfile};
    use foreread_tier_testing::{FakeOrigin, ReadAll};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use futures::future::{BoxFuture, join_all, pending};
    use futures::stream::BoxStream;
    use futures::{StreamExt, stream};

    use super::*;
    use crate::Stack;

    const MB: u64 = 1_000_000;

    /// Answers at once, and records the time and size of each request.
    #[derive(Debug, Default)]
    struct Probe(Mutex<Vec<(Instant, u64)>>);

    impl Tier for Probe {
        fn name(&self) -> &str {
            "probe"
        }

        fn profile(&self) -> &TierProfile {
            const { &TierProfile::new(1) }
        }

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            self.0.lock().unwrap().push((Instant::now(), request.len()));
            Box::pin(std::future::ready(Ok(Bytes::new())))
        }

        fn submit(&self) {}
    }

    impl OriginTier for Probe {
        fn list(&self, _: &str, _: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
            stream::empty().boxed()
        }

        fn stat(&self, _: &str) -> BoxFuture<'static, Result<Object, TierError>> {
            Box::pin(pending())
        }

        fn place(&self) -> &str {
            "probe"
        }

        fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
            None
        }
    }

    fn request(id: u64, size: u64, due: u64) -> ReadRequest {
        let key = SampleKey::new(DatasetId(0), SampleId(id));
        let object = Object { path: "x".into(), size, version: None };
        ReadRequest::new(key, object, Span::Whole, Tick(due))
    }

    fn held<T: OriginTier>(tier: Arc<T>, rate: u64) -> Arc<dyn OriginTier> {
        Stack::bare().with_bandwidth(NonZeroU64::new(rate).map(Bandwidth::new)).wrap(tier)
    }

    fn probed(rate: u64) -> (Arc<Probe>, Arc<dyn OriginTier>) {
        let probe = Arc::new(Probe::default());
        (Arc::clone(&probe), held(probe, rate))
    }

    /// No window holds more than the rate, the credit and one request allow.
    fn assert_never_above(rate: u64, passed: &[(Instant, u64)]) {
        // For each request: the bytes so far minus the bytes that the rate allows so far. It must
        // not exceed that of any earlier request (without its own bytes) by more than the credit
        // and a request.
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
    async fn epoch_takes_its_bytes_over_the_rate() {
        for (count, size, rate) in
            [(4000u64, 100_000, 100 * MB), (1000, 110_017, 33 * MB), (50_000, 3_000, 300 * MB)]
        {
            let (probe, held) = probed(rate);
            let began = Instant::now();
            let batches =
                (0..count / 50).map(|at| (0..50).map(move |id| request(id, size, at * 50 + id)).collect());
            // A few batches at a time, like a look-ahead.
            stream::iter(batches).map(|batch| held.read_all(batch).count()).buffered(4).count().await;
            let took = began.elapsed().as_secs_f64();
            let expected = (count - 1) as f64 * size as f64 / rate as f64;
            assert!((took / expected - 1.0).abs() < 0.002, "{took} s instead of {expected} s");
            assert_never_above(rate, &probe.0.lock().unwrap());
        }
    }

    #[tokio::test]
    async fn rate_holds_on_a_running_clock() {
        let (_, held) = probed(100 * MB);
        let began = Instant::now();
        held.read_all((0..501).map(|id| request(id, 100_000, id)).collect()).count().await;
        let took = began.elapsed().as_secs_f64();
        // A busy machine can be late by any time. It cannot be early.
        assert!(took >= 0.499, "{took} s");
    }

    #[tokio::test(start_paused = true)]
    async fn large_request_delays_those_after_it() {
        let (_, held) = probed(10 * MB);
        let began = Instant::now();
        held.read_all(vec![request(0, 50 * MB, 0), request(1, 0, 1), request(2, 10 * MB, 2)]).count().await;
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_due_leaves_first() {
        let (probe, held) = probed(MB);
        let late = held.read_all(vec![request(0, 50_001, 6), request(1, 50_007, 7)]);
        let early = held.read_all(vec![request(0, 50_005, 5), request(1, 50_002, 2)]);
        futures::join!(late.count(), early.count());
        let order: Vec<u64> = probe.0.lock().unwrap().iter().map(|(_, bytes)| bytes % 10).collect();
        assert_eq!(order, [1, 2, 5, 7]); // the first had left before the others came
    }

    #[tokio::test(start_paused = true)]
    async fn idle_credit_is_twenty_milliseconds() {
        let (_, held) = probed(MB);
        let mut spent = Vec::new();
        for _ in 0..2 {
            let began = Instant::now();
            held.read_all((0..10).map(|id| request(id, 10_000, 0)).collect()).count().await;
            spent.push(began.elapsed().as_millis());
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!(spent, [90, 70]);
    }

    #[tokio::test(start_paused = true)]
    async fn timer_owner_may_be_dropped() {
        let (probe, held) = probed(MB);
        let mut first = held.read_all((0..3).map(|id| request(id, 100_000, 0)).collect());
        let second = tokio::spawn(held.read_all(vec![request(0, 100_000, 1)]).count());
        let third = tokio::spawn(held.read_all(vec![request(0, 100_000, 2)]).count());
        let began = Instant::now();
        assert!(first.next().await.is_some());
        assert!(futures::poll!(first.next()).is_pending());
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!((second.await.unwrap(), third.await.unwrap()), (1, 1));
        assert_eq!(began.elapsed(), Duration::from_millis(200));
        assert_eq!(probe.0.lock().unwrap().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn late_poll_gets_no_burst() {
        let (probe, held) = probed(MB);
        let mut reads = held.read_all((0..100).map(|id| request(id, 10_000, 0)).collect());
        assert!(reads.next().await.is_some());
        assert!(futures::poll!(reads.next()).is_pending());
        tokio::time::sleep(Duration::from_millis(500)).await; // without a poll
        reads.count().await;
        assert_never_above(MB, &probe.0.lock().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn latency_is_added_once() {
        let origin = Arc::new(FakeOrigin::uniform(1001, 100_000).with_latency(Duration::from_millis(40)));
        let held = held(Arc::clone(&origin), 100 * MB);
        let batch = (0..1001).map(|id| origin.request(SampleId(id), Tick(0))).collect();
        let began = Instant::now();
        held.read_all(batch).count().await;
        assert_eq!(began.elapsed(), Duration::from_millis(1040));
    }

    proptest::proptest! {
        #[test]
        fn bandwidth_is_neither_exceeded_nor_missed(
            rate in 1_000u64..1_000_000_000,
            batches in proptest::collection::vec(
                (0u64..40, proptest::collection::vec((0u64..2_000_000, 0u64..9), 0..12)),
                1..10,
            ),
        ) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let (probe, held) = probed(rate);
                let began = Instant::now();
                join_all(batches.iter().map(|(wait, sizes)| {
                    let requests = (0u64..).zip(sizes).map(|(id, &(size, due))| request(id, size, due));
                    let batch: Vec<_> = requests.collect();
                    let (held, length) = (&held, batch.len());
                    async move {
                        tokio::time::sleep(Duration::from_millis(*wait)).await;
                        assert_eq!(held.read_all(batch).count().await, length);
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

    #[tokio::test(start_paused = true)]
    // semantics: AGENT-10
    async fn changed_rate_holds_for_requests_that_wait() {
        let rate = |bytes: u64| NonZeroU64::new(bytes);
        let bandwidth = Bandwidth::changeable(rate(1));
        let probe = Arc::new(Probe::default());
        let origin = Stack::bare().with_bandwidth(Some(bandwidth.clone())).wrap(Arc::clone(&probe) as _);
        let begun = Instant::now();
        let reads = tokio::spawn(join_all((0..20).map(|id| origin.read(Arc::new(request(id, MB / 10, id))))));
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The second would leave after a day.
        assert_eq!(probe.0.lock().unwrap().len(), 1);
        bandwidth.set_rate(rate(MB));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let left = probe.0.lock().unwrap().len();
        assert!((12..=16).contains(&left), "{left}");
        bandwidth.set_rate(None);
        reads.await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}
