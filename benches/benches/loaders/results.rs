//! Measurements of contenders, and medians over their rounds.

use std::fmt;

use foreread_benches::loaders::record::{EpochFigures, LoaderRow};
use foreread_benches::median;
use foreread_tier_testing::store::RequestCounts;
use serde::Deserialize;

use crate::contenders::Contender;

/// Samples of a batch (`peers/packing.py`).
const BATCH: f64 = 64.0;

/// One epoch of a contender, or a part of it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct EpochTiming {
    pub seconds: f64,
    /// CPU seconds of all its processes.
    pub cpu: f64,
    pub samples: f64,
    /// Whether the time limit ended it early.
    pub cut: bool,
}

/// One round of a contender: a first epoch, then later ones.
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

/// A contender with one setting, and its rounds.
#[derive(Debug)]
pub struct ContenderRow {
    pub contender: &'static Contender,
    /// The number of workers or threads.
    pub setting: u32,
    /// The samples/s of each tried number.
    pub tried: Vec<(u32, f64)>,
    pub results: Vec<RoundResult>,
}

fn figures(epochs: &[EpochTiming]) -> EpochFigures {
    let sum = |of: fn(&EpochTiming) -> f64| -> f64 { epochs.iter().map(of).sum() };
    let samples = sum(|epoch| epoch.samples);
    EpochFigures { rate: samples / sum(|epoch| epoch.seconds), cpu: sum(|epoch| epoch.cpu) * 1e6 / samples }
}

fn medians(rounds: &[EpochFigures]) -> Option<EpochFigures> {
    let of = |value: fn(&EpochFigures) -> f64| median(rounds.iter().map(value));
    (!rounds.is_empty()).then(|| EpochFigures { rate: of(|round| round.rate), cpu: of(|round| round.cpu) })
}

impl RoundResult {
    /// The first epoch, startup included.
    pub fn first_epoch(&self) -> EpochFigures {
        figures(&self.epochs[..1])
    }

    /// The later epochs, if there were any.
    pub fn later_epochs(&self) -> Option<EpochFigures> {
        (self.epochs.len() > 1).then(|| figures(&self.epochs[1..]))
    }

    /// The rate that ranks settings: that of later epochs, or of the first one from its first batch
    /// on.
    pub fn steady(&self) -> f64 {
        let first = self.epochs[0];
        self.later_epochs().map_or_else(
            || (first.samples - BATCH).max(0.0) / (first.seconds - self.first).max(f64::MIN_POSITIVE),
            |later| later.rate,
        )
    }
}

impl fmt::Display for RoundResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first_epoch();
        write!(f, "first epoch {:.0}/s {:.1} us", first.rate, first.cpu)?;
        if let Some(later) = self.later_epochs() {
            write!(f, ", later {:.0}/s {:.1} us", later.rate, later.cpu)?;
        }
        write!(f, ", first batch after {:.3} s", self.first)?;
        if let Some(requests) = self.requests {
            let (get, list) = (requests.get, requests.list);
            write!(f, "; {get} GET, {list} LIST, {:.2} GB", requests.bytes as f64 / 1e9)?;
        }
        Ok(())
    }
}

impl ContenderRow {
    pub fn new(contender: &'static Contender, setting: u32, tried: Vec<(u32, f64)>) -> Self {
        Self { contender, setting, tried, results: Vec::new() }
    }

    /// The medians over the rounds. `None` if no round succeeded.
    pub fn medians(&self) -> Option<LoaderRow> {
        let rounds = || self.results.iter();
        let sent: Vec<f64> = rounds().filter_map(|result| result.since_sent).collect();
        Some(LoaderRow {
            name: self.contender.name.to_owned(),
            role: self.contender.role,
            format: self.contender.format,
            unit: self.contender.unit.to_owned(),
            setting: self.setting,
            tried: self.tried.clone(),
            first: medians(&rounds().map(RoundResult::first_epoch).collect::<Vec<_>>())?,
            later: medians(&rounds().filter_map(RoundResult::later_epochs).collect::<Vec<_>>()),
            first_batch: median(rounds().map(|result| result.first)),
            since_sent: (!sent.is_empty()).then(|| median(sent)),
            is_cut: rounds().any(|result| result.epochs.iter().any(|epoch| epoch.cut)),
        })
    }
}
