//! Counts and latencies of a tier's reads.
//!
//! Every number is kept twice: in a [`Meter`], a few atomics that reports read, and in the
//! `metrics` facade, for the program's recorder. Handles of the facade are registered when the
//! layer is made, so a read costs no lookup by name. The price is that a recorder installed later
//! gets no numbers of this tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use foreread_tier::TierError;
use metrics::{Counter, Gauge, Histogram};
use tokio::time::Instant;

use crate::speed::Speed;

#[derive(Debug, Default)]
struct MeterCounts {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    cancelled: AtomicU64,
    retried: AtomicU64,
    hedged: AtomicU64,
    in_flight: AtomicU64,
}

/// Counts the requests to a tier. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<MeterCounts>);

/// The numbers of a [`Meter`] at one moment. While reads are in flight they may disagree by those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeterReading {
    /// Requests to the tier, counting every attempt.
    pub requests: u64,
    /// Bytes that it answered.
    pub bytes: u64,
    /// Requests that it answered with an error.
    pub errors: u64,
    /// Requests that were dropped before the answer.
    pub cancelled: u64,
    /// Retries among the requests.
    pub retried: u64,
    /// Hedges among the requests.
    pub hedged: u64,
    /// Requests in flight.
    pub in_flight: u64,
}

impl Meter {
    /// A meter at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The current numbers.
    pub fn read(&self) -> MeterReading {
        let numbers = &*self.0;
        MeterReading {
            requests: numbers.requests.load(Relaxed),
            bytes: numbers.bytes.load(Relaxed),
            errors: numbers.errors.load(Relaxed),
            cancelled: numbers.cancelled.load(Relaxed),
            retried: numbers.retried.load(Relaxed),
            hedged: numbers.hedged.load(Relaxed),
            in_flight: numbers.in_flight.load(Relaxed),
        }
    }

    pub(crate) fn retried(&self) {
        self.0.retried.fetch_add(1, Relaxed);
    }

    pub(crate) fn hedged(&self) {
        self.0.hedged.fetch_add(1, Relaxed);
    }
}

/// Counts and times the reads of one tier.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_read_requests_total` | counter | `tier` |
/// | `foreread_tier_read_bytes_total` | counter | `tier` |
/// | `foreread_tier_read_errors_total` | counter | `tier`, `kind` |
/// | `foreread_tier_read_cancelled_total` | counter | `tier` |
/// | `foreread_tier_reads_in_flight` | gauge | `tier` |
/// | `foreread_tier_read_seconds` | histogram | `tier`; from the request's start to the answer, errors included |
#[derive(Debug)]
pub(crate) struct Metrics {
    tier: String,
    meter: Meter,
    requests: Counter,
    bytes: Counter,
    cancelled: Counter,
    in_flight: Gauge,
    seconds: Histogram,
    /// Gets the time of each read.
    speed: Option<Speed>,
}

impl Metrics {
    /// Adds to `meter`, which several origins of one run share, and reports the time of each read
    /// to `speed`.
    pub(crate) fn new(tier: &str, meter: Meter, speed: Option<Speed>) -> Self {
        let tier = tier.to_owned();
        Self {
            requests: metrics::counter!("foreread_tier_read_requests_total", "tier" => tier.clone()),
            bytes: metrics::counter!("foreread_tier_read_bytes_total", "tier" => tier.clone()),
            cancelled: metrics::counter!("foreread_tier_read_cancelled_total", "tier" => tier.clone()),
            in_flight: metrics::gauge!("foreread_tier_reads_in_flight", "tier" => tier.clone()),
            seconds: metrics::histogram!("foreread_tier_read_seconds", "tier" => tier.clone()),
            meter,
            speed,
            tier,
        }
    }

    /// Counts a read that leaves now.
    pub(crate) fn start(self: &Arc<Self>) -> MeteredRead {
        self.meter.0.requests.fetch_add(1, Relaxed);
        self.meter.0.in_flight.fetch_add(1, Relaxed);
        self.requests.increment(1);
        self.in_flight.increment(1.0);
        MeteredRead { metrics: Arc::clone(self), started: Instant::now(), is_answered: false }
    }
}

/// A read in flight. If it is dropped before its answer, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct MeteredRead {
    metrics: Arc<Metrics>,
    pub(crate) started: Instant,
    is_answered: bool,
}

impl MeteredRead {
    /// Counts the answer.
    pub(crate) fn answered(mut self, result: &Result<Bytes, TierError>) {
        self.is_answered = true;
        let now = Instant::now();
        let Metrics { meter, seconds, bytes, speed, .. } = &*self.metrics;
        seconds.record((now - self.started).as_secs_f64());
        match result {
            Ok(answer) => {
                let length = answer.len() as u64;
                meter.0.bytes.fetch_add(length, Relaxed);
                bytes.increment(length);
                if let Some(speed) = speed {
                    speed.record(length, self.started, now);
                }
            }
            Err(error) => self.failed(error),
        }
    }

    #[cold]
    fn failed(&self, error: &TierError) {
        let Metrics { meter, tier, .. } = &*self.metrics;
        meter.0.errors.fetch_add(1, Relaxed);
        let labels = [("tier", tier.clone()), ("kind", error.kind().as_str().to_owned())];
        metrics::counter!("foreread_tier_read_errors_total", &labels).increment(1);
    }
}

impl Drop for MeteredRead {
    fn drop(&mut self) {
        let Metrics { meter, in_flight, cancelled, .. } = &*self.metrics;
        meter.0.in_flight.fetch_sub(1, Relaxed);
        in_flight.decrement(1.0);
        if !self.is_answered {
            meter.0.cancelled.fetch_add(1, Relaxed);
            cancelled.increment(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use foreread_tier::{ErrorKind, ReadRequest};
    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, ReadAll, When};
    use foreread_types::{SampleId, Tick};
    use futures::StreamExt;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;
    use crate::Stack;

    fn batch(origin: &FakeOrigin, count: u32) -> Vec<ReadRequest> {
        (0..count).map(|id| origin.request(SampleId(u64::from(id)), Tick(0))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn meter_and_metrics_count_the_same() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let origin =
            Arc::new(FakeOrigin::uniform(10, 100).with_latency(std::time::Duration::from_millis(250)));
        let failing =
            FailingTier::new(Arc::clone(&origin)).on(When::Read(3), Fault::Error(ErrorKind::NotFound));
        let stack = Stack::bare();
        let (metered, meter) = (stack.wrap(Arc::new(failing)), stack.meter);

        let stream = metered.read_all(batch(&origin, 10));
        assert_eq!((meter.read().requests, meter.read().in_flight), (10, 10));
        assert_eq!(stream.count().await, 10);
        let mut dropped = metered.read_all(batch(&origin, 5));
        assert!(futures::poll!(dropped.next()).is_pending());
        drop(dropped);
        let expected =
            MeterReading { requests: 15, bytes: 900, errors: 1, cancelled: 5, ..MeterReading::default() };
        assert_eq!(meter.read(), expected);

        let mut seen = BTreeMap::new();
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.0,
                DebugValue::Histogram(values) => values.iter().map(|value| value.0).sum(),
            };
            seen.insert(format!("{}{{{}}}", key.key().name(), labels.join(",")), value);
        }
        let expected = [
            ("foreread_tier_read_bytes_total{tier=fake}", 900.0),
            ("foreread_tier_read_cancelled_total{tier=fake}", 5.0),
            ("foreread_tier_read_errors_total{tier=fake,kind=not found}", 1.0),
            ("foreread_tier_read_requests_total{tier=fake}", 15.0),
            ("foreread_tier_read_retries_total{tier=fake}", 0.0),
            ("foreread_tier_read_seconds{tier=fake}", 9.0 * 0.25),
            ("foreread_tier_reads_in_flight{tier=fake}", 0.0),
        ];
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }
}
