//! Trying again what may pass the next time.
//!
//! Only the requests that failed are repeated; the others of their batch are delivered as they come. The wait doubles
//! with each failure and is drawn evenly from zero up to that ("full jitter"), so that clients that failed together do
//! not come back together. The draw is a pure function of the seed, the sample, the tag and the attempt: two runs with
//! one seed wait alike whatever the order of the failures. Errors that another attempt cannot mend (not found, denied,
//! changed, corrupt ...) pass at once.
//!
//! Requests that one failure has ended (the parts of a merged read) share one draw and leave in one batch, so that they are
//! merged again. With a draw each, one refusal of 8 MiB would come back as a request per sample, to a store that has just
//! asked for fewer. They count as one retry. What goes on failing and is not throttled is tried one by one: it may be the merged
//! read that fails, as behind a proxy that cuts long answers.
//!
//! A store that throttles works, and asks for time: that is counted against the patience and not against the attempts.
//! Counted as failures, a bucket that refuses for the few seconds in which it grows would end a run of days. The price
//! is that a store which says 503 for ever is given up after two minutes and not after seconds.
//!
//! A request that is never answered is not a failure here: how long an answer may take is known next to the store, and
//! time spent in a queue between here and there must not count.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_tier::{Completion, Completions, ErrorKind, ReadRequest, Tier, TierError, TierProfile};
use foreread_types::mix;
use futures::{Stream, StreamExt};
use metrics::Counter;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Meter;
use crate::open::Open;
use crate::running::Running;

/// How often and how long to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How often a request is tried altogether, the first time included. Answers of a store that throttles
    /// ([`ErrorKind::Throttled`]) are not counted.
    pub attempts: NonZeroU32,
    /// The longest wait after the first failure; each further failure doubles it.
    pub first_wait: Duration,
    /// What the wait does not grow beyond, unless the store itself asks for more.
    pub longest_wait: Duration,
    /// No attempt begins later than this after the request's first failure. A store that asks for a longer wait than
    /// is left is not tried again.
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

impl RetryPolicy {
    /// The same with so many attempts.
    #[must_use]
    pub const fn with_attempts(self, attempts: NonZeroU32) -> Self {
        Self { attempts, ..self }
    }

    /// The same with waits that begin at `first` at most and grow to `longest`.
    #[must_use]
    pub const fn with_waits(self, first: Duration, longest: Duration) -> Self {
        Self { first_wait: first, longest_wait: longest, ..self }
    }

    /// The same with another patience.
    #[must_use]
    pub const fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The longest wait after so many failures, 1 or more.
    pub fn longest_wait_after(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first_wait.saturating_mul(doubled).min(self.longest_wait)
    }
}

/// A tier whose failed reads are tried again where that may help.
pub struct Retrying<T: ?Sized> {
    rules: Arc<Rules>,
    inner: Arc<T>,
}

struct Rules {
    policy: RetryPolicy,
    seed: u64,
    meter: Meter,
    retries: Counter,
}

impl<T: Tier + ?Sized> Retrying<T> {
    /// `inner`, retried as `policy` says. Ranks should have different seeds.
    ///
    /// Retries are counted as `foreread_tier_read_retries_total` with the label `tier`.
    pub fn new(inner: Arc<T>, policy: RetryPolicy, seed: u64) -> Self {
        let tier = inner.name().to_owned();
        let retries = metrics::counter!("foreread_tier_read_retries_total", "tier" => tier);
        Self { rules: Arc::new(Rules { policy, seed, meter: Meter::new(), retries }), inner }
    }

    /// The same, which counts its retries in `meter`.
    #[must_use]
    pub fn with_meter(self, meter: &Meter) -> Self {
        let Rules { policy, seed, retries, .. } = &*self.rules;
        let rules = Rules { policy: *policy, seed: *seed, meter: meter.clone(), retries: retries.clone() };
        Self { rules: Arc::new(rules), inner: self.inner }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Retrying<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrying").field("policy", &self.rules.policy).field("inner", &&*self.inner).finish()
    }
}

impl<T: Tier + ?Sized> Tier for Retrying<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let kept = Open::new(batch.clone());
        let mut running = Running::default();
        running.push(self.inner.read(batch));
        Attempts {
            rules: Arc::clone(&self.rules),
            inner: Arc::clone(&self.inner),
            kept,
            failed: Vec::new(),
            places: HashMap::new(),
            running,
            asleep: BinaryHeap::new(),
            groups: HashMap::new(),
            timer: None,
        }
        .boxed()
    }
}

pass_through!(Retrying);

/// A request that failed at least once.
struct Failed {
    request: ReadRequest,
    failures: u32,
    /// How many of the failures were the store's refusal of what comes too often.
    throttled: u32,
    first: Instant,
}

/// Failures after which requests that failed together are tried one by one.
const TOGETHER: u32 = 2;

/// Requests that sleep until the same time.
struct Group {
    /// Kept, so that no other failure gets its number.
    _error: TierError,
    at: Instant,
    /// Their places in [`Attempts::failed`].
    members: Vec<usize>,
}

struct Attempts<T: ?Sized> {
    rules: Arc<Rules>,
    inner: Arc<T>,
    /// What has not failed, answered or not.
    kept: Open,
    failed: Vec<Failed>,
    /// Where in `failed` a tag is: a batch may be long, and all of it may fail.
    places: HashMap<u32, usize>,
    running: Running,
    /// When to try which of the groups again.
    asleep: BinaryHeap<Reverse<(Instant, usize)>>,
    /// What one failure has ended and is tried again together, by the [failure](TierError::failure).
    groups: HashMap<usize, Group>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T: Tier + ?Sized> Attempts<T> {
    /// Tries again what has slept long enough; afterwards the timer is set for the next.
    fn wake_up(&mut self, cx: &mut Context<'_>) {
        while let Some(&Reverse((next, _))) = self.asleep.peek() {
            let now = Instant::now();
            if next > now {
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
                if timer.deadline() != next {
                    timer.as_mut().reset(next);
                }
                match Future::poll(timer.as_mut(), cx) {
                    Poll::Pending => return,
                    Poll::Ready(()) => continue,
                }
            }
            let (mut batch, mut groups) = (Vec::new(), 0);
            while let Some(&Reverse((at, failure))) = self.asleep.peek()
                && at <= now
            {
                self.asleep.pop();
                let members = self.groups.remove(&failure).map(|group| group.members).unwrap_or_default();
                batch.extend(members.into_iter().map(|index| self.failed[index].request.clone()));
                groups += 1;
            }
            self.rules.meter.retried(groups);
            self.rules.retries.increment(groups);
            batch.sort_by_key(|request| (request.due, request.tag));
            self.running.push(self.inner.read(batch));
        }
    }

    /// Puts a failed request to sleep, or says what to answer.
    #[cold]
    fn failed(&mut self, tag: u32, error: TierError) -> Option<Completion> {
        let now = Instant::now();
        let index = match self.places.get(&tag) {
            Some(&index) => index,
            None if !error.is_retryable() => return Some(Completion { tag, result: Err(error) }),
            None => {
                let Some(request) = self.kept.close(tag) else {
                    return Some(Completion { tag, result: Err(error) }); // nobody asked; not ours to hide
                };
                self.failed.push(Failed { request, failures: 0, throttled: 0, first: now });
                self.places.insert(tag, self.failed.len() - 1);
                self.failed.len() - 1
            }
        };
        let failed = &mut self.failed[index];
        failed.failures += 1;
        failed.throttled += u32::from(error.kind() == ErrorKind::Throttled);
        let rules = &*self.rules;
        // A merged read that goes on failing may be what fails: a body that is too long for a proxy, one bad part of it.
        let is_merged = error.kind() == ErrorKind::Throttled || failed.failures <= TOGETHER;
        let pin = if is_merged { error.clone() } else { TierError::new(error.kind(), "retry") };
        let together = self.groups.get_mut(&pin.failure()).filter(|_| is_merged);
        let at = match &together {
            Some(group) => group.at,
            None => now + rules.wait(failed, error.retry_after()),
        };
        let again = error.is_retryable()
            && (error.kind() == ErrorKind::Throttled
                || failed.failures - failed.throttled < rules.policy.attempts.get())
            && at.duration_since(failed.first) <= rules.policy.patience;
        if again {
            match together {
                Some(group) => group.members.push(index),
                None => {
                    tracing::debug!(%error, failures = failed.failures, wait = ?(at - now), "trying again");
                    let failure = pin.failure();
                    self.asleep.push(Reverse((at, failure)));
                    self.groups.insert(failure, Group { _error: pin, at, members: vec![index] });
                }
            }
            return None;
        }
        let left = rules.policy.patience.saturating_sub(now.duration_since(failed.first));
        let error = match error.retry_after() {
            Some(asked) if error.is_retryable() && asked > left => too_long(&error, asked, left),
            _ => error,
        };
        let result = Err(give_up(error, failed.failures, now.duration_since(failed.first)));
        Some(Completion { tag, result })
    }
}

impl Rules {
    /// How long to wait before the next attempt.
    fn wait(&self, failed: &Failed, asked: Option<Duration>) -> Duration {
        let key = failed.request.key;
        let sample = mix(key.id.0 ^ mix(u64::from(key.dataset.0)));
        let attempt = u64::from(failed.failures) << 32 | u64::from(failed.request.tag);
        let drawn = mix(self.seed ^ mix(sample ^ mix(attempt)));
        let part = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        let jitter = self.policy.longest_wait_after(failed.failures).mul_f64(part);
        // What the store asks for is added to: all who were told the same would else come back together.
        asked.unwrap_or_default().saturating_add(jitter).min(Duration::from_secs(u64::from(u32::MAX)))
    }
}

/// The error of a store that asks to be left alone for longer than anybody waits here.
fn too_long(error: &TierError, asked: Duration, left: Duration) -> TierError {
    let (asked, left) = (asked.as_secs_f64(), left.as_secs_f64());
    let said = format!("it asks to be left alone for {asked:.1} s, and {left:.1} s are left to wait");
    let detail = error.detail().map_or_else(|| said.clone(), |detail| format!("{detail}, {said}"));
    error.clone().with_detail(detail)
}

/// The last error with its own words, and how often it was tried.
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

impl<T: Tier + ?Sized> Stream for Attempts<T> {
    type Item = Completion;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = self.get_mut();
        loop {
            this.wake_up(cx);
            match this.running.poll_next(cx) {
                Poll::Ready(Some(Completion { tag, result: Err(error) })) => {
                    if let Some(completion) = this.failed(tag, error) {
                        return Poll::Ready(Some(completion));
                    }
                }
                Poll::Ready(Some(completion)) => return Poll::Ready(Some(completion)),
                Poll::Ready(None) if this.asleep.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, When};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

    use super::*;

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

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(id as u32, SampleId(id), Tick(id))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_repeated_and_the_others_do_not_wait() {
        let origin = origin();
        let wait = Fault::RetryAfter(ErrorKind::Throttled, Duration::from_secs(3));
        let below = failing(&origin, When::First(KEY, 2), wait);
        let meter = Meter::new();
        let retrying = Retrying::new(below, policy(5), 1).with_meter(&meter);
        let began = Instant::now();
        let mut stream = retrying.read(batch(&origin, 0..10));
        for _ in 0..9 {
            assert_ne!(stream.next().await.unwrap().tag, 3);
        }
        assert_eq!(began.elapsed(), Duration::from_millis(5));
        let last = stream.next().await.unwrap();
        assert_eq!((last.tag, last.result.unwrap()), (3, origin.expected(SampleId(3))));
        let waited = began.elapsed().as_secs_f64();
        assert!((6.0..6.32).contains(&waited), "twice what the store asked for and some jitter: {waited} s");
        assert!(stream.next().await.is_none());
        assert_eq!(meter.read().retried, 2);
        assert_eq!(origin.counts().tally().requests, 10);
    }

    /// Fails what it is asked for together, as a proxy does that cuts long answers.
    #[derive(Debug)]
    struct OneByOne(Arc<FakeOrigin>);

    impl Tier for OneByOne {
        fn name(&self) -> &str {
            "one by one"
        }

        fn profile(&self) -> &TierProfile {
            self.0.profile()
        }

        fn read(&self, batch: Vec<ReadRequest>) -> Completions {
            if batch.len() < 2 {
                return self.0.read(batch);
            }
            let error = TierError::new(ErrorKind::Transient, "one by one");
            let fail =
                move |request: ReadRequest| Completion { tag: request.tag, result: Err(error.clone()) };
            futures::stream::iter(batch.into_iter().map(fail)).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn merged_read_that_goes_on_failing_is_tried_in_parts() {
        let origin = origin();
        let retrying = Retrying::new(Arc::new(OneByOne(Arc::clone(&origin))), policy(8), 1);
        let answers: Vec<_> = retrying.read(batch(&origin, 0..6)).collect().await;
        assert_eq!(answers.len(), 6);
        assert!(answers.iter().all(|answer| answer.result.is_ok()), "{answers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_last_attempt_the_error_says_how_many_there_were() {
        let origin = origin();
        let below = failing(&origin, When::Key(KEY), Fault::Error(ErrorKind::Transient));
        let retrying = Retrying::new(Arc::clone(&below), policy(4), 1);
        let answers: Vec<_> = retrying.read(batch(&origin, [3])).collect().await;
        let [Completion { tag: 3, result: Err(error) }] = &answers[..] else { panic!("{answers:?}") };
        assert!(error.to_string().contains("transient failure: on command, after 4 attempts in "), "{error}");
        assert_eq!((error.kind(), error.tier(), below.faults()), (ErrorKind::Transient, "fake", 4));
        assert!(error.object().unwrap().ends_with("00000003"));
        assert!(error.source().unwrap().to_string().ends_with("on command"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_attempt_can_mend_passes_at_once() {
        use ErrorKind::{
            Absent, Changed, Closed, Corrupt, Denied, Full, Invalid, NotFound, Other, Unsupported,
        };
        let origin = origin();
        for kind in [Absent, Changed, Closed, Corrupt, Denied, Full, Invalid, NotFound, Other, Unsupported] {
            let below = failing(&origin, When::Key(KEY), Fault::Error(kind));
            let retrying = Retrying::new(Arc::clone(&below), policy(9), 1);
            let began = Instant::now();
            let answers: Vec<_> = retrying.read(batch(&origin, [3])).collect().await;
            let error = answers[0].result.as_ref().unwrap_err();
            assert_eq!((error.kind(), below.faults(), began.elapsed()), (kind, 1, Duration::ZERO));
            assert!(!error.to_string().contains("attempts"), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_retries_and_is_not_waited_for_in_vain() {
        let origin = origin();
        let impatient = policy(1000).with_patience(Duration::from_secs(30));
        let below = failing(&origin, When::Key(KEY), Fault::Error(ErrorKind::Transient));
        let began = Instant::now();
        let answers: Vec<_> = Retrying::new(below, impatient, 1).read(batch(&origin, [3])).collect().await;
        assert!(answers[0].result.is_err());
        assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());

        let wait = Fault::RetryAfter(ErrorKind::Throttled, Duration::from_secs(31));
        let began = Instant::now();
        let below = failing(&origin, When::Key(KEY), wait);
        let answers: Vec<_> = Retrying::new(below, impatient, 1).read(batch(&origin, [3])).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(error.retry_after(), Some(Duration::from_secs(31)));
        let said = "throttled: on command, it asks to be left alone for 31.0 s, and 30.0 s are left to wait";
        assert!(error.to_string().ends_with(said), "{error}");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    /// The fault that this guards: a bucket that refused for five seconds ended the run.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_throttles_is_asked_again_until_patience_ends() {
        let origin = origin();
        let throttled = Fault::Error(ErrorKind::Throttled);
        let below = failing(&origin, When::First(KEY, 15), throttled.clone());
        let answers: Vec<_> = Retrying::new(below, policy(3), 1).read(batch(&origin, [3])).collect().await;
        assert_eq!(answers[0].result.as_ref().unwrap(), &origin.expected(SampleId(3)));

        // Attempts that failed otherwise are counted as ever, though it throttled in between.
        let below = failing(&origin, When::First(KEY, 20), throttled.clone());
        let below = FailingTier::new(below).on(When::Every(5), Fault::Error(ErrorKind::Transient));
        let policy = RetryPolicy { attempts: NonZeroU32::new(2).unwrap(), ..RetryPolicy::default() };
        let answers: Vec<_> =
            Retrying::new(Arc::new(below), policy, 1).read(batch(&origin, [3])).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.to_string().contains("after 10 attempts in "), "{error}");

        let below = failing(&origin, When::Key(KEY), throttled);
        let began = Instant::now();
        let answers: Vec<_> =
            Retrying::new(below, RetryPolicy::default(), 1).read(batch(&origin, [3])).collect().await;
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

    /// When each answer came, in order.
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
            let retrying = Retrying::new(Arc::new(below), policy(attempts), seed);
            let began = Instant::now();
            let requests = ids.iter().zip(0..).map(|(&id, tag)| origin.request(tag, SampleId(id), Tick(id)));
            let stream = retrying.read(requests.collect());
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
        fn every_tag_is_answered_once_and_two_runs_are_alike(
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
