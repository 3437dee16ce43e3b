//! The scenario: machines, dataset and training, as a TOML file says them.
//!
//! Quantities are in MB (10^6 bytes), MB/s and seconds; the model that they enter is in [`crate::Model`]. Everything is
//! checked here, so that what follows computes with numbers that make sense: rates and capacities are finite and above
//! 0, and there are at least as many samples as workers. What may be left out: `name`, `seed` (0), `sd` (0),
//! `pfs_client` (no limit of its own), `drop_last` (false), `staging` (honest), and a class's `write` (as `read`; the
//! model uses that of the staging buffer alone).

use crate::error::SimulateError;
use crate::model::Curve;
use crate::reader::{Fields, parse};

/// The most accesses (samples times epochs) that a scenario may have. Each takes some ten bytes of memory.
pub const MOST_ACCESSES: u64 = 1 << 28;

/// The most MB that a scenario may read: beyond, bytes are no longer numbers that a computer counts with.
const MOST_MB: f64 = 1e12;

/// The most workers, and the most threads of a class.
const MOST_WORKERS: u64 = 1 << 16;

/// A scenario that has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What reports and plots call it.
    pub name: String,
    /// What sizes and orders are drawn from.
    pub seed: u64,
    /// N: how many workers there are.
    pub workers: usize,
    /// c: MB/s that a worker trains on.
    pub compute: f64,
    /// beta: MB/s that a thread preprocesses.
    pub preprocess: f64,
    /// b_c: MB/s between two workers.
    pub network: f64,
    /// b_fs: MB/s that one client gets from the file system at most.
    pub pfs_client: f64,
    /// t(g): MB/s of the file system at g clients together.
    pub pfs: Curve,
    /// The storage classes of each worker. The first is the staging buffer, the others are caches, fastest first.
    pub storage: Vec<Class>,
    /// F: how many samples there are.
    pub samples: u32,
    /// The mean of the samples' sizes, in MB.
    pub mean: f64,
    /// Their standard deviation, in MB.
    pub sd: f64,
    /// B: samples of a global batch.
    pub batch: u32,
    /// E: how often the dataset is read.
    pub epochs: u32,
    /// Whether the short last batch of an epoch is dropped.
    pub drop_last: bool,
    /// How the staging buffer's room is counted.
    pub staging: Accounting,
}

/// One storage class of every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// d_j, in MB.
    pub capacity: f64,
    /// p_j: threads that fill it.
    pub threads: usize,
    /// r_j(p): MB/s that it is read at by p threads together.
    pub read: Curve,
    /// w_j(p): MB/s that it is written at by p threads together.
    pub write: Curve,
}

/// How the staging buffer's room is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// Every sample in the buffer takes its size, once.
    #[default]
    Honest,
    /// As in the thesis's own code: a sample that was ever in the buffer enters it again for nothing and yet gives its
    /// room back when it leaves, so that room grows without bound after the first reuse. For its tables only.
    Thesis,
}

impl Scenario {
    /// Reads a scenario file's text.
    ///
    /// # Errors
    /// One line that names the field: what is missing, negative, 0 where it may not be, unknown, or no number; more
    /// workers than samples; a run of more than [`MOST_ACCESSES`].
    ///
    /// ```
    /// let error = foreread_simulator::Scenario::from_toml("[cluster]\nworkers = 0").unwrap_err();
    /// assert_eq!(error.to_string(), "cluster.workers: is 0; it is at least 1");
    /// ```
    pub fn from_toml(text: &str) -> Result<Self, SimulateError> {
        let table = parse(text)?;
        let file = Fields::new(&table);
        let name = file.text("name", "scenario")?;
        let seed = file.whole_or("seed", "a whole number", 0)?;

        let cluster = file.table("cluster", "a table [cluster] with the workers and their rates")?;
        let workers = cluster.whole("workers", "how many there are", 1, MOST_WORKERS)?;
        let compute = cluster.positive("compute", "the MB/s that a worker trains on")?;
        let preprocess = cluster.positive("preprocess", "the MB/s that a thread preprocesses")?;
        let network = cluster.positive("network", "the MB/s between two workers")?;
        let pfs_client =
            cluster.positive("pfs_client", "the MB/s that one client gets from the file system")?;
        cluster.no_others()?;

        let classes = file.tables("storage", "one [[storage]] for each class, the staging buffer first")?;
        let storage = classes.iter().map(class).collect::<Result<Vec<_>, _>>()?;
        if storage.is_empty() || storage.len() > usize::from(u8::MAX) {
            return Err(
                file.bad("storage", "has no class, or more than 255; the first is the staging buffer")
            );
        }

        let pfs = file.table("pfs", "a table [pfs] with the file system's rates")?;
        let rates = Curve::new(pfs.curve("read", "MB/s by number of readers")?);
        pfs.no_others()?;

        let dataset = file.table("dataset", "a table [dataset] with samples, mean and sd")?;
        let most = u64::from(u32::MAX >> 1);
        let samples = dataset.whole("samples", "how many samples there are", 1, most)? as u32;
        let mean = dataset.positive("mean", "the mean of their sizes in MB")?;
        let sd = dataset.not_negative("sd", "the standard deviation of their sizes in MB")?;
        dataset.no_others()?;
        if workers > u64::from(samples) {
            let problem = format!("is {workers}, but dataset.samples is {samples}: give each at least one");
            return Err(cluster.bad("workers", problem));
        }

        let training = file.table("training", "a table [training] with batch and epochs")?;
        let batch = training.whole("batch", "the samples of a global batch", 1, most)? as u32;
        let epochs = training.whole("epochs", "how often the dataset is read", 1, most)? as u32;
        let drop_last = training.boolean("drop_last", false)?;
        let staging = match training.text("staging", "honest")?.as_str() {
            "honest" => Accounting::Honest,
            "thesis" => Accounting::Thesis,
            other => {
                return Err(
                    training.bad("staging", format!("is \"{other}\"; it is \"honest\" or \"thesis\""))
                );
            }
        };
        training.no_others()?;
        if drop_last && batch > samples {
            let problem =
                format!("is {batch} and drop_last is true, so that all {samples} samples are dropped");
            return Err(training.bad("batch", problem));
        }
        // Sizes are drawn, and next to none is ten deviations above the mean.
        if (mean + 10.0 * sd) * f64::from(samples) * f64::from(epochs) > MOST_MB {
            let problem = format!("with sd, times samples and training.epochs, is more than {MOST_MB:e} MB");
            return Err(dataset.bad("mean", problem));
        }
        if u64::from(samples) * u64::from(epochs) > MOST_ACCESSES {
            let problem =
                format!("times dataset.samples is more than {MOST_ACCESSES} accesses; scale both down");
            return Err(training.bad("epochs", problem));
        }
        file.no_others()?;
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

    /// The same with caches (every class but the staging buffer) of `share` of the dataset's mean size in the whole
    /// cluster, divided among the classes as they are.
    pub fn with_cache_share(&self, share: f64) -> Self {
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

fn class(fields: &Fields<'_>) -> Result<Class, SimulateError> {
    let capacity = fields.positive("capacity", "the class's room in MB")?;
    let threads = fields.whole("threads", "the threads that fill it", 1, MOST_WORKERS)? as usize;
    let read = Curve::new(fields.curve("read", "the MB/s of the class by number of threads")?);
    let write = fields.curve_or_none("write", "MB/s by number of threads")?.map(Curve::new);
    fields.no_others()?;
    Ok(Class { capacity, threads, write: write.unwrap_or_else(|| read.clone()), read })
}
