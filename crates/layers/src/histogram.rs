//! Recent latencies by read size.
//!
//! Size classes are a factor of four wide, and latency buckets an eighth of an octave (nine per
//! cent). A quantile is a walk over a few hundred counters, computed now and then and cached. When
//! a class is full, all its counters are halved: half of its weight is never older than the last
//! thousand reads.

use std::time::Duration;

/// Sub-buckets of an octave, as a power of two.
const FINE: u32 = 3;
/// From one microsecond to more than an hour.
const BUCKETS: usize = 33 << FINE;
const CLASSES: usize = 33;
/// The counters of a class are halved at this total.
const FULL: u32 = 2048;
/// A quantile is recomputed after this many reads, or after a quarter of the total.
const FRESH: u32 = 64;

#[derive(Clone, Debug)]
struct SizeClass {
    counts: Box<[u32]>,
    total: u32,
    /// The cached quantile, and the number of reads since.
    known: Option<Duration>,
    age: u32,
}

impl Default for SizeClass {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0, known: None, age: 0 }
    }
}

/// Latencies by size class, with one quantile of each.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    quantile: f64,
    fewest: u32,
    classes: Vec<Option<SizeClass>>,
}

impl Histogram {
    /// Computes the given quantile (0 to 1) of each class with at least `fewest` reads.
    pub(crate) fn new(quantile: f64, fewest: u32) -> Self {
        let fewest = fewest.clamp(1, FULL / 2);
        Self { quantile: quantile.clamp(0.0, 1.0), fewest, classes: vec![None; CLASSES] }
    }

    pub(crate) fn record(&mut self, bytes: u64, latency: Duration) {
        let (quantile, fewest) = (self.quantile, self.fewest);
        let class = self.classes[class_of(bytes)].get_or_insert_default();
        class.counts[bucket_of(latency)] += 1;
        class.total += 1;
        class.age += 1;
        if class.total >= FULL {
            class.counts.iter_mut().for_each(|count| *count /= 2);
            class.total = class.counts.iter().sum();
        }
        if class.total >= fewest && (class.known.is_none() || class.age >= FRESH.min(class.total / 4)) {
            (class.known, class.age) = (Some(class.look_up(quantile)), 0);
        }
    }

    /// The quantile for reads of about `bytes`. `None` after too few reads.
    pub(crate) fn quantile(&self, bytes: u64) -> Option<Duration> {
        self.classes[class_of(bytes)].as_ref()?.known
    }
}

impl SizeClass {
    /// The upper end of the quantile's bucket.
    fn look_up(&self, quantile: f64) -> Duration {
        let wanted = (f64::from(self.total) * quantile).ceil().max(1.0) as u32;
        let mut sum = 0;
        let bucket = self.counts.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        upper_end(bucket.unwrap_or(BUCKETS - 1))
    }
}

fn class_of(bytes: u64) -> usize {
    (64 - bytes.leading_zeros()).div_ceil(2) as usize
}

/// Logarithmic, with linear steps within an octave.
fn bucket_of(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1) << FINE;
    let octave = 63 - micros.leading_zeros() - FINE;
    let step = (micros >> octave) as usize - (1 << FINE);
    (((octave as usize) << FINE) + step).min(BUCKETS - 1)
}

fn upper_end(bucket: usize) -> Duration {
    let (octave, step) = (bucket >> FINE, bucket % (1 << FINE));
    Duration::from_nanos(((step as u64 + 1 + (1 << FINE)) << octave) * (1000 >> FINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_narrow() {
        for micros in [1u64, 2, 3, 7, 8, 9, 100, 12_345, 1_000_000, 3_600_000_000] {
            let latency = Duration::from_micros(micros);
            let end = upper_end(bucket_of(latency));
            assert!(end > latency && end <= latency.mul_f64(1.126), "{micros}: {end:?}");
        }
        assert_eq!(bucket_of(Duration::ZERO), 0);
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert_eq!((class_of(0), class_of(1), class_of(u64::MAX)), (0, 1, CLASSES - 1));
    }

    #[test]
    fn quantile_needs_samples_and_follows_changes() {
        let mut histogram = Histogram::new(0.95, 100);
        for read in 0..99u64 {
            histogram.record(100_000, Duration::from_millis(10 + read % 5));
            assert_eq!(histogram.quantile(100_000), None);
        }
        histogram.record(100_000, Duration::from_secs(5));
        let known = histogram.quantile(90_000).unwrap();
        assert!((14..17).contains(&known.as_millis()), "{known:?}");
        assert_eq!(histogram.quantile(1_000_000), None);
        for _ in 0..3000 {
            histogram.record(100_000, Duration::from_millis(100));
        }
        let known = histogram.quantile(100_000).unwrap();
        assert!((100..114).contains(&known.as_millis()), "{known:?}");
    }
}
