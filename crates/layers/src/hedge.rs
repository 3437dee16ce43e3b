//! Hedged requests: a second read for a late one.
//!
//! Every origin answers some reads much later than the rest: a lost packet, a slow disk, a node
//! that is being replaced. Reads change nothing, so a late read is sent once more, and the first
//! answer counts (Dean and Barroso, "The Tail at Scale", 2013). A read is late after a quantile of
//! the tier's recent latencies of its size, times a factor. Before enough reads were measured, it
//! is late after two seconds plus the transfer time on a slow link. Hedges have a budget of a few
//! per cent of the reads, so a slow origin does not get twice the load.
//!
//! A late hedge is hedged again. The read that loses is dropped. A retryable error waits for the
//! other read. Any other error is the answer.
//!
//! Hedges need no slot of a limit, unless the limit is the user's own. Then they wait in its queue
//! like any read, and leave it if the first read answers before. The budget is charged when a hedge
//! leaves. A queued hedge does not delay an error of the first read. Otherwise the two would wait
//! for each other.
//!
//! The price is a timer for each read that does not answer at once, one lock per answer, and the
//! budget's share of load.

use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ReadRequest, TierError, lock};
use futures::future::{BoxFuture, OptionFuture, poll_fn};
use metrics::Counter;
use tokio::time::{Instant, sleep_until};

use crate::Meter;
use crate::deadline::YEAR;
use crate::histogram::Histogram;

/// When a read is late, and how many hedges are allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HedgePolicy {
    /// A read is late after this quantile (0 to 1) of the latencies of its size ...
    pub quantile: f64,
    /// ... times this factor ...
    pub factor: f64,
    /// ... and not before this time.
    pub shortest: Duration,
    /// The number of measured reads of a size before the quantile is used (at most 1,024).
    pub fewest: u32,
    /// Hedges as a fraction (0 to 1) of the reads, at most.
    pub budget: f64,
    /// Hedges per read, at most: if every hundredth read hangs, so does every hundredth hedge.
    pub most: u32,
}

impl Default for HedgePolicy {
    /// Three times the 95th percentile and at least 10 ms, after 20 reads, for at most 3 reads in
    /// 100, each at most twice.
    ///
    /// The quantile is not higher because it must exclude the reads that hedges are for. If two
    /// reads of a hundred hang, the 99th percentile is a hanging read.
    fn default() -> Self {
        Self {
            quantile: 0.95,
            factor: 3.0,
            shortest: Duration::from_millis(10),
            fewest: 20,
            budget: 0.03,
            most: 2,
        }
    }
}

setters! { HedgePolicy:
    /// The same with another budget (a fraction of the reads, 0 to 1).
    with_budget(budget: f64);
    /// The same, where a read is late after `factor` times the `quantile` of recent latencies, and
    /// after `shortest`.
    with_lateness(quantile: f64, factor: f64, shortest: Duration);
    /// The same with another minimum number of observed reads.
    with_fewest(fewest: u32);
}

/// The largest unspent budget, in hedges. It is also the initial budget: a run should not start
/// with waiting for the dead half of a server.
const MAX_BUDGET: f64 = 16.0;
/// A read of an unknown size class is late after this time plus its bytes at `SLOW_LINK` bytes per
/// second.
const DEFAULT_LATENESS: Duration = Duration::from_secs(2);
const SLOW_LINK: f64 = 5e6;

/// The interval between checks of a read of an unknown size class. A run starts with such reads,
/// and enough others are answered while the first one hangs.
const RECHECK: Duration = Duration::from_millis(50);

/// The result of a read.
type ReadResult = Result<Bytes, TierError>;

/// A hedge: the outer future waits until it may leave, the inner one is in flight.
pub(crate) type SecondRead<'a> = BoxFuture<'a, BoxFuture<'a, ReadResult>>;

/// Decides when a read is late, and hedges it.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_read_hedges_total` | counter | `tier` |
/// | `foreread_tier_read_hedges_won_total` | counter | `tier`; hedges that answered first |
#[derive(Debug)]
pub(crate) struct Hedge {
    policy: HedgePolicy,
    meter: Meter,
    hedges: Counter,
    won: Counter,
    seen: Mutex<HedgeState>,
}

#[derive(Debug)]
struct HedgeState {
    latencies: Histogram,
    /// The number of hedges that may be sent.
    budget_left: f64,
}

impl Hedge {
    pub(crate) fn new(tier: &str, policy: HedgePolicy, meter: Meter) -> Self {
        let tier = tier.to_owned();
        let latencies = Histogram::new(policy.quantile, policy.fewest);
        Self {
            policy,
            meter,
            hedges: metrics::counter!("foreread_tier_read_hedges_total", "tier" => tier.clone()),
            won: metrics::counter!("foreread_tier_read_hedges_won_total", "tier" => tier),
            seen: Mutex::new(HedgeState { latencies, budget_left: MAX_BUDGET }),
        }
    }

    /// How long a read of `bytes` may take before it is late, and the time until the next check,
    /// when the quantile may be known.
    fn lateness(&self, seen: &HedgeState, bytes: u64) -> (Duration, Duration) {
        match seen.latencies.quantile(bytes) {
            Some(usual) => {
                // Capped at a year, so that the sum with any instant is valid.
                let late = Duration::try_from_secs_f64(usual.as_secs_f64() * self.policy.factor.max(0.0));
                (late.unwrap_or(YEAR).max(self.policy.shortest).min(YEAR), YEAR)
            }
            None => {
                let guess = DEFAULT_LATENESS + Duration::from_secs_f64(bytes as f64 / SLOW_LINK);
                (guess.min(YEAR), RECHECK)
            }
        }
    }

    /// When to check a read that left at `since`, and whether it is late then.
    fn next_check(&self, bytes: u64, since: Instant) -> (Instant, bool) {
        let now = Instant::now();
        let took = now.saturating_duration_since(since);
        let seen = lock(&self.seen);
        let (after, soon) = self.lateness(&seen, bytes);
        if after <= took && seen.budget_left >= 1.0 {
            return (now, true);
        }
        // A late read is checked again, because there may be budget by then.
        let wait = if after <= took { after } else { after - took };
        (now + wait.min(soon).max(Duration::from_millis(1)), false)
    }

    /// Charges the budget for a hedge that is about to leave. Returns whether there was any.
    fn pay(&self) -> bool {
        let mut seen = lock(&self.seen);
        let has_budget = seen.budget_left >= 1.0;
        if has_budget {
            seen.budget_left -= 1.0;
        }
        has_budget
    }

    /// The answer of the read `first`, which left at `started`, or of a hedge made by `second`.
    /// `withheld` gets the first read's error if that is not the answer.
    pub(crate) async fn race<'a>(
        &self,
        request: &ReadRequest,
        started: Instant,
        first: impl Future<Output = ReadResult>,
        second: impl Fn() -> SecondRead<'a>,
        withheld: impl Fn(&TierError),
    ) -> ReadResult {
        {
            let mut seen = lock(&self.seen);
            seen.budget_left = (seen.budget_left + self.policy.budget.clamp(0.0, 1.0)).min(MAX_BUDGET);
        }
        let (mut first, mut failed) = (pin!(first), None);
        let (mut waiting, mut under_way): (Option<SecondRead<'a>>, Vec<BoxFuture<'a, ReadResult>>) =
            Default::default();
        let (mut since, mut sent) = (started, 0);
        let (answer, of_second) = loop {
            let may_send = sent < self.policy.most && waiting.is_none() && failed.is_none();
            let next_check = may_send.then(|| self.next_check(request.len(), since));
            let (at, is_late) = next_check.unwrap_or((started, false));
            tokio::select! {
                biased;
                answer = &mut first, if failed.is_none() => match answer {
                    Err(error) if error.is_retryable() && !under_way.is_empty() => failed = Some(error),
                    answer => break (answer, false),
                },
                answer = next_of(&mut under_way), if !under_way.is_empty() => match answer {
                    Err(error) if error.is_retryable() => {
                        if under_way.is_empty() && let Some(error) = failed.take() {
                            return Err(error);
                        }
                    }
                    answer => break (answer, true),
                },
                Some(read) = OptionFuture::from(waiting.as_mut()) => {
                    waiting = None;
                    if self.pay() {
                        self.meter.hedged();
                        self.hedges.increment(1);
                        let (object, took) = (&*request.object.path, started.elapsed());
                        tracing::debug!(object, ?took, "hedging a late read");
                        under_way.push(read);
                    }
                }
                () = sleep_until(at), if next_check.is_some() => if is_late {
                    (since, sent) = (Instant::now(), sent + 1);
                    waiting = Some(second());
                }
            }
        };
        if let Some(error) = failed {
            withheld(&error);
        }
        if answer.is_ok() {
            lock(&self.seen).latencies.record(request.len(), started.elapsed());
            if of_second {
                self.won.increment(1);
            }
        }
        answer
    }
}

/// Removes the first of these reads that answers.
async fn next_of(reads: &mut Vec<BoxFuture<'_, ReadResult>>) -> ReadResult {
    poll_fn(|cx| {
        for at in 0..reads.len() {
            if let Poll::Ready(answer) = reads[at].as_mut().poll(cx) {
                drop(reads.swap_remove(at));
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_tier::{ErrorKind, Object, OriginTier, ReadFuture, Tier, TierProfile};
    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, When};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use futures::StreamExt;
    use futures::stream::BoxStream;

    use super::*;
    use crate::Stack;

    const LATENCY: Duration = Duration::from_millis(20);

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    fn origin() -> Arc<FakeOrigin> {
        Arc::new(FakeOrigin::uniform(1000, 100).with_latency(LATENCY))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(SampleId(id), Tick(id))).collect()
    }

    fn wrap(below: Arc<impl OriginTier>, policy: HedgePolicy) -> Arc<dyn OriginTier> {
        Stack::bare().with_hedge(Some(policy)).wrap(below)
    }

    fn hedged(
        origin: &Arc<FakeOrigin>,
        when: When,
        fault: Fault,
    ) -> (Arc<dyn OriginTier>, Arc<FailingTier<FakeOrigin>>, Meter) {
        let counted = Arc::new(FailingTier::new(Arc::clone(origin)).on(when, fault));
        let stack = Stack::bare().with_hedge(Some(HedgePolicy::default()));
        (stack.wrap(Arc::clone(&counted) as Arc<dyn OriginTier>), counted, stack.meter)
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_read_is_hedged_alone() {
        let origin = origin();
        let (hedged, counted, meter) = hedged(&origin, When::First(key(500), 1), Fault::Never);
        assert_eq!(hedged.read_all(batch(&origin, 0..200)).count().await, 200);
        let began = Instant::now();
        let mut stream = hedged.read_all(batch(&origin, 490..510));
        for _ in 0..19 {
            assert_ne!(stream.next().await.unwrap().tag, 10);
        }
        assert_eq!(began.elapsed(), LATENCY);
        let last = stream.next().await.unwrap();
        assert_eq!((last.tag, last.result.unwrap()), (10, origin.expected(SampleId(500))));
        // Three times the 95th percentile (rounded to a bucket), and the time of the hedge.
        let took = began.elapsed().as_millis();
        assert!((80..95).contains(&took), "{took} ms");
        assert!(stream.next().await.is_none());
        let tally = counted.counts().tally();
        assert_eq!((meter.read().hedged, tally.requests, tally.in_flight), (1, 221, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn early_hedges_use_the_default_lateness() {
        let origin = origin();
        let (hedged, _, meter) =
            hedged(&origin, When::First(key(50), 1), Fault::Stall(Duration::from_secs(5)));
        let began = Instant::now();
        assert_eq!(hedged.read_all(batch(&origin, 35..54)).count().await, 19);
        let took = began.elapsed();
        assert!(DEFAULT_LATENESS + LATENCY <= took && took < DEFAULT_LATENESS + 5 * LATENCY, "{took:?}");
        assert_eq!(meter.read().hedged, 1);
    }

    #[tokio::test(start_paused = true)]
    // semantics: FAIL-12
    async fn early_hanging_read_is_hedged_once_latency_is_known() {
        let origin = origin();
        let (hedged, _, meter) = hedged(&origin, When::First(key(50), 1), Fault::Never);
        let began = Instant::now();
        assert_eq!(hedged.read_all(batch(&origin, 0..64)).count().await, 64);
        let took = began.elapsed();
        assert!(took < 8 * LATENCY, "{took:?}");
        assert_eq!(meter.read().hedged, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_origin_gets_few_hedges() {
        let origin = origin();
        let (hedged, _, meter) = hedged(&origin, When::Key(key(999)), Fault::Short);
        for _ in 0..5 {
            assert_eq!(hedged.read_all(batch(&origin, 0..200)).count().await, 200);
        }
        origin.set_latency(Duration::from_secs(1));
        for _ in 0..5 {
            assert_eq!(hedged.read_all(batch(&origin, 0..200)).count().await, 200);
        }
        let sent = meter.read().hedged;
        assert!((1..=62).contains(&sent), "{sent} hedges of 2,000 reads");
    }

    /// Hedges that waited for a slot until their first reads had answered had used up the budget.
    #[tokio::test(start_paused = true)]
    #[expect(
        clippy::async_yields_async,
        reason = "the outer future waits for a slot, the inner one is the read"
    )]
    // semantics: FAIL-12
    async fn unsent_hedge_costs_nothing() {
        let (hedge, meter) = (HedgePolicy::default(), Meter::new());
        let hedge = Hedge::new("test", hedge, meter.clone());
        let request = origin().request(SampleId(7), Tick(0));
        let late = DEFAULT_LATENESS + Duration::from_secs(1);
        let place = tokio::sync::Semaphore::new(0);
        let race = async |first: Duration| {
            let second = || -> SecondRead<'_> {
                Box::pin(async {
                    place.acquire().await.unwrap().forget();
                    let read: BoxFuture<'_, ReadResult> =
                        Box::pin(async { Ok(Bytes::from_static(b"second")) });
                    read
                })
            };
            let first = async {
                tokio::time::sleep(first).await;
                Ok(Bytes::from_static(b"first"))
            };
            hedge.race(&request, Instant::now(), first, second, |_| ()).await.unwrap()
        };
        for _ in 0..40 {
            assert_eq!(race(late).await, "first");
        }
        assert_eq!((meter.read().hedged, lock(&hedge.seen).budget_left), (0, MAX_BUDGET));
        // So there is budget for a hanging read.
        place.add_permits(1);
        assert_eq!(race(YEAR).await, "second");
        assert_eq!(meter.read().hedged, 1);
    }

    /// The sum of an instant and the time after which a read is late panicked.
    #[tokio::test(start_paused = true)]
    async fn policy_without_hedges_reads() {
        let default = HedgePolicy::default();
        for policy in [
            default.with_lateness(0.95, 3.0, Duration::MAX),
            default.with_lateness(1.0, f64::INFINITY, Duration::ZERO),
            default.with_lateness(f64::NAN, f64::NAN, Duration::MAX),
            default.with_lateness(-1.0, -1.0, Duration::MAX).with_budget(f64::NAN),
        ] {
            let origin = origin();
            let hedged = wrap(Arc::clone(&origin), policy);
            assert_eq!(hedged.read_all(batch(&origin, 0..200)).count().await, 200);
            // By now a latency is known.
            assert_eq!(hedged.read_all(batch(&origin, 0..200)).count().await, 200);
            assert_eq!(origin.counts().tally().requests, 400);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn retryable_error_waits_for_the_other_read() {
        for (kind, mended) in [(ErrorKind::Transient, true), (ErrorKind::NotFound, false)] {
            let origin = origin();
            let late = Arc::new(Late { inner: Arc::clone(&origin), kind });
            let hedged = wrap(late, HedgePolicy::default());
            assert_eq!(hedged.read_all(batch(&origin, 0..200)).count().await, 200);
            let answers: Vec<_> = hedged.read_all(batch(&origin, [999])).collect().await;
            assert_eq!(answers.len(), 1);
            assert_eq!(answers[0].result.is_ok(), mended, "{kind}");
        }
    }

    /// The first read of sample 999 fails halfway through its hedge.
    #[derive(Debug)]
    struct Late {
        inner: Arc<FakeOrigin>,
        kind: ErrorKind,
    }

    impl Tier for Late {
        fn name(&self) -> &str {
            "late"
        }

        fn profile(&self) -> &TierProfile {
            self.inner.profile()
        }

        fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
            let is_first = self.inner.counts().tally().requests < 201 && request.key == key(999);
            let (kind, answer) = (self.kind, self.inner.read(request));
            Box::pin(async move {
                let answer = answer.await;
                if !is_first {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(55)).await;
                Err(TierError::new(kind, "late"))
            })
        }

        fn submit(&self) {}
    }

    impl OriginTier for Late {
        fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
            self.inner.list(prefix, after)
        }

        fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
            self.inner.stat(path)
        }

        fn place(&self) -> &str {
            self.inner.place()
        }

        fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
            None
        }
    }

    proptest::proptest! {
        #[test]
        fn hedge_answers_every_read_once(
            seed: u64,
            chances in (0.0f64..0.3, 0.0f64..0.3, 0.0f64..0.2),
            batches in proptest::collection::vec((0u64..900, 0u64..100), 1..12),
        ) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(
                    FakeOrigin::uniform(1000, 100)
                        .with_latency(LATENCY)
                        .with_jitter(Duration::from_millis(100)),
                );
                let failing = FailingTier::new(Arc::clone(&origin))
                    .on(When::Chance(chances.0), Fault::Error(ErrorKind::Transient))
                    .on(When::Chance(chances.1), Fault::Stall(Duration::from_secs(3)))
                    .on(When::Chance(chances.2), Fault::Error(ErrorKind::NotFound))
                    .with_seed(seed);
                let counted = Arc::new(failing);
                let policy = HedgePolicy::default().with_budget(0.5).with_fewest(10);
                let hedged = wrap(Arc::clone(&counted), policy);
                for (from, length) in batches {
                    let mut tags: Vec<u32> =
                        hedged.read_all(batch(&origin, from..from + length))
                            .map(|answer| answer.tag).collect().await;
                    tags.sort_unstable();
                    assert_eq!(tags, (0..length as u32).collect::<Vec<_>>());
                }
                assert_eq!(counted.counts().tally().in_flight, 0);
            });
        }
    }
}
