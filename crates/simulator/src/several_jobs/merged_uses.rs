//! The uses of all jobs in the order of time.

use std::ops::Range;

use foreread_oracle::{Order, Sampler as _, Shuffle};
use foreread_types::SampleId;

use super::scenario::JobsScenario;
use crate::error::SimulateError;
use crate::workload::Draws;

/// Nanoseconds per sample of a job of pace 1.
pub(super) const NS_PER_SAMPLE: f64 = 1e6;

/// A wandering pace has a new direction as often in an epoch.
const TURNS_PER_EPOCH: f64 = 4.0;

/// One use of a sample by a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergedUse {
    pub ns: u64,
    pub sample: u32,
    pub job: u32,
    pub epoch: u32,
    /// The position in the epoch.
    pub position: u32,
}

/// All uses of a scenario.
#[derive(Clone, Debug)]
pub(super) struct MergedUses {
    pub uses: Vec<MergedUse>,
    /// The sampler of each job.
    pub samplers: Vec<Shuffle>,
    /// The epochs of each job that lie within the measured time as a whole.
    measured: Vec<Range<u32>>,
}

impl MergedUses {
    pub(super) fn new(scenario: &JobsScenario, seed: u64) -> Result<Self, SimulateError> {
        let scenario = JobsScenario { seed, ..scenario.clone() };
        let samples = u64::from(scenario.samples);
        let ns = |epochs: f64| (epochs * f64::from(scenario.samples) * NS_PER_SAMPLE) as u64;
        let measured = ns(scenario.begin())..ns(scenario.end());
        let after = ns(scenario.after());
        let mut samplers = Vec::new();
        for job in 0..scenario.paces.len() {
            samplers.push(Shuffle::new(samples, scenario.job_seed(job))?);
        }
        let mut jobs = Vec::new();
        for (job, sampler) in samplers.iter().enumerate() {
            jobs.push(RunningJob::new(&scenario, job, sampler)?);
        }
        let mut uses = Vec::new();
        // The first measured epoch of each job, and the one after the last.
        let mut first = vec![u32::MAX; jobs.len()];
        let mut end = vec![0; jobs.len()];
        while let Some((job, next)) = (0..).zip(&mut jobs).min_by_key(|(_, job)| job.next_ns())
            && next.next_ns() < after
        {
            let it = next.advance(job)?;
            let job = job as usize;
            if it.position == 0 && it.ns >= measured.start {
                first[job] = first[job].min(it.epoch);
            }
            if u64::from(it.position) + 1 == samples && it.ns < measured.end {
                end[job] = it.epoch + 1;
            }
            uses.push(it);
        }
        let measured = first.into_iter().zip(end).map(|(first, end)| first..end).collect();
        Ok(Self { uses, samplers, measured })
    }

    /// The samples of some of the uses.
    pub(super) fn ids(&self, chosen: &[usize]) -> Vec<SampleId> {
        chosen.iter().map(|&at| SampleId(u64::from(self.uses[at].sample))).collect()
    }

    /// Whether a use counts.
    pub(super) fn is_measured(&self, it: &MergedUse) -> bool {
        self.measured[it.job as usize].contains(&it.epoch)
    }
}

/// The samples that a job uses, one after another, in epoch after epoch.
#[derive(Debug)]
pub(super) struct OrderCursor<'a> {
    sampler: &'a Shuffle,
    order: Order,
    epoch: u64,
    position: u64,
}

impl<'a> OrderCursor<'a> {
    pub(super) fn new(sampler: &'a Shuffle) -> Result<Self, SimulateError> {
        Ok(Self { sampler, order: sampler.order(0)?, epoch: 0, position: 0 })
    }

    pub(super) fn next(&mut self) -> Result<SampleId, SimulateError> {
        if self.position == self.order.len() {
            (self.epoch, self.position) = (self.epoch + 1, 0);
            self.order = self.sampler.order(self.epoch)?;
        }
        self.position += 1;
        Ok(self.order.at(self.position - 1))
    }
}

/// One job: its order and its clock.
#[derive(Debug)]
struct RunningJob<'a> {
    cursor: OrderCursor<'a>,
    /// The time of the next use, in nanoseconds.
    time: f64,
    pace: WanderingPace,
}

impl<'a> RunningJob<'a> {
    fn new(scenario: &JobsScenario, job: usize, sampler: &'a Shuffle) -> Result<Self, SimulateError> {
        let time = scenario.starts[job] * f64::from(scenario.samples) * NS_PER_SAMPLE;
        Ok(Self { cursor: OrderCursor::new(sampler)?, time, pace: WanderingPace::new(scenario, job) })
    }

    fn next_ns(&self) -> u64 {
        self.time as u64
    }

    /// The next use, which is counted.
    fn advance(&mut self, job: u32) -> Result<MergedUse, SimulateError> {
        let ns = self.next_ns();
        let sample = self.cursor.next()?.0 as u32;
        let (epoch, position) = (self.cursor.epoch as u32, (self.cursor.position - 1) as u32);
        self.time += NS_PER_SAMPLE / self.pace.next();
        Ok(MergedUse { ns, sample, job, epoch, position })
    }
}

/// A pace that moves in straight lines between random values around its mean.
#[derive(Debug)]
struct WanderingPace {
    mean: f64,
    wander: f64,
    draws: Draws,
    now: f64,
    step: f64,
    /// Samples until the next turn.
    left: u32,
    /// Samples between turns.
    turn: u32,
}

impl WanderingPace {
    fn new(scenario: &JobsScenario, job: usize) -> Self {
        let mut draws = Draws::new(b"foreread/simulate/paces/1", scenario.job_seed(job));
        let turn = (f64::from(scenario.samples) / TURNS_PER_EPOCH).max(1.0) as u32;
        let now = draws.around_1(scenario.wander);
        Self { mean: scenario.paces[job], wander: scenario.wander, draws, now, step: 0.0, left: 0, turn }
    }

    fn next(&mut self) -> f64 {
        if self.left == 0 {
            self.left = self.turn;
            self.step = (self.draws.around_1(self.wander) - self.now) / f64::from(self.turn);
        }
        self.left -= 1;
        self.now += self.step;
        self.mean * self.now
    }
}
