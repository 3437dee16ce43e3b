//! The command line.
//!
//! Values stay text here, because they may also come from the environment or a file. One place
//! converts them, and reports a bad value with its source.

use clap::{Args, Parser, Subcommand};

/// A data loader for machine-learning training that knows the order of its reads in advance.
#[derive(Debug, Parser)]
#[command(name = "foreread", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "Every option can also come from the environment (--look-ahead: \
FOREREAD_LOOK_AHEAD) or from foreread.toml in the working directory (look-ahead = \"1GiB\"); arguments win \
over the environment, and it over the file. Sizes are bytes, plain or with B KB MB GB TB or KiB MiB GiB \
TiB. Logs: RUST_LOG=debug. Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n ended by signal n after the \
state was saved, 141 the reader of the output has gone. NO_COLOR=1 turns colours off.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the effect in under a minute, on generated data and slow storage
    Demo(Demo),
    /// Build a catalog of a dataset
    Index(Index),
    /// Print the ids of the samples that a rank reads in an epoch, one per line
    Order(OrderCommand),
    /// Run the loader over a dataset and report each epoch
    Load(Load),
    /// Show where samples would be cached, and the lower bound of bytes from storage
    Plan(Plan),
    /// Measure storage, disks and memory, for plans with predicted times
    Calibrate(Calibrate),
    /// Simulate a run on described machines, under one caching policy or all
    Simulate(Simulate),
    /// Print a new random token, the secret that the ranks of one job share
    ///
    /// In the job script, before the ranks are started: export FOREREAD_TOKEN=$(foreread token).
    /// Use a new token for each job: jobs with the same token can read each other's samples.
    #[cfg(feature = "peer")]
    Token,
    /// List disk caches, or remove unused ones
    #[command(subcommand)]
    Cache(Cache),
}

#[derive(Debug, Subcommand)]
pub enum Cache {
    /// List the caches in a directory, by dataset
    List {
        /// The directory, as given to --disk
        #[arg(value_name = "DIR")]
        directory: std::path::PathBuf,
    },
    /// Remove unused caches from a directory: all, or those that the options select
    Clean {
        /// The directory, as given to --disk
        #[arg(value_name = "DIR")]
        directory: std::path::PathBuf,
        /// Only caches that were not used for this many days
        #[arg(long, value_name = "DAYS")]
        older_than: Option<f64>,
        /// Only the cache of this identity, as `cache list` prints it
        #[arg(long, value_name = "IDENTITY")]
        dataset: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct Calibrate {
    /// The dataset: a directory, a URL, or a catalog made by `foreread index`
    #[arg(value_name = "URL|CATALOG")]
    pub target: Option<String>,
    /// A directory of the disk tier (may be repeated); some hundred megabytes are written there and
    /// removed
    #[arg(long, value_name = "DIR")]
    pub disk: Vec<String>,
    /// The time limit in seconds, without listing the dataset [default: 30]
    #[arg(long, value_name = "S")]
    pub seconds: Option<String>,
    /// The most bytes to read from storage [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub origin_bytes: Option<String>,
    /// The most bytes per second that runs will read from storage
    #[arg(long, value_name = "SIZE/s")]
    pub origin_limit: Option<String>,
    /// The most reads from storage at once
    #[arg(long, value_name = "N")]
    pub origin_parallelism: Option<String>,
    /// The file to write [default: foreread-calibration.toml]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// text or json [default: text]
    #[arg(long)]
    pub report: Option<String>,
    /// Show progress on standard error: auto (rank 0 only; few lines without a terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting with its source, and stop
    #[arg(long)]
    pub explain: bool,
}

impl Calibrate {
    /// The options given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("disk", list(&self.disk)),
            ("seconds", self.seconds.clone()),
            ("origin-bytes", self.origin_bytes.clone()),
            ("origin-limit", self.origin_limit.clone()),
            ("origin-parallelism", self.origin_parallelism.clone()),
            ("report", self.report.clone()),
            ("progress", self.progress.clone()),
        ]
    }
}

#[derive(Debug, Args)]
pub struct Demo {
    /// The directory for the data, which are removed afterwards [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<std::path::PathBuf>,
    /// Draw when the trainer computes and when it waits, as SVG, into this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub struct Index {
    /// The dataset: a directory or a URL; or its shards, by name or with braces
    /// ('DIR/shard-{000..146}.tar')
    #[arg(value_name = "URL", required = true)]
    pub targets: Vec<String>,
    /// The format of objects: auto, files, tar (WebDataset), tfrecord or zip [default: auto]
    #[arg(long)]
    pub format: Option<String>,
    /// Index only files that match this glob (relative path; may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leave out files that match this glob (relative path; may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// The catalog file [default: the dataset's last name, with .foreread]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// A name for the data instead of their URL: caches stay valid when the data move. All places
    /// with this name must have the same data
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Show progress on standard error: auto (rank 0 only; few lines without a terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting with its source, and stop
    #[arg(long)]
    pub explain: bool,
}

/// A repeatable option as the text of a setting: one value per line.
fn list(values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| values.join("\n"))
}

/// The options that determine the order.
#[derive(Debug, Args)]
pub struct Drawing {
    /// The seed of the order [default: 0]
    #[arg(long, value_name = "S")]
    pub seed: Option<String>,
    /// shuffle, torch (PyTorch's DistributedSampler), feistel or sequential [default: shuffle]
    #[arg(long)]
    pub sampler: Option<String>,
    /// Samples per batch, on each rank
    #[arg(long, value_name = "B")]
    pub batch_size: Option<String>,
    /// Drop the rest that does not divide evenly among ranks and batches, instead of padding
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub drop_last: Option<String>,
    /// How ranks share an epoch: torch (strided), blocks, or locality (by where samples are cached)
    /// [default: torch]
    #[arg(long)]
    pub deal: Option<String>,
    /// This process among the ranks [default: the launcher's, or 0]
    #[arg(long, value_name = "R")]
    pub rank: Option<String>,
    /// The number of ranks [default: the launcher's, or 1]
    #[arg(long, value_name = "W")]
    pub world_size: Option<String>,
}

impl Drawing {
    fn given(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("seed", self.seed.clone()),
            ("sampler", self.sampler.clone()),
            ("batch-size", self.batch_size.clone()),
            ("drop-last", self.drop_last.clone()),
            ("deal", self.deal.clone()),
            ("rank", self.rank.clone()),
            ("world-size", self.world_size.clone()),
        ]
    }
}

#[derive(Debug, Args)]
pub struct OrderCommand {
    /// The number of samples
    #[arg(long, value_name = "N")]
    pub samples: Option<String>,
    /// The epoch [default: 0]
    #[arg(long, value_name = "E")]
    pub epoch: Option<String>,
    #[command(flatten)]
    pub drawing: Drawing,
    /// Print every setting with its source, and stop
    #[arg(long)]
    pub explain: bool,
}

impl OrderCommand {
    /// The options given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = self.drawing.given();
        given.extend([("samples", self.samples.clone()), ("epoch", self.epoch.clone())]);
        given
    }
}

/// The options of a run, apart from its order.
#[derive(Debug, Args)]
pub struct Running {
    #[command(flatten)]
    pub drawing: Drawing,
    /// Passes over the dataset [default: 2]
    #[arg(long, value_name = "E")]
    pub epochs: Option<String>,
    /// A second dataset, read in order after every epoch
    #[arg(long, value_name = "URL")]
    pub validate: Option<String>,
    /// The format of objects: auto, files, tar (WebDataset), tfrecord or zip [default: auto]
    #[arg(long)]
    pub format: Option<String>,
    /// The memory tier of each rank: a size, or auto (the ranks of a node share free memory)
    /// [default: auto]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// A directory of the disk tier and its size, for all ranks of a node (may be repeated).
    /// `,shared` after the size: one cache for all users, where everyone with write access is
    /// trusted
    #[arg(long, value_name = "DIR=SIZE")]
    pub disk: Vec<String>,
    /// How many bytes are prefetched [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub look_ahead: Option<String>,
    /// The most bytes per second from storage
    #[arg(long, value_name = "SIZE/s")]
    pub origin_limit: Option<String>,
    /// The most reads from storage at once
    #[arg(long, value_name = "N")]
    pub origin_parallelism: Option<String>,
    /// The file that `foreread calibrate` wrote
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<String>,
    /// How long the trainer computes on each batch [default: 0]
    #[arg(long, value_name = "MS")]
    pub compute_ms: Option<String>,
    /// What to do if a sample cannot be read: fail, skip or substitute [default: fail]
    #[arg(long, value_name = "POLICY")]
    pub on_error: Option<String>,
    /// text or json [default: text]
    #[arg(long)]
    pub report: Option<String>,
    /// Show progress on standard error: auto (rank 0 only; few lines without a terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting with its source, and stop
    #[arg(long)]
    pub explain: bool,
}

impl Running {
    fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = self.drawing.given();
        given.extend([
            ("epochs", self.epochs.clone()),
            ("validate", self.validate.clone()),
            ("format", self.format.clone()),
            ("memory", self.memory.clone()),
            ("disk", list(&self.disk)),
            ("look-ahead", self.look_ahead.clone()),
            ("origin-limit", self.origin_limit.clone()),
            ("origin-parallelism", self.origin_parallelism.clone()),
            ("calibration", self.calibration.clone()),
            ("compute-ms", self.compute_ms.clone()),
            ("on-error", self.on_error.clone()),
            ("report", self.report.clone()),
            ("progress", self.progress.clone()),
        ]);
        given
    }
}

#[derive(Debug, Args)]
pub struct Load {
    /// The dataset: a directory or a URL of files or shards, or a catalog made by `foreread index`
    #[arg(value_name = "URL|CATALOG")]
    pub target: String,
    #[command(flatten)]
    pub running: Running,
    /// Add each epoch's SHA-256 (of all ids and bytes, in order) to the report
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub digest: Option<String>,
    /// Add each epoch's delivered ids to the report
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub ids: Option<String>,
    /// Resume from this file if it exists, and save the run's state in it: after every epoch, on
    /// SIGTERM and SIGINT, and at the end
    #[arg(long, value_name = "FILE")]
    pub state: Option<String>,
    /// Write the report as JSON to this file instead of standard output; %r stands for the rank
    #[arg(long, value_name = "FILE")]
    pub report_file: Option<String>,
    /// Draw rates and stalls over time by tier, as SVG, into this file; %r stands for the rank,
    /// and without it rank 0 draws its own
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<String>,
    /// Whether ranks share their caches: auto or off [default: auto]. FOREREAD_INTERFACE names
    /// their network interface
    #[arg(long, value_name = "WHEN")]
    pub peers: Option<String>,
}

impl Load {
    /// The options given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = self.running.given();
        given.extend([
            ("digest", self.digest.clone()),
            ("ids", self.ids.clone()),
            ("state", self.state.clone()),
            ("peers", self.peers.clone()),
            ("report-file", self.report_file.clone()),
            ("plot", self.plot.clone()),
        ]);
        given
    }
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The dataset: a directory, a URL, or a catalog; none with --samples and --sample-bytes
    #[arg(value_name = "URL|CATALOG", conflicts_with_all = ["samples", "sample_bytes"])]
    pub target: Option<String>,
    /// The number of samples
    #[arg(long, value_name = "N")]
    pub samples: Option<String>,
    /// The length of each sample
    #[arg(long, value_name = "SIZE")]
    pub sample_bytes: Option<String>,
    #[command(flatten)]
    pub running: Running,
}

impl Plan {
    /// The options given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = self.running.given();
        given.extend([("samples", self.samples.clone()), ("sample-bytes", self.sample_bytes.clone())]);
        given
    }
}

#[derive(Debug, Args)]
pub struct Simulate {
    /// The scenario file: workers, storage, file system, dataset and training
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: std::path::PathBuf,
    /// A policy's name, or all [default: all]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// text, json or csv [default: text]
    #[arg(long)]
    pub report: Option<String>,
    /// Draw one bar per policy into this SVG, and time against cache size into a second one
    /// (FILE-cache.svg)
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<String>,
    /// The file that `foreread calibrate` wrote, whose speeds replace the scenario's
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<String>,
    /// Average over this many seeds, beginning with the scenario's [default: 1]
    #[arg(long, value_name = "N")]
    pub seeds: Option<String>,
    /// Show progress on standard error: auto (rank 0 only; few lines without a terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting with its source, and stop
    #[arg(long)]
    pub explain: bool,
}

impl Simulate {
    /// The options given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("policy", self.policy.clone()),
            ("report", self.report.clone()),
            ("plot", self.plot.clone()),
            ("calibration", self.calibration.clone()),
            ("seeds", self.seeds.clone()),
            ("progress", self.progress.clone()),
        ]
    }
}

impl Index {
    /// The options given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("format", self.format.clone()),
            ("include", list(&self.include)),
            ("exclude", list(&self.exclude)),
            ("progress", self.progress.clone()),
        ]
    }
}
