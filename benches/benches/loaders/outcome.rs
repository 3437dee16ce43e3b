//! What contenders found, and what their rounds come to.

use std::fmt;

use foreread_benches::median;
use foreread_tier_testing::store::Requests;
use serde::Deserialize;

use crate::contenders::{Contender, Kind};

/// One epoch of a contender.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Epoch {
    pub seconds: f64,
    /// Seconds of CPU of all its processes.
    pub cpu: f64,
    pub samples: f64,
    /// It took too long and was ended early.
    pub cut: bool,
}

/// One turn of a contender: a cold epoch, and warm ones.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub epochs: Vec<Epoch>,
    /// Seconds from the loader's making to its first batch.
    pub first: f64,
    /// Seconds from the first bytes that the store sent of an object to the first batch.
    pub since_sent: Option<f64>,
    /// What the store was asked.
    pub requests: Option<Requests>,
}

/// The number of workers or threads that was best, and each that was tried with its samples/s.
#[derive(Clone, Debug)]
pub struct Settings {
    pub best: u32,
    pub tried: Vec<(u32, f64)>,
}

/// A contender and all its turns.
#[derive(Debug)]
pub struct Row {
    pub contender: &'static Contender,
    pub settings: Settings,
    pub outcomes: Vec<Outcome>,
}

/// A figure of one turn.
pub type Of = fn(&Outcome) -> f64;

fn rate(epochs: &[Epoch]) -> f64 {
    sum(epochs, |epoch| epoch.samples) / sum(epochs, |epoch| epoch.seconds)
}

fn cpu(epochs: &[Epoch]) -> f64 {
    sum(epochs, |epoch| epoch.cpu) * 1e6 / sum(epochs, |epoch| epoch.samples)
}

fn sum(epochs: &[Epoch], of: fn(&Epoch) -> f64) -> f64 {
    epochs.iter().map(of).sum()
}

impl Outcome {
    /// Samples a second of the first epoch, the start included.
    pub fn cold(&self) -> f64 {
        rate(&self.epochs[..1])
    }

    /// Samples a second of the later epochs.
    pub fn warm(&self) -> f64 {
        rate(&self.epochs[1..])
    }

    /// Microseconds of CPU a sample in the first epoch.
    pub fn cold_cpu(&self) -> f64 {
        cpu(&self.epochs[..1])
    }

    /// Microseconds of CPU a sample in the later epochs.
    pub fn warm_cpu(&self) -> f64 {
        cpu(&self.epochs[1..])
    }

    /// The rate that settings are compared by: the warm one where there is one, else the cold one without its start.
    pub fn steady(&self) -> f64 {
        match self.epochs.as_slice() {
            [cold] => cold.samples / (cold.seconds - self.first).max(f64::MIN_POSITIVE),
            _ => self.warm(),
        }
    }

    /// Whether an epoch was ended early.
    pub fn is_cut(&self) -> bool {
        self.epochs.iter().any(|epoch| epoch.cut)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cold {:.0}/s {:.1} us", self.cold(), self.cold_cpu())?;
        if self.epochs.len() > 1 {
            write!(f, ", warm {:.0}/s {:.1} us", self.warm(), self.warm_cpu())?;
        }
        write!(f, ", first batch after {:.3} s", self.first)
    }
}

impl Row {
    pub fn new(contender: &'static Contender, settings: Settings) -> Self {
        Self { contender, settings, outcomes: Vec::new() }
    }

    /// The middle of a figure's rounds.
    pub fn mid(&self, of: Of) -> f64 {
        median(self.outcomes.iter().map(of))
    }

    /// The middle of this row's figure in terms of another's, round by round, so that a neighbour's noise meets both.
    pub fn ratio(&self, other: &Self, of: Of) -> f64 {
        median(self.outcomes.iter().zip(&other.outcomes).map(|(ours, theirs)| of(ours) / of(theirs)))
    }

    /// The best cold rate that was seen, and the setting whose trial it was, if it was none of the rounds'.
    pub fn best_cold(&self) -> (Option<u32>, f64) {
        let rounds = (None, self.mid(Outcome::cold));
        let trials = self.settings.tried.iter().map(|(setting, rate)| (Some(*setting), *rate));
        trials
            .filter(|(setting, _)| *setting != Some(self.settings.best))
            .fold(rounds, |best, other| if other.1 > best.1 { other } else { best })
    }

    /// Whether the warm figures are of a steady state. A cut epoch that is slower than a whole one with its start is not.
    pub fn has_warm(&self) -> bool {
        !(self.outcomes.iter().any(Outcome::is_cut) && self.mid(Outcome::warm) < self.mid(Outcome::cold))
    }

    pub fn is(&self, kind: Kind) -> bool {
        self.contender.kind == kind
    }

    /// Its name with its best setting.
    pub fn label(&self) -> String {
        self.label_of(self.settings.best)
    }

    /// Its name with this setting.
    pub fn label_of(&self, setting: u32) -> String {
        match self.contender.unit {
            "" => self.contender.name.to_owned(),
            unit if setting == 1 => format!("{}, 1 {}", self.contender.name, unit.trim_end_matches('s')),
            unit => format!("{}, {setting} {unit}", self.contender.name),
        }
    }
}
