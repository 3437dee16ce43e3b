//! The scenario of several jobs: the table `[several-jobs]` of a TOML file.

use foreread_types::mix;

use crate::error::SimulateError;
use crate::scenario_fields::ScenarioFields;

/// The most jobs.
const MAX_JOBS: usize = 64;

/// The most uses of all jobs together. Each takes some 40 bytes of memory.
const MAX_USES: f64 = (1 << 26) as f64;

/// The latest start of a job, in epochs of the fastest one.
const LATEST_START: f64 = 100.0;

/// Epochs of the slowest job before the measured time and after it. The first fill the cache. The
/// last are there so that MIN does not know an end of the uses.
pub(super) const MARGIN: f64 = 2.0;

/// A validated scenario of several jobs that use one dataset.
///
/// ```
/// use foreread_simulator::JobsScenario;
/// let text = "[several-jobs]\nsamples = 1000\ncache = 0.2\npaces = [1, 0.5]\nepochs = 3";
/// assert_eq!(JobsScenario::from_toml(text).unwrap().starts, [0.0, 0.618]);
/// let error = JobsScenario::from_toml("[several-jobs]\nsamples = 0").unwrap_err();
/// assert_eq!(error.to_string(), "several-jobs.samples: must be at least 1, found 0");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct JobsScenario {
    /// The name in reports.
    pub name: String,
    /// The seed of the jobs' orders and paces.
    pub seed: u64,
    /// The samples of the dataset.
    pub samples: u32,
    /// The part of the dataset that the cache holds, from 0 to 1.
    pub cache: f64,
    /// The pace of each job, relative to the fastest one.
    pub paces: Vec<f64>,
    /// When each job starts, in epochs of a job of pace 1. By default, the starts are spread over
    /// an epoch.
    pub starts: Vec<f64>,
    /// The part by which paces wander up and down, from 0 to below 1.
    pub wander: f64,
    /// Measured epochs of the slowest job, after two that fill the cache. Faster jobs have more.
    pub epochs: u32,
}

impl JobsScenario {
    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// One line that names the field, as for [`Scenario`](crate::Scenario).
    pub fn from_toml(text: &str) -> Result<Self, SimulateError> {
        let table = crate::scenario_fields::parse(text)?;
        let file = ScenarioFields::new(&table);
        let name = file.text("name", "scenario")?;
        let seed = file.whole_or("seed", "a seed", 0)?;
        let fields = file.table("several-jobs", "a table [several-jobs]")?;
        let most = u64::from(u32::MAX >> 1);
        let samples = fields.whole("samples", "the number of samples", 1, most)? as u32;
        let cache = fields.at_most_1("cache", fields.positive("cache", "the cached part of the dataset")?)?;
        let paces = fields.shares_or_none("paces", "the pace of each job, the fastest 1", MAX_JOBS)?;
        if paces.is_empty() {
            return Err(fields.error("paces", "missing, expected the pace of each job, the fastest 1"));
        }
        let starts = fields.numbers_or_none("starts", "when each job starts, in epochs", MAX_JOBS)?;
        let starts = if starts.is_empty() { spread(paces.len()) } else { starts };
        if let Some(late) = starts.iter().find(|&&start| start > LATEST_START) {
            return Err(fields.error("starts", format!("must be at most {LATEST_START}, found {late}")));
        }
        if starts.len() != paces.len() {
            let problem = format!("expected one for each of {} jobs, found {}", paces.len(), starts.len());
            return Err(fields.error("starts", problem));
        }
        let wander = if fields.has("wander") { fields.not_negative("wander", "a part")? } else { 0.0 };
        if wander >= 1.0 {
            return Err(fields.error("wander", format!("must be below 1, found {wander}")));
        }
        let epochs = fields.whole("epochs", "the number of measured epochs", 1, most)? as u32;
        fields.reject_unknown()?;
        file.reject_unknown()?;
        let scenario = Self { name, seed, samples, cache, paces, starts, wander, epochs };
        let uses = scenario.paces.iter().sum::<f64>() * scenario.after() * f64::from(samples);
        if uses > MAX_USES {
            let problem = format!("jobs use {uses:.0} samples in all, must be at most {MAX_USES:.0}");
            return Err(fields.error("epochs", problem));
        }
        Ok(scenario)
    }

    /// The samples that the cache holds.
    pub(super) fn capacity(&self) -> u64 {
        (self.cache * f64::from(self.samples)).round() as u64
    }

    /// When the measured time begins, in epochs of a job of pace 1.
    pub(super) fn begin(&self) -> f64 {
        self.starts.iter().copied().fold(0.0, f64::max) + MARGIN / self.slowest()
    }

    /// When the measured time ends. It has room for an epoch that began before it.
    pub(super) fn end(&self) -> f64 {
        self.begin() + (f64::from(self.epochs) + 1.0) / (self.slowest() * (1.0 - self.wander))
    }

    /// When all uses end.
    pub(super) fn after(&self) -> f64 {
        self.end() + MARGIN / self.slowest()
    }

    fn slowest(&self) -> f64 {
        self.paces.iter().copied().fold(1.0, f64::min)
    }

    /// The seed of one job's orders.
    pub(super) fn job_seed(&self, job: usize) -> u64 {
        mix(self.seed.wrapping_add(mix(job as u64)))
    }
}

/// Starts that are spread evenly over an epoch, for any number of jobs.
fn spread(jobs: usize) -> Vec<f64> {
    (0..jobs).map(|job| (job * 618 % 1000) as f64 / 1000.0).collect()
}
