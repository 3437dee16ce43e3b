//! Deadlines: no read waits forever.
//!
//! A read without an answer within a bound fails here as [`ErrorKind::Transient`], with the
//! object's name. So an outer layer can retry, and even an origin that has lost a request cannot
//! hang a run. The bound is a minimum plus the transfer time of a slow read. That is the tier's
//! recent time per byte of a single read, with a wide margin. So a large object on a slow link is
//! not interrupted. The layer is next to the origin, so time in queues does not count.
//!
//! It also checks the length of the answer, because only here a retry is still possible. Too few
//! bytes are an interrupted transfer. Too many are another object.
//!
//! The price is a timer for each read that does not answer at once.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, TierError};
use metrics::Counter;
use tokio::time::{Instant, timeout_at};

/// How long a read may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlinePolicy {
    /// The time that every read may take, whatever its size.
    pub floor: Duration,
    /// How many times the recent time per byte a read may take in addition.
    pub margin: u32,
    /// The assumed throughput of a single read before the first measurement, in bytes per second.
    pub assumed: u64,
}

impl Default for DeadlinePolicy {
    /// For origins: 30 s, and the transfer time at an eighth of the recent throughput (8 MB/s
    /// before the first read).
    fn default() -> Self {
        Self { floor: Duration::from_secs(30), margin: 8, assumed: 8_000_000 }
    }
}

setters! { DeadlinePolicy:
    /// The same with another minimum.
    with_floor(floor: Duration);
}

/// The latency of reads below this size depends on the request more than on the bytes.
const TELLING: u64 = 16 << 10;

pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Ends reads that take too long, and measures the usual time per byte.
///
/// Ended reads are counted as `foreread_tier_read_deadlines_total` with the label `tier`.
#[derive(Debug)]
pub(crate) struct Deadline {
    tier: String,
    policy: DeadlinePolicy,
    /// Recent seconds per byte of a single read, as the bits of an `f64`. 0 before the first read.
    /// Two threads that write at once may lose one of two measurements, which is harmless.
    per_byte: AtomicU64,
    ended: Counter,
}

impl Deadline {
    pub(crate) fn new(tier: &str, policy: DeadlinePolicy) -> Self {
        let tier = tier.to_owned();
        let ended = metrics::counter!("foreread_tier_read_deadlines_total", "tier" => tier.clone());
        Self { tier, policy, per_byte: AtomicU64::new(0), ended }
    }

    /// How long a read of `bytes` may take now.
    fn bound(&self, bytes: u64) -> Duration {
        let seen = f64::from_bits(self.per_byte.load(Relaxed));
        let assumed = 1.0 / self.policy.assumed.max(1) as f64;
        let per_byte = if seen > 0.0 { seen } else { assumed };
        let seconds = bytes as f64 * per_byte * f64::from(self.policy.margin);
        // Capped at a year, so that the sum with any instant is valid.
        self.policy.floor.min(YEAR) + Duration::from_secs_f64(seconds.min(YEAR.as_secs_f64()))
    }

    fn record(&self, bytes: u64, took: Duration) {
        if bytes < TELLING {
            return;
        }
        let new = took.as_secs_f64() / bytes as f64;
        let old = f64::from_bits(self.per_byte.load(Relaxed));
        let mean = if old > 0.0 { old + (new - old) / 16.0 } else { new };
        self.per_byte.store(mean.to_bits(), Relaxed);
    }

    /// The answer of a read that left at `started`, or an error after the deadline.
    pub(crate) async fn within(
        &self,
        request: &ReadRequest,
        started: Instant,
        answer: impl Future<Output = Result<Bytes, TierError>>,
    ) -> Result<Bytes, TierError> {
        let (expected, mut answer) = (request.len(), pin!(answer));
        let bytes = loop {
            match timeout_at(started + self.bound(expected), &mut answer).await {
                Ok(answer) => break answer?,
                // Other reads may have raised the bound meanwhile.
                Err(_) if started.elapsed() < self.bound(expected) => {}
                Err(_) => {
                    self.ended.increment(1);
                    let detail = format!("no answer in {:.1} s", started.elapsed().as_secs_f64());
                    return Err(self.error(ErrorKind::Transient, request, detail));
                }
            }
        };
        let got = bytes.len() as u64;
        if got == expected {
            self.record(got, started.elapsed());
            return Ok(bytes);
        }
        let kind = if got < expected { ErrorKind::Transient } else { ErrorKind::Changed };
        Err(self.error(kind, request, format!("{got} bytes instead of {expected}")))
    }

    #[cold]
    fn error(&self, kind: ErrorKind, request: &ReadRequest, detail: String) -> TierError {
        TierError::new(kind, &*self.tier).with_object(&*request.object.path).with_detail(detail)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_tier::OriginTier;
    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, When};
    use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
    use futures::StreamExt;

    use super::*;
    use crate::Stack;

    fn bounded<T: OriginTier>(below: T, policy: DeadlinePolicy) -> Arc<dyn OriginTier> {
        Stack::bare().with_deadline(Some(policy)).wrap(Arc::new(below))
    }

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    fn batch(origin: &FakeOrigin, ids: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
        ids.into_iter().map(|id| origin.request(SampleId(id), Tick(id))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_read_ends_by_name_and_delays_no_other() {
        let origin = Arc::new(FakeOrigin::uniform(100, 1000).with_latency(Duration::from_millis(5)));
        let failing = FailingTier::new(Arc::clone(&origin)).on(When::Key(key(7)), Fault::Never);
        let bounded = bounded(failing, DeadlinePolicy::default());
        let began = Instant::now();
        let mut stream = bounded.read_all(batch(&origin, 0..10));
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
    async fn large_reads_on_a_slow_link_get_more_time() {
        let origin =
            FakeOrigin::new([("a", 1 << 20), ("b", 100 << 20)]).with_bandwidth(2 << 20).with_zeroes();
        let bounded = bounded(origin.clone(), DeadlinePolicy::default());
        assert!(bounded.read_all(batch(&origin, [0])).next().await.unwrap().result.is_ok());
        assert!(bounded.read_all(batch(&origin, [1])).next().await.unwrap().result.is_ok());
        // The same by numbers: 1 MiB took half a second.
        let deadline = Deadline::new("fake", DeadlinePolicy::default());
        deadline.record(1 << 20, Duration::from_millis(500));
        let bound = deadline.bound(100 << 20).as_secs();
        assert!((429..=431).contains(&bound), "eight times 50 s, and 30 s: {bound} s");
        assert!(deadline.bound(u64::MAX) <= YEAR * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_length_is_an_error() {
        let origin = Arc::new(FakeOrigin::uniform(10, 1000));
        for (fault, kind, expected_detail) in [
            (Fault::Short, ErrorKind::Transient, "999 bytes instead of 1000"),
            (Fault::Long, ErrorKind::Changed, "1001 bytes instead of 1000"),
        ] {
            let failing = FailingTier::new(Arc::clone(&origin)).on(When::Key(key(3)), fault);
            let bounded = bounded(failing, DeadlinePolicy::default());
            let answers: Vec<_> = bounded.read_all(batch(&origin, 0..10)).collect().await;
            let errors: Vec<_> = answers.into_iter().filter_map(|answer| answer.result.err()).collect();
            let [error] = &errors[..] else { panic!("{errors:?}") };
            assert_eq!((error.kind(), error.detail()), (kind, Some(expected_detail)));
            assert_eq!(error.object(), Some("00000/00000003"));
        }
    }

    proptest::proptest! {
        #[test]
        fn deadline_answers_every_read_in_time(
            seed: u64,
            chances in (0.0f64..0.3, 0.0f64..0.3, 0.0f64..0.3),
            batches in proptest::collection::vec((0u64..900, 0u64..60), 1..10),
        ) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let origin = Arc::new(FakeOrigin::uniform(1000, 100).with_latency(Duration::from_millis(3)));
                let failing = FailingTier::new(Arc::clone(&origin))
                    .on(When::Chance(chances.0), Fault::Never)
                    .on(When::Chance(chances.1), Fault::Stall(Duration::from_secs(3)))
                    .on(When::Chance(chances.2), Fault::Short)
                    .with_seed(seed);
                let policy = DeadlinePolicy::default().with_floor(Duration::from_secs(2));
                let bounded = bounded(failing, policy);
                let began = Instant::now();
                let batches = futures::future::join_all(batches.iter().map(|&(from, length)| {
                    let stream = bounded.read_all(batch(&origin, from..from + length));
                    async move {
                        let mut tags: Vec<u32> = stream.map(|answer| answer.tag).collect().await;
                        tags.sort_unstable();
                        assert_eq!(tags, (0..length as u32).collect::<Vec<_>>());
                    }
                }));
                batches.await;
                assert!(began.elapsed() <= Duration::from_millis(2010), "{:?}", began.elapsed());
            });
        }
    }
}
