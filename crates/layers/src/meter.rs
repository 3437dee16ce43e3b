//! Counting and timing what a tier is asked.
//!
//! Every number is kept twice: in a [`Meter`], a handful of atomics that reports read, and in the `metrics` facade,
//! for whatever recorder the program has installed. Handles of the facade are registered when the layer is made, so a
//! read costs no look-up by name; the price is that a recorder installed later sees nothing of this tier.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use foreread_tier::{Completion, Completions, ReadRequest, Tier, TierError, TierProfile};
use futures::{Stream, StreamExt};
use metrics::{Counter, Gauge, Histogram};
use tokio::time::Instant;

use crate::speed::Speed;

#[derive(Debug, Default)]
struct Numbers {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    cancelled: AtomicU64,
    retried: AtomicU64,
    hedged: AtomicU64,
    in_flight: AtomicU64,
}

/// What a tier was asked so far; clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Numbers>);

/// The numbers of a [`Meter`] at one moment. While reads are under way they may be apart by those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reading {
    /// Requests that the tier was given, every attempt counted.
    pub requests: u64,
    /// Bytes that it answered.
    pub bytes: u64,
    /// Requests that it answered with an error.
    pub errors: u64,
    /// Requests that were dropped before the answer.
    pub cancelled: u64,
    /// Requests that were repeats of a failed one.
    pub retried: u64,
    /// Requests that were second reads of a late one.
    pub hedged: u64,
    /// Requests under way now.
    pub in_flight: u64,
}

impl Meter {
    /// A meter that stands at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it says now.
    pub fn read(&self) -> Reading {
        let numbers = &*self.0;
        Reading {
            requests: numbers.requests.load(Relaxed),
            bytes: numbers.bytes.load(Relaxed),
            errors: numbers.errors.load(Relaxed),
            cancelled: numbers.cancelled.load(Relaxed),
            retried: numbers.retried.load(Relaxed),
            hedged: numbers.hedged.load(Relaxed),
            in_flight: numbers.in_flight.load(Relaxed),
        }
    }

    pub(crate) fn retried(&self, requests: u64) {
        self.0.retried.fetch_add(requests, Relaxed);
    }

    pub(crate) fn hedged(&self) {
        self.0.hedged.fetch_add(1, Relaxed);
    }
}

/// A tier whose reads are counted and timed.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `foreread_tier_read_requests_total` | counter | `tier` |
/// | `foreread_tier_read_bytes_total` | counter | `tier` |
/// | `foreread_tier_read_errors_total` | counter | `tier`, `kind` |
/// | `foreread_tier_read_cancelled_total` | counter | `tier` |
/// | `foreread_tier_reads_in_flight` | gauge | `tier` |
/// | `foreread_tier_read_seconds` | histogram | `tier`; from the batch's start to the answer, errors included |
pub struct Metered<T: ?Sized> {
    meter: Meter,
    handles: Arc<Handles>,
    inner: Arc<T>,
}

struct Handles {
    tier: String,
    requests: Counter,
    bytes: Counter,
    cancelled: Counter,
    in_flight: Gauge,
    seconds: Histogram,
    /// Somebody who wants to know what reads take.
    speed: Option<Speed>,
}

impl<T: Tier + ?Sized> Metered<T> {
    /// `inner`, measured from now on.
    pub fn new(inner: Arc<T>) -> Self {
        Self::with_meter(inner, Meter::new())
    }

    /// The same, added to a meter that there is already (several origins of one run).
    pub fn with_meter(inner: Arc<T>, meter: Meter) -> Self {
        let tier = inner.name().to_owned();
        let handles = Arc::new(Handles {
            requests: metrics::counter!("foreread_tier_read_requests_total", "tier" => tier.clone()),
            bytes: metrics::counter!("foreread_tier_read_bytes_total", "tier" => tier.clone()),
            cancelled: metrics::counter!("foreread_tier_read_cancelled_total", "tier" => tier.clone()),
            in_flight: metrics::gauge!("foreread_tier_reads_in_flight", "tier" => tier.clone()),
            seconds: metrics::histogram!("foreread_tier_read_seconds", "tier" => tier.clone()),
            speed: None,
            tier,
        });
        Self { meter, handles, inner }
    }

    /// The same, which tells `speed` what reads take. Before it is read or shared.
    pub(crate) fn with_speed(mut self, speed: Speed) -> Self {
        if let Some(handles) = Arc::get_mut(&mut self.handles) {
            handles.speed = Some(speed);
        }
        self
    }
}

impl<T: ?Sized> Metered<T> {
    /// A handle on the numbers.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Metered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metered").field("read", &self.meter.read()).field("inner", &&*self.inner).finish()
    }
}

impl<T: Tier + ?Sized> Tier for Metered<T> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, batch: Vec<ReadRequest>) -> Completions {
        let open = batch.len() as u64;
        self.meter.0.requests.fetch_add(open, Relaxed);
        self.meter.0.in_flight.fetch_add(open, Relaxed);
        self.handles.requests.increment(open);
        self.handles.in_flight.increment(open as f64);
        let (meter, handles) = (self.meter.clone(), Arc::clone(&self.handles));
        Measured { started: Instant::now(), open, meter, handles, answers: self.inner.read(batch) }.boxed()
    }
}

pass_through!(Metered);

struct Measured {
    started: Instant,
    open: u64,
    meter: Meter,
    handles: Arc<Handles>,
    answers: Completions,
}

impl Measured {
    fn record(&mut self, completion: &Completion) {
        let numbers = &*self.meter.0;
        if self.open > 0 {
            self.open -= 1;
            numbers.in_flight.fetch_sub(1, Relaxed);
            self.handles.in_flight.decrement(1.0);
        }
        let now = Instant::now();
        self.handles.seconds.record((now - self.started).as_secs_f64());
        match &completion.result {
            Ok(bytes) => {
                numbers.bytes.fetch_add(bytes.len() as u64, Relaxed);
                self.handles.bytes.increment(bytes.len() as u64);
                if let Some(speed) = &self.handles.speed {
                    speed.record(bytes.len() as u64, self.started, now);
                }
            }
            Err(error) => self.failed(error),
        }
    }

    #[cold]
    fn failed(&self, error: &TierError) {
        self.meter.0.errors.fetch_add(1, Relaxed);
        let labels = [("tier", self.handles.tier.clone()), ("kind", error.kind().as_str().to_owned())];
        metrics::counter!("foreread_tier_read_errors_total", &labels).increment(1);
    }
}

impl Stream for Measured {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        let next = std::task::ready!(self.answers.poll_next_unpin(cx));
        if let Some(completion) = &next {
            self.record(completion);
        }
        Poll::Ready(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.answers.size_hint()
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        if self.open > 0 {
            self.meter.0.in_flight.fetch_sub(self.open, Relaxed);
            self.meter.0.cancelled.fetch_add(self.open, Relaxed);
            self.handles.in_flight.decrement(self.open as f64);
            self.handles.cancelled.increment(self.open);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use foreread_tier::ErrorKind;
    use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, When};
    use foreread_types::{SampleId, Tick};
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    fn batch(origin: &FakeOrigin, count: u32) -> Vec<ReadRequest> {
        (0..count).map(|id| origin.request(id, SampleId(u64::from(id)), Tick(0))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_counted_twice() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let origin =
            Arc::new(FakeOrigin::uniform(10, 100).with_latency(std::time::Duration::from_millis(250)));
        let failing =
            FailingTier::new(Arc::clone(&origin)).on(When::Read(3), Fault::Error(ErrorKind::NotFound));
        let metered = Metered::new(Arc::new(failing));
        let meter = metered.meter();

        let stream = metered.read(batch(&origin, 10));
        assert_eq!((meter.read().requests, meter.read().in_flight), (10, 10));
        assert_eq!(stream.count().await, 10);
        let mut dropped = metered.read(batch(&origin, 5));
        assert!(futures::poll!(dropped.next()).is_pending());
        drop(dropped);
        let expected = Reading { requests: 15, bytes: 900, errors: 1, cancelled: 5, ..Reading::default() };
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
            ("foreread_tier_read_seconds{tier=fake}", 9.0 * 0.25),
            ("foreread_tier_reads_in_flight{tier=fake}", 0.0),
        ];
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }
}
