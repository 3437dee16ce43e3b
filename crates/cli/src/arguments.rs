//! The command line.
//!
//! Values stay text here: they may also come from the environment or a file, and are given types in one place, where a
//! bad one is reported with the place that it came from.

use clap::{Args, Parser, Subcommand};

/// A data loader for machine-learning training that knows the order of its reads in advance.
#[derive(Debug, Parser)]
#[command(name = "foreread", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "Every option can also come from the environment (--look-ahead: FOREREAD_LOOK_AHEAD) or from \
foreread.toml in the working directory (look-ahead = \"1GiB\"); arguments win over the environment, and it over the file. \
Sizes are bytes, plain or with B KB MB GB TB or KiB MiB GiB TiB. Logs: RUST_LOG=debug. \
Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n ended by signal n after the state was saved, 141 nobody read the \
output to its end. NO_COLOR=1 turns colours off.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// The whole idea in under a minute, on generated data behind a slow origin
    Demo(Demo),
    /// Build a catalog of a dataset
    Index(Index),
    /// Print the ids of the samples that a rank reads in an epoch, one a line
    Order(Order),
    /// Run the loader over a dataset and report each epoch
    Load(Load),
    /// Show what would be kept where, and the fewest bytes that must be read
    Plan(Plan),
    /// Measure the origin, the disks and memory, for plans that say how long a run will take
    Calibrate(Calibrate),
    /// Play a run through on machines that are only described, under one policy or all
    Simulate(Simulate),
    /// Print a new random token, the secret that the ranks of one job share
    ///
    /// In the job script, before the ranks are started: export FOREREAD_TOKEN=$(foreread token). Each job has a token of
    /// its own: one that several jobs share lets each read what the others read.
    #[cfg(feature = "peer")]
    Token,
    /// Show what disk tiers hold, or remove what is not in use
    #[command(subcommand)]
    Cache(Cache),
}

#[derive(Debug, Subcommand)]
pub enum Cache {
    /// Show what the disk tier in a directory holds, by dataset
    List {
        /// The directory, as given to --disk
        #[arg(value_name = "DIR")]
        directory: std::path::PathBuf,
    },
    /// Remove caches from a directory that no process uses: all, or those that the options name
    Clean {
        /// The directory, as given to --disk
        #[arg(value_name = "DIR")]
        directory: std::path::PathBuf,
        /// Only those that were not used for so many days
        #[arg(long, value_name = "DAYS")]
        older_than: Option<f64>,
        /// Only the one of this identity, as `cache list` prints it
        #[arg(long, value_name = "IDENTITY")]
        dataset: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct Calibrate {
    /// The dataset: a directory, a URL, or a catalog made by `foreread index`
    #[arg(value_name = "URL|CATALOG")]
    pub target: Option<String>,
    /// A directory of the disk tier (may be repeated); some hundred megabytes are written there and removed again
    #[arg(long, value_name = "DIR")]
    pub disk: Vec<String>,
    /// How long it may take, listing the dataset apart [default: 30]
    #[arg(long, value_name = "S")]
    pub seconds: Option<String>,
    /// The most bytes that are read from the origin [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub origin_bytes: Option<String>,
    /// The most bytes a second that runs will read from the origin
    #[arg(long, value_name = "SIZE/s")]
    pub origin_limit: Option<String>,
    /// The most reads from the origin at once
    #[arg(long, value_name = "N")]
    pub origin_parallelism: Option<String>,
    /// The file to write [default: foreread-calibration.toml]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// text or json [default: text]
    #[arg(long)]
    pub report: Option<String>,
    /// How far long work has come, on standard error: auto (rank 0 only; few lines where that is no terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting and where it came from, and stop
    #[arg(long)]
    pub explain: bool,
}

impl Calibrate {
    /// What was given on the command line.
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
    /// Where to make the data; removed again afterwards [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub struct Index {
    /// The dataset: a directory or a URL; or its shards, by name or with braces ('DIR/shard-{000..146}.tar')
    #[arg(value_name = "URL", required = true)]
    pub targets: Vec<String>,
    /// How samples lie in objects: auto, files, tar (WebDataset), tfrecord or zip [default: auto]
    #[arg(long)]
    pub format: Option<String>,
    /// Index only what matches this glob (relative path; may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Leave out what matches this glob (relative path; may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// The catalog file [default: the dataset's last name, with .foreread]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// A name that stands for the place of the data: caches are kept when the data are moved or reached by other
    /// endpoints. You vouch that all places with this name hold the same data
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How far long work has come, on standard error: auto (rank 0 only; few lines where that is no terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting and where it came from, and stop
    #[arg(long)]
    pub explain: bool,
}

/// An option that may be repeated, as the text of a knob: one value a line.
fn list(values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| values.join("\n"))
}

/// What decides the order.
#[derive(Debug, Args)]
pub struct Drawing {
    /// What the order is drawn from [default: 0]
    #[arg(long, value_name = "S")]
    pub seed: Option<String>,
    /// shuffle, torch (PyTorch's DistributedSampler), feistel or sequential [default: shuffle]
    #[arg(long)]
    pub sampler: Option<String>,
    /// Samples a batch, on each rank
    #[arg(long, value_name = "B")]
    pub batch_size: Option<String>,
    /// Drop what does not divide evenly among ranks and batches, instead of padding
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub drop_last: Option<String>,
    /// How ranks share an epoch: torch (strided), blocks, or locality (by who has what) [default: torch]
    #[arg(long)]
    pub deal: Option<String>,
    /// This process among the ranks [default: the launcher's, or 0]
    #[arg(long, value_name = "R")]
    pub rank: Option<String>,
    /// How many ranks there are [default: the launcher's, or 1]
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
pub struct Order {
    /// How many samples there are
    #[arg(long, value_name = "N")]
    pub samples: Option<String>,
    /// Which epoch's order [default: 0]
    #[arg(long, value_name = "E")]
    pub epoch: Option<String>,
    #[command(flatten)]
    pub drawing: Drawing,
    /// Print every setting and where it came from, and stop
    #[arg(long)]
    pub explain: bool,
}

impl Order {
    /// What was given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = self.drawing.given();
        given.extend([("samples", self.samples.clone()), ("epoch", self.epoch.clone())]);
        given
    }
}

/// What a run is asked to do, beside its order.
#[derive(Debug, Args)]
pub struct Running {
    #[command(flatten)]
    pub drawing: Drawing,
    /// How often the dataset is read [default: 2]
    #[arg(long, value_name = "E")]
    pub epochs: Option<String>,
    /// A second dataset, read in order after every epoch
    #[arg(long, value_name = "URL")]
    pub validate: Option<String>,
    /// How samples lie in objects: auto, files, tar (WebDataset), tfrecord or zip [default: auto]
    #[arg(long)]
    pub format: Option<String>,
    /// The memory tier of each rank: a size, or auto (ranks of a node share what is free) [default: auto]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// A directory of the disk tier and the bytes that all ranks of a node may take there (may be repeated); with
    /// `,shared` after the size its cache serves all users, and all who can write there are trusted
    #[arg(long, value_name = "DIR=SIZE")]
    pub disk: Vec<String>,
    /// How far reads run ahead of the trainer [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub look_ahead: Option<String>,
    /// The most bytes a second that are read from the origin
    #[arg(long, value_name = "SIZE/s")]
    pub origin_limit: Option<String>,
    /// The most reads from the origin at once
    #[arg(long, value_name = "N")]
    pub origin_parallelism: Option<String>,
    /// What the origin and the disks can do, as `foreread calibrate` wrote it
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<String>,
    /// How long the trainer computes on each batch [default: 0]
    #[arg(long, value_name = "MS")]
    pub compute_ms: Option<String>,
    /// What to do about a sample that cannot be read: fail, skip or substitute [default: fail]
    #[arg(long, value_name = "POLICY")]
    pub on_error: Option<String>,
    /// text or json [default: text]
    #[arg(long)]
    pub report: Option<String>,
    /// How far long work has come, on standard error: auto (rank 0 only; few lines where that is no terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting and where it came from, and stop
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
    /// Add each epoch's SHA-256 to the report: over each sample's id and bytes, in delivery order
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub digest: Option<String>,
    /// Add each epoch's delivered ids to the report
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub ids: Option<String>,
    /// Go on from this file if it exists, and keep the run's state in it: written at every epoch's end, on SIGTERM and
    /// SIGINT, and at the end
    #[arg(long, value_name = "FILE")]
    pub state: Option<String>,
    /// Write the report as JSON to this file instead of standard output; %r stands for the rank
    #[arg(long, value_name = "FILE")]
    pub report_file: Option<String>,
    /// Whether ranks that can find each other share their caches: auto or off [default: auto]. FOREREAD_INTERFACE names
    /// the network interface that they use
    #[arg(long, value_name = "WHEN")]
    pub peers: Option<String>,
}

impl Load {
    /// What was given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        let mut given = self.running.given();
        given.extend([
            ("digest", self.digest.clone()),
            ("ids", self.ids.clone()),
            ("state", self.state.clone()),
            ("peers", self.peers.clone()),
            ("report-file", self.report_file.clone()),
        ]);
        given
    }
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The dataset: a directory, a URL, or a catalog; or none, with --samples and --sample-bytes
    #[arg(value_name = "URL|CATALOG", conflicts_with_all = ["samples", "sample_bytes"])]
    pub target: Option<String>,
    /// How many samples there are
    #[arg(long, value_name = "N")]
    pub samples: Option<String>,
    /// How long each is
    #[arg(long, value_name = "SIZE")]
    pub sample_bytes: Option<String>,
    #[command(flatten)]
    pub running: Running,
}

impl Plan {
    /// What was given on the command line.
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
    /// Draw one bar a policy into this SVG, and time against cache size into another beside it (FILE-cache.svg)
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<String>,
    /// What this machine's tiers can do, as `foreread calibrate` wrote it, in place of the scenario's own speeds
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<String>,
    /// Average over so many seeds, from the scenario's own on [default: 1]
    #[arg(long, value_name = "N")]
    pub seeds: Option<String>,
    /// How far long work has come, on standard error: auto (rank 0 only; few lines where that is no terminal) or off
    /// [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub progress: Option<String>,
    /// Print every setting and where it came from, and stop
    #[arg(long)]
    pub explain: bool,
}

impl Simulate {
    /// What was given on the command line.
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
    /// What was given on the command line.
    pub fn given(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("format", self.format.clone()),
            ("include", list(&self.include)),
            ("exclude", list(&self.exclude)),
            ("progress", self.progress.clone()),
        ]
    }
}
