//! The cost of a read: a time per request plus a time per byte.
//!
//! The time per byte is the larger of two estimates. Within one read, it is the slope of a line
//! through the times of reads of several sizes, fitted by least squares with fading weights. And no
//! byte takes less than the throughput of all reads together allows: the most bytes that recently
//! came in a quarter of a second. The time per request is the time of the fastest recent read
//! without the time of its bytes. Any other read may have waited in the origin for the bytes of
//! others, which is not a cost of requests. So an origin with varying latency counts as one with
//! little latency, and requests count as cheap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use foreread_tier::lock;
use tokio::time::Instant;

/// The weight of a read fades by this factor with each further read.
const FADES: f64 = 0.99;
/// The number of reads before costs are known.
const FEWEST: u64 = 20;
/// Sizes that vary by less than this fraction of their mean do not determine the slope.
const ALIKE: f64 = 0.1;
/// The window in which bytes are counted, and the factor by which an old count fades with each
/// window.
const WINDOW: Duration = Duration::from_millis(250);
const OLDER: f64 = 0.9;
/// The fastest read is taken from this many reads and as many before them.
const RECENT: u64 = 256;

#[derive(Clone, Copy, Debug, Default)]
struct SpeedState {
    seen: u64,
    /// Fading sums over reads: of 1, bytes, seconds, bytes squared, and bytes times seconds.
    sums: [f64; 5],
    window: Option<(Instant, f64)>,
    /// Bytes per second of all reads together.
    rate: f64,
    /// The seconds and bytes of the fastest reads of the current and the previous `RECENT` reads.
    quickest: [Option<(f64, f64)>; 2],
}

/// Measures the cost of recent reads. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Speed(Arc<Mutex<SpeedState>>);

/// A read takes `request + bytes * byte` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReadCost {
    pub(crate) request: f64,
    pub(crate) byte: f64,
}

impl SpeedState {
    fn add(&mut self, bytes: f64, seconds: f64) {
        for (sum, new) in self.sums.iter_mut().zip([1.0, bytes, seconds, bytes * bytes, bytes * seconds]) {
            *sum = *sum * FADES + new;
        }
        if self.seen.is_multiple_of(RECENT) {
            self.quickest = [None, self.quickest[0]];
        }
        self.seen += 1;
        let first = self.quickest[0].get_or_insert((seconds, bytes));
        if seconds < first.0 {
            *first = (seconds, bytes);
        }
    }

    /// Updates the throughput of all reads.
    fn count_bytes(&mut self, bytes: f64, now: Instant, started: Instant) {
        let (begun, sum) = self.window.unwrap_or((started, 0.0));
        let seconds = now.saturating_duration_since(begun).as_secs_f64();
        let sum = sum + bytes;
        self.rate = self.rate.max(if seconds > 0.0 { sum / seconds.max(WINDOW.as_secs_f64()) } else { 0.0 });
        self.window = Some((begun, sum));
        if seconds >= WINDOW.as_secs_f64() {
            self.rate = (self.rate * OLDER).max(sum / seconds);
            self.window = Some((now, 0.0));
        }
    }

    fn byte(&self) -> f64 {
        let [reads, bytes, seconds, bytes_squared, products] = self.sums;
        let (bytes, seconds) = (bytes / reads, seconds / reads);
        let variance = bytes_squared / reads - bytes * bytes;
        let covariance = products / reads - bytes * seconds;
        let is_varied = variance > (ALIKE * bytes).powi(2);
        let slope = if is_varied { covariance / variance } else { 0.0 };
        slope.max(if self.rate > 0.0 { 1.0 / self.rate } else { 0.0 })
    }
}

impl Speed {
    /// Records a read of `bytes` from `started` to `now`.
    pub(crate) fn record(&self, bytes: u64, started: Instant, now: Instant) {
        let mut state = lock(&self.0);
        state.count_bytes(bytes as f64, now, started);
        state.add(bytes as f64, now.saturating_duration_since(started).as_secs_f64());
    }

    /// The cost of reads. `None` after too few reads.
    pub(crate) fn cost(&self) -> Option<ReadCost> {
        let state = lock(&self.0);
        if state.seen < FEWEST {
            return None;
        }
        let byte = state.byte();
        let (seconds, bytes) =
            state.quickest.iter().flatten().min_by(|one, other| one.0.total_cmp(&other.0))?;
        Some(ReadCost { request: (seconds - bytes * byte).max(0.0), byte })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen reads at once, again and again.
    fn seen(bytes: impl Fn(u64) -> u64, took: impl Fn(u64, u64) -> f64) -> ReadCost {
        let (speed, mut now) = (Speed::default(), Instant::now());
        for round in 0..50u64 {
            let began = now;
            for place in 0..16 {
                let bytes = bytes(round * 16 + place);
                let ended = began + Duration::from_secs_f64(took(bytes, place));
                speed.record(bytes, began, ended);
                now = now.max(ended);
            }
        }
        speed.cost().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn latency_and_bandwidth_are_separated() {
        let cost = seen(|read| 10_000 + 7919 * (read % 31), |bytes, _| 0.02 + bytes as f64 / 20e6);
        assert!((cost.request - 0.02).abs() < 0.002 && (cost.byte * 20e6 - 1.0).abs() < 0.02, "{cost:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn cost_per_byte_of_one_size_comes_from_throughput() {
        let latency = seen(|_| 5000, |_, _| 0.02);
        assert!(latency.request > 0.018 && latency.request <= 0.02, "{latency:?}");
        // One after another on a link.
        let pipe = seen(|_| 50_000, |_, place| 0.001 + 0.05 * (place + 1) as f64);
        assert!(pipe.request < 0.01 && pipe.byte > 0.8e-6, "{pipe:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn costs_are_never_negative() {
        let cost = seen(|read| 1000 * (1000 - read), |bytes, _| 1.0 - bytes as f64 / 1e6);
        assert!(cost.request >= 0.0 && cost.byte >= 0.0, "{cost:?}");
        let (speed, now) = (Speed::default(), Instant::now());
        (0..FEWEST).for_each(|_| {
            assert_eq!(speed.cost(), None);
            speed.record(0, now, now);
        });
        assert_eq!(speed.cost(), Some(ReadCost { request: 0.0, byte: 0.0 }));
    }
}
