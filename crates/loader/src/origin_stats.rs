//! Latency and rate of reads of the origin, including all queues and layers.
//!
//! The latency follows slow reads: it rises at once, falls by a tenth per read, and halves in
//! [`LATENCY_HALF_LIFE`] without reads. A read in flight counts with its age if that is longer. The
//! rate is that of the best recent window, or of the best single read. Reads of blocks count for
//! the latency, of any rank: while they take long, so would a hedge. They do not count for
//! the rate, because owners are compared by the samples that they deliver. Times are arguments, so
//! tests need no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread_types::Tick;

use crate::blocks::BlockId;
use crate::core::OriginPace;

/// The latency before the first read. A hedge waits twice as long, and a trainer at most two
/// seconds. A rank that owns nothing has no reads to measure.
const DEFAULT_LATENCY: Duration = Duration::from_millis(500);

/// The lowest assumed rate, in bytes per second.
const MIN_RATE: f64 = 5e6;

/// The window over which bytes are counted.
const WINDOW: Duration = Duration::from_millis(250);

/// The time in which an old latency halves.
const LATENCY_HALF_LIFE: Duration = Duration::from_secs(10);

/// A read that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeasuredRead {
    /// For a use.
    Use(Tick),
    /// Of a block.
    Block(BlockId),
}

/// Measurements of the origin.
#[derive(Debug, Default)]
pub(crate) struct OriginStats {
    open: BTreeMap<MeasuredRead, Duration>,
    latency: Option<Duration>,
    /// When the last read ended.
    ended: Duration,
    window: Option<(Duration, u64)>,
    rate: f64,
}

impl OriginStats {
    /// Records the start of a read.
    pub(crate) fn begin(&mut self, read: MeasuredRead, now: Duration) {
        self.open.insert(read, now);
    }

    /// Records the end of a read that has started, with the delivered bytes.
    pub(crate) fn end(&mut self, read: MeasuredRead, bytes: u64, now: Duration) {
        let Some(began) = self.open.remove(&read) else { return };
        let took = now.saturating_sub(began);
        let before = self.latency_at(now).unwrap_or_default();
        (self.latency, self.ended) = (Some(took.max(before.mul_f64(0.9) + took.mul_f64(0.1))), now);
        let (begun, sum) = self.window.unwrap_or((began, 0));
        let sum = sum + bytes;
        let since = now.saturating_sub(begun);
        self.window = Some((begun, sum));
        self.rate = self.rate.max(bytes as f64 / took.as_secs_f64().max(1e-6));
        if since >= WINDOW {
            self.rate = (self.rate * 0.9).max(sum as f64 / since.as_secs_f64());
            self.window = Some((now, 0));
        }
    }

    /// Drops a failed read, which does not count as a measurement.
    pub(crate) fn forget(&mut self, read: MeasuredRead) {
        self.open.remove(&read);
    }

    fn latency_at(&self, now: Duration) -> Option<Duration> {
        let idle = now.saturating_sub(self.ended).as_secs_f64() / LATENCY_HALF_LIFE.as_secs_f64();
        Some(self.latency?.mul_f64(0.5f64.powf(idle)))
    }

    /// The current pace.
    pub(crate) fn pace(&self, now: Duration) -> OriginPace {
        let oldest = self.open.values().min().map_or(Duration::ZERO, |began| now.saturating_sub(*began));
        let latency = self.latency_at(now).unwrap_or(DEFAULT_LATENCY).max(oldest);
        OriginPace { latency, bytes_per_second: self.rate.max(MIN_RATE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(tick: u64) -> MeasuredRead {
        MeasuredRead::Use(Tick(tick))
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A rank that owns nothing once waited 2.3 s for 1.5 MB.
    #[test]
    fn unread_origin_is_hedged_within_two_seconds() {
        let OriginPace { latency, bytes_per_second } = OriginStats::default().pace(seconds(60.0));
        let requested = 2.0 * latency.as_secs_f64() + 2e6 / bytes_per_second;
        assert!(requested < 1.6, "{requested} s");
    }

    #[test]
    fn latency_rises_at_once_and_falls_slowly() {
        let mut reads = OriginStats::default();
        assert_eq!(
            reads.pace(seconds(5.0)),
            OriginPace { latency: DEFAULT_LATENCY, bytes_per_second: MIN_RATE }
        );
        let mut read = |number, from, took: f64| {
            reads.begin(tick(number), seconds(from));
            reads.end(tick(number), 1000, seconds(from + took));
            reads.pace(seconds(from + took)).latency.as_millis()
        };
        assert_eq!(read(1, 0.0, 0.01), 10);
        assert_eq!(read(2, 0.1, 2.0), 2000);
        assert!((1750..1850).contains(&read(3, 2.1, 0.01)));
        assert!((100..130).contains(&reads.pace(seconds(42.0)).latency.as_millis()));
    }

    #[test]
    fn open_read_counts_with_its_age() {
        let mut reads = OriginStats::default();
        reads.begin(tick(1), seconds(1.0));
        assert_eq!(reads.pace(seconds(8.0)).latency, seconds(7.0));
        reads.forget(tick(1));
        assert_eq!(reads.pace(seconds(8.0)).latency, DEFAULT_LATENCY);
    }

    #[test]
    fn rate_is_that_of_all_reads_together() {
        let mut reads = OriginStats::default();
        for read in 0..100u64 {
            reads.begin(tick(read), Duration::ZERO);
        }
        // One after another over a link of 100 MB/s.
        (0..100).for_each(|read| reads.end(tick(read), 1_000_000, seconds(0.01 * (read + 1) as f64)));
        let rate = reads.pace(seconds(1.0)).bytes_per_second;
        assert!((90e6..=110e6).contains(&rate), "{rate}");
    }
    #[test]
    // semantics: RANK-18
    fn blocks_count_for_the_latency_alone() {
        let mut reads = OriginStats::default();
        let block = |at| MeasuredRead::Block((foreread_types::DatasetId(0), at));
        (0..2).for_each(|at| reads.begin(block(at), seconds(0.0)));
        reads.end(block(0), 0, seconds(2.0));
        let pace = reads.pace(seconds(2.0));
        assert_eq!((pace.latency, pace.bytes_per_second), (seconds(2.0), MIN_RATE));
        assert_eq!(reads.pace(seconds(5.0)).latency, seconds(5.0));
    }
}
