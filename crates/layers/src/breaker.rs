//! Not asking what does not answer.
//!
//! A peer that died or hangs costs each read that is sent to it the time until it counts as gone, and a trainer waits for
//! many. So after some failures in a row all reads fail at once, for a time that doubles with each opening; then one read
//! is let through, and what becomes of it decides. What fails at once is [`ErrorKind::Transient`]: the sample is there
//! and is to be had elsewhere.
//!
//! Only failures that say that nobody is there count: an answer that is an error shows that somebody is. A tier that says
//! that it is gone ([`ErrorKind::Closed`]) is believed at once. What was sent before the last change of state says nothing
//! of the present and does not count: when a connection ends, all that was under way on it fails together.
//!
//! The waits are drawn from the upper half of their bound, so that ranks that lost the same peer do not come back to it
//! together. The price of the layer is a look at a number for each answer, and that the first read after a wait may be one
//! that the trainer needs soon.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use foreread_tier::{
    CacheTier, Charge, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError, TierProfile,
};
use foreread_types::{Footprint, SampleKey, mix};
use metrics::Counter;
use tokio::time::Instant;

use crate::DeadlinePolicy;
use crate::deadline::Deadline;

/// When to stop asking, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerPolicy {
    /// After so many failures in a row nothing is asked any more ...
    pub failures: NonZeroU32,
    /// ... for this long at most the first time; each further time doubles it ...
    pub first_wait: Duration,
    /// ... up to this.
    pub longest_wait: Duration,
}

impl Default for BreakerPolicy {
    /// After three failures, for half a second that grows to eight.
    fn default() -> Self {
        Self {
            failures: NonZeroU32::MIN.saturating_add(2),
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(8),
        }
    }
}

impl BreakerPolicy {
    /// The same with so many failures.
    #[must_use]
    pub const fn with_failures(self, failures: NonZeroU32) -> Self {
        Self { failures, ..self }
    }

    /// The same with waits that begin at `first` at most and grow to `longest`.
    #[must_use]
    pub const fn with_waits(self, first: Duration, longest: Duration) -> Self {
        Self { first_wait: first, longest_wait: longest, ..self }
    }
}

/// What the breaker knows. Time is an argument.
#[derive(Debug)]
struct Switch {
    policy: BreakerPolicy,
    seed: u64,
    state: State,
    /// Changes of state so far: what was sent in an earlier one does not count.
    epoch: u64,
    /// How often it opened since it was last closed.
    openings: u32,
    /// How often it opened, for the draws.
    ever: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Reads pass; so many failed in a row.
    Closed { failures: u32 },
    /// No read passes before this.
    Open { until: Instant },
    /// One read has passed, and what becomes of it decides.
    Probing,
}

/// What becomes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass {
        epoch: u64,
    },
    /// It passes alone, and decides.
    Probe {
        epoch: u64,
    },
    Refuse,
}

/// What a read shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// Somebody answered.
    Life,
    /// Nobody did.
    Failure,
    /// There is nobody.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Opened(Duration),
    Closed,
}

impl Switch {
    fn new(policy: BreakerPolicy, seed: u64) -> Self {
        Self { policy, seed, state: State::Closed { failures: 0 }, epoch: 0, openings: 0, ever: 0 }
    }

    fn ask(&mut self, now: Instant) -> Verdict {
        match self.state {
            State::Closed { .. } => Verdict::Pass { epoch: self.epoch },
            State::Open { until } if until <= now => {
                self.state = State::Probing;
                self.epoch += 1;
                Verdict::Probe { epoch: self.epoch }
            }
            State::Open { .. } | State::Probing => Verdict::Refuse,
        }
    }

    /// A read that was sent in `epoch` has ended.
    fn answered(&mut self, now: Instant, epoch: u64, sign: Sign) -> Option<Change> {
        if epoch != self.epoch {
            return None;
        }
        match (&mut self.state, sign) {
            (State::Closed { failures }, Sign::Life) => {
                *failures = 0;
                None
            }
            (State::Closed { failures }, Sign::Failure) if *failures + 1 < self.policy.failures.get() => {
                *failures += 1;
                None
            }
            (State::Closed { .. } | State::Probing, Sign::Failure | Sign::Gone) => Some(self.open(now)),
            (State::Probing, Sign::Life) => {
                self.state = State::Closed { failures: 0 };
                self.epoch += 1;
                self.openings = 0;
                Some(Change::Closed)
            }
            (State::Open { .. }, _) => None,
        }
    }

    /// Nobody waits for the read of `epoch` any more: the next one decides.
    fn abandoned(&mut self, now: Instant, epoch: u64) {
        if epoch == self.epoch && self.state == State::Probing {
            self.state = State::Open { until: now };
        }
    }

    fn open(&mut self, now: Instant) -> Change {
        let doubled = 1u32.checked_shl(self.openings).unwrap_or(u32::MAX);
        let bound = self.policy.first_wait.saturating_mul(doubled).min(self.policy.longest_wait);
        let drawn = mix(self.seed ^ mix(self.ever));
        let wait = bound.mul_f64(0.5 + 0.5 * ((drawn >> 11) as f64 / (1u64 << 53) as f64));
        self.openings = self.openings.saturating_add(1);
        self.ever += 1;
        self.epoch += 1;
        self.state = State::Open { until: now + wait };
        Change::Opened(wait)
    }
}

/// A tier that is not asked while it does not answer.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_breaker_openings_total` | counter | `tier` |
/// | `foreread_tier_breaker_refused_total` | counter | `tier`; reads that failed at once |
pub struct Breaker<T: ?Sized> {
    rules: Arc<Rules>,
    inner: Arc<T>,
}

struct Rules {
    tier: String,
    deadline: Option<Deadline>,
    whom: String,
    switch: Mutex<Switch>,
    /// Whether there is anything that an answer could change for the better.
    marred: AtomicBool,
    openings: Counter,
    refused: Counter,
}

impl Rules {
    fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self, epoch: u64, result: &Result<Bytes, TierError>) {
        let sign = match result.as_ref().map_err(TierError::kind) {
            Err(ErrorKind::Transient) => Sign::Failure,
            Err(ErrorKind::Closed) => Sign::Gone,
            Ok(_) | Err(_) => Sign::Life,
        };
        if sign == Sign::Life && !self.marred.load(Relaxed) {
            return; // nearly always
        }
        let mut switch = self.switch();
        let change = switch.answered(Instant::now(), epoch, sign);
        self.marred.store(switch.state != State::Closed { failures: 0 }, Relaxed);
        let first = switch.openings == 1;
        drop(switch);
        match (change, result) {
            (Some(Change::Opened(wait)), Err(error)) => {
                self.openings.increment(1);
                let why = error.detail().unwrap_or_default();
                // Once until it answers again: that it still does not is no news.
                match first {
                    true => tracing::warn!(tier = self.tier, whom = self.whom, why, "not asked for a while"),
                    false => {
                        tracing::debug!(tier = self.tier, whom = self.whom, ?wait, why, "still not asked")
                    }
                }
            }
            (Some(Change::Closed), _) => {
                tracing::info!(tier = self.tier, whom = self.whom, "asked again: it answers");
            }
            _ => {}
        }
    }

    fn refusal(&self, request: &ReadRequest) -> TierError {
        TierError::new(ErrorKind::Transient, &*self.tier)
            .with_object(&*request.object.path)
            .with_detail(format!("the breaker is open: {} did not answer lately", self.whom))
    }
}

impl<T: Tier + ?Sized> Breaker<T> {
    /// `inner`, not asked while it does not answer. `whom` is what logs and errors call it: a rank, a store.
    pub fn new(inner: Arc<T>, policy: BreakerPolicy, whom: impl Into<String>, seed: u64) -> Self {
        let tier = inner.name().to_owned();
        let openings = metrics::counter!("foreread_tier_breaker_openings_total", "tier" => tier.clone());
        let refused = metrics::counter!("foreread_tier_breaker_refused_total", "tier" => tier.clone());
        let switch = Mutex::new(Switch::new(policy, seed));
        let (whom, marred, deadline) = (whom.into(), AtomicBool::new(false), None);
        Self { rules: Arc::new(Rules { tier, deadline, whom, switch, marred, openings, refused }), inner }
    }

    /// The same, where a read that takes longer than `policy` allows is ended, as one that nobody answers. Before it is read.
    #[must_use]
    pub fn with_deadline(mut self, policy: DeadlinePolicy) -> Self {
        if let Some(rules) = Arc::get_mut(&mut self.rules) {
            rules.deadline = Some(Deadline::new(&rules.tier, policy));
        }
        self
    }
}

impl<T: ?Sized> Breaker<T> {
    /// Whether a read now would fail at once.
    pub fn is_open(&self) -> bool {
        match self.rules.switch().state {
            State::Closed { .. } => false,
            State::Open { until } => Instant::now() < until,
            State::Probing => true,
        }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Breaker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.rules.switch().state;
        f.debug_struct("Breaker").field("state", &state).field("inner", &&*self.inner).finish()
    }
}

impl<T: Tier + ?Sized> Tier for Breaker<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        let verdict = self.rules.switch().ask(Instant::now());
        let (epoch, is_probe) = match verdict {
            Verdict::Pass { epoch } => (epoch, false),
            Verdict::Probe { epoch } => (epoch, true),
            Verdict::Refuse => {
                self.rules.refused.increment(1);
                return Box::pin(std::future::ready(Err(self.rules.refusal(&request))));
            }
        };
        let watch = Watch { rules: Arc::clone(&self.rules), epoch, is_probe };
        let (answer, started) = (self.inner.read(Arc::clone(&request)), Instant::now());
        Box::pin(async move {
            let result = match &watch.rules.deadline {
                Some(deadline) => deadline.within(&request, started, answer).await,
                None => answer.await,
            };
            watch.answered(&result);
            result
        })
    }

    fn submit(&self) {
        self.inner.submit();
    }
}

#[async_trait]
impl<T: CacheTier + ?Sized> CacheTier for Breaker<T> {
    fn footprint(&self) -> Footprint {
        self.inner.footprint()
    }

    fn lookup(&self, key: SampleKey) -> Lookup {
        self.inner.lookup(key)
    }

    fn reserve(&self, bytes: u64) -> Option<Charge> {
        self.inner.reserve(bytes)
    }

    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError> {
        self.inner.store(room, key, sample).await
    }

    async fn remove(&self, keys: Vec<SampleKey>) {
        self.inner.remove(keys).await;
    }
}

/// A read that passed.
struct Watch {
    rules: Arc<Rules>,
    epoch: u64,
    /// What comes decides.
    is_probe: bool,
}

impl Watch {
    fn answered(mut self, result: &Result<Bytes, TierError>) {
        self.rules.answered(self.epoch, result);
        self.is_probe = false;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_probe {
            self.rules.switch().abandoned(Instant::now(), self.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier_testing::{CountingTier, FailingTier, FakeOrigin, Fault, ReadAll, StoredCache, When};
    use foreread_types::{DatasetId, SampleId, Tick};
    use futures::StreamExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(waits: (u64, u64)) -> BreakerPolicy {
        BreakerPolicy::default().with_waits(Duration::from_millis(waits.0), Duration::from_millis(waits.1))
    }

    fn opened(change: Option<Change>) -> Duration {
        match change {
            Some(Change::Opened(wait)) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_an_answer_between_does_not() {
        let (mut switch, now) = (Switch::new(BreakerPolicy::default(), 1), Instant::now());
        for sign in [Sign::Failure, Sign::Failure, Sign::Life, Sign::Failure, Sign::Failure] {
            assert_eq!(switch.ask(now), Verdict::Pass { epoch: 0 });
            assert_eq!(switch.answered(now, 0, sign), None);
        }
        let wait = opened(switch.answered(now, 0, Sign::Failure));
        assert!(wait >= SECOND / 4 && wait <= SECOND / 2, "{wait:?}");
        assert_eq!(switch.ask(now), Verdict::Refuse);
        assert_eq!(switch.ask(now + wait - Duration::from_nanos(1)), Verdict::Refuse);
    }

    #[test]
    fn one_read_is_let_through_after_the_wait_and_decides() {
        let (mut switch, mut now) = (Switch::new(BreakerPolicy::default(), 1), Instant::now());
        let mut epoch = 0;
        for bound in [500, 1000, 2000, 4000, 8000, 8000, 8000] {
            let wait = opened(switch.answered(now, epoch, Sign::Gone)).as_millis();
            assert!(wait >= bound / 2 && wait <= bound, "{wait} ms, at most {bound}");
            now += Duration::from_millis(bound as u64);
            let Verdict::Probe { epoch: probe } = switch.ask(now) else { panic!("{switch:?}") };
            epoch = probe;
            assert_eq!(switch.ask(now), Verdict::Refuse, "no second one meanwhile");
        }
        assert_eq!(switch.answered(now, epoch, Sign::Life), Some(Change::Closed));
        let Verdict::Pass { epoch } = switch.ask(now) else { panic!("{switch:?}") };
        let wait = opened(switch.answered(now, epoch, Sign::Gone)).as_millis();
        assert!(wait <= 500, "it begins anew: {wait} ms");
    }

    #[test]
    fn what_was_sent_before_a_change_says_nothing() {
        let (mut switch, now) = (Switch::new(BreakerPolicy::default(), 1), Instant::now());
        let wait = opened(switch.answered(now, 0, Sign::Gone));
        for sign in [Sign::Life, Sign::Failure, Sign::Gone] {
            assert_eq!(switch.answered(now, 0, sign), None);
        }
        let Verdict::Probe { epoch } = switch.ask(now + wait) else { panic!("{switch:?}") };
        assert_eq!(switch.answered(now + wait, 0, Sign::Life), None, "an answer from before is no probe's");
        assert_eq!(switch.answered(now + wait, epoch, Sign::Life), Some(Change::Closed));
        assert_eq!(switch.answered(now + wait, epoch, Sign::Gone), None);
        assert!(matches!(switch.ask(now + wait), Verdict::Pass { .. }));
    }

    #[test]
    fn two_ranks_do_not_come_back_together() {
        let now = Instant::now();
        let wait = |seed| opened(Switch::new(BreakerPolicy::default(), seed).answered(now, 0, Sign::Gone));
        let waits: std::collections::BTreeSet<_> = (0..100).map(wait).collect();
        assert_eq!(waits.len(), 100);
        assert_eq!(wait(7), wait(7));
    }

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(SampleId(id), Tick(id))).collect()
    }

    async fn kinds(tier: &impl Tier, batch: Vec<ReadRequest>) -> Vec<Option<ErrorKind>> {
        tier.read_all(batch).map(|answer| answer.result.err().map(|error| error.kind())).collect().await
    }

    #[tokio::test(start_paused = true)]
    // semantics: RANK-21
    async fn what_does_not_answer_is_not_asked_and_is_asked_again_by_one() {
        let origin = Arc::new(FakeOrigin::uniform(100, 10).with_latency(Duration::from_millis(5)));
        // Each of the first three and the first probe fail once.
        let below = [0, 1, 2, 3].into_iter().fold(FailingTier::new(Arc::clone(&origin)), |tier, id| {
            tier.on(When::First(key(id), 1), Fault::Error(ErrorKind::Transient))
        });
        let counting = Arc::new(CountingTier::new(Arc::new(below)));
        let breaker = Breaker::new(Arc::clone(&counting), policy((500, 8000)), "rank 3", 1);
        let failure = Some(ErrorKind::Transient);
        assert_eq!(kinds(&breaker, batch(&origin, 0..3)).await, [failure; 3]);
        assert!(breaker.is_open());
        let asked = counting.counts().tally().requests;
        let answers: Vec<_> = breaker.read_all(batch(&origin, 10..13)).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(
            error.to_string(),
            "fake: 00000/00000010: transient failure: the breaker is open: rank 3 did not answer lately"
        );
        assert_eq!(answers.len(), 3);
        assert_eq!(counting.counts().tally().requests, asked, "nothing was sent");
        tokio::time::sleep(SECOND / 2).await;
        assert!(!breaker.is_open());
        assert_eq!(kinds(&breaker, batch(&origin, 3..9)).await, [failure; 6]);
        assert_eq!(counting.counts().tally().requests, asked + 1, "one was sent");
        tokio::time::sleep(SECOND / 2).await;
        assert!(breaker.is_open(), "the second wait is longer");
        tokio::time::sleep(SECOND / 2).await;
        let said = kinds(&breaker, batch(&origin, 3..9)).await;
        assert_eq!(said.iter().filter(|kind| kind.is_none()).count(), 1);
        assert_eq!(kinds(&breaker, batch(&origin, 0..9)).await, [None; 9]);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_that_are_answers_never_open_it() {
        let origin = Arc::new(FakeOrigin::uniform(100, 10));
        let below = [ErrorKind::Absent, ErrorKind::Changed, ErrorKind::Throttled, ErrorKind::Corrupt]
            .into_iter()
            .zip(0..)
            .fold(FailingTier::new(Arc::clone(&origin)), |tier, (kind, id)| {
                tier.on(When::Key(key(id)), Fault::Error(kind))
            });
        let breaker = Breaker::new(Arc::new(below), policy((500, 500)), "rank 3", 1);
        for _ in 0..10 {
            kinds(&breaker, batch(&origin, 0..4)).await;
            assert!(!breaker.is_open());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_nobody_waits_for_is_followed_by_another() {
        let origin = Arc::new(FakeOrigin::uniform(100, 10));
        let below = FailingTier::new(Arc::clone(&origin))
            .on(When::First(key(0), 1), Fault::Error(ErrorKind::Closed))
            .on(When::Key(key(1)), Fault::Never);
        let breaker = Breaker::new(Arc::new(below), policy((500, 500)), "rank 3", 1);
        assert_eq!(kinds(&breaker, batch(&origin, [0])).await, [Some(ErrorKind::Closed)]);
        assert!(breaker.is_open(), "who says that it is gone is believed");
        tokio::time::sleep(SECOND).await;
        let mut hangs = breaker.read_all(batch(&origin, [1]));
        assert!(tokio::time::timeout(SECOND, hangs.next()).await.is_err());
        assert!(breaker.is_open(), "nobody else is sent meanwhile");
        drop(hangs);
        assert_eq!(kinds(&breaker, batch(&origin, [2])).await, [None]);
        assert!(!breaker.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn conforms_as_a_cache() {
        let cache =
            StoredCache::new(8 << 20).with_latency(Duration::from_millis(1), Duration::from_millis(1));
        let breaker = Breaker::new(Arc::new(cache), BreakerPolicy::default(), "the disk", 1);
        let breaker = breaker.with_deadline(DeadlinePolicy::default());
        foreread_tier_testing::conformance::cache(Arc::new(breaker)).await;
    }

    proptest::proptest! {
        #[test]
        fn every_tag_is_answered_once_and_it_closes_when_all_is_well(
            seed: u64,
            chance in 0.0f64..1.0,
            batches in proptest::collection::vec((0u64..900, 0u64..60, 0u64..2000), 1..20),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(FakeOrigin::uniform(1000, 100).with_latency(Duration::from_millis(3)));
                let below = FailingTier::new(Arc::clone(&origin))
                    .on(When::Chance(chance), Fault::Error(ErrorKind::Transient))
                    .with_seed(seed);
                let breaker = Breaker::new(Arc::new(below), BreakerPolicy::default(), "rank 3", seed);
                for (from, length, pause) in batches {
                    let stream = breaker.read_all(batch(&origin, from..from + length));
                    let mut tags: Vec<u32> = stream.map(|answer| answer.tag).collect().await;
                    tags.sort_unstable();
                    assert_eq!(tags, (0..length as u32).collect::<Vec<_>>());
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            });
        }
    }
}
