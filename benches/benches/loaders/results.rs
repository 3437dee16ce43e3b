//! Measurements of contenders, and statistics over their rounds.

use std::fmt;

use foreread_benches::median;
use foreread_tier_testing::store::RequestCounts;
use serde::Deserialize;

use crate::contenders::{Contender, Role};

/// One epoch of a contender.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct EpochTiming {
    pub seconds: f64,
    /// CPU seconds of all its processes.
    pub cpu: f64,
    pub samples: f64,
    /// Whether the time limit ended it early.
    pub cut: bool,
}

/// One round of a contender: a cold epoch, then warm ones.
#[derive(Clone, Debug)]
pub struct RoundResult {
    pub epochs: Vec<EpochTiming>,
    /// Seconds from the loader's creation to its first batch.
    pub first: f64,
    /// Seconds from the first bytes of an object that the store sent to the first batch.
    pub since_sent: Option<f64>,
    /// The store's request counters.
    pub requests: Option<RequestCounts>,
}

/// The best number of workers or threads, and the samples/s of each tried number.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    pub best: u32,
    pub tried: Vec<(u32, f64)>,
}

/// A contender and all its rounds.
#[derive(Debug)]
pub struct ContenderRow {
    pub contender: &'static Contender,
    pub settings: WorkerSettings,
    pub results: Vec<RoundResult>,
}

/// A metric of one round.
pub type Metric = fn(&RoundResult) -> f64;

fn rate(epochs: &[EpochTiming]) -> f64 {
    sum(epochs, |epoch| epoch.samples) / sum(epochs, |epoch| epoch.seconds)
}

fn cpu(epochs: &[EpochTiming]) -> f64 {
    sum(epochs, |epoch| epoch.cpu) * 1e6 / sum(epochs, |epoch| epoch.samples)
}

fn sum(epochs: &[EpochTiming], of: fn(&EpochTiming) -> f64) -> f64 {
    epochs.iter().map(of).sum()
}

impl RoundResult {
    /// Samples per second of the first epoch, startup included.
    pub fn cold(&self) -> f64 {
        rate(&self.epochs[..1])
    }

    /// Samples per second of the later epochs.
    pub fn warm(&self) -> f64 {
        rate(&self.epochs[1..])
    }

    /// CPU microseconds per sample in the first epoch.
    pub fn cold_cpu(&self) -> f64 {
        cpu(&self.epochs[..1])
    }

    /// CPU microseconds per sample in the later epochs.
    pub fn warm_cpu(&self) -> f64 {
        cpu(&self.epochs[1..])
    }

    /// The rate that ranks settings: the warm rate, or the cold rate without startup if none.
    pub fn steady(&self) -> f64 {
        match self.epochs.as_slice() {
            [cold] => cold.samples / (cold.seconds - self.first).max(f64::MIN_POSITIVE),
            _ => self.warm(),
        }
    }

    /// Whether the time limit ended an epoch early.
    pub fn is_cut(&self) -> bool {
        self.epochs.iter().any(|epoch| epoch.cut)
    }
}

impl fmt::Display for RoundResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cold {:.0}/s {:.1} us", self.cold(), self.cold_cpu())?;
        if self.epochs.len() > 1 {
            write!(f, ", warm {:.0}/s {:.1} us", self.warm(), self.warm_cpu())?;
        }
        write!(f, ", first batch after {:.3} s", self.first)
    }
}

impl ContenderRow {
    pub fn new(contender: &'static Contender, settings: WorkerSettings) -> Self {
        Self { contender, settings, results: Vec::new() }
    }

    /// The median of a metric over the rounds.
    pub fn median(&self, metric: Metric) -> f64 {
        median(self.results.iter().map(metric))
    }

    /// The median over the rounds of the ratio to another row. Rounds are paired, so noise affects
    /// both.
    pub fn ratio(&self, other: &Self, metric: Metric) -> f64 {
        median(self.results.iter().zip(&other.results).map(|(ours, theirs)| metric(ours) / metric(theirs)))
    }

    /// The best measured cold rate, and the setting of its trial if it is not from the rounds.
    pub fn best_cold(&self) -> (Option<u32>, f64) {
        let rounds = (None, self.median(RoundResult::cold));
        let trials = self.settings.tried.iter().map(|(setting, rate)| (Some(*setting), *rate));
        trials
            .filter(|(setting, _)| *setting != Some(self.settings.best))
            .fold(rounds, |best, other| if other.1 > best.1 { other } else { best })
    }

    /// Whether the warm figures show a steady state. An epoch cut short does not, if it is slower
    /// than the complete cold epoch with its startup.
    pub fn has_warm(&self) -> bool {
        !(self.results.iter().any(RoundResult::is_cut)
            && self.median(RoundResult::warm) < self.median(RoundResult::cold))
    }

    /// Whether the contender has this role.
    pub fn has_role(&self, role: Role) -> bool {
        self.contender.role == role
    }

    /// The contender's name with its best setting.
    pub fn label(&self) -> String {
        self.label_of(self.settings.best)
    }

    /// The contender's name with this setting.
    pub fn label_of(&self, setting: u32) -> String {
        match self.contender.unit {
            "" => self.contender.name.to_owned(),
            unit if setting == 1 => format!("{}, 1 {}", self.contender.name, unit.trim_end_matches('s')),
            unit => format!("{}, {setting} {unit}", self.contender.name),
        }
    }
}
