//! The options of a command that are settings, made from the table of settings.

use std::fmt;
use std::marker::PhantomData;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use foreread_settings::{Knob, KnobKind, find_knob};
use foreread_simulator::{FilesPolicy, JobsPolicy, Policy};

/// The settings of one command.
pub trait KnobSet: fmt::Debug + Send + Sync + 'static {
    /// Their names, in the order of the help text.
    const NAMES: &'static [&'static str];

    /// Changes an option where this command differs from the table.
    fn adapt(option: Arg) -> Arg {
        option
    }
}

/// The settings that are given as arguments.
#[derive(Debug)]
pub struct SettingArguments<S: KnobSet> {
    /// Names and values. Repeated options have one value per line.
    pub given: Vec<(&'static str, String)>,
    /// Whether to print each setting with its source, and stop.
    pub explain: bool,
    /// Whether only errors are printed on standard error.
    pub quiet: bool,
    /// Whether results have details, too.
    pub verbose: bool,
    set: PhantomData<S>,
}

impl<S: KnobSet> SettingArguments<S> {
    /// The names of this command's settings.
    pub fn names(&self) -> &'static [&'static str] {
        S::NAMES
    }

    /// The value of an argument.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }
}

const EXPLAIN: &str = "explain";

impl<S: KnobSet> Args for SettingArguments<S> {
    fn augment_args(command: Command) -> Command {
        let options = S::NAMES.iter().filter_map(|name| find_knob(name)).map(|knob| S::adapt(option(knob)));
        command.args(options).arg(
            Arg::new(EXPLAIN)
                .long(EXPLAIN)
                .action(ArgAction::SetTrue)
                .help("Print every setting with its source, and stop")
                .help_heading("Report"),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: KnobSet> FromArgMatches for SettingArguments<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |name: &&'static str| {
            let values: Vec<&str> = matches.get_many::<String>(name)?.map(String::as_str).collect();
            Some((*name, values.join("\n")))
        };
        let mut given: Vec<_> = S::NAMES.iter().filter_map(value).collect();
        // `-q` and `-v` are options of all commands.
        let quiet = matches!(matches.try_get_one::<bool>("quiet"), Ok(Some(true)));
        if quiet && S::NAMES.contains(&"progress") && given.iter().all(|(name, _)| *name != "progress") {
            given.push(("progress", "off".to_owned()));
        }
        let verbose = matches!(matches.try_get_one::<u8>("verbose"), Ok(Some(1..)));
        Ok(Self { given, explain: matches.get_flag(EXPLAIN), quiet, verbose, set: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The option of a setting.
fn option(knob: &'static Knob) -> Arg {
    let option = Arg::new(knob.name).long(knob.name).help_heading(knob.group.name());
    let option = match knob.default {
        // A flag that is off needs no default in its help.
        Some(default) if knob.kind != KnobKind::Flag => {
            option.help(format!("{} [default: {default}]", knob.help))
        }
        _ => option.help(knob.help),
    };
    match knob.kind {
        KnobKind::Words(words) => {
            option.value_name("WORD").value_parser(PossibleValuesParser::new(words.iter().copied()))
        }
        KnobKind::Flag => option
            .value_name("BOOL")
            .value_parser(PossibleValuesParser::new(["true", "false"]))
            .hide_possible_values(true)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        KnobKind::Value(form) => option.value_name(form),
        KnobKind::List(form) => option.value_name(form).action(ArgAction::Append),
    }
}

/// An option with fewer words than the table has.
fn only(option: Arg, words: &'static [&'static str]) -> Arg {
    option.value_parser(PossibleValuesParser::new(words.iter().copied()))
}

/// `--report` of all commands but `simulate`.
fn report(option: Arg) -> Arg {
    match option.get_id().as_str() {
        "report" => {
            only(option, &["text", "json"]).help("The form of the result on standard output [default: text]")
        }
        _ => option,
    }
}

macro_rules! knob_set {
    ($(#[$doc:meta])* $name:ident, $names:expr, $adapt:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl KnobSet for $name {
            const NAMES: &'static [&'static str] = $names;

            fn adapt(option: Arg) -> Arg {
                let adapt: fn(Arg) -> Arg = $adapt;
                adapt(option)
            }
        }
    };
}

knob_set!(
    /// `load`.
    LoadSet,
    &[
        "batch-size", "epochs", "seed", "order-group", "sampler", "drop-last", "deal", "validate",
        "compute-ms", "memory", "disk", "agent", "memory-alone", "job-name", "look-ahead", "format",
        "origin-limit", "origin-parallelism", "patience", "recall", "calibration", "on-error", "rank",
        "world-size", "peers", "report", "report-file", "digest", "ids", "decode", "decode-threads", "state",
        "plot", "progress",
    ],
    |option| match option.get_id().as_str() {
        "plot" => option.help(
            "Draw rates and stalls over time by tier, as SVG, into this file. %r stands for the rank; \
             without it, rank 0 draws its own",
        ),
        _ => report(option),
    }
);
knob_set!(
    /// `plan`.
    PlanSet,
    &[
        "samples", "sample-bytes", "batch-size", "epochs", "seed", "order-group", "sampler", "drop-last",
        "deal", "validate", "compute-ms", "memory", "disk", "look-ahead", "format", "origin-limit",
        "origin-parallelism", "calibration", "on-error", "rank", "world-size", "report", "progress",
    ],
    report
);
knob_set!(
    /// `order`.
    OrderSet,
    &[
        "samples", "epoch", "seed", "order-group", "sampler", "batch-size", "drop-last", "deal", "rank",
        "world-size", "report",
    ],
    |option| match option.get_id().as_str() {
        "samples" => option.help("The number of samples (required)"),
        "batch-size" => option.help("Samples per batch, on each rank: --drop-last drops a short last one"),
        "deal" => only(option, &["torch", "blocks"])
            .help(
                "How ranks share an epoch: torch (strided) or blocks; locality is only known in a run \
                 [default: torch]",
            ),
        _ => report(option),
    }
);
knob_set!(
    /// `index`.
    IndexSet,
    &["include", "exclude", "format", "output", "report", "progress"],
    |option| match option.get_id().as_str() {
        "output" => option
            .short('o')
            .help("The catalog file [default: the dataset's last name, with .foreread]"),
        _ => report(option),
    }
);
#[cfg(feature = "share")]
knob_set!(
    /// `warm`.
    WarmSet,
    &["agent", "format", "patience", "report", "progress"],
    report
);
knob_set!(
    /// `calibrate`.
    CalibrateSet,
    &[
        "disk", "seconds", "origin-bytes", "origin-limit", "origin-parallelism", "output", "report",
        "progress",
    ],
    |option| match option.get_id().as_str() {
        "disk" => option.value_name("DIR").help(
            "A directory of the disk tier; may be repeated. Some hundred megabytes are written there \
             and removed",
        ),
        "output" => option.short('o').help("The file to write [default: foreread-calibration.toml]"),
        _ => report(option),
    }
);
knob_set!(
    /// `simulate`.
    SimulateSet,
    &["policy", "seeds", "calibration", "report", "plot", "progress"],
    |option| match option.get_id().as_str() {
        "policy" => {
            let mut names: Vec<_> = Policy::ALL.iter().map(|policy| policy.name()).collect();
            let jobs = JobsPolicy::ALL.iter().map(|policy| policy.name());
            for name in jobs.chain(FilesPolicy::ALL.iter().map(|policy| policy.name())).chain(["all"]) {
                // Scenarios of different kinds share some policies.
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            option.value_parser(PossibleValuesParser::new(names))
        }
        "calibration" => option.value_name("FILE").help(
            "The file that `foreread calibrate` wrote, whose speeds replace the scenario's; never found \
             automatically",
        ),
        "report" => option.help("The form of the result on standard output [default: text]"),
        "plot" => option.help(
            "Draw one bar per policy into this SVG, and time against cache size into a second one \
             (FILE-cache.svg)",
        ),
        _ => option,
    }
);
knob_set!(
    /// `demo`.
    DemoSet,
    &["report", "plot", "progress"],
    |option| match option.get_id().as_str() {
        "plot" => option.help("Draw when the trainer computes and when it waits, as SVG, into this file"),
        _ => report(option),
    }
);
#[cfg(feature = "share")]
knob_set!(
    /// `agent start`, `agent serve` and `agent run`.
    AgentSet,
    &["memory", "disk", "origin-limit", "origin-parallelism", "patience"],
    |option| match option.get_id().as_str() {
        "disk" => option.help(
            "A directory for samples of all jobs, below the memory, and its size; may be repeated. Its \
             samples outlive the agent",
        ),
        "memory" => option.value_name("SIZE").help(
            "The most bytes of samples in memory, for all jobs together (required). What jobs prefetch \
             comes on top",
        ),
        _ => option,
    }
);
#[cfg(feature = "share")]
knob_set!(
    /// `agent status` and `agent stop`.
    AgentStatusSet,
    &["report"],
    report
);
knob_set!(
    /// `cache list` and `cache clean`.
    CacheSet,
    &["report"],
    report
);
#[cfg(feature = "share")]
knob_set!(
    /// `token`.
    TokenSet,
    &["report"],
    |option| report(option)
        .help("The form of the result on standard output; only an argument sets it here [default: text]")
);
