//! Fake origins by what limits them: latency, parallelism, bandwidth.

use std::time::Duration;

use crate::FakeOrigin;

/// What no origin is asked to exceed, in samples a second.
const CEILING: f64 = 20_000.0;

/// An origin that does the lesser of `parallelism / latency` and `bandwidth / size` samples a second, and how many
/// requests that takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// From a request to its answer, while nothing queues.
    pub latency: Duration,
    /// Requests that it works on at once; others queue.
    pub parallelism: usize,
    /// Bytes a second of all answers together.
    pub bandwidth: Option<u64>,
}

impl Cell {
    /// Samples of an origin, all of [`Self::SIZE`].
    pub const SAMPLES: u64 = 1000;
    /// Bytes a sample.
    pub const SIZE: u64 = 100_000;
    /// Samples a batch of the trainer that reads them.
    pub const BATCH: u64 = 32;

    /// Latency in milliseconds, bandwidth in MB a second.
    pub fn new(latency_ms: u64, parallelism: usize, megabytes: Option<u64>) -> Self {
        let bandwidth = megabytes.map(|megabytes| megabytes * 1_000_000);
        Self { latency: Duration::from_millis(latency_ms), parallelism, bandwidth }
    }

    /// The nine of one latency: parallelism 4, 64, 1024, each with 50 MB/s, 400 MB/s and without a limit.
    pub fn of_latency(latency_ms: u64) -> impl Iterator<Item = Self> {
        [4, 64, 1024].into_iter().flat_map(move |parallelism| {
            [Some(50), Some(400), None].map(|megabytes| Self::new(latency_ms, parallelism, megabytes))
        })
    }

    /// What a trainer computes on a batch that takes all that an origin may be asked for, 20,000 samples a second.
    pub fn greedy() -> Duration {
        Duration::from_secs_f64(Self::BATCH as f64 / CEILING)
    }

    fn by_bandwidth(&self) -> f64 {
        self.bandwidth.map_or(f64::INFINITY, |bandwidth| bandwidth as f64 / Self::SIZE as f64)
    }

    fn by_latency(&self) -> f64 {
        self.parallelism as f64 / self.latency.as_secs_f64()
    }

    /// Samples a second that it can do, of 20,000 that it is asked for.
    pub fn possible(&self) -> f64 {
        self.by_latency().min(self.by_bandwidth()).min(CEILING)
    }

    /// Requests that may be under way: where bandwidth is the limit, twice what fills it and a batch; else any number.
    pub fn allowed(&self) -> f64 {
        let by_bandwidth = self.by_bandwidth();
        if by_bandwidth < self.by_latency().min(CEILING) {
            2.0 * by_bandwidth * self.latency.as_secs_f64() + Self::BATCH as f64
        } else {
            f64::INFINITY
        }
    }

    /// The origin. Its answers leave their places before they are sent, so that bandwidth queues nothing inside.
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
        assert_eq!(Cell::new(10, 4, Some(50)).possible(), 400.0);
        assert_eq!(Cell::new(10, 64, Some(50)).possible(), 500.0);
        assert_eq!(Cell::new(1, 1024, None).possible(), CEILING);
        assert_eq!(Cell::new(10, 64, Some(50)).allowed(), 42.0);
        assert_eq!(Cell::new(10, 4, Some(50)).allowed(), f64::INFINITY);
        assert_eq!(Cell::of_latency(1).count(), 9);
    }
}
