//! Fake origins by their bottleneck: latency, parallelism, bandwidth.

use std::time::Duration;

use crate::FakeOrigin;

/// The highest demand, in samples per second.
const CEILING: f64 = 20_000.0;

/// An origin whose throughput is the lesser of `parallelism / latency` and `bandwidth / size`, in
/// samples per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OriginModel {
    /// The time from a request to its answer, without a queue.
    pub latency: Duration,
    /// Requests that it processes at once. Others queue.
    pub parallelism: usize,
    /// Bytes per second of all answers together.
    pub bandwidth: Option<u64>,
}

impl OriginModel {
    /// Samples of an origin, all of [`Self::SIZE`].
    pub const SAMPLES: u64 = 1000;
    /// Bytes per sample.
    pub const SIZE: u64 = 100_000;
    /// Samples per batch of the trainer.
    pub const BATCH: u64 = 32;

    /// Latency in milliseconds, bandwidth in MB/s.
    pub fn new(latency_ms: u64, parallelism: usize, megabytes: Option<u64>) -> Self {
        let bandwidth = megabytes.map(|megabytes| megabytes * 1_000_000);
        Self { latency: Duration::from_millis(latency_ms), parallelism, bandwidth }
    }

    /// The nine cells of one latency: parallelism 4, 64, 1024, each with 50 MB/s, 400 MB/s and
    /// without a limit.
    pub fn of_latency(latency_ms: u64) -> impl Iterator<Item = Self> {
        [4, 64, 1024].into_iter().flat_map(move |parallelism| {
            [Some(50), Some(400), None].map(|megabytes| Self::new(latency_ms, parallelism, megabytes))
        })
    }

    /// The compute time per batch of a trainer that needs 20,000 samples per second.
    pub fn greedy() -> Duration {
        Duration::from_secs_f64(Self::BATCH as f64 / CEILING)
    }

    fn by_bandwidth(&self) -> f64 {
        self.bandwidth.map_or(f64::INFINITY, |bandwidth| bandwidth as f64 / Self::SIZE as f64)
    }

    fn by_latency(&self) -> f64 {
        self.parallelism as f64 / self.latency.as_secs_f64()
    }

    /// The possible samples per second, at most 20,000.
    pub fn possible(&self) -> f64 {
        self.by_latency().min(self.by_bandwidth()).min(CEILING)
    }

    /// The allowed requests in flight. If bandwidth is the bottleneck, twice the number that fills
    /// it plus a batch. Otherwise unlimited.
    pub fn allowed(&self) -> f64 {
        let by_bandwidth = self.by_bandwidth();
        if by_bandwidth < self.by_latency().min(CEILING) {
            2.0 * by_bandwidth * self.latency.as_secs_f64() + Self::BATCH as f64
        } else {
            f64::INFINITY
        }
    }

    /// The origin. Its answers free their slots before they are sent, so that bandwidth queues
    /// nothing inside.
    pub fn origin(&self) -> FakeOrigin {
        let origin = FakeOrigin::uniform(Self::SAMPLES, Self::SIZE).with_zeroes().with_latency(self.latency);
        let origin = origin.with_parallelism(self.parallelism).with_pipe_outside();
        match self.bandwidth {
            Some(bandwidth) => origin.with_bandwidth(bandwidth),
            None => origin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_the_least_of_three_limits() {
        assert_eq!(OriginModel::new(10, 4, Some(50)).possible(), 400.0);
        assert_eq!(OriginModel::new(10, 64, Some(50)).possible(), 500.0);
        assert_eq!(OriginModel::new(1, 1024, None).possible(), CEILING);
        assert_eq!(OriginModel::new(10, 64, Some(50)).allowed(), 42.0);
        assert_eq!(OriginModel::new(10, 4, Some(50)).allowed(), f64::INFINITY);
        assert_eq!(OriginModel::of_latency(1).count(), 9);
    }
}
