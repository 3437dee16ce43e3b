//! How fast a job uses samples.
//!
//! The pace is an exponential average over a twentieth of an epoch. A longer average notices a slow
//! job late. A shorter one takes the rhythm of batches for a pace. A job that pauses or died
//! silently becomes slower with each moment, without a report.

/// The part of an epoch over which the average is taken, as its inverse.
const WINDOWS_PER_EPOCH: f64 = 20.0;

/// The measured pace of one job.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Nanoseconds per sample.
    average: f64,
    /// Samples that the average covers so far, at most `window`.
    covered: f64,
    /// Samples that the average covers at most.
    window: f64,
    /// The time of the latest use.
    latest: u64,
}

impl Pace {
    /// The pace of a job that begins at `now`, with an estimate that counts as much as one sample.
    pub(crate) fn new(ns_per_sample: u64, epoch_samples: u64, now: u64) -> Self {
        let window = (epoch_samples as f64 / WINDOWS_PER_EPOCH).max(1.0);
        Self { average: ns_per_sample as f64, covered: 1.0, window, latest: now }
    }

    /// Counts `samples` more samples that were used until `now`.
    pub(crate) fn advance(&mut self, samples: u64, now: u64) {
        let samples = samples as f64;
        let each = now.saturating_sub(self.latest) as f64 / samples;
        self.covered = (self.covered + samples).min(self.window);
        self.average += (each - self.average) * (samples / self.covered).min(1.0);
        self.latest = self.latest.max(now);
    }

    /// Nanoseconds per sample. A wait that is longer than a sample counts as one slow sample.
    pub(crate) fn ns_per_sample(&self, now: u64) -> f64 {
        let idle = now.saturating_sub(self.latest) as f64;
        self.average + (idle - self.average).max(0.0) / self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_follows_a_change_within_a_tenth_of_an_epoch() {
        let mut pace = Pace::new(7, 1000, 0);
        let mut now = 0;
        let mut run = |pace: &mut Pace, samples, ns| {
            for _ in 0..samples {
                now += ns;
                pace.advance(1, now);
            }
            pace.ns_per_sample(now)
        };
        assert!((run(&mut pace, 100, 1000) - 1000.0).abs() < 10.0);
        let slower = run(&mut pace, 100, 4000);
        assert!((3500.0..4000.0).contains(&slower), "{slower}");
        let batches = (0..100).map(|_| {
            now += 64 * 4000;
            pace.advance(64, now);
            pace.ns_per_sample(now)
        });
        assert!((batches.last().unwrap() - 4000.0).abs() < 1.0);
    }

    #[test]
    fn silent_job_becomes_slower() {
        let mut pace = Pace::new(100, 1000, 0);
        (1..200).for_each(|use_number| pace.advance(1, use_number * 100));
        let quick = pace.ns_per_sample(20_000);
        assert!((quick - 100.0).abs() < 1.0, "{quick}");
        // A twentieth of an epoch is 50 samples, 5,000 ns.
        let paused = pace.ns_per_sample(20_000 + 5_000);
        assert!((190.0..210.0).contains(&paused), "{paused}");
        assert!(pace.ns_per_sample(20_000_000) > 100_000.0);
    }
}
