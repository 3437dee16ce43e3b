//! The options of a command that are settings, made from the table of settings.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use foreread_settings::reader::{AGENT, CALIBRATE, DEMO, INDEX, LOAD, ORDER, SIMULATE, TOKEN};
use foreread_settings::{Knob, KnobKind, knobs_of};
use foreread_simulator::{FilesPolicy, JobsPolicy, Policy};

/// The settings that are given as arguments of one command, a [reader](foreread_settings::reader)
/// of settings.
#[derive(Debug)]
pub struct SettingArguments<const READER: u16> {
    /// Names and values. Repeated options have one value per line.
    pub given: Vec<(&'static str, String)>,
    /// Whether to print each setting with its source, and stop.
    pub explain: bool,
    /// Whether only errors are printed on standard error.
    pub quiet: bool,
    /// Whether results have details, too.
    pub verbose: bool,
}

impl<const READER: u16> SettingArguments<READER> {
    /// The names of this command's settings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        knobs_of(READER).map(|knob| knob.name)
    }

    /// The value of an argument.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }
}

const EXPLAIN: &str = "explain";

impl<const READER: u16> Args for SettingArguments<READER> {
    fn augment_args(command: Command) -> Command {
        command.args(knobs_of(READER).map(|knob| adapt(READER, option(knob)))).arg(
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

impl<const READER: u16> FromArgMatches for SettingArguments<READER> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |name: &'static str| {
            let values: Vec<&str> = matches.get_many::<String>(name)?.map(String::as_str).collect();
            Some((name, values.join("\n")))
        };
        let mut given: Vec<_> = Self::names().filter_map(value).collect();
        // `-q` and `-v` are options of all commands.
        let quiet = matches!(matches.try_get_one::<bool>("quiet"), Ok(Some(true)));
        let is_missing = |name: &str| given.iter().all(|(given, _)| *given != name);
        if quiet && Self::names().any(|name| name == "progress") && is_missing("progress") {
            given.push(("progress", "off".to_owned()));
        }
        let verbose = matches!(matches.try_get_one::<u8>("verbose"), Ok(Some(1..)));
        Ok(Self { given, explain: matches.get_flag(EXPLAIN), quiet, verbose })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The option of a setting.
fn option(knob: &'static Knob) -> Arg {
    let help = match knob.default {
        // A flag that is off needs no default in its help.
        Some(default) if knob.kind != KnobKind::Flag => format!("{} [default: {default}]", knob.help),
        _ => knob.help.to_owned(),
    };
    let option = Arg::new(knob.name).long(knob.name).help(help).help_heading(knob.group.name());
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

/// Changes an option where a command differs from the table.
fn adapt(reader: u16, option: Arg) -> Arg {
    const FORM: &str = "The form of the result on standard output [default: text]";
    let only = |option: Arg, words: &'static [&'static str]| {
        option.value_parser(PossibleValuesParser::new(words.iter().copied()))
    };
    match (reader, option.get_id().as_str()) {
        (SIMULATE, "report") => option.help(FORM),
        (TOKEN, "report") => only(option, &["text", "json"])
            .help("The form of the result on standard output; only an argument sets it here [default: text]"),
        (_, "report") => only(option, &["text", "json"]).help(FORM),
        (LOAD, "plot") => option.help(
            "Draw rates and stalls over time by tier, as SVG, into this file. %r stands for the rank; \
             without it, rank 0 draws its own",
        ),
        (SIMULATE, "plot") => option.help(
            "Draw one bar per policy into this SVG, and time against cache size into a second one \
             (FILE-cache.svg)",
        ),
        (DEMO, "plot") => {
            option.help("Draw when the trainer computes and when it waits, as SVG, into this file")
        }
        (ORDER, "samples") => option.help("The number of samples (required)"),
        (ORDER, "batch-size") => {
            option.help("Samples per batch, on each rank: --drop-last drops a short last one")
        }
        (ORDER, "deal") => only(option, &["torch", "blocks"]).help(
            "How ranks share an epoch: torch (strided) or blocks; locality is only known in a run [default: \
             torch]",
        ),
        (INDEX, "output") => {
            option.short('o').help("The catalog file [default: the dataset's last name, with .foreread]")
        }
        (CALIBRATE, "output") => {
            option.short('o').help("The file to write [default: foreread-calibration.toml]")
        }
        (CALIBRATE, "disk") => option.value_name("DIR").help(
            "A directory of the disk tier; may be repeated. Some hundred megabytes are written there and \
             removed",
        ),
        (SIMULATE, "policy") => option.value_parser(PossibleValuesParser::new(policies())),
        (SIMULATE, "calibration") => option.value_name("FILE").help(
            "The file that `foreread calibrate` wrote, whose speeds replace the scenario's; never found \
             automatically",
        ),
        (AGENT, "disk") => option.help(
            "A directory for samples of all jobs, below the memory, and its size; may be repeated. Its \
             samples outlive the agent",
        ),
        (AGENT, "memory") => option.value_name("SIZE").help(
            "The most bytes of samples in memory, for all jobs together (required). What jobs prefetch comes \
             on top",
        ),
        _ => option,
    }
}

/// The names of the policies of all kinds of scenarios, which share some.
fn policies() -> Vec<&'static str> {
    let machines = Policy::ALL.iter().map(|policy| policy.name());
    let jobs = JobsPolicy::ALL.iter().map(|policy| policy.name());
    let files = FilesPolicy::ALL.iter().map(|policy| policy.name());
    let mut names = Vec::new();
    for name in machines.chain(jobs).chain(files).chain(["all"]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
