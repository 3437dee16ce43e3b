//! A second read for a late one.
//!
//! Every store answers some reads much later than the rest: a lost packet, a slow disk, a node that is being replaced.
//! Reads change nothing, so a read that is later than nearly all of its size lately were is sent once more, and the
//! first of the two answers counts ("The Tail at Scale", Dean and Barroso, CACM 56(2), 2013). How late is late is
//! measured: a quantile of the tier's recent latencies, by size, times a factor; before enough was seen, two seconds and what
//! the bytes take on a slow line. Second reads have a budget of a few per cent of the first ones, so a store that has become slow as a whole
//! is not asked twice as much.
//!
//! A second read that is late itself is sent once more.
//!
//! The read that loses is dropped, where it is one that can be dropped: a second read always, a first one with the
//! rest of its batch. An error that another attempt may mend waits for the other read; any other error is an answer. A
//! store's refusal that waits, or is never passed on, teaches the limit its rate all the same ([`Stack`](crate::Stack)
//! connects the two).
//!
//! Second reads need no place of a limit, unless they are told to ([`Hedged::within`]): then they wait in its line like any
//! read, and leave it if the first read answers before. One that waits keeps no error of the first read back, or the two
//! would wait for each other. One that leaves the line has not been sent and costs nothing of the budget.
//!
//! The price is a timer for each batch that does not answer at once, one lock an answer, and up to the budget's part of
//! load.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_tier::{Completion, Completions, ReadRequest, Tier, TierError, TierProfile};
use futures::future::BoxFuture;
use futures::stream::select_all;
use futures::{FutureExt, Stream, StreamExt};
use metrics::Counter;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::deadline::YEAR;
use crate::histogram::Histogram;
use crate::limit::Origin;
use crate::open::Open;
use crate::{Limit, Meter, Permit};

/// When a read is late, and how many second reads there may be.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct HedgePolicy {
    /// A read is late when it takes longer than this part (0 to 1) of reads of its size ...
    pub quantile: f64,
    /// ... take, times this ...
    pub factor: f64,
    /// ... and longer than this.
    pub shortest: Duration,
    /// How many reads of a size must have been seen before any is hedged (at most 1,024).
    pub fewest: u32,
    /// Second reads may be so large a part (0 to 1) of the first ones.
    pub budget: f64,
    /// How often one read may be sent again: where every hundredth hangs, every hundredth second read does.
    pub most: u32,
}

impl Default for HedgePolicy {
    /// Three times what 95 of 100 reads take and at least 10 ms, after 20 reads, for 3 in 100 at most,
    /// each at most twice.
    ///
    /// The quantile is not a higher one because it has to be blind to what hedges are against: where two reads of a
    /// hundred hang, the ninety-ninth percentile is a hanging one.
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

impl HedgePolicy {
    /// The same with another budget (a part of the reads, 0 to 1).
    #[must_use]
    pub const fn with_budget(self, budget: f64) -> Self {
        Self { budget, ..self }
    }

    /// The same where a read is late after `factor` times what the part `quantile` of reads take, but not before
    /// `shortest`.
    #[must_use]
    pub const fn with_lateness(self, quantile: f64, factor: f64, shortest: Duration) -> Self {
        Self { quantile, factor, shortest, ..self }
    }

    /// The same with another number of reads to be seen first.
    #[must_use]
    pub const fn with_fewest(self, fewest: u32) -> Self {
        Self { fewest, ..self }
    }
}

/// Unspent budget beyond this many second reads is lost; so many may be sent before any were earned, too: a run should not
/// begin with waiting for a server's dead half.
const SAVED: f64 = 16.0;
/// When a read is late of whose size too few were seen: after this, and what its bytes take at so many a second.
const GUESS: Duration = Duration::from_secs(2);
const SLOW: f64 = 5e6;

/// A tier whose late reads are sent a second time.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_read_hedges_total` | counter | `tier` |
/// | `foreread_tier_read_hedges_won_total` | counter | `tier`; second reads that answered first |
pub struct Hedged<T: ?Sized> {
    rules: Arc<Rules>,
    inner: Arc<T>,
}

struct Rules {
    policy: HedgePolicy,
    meter: Meter,
    hedges: Counter,
    won: Counter,
    /// Where second reads take places, too.
    limit: Option<Limit>,
    /// What is to hear of refusals that are not passed on.
    refusals: Option<Origin>,
    seen: Mutex<Seen>,
}

struct Seen {
    latencies: Histogram,
    /// Second reads that may be sent.
    saved: f64,
}

impl Rules {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of two reads of a sample, which left at `started`, has failed, and the other is waited for.
    fn withheld(&self, request: &ReadRequest, started: Instant, error: &TierError) {
        if let Some(refusals) = &self.refusals {
            refusals.withheld(request, started, error);
        }
    }

    /// How long a read of so many bytes may take before it is late, and how soon to look again at the latest, because
    /// by then more may be known.
    fn late_after(&self, seen: &Seen, bytes: u64) -> (Duration, Duration) {
        match seen.latencies.quantile(bytes) {
            Some(usual) => {
                // Cut at a year, so that the sum with any instant stays one.
                let late = Duration::try_from_secs_f64(usual.as_secs_f64() * self.policy.factor.max(0.0));
                (late.unwrap_or(YEAR).max(self.policy.shortest).min(YEAR), YEAR)
            }
            None => {
                let guess = GUESS + Duration::from_secs_f64(bytes as f64 / SLOW);
                (guess.min(YEAR), UNKNOWN)
            }
        }
    }
}

impl<T: Tier + ?Sized> Hedged<T> {
    /// `inner`, hedged as `policy` says.
    pub fn new(inner: Arc<T>, policy: HedgePolicy) -> Self {
        let tier = inner.name().to_owned();
        let rules = Rules {
            policy,
            meter: Meter::new(),
            hedges: metrics::counter!("foreread_tier_read_hedges_total", "tier" => tier.clone()),
            won: metrics::counter!("foreread_tier_read_hedges_won_total", "tier" => tier),
            limit: None,
            refusals: None,
            seen: Mutex::new(Seen {
                latencies: Histogram::new(policy.quantile, policy.fewest),
                saved: SAVED,
            }),
        };
        Self { rules: Arc::new(rules), inner }
    }

    /// The same, which counts its second reads in `meter`; what was seen so far is forgotten.
    #[must_use]
    pub fn with_meter(self, meter: &Meter) -> Self {
        self.changed(|rules| Rules { meter: meter.clone(), ..rules })
    }

    /// The same, whose second reads take places of `limit`: for a bound that the user has set on all requests; what was
    /// seen so far is forgotten.
    #[must_use]
    pub fn within(self, limit: Limit) -> Self {
        self.changed(|rules| Rules { limit: Some(limit), ..rules })
    }

    /// The same, which tells `origin` of refusals that it does not pass on; what was seen so far is forgotten.
    pub(crate) fn telling(self, origin: Origin) -> Self {
        self.changed(|rules| Rules { refusals: Some(origin), ..rules })
    }

    /// The same with fresh rules of the same settings, changed.
    fn changed(self, change: impl FnOnce(Rules) -> Rules) -> Self {
        let (limit, refusals) = (self.rules.limit.clone(), self.rules.refusals.clone());
        let meter = self.rules.meter.clone();
        let Self { rules, inner } = Self::new(self.inner, self.rules.policy);
        let rules =
            Arc::try_unwrap(rules).map(|rules| Arc::new(change(Rules { limit, refusals, meter, ..rules })));
        Self { rules: rules.unwrap_or(self.rules), inner }
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Hedged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedged").field("policy", &self.rules.policy).field("inner", &&*self.inner).finish()
    }
}

impl<T: Tier + ?Sized> Tier for Hedged<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        if self.rules.limit.is_some() && batch.len() > 1 {
            // A batch is dropped as a whole, and a read in it that has lost would stay under way without a place.
            return select_all(batch.into_iter().map(|request| self.read(vec![request]))).boxed();
        }
        let open = Open::new(batch.clone());
        let share = batch.len() as f64 * self.rules.policy.budget.clamp(0.0, 1.0);
        {
            let mut seen = self.rules.seen();
            seen.saved = (seen.saved + share).min(SAVED);
        }
        Raced {
            rules: Arc::clone(&self.rules),
            inner: Arc::clone(&self.inner),
            started: Instant::now(),
            open,
            first: Some(self.inner.read(batch)),
            seconds: Vec::new(),
            failed: Vec::new(),
            sent: Vec::new(),
            timer: None,
        }
        .boxed()
    }
}

pass_through!(Hedged);

/// A second read.
struct Second {
    tag: u32,
    state: SecondState,
}

enum SecondState {
    /// It waits for a place.
    Waiting { place: BoxFuture<'static, Permit>, paid: Paid },
    /// It is under way since then, in its place where it needs one.
    Reading { answers: Completions, started: Instant, _place: Option<Permit> },
}

/// What a second read costs of the budget; returned if it is dropped before the read was sent.
struct Paid {
    rules: Arc<Rules>,
    is_spent: bool,
}

impl Drop for Paid {
    fn drop(&mut self) {
        if !self.is_spent {
            let mut seen = self.rules.seen();
            seen.saved = (seen.saved + 1.0).min(SAVED);
        }
    }
}

impl Second {
    fn is_under_way(&self) -> bool {
        matches!(self.state, SecondState::Reading { .. })
    }
}

struct Raced<T: ?Sized> {
    rules: Arc<Rules>,
    inner: Arc<T>,
    started: Instant,
    open: Open,
    first: Option<Completions>,
    seconds: Vec<Second>,
    /// First reads that have failed while their second one is under way.
    failed: Vec<(u32, TierError)>,
    /// Which reads were sent again, when last, and how often.
    sent: Vec<(u32, Instant, u32)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T: Tier + ?Sized> Raced<T> {
    /// The same as [`answered_by`](Self::answered_by). After the last answer nothing stays under way below.
    fn answered(&mut self, completion: Completion, second: Option<Instant>) -> Option<Completion> {
        let answer = self.answered_by(completion, second);
        if self.open.len() == 0 {
            self.first = None;
            self.seconds.clear();
        }
        answer
    }

    /// Takes an answer of either read, of a `second` one that left then; `None` if nobody waits for it any longer, or the
    /// other read may still do better.
    fn answered_by(
        &mut self,
        Completion { tag, result }: Completion,
        second: Option<Instant>,
    ) -> Option<Completion> {
        match &result {
            Err(error) if error.is_retryable() => {
                let request = self.open.get(tag)?;
                if second.is_none() {
                    self.failed.push((tag, error.clone()));
                }
                if self.is_waited_for(tag) {
                    self.rules.withheld(request, second.unwrap_or(self.started), error);
                    return None;
                }
                self.close(tag)?;
            }
            _ => {
                let request = self.close(tag)?;
                if result.is_ok() {
                    self.rules.seen().latencies.record(request.len(), self.started.elapsed());
                    if second.is_some() {
                        self.rules.won.increment(1);
                    }
                }
            }
        }
        Some(Completion { tag, result })
    }

    /// Whether a read of this tag is under way: the first one, as long as it has not failed, or another.
    fn is_waited_for(&self, tag: u32) -> bool {
        !self.failed.iter().any(|(failed, _)| *failed == tag)
            || self.seconds.iter().any(|second| second.tag == tag && second.is_under_way())
    }

    /// Ends all reads of this tag, which is answered from now on.
    fn close(&mut self, tag: u32) -> Option<ReadRequest> {
        let request = self.open.close(tag)?;
        self.seconds.retain(|second| second.tag != tag);
        self.failed.retain(|(failed, _)| *failed != tag);
        Some(request)
    }

    /// The first read's own error, if that has failed and none of the others is under way any longer.
    fn give_up(&mut self, tag: u32) -> Option<Completion> {
        if self.is_waited_for(tag) {
            return None;
        }
        let (_, error) = self.failed.iter().find(|(failed, _)| *failed == tag)?.clone();
        self.close(tag)?;
        Some(Completion { tag, result: Err(error) })
    }

    fn poll_seconds(&mut self, cx: &mut Context<'_>) -> Option<Completion> {
        let mut at = 0;
        while let Some(second) = self.seconds.get_mut(at) {
            let tag = second.tag;
            let (answers, started) = match &mut second.state {
                SecondState::Reading { answers, started, .. } => (answers, *started),
                SecondState::Waiting { place, paid } => {
                    let Poll::Ready(place) = place.poll_unpin(cx) else {
                        at += 1;
                        continue;
                    };
                    match self.open.get(tag).cloned() {
                        Some(request) => {
                            paid.is_spent = true;
                            self.seconds[at].state = self.leave(request, Some(place));
                        }
                        None => drop(self.seconds.remove(at)),
                    }
                    continue;
                }
            };
            match answers.poll_next_unpin(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => {
                    self.seconds.remove(at);
                    let answer = match answer.filter(|answer| answer.tag == tag) {
                        Some(answer) => self.answered(answer, Some(started)),
                        None => self.give_up(tag), // it broke its word
                    };
                    if answer.is_some() {
                        return answer;
                    }
                }
            }
        }
        None
    }

    /// Sends second reads for those that are late; whether any was sent. Otherwise the timer is set for the next that
    /// will be.
    fn hedge(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            if let Some(timer) = &mut self.timer
                && timer.as_mut().poll(cx).is_pending()
            {
                return false;
            }
            let Some((next, late)) = self.look() else { return false };
            let at = Instant::now() + next.max(Duration::from_millis(1));
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(at),
                None => self.timer = Some(Box::pin(sleep_until(at))),
            }
            if !late.is_empty() {
                late.into_iter().for_each(|request| self.send(request));
                return true;
            }
        }
    }

    /// How long until the next read may be late, and those that are and may be sent; `None` where none is left.
    fn look(&self) -> Option<(Duration, Vec<ReadRequest>)> {
        let now = Instant::now();
        let (mut late, mut next) = (Vec::new(), None::<Duration>);
        let mut seen = self.rules.seen();
        for request in self.open.iter() {
            let before = self.sent.iter().find(|(tag, ..)| *tag == request.tag);
            let (since, times) = before.map_or((self.started, 0), |&(_, since, times)| (since, times));
            if times >= self.rules.policy.most {
                continue;
            }
            let took = now.saturating_duration_since(since);
            let (after, soon) = self.rules.late_after(&seen, request.len());
            if after <= took && seen.saved >= 1.0 {
                seen.saved -= 1.0;
                late.push(request.clone());
                continue;
            }
            // Of one that is late already: there may be budget by then.
            let wait = if after <= took { after } else { after - took }.min(soon);
            next = Some(next.map_or(wait, |next| next.min(wait)));
        }
        if next.is_none() && late.is_empty() { None } else { Some((next.unwrap_or(UNKNOWN), late)) }
    }

    fn send(&mut self, request: ReadRequest) {
        let tag = request.tag;
        match self.sent.iter_mut().find(|(sent, ..)| *sent == tag) {
            Some((_, since, times)) => (*since, *times) = (Instant::now(), *times + 1),
            None => self.sent.push((tag, Instant::now(), 1)),
        }
        let state = match self.rules.limit.clone() {
            Some(limit) => SecondState::Waiting {
                place: async move { limit.acquire(request.due).await }.boxed(),
                paid: Paid { rules: Arc::clone(&self.rules), is_spent: false },
            },
            None => self.leave(request, None),
        };
        self.seconds.push(Second { tag, state });
    }

    /// Sends a second read.
    fn leave(&self, request: ReadRequest, place: Option<Permit>) -> SecondState {
        self.rules.meter.hedged();
        self.rules.hedges.increment(1);
        tracing::debug!(object = &*request.object.path, took = ?self.started.elapsed(), "a second read");
        let answers = self.inner.read(vec![request]);
        SecondState::Reading { answers, started: Instant::now(), _place: place }
    }
}

/// How soon to look again at reads of a size of which too few were seen. A run begins with such reads, and enough others are
/// answered while the first one hangs.
const UNKNOWN: Duration = Duration::from_millis(50);

impl<T: Tier + ?Sized> Stream for Raced<T> {
    type Item = Completion;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = self.get_mut();
        loop {
            if this.open.len() == 0 {
                this.first = None; // and with it whatever is still under way below
                return Poll::Ready(None);
            }
            if let Some(first) = &mut this.first {
                match first.poll_next_unpin(cx) {
                    Poll::Ready(Some(completion)) => match this.answered(completion, None) {
                        Some(completion) => return Poll::Ready(Some(completion)),
                        None => continue,
                    },
                    Poll::Ready(None) => this.first = None,
                    Poll::Pending => {}
                }
            }
            if let Some(completion) = this.poll_seconds(cx) {
                return Poll::Ready(Some(completion));
            }
            if this.first.is_none() && !this.seconds.iter().any(Second::is_under_way) {
                return Poll::Ready(None); // the tier below broke its word
            }
            if this.first.is_none() || !this.hedge(cx) {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier::ErrorKind;
    use foreread_tier_testing::{CountingTier, FailingTier, FakeOrigin, Fault, When};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

    use super::*;

    const USUAL: Duration = Duration::from_millis(20);

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    fn origin() -> Arc<FakeOrigin> {
        Arc::new(FakeOrigin::uniform(1000, 100).with_latency(USUAL))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(id as u32, SampleId(id), Tick(id))).collect()
    }

    type Counted = CountingTier<FailingTier<FakeOrigin>>;

    fn hedged(origin: &Arc<FakeOrigin>, when: When, fault: Fault) -> (Hedged<Counted>, Arc<Counted>, Meter) {
        let failing = FailingTier::new(Arc::clone(origin)).on(when, fault);
        let counted = Arc::new(CountingTier::new(Arc::new(failing)));
        let meter = Meter::new();
        (Hedged::new(Arc::clone(&counted), HedgePolicy::default()).with_meter(&meter), counted, meter)
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_is_sent_again_and_only_it_is_late() {
        let origin = origin();
        let (hedged, counted, meter) = hedged(&origin, When::First(key(500), 1), Fault::Never);
        assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
        let began = Instant::now();
        let mut stream = hedged.read(batch(&origin, 490..510));
        for _ in 0..19 {
            assert_ne!(stream.next().await.unwrap().tag, 500);
        }
        assert_eq!(began.elapsed(), USUAL);
        let last = stream.next().await.unwrap();
        assert_eq!((last.tag, last.result.unwrap()), (500, origin.expected(SampleId(500))));
        // Three times what 95 of 100 take (to a bucket), and what the second read takes.
        let took = began.elapsed().as_millis();
        assert!((80..95).contains(&took), "{took} ms");
        assert!(stream.next().await.is_none());
        let tally = counted.counts().tally();
        assert_eq!((meter.read().hedged, tally.requests, tally.in_flight), (1, 221, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn before_enough_was_seen_only_what_is_very_late_is_hedged() {
        let origin = origin();
        let (hedged, _, meter) =
            hedged(&origin, When::First(key(50), 1), Fault::Stall(Duration::from_secs(5)));
        let began = Instant::now();
        assert_eq!(hedged.read(batch(&origin, 35..54)).count().await, 19);
        let took = began.elapsed();
        assert!(GUESS + USUAL <= took && took < GUESS + 5 * USUAL, "{took:?}");
        assert_eq!(meter.read().hedged, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_the_first_reads_that_hangs_is_late_as_soon_as_the_others_have_shown_what_is_usual() {
        let origin = origin();
        let (hedged, _, meter) = hedged(&origin, When::First(key(50), 1), Fault::Never);
        let began = Instant::now();
        assert_eq!(hedged.read(batch(&origin, 0..64)).count().await, 64);
        let took = began.elapsed();
        assert!(took < 8 * USUAL, "{took:?}");
        assert_eq!(meter.read().hedged, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_slow_as_a_whole_is_not_asked_twice_as_much() {
        let origin = origin();
        let (hedged, _, meter) = hedged(&origin, When::Key(key(999)), Fault::Short);
        for _ in 0..5 {
            assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
        }
        origin.set_latency(Duration::from_secs(1));
        for _ in 0..5 {
            assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
        }
        let sent = meter.read().hedged;
        assert!((1..=62).contains(&sent), "{sent} second reads of 2,000");
    }

    /// Second reads that waited for a place until their first ones had answered had used up the budget.
    #[tokio::test(start_paused = true)]
    async fn second_read_that_was_never_sent_costs_nothing() {
        let origin = origin();
        let (hedged, _, meter) = hedged(&origin, When::First(key(500), 1), Fault::Never);
        let limit = Limit::new(std::num::NonZeroUsize::MIN);
        let hedged = hedged.within(limit.clone());
        let place = limit.acquire(Tick(0)).await;
        assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
        // All are late, and each waits for a place until it has its answer.
        origin.set_latency(Duration::from_secs(1));
        let mut slow = hedged.read(batch(&origin, 200..240));
        let half = tokio::time::timeout(Duration::from_millis(500), slow.next()).await;
        assert!(half.is_err() && hedged.rules.seen().saved < 1.0, "no second read waits");
        assert_eq!(slow.count().await, 40);
        assert_eq!((meter.read().hedged, hedged.rules.seen().saved), (0, SAVED));
        assert_eq!(limit.waiting(), 0);
        // So there is budget for one that hangs.
        drop(place);
        let answers: Vec<_> = hedged.read(batch(&origin, [500])).collect().await;
        assert_eq!(answers[0].result.as_ref().unwrap(), &origin.expected(SampleId(500)));
        assert_eq!(meter.read().hedged, 1);
    }

    /// The sum of an instant and the time after which a read is late panicked.
    #[tokio::test(start_paused = true)]
    async fn policy_that_never_hedges_reads() {
        let default = HedgePolicy::default();
        for policy in [
            default.with_lateness(0.95, 3.0, Duration::MAX),
            default.with_lateness(1.0, f64::INFINITY, Duration::ZERO),
            default.with_lateness(f64::NAN, f64::NAN, Duration::MAX),
            default.with_lateness(-1.0, -1.0, Duration::MAX).with_budget(f64::NAN),
        ] {
            let origin = origin();
            let hedged = Hedged::new(Arc::clone(&origin), policy);
            assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
            // By now a latency is known.
            assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
            assert_eq!(origin.counts().tally().requests, 400);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_waits_for_the_other_read_only_where_that_may_help() {
        for (kind, mended) in [(ErrorKind::Transient, true), (ErrorKind::NotFound, false)] {
            let origin = origin();
            let late = Arc::new(Late { inner: Arc::clone(&origin), kind });
            let hedged = Hedged::new(late, HedgePolicy::default());
            assert_eq!(hedged.read(batch(&origin, 0..200)).count().await, 200);
            let answers: Vec<_> = hedged.read(batch(&origin, [999])).collect().await;
            assert_eq!(answers.len(), 1);
            assert_eq!(answers[0].result.is_ok(), mended, "{kind}");
        }
    }

    /// The first read of sample 999 fails when its second one is half-way.
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

        fn read(&self, batch: Vec<ReadRequest>) -> Completions {
            let first =
                self.inner.counts().tally().requests < 201 && batch.iter().any(|request| request.tag == 999);
            if !first {
                return self.inner.read(batch);
            }
            let (kind, first) = (self.kind, self.inner.read(batch));
            first
                .then(move |completion| async move {
                    tokio::time::sleep(Duration::from_millis(55)).await;
                    Completion { tag: completion.tag, result: Err(TierError::new(kind, "late")) }
                })
                .boxed()
        }
    }

    proptest::proptest! {
        #[test]
        fn every_tag_is_answered_once_whatever_goes_wrong(
            seed: u64,
            chances in (0.0f64..0.3, 0.0f64..0.3, 0.0f64..0.2),
            batches in proptest::collection::vec((0u64..900, 0u64..100), 1..12),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(
                    FakeOrigin::uniform(1000, 100).with_latency(USUAL).with_jitter(Duration::from_millis(100)),
                );
                let failing = FailingTier::new(Arc::clone(&origin))
                    .on(When::Chance(chances.0), Fault::Error(ErrorKind::Transient))
                    .on(When::Chance(chances.1), Fault::Stall(Duration::from_secs(3)))
                    .on(When::Chance(chances.2), Fault::Error(ErrorKind::NotFound))
                    .with_seed(seed);
                let counted = Arc::new(CountingTier::new(Arc::new(failing)));
                let policy = HedgePolicy::default().with_budget(0.5).with_fewest(10);
                let hedged = Hedged::new(Arc::clone(&counted), policy);
                for (from, length) in batches {
                    let mut tags: Vec<u32> =
                        hedged.read(batch(&origin, from..from + length)).map(|answer| answer.tag).collect().await;
                    tags.sort_unstable();
                    assert_eq!(tags, (from as u32..(from + length) as u32).collect::<Vec<_>>());
                }
                assert_eq!(counted.counts().tally().in_flight, 0);
            });
        }
    }
}
