//! The scenario: machines, dataset and training, as a TOML file describes them.
//!
//! Quantities are in MB (10^6 bytes), MB/s and seconds. Their model is [`crate::Model`]. Everything
//! is validated here, so later code computes with valid numbers. Rates and capacities are finite
//! and above 0, and there are at least as many samples as workers. Optional fields are `name`,
//! `seed` (0), `drop_last` (false), `staging` (honest), a class's `write` (as `read`), and the
//! relative speeds of the file system's `servers` (none). The
//! model uses the `write` of the staging buffer alone.

use crate::error::SimulateError;
use crate::model::Curve;
use crate::scenario_fields::{ScenarioFields, parse};

/// The maximum number of accesses (samples times epochs) of a scenario. Each takes some ten bytes
/// of memory.
pub const MAX_ACCESSES: u64 = 1 << 28;

/// The maximum number of MB that a scenario reads. Beyond it, counts of bytes come close to the
/// limit of 64 bits.
const MAX_MB: f64 = 1e12;

/// The maximum number of workers, and of threads of a class.
const MAX_WORKERS: u64 = 1 << 16;

/// The most servers of the file system.
const MAX_SERVERS: usize = 1 << 12;

/// A validated scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The name in reports and plots.
    pub name: String,
    /// The seed of sizes and orders.
    pub seed: u64,
    /// N: the number of workers.
    pub workers: usize,
    /// c: MB/s that a worker trains on.
    pub compute: f64,
    /// beta: MB/s that a thread preprocesses.
    pub preprocess: f64,
    /// b_c: MB/s between two workers.
    pub network: f64,
    /// b_fs: the maximum MB/s of one client of the file system.
    pub pfs_client: f64,
    /// t(g): MB/s of the file system at g clients together.
    pub pfs: Curve,
    /// The speed of each server of the file system, relative to a server that gives its full part.
    /// Sample `i` is on server `i` modulo their number. Empty without such servers.
    pub pfs_servers: Vec<f64>,
    /// The storage classes of each worker. The first is the staging buffer, the others are caches,
    /// fastest first.
    pub storage: Vec<StorageClass>,
    /// F: the number of samples.
    pub samples: u32,
    /// The mean of the samples' sizes, in MB.
    pub mean: f64,
    /// Their standard deviation, in MB.
    pub sd: f64,
    /// B: samples of a global batch.
    pub batch: u32,
    /// E: the number of epochs.
    pub epochs: u32,
    /// Whether the short last batch of an epoch is dropped.
    pub drop_last: bool,
    /// The accounting of the staging buffer's space.
    pub staging: Accounting,
}

/// One storage class of every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageClass {
    /// d_j, in MB.
    pub capacity: f64,
    /// p_j: threads that fill it.
    pub threads: usize,
    /// r_j(p): MB/s that it is read at by p threads together.
    pub read: Curve,
    /// w_j(p): MB/s that it is written at by p threads together.
    pub write: Curve,
}

/// The accounting of the staging buffer's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// Every sample in the buffer takes its size, once.
    #[default]
    Honest,
    /// As in the thesis's own code. A sample that was ever in the buffer enters it again without
    /// taking space, and yet releases its size when it leaves. So space grows without bound after
    /// the first reuse. Only for the thesis's tables.
    Thesis,
}

impl Scenario {
    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// One line that names the field: missing, unknown, negative, 0 where it must be positive, or
    /// of another type. More workers than samples, or more than [`MAX_ACCESSES`] accesses.
    ///
    /// ```
    /// let error = foreread_simulator::Scenario::from_toml("[cluster]\nworkers = 0").unwrap_err();
    /// assert_eq!(error.to_string(), "cluster.workers: must be at least 1, found 0");
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, SimulateError> {
        let table = parse(text)?;
        let file = ScenarioFields::new(&table);
        let name = file.text("name", "scenario")?;
        let seed = file.whole_or("seed", "a seed", 0)?;

        let cluster = file.table("cluster", "a table [cluster] with the workers and their rates")?;
        let workers = cluster.whole("workers", "the number of workers", 1, MAX_WORKERS)?;
        let compute = cluster.positive("compute", "the MB/s that a worker trains on")?;
        let preprocess = cluster.positive("preprocess", "the MB/s that a thread preprocesses")?;
        let network = cluster.positive("network", "the MB/s between two workers")?;
        let pfs_client =
            cluster.positive("pfs_client", "the MB/s that one client gets from the file system")?;
        cluster.reject_unknown()?;

        let classes = file.tables("storage", "one [[storage]] for each class, the staging buffer first")?;
        let storage = classes.iter().map(class).collect::<Result<Vec<_>, _>>()?;
        if storage.is_empty() || storage.len() > usize::from(u8::MAX) {
            return Err(file.error("storage", "expected 1 to 255 classes, the staging buffer first"));
        }

        let pfs = file.table("pfs", "a table [pfs] with the file system's rates")?;
        let rates = Curve::new(pfs.curve("read", "MB/s by number of readers")?);
        let pfs_servers = pfs.shares_or_none("servers", "the relative speed of each server", MAX_SERVERS)?;
        pfs.reject_unknown()?;

        let dataset = file.table("dataset", "a table [dataset] with samples, mean and sd")?;
        let most = u64::from(u32::MAX >> 1);
        let samples = dataset.whole("samples", "the number of samples", 1, most)? as u32;
        let mean = dataset.positive("mean", "the mean of their sizes in MB")?;
        let sd = dataset.not_negative("sd", "the standard deviation of their sizes in MB")?;
        dataset.reject_unknown()?;
        if workers > u64::from(samples) {
            let problem = format!("must be at most dataset.samples, {samples}, found {workers}");
            return Err(cluster.error("workers", problem));
        }

        let training = file.table("training", "a table [training] with batch and epochs")?;
        let batch = training.whole("batch", "the samples of a global batch", 1, most)? as u32;
        let epochs = training.whole("epochs", "the number of epochs", 1, most)? as u32;
        let drop_last = training.boolean("drop_last", false)?;
        let staging = match training.text("staging", "honest")?.as_str() {
            "honest" => Accounting::Honest,
            "thesis" => Accounting::Thesis,
            other => {
                return Err(training
                    .error("staging", format!("expected \"honest\" or \"thesis\", found \"{other}\"")));
            }
        };
        training.reject_unknown()?;
        if drop_last && batch > samples {
            let problem = format!(
                "must be at most {samples} with drop_last, or all samples are dropped, found {batch}"
            );
            return Err(training.error("batch", problem));
        }
        // Sizes are drawn, and almost none is ten deviations above the mean.
        if (mean + 10.0 * sd) * f64::from(samples) * f64::from(epochs) > MAX_MB {
            let problem =
                format!("with sd, times samples and training.epochs, must be at most {MAX_MB:e} MB");
            return Err(dataset.error("mean", problem));
        }
        if u64::from(samples) * u64::from(epochs) > MAX_ACCESSES {
            let problem = format!("times dataset.samples must be at most {MAX_ACCESSES} accesses");
            return Err(training.error("epochs", problem));
        }
        file.reject_unknown()?;
        let workers = workers as usize;
        Ok(Self {
            name,
            seed,
            workers,
            compute,
            preprocess,
            network,
            pfs_client,
            pfs: rates,
            pfs_servers,
            storage,
            samples,
            mean,
            sd,
            batch,
            epochs,
            drop_last,
            staging,
        })
    }

    /// The same scenario with caches (every class except the staging buffer) of `share` of the
    /// dataset's mean size in the whole cluster. The proportions of the classes stay the same.
    pub(crate) fn with_cache_share(&self, share: f64) -> Self {
        let now: f64 =
            self.storage.iter().skip(1).map(|class| class.capacity).sum::<f64>() * self.workers as f64;
        let factor = share * self.mean * f64::from(self.samples) / now;
        let mut other = self.clone();
        for class in other.storage.iter_mut().skip(1) {
            class.capacity *= factor;
        }
        other
    }
}

fn class(fields: &ScenarioFields<'_>) -> Result<StorageClass, SimulateError> {
    let capacity = fields.positive("capacity", "the capacity of the class in MB")?;
    let threads = fields.whole("threads", "the threads that fill it", 1, MAX_WORKERS)? as usize;
    let read = Curve::new(fields.curve("read", "the MB/s of the class by number of threads")?);
    let write = fields.curve_or_none("write", "MB/s by number of threads")?.map(Curve::new);
    fields.reject_unknown()?;
    Ok(StorageClass { capacity, threads, write: write.unwrap_or_else(|| read.clone()), read })
}
