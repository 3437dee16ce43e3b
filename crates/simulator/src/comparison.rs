//! Comparisons of policies: run over the same scenario with the same seeds, averaged, as a table
//! and as plots.
//!
//! Every user interface that shows a simulation uses this module, so figures and plots are the same
//! everywhere.

use std::fmt::{self, Write as _};

use serde::Serialize;

#[cfg(feature = "plot")]
use crate::plot;
use crate::{Figures, Policy, Scenario, SimulateError, Simulation, SimulationOutcome};

/// The cache sizes of the second plot, as fractions of the dataset.
const SHARES: [f64; 10] = [0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0];

/// One policy's seconds by cache size, as a fraction of the dataset. Without points if it refused
/// everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The policy.
    pub policy: Policy,
    /// The caches' fraction of the dataset, and seconds.
    pub points: Vec<(f64, f64)>,
}

/// Called with (steps done, total steps) from time to time.
pub type StepProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// The outcomes of policies in one scenario. Displayed as a table.
#[derive(Clone, Debug)]
pub struct Comparison {
    scenario: Scenario,
    policies: Vec<Policy>,
    outcomes: Vec<SimulationOutcome>,
    /// MB of the dataset, the mean over the seeds.
    dataset_mb: f64,
    seeds: u64,
}

/// The machine-readable report.
#[derive(Serialize)]
struct ComparisonReport<'a> {
    scenario: &'a str,
    workers: usize,
    samples: u32,
    epochs: u32,
    batch: u32,
    dataset_mb: f64,
    cache_mb: f64,
    seed: u64,
    seeds: u64,
    policies: &'a [SimulationOutcome],
}

/// Progress over batches. A policy that refuses counts as done.
struct StepCounter<'a> {
    report: StepProgress<'a>,
    total: u64,
    done: u64,
}

impl StepCounter<'_> {
    fn run(&mut self, simulation: &Simulation, policy: Policy) -> SimulationOutcome {
        let began = self.done;
        let outcome = simulation.run(policy, &mut || {
            self.done += 1;
            // A report of every batch would cost more than the batches.
            if self.done.is_multiple_of(256) {
                (self.report)(self.done, self.total);
            }
        });
        self.done = began + simulation.steps(policy);
        (self.report)(self.done, self.total);
        outcome
    }
}

impl Comparison {
    /// The maximum number of seeds to average.
    pub const MAX_SEEDS: u64 = 1000;

    /// Runs every policy with the scenario's seed and those after it, and averages each policy's
    /// runs.
    ///
    /// # Errors
    /// A scenario that cannot be simulated.
    pub fn run(
        scenario: Scenario,
        policies: &[Policy],
        seeds: u64,
        progress: StepProgress<'_>,
    ) -> Result<Self, SimulateError> {
        let mut runs: Vec<Vec<SimulationOutcome>> = vec![Vec::new(); policies.len()];
        let mut dataset_mb = 0.0;
        let mut steps = StepCounter { report: progress, total: 0, done: 0 };
        for seed in 0..seeds {
            let simulation = Simulation::new(&scenario, scenario.seed.wrapping_add(seed))?;
            dataset_mb += simulation.dataset_mb() / seeds as f64;
            steps.total = policies.iter().map(|&policy| simulation.steps(policy)).sum::<u64>() * seeds;
            for (&policy, runs) in policies.iter().zip(&mut runs) {
                runs.push(steps.run(&simulation, policy));
            }
        }
        let outcomes = runs.iter().filter_map(|runs| SimulationOutcome::mean(runs)).collect();
        Ok(Self { scenario, policies: policies.to_vec(), outcomes, dataset_mb, seeds })
    }

    /// The simulated scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The outcome of each policy.
    pub fn outcomes(&self) -> &[SimulationOutcome] {
        &self.outcomes
    }

    /// The machine-readable figures, to be serialised.
    pub fn report(&self) -> impl Serialize {
        ComparisonReport {
            scenario: &self.scenario.name,
            workers: self.scenario.workers,
            samples: self.scenario.samples,
            epochs: self.scenario.epochs,
            batch: self.scenario.batch,
            dataset_mb: self.dataset_mb,
            cache_mb: self.cache_mb(),
            seed: self.scenario.seed,
            seeds: self.seeds,
            policies: &self.outcomes,
        }
    }

    /// The MB of all workers' cache classes.
    fn cache_mb(&self) -> f64 {
        // An empty sum is -0.0.
        let classes = self.scenario.storage.iter().skip(1);
        classes.map(|class| class.capacity).sum::<f64>() * self.scenario.workers as f64 + 0.0
    }

    /// The scenario in one line.
    fn headline(&self, seeds: u64) -> String {
        let mut line = format!(
            "{} workers, {} samples, {}, {} epochs, caches of {} in total",
            self.scenario.workers,
            self.scenario.samples,
            quantity(self.dataset_mb),
            self.scenario.epochs,
            quantity(self.cache_mb())
        );
        if seeds > 1 {
            let _ = write!(line, ", means of {seeds} seeds");
        }
        line
    }

    /// One bar per policy as SVG: its seconds, and the sources of its accesses.
    ///
    /// # Errors
    /// If the plot cannot be drawn.
    #[cfg(feature = "plot")]
    pub fn bars(&self) -> Result<String, foreread_plot::PlotError> {
        plot::bars(&self.scenario.name, &self.headline(self.seeds), &self.outcomes)
    }

    /// Runs the policies with caches of several sizes, for [`against_cache`](Self::against_cache).
    /// `None` for a scenario without a cache class. Uses the first seed alone. Policies without a
    /// cache run once.
    ///
    /// # Errors
    /// A scenario that cannot be simulated.
    pub fn sweep(&self, progress: StepProgress<'_>) -> Result<Option<(f64, Vec<Sweep>)>, SimulateError> {
        if self.scenario.storage.len() < 2 {
            return Ok(None);
        }
        let first = Simulation::new(&self.scenario, self.scenario.seed)?;
        let cost =
            |policy: &Policy| first.steps(*policy) * if policy.has_cache() { SHARES.len() as u64 } else { 1 };
        let total = self.policies.iter().map(cost).sum();
        let mut steps = StepCounter { report: progress, total, done: 0 };
        let seconds = |outcome: SimulationOutcome| outcome.figures.map(|figures| figures.seconds);
        let lines = self.policies.iter().filter(|&&policy| policy != Policy::LowerBound);
        let mut sweeps: Vec<Sweep> = lines.map(|&policy| Sweep { policy, points: Vec::new() }).collect();
        for sweep in sweeps.iter_mut().filter(|sweep| !sweep.policy.has_cache()) {
            if let Some(seconds) = seconds(steps.run(&first, sweep.policy)) {
                sweep.points = SHARES.map(|share| (share, seconds)).to_vec();
            }
        }
        for share in SHARES {
            let simulation = Simulation::new(&self.scenario.with_cache_share(share), self.scenario.seed)?;
            for sweep in sweeps.iter_mut().filter(|sweep| sweep.policy.has_cache()) {
                if let Some(seconds) = seconds(steps.run(&simulation, sweep.policy)) {
                    sweep.points.push((share, seconds));
                }
            }
        }
        let bound = seconds(first.run(Policy::LowerBound, &mut || ())).unwrap_or_default();
        Ok(Some((bound, sweeps)))
    }

    /// Seconds against cache size as SVG, from the result of [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// If the plot cannot be drawn.
    #[cfg(feature = "plot")]
    pub fn against_cache(&self, bound: f64, sweeps: &[Sweep]) -> Result<String, foreread_plot::PlotError> {
        plot::against_cache(&self.scenario.name, &self.headline(1), bound, sweeps)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}: {}", self.scenario.name, self.headline(self.seeds))?;
        writeln!(
            out,
            "{:18} {:>11} {:>9} | {:>6} {:>6} {:>6} | {:>12} {:>8}",
            "policy", "seconds", "stalled", "origin", "peers", "local", "origin MB", "x bound"
        )?;
        for outcome in &self.outcomes {
            match &outcome.figures {
                None => writeln!(out, "{:18} {:>11}", outcome.policy, "refused")?,
                Some(f) => {
                    let [origin, peers, local] = shares(f);
                    writeln!(
                        out,
                        "{:18} {:>11.2} {:>9.2} | {origin:>6} {peers:>6} {local:>6} | {:>12.1} {:>8.3}",
                        outcome.policy,
                        f.seconds,
                        f.init_stall_seconds,
                        f.pfs_mb,
                        f.pfs_mb / f.floor_pfs_mb
                    )?;
                }
            }
        }
        writeln!(
            out,
            "stalled: seconds before the first batch. origin, peers, local: sources of accesses, ahead or on \
             demand. x bound: times the lower bound of any policy."
        )
    }
}

/// A number of MB with a readable unit.
fn quantity(mb: f64) -> String {
    match mb {
        mb if mb >= 1e6 => format!("{:.4} TB", mb / 1e6),
        mb if mb >= 1e3 => format!("{:.1} GB", mb / 1e3),
        mb => format!("{mb:.1} MB"),
    }
}

/// The shares of accesses from the origin, other workers and this worker. `-` without reads.
fn shares(f: &Figures) -> [String; 3] {
    let all = f.served_pfs + f.served_remote + f.served_local;
    [f.served_pfs, f.served_remote, f.served_local].map(|part| match all {
        0.0 => "-".to_owned(),
        all => format!("{:.1}%", 100.0 * part / all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_has_a_line_and_a_bar_for_each_policy() {
        let mut scenario = Scenario::from_toml(include_str!("../scenarios/thesis-s1.toml")).unwrap();
        (scenario.samples, scenario.epochs) = (500, 2);
        let policies = [Policy::LowerBound, Policy::Naive, Policy::Foreread];
        let mut last = (0, 0);
        let compared =
            Comparison::run(scenario, &policies, 2, &mut |done, total| last = (done, total)).unwrap();
        assert!(last.0 == last.1 && last.1 > 0, "{last:?}");
        let (table, bars) = (compared.to_string(), compared.bars().unwrap());
        assert!(table.contains("means of 2 seeds"), "{table}");
        for policy in policies {
            assert!(table.contains(policy.name()) && bars.contains(policy.name()), "{policy}");
        }
        let (bound, sweeps) = compared.sweep(&mut |_, _| ()).unwrap().unwrap();
        assert!(bound > 0.0 && sweeps.len() == 2 && sweeps[1].points.len() == SHARES.len());
        assert!(compared.against_cache(bound, &sweeps).unwrap().starts_with("<svg"));
    }
}
