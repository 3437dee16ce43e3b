//! The command line.
//!
//! Decision: options that are settings come from the table of settings ([`settings`]): names, help
//! texts, possible values. Only options of a single command are declared here. Values stay text,
//! because they may also come from the environment or a file. One place converts them, and reports
//! a bad value with its source. The price: help texts of settings are the same in all commands,
//! apart from the few in [`settings`].

#[cfg(feature = "share")]
mod control;
mod settings;
mod tables;
mod texts;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;
#[cfg(all(feature = "share", target_os = "linux"))]
use foreread::AgentChoice;
#[cfg(target_os = "linux")]
use foreread::Disk;
use foreread::dataset::FormatOptions;
#[cfg(target_os = "linux")]
use foreread::size::ByteSize;
use foreread_settings::reader;

#[cfg(feature = "share")]
pub use self::control::{AgentControl, Control, ControlOptions, ControlTarget};
pub use self::settings::SettingArguments;
pub use self::tables::TableArguments;

/// A data loader for machine-learning training that knows the order of its reads in advance.
#[derive(Debug, Parser)]
#[command(name = "foreread", version, max_term_width = 100, after_help = texts::MAIN)]
pub struct Arguments {
    #[command(flatten)]
    pub verbosity: Verbosity,
    #[command(subcommand)]
    pub command: Command,
}

/// How much is logged.
#[derive(Debug, Args)]
pub struct Verbosity {
    /// More messages on standard error: -v what is decided (info), -vv debug, -vvv trace. `index`
    /// and `plan` then print fingerprints
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Only errors on standard error: neither warnings nor progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl Verbosity {
    /// The filter of the log, where RUST_LOG sets none.
    pub fn filter(&self) -> &'static str {
        match (self.quiet, self.verbose) {
            (true, _) => "error",
            (false, 0) => "warn",
            // Dependencies stay as they are: their lines are about connections.
            (false, 1) => "warn,foreread=info",
            (false, 2) => "warn,foreread=debug",
            (false, _) => "info,foreread=trace",
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the effect in under a minute, on generated data and slow storage
    #[command(after_help = texts::DEMO)]
    Demo(Demo),
    /// Build a catalog of a dataset
    #[command(after_help = texts::INDEX)]
    Index(Box<Index>),
    /// Print the ids of the samples that a rank reads in an epoch, one per line
    #[command(after_help = texts::ORDER)]
    Order(OrderCommand),
    /// Run the loader over a dataset and report each epoch
    #[command(after_help = texts::LOAD)]
    Load(Load),
    /// Show where samples would be cached, and the lower bound of bytes from storage
    #[command(after_help = texts::PLAN)]
    Plan(Plan),
    /// Measure storage, disks and memory, for plans with predicted times
    #[command(after_help = texts::CALIBRATE)]
    Calibrate(Calibrate),
    /// Simulate a run on described machines, several jobs with one cache, or files of an unchanged
    /// program, under one caching policy or all
    #[command(after_help = texts::SIMULATE)]
    Simulate(Simulate),
    /// Print a new random token, the secret that the ranks of one job share
    #[cfg(feature = "share")]
    #[command(after_help = texts::TOKEN)]
    Token(Token),
    /// Run one cache for all jobs of a node
    #[cfg(feature = "share")]
    #[command(subcommand, after_help = texts::AGENT)]
    Agent(Agent),
    /// Divide the limits of storage over the nodes of a cluster, and show all of them
    #[cfg(feature = "share")]
    #[command(subcommand, after_help = texts::CONTROL)]
    Control(Control),
    /// Run a program that is not changed, with local copies of the files that it reads
    #[cfg(target_os = "linux")]
    #[command(after_help = texts::RUN)]
    Run(RunProgram),
    /// Fill the memory of the node's agent with a dataset, ahead of its jobs
    #[cfg(feature = "share")]
    #[command(after_help = texts::WARM)]
    Warm(Warm),
    /// List disk caches, or remove unused ones
    #[command(subcommand, after_help = texts::CACHE)]
    Cache(Cache),
    /// Print the script that completes this command's words in a shell
    #[command(after_help = texts::COMPLETIONS)]
    Completions(Completions),
    /// Print the manual page, or write the pages of all commands into a directory
    #[command(after_help = texts::MAN)]
    Man(Man),
}

#[derive(Debug, Args)]
pub struct Demo {
    /// The directory for the data, which are removed afterwards [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::DEMO }>,
}

/// A dataset for the agent's memory.
#[cfg(feature = "share")]
#[derive(Debug, Args)]
pub struct Warm {
    /// The dataset: a directory, a URL or a catalog
    #[arg(value_name = "URL|CATALOG")]
    pub target: String,
    /// Wait until this part of the samples is in memory, or all that fits [default: do not wait]
    #[arg(long, value_name = "PERCENT%")]
    pub wait: Option<Percent>,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::WARM }>,
}

/// A part in percent, such as `80%`.
#[cfg(feature = "share")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(pub f64);

#[cfg(feature = "share")]
impl std::str::FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
        let percent = number.filter(|percent: &f64| (0.0..=100.0).contains(percent));
        percent.map(Self).ok_or_else(|| "expected a part of the samples, such as 80%".to_owned())
    }
}

#[derive(Debug, Args)]
pub struct Index {
    /// The dataset: a directory or a URL; or its shards, by name or with braces
    /// ('DIR/shard-{000..146}.tar'). With --table, the location of its files [default: their common
    /// directory or bucket]
    #[arg(value_name = "URL", required_unless_present_any = ["table", "update"])]
    pub targets: Vec<String>,
    /// List an inventory instead of the URL: the manifest.json of an inventory of S3, or a table
    /// with the columns key, size and etag
    #[arg(long, value_name = "FILE", conflicts_with_all = ["table", "update"])]
    pub inventory: Option<String>,
    /// Repeat the index that made a catalog: new samples get numbers at the end, and all others
    /// keep theirs, with their parts and disk caches. With --table, the rows of another table
    #[arg(long, value_name = "CATALOG", conflicts_with_all = [
        "targets", "path", "column", "filter", "select", "group", "size", "etag", "start", "length", "name",
        "classes", "on_missing",
    ])]
    pub update: Option<PathBuf>,
    /// A name for the data instead of their URL: caches stay valid when the data move. All places
    /// with this name must have the same data
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The names of all classes in the order of their numbers: 'cat,dog', or '@FILE' with a name in
    /// each line. '' for samples without labels [default: the directories below the URL, whichever
    /// files are included]
    #[arg(long, value_name = "NAMES")]
    pub classes: Vec<String>,
    #[command(flatten)]
    pub table: TableArguments,
    #[command(flatten)]
    pub format: FormatArguments,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::INDEX }>,
}

impl Index {
    /// The names of all classes, if they are set.
    pub fn class_names(&self) -> Result<Option<Vec<String>>> {
        let mut names = Vec::new();
        for given in &self.classes {
            match given.strip_prefix('@') {
                Some(file) => {
                    let text = std::fs::read_to_string(file).with_context(|| format!("--classes @{file}"))?;
                    names.extend(text.lines().filter(|line| !line.is_empty()).map(str::to_owned));
                }
                None => names.extend(given.split(',').filter(|name| !name.is_empty()).map(str::to_owned)),
            }
        }
        Ok((!self.classes.is_empty()).then_some(names))
    }
}

/// Which parts of packed files are samples, where a format leaves a choice.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packed formats")]
pub struct FormatArguments {
    /// The HDF5 dataset ('/images'), or the column of Parquet and Arrow files ('image.bytes'),
    /// whose rows are the samples [default: the only candidate, of one name in all files]. '*': the
    /// only candidate of each file. Repeated: each sample has a row of each dataset or column.
    /// LMDB: the beginning of the keys of samples ('image-', or '' for all). RecordIO: 'data' (the
    /// packed images) or 'record'
    #[arg(long, value_name = "NAME")]
    field: Vec<String>,
    /// The HDF5 dataset, column or part that has the labels [default: one with a usual name, such
    /// as label]. LMDB: the beginning of their keys ('label-')
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// The named database of an LMDB file [default: the only one]
    #[arg(long, value_name = "NAME")]
    key: Option<String>,
    /// Take a whole HDF5 dataset as one sample, not each of its rows
    #[arg(long)]
    whole: bool,
    /// Token files (.bin, .npy, Megatron's .bin): the tokens of each sample, 2049 for 2048 and the
    /// next one
    #[arg(long, value_name = "TOKENS")]
    window: Option<u64>,
    /// Token files: the distance between the first tokens of two samples [default: the window]
    #[arg(long, value_name = "TOKENS", requires = "window")]
    stride: Option<u64>,
    /// Token files without a header: the type of a token [possible values: u8, u16, u32, i32, i64]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,
    /// Megatron's token files: take each document as one sample
    #[arg(long, conflicts_with_all = ["window", "stride"])]
    document: bool,
    /// Megatron's token files: take the samples of its GPTDataset, with this --seq-length
    #[arg(long, value_name = "TOKENS", conflicts_with_all = ["window", "stride", "dtype", "document"])]
    pack: Option<u64>,
    /// The --seed of Megatron [default: 1234]
    #[arg(long, value_name = "SEED", requires = "pack")]
    pack_seed: Option<u32>,
    /// The requested samples: Megatron's iterations times its global batch size [default: one
    /// epoch]
    #[arg(long, value_name = "SAMPLES", requires = "pack")]
    pack_samples: Option<u64>,
    /// The --split of Megatron and its part: 'train:969,30,1', 'valid:969,30,1' [default: all
    /// documents]
    #[arg(long, value_name = "PART:SPLIT", requires = "pack")]
    pack_split: Option<String>,
}

impl FormatArguments {
    /// The same for the library.
    pub fn options(&self) -> FormatOptions {
        let mut options = FormatOptions::default();
        options.fields = self.field.clone();
        options.label = self.label.clone();
        options.key = self.key.clone();
        options.whole = self.whole;
        options.window = self.window;
        options.stride = self.stride;
        options.dtype = self.dtype.clone();
        options.document = self.document;
        options.pack = self.pack;
        options.pack_seed = self.pack_seed;
        options.pack_samples = self.pack_samples;
        options.pack_split = self.pack_split.clone();
        options
    }
}

#[derive(Debug, Args)]
pub struct OrderCommand {
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::ORDER }>,
}

#[derive(Debug, Args)]
pub struct Load {
    /// The dataset: a directory or a URL of files or shards, or a catalog made by `foreread index`
    #[arg(value_name = "URL|CATALOG")]
    pub target: String,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::LOAD }>,
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The dataset: a directory, a URL, or a catalog; none with --samples and --sample-bytes
    #[arg(value_name = "URL|CATALOG", conflicts_with_all = ["samples", "sample-bytes"])]
    pub target: Option<String>,
    /// Also show what `foreread run` would do for an unchanged program with this --disk or
    /// --memory, if it opens each file once per epoch in an unknown order
    #[arg(long)]
    pub unchanged: bool,
    /// With --unchanged: the part of the disk's size that may be written in a day, after it was
    /// filled once
    #[arg(long, value_name = "PART", default_value_t = 0.5, requires = "unchanged")]
    pub disk_writes_per_day: f64,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::PLAN }>,
}

#[derive(Debug, Args)]
pub struct Calibrate {
    /// The dataset: a directory, a URL, or a catalog made by `foreread index`
    #[arg(value_name = "URL|CATALOG")]
    pub target: Option<String>,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::CALIBRATE }>,
}

#[derive(Debug, Args)]
pub struct Simulate {
    /// The scenario file: workers, storage, file system, dataset and training; several jobs; or
    /// whole files
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: PathBuf,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::SIMULATE }>,
}

#[cfg(feature = "share")]
#[derive(Debug, Args)]
pub struct Token {
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::TOKEN }>,
}

#[derive(Debug, Subcommand)]
pub enum Cache {
    /// List the caches in a directory, by dataset
    #[command(after_help = texts::CACHE_LIST)]
    List {
        /// The directory, as given to --disk
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        settings: SettingArguments<{ reader::STATUS }>,
    },
    /// Remove unused caches from a directory: those that --all, --older-than or --dataset selects
    #[command(after_help = texts::CACHE_CLEAN)]
    Clean {
        /// The directory, as given to --disk
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        selected: Selected,
        /// Only print what would be removed; without a selection, what --all would remove
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        settings: SettingArguments<{ reader::STATUS }>,
    },
}

#[cfg(feature = "share")]
#[derive(Debug, Subcommand)]
pub enum Agent {
    /// Start an agent that outlives this command
    #[command(after_help = texts::AGENT_START)]
    Start(AgentOptions),
    /// Run an agent until it is stopped or gets SIGTERM or SIGINT, for service managers
    #[command(after_help = texts::AGENT_SERVE)]
    Serve(AgentOptions),
    /// Run a command with an agent for it and its children, which ends with the command
    #[command(after_help = texts::AGENT_RUN)]
    Run {
        /// The policy: limits, weights and room [default: foreread/agent.toml in XDG_CONFIG_HOME,
        /// or in ~/.config]
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        #[command(flatten)]
        http: AgentHttp,
        #[command(flatten)]
        control: AgentControl,
        #[command(flatten)]
        settings: SettingArguments<{ reader::AGENT }>,
        /// The command and its arguments
        #[arg(value_name = "CMD", required = true, last = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Show what an agent keeps, and for whom
    #[command(after_help = texts::AGENT_STATUS)]
    Status(AgentTarget),
    /// Change an agent while it runs
    #[command(after_help = texts::AGENT_SET)]
    Set {
        #[command(flatten)]
        target: AgentTarget,
        /// Values of the policy, such as memory=100GiB, limit@s3://bucket=100MB/s or weight@JOB=4;
        /// `none` removes one, and `file` takes one back to the file
        #[arg(value_name = "KEY=VALUE", required = true)]
        changes: Vec<String>,
    },
    /// Stop an agent; its jobs then read storage by themselves
    #[command(after_help = texts::AGENT_STOP)]
    Stop(AgentTarget),
}

/// A program that is not changed.
#[cfg(target_os = "linux")]
#[derive(Debug, Args)]
pub struct RunProgram {
    /// A directory whose files are served; several for several datasets
    #[arg(long, value_name = "DIR", required = true)]
    pub root: Vec<PathBuf>,
    /// Keep copies in a directory of a local disk, of at most this size
    #[arg(long, value_name = "DIR=SIZE", conflicts_with = "memory")]
    pub disk: Option<Disk>,
    /// Keep copies in memory, of at most this size
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::of_cache)]
    pub memory: Option<ByteSize>,
    /// The agent that keeps copies if neither is given: auto, or the path of its socket
    #[cfg(feature = "share")]
    #[arg(id = "run-agent", long = "agent", value_name = "AGENT", default_value = "auto")]
    pub agent: AgentChoice,
    /// When originals are compared with their copies
    #[arg(long, value_enum, default_value_t = CheckOriginals::Auto)]
    pub check: CheckOriginals,
    /// Was removed
    #[arg(long, hide = true, value_parser = removed_catch)]
    pub catch: Option<String>,
    /// The files of each epoch in the order of their use: a line per file, an empty line between
    /// epochs
    #[arg(long, value_name = "FILE", conflicts_with = "announced-sampler")]
    pub order: Option<PathBuf>,
    /// The order of PyTorch's DistributedSampler with this seed: torch:seed=N
    #[arg(id = "announced-sampler", long = "sampler", value_name = "SAMPLER")]
    pub sampler: Option<String>,
    /// The part of the disk's size that may be written in a day, after it was filled once
    #[arg(long, value_name = "PART", default_value_t = 0.5)]
    pub disk_writes_per_day: f64,
    /// How to report at the end, on standard error
    #[arg(id = "run-report", long = "report", value_enum, default_value_t = RunReportKind::Text)]
    pub report: RunReportKind,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    pub words: Vec<std::ffi::OsString>,
}

/// The answer to an option that earlier versions had.
#[cfg(target_os = "linux")]
fn removed_catch(_: &str) -> Result<String, String> {
    let why = "--catch was removed: static programs read the originals, and the report names them. Leave the \
               option out; a program that is linked dynamically is served";
    Err(why.to_owned())
}

/// When originals are compared.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckOriginals {
    /// At each open on local file systems, and when a copy is made on others
    Auto,
    /// At each open
    Open,
    /// When a copy is made
    Never,
}

/// A report of a run.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RunReportKind {
    /// A few lines
    Text,
    /// One JSON object
    Json,
    /// Nothing
    Off,
}

/// An agent that is to run.
#[cfg(feature = "share")]
#[derive(Debug, Args)]
pub struct AgentOptions {
    /// The path of its socket, in a directory that is the user's alone [default: foreread/node.sock
    /// in XDG_RUNTIME_DIR, or /tmp/foreread-UID/node.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// End the agent when no job has used it for so long [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub idle_exit: Option<f64>,
    /// The policy: limits, weights and room [default: foreread/agent.toml in XDG_CONFIG_HOME, or in
    /// ~/.config]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub http: AgentHttp,
    #[command(flatten)]
    pub control: AgentControl,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::AGENT }>,
}

/// How an agent shows itself.
#[cfg(feature = "share")]
#[derive(Debug, Args)]
pub struct AgentHttp {
    /// Serve its page and its metrics at a loopback address too, with port 0 for a free one; `agent
    /// status` prints the link [default: only http.sock next to its socket]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// An agent that runs.
#[cfg(feature = "share")]
#[derive(Debug, Args)]
pub struct AgentTarget {
    /// The path of its socket [default: FOREREAD_AGENT, or the user's own]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    #[command(flatten)]
    pub settings: SettingArguments<{ reader::STATUS }>,
}

/// The caches that `cache clean` removes. Only a dry run needs none of these options.
#[derive(Debug, Args)]
pub struct Selected {
    /// All unused caches
    #[arg(long, conflicts_with_all = ["older_than", "dataset"])]
    pub all: bool,
    /// Only caches that were not used for this many days
    #[arg(long, value_name = "DAYS")]
    pub older_than: Option<f64>,
    /// Only the cache of this identity, as `cache list` prints it
    #[arg(long, value_name = "IDENTITY")]
    pub dataset: Option<String>,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// The directory for one page per command; without it the page of `foreread` itself is printed
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Calls `each` with every command and its words, subcommands first.
    fn each_command(
        command: &mut clap::Command,
        words: &str,
        each: &mut impl FnMut(&str, &mut clap::Command),
    ) {
        for inner in command.get_subcommands_mut() {
            let name = format!("{words} {}", inner.get_name());
            each_command(inner, &name, each);
        }
        each(words, command);
    }

    fn command() -> clap::Command {
        let mut command = Arguments::command();
        command.build();
        command
    }

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_has_two_examples_settings_units_and_exit_codes() {
        let mut seen = 0;
        each_command(&mut command(), "foreread", &mut |words, command| {
            if words.contains(" help") {
                return;
            }
            seen += 1;
            let help = command.render_help().to_string();
            let name = if words == "foreread" { "foreread " } else { words };
            let examples = help.lines().filter(|line| line.starts_with("  ") && line.contains(name)).count();
            assert!(examples >= 2, "{words}: {examples} examples\n{help}");
            for part in ["foreread.toml", "FOREREAD_", "KiB", "RUST_LOG", "NO_COLOR"] {
                assert!(help.contains(part), "{words}: {part}\n{help}");
            }
            for code in ["0 done", "1 failed", "2 wrong usage", "128 + n", "141"] {
                assert!(help.contains(code), "{words}: {code}\n{help}");
            }
            assert!(help.lines().all(|line| line.chars().count() <= 100), "{words}: {help}");
        });
        assert!(seen >= 13, "{seen}");
    }

    #[test]
    fn options_of_load_are_grouped_under_headings() {
        let help = command().find_subcommand_mut("load").unwrap().render_help().to_string();
        let at = |heading: &str| {
            help.find(&format!("\n{heading}:\n")).unwrap_or_else(|| panic!("{heading}: {help}"))
        };
        let headings = ["Order", "Caches", "Storage", "Ranks", "Report"].map(at);
        assert!(headings.is_sorted(), "{help}");
        let option =
            |name: &str| help.find(&format!("--{name} ")).unwrap_or_else(|| panic!("{name}: {help}"));
        assert!(headings[0] < option("sampler") && option("sampler") < headings[1]);
        assert!(headings[1] < option("memory") && option("memory") < headings[2]);
        assert!(headings[4] < option("report"));
    }

    #[test]
    fn possible_values_come_from_the_table_of_settings() {
        each_command(&mut command(), "foreread", &mut |words, command| {
            for knob in foreread_settings::KNOBS {
                let Some(argument) = command.get_arguments().find(|argument| argument.get_id() == knob.name)
                else {
                    continue;
                };
                let offered: Vec<_> =
                    argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
                let Some(known) = knob.words() else { continue };
                assert!(!offered.is_empty(), "{words} --{}", knob.name);
                // A command may refuse a word that the table has, and never take another.
                assert!(offered.iter().all(|word| known.contains(&word.as_str())), "{words} --{}", knob.name);
            }
        });
    }

    #[test]
    fn every_setting_is_an_option_of_some_command() {
        let mut names = std::collections::BTreeSet::new();
        each_command(&mut command(), "", &mut |_, command| {
            names.extend(command.get_arguments().map(|argument| argument.get_id().to_string()));
        });
        for knob in foreread_settings::KNOBS {
            assert!(names.contains(knob.name), "{}", knob.name);
        }
    }

    #[test]
    fn verbosity_sets_the_filter_of_the_log() {
        let filter = |words: &[&str]| Arguments::try_parse_from(words).map(|it| it.verbosity.filter());
        assert_eq!(filter(&["foreread", "demo"]).unwrap(), "warn");
        assert_eq!(filter(&["foreread", "-q", "demo"]).unwrap(), "error");
        assert_eq!(filter(&["foreread", "demo", "-v"]).unwrap(), "warn,foreread=info");
        assert_eq!(filter(&["foreread", "-vv", "demo"]).unwrap(), "warn,foreread=debug");
        assert!(filter(&["foreread", "-q", "-v", "demo"]).is_err());
    }
}
