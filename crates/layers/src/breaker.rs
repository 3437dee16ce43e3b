//! A circuit breaker: rejects reads of a tier that does not answer.
//!
//! A hanging disk costs each read the time until the timeout, and a trainer waits for many.
//! So after some consecutive failures all reads fail at once, for a time that doubles with each
//! opening. Then one read (the probe) is admitted, and its result decides. Rejected reads fail with
//! [`ErrorKind::Transient`]: the sample exists and can be read elsewhere.
//!
//! Only missing answers count as failures: an error that the tier returns shows that it is alive. A
//! tier that reports itself closed ([`ErrorKind::Closed`]) opens the breaker at once. Reads sent
//! before the last change of state are ignored: when a connection ends, everything in flight on it
//! fails together.
//!
//! The waits are drawn from the upper half of their bound, so that ranks that lost the same disk do
//! not return together. The price is one atomic load per answer, and that the probe may be a read
//! that the trainer needs soon.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use foreread_tier::{
    CacheTier, Charge, ErrorKind, Lookup, ReadFuture, ReadRequest, Sample, Tier, TierError, TierProfile, lock,
};
use foreread_types::{Footprint, SampleKey, mix};
use metrics::Counter;
use tokio::time::Instant;

use crate::DeadlinePolicy;
use crate::deadline::Deadline;

/// The number of consecutive failures that opens it.
const FAILURES: u32 = 3;

/// The upper bounds of the first wait, which doubles with each opening, and of all.
const WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The state machine. Time is an argument.
#[derive(Debug)]
struct BreakerCore {
    seed: u64,
    state: BreakerState,
    /// Changes of state so far: reads of an earlier epoch are ignored.
    epoch: u64,
    /// Openings since it was last closed.
    openings: u32,
    /// All openings, as input of the random waits.
    ever: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// Reads pass.
    Closed { failures: u32 },
    /// No read passes before `until`.
    Open { until: Instant },
    /// The probe is in flight.
    Probing,
}

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The tier answered, perhaps with an error.
    Answered,
    /// The tier did not answer.
    NoAnswer,
    /// The tier is closed.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    Opened(Duration),
    Closed,
}

impl BreakerCore {
    fn new(seed: u64) -> Self {
        Self { seed, state: BreakerState::Closed { failures: 0 }, epoch: 0, openings: 0, ever: 0 }
    }

    /// Admits a read: the current epoch, and whether the read is a probe. `None` rejects it.
    fn admit(&mut self, now: Instant) -> Option<(u64, bool)> {
        match self.state {
            BreakerState::Closed { .. } => Some((self.epoch, false)),
            BreakerState::Open { until } if until <= now => {
                self.state = BreakerState::Probing;
                self.epoch += 1;
                Some((self.epoch, true))
            }
            BreakerState::Open { .. } | BreakerState::Probing => None,
        }
    }

    /// A read that was sent in `epoch` has ended.
    fn answered(&mut self, now: Instant, epoch: u64, outcome: Outcome) -> Option<Transition> {
        if epoch != self.epoch {
            return None;
        }
        match (&mut self.state, outcome) {
            (BreakerState::Closed { failures }, Outcome::Answered) => {
                *failures = 0;
                None
            }
            (BreakerState::Closed { failures }, Outcome::NoAnswer) if *failures + 1 < FAILURES => {
                *failures += 1;
                None
            }
            (BreakerState::Closed { .. } | BreakerState::Probing, Outcome::NoAnswer | Outcome::Gone) => {
                Some(self.open(now))
            }
            (BreakerState::Probing, Outcome::Answered) => {
                self.state = BreakerState::Closed { failures: 0 };
                self.epoch += 1;
                self.openings = 0;
                Some(Transition::Closed)
            }
            (BreakerState::Open { .. }, _) => None,
        }
    }

    /// The read of `epoch` was dropped: if it was the probe, the next read is one.
    fn dropped(&mut self, now: Instant, epoch: u64) {
        if epoch == self.epoch && self.state == BreakerState::Probing {
            self.state = BreakerState::Open { until: now };
        }
    }

    fn open(&mut self, now: Instant) -> Transition {
        let doubled = 1u32.checked_shl(self.openings).unwrap_or(u32::MAX);
        let bound = WAITS.0.saturating_mul(doubled).min(WAITS.1);
        let drawn = mix(self.seed ^ mix(self.ever));
        let wait = bound.mul_f64(0.5 + 0.5 * ((drawn >> 11) as f64 / (1u64 << 53) as f64));
        self.openings = self.openings.saturating_add(1);
        self.ever += 1;
        self.epoch += 1;
        self.state = BreakerState::Open { until: now + wait };
        Transition::Opened(wait)
    }
}

/// A tier whose reads are rejected while it does not answer.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_breaker_openings_total` | counter | `tier` |
/// | `foreread_tier_breaker_refused_total` | counter | `tier`; reads that failed at once |
pub struct Breaker<T: ?Sized> {
    shared: Arc<BreakerShared>,
    inner: Arc<T>,
}

struct BreakerShared {
    tier: String,
    deadline: Deadline,
    label: String,
    machine: Mutex<BreakerCore>,
    /// Whether an answer could improve the state.
    is_degraded: AtomicBool,
    openings: Counter,
    refused: Counter,
}

impl BreakerShared {
    fn answered(&self, epoch: u64, result: &Result<Bytes, TierError>) {
        let outcome = match result.as_ref().map_err(TierError::kind) {
            Err(ErrorKind::Transient) => Outcome::NoAnswer,
            Err(ErrorKind::Closed) => Outcome::Gone,
            Ok(_) | Err(_) => Outcome::Answered,
        };
        if outcome == Outcome::Answered && !self.is_degraded.load(Relaxed) {
            return; // nearly always
        }
        let mut machine = lock(&self.machine);
        let change = machine.answered(Instant::now(), epoch, outcome);
        self.is_degraded.store(machine.state != BreakerState::Closed { failures: 0 }, Relaxed);
        let first = machine.openings == 1;
        drop(machine);
        match (change, result) {
            (Some(Transition::Opened(wait)), Err(error)) => {
                self.openings.increment(1);
                let why = error.detail().unwrap_or_default();
                // One warning until it answers again.
                if first {
                    tracing::warn!(
                        tier = self.tier,
                        label = self.label,
                        why,
                        "breaker opened: no reads for a while"
                    );
                } else {
                    tracing::debug!(tier = self.tier, label = self.label, ?wait, why, "breaker opened again");
                }
            }
            (Some(Transition::Closed), _) => {
                tracing::info!(tier = self.tier, label = self.label, "breaker closed: it answers again");
            }
            _ => {}
        }
    }

    fn refusal(&self, request: &ReadRequest) -> TierError {
        TierError::new(ErrorKind::Transient, &*self.tier)
            .with_object(&*request.object.path)
            .with_detail(format!("the breaker is open: {} did not answer recently", self.label))
    }
}

impl<T: Tier + ?Sized> Breaker<T> {
    /// Wraps `inner`, with a timeout of each read. `label` is its name in logs and errors.
    pub fn new(inner: Arc<T>, deadline: DeadlinePolicy, label: impl Into<String>, seed: u64) -> Self {
        let tier = inner.name().to_owned();
        let openings = metrics::counter!("foreread_tier_breaker_openings_total", "tier" => tier.clone());
        let refused = metrics::counter!("foreread_tier_breaker_refused_total", "tier" => tier.clone());
        let (deadline, machine) = (Deadline::new(&tier, deadline), Mutex::new(BreakerCore::new(seed)));
        let (label, is_degraded) = (label.into(), AtomicBool::new(false));
        let shared = BreakerShared { tier, deadline, label, machine, is_degraded, openings, refused };
        Self { shared: Arc::new(shared), inner }
    }
}

impl<T: ?Sized> Breaker<T> {
    /// Whether a read now would fail at once.
    pub fn is_open(&self) -> bool {
        match lock(&self.shared.machine).state {
            BreakerState::Closed { .. } => false,
            BreakerState::Open { until } => Instant::now() < until,
            BreakerState::Probing => true,
        }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Breaker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.machine).state;
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
        let admitted = lock(&self.shared.machine).admit(Instant::now());
        let Some((epoch, is_probe)) = admitted else {
            self.shared.refused.increment(1);
            return Box::pin(std::future::ready(Err(self.shared.refusal(&request))));
        };
        let watch = AdmittedRead { shared: Arc::clone(&self.shared), epoch, is_probe };
        let (answer, started) = (self.inner.read(Arc::clone(&request)), Instant::now());
        Box::pin(async move {
            let result = watch.shared.deadline.within(&request, started, answer).await;
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

    fn read_memory(&self) -> Footprint {
        self.inner.read_memory()
    }

    fn keeps_memory(&self) -> bool {
        self.inner.keeps_memory()
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

/// An admitted read.
struct AdmittedRead {
    shared: Arc<BreakerShared>,
    epoch: u64,
    /// Whether its outcome decides.
    is_probe: bool,
}

impl AdmittedRead {
    fn answered(mut self, result: &Result<Bytes, TierError>) {
        self.shared.answered(self.epoch, result);
        self.is_probe = false;
    }
}

impl Drop for AdmittedRead {
    fn drop(&mut self) {
        if self.is_probe {
            lock(&self.shared.machine).dropped(Instant::now(), self.epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, StoredCache, When};
    use foreread_types::{DatasetId, SampleId, Tick};
    use futures::StreamExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opened(change: Option<Transition>) -> Duration {
        match change {
            Some(Transition::Opened(wait)) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn breaker_opens_after_three_consecutive_failures() {
        let (mut machine, now) = (BreakerCore::new(1), Instant::now());
        for outcome in
            [Outcome::NoAnswer, Outcome::NoAnswer, Outcome::Answered, Outcome::NoAnswer, Outcome::NoAnswer]
        {
            assert_eq!(machine.admit(now), Some((0, false)));
            assert_eq!(machine.answered(now, 0, outcome), None);
        }
        let wait = opened(machine.answered(now, 0, Outcome::NoAnswer));
        assert!(wait >= SECOND / 4 && wait <= SECOND / 2, "{wait:?}");
        assert_eq!(machine.admit(now), None);
        assert_eq!(machine.admit(now + wait - Duration::from_nanos(1)), None);
    }

    #[test]
    // semantics: DISK-1
    fn probe_after_the_wait_decides() {
        let (mut machine, mut now) = (BreakerCore::new(1), Instant::now());
        let mut epoch = 0;
        for bound in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
            let wait = opened(machine.answered(now, epoch, Outcome::Gone)).as_millis();
            assert!(wait >= bound / 2 && wait <= bound, "{wait} ms, at most {bound}");
            now += Duration::from_millis(bound as u64);
            let Some((probe, true)) = machine.admit(now) else { panic!("{machine:?}") };
            epoch = probe;
            assert_eq!(machine.admit(now), None, "no second probe meanwhile");
        }
        assert_eq!(machine.answered(now, epoch, Outcome::Answered), Some(Transition::Closed));
        let Some((epoch, false)) = machine.admit(now) else { panic!("{machine:?}") };
        let wait = opened(machine.answered(now, epoch, Outcome::Gone)).as_millis();
        assert!(wait <= 500, "the waits start again: {wait} ms");
    }

    #[test]
    fn reads_of_an_earlier_epoch_are_ignored() {
        let (mut machine, now) = (BreakerCore::new(1), Instant::now());
        let wait = opened(machine.answered(now, 0, Outcome::Gone));
        for outcome in [Outcome::Answered, Outcome::NoAnswer, Outcome::Gone] {
            assert_eq!(machine.answered(now, 0, outcome), None);
        }
        let Some((epoch, true)) = machine.admit(now + wait) else { panic!("{machine:?}") };
        assert_eq!(
            machine.answered(now + wait, 0, Outcome::Answered),
            None,
            "an earlier answer is not the probe's"
        );
        assert_eq!(machine.answered(now + wait, epoch, Outcome::Answered), Some(Transition::Closed));
        assert_eq!(machine.answered(now + wait, epoch, Outcome::Gone), None);
        assert!(matches!(machine.admit(now + wait), Some((_, false))));
    }

    #[test]
    fn breaker_waits_differ_between_ranks() {
        let now = Instant::now();
        let wait = |seed| opened(BreakerCore::new(seed).answered(now, 0, Outcome::Gone));
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
    // semantics: DISK-1
    async fn unresponsive_tier_is_probed_by_one_read() {
        let origin = Arc::new(FakeOrigin::uniform(100, 10).with_latency(Duration::from_millis(5)));
        // The first three reads and the first probe fail once each.
        let below = [0, 1, 2, 3].into_iter().fold(FailingTier::new(Arc::clone(&origin)), |tier, id| {
            tier.on(When::First(key(id), 1), Fault::Error(ErrorKind::Transient))
        });
        let counting = Arc::new(below);
        let breaker = Breaker::new(Arc::clone(&counting), DeadlinePolicy::default(), "rank 3", 1);
        let failure = Some(ErrorKind::Transient);
        assert_eq!(kinds(&breaker, batch(&origin, 0..3)).await, [failure; 3]);
        assert!(breaker.is_open());
        let sent = counting.counts().tally().requests;
        let answers: Vec<_> = breaker.read_all(batch(&origin, 10..13)).collect().await;
        let error = answers[0].result.as_ref().unwrap_err();
        assert_eq!(
            error.to_string(),
            "fake: 00000/00000010: transient failure: the breaker is open: rank 3 did not answer recently"
        );
        assert_eq!(answers.len(), 3);
        assert_eq!(counting.counts().tally().requests, sent, "nothing was sent");
        tokio::time::sleep(SECOND / 2).await;
        assert!(!breaker.is_open());
        assert_eq!(kinds(&breaker, batch(&origin, 3..9)).await, [failure; 6]);
        assert_eq!(counting.counts().tally().requests, sent + 1, "one was sent");
        tokio::time::sleep(SECOND / 2).await;
        assert!(breaker.is_open(), "the second wait is longer");
        tokio::time::sleep(SECOND / 2).await;
        let kinds_of_errors = kinds(&breaker, batch(&origin, 3..9)).await;
        assert_eq!(kinds_of_errors.iter().filter(|kind| kind.is_none()).count(), 1);
        assert_eq!(kinds(&breaker, batch(&origin, 0..9)).await, [None; 9]);
    }

    #[tokio::test(start_paused = true)]
    async fn answered_errors_never_open_the_breaker() {
        let origin = Arc::new(FakeOrigin::uniform(100, 10));
        let below = [ErrorKind::Absent, ErrorKind::Changed, ErrorKind::Throttled, ErrorKind::Corrupt]
            .into_iter()
            .zip(0..)
            .fold(FailingTier::new(Arc::clone(&origin)), |tier, (kind, id)| {
                tier.on(When::Key(key(id)), Fault::Error(kind))
            });
        let breaker = Breaker::new(Arc::new(below), DeadlinePolicy::default(), "rank 3", 1);
        for _ in 0..10 {
            kinds(&breaker, batch(&origin, 0..4)).await;
            assert!(!breaker.is_open());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_probe_is_followed_by_another() {
        let origin = Arc::new(FakeOrigin::uniform(100, 10));
        let below = FailingTier::new(Arc::clone(&origin))
            .on(When::First(key(0), 1), Fault::Error(ErrorKind::Closed))
            .on(When::Key(key(1)), Fault::Never);
        let breaker = Breaker::new(Arc::new(below), DeadlinePolicy::default(), "rank 3", 1);
        assert_eq!(kinds(&breaker, batch(&origin, [0])).await, [Some(ErrorKind::Closed)]);
        assert!(breaker.is_open(), "a closed tier is believed at once");
        tokio::time::sleep(SECOND).await;
        let mut hangs = breaker.read_all(batch(&origin, [1]));
        assert!(tokio::time::timeout(SECOND, hangs.next()).await.is_err());
        assert!(breaker.is_open(), "no second probe meanwhile");
        drop(hangs);
        assert_eq!(kinds(&breaker, batch(&origin, [2])).await, [None]);
        assert!(!breaker.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn cache_conformance_of_a_breaker() {
        let cache =
            StoredCache::new(8 << 20).with_latency(Duration::from_millis(1), Duration::from_millis(1));
        let breaker = Breaker::new(Arc::new(cache), DeadlinePolicy::default(), "the disk", 1);
        foreread_tier_testing::conformance::cache(Arc::new(breaker)).await;
    }

    proptest::proptest! {
        #[test]
        fn breaker_answers_every_read_once(
            seed: u64,
            chance in 0.0f64..1.0,
            batches in proptest::collection::vec((0u64..900, 0u64..60, 0u64..2000), 1..20),
        ) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(FakeOrigin::uniform(1000, 100).with_latency(Duration::from_millis(3)));
                let below = FailingTier::new(Arc::clone(&origin))
                    .on(When::Chance(chance), Fault::Error(ErrorKind::Transient))
                    .with_seed(seed);
                let breaker = Breaker::new(Arc::new(below), DeadlinePolicy::default(), "rank 3", seed);
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
