//! Policies of several jobs' caches over the same uses, as a table and as figures.

use std::fmt;

use foreread_planner::SharedMiss;
use serde::Serialize;

use super::merged_uses::MergedUses;
use super::policies::JobsPolicy;
use super::scenario::{JobsScenario, MARGIN};
use crate::comparison::StepProgress;
use crate::error::SimulateError;

/// One policy's figures, the mean over all seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JobsOutcome {
    /// The policy.
    pub policy: JobsPolicy,
    /// Reads from the origin per use, or parts of the dataset that a job reads in an epoch.
    pub origin_reads: f64,
    /// Writes to the cache per use.
    pub writes: f64,
}

/// The outcomes of policies in one scenario of several jobs. Displayed as a table.
#[derive(Clone, Debug)]
pub struct JobsComparison {
    scenario: JobsScenario,
    seeds: u64,
    outcomes: Vec<JobsOutcome>,
}

/// The machine-readable report.
#[derive(Serialize)]
struct JobsReport<'a> {
    scenario: &'a str,
    jobs: usize,
    samples: u32,
    cache: f64,
    paces: &'a [f64],
    starts: &'a [f64],
    wander: f64,
    epochs: u32,
    seed: u64,
    seeds: u64,
    bound: f64,
    policies: &'a [JobsOutcome],
}

impl JobsComparison {
    /// Runs every policy with the scenario's seed and those after it, and averages.
    ///
    /// # Errors
    /// Orders or tables that do not fit in memory.
    ///
    /// ```
    /// use foreread_simulator::{JobsComparison, JobsPolicy, JobsScenario};
    /// # fn main() -> Result<(), foreread_simulator::SimulateError> {
    /// let text = "[several-jobs]\nsamples = 2000\ncache = 0.2\npaces = [1, 1, 1, 1]\nepochs = 2";
    /// let policies = [JobsPolicy::NextUse, JobsPolicy::NeverEvict];
    /// let compared =
    ///     JobsComparison::run(JobsScenario::from_toml(text)?, &policies, 1, &mut |_, _| ())?;
    /// let reads = |at: usize| compared.outcomes()[at].origin_reads;
    /// assert!(reads(0) < 0.52 && reads(1) > 0.79);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run(
        scenario: JobsScenario,
        policies: &[JobsPolicy],
        seeds: u64,
        progress: StepProgress<'_>,
    ) -> Result<Self, SimulateError> {
        let zero = |&policy| JobsOutcome { policy, origin_reads: 0.0, writes: 0.0 };
        let mut outcomes: Vec<JobsOutcome> = policies.iter().map(zero).collect();
        let (mut done, total) = (0, seeds * policies.len() as u64);
        for seed in 0..seeds {
            let merged = MergedUses::new(&scenario, scenario.seed.wrapping_add(seed))?;
            for outcome in &mut outcomes {
                let (run, uses) = outcome.policy.run(&scenario, &merged)?;
                let uses = uses as f64 * seeds as f64;
                outcome.origin_reads += 1.0 / seeds as f64 - run.hits as f64 / uses;
                outcome.writes += run.writes as f64 / uses;
                done += 1;
                progress(done, total);
            }
        }
        Ok(Self { scenario, seeds, outcomes })
    }

    /// The simulated scenario.
    pub fn scenario(&self) -> &JobsScenario {
        &self.scenario
    }

    /// The outcome of each policy.
    pub fn outcomes(&self) -> &[JobsOutcome] {
        &self.outcomes
    }

    /// The lower bound of reads per use for any policy.
    pub fn bound(&self) -> f64 {
        SharedMiss::of(&self.scenario.paces, self.scenario.cache).miss
    }

    /// The machine-readable figures, to be serialised.
    pub fn report(&self) -> impl Serialize {
        JobsReport {
            scenario: &self.scenario.name,
            jobs: self.scenario.paces.len(),
            samples: self.scenario.samples,
            cache: self.scenario.cache,
            paces: &self.scenario.paces,
            starts: &self.scenario.starts,
            wander: self.scenario.wander,
            epochs: self.scenario.epochs,
            seed: self.scenario.seed,
            seeds: self.seeds,
            bound: self.bound(),
            policies: &self.outcomes,
        }
    }

    /// The figures as a CSV file with a header.
    pub fn csv(&self) -> String {
        let rows = self.outcomes.iter();
        let rows = rows.map(|it| format!("{},{},{}\n", it.policy, it.origin_reads, it.writes));
        std::iter::once("policy,origin_reads,writes\n".to_owned()).chain(rows).collect()
    }
}

impl fmt::Display for JobsComparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobsScenario { name, samples, cache, paces, epochs, .. } = &self.scenario;
        write!(out, "{name}: {} jobs, {samples} samples, a cache for {cache} of them, ", paces.len())?;
        write!(out, "{epochs} epochs after {MARGIN}")?;
        if self.seeds > 1 {
            write!(out, ", means of {} seeds", self.seeds)?;
        }
        writeln!(out, "\n{:18} {:>12} {:>8}", "policy", "origin reads", "writes")?;
        writeln!(out, "{:18} {:>12.3}", "bound", self.bound())?;
        for it in &self.outcomes {
            writeln!(out, "{:18} {:>12.3} {:>8.3}", it.policy, it.origin_reads, it.writes)?;
        }
        writeln!(
            out,
            "origin reads: datasets that each job reads from the origin in an epoch. writes: datasets \
             written to the cache for it. bound: the lowest origin reads of any policy."
        )
    }
}
