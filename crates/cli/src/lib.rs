//! The `foreread` command as a library: the integration tests run the code that is built with them,
//! and a program with custom storage backends offers the command with them ([`run_with`]).
//!
//! Standard output has only the result. Progress, logs and errors go to standard error. Exit codes:
//! 0 done, 1 failed, 2 wrong usage, 128 + n ended by signal n after its state was saved (`load
//! --state`), 141 (SIGPIPE) when the reader of standard output has gone before the work was done.
//! `--help` and the README list the same.

mod arguments;
#[cfg(target_os = "linux")]
mod child;
mod commands;
mod images;
mod output;
mod plots;
mod progress;
mod settings;
mod signals;
mod version;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};
use foreread::Registry;
use tracing_subscriber::EnvFilter;

use crate::arguments::{Arguments, Command};
pub use crate::images::image_of;

/// Runs the command line, and returns the exit code.
pub fn run() -> ExitCode {
    run_with(Registry::with_defaults())
}

/// [`run`] with the storage backends of `registry`.
///
/// ```no_run
/// # fn main() -> std::process::ExitCode {
/// // `.register(MyBackend)` opens the URLs of its schemes.
/// let registry = foreread::Registry::with_defaults();
/// foreread_cli::run_with(registry)
/// # }
/// ```
pub fn run_with(registry: Registry) -> ExitCode {
    run_arguments(registry, std::env::args_os())
}

/// [`run_with`] with these words as the command line, the program's name first: for a process whose
/// own arguments are not the command's.
pub fn run_arguments(registry: Registry, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    foreread::Interface::Command.set();
    let parsed = command(&registry).try_get_matches_from(&words);
    let arguments = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error, &words),
    };
    let filter = EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| EnvFilter::new(arguments.verbosity.filter()));
    // Any value but an empty one counts (no-color.org).
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let done = match arguments.command {
        Command::Demo(options) => commands::demo::run(&options),
        Command::Index(options) => commands::index::run(&options, registry),
        Command::Order(options) => commands::order::run(&options),
        Command::Load(options) => match commands::load::run(&options, registry) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Plan(options) => commands::plan::run(&options, registry),
        Command::Calibrate(options) => commands::calibrate::run(&options, registry),
        Command::Simulate(options) => commands::simulate::run(&options),
        #[cfg(feature = "share")]
        Command::Token(options) => commands::token::run(&options),
        #[cfg(feature = "share")]
        Command::Agent(options) => match commands::agent::run(options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        #[cfg(feature = "share")]
        Command::Control(options) => commands::control::run(options),
        #[cfg(target_os = "linux")]
        Command::Run(options) => match commands::run::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        #[cfg(feature = "share")]
        Command::Warm(options) => commands::warm::run(&options, registry),
        Command::Cache(options) => commands::cache::run(&options),
        Command::Completions(options) => commands::completions::run(options.shell, command(&registry)),
        Command::Man(options) => commands::man::run(options.directory.as_deref(), command(&registry)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::fail(&error),
    }
}

/// The whole command line.
fn command(registry: &Registry) -> clap::Command {
    Arguments::command().long_version(version::long(registry))
}

/// Prints the argument parser's output: help and version as they are, an error as one line.
fn usage(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // Help that cannot be printed has no other place.
        let _ = error.print();
        return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let text = error.render().to_string();
    output::complain(&one_line(
        &option_of_another(error).unwrap_or(text),
        words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()),
    ));
    ExitCode::from(2)
}

/// The message about an option that only another command has. The parser's tip would be a similar
/// option of this command.
fn option_of_another(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != clap::error::ErrorKind::UnknownArgument {
        return None;
    }
    let long = option.strip_prefix("--")?.split('=').next()?;
    let command = Arguments::command();
    let has =
        |command: &&clap::Command| command.get_arguments().any(|argument| argument.get_long() == Some(long));
    let owners: Vec<String> =
        command.get_subcommands().filter(has).map(|owner| format!("foreread {}", owner.get_name())).collect();
    (!owners.is_empty())
        .then(|| format!("unexpected argument '--{long}' found; it is an option of {}", owners.join(", ")))
}

/// The subcommand in `words`, as in `foreread cache clean --help`.
fn help_of(words: impl IntoIterator<Item = String>) -> String {
    let (mut command, mut help) = (Arguments::command(), String::from("foreread"));
    for word in words {
        let Some(inner) = command.find_subcommand(&word).cloned() else { continue };
        help = help + " " + &word;
        command = inner;
    }
    help + " --help"
}

/// The parser's message and tips in one line, with the command whose `--help` has more. `words` are
/// the arguments.
fn one_line(text: &str, words: impl IntoIterator<Item = String>) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_message = |line: &&str| !line.starts_with("Usage: ") && !line.starts_with("For more information");
    let lines_shown = lines.take_while(is_message).map(|line| line.strip_prefix("error: ").unwrap_or(line));
    // A list follows its heading. Other lines are separated.
    let mut message = String::new();
    for line in lines_shown {
        let separator = if message.is_empty() {
            ""
        } else if message.ends_with(':') {
            " "
        } else {
            "; "
        };
        message = message + separator + line;
    }
    format!("{message} (see {})", help_of(words))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn usage_error_is_one_line_with_tip_and_help() {
        let line = |words: &[&str]| {
            let error = Arguments::try_parse_from(words).unwrap_err();
            one_line(&error.render().to_string(), words[1..].iter().map(|word| (*word).to_owned()))
        };
        assert_eq!(
            line(&["foreread", "load", "x", "--batchsize", "3"]),
            "unexpected argument '--batchsize' found; tip: a similar argument exists: '--batch-size' (see \
             foreread load --help)"
        );
        let error = Arguments::try_parse_from(["foreread", "load", "x", "--field", "image"]).unwrap_err();
        assert_eq!(
            option_of_another(&error).unwrap(),
            "unexpected argument '--field' found; it is an option of foreread index"
        );
        assert_eq!(
            line(&["foreread", "index"]),
            "the following required arguments were not provided: <URL>... (see foreread index --help)"
        );
        assert_eq!(
            line(&["foreread", "lod"]),
            "unrecognized subcommand 'lod'; tip: a similar subcommand exists: 'load' (see foreread --help)"
        );
    }

    #[test]
    fn wrong_value_lists_the_possible_ones_and_the_nearest() {
        let error = Arguments::try_parse_from(["foreread", "load", "x", "--sampler", "torhc"]).unwrap_err();
        assert_eq!(
            one_line(&error.render().to_string(), ["load".to_owned(), "x".to_owned()]),
            "invalid value 'torhc' for '--sampler <WORD>'; [possible values: shuffle, torch, feistel, \
             sequential]; tip: a similar value exists: 'torch' (see foreread load --help)"
        );
    }

    #[test]
    fn version_has_features_and_schemes() {
        let text = command(&Registry::with_defaults()).render_long_version();
        assert!(text.starts_with(concat!("foreread ", env!("CARGO_PKG_VERSION"))), "{text}");
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert!(line("URL schemes: ").contains("file"), "{text}");
        assert_eq!(line("features: ").contains("share"), cfg!(feature = "share"), "{text}");
        for list in ["features: ", "URL schemes: "] {
            assert_eq!(line(list).contains("s3"), cfg!(feature = "s3"), "{text}");
        }
        let short = command(&Registry::with_defaults()).render_version();
        assert_eq!(short, concat!("foreread ", env!("CARGO_PKG_VERSION"), "\n"));
    }
}
