//! Policies of caches of whole files over the same opens, as a table and as figures.

use std::fmt;

use foreread_planner::{EpochDemand, floor};
use serde::Serialize;

use super::policies::{FilesPolicy, orders};
use super::scenario::FilesScenario;
use crate::comparison::StepProgress;
use crate::error::SimulateError;
use crate::workload::MB;

/// The seconds of a day.
const DAY: f64 = 86_400.0;

/// One policy's figures, the mean over all seeds. Except in `served_by_epoch`, they are the means
/// of the epochs after the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilesOutcome {
    /// The policy.
    pub policy: FilesPolicy,
    /// The part of the opens that find a copy.
    pub served: f64,
    /// The same for each epoch, from the first.
    pub served_by_epoch: Vec<f64>,
    /// Bytes that an epoch reads from the origin, for the program and for copies.
    pub origin_bytes: f64,
    /// Bytes that an epoch writes to the cache.
    pub written_bytes: f64,
    /// Bytes that are written to the cache in a day.
    pub written_bytes_per_day: f64,
    /// The part of the opens at which the budget of writes refused a copy.
    pub refused: f64,
}

/// The outcomes of policies in one scenario of whole files. Displayed as a table.
#[derive(Clone, Debug)]
pub struct FilesComparison {
    scenario: FilesScenario,
    seeds: u64,
    outcomes: Vec<FilesOutcome>,
}

/// The machine-readable report.
#[derive(Serialize)]
struct FilesReport<'a> {
    #[serde(flatten)]
    scenario: &'a FilesScenario,
    seeds: u64,
    bound_origin_bytes: u64,
    policies: &'a [FilesOutcome],
}

impl FilesComparison {
    /// Runs every policy with the scenario's seed and those after it, and averages.
    ///
    /// # Errors
    /// Orders that do not fit in memory.
    ///
    /// ```
    /// use foreread_simulator::{FilesComparison, FilesPolicy, FilesScenario};
    /// # fn main() -> Result<(), foreread_simulator::SimulateError> {
    /// let text = "[files]\nfiles = 5000\nmean = 0.1\ncache = 0.5\nepochs = 3\nseconds = 60";
    /// let policies = [FilesPolicy::CopiesAhead, FilesPolicy::NeverEvict];
    /// let compared =
    ///     FilesComparison::run(FilesScenario::from_toml(text)?, &policies, 1, &mut |_, _| ())?;
    /// let served = |at: usize| compared.outcomes()[at].served;
    /// assert!(served(0) > 0.83 && served(1) == 0.5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run(
        scenario: FilesScenario,
        policies: &[FilesPolicy],
        seeds: u64,
        progress: StepProgress<'_>,
    ) -> Result<Self, SimulateError> {
        let mut outcomes: Vec<FilesOutcome> =
            policies.iter().map(|&policy| FilesOutcome::zero(policy, &scenario)).collect();
        let (mut done, total) = (0, seeds * policies.len() as u64);
        for seed in 0..seeds {
            let orders = orders(&scenario, scenario.seed.wrapping_add(seed))?;
            for outcome in &mut outcomes {
                outcome.add(&scenario, &orders, 1.0 / seeds as f64);
                done += 1;
                progress(done, total);
            }
        }
        Ok(Self { scenario, seeds, outcomes })
    }

    /// The simulated scenario.
    pub fn scenario(&self) -> &FilesScenario {
        &self.scenario
    }

    /// The outcome of each policy.
    pub fn outcomes(&self) -> &[FilesOutcome] {
        &self.outcomes
    }

    /// The lower bound, for any policy, of the bytes that an epoch after the first reads from the
    /// origin.
    pub fn bound(&self) -> u64 {
        let all = u64::from(self.scenario.files) * self.scenario.bytes;
        let later = EpochDemand { distinct: all, seen: all };
        floor(&[later], u64::from(self.scenario.capacity()) * self.scenario.bytes)
    }

    /// The machine-readable figures, to be serialised.
    pub fn report(&self) -> impl Serialize {
        FilesReport {
            scenario: &self.scenario,
            seeds: self.seeds,
            bound_origin_bytes: self.bound(),
            policies: &self.outcomes,
        }
    }

    /// The figures as a CSV file with a header.
    pub fn csv(&self) -> String {
        let header = "policy,served,origin_bytes,bound_origin_bytes,written_bytes,written_bytes_per_day,\
                      refused\n";
        let rows = self.outcomes.iter().map(|it| {
            format!(
                "{},{},{},{},{},{},{}\n",
                it.policy,
                it.served,
                it.origin_bytes,
                self.bound(),
                it.written_bytes,
                it.written_bytes_per_day,
                it.refused
            )
        });
        std::iter::once(header.to_owned()).chain(rows).collect()
    }
}

impl FilesOutcome {
    fn zero(policy: FilesPolicy, scenario: &FilesScenario) -> Self {
        Self {
            policy,
            served: 0.0,
            served_by_epoch: vec![0.0; scenario.epochs as usize],
            origin_bytes: 0.0,
            written_bytes: 0.0,
            written_bytes_per_day: 0.0,
            refused: 0.0,
        }
    }

    /// Adds a run with this weight.
    fn add(&mut self, scenario: &FilesScenario, orders: &[Vec<u32>], weight: f64) {
        let epochs = self.policy.run(scenario, orders);
        let (files, bytes) = (f64::from(scenario.files), scenario.bytes as f64);
        for (served, epoch) in self.served_by_epoch.iter_mut().zip(&epochs) {
            *served += weight * epoch.served as f64 / files;
        }
        let weight = weight / f64::from(scenario.epochs - 1);
        for epoch in &epochs[1..] {
            self.served += weight * epoch.served as f64 / files;
            self.origin_bytes += weight * epoch.origin as f64 * bytes;
            self.written_bytes += weight * epoch.written as f64 * bytes;
            self.refused += weight * epoch.refused as f64 / files;
        }
        self.written_bytes_per_day = self.written_bytes / scenario.seconds * DAY;
    }
}

impl fmt::Display for FilesComparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilesScenario { name, files, bytes, cache, order, epochs, seconds, writes_per_day, .. } =
            &self.scenario;
        let mb = |bytes: f64| bytes / MB;
        let all = mb(f64::from(*files) * *bytes as f64);
        write!(
            out,
            "{name}: {files} files, {all:.1} MB, a cache for {cache} of them, {order} order, ",
            order = order.name()
        )?;
        write!(out, "{epochs} epochs of {seconds} s")?;
        if let Some(part) = writes_per_day {
            write!(out, ", at most {part} of the cache written per day")?;
        }
        if self.seeds > 1 {
            write!(out, ", means of {} seeds", self.seeds)?;
        }
        writeln!(
            out,
            "\n{:12} {:>7} {:>12} {:>8} {:>12} {:>12} {:>8}",
            "policy", "served", "origin MB", "x bound", "written MB", "MB per day", "refused"
        )?;
        let bound = self.bound() as f64;
        writeln!(out, "{:12} {:>7} {:>12.1} {:>8.3}", "bound", "", mb(bound), 1.0)?;
        for it in &self.outcomes {
            let times = if bound > 0.0 { format!("{:.3}", it.origin_bytes / bound) } else { "-".to_owned() };
            writeln!(
                out,
                "{:12} {:>7.3} {:>12.1} {times:>8} {:>12.1} {:>12.1} {:>8.3}",
                it.policy,
                it.served,
                mb(it.origin_bytes),
                mb(it.written_bytes),
                mb(it.written_bytes_per_day),
                it.refused
            )?;
        }
        writeln!(
            out,
            "means of the epochs after the first. served: opens that find a copy. origin, written: read \
             from the origin and written to the cache per epoch. refused: opens at which the budget of \
             writes refused a copy. bound: the lowest origin reads of any policy."
        )
    }
}
