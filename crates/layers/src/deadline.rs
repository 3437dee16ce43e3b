//! Nothing is waited for without end.
//!
//! A read that is not answered within a bound is answered here as [`ErrorKind::Transient`], by the object's name, so
//! that a layer above may try again and nothing, not even a store that has forgotten a request, can hang a run. The
//! bound is a floor plus the time in which a slow read would have got its bytes: the tier's own recent pace for a
//! single read, with a wide margin, so that a large object on a slow link is not ended half-way. The layer lies directly
//! around the store: time spent in queues outside of it does not count.
//!
//! It also holds the store to the length that was asked for, because nobody else knows both in time for a repetition:
//! fewer bytes are a transfer that broke off, more bytes are another object.
//!
//! Reads that share a batch have their deadlines in one timer. An answer that comes after its deadline is dropped. The
//! price of the layer is a timer for each batch that does not answer at once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_tier::{Completion, Completions, ErrorKind, ReadRequest, Tier, TierError, TierProfile};
use futures::{Stream, StreamExt};
use metrics::Counter;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::open::Open;

/// How long a read may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlinePolicy {
    /// What every read may take, whatever its size.
    pub floor: Duration,
    /// How much slower than reads have lately been, by the byte, a read may be beyond the floor.
    pub margin: u32,
    /// The pace of a single read that is assumed until one was seen, in bytes a second.
    pub assumed: u64,
}

impl Default for DeadlinePolicy {
    /// For origins: 30 s, and the time that the bytes take at an eighth of the recent pace (8 MB/s until it is known).
    fn default() -> Self {
        Self { floor: Duration::from_secs(30), margin: 8, assumed: 8_000_000 }
    }
}

impl DeadlinePolicy {
    /// The same with another floor.
    #[must_use]
    pub const fn with_floor(self, floor: Duration) -> Self {
        Self { floor, ..self }
    }
}

/// How fast single reads have lately been.
#[derive(Debug, Default)]
struct Pace {
    /// Seconds a byte, as the bits of an `f64`; 0 before the first. Two threads that write at once may lose one of
    /// two measurements, which does no harm.
    per_byte: AtomicU64,
}

impl Pace {
    /// Reads below this size say more about latency than about pace.
    const TELLING: u64 = 16 << 10;

    fn record(&self, bytes: u64, took: Duration) {
        if bytes < Self::TELLING {
            return;
        }
        let new = took.as_secs_f64() / bytes as f64;
        let old = f64::from_bits(self.per_byte.load(Relaxed));
        let mean = if old > 0.0 { old + (new - old) / 16.0 } else { new };
        self.per_byte.store(mean.to_bits(), Relaxed);
    }

    fn bound(&self, bytes: u64, policy: &DeadlinePolicy) -> Duration {
        let seen = f64::from_bits(self.per_byte.load(Relaxed));
        let assumed = 1.0 / policy.assumed.max(1) as f64;
        let per_byte = if seen > 0.0 { seen } else { assumed };
        let seconds = bytes as f64 * per_byte * f64::from(policy.margin);
        // Cut at a year, so that the sum with any instant stays one.
        policy.floor.min(YEAR) + Duration::from_secs_f64(seconds.min(YEAR.as_secs_f64()))
    }
}

pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A tier whose reads are answered in bounded time.
///
/// Those that it ends are counted as `foreread_tier_read_deadlines_total` with the label `tier`.
pub struct Deadlined<T: ?Sized> {
    rules: Arc<Rules>,
    inner: Arc<T>,
}

struct Rules {
    tier: String,
    policy: DeadlinePolicy,
    pace: Pace,
    ended: Counter,
}

impl<T: Tier + ?Sized> Deadlined<T> {
    /// `inner`, bounded as `policy` says.
    pub fn new(inner: Arc<T>, policy: DeadlinePolicy) -> Self {
        let tier = inner.name().to_owned();
        let ended = metrics::counter!("foreread_tier_read_deadlines_total", "tier" => tier.clone());
        Self { rules: Arc::new(Rules { tier, policy, pace: Pace::default(), ended }), inner }
    }
}

impl<T: ?Sized> Deadlined<T> {
    /// How long a read of so many bytes may take now.
    pub fn bound(&self, bytes: u64) -> Duration {
        self.rules.pace.bound(bytes, &self.rules.policy)
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Deadlined<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlined").field("policy", &self.rules.policy).field("inner", &&*self.inner).finish()
    }
}

impl<T: Tier + ?Sized> Tier for Deadlined<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let (started, open) = (Instant::now(), Open::new(batch.clone()));
        let answers = Some(self.inner.read(batch));
        let rules = Arc::clone(&self.rules);
        Bounded { rules, answers, open, started, late: Vec::new(), timer: None }.boxed()
    }
}

pass_through!(Deadlined);

struct Bounded {
    rules: Arc<Rules>,
    /// `None` when there is nothing more to wait for.
    answers: Option<Completions>,
    open: Open,
    started: Instant,
    /// Reads whose time is over, still to be said.
    late: Vec<Completion>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Bounded {
    /// Holds an answer to what was asked; `None` if nobody waits for it any longer.
    fn check(&mut self, Completion { tag, result }: Completion) -> Option<Completion> {
        let request = self.open.close(tag)?;
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(error) => return Some(Completion { tag, result: Err(error) }),
        };
        let (got, expected) = (bytes.len() as u64, request.len());
        if got == expected {
            self.rules.pace.record(got, self.started.elapsed());
            return Some(Completion { tag, result: Ok(bytes) });
        }
        let kind = if got < expected { ErrorKind::Transient } else { ErrorKind::Changed };
        let detail = format!("{got} bytes instead of {expected}");
        Some(Completion { tag, result: Err(self.error(kind, &request, detail)) })
    }

    #[cold]
    fn error(&self, kind: ErrorKind, request: &ReadRequest, detail: String) -> TierError {
        TierError::new(kind, &*self.rules.tier).with_object(&*request.object.path).with_detail(detail)
    }

    /// Sets the timer for the next read whose time will be over; those whose time is over become
    /// [`late`](Self::late).
    fn watch(&mut self, cx: &mut Context<'_>) {
        loop {
            if let Some(timer) = &mut self.timer {
                match timer.as_mut().poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(()) => self.end_late(),
                }
            }
            let bound = |request: &ReadRequest| self.rules.pace.bound(request.len(), &self.rules.policy);
            let Some(next) = self.open.iter().map(bound).min().map(|bound| self.started + bound) else {
                return;
            };
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(next),
                None => self.timer = Some(Box::pin(sleep_until(next))),
            }
            if !self.late.is_empty() {
                cx.waker().wake_by_ref(); // the timer is polled when the late have been said
                return;
            }
        }
    }

    fn end_late(&mut self) {
        let took = self.started.elapsed();
        let is_late =
            |request: &&ReadRequest| self.rules.pace.bound(request.len(), &self.rules.policy) <= took;
        let tags: Vec<u32> = self.open.iter().filter(is_late).map(|request| request.tag).collect();
        for tag in tags {
            let Some(request) = self.open.close(tag) else { continue };
            self.rules.ended.increment(1);
            let detail = format!("no answer in {:.1} s", took.as_secs_f64());
            let result = Err(self.error(ErrorKind::Transient, &request, detail));
            self.late.push(Completion { tag, result });
        }
    }
}

impl Stream for Bounded {
    type Item = Completion;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = self.get_mut();
        loop {
            if let Some(late) = this.late.pop() {
                return Poll::Ready(Some(late));
            }
            if this.open.len() == 0 {
                this.answers = None; // and with them whatever is still under way below
            }
            let Some(answers) = &mut this.answers else { return Poll::Ready(None) };
            match answers.poll_next_unpin(cx) {
                Poll::Ready(Some(completion)) => {
                    if let Some(completion) = this.check(completion) {
                        return Poll::Ready(Some(completion));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    this.watch(cx);
                    if this.late.is_empty() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, When};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

    use super::*;

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(id as u32, SampleId(id), Tick(id))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_hangs_is_ended_by_name_and_the_others_do_not_wait() {
        let origin = Arc::new(FakeOrigin::uniform(100, 1000).with_latency(Duration::from_millis(5)));
        let failing = FailingTier::new(Arc::clone(&origin)).on(When::Key(key(7)), Fault::Never);
        let bounded = Deadlined::new(Arc::new(failing), DeadlinePolicy::default());
        let began = Instant::now();
        let mut stream = bounded.read(batch(&origin, 0..10));
        for _ in 0..9 {
            assert!(stream.next().await.unwrap().result.is_ok());
        }
        assert_eq!(began.elapsed(), Duration::from_millis(5));
        let last = stream.next().await.unwrap();
        let error = last.result.unwrap_err();
        assert_eq!(
            (last.tag, error.kind(), error.object()),
            (7, ErrorKind::Transient, Some("00000/00000007"))
        );
        assert_eq!(error.detail(), Some("no answer in 30.0 s"));
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn large_reads_on_a_slow_link_have_the_time_that_they_need() {
        let origin =
            FakeOrigin::new([("a", 1 << 20), ("b", 100 << 20)]).with_bandwidth(2 << 20).with_zeroes();
        let bounded = Deadlined::new(Arc::new(origin.clone()), DeadlinePolicy::default());
        assert!(bounded.read(batch(&origin, [0])).next().await.unwrap().result.is_ok());
        let bound = bounded.bound(100 << 20).as_secs();
        assert!((429..=431).contains(&bound), "eight times 50 s, and 30 s: {bound} s");
        assert!(bounded.read(batch(&origin, [1])).next().await.unwrap().result.is_ok());
        assert!(bounded.bound(u64::MAX) <= YEAR * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_length_is_no_answer() {
        let origin = Arc::new(FakeOrigin::uniform(10, 1000));
        for (fault, kind, said) in [
            (Fault::Short, ErrorKind::Transient, "999 bytes instead of 1000"),
            (Fault::Long, ErrorKind::Changed, "1001 bytes instead of 1000"),
        ] {
            let failing = FailingTier::new(Arc::clone(&origin)).on(When::Key(key(3)), fault);
            let bounded = Deadlined::new(Arc::new(failing), DeadlinePolicy::default());
            let answers: Vec<_> = bounded.read(batch(&origin, 0..10)).collect().await;
            let errors: Vec<_> = answers.into_iter().filter_map(|answer| answer.result.err()).collect();
            let [error] = &errors[..] else { panic!("{errors:?}") };
            assert_eq!((error.kind(), error.detail()), (kind, Some(said)));
            assert_eq!(error.object(), Some("00000/00000003"));
        }
    }

    proptest::proptest! {
        #[test]
        fn every_tag_is_answered_once_and_in_time(
            seed: u64,
            chances in (0.0f64..0.3, 0.0f64..0.3, 0.0f64..0.3),
            batches in proptest::collection::vec((0u64..900, 0u64..60), 1..10),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(FakeOrigin::uniform(1000, 100).with_latency(Duration::from_millis(3)));
                let failing = FailingTier::new(Arc::clone(&origin))
                    .on(When::Chance(chances.0), Fault::Never)
                    .on(When::Chance(chances.1), Fault::Stall(Duration::from_secs(3)))
                    .on(When::Chance(chances.2), Fault::Short)
                    .with_seed(seed);
                let policy = DeadlinePolicy::default().with_floor(Duration::from_secs(2));
                let bounded = Deadlined::new(Arc::new(failing), policy);
                let began = Instant::now();
                let batches = futures::future::join_all(batches.iter().map(|&(from, length)| {
                    let stream = bounded.read(batch(&origin, from..from + length));
                    async move {
                        let mut tags: Vec<u32> = stream.map(|answer| answer.tag).collect().await;
                        tags.sort_unstable();
                        assert_eq!(tags, (from as u32..(from + length) as u32).collect::<Vec<_>>());
                    }
                }));
                batches.await;
                assert!(began.elapsed() <= Duration::from_millis(2010), "{:?}", began.elapsed());
            });
        }
    }
}
