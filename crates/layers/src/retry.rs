//! Retries of failures that may pass.
//!
//! The wait's bound doubles with each failure. The wait is drawn evenly between zero and that bound
//! ("full jitter"), so clients that failed together do not return together. The draw is a pure
//! function of seed, sample and attempt. Two runs with one seed wait equally long, in any order of
//! failures. Permanent errors (not found, denied, changed, corrupt ...) pass at once.
//!
//! A [joined](crate::joined) read is retried as a whole. Otherwise one refusal of 8 MiB would
//! return as one request per sample, to an origin that has just requested fewer. If it keeps
//! failing without being throttled, it is read part by part. The joined read itself may be the
//! cause, for example if a proxy cuts long answers.
//!
//! A throttling origin works and needs time, which counts against the patience and not against the
//! attempts. Otherwise a bucket that refuses requests for the few seconds in which it scales would
//! end a run of days. The price is that an origin that always answers 503 is given up after two
//! minutes and not after seconds.
//!
//! A request without an answer is not a failure here. The deadline layer is next to the origin,
//! because time in queues must not count.
//!
//! Decision: own code instead of `backon`, which draws its jitter from a global generator and has
//! no patience across throttled attempts.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use foreread_tier::{ErrorKind, ReadRequest, TierError, lock};
use foreread_types::mix;
use metrics::Counter;
use tokio::time::Instant;

use crate::Meter;

/// When a read that keeps failing is reported.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// The shortest time between two such reports.
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// How often and how long to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The number of attempts, including the first. Throttled attempts ([`ErrorKind::Throttled`])
    /// are not counted.
    pub attempts: NonZeroU32,
    /// Upper bound of the wait after the first failure. Each further failure doubles it.
    pub first_wait: Duration,
    /// Upper bound of all waits, unless the origin's `Retry-After` is longer.
    pub longest_wait: Duration,
    /// No attempt begins later than this after the request's first failure. If the origin's
    /// `Retry-After` is longer than the remaining time, the request fails.
    pub patience: Duration,
}

impl Default for RetryPolicy {
    /// Eight attempts, waits of at most 100 ms that grow to 10 s, a patience of two minutes.
    fn default() -> Self {
        Self {
            attempts: NonZeroU32::MIN.saturating_add(7),
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(10),
            patience: Duration::from_secs(120),
        }
    }
}

setters! { RetryPolicy:
    /// The same with another number of attempts.
    with_attempts(attempts: NonZeroU32);
    /// The same with another time limit for all attempts.
    with_patience(patience: Duration);
}

impl RetryPolicy {
    /// The upper bound of the wait after `failures` failures, 1 or more.
    pub fn longest_wait_after(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first_wait.saturating_mul(doubled).min(self.longest_wait)
    }
}

/// Decides after each failure of a read whether and when it is tried again.
#[derive(Debug)]
pub(crate) struct Retry {
    policy: RetryPolicy,
    seed: u64,
    meter: Meter,
    retries: Counter,
    /// When the last warning was logged.
    warned: Mutex<Option<Instant>>,
}

/// The failures of one read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    count: u32,
    /// The throttled ones among them.
    throttled: u32,
    first: Option<Instant>,
}

impl Failures {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }
}

impl Retry {
    /// Retries are counted in `meter`, and as `foreread_tier_read_retries_total` with the label
    /// `tier`.
    pub(crate) fn new(tier: &str, policy: RetryPolicy, seed: u64, meter: Meter) -> Self {
        let retries = metrics::counter!("foreread_tier_read_retries_total", "tier" => tier.to_owned());
        Self { policy, seed, meter, retries, warned: Mutex::default() }
    }

    /// Counts a retry.
    pub(crate) fn count(&self) {
        self.meter.retried();
        self.retries.increment(1);
    }

    /// Counts a failure. Returns when to retry.
    ///
    /// # Errors
    /// The final error, if a retry cannot help or the attempts are used up.
    #[cold]
    pub(crate) fn failed(
        &self,
        request: &ReadRequest,
        failures: &mut Failures,
        error: TierError,
    ) -> Result<Instant, TierError> {
        let now = Instant::now();
        let first = *failures.first.get_or_insert(now);
        let is_throttled = error.kind() == ErrorKind::Throttled;
        failures.count += 1;
        if !error.is_retryable() {
            return Err(give_up(error, failures.count, now.duration_since(first)));
        }
        failures.throttled += u32::from(is_throttled);
        let at = now + self.wait(request, failures.count, error.retry_after());
        let is_allowed = is_throttled || failures.count - failures.throttled < self.policy.attempts.get();
        if is_allowed && at.duration_since(first) <= self.policy.patience {
            tracing::debug!(%error, failures = failures.count, wait = ?(at - now), "retrying");
            self.warn(&error, now.duration_since(first), now);
            return Ok(at);
        }
        let left = self.policy.patience.saturating_sub(now.duration_since(first));
        let error = match error.retry_after() {
            Some(retry_after) if retry_after > left => too_long(&error, retry_after, left),
            _ => error,
        };
        Err(give_up(error, failures.count, now.duration_since(first)))
    }

    /// Warns about a read that fails for a long time, at most once a minute for all reads.
    fn warn(&self, error: &TierError, failing: Duration, now: Instant) {
        if failing < WARN_AFTER {
            return;
        }
        let mut warned = lock(&self.warned);
        if warned.is_none_or(|warned| now.duration_since(warned) >= WARN_AGAIN) {
            *warned = Some(now);
            let (failing, patience) = (failing.as_secs(), self.policy.patience.as_secs());
            tracing::warn!("{error}; repeated for {failing} s, and for {patience} s at most");
        }
    }

    /// The wait before the next attempt.
    fn wait(&self, request: &ReadRequest, failures: u32, retry_after: Option<Duration>) -> Duration {
        let sample = mix(request.key.id.0 ^ mix(u64::from(request.key.dataset.0)));
        let drawn = mix(self.seed ^ mix(sample ^ mix(u64::from(failures))));
        let part = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        let jitter = self.policy.longest_wait_after(failures).mul_f64(part);
        // Jitter is added to `Retry-After`: otherwise all clients with the same value would return
        // together.
        retry_after.unwrap_or_default().saturating_add(jitter).min(Duration::from_secs(u64::from(u32::MAX)))
    }
}

/// The error for a `Retry-After` beyond the patience.
fn too_long(error: &TierError, retry_after: Duration, left: Duration) -> TierError {
    let (retry_after, left) = (retry_after.as_secs_f64(), left.as_secs_f64());
    let reason = format!("Retry-After is {retry_after:.1} s, and {left:.1} s of the patience are left");
    let detail = error.detail().map_or_else(|| reason.clone(), |detail| format!("{detail}, {reason}"));
    error.clone().with_detail(detail)
}

/// The last error, with the number of attempts added to its detail.
fn give_up(error: TierError, attempts: u32, took: Duration) -> TierError {
    if attempts == 1 {
        return error;
    }
    let mut last = TierError::new(error.kind(), error.tier());
    if let Some(object) = error.object() {
        last = last.with_object(object);
    }
    let tried = format!("after {attempts} attempts in {:.1} s", took.as_secs_f64());
    let detail = error.detail().map_or_else(|| tried.clone(), |detail| format!("{detail}, {tried}"));
    last.with_detail(detail).with_retry_after(error.retry_after()).with_source(error)
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::sync::Arc;

    use foreread_tier::OriginTier;
    use foreread_tier_testing::{Answered, FailingTier, FakeOrigin, Fault, ReadAll, When};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use futures::StreamExt;

    use super::*;
    use crate::Stack;

    const KEY: SampleKey = SampleKey::new(DatasetId(0), SampleId(3));

    fn policy(attempts: u32) -> RetryPolicy {
        RetryPolicy::default().with_attempts(NonZeroU32::new(attempts).unwrap())
    }

    fn origin() -> Arc<FakeOrigin> {
        Arc::new(FakeOrigin::uniform(200, 10).with_latency(Duration::from_millis(5)))
    }

    fn failing(origin: &Arc<FakeOrigin>, when: When, fault: Fault) -> Arc<FailingTier<FakeOrigin>> {
        Arc::new(FailingTier::new(Arc::clone(origin)).on(when, fault))
    }

    fn stack(policy: RetryPolicy, seed: u64) -> Stack {
        Stack { seed, ..Stack::bare().with_retry(policy) }
    }

    fn retrying<T: OriginTier>(below: Arc<T>, policy: RetryPolicy, seed: u64) -> Arc<dyn OriginTier> {
        stack(policy, seed).wrap(below)
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(SampleId(id), Tick(id))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_read_is_retried_and_delays_no_other() {
        let origin = origin();
        let wait = Fault::RetryAfter(ErrorKind::Throttled, Duration::from_secs(3));
        let below = failing(&origin, When::First(KEY, 2), wait);
        let stack = stack(policy(5), 1);
        let retrying = stack.wrap(below);
        let began = Instant::now();
        let mut stream = retrying.read_all(batch(&origin, 0..10));
        for _ in 0..9 {
            assert_ne!(stream.next().await.unwrap().tag, 3);
        }
        assert_eq!(began.elapsed(), Duration::from_millis(5));
        let last = stream.next().await.unwrap();
        assert_eq!((last.tag, last.result.unwrap()), (3, origin.expected(SampleId(3))));
        let waited = began.elapsed().as_secs_f64();
        assert!((6.0..6.32).contains(&waited), "twice what the origin requested and some jitter: {waited} s");
        assert!(stream.next().await.is_none());
        assert_eq!(stack.meter.read().retried, 2);
        assert_eq!(origin.counts().tally().requests, 10);
    }

    #[tokio::test(start_paused = true)]
    // semantics: FAIL-4
    async fn last_error_counts_the_attempts() {
        let origin = origin();
        let below = failing(&origin, When::Key(KEY), Fault::Error(ErrorKind::Transient));
        let retrying = retrying(Arc::clone(&below), policy(4), 1);
        let answers: Vec<_> = retrying.read_all(batch(&origin, [3])).collect().await;
        let [Answered { tag: 0, result: Err(error) }] = &answers[..] else { panic!("{answers:?}") };
        assert!(error.to_string().contains("transient failure: on command, after 4 attempts in "), "{error}");
        assert_eq!((error.kind(), error.tier(), below.faults()), (ErrorKind::Transient, "fake", 4));
        assert!(error.object().unwrap().ends_with("00000003"));
        assert!(error.source().unwrap().to_string().ends_with("on command"));
    }

    #[tokio::test(start_paused = true)]
    // semantics: FAIL-4
    async fn permanent_errors_pass_at_once() {
        use ErrorKind::{
            Absent, Changed, Closed, Corrupt, Denied, Full, Invalid, NotFound, Other, Unsupported,
        };
        let origin = origin();
        for kind in [Absent, Changed, Closed, Corrupt, Denied, Full, Invalid, NotFound, Other, Unsupported] {
            let below = failing(&origin, When::Key(KEY), Fault::Error(kind));
            let retrying = retrying(Arc::clone(&below), policy(9), 1);
            let began = Instant::now();
            let answers: Vec<_> = retrying.read_all(batch(&origin, [3])).collect().await;
            let error = answers[0].result.as_ref().unwrap_err();
            assert_eq!((error.kind(), below.faults(), began.elapsed()), (kind, 1, Duration::ZERO));
            assert!(!error.to_string().contains("attempts"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    // semantics: FAIL-10
    async fn patience_ends_retries_without_a_useless_wait() {
        let origin = origin();
        let impatient = policy(1000).with_patience(Duration::from_secs(30));
        let below = failing(&origin, When::Key(KEY), Fault::Error(ErrorKind::Transient));
        let began = Instant::now();
        let answers: Vec<_> = retrying(below, impatient, 1).read_all(batch(&origin, [3])).collect().await;
        assert!(answers[0].result.is_err());
        assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());

        let wait = Fault::RetryAfter(ErrorKind::Throttled, Duration::from_secs(31));
        let began = Instant::now();
        let below = failing(&origin, When::Key(KEY), wait);
        let answers: Vec<_> = retrying(below, impatient, 1).read_all(batch(&origin, [3])).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(31)));
        let reason = "throttled: on command, Retry-After is 31.0 s, and 30.0 s of the patience are left";
        assert!(error.to_string().ends_with(reason), "{error}");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// Regression: a bucket that refused requests for five seconds ended the run.
    #[tokio::test(start_paused = true)]
    // semantics: FAIL-4
    async fn throttling_origin_is_retried_until_patience_ends() {
        let origin = origin();
        let throttled = Fault::Error(ErrorKind::Throttled);
        let below = failing(&origin, When::First(KEY, 15), throttled.clone());
        let answers: Vec<_> = retrying(below, policy(3), 1).read_all(batch(&origin, [3])).collect().await;
        assert_eq!(answers[0].result.as_ref().unwrap(), &origin.expected(SampleId(3)));

        // Other failures are counted as usual, despite throttled attempts in between.
        let below = failing(&origin, When::First(KEY, 20), throttled.clone());
        let below = FailingTier::new(below).on(When::Every(5), Fault::Error(ErrorKind::Transient));
        let policy = RetryPolicy { attempts: NonZeroU32::new(2).unwrap(), ..RetryPolicy::default() };
        let answers: Vec<_> =
            retrying(Arc::new(below), policy, 1).read_all(batch(&origin, [3])).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.to_string().contains("after 10 attempts in "), "{error}");

        let below = failing(&origin, When::Key(KEY), throttled);
        let began = Instant::now();
        let answers: Vec<_> =
            retrying(below, RetryPolicy::default(), 1).read_all(batch(&origin, [3])).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Throttled);
        let waited = began.elapsed().as_secs_f64();
        assert!((100.0..=120.0).contains(&waited), "{waited} s: {error}");
    }

    #[test]
    fn waits_double_up_to_the_longest_and_never_overflow() {
        let policy = RetryPolicy::default();
        let bounds: Vec<u128> =
            [1, 2, 3, 7, 8, 33, u32::MAX].map(|n| policy.longest_wait_after(n).as_millis()).to_vec();
        assert_eq!(bounds, [100, 200, 400, 6400, 10_000, 10_000, 10_000]);
    }

    /// The arrival times of all answers, in order.
    fn history(
        seed: u64,
        chance: f64,
        attempts: u32,
        ids: &[u64],
    ) -> Vec<(u32, Result<usize, ErrorKind>, Duration)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let origin = origin();
            let below = FailingTier::new(Arc::clone(&origin))
                .on(When::Chance(chance), Fault::Error(ErrorKind::Transient))
                .with_seed(seed);
            let retrying = retrying(Arc::new(below), policy(attempts), seed);
            let began = Instant::now();
            let requests = ids.iter().map(|&id| origin.request(SampleId(id), Tick(id)));
            let stream = retrying.read_all(requests.collect());
            stream
                .map(|answer| {
                    let result = answer.result.map(|bytes| bytes.len()).map_err(|error| error.kind());
                    (answer.tag, result, began.elapsed())
                })
                .collect()
                .await
        })
    }

    proptest::proptest! {
        #[test]
        fn retries_answer_every_read_once_and_repeat_exactly(
            seed: u64,
            chance in 0.0f64..1.0,
            attempts in 1u32..6,
            ids in proptest::collection::vec(0u64..200, 0..60),
        ) {
            let first = history(seed, chance, attempts, &ids);
            let mut tags: Vec<u32> = first.iter().map(|(tag, ..)| *tag).collect();
            tags.sort_unstable();
            assert_eq!(tags, (0..ids.len() as u32).collect::<Vec<_>>());
            assert!(first.iter().all(|(_, result, _)| matches!(result, Ok(10) | Err(ErrorKind::Transient))));
            assert_eq!(first, history(seed, chance, attempts, &ids));
        }
    }
}
