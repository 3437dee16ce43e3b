//! One simulated run over one origin, in time steps.

use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{AdaptivePolicy, Decisions, Limit, Stack};
use foreread_tier::OriginTier;
use foreread_tier_testing::{FakeOrigin, OriginModel, Trainer, TrainerReport};
use foreread_types::{SampleId, Tick};

/// The trainer's results, and the limiter's state at the end of each step.
pub struct SimulatedRun {
    pub step: Duration,
    pub fared: TrainerReport,
    pub decisions: Vec<Decisions>,
}

impl SimulatedRun {
    /// Reads `origin` for `seconds` through all layers, with a trainer that computes for `compute`
    /// on each batch. Calls `at` with the time in seconds after each step.
    pub async fn simulate(
        origin: &FakeOrigin,
        compute: Duration,
        seconds: f64,
        mut at: impl FnMut(f64),
    ) -> Self {
        let limit = Limit::adaptive(AdaptivePolicy::default());
        let stack = Stack::new(1).with_limit(Some(limit.clone()));
        let tier: Arc<dyn OriginTier> = stack.wrap(Arc::new(origin.clone()));
        let trainer = Trainer::new(compute);
        let mut decisions = Vec::new();
        let request = |sample| origin.request(SampleId(sample % OriginModel::SAMPLES), Tick(sample));
        let until = Duration::from_secs_f64(seconds);
        let fared = trainer
            .run(tier, u64::from(u32::MAX), until, request, |time| {
                at(time.as_secs_f64());
                decisions.push(limit.decisions());
                0
            })
            .await;
        Self { step: trainer.step, fared, decisions }
    }

    /// Samples per second between two times in seconds.
    pub fn rate(&self, from: f64, to: f64) -> f64 {
        self.fared.rate(self.step, Duration::from_secs_f64(from), Duration::from_secs_f64(to))
    }

    /// The peak number of requests in flight.
    pub fn peak(&self) -> usize {
        self.decisions.last().map_or(0, |last| last.peak_in_flight)
    }

    /// Seconds that the trainer waited between two times, without the first batch.
    pub fn stalled(&self, from: f64, to: f64) -> f64 {
        self.steps(from, to).map(|step| self.fared.course[step].stalled.as_secs_f64()).sum()
    }

    /// The mean number of requests in flight at the ends of the steps between two times.
    pub fn in_flight(&self, from: f64, to: f64) -> f64 {
        let steps = self.steps(from, to);
        let count = steps.len() as f64;
        steps.map(|step| self.decisions[step].in_flight as f64).sum::<f64>() / count
    }

    /// The steps between two times.
    pub fn steps(&self, from: f64, to: f64) -> std::ops::Range<usize> {
        let at = |seconds: f64| (seconds / self.step.as_secs_f64()).round() as usize;
        at(from)..at(to).min(self.decisions.len()).min(self.fared.course.len())
    }
}
