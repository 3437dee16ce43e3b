//! The `foreread` command as a library: the integration tests run the code that is built with them,
//! and a program with custom storage backends offers the command with them ([`run_with`]).
//!
//! Standard output has only the result. Progress, logs and errors go to standard error. Exit codes:
//! 0 done, 1 failed, 2 wrong usage, 128 + n ended by signal n after its state was saved (`load
//! --state`), 141 (SIGPIPE) when the reader of standard output has gone before the work was done.
//! `--help` and the README list the same.

mod allocator;
mod arguments;
mod commands;
mod output;
mod progress;
mod settings;
mod signals;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use foreread::Registry;
use tracing_subscriber::EnvFilter;

use crate::arguments::{Arguments, Command};

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
    allocator::set_up();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // Any value but an empty one counts (no-color.org).
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
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
        #[cfg(feature = "peer")]
        Command::Token => commands::token::run(),
        Command::Cache(options) => commands::cache::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::fail(&error),
    }
}

/// Prints the argument parser's output: help and version as they are, an error as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // Help that cannot be printed has no other place.
        let _ = error.print();
        return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    output::complain(&one_line(&error.render().to_string()));
    ExitCode::from(2)
}

/// The parser's message and tips in one line, with the command whose `--help` has more.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut lines_shown: Vec<&str> = Vec::new();
    let mut help = String::from("foreread --help");
    for line in lines {
        if let Some(usage) = line.strip_prefix("Usage: ") {
            // The words before the first argument name the command.
            let words =
                usage.split(' ').take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
            help = words.chain(["--help"]).collect::<Vec<_>>().join(" ");
            break;
        }
        lines_shown.push(line.strip_prefix("error: ").unwrap_or(line));
    }
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
    format!("{message} (see {help})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_error_is_one_line_with_tip_and_help() {
        let line = |words: &[&str]| {
            let error = Arguments::try_parse_from(words).unwrap_err();
            one_line(&error.render().to_string())
        };
        assert_eq!(
            line(&["foreread", "load", "x", "--batchsize", "3"]),
            "unexpected argument '--batchsize' found; tip: a similar argument exists: '--batch-size' (see \
             foreread load --help)"
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
    fn help_lists_every_deal_and_every_exit_code() {
        use clap::CommandFactory;
        let mut command = Arguments::command();
        let whole = command.render_long_help().to_string();
        for code in ["0 done", "1 failed", "2 wrong usage", "128 + n", "141"] {
            assert!(whole.contains(code), "{code}: {whole}");
        }
        for name in ["load", "plan", "order"] {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            for deal in ["torch", "blocks", "locality"] {
                assert!(help.contains(deal), "{name}: {deal}");
            }
        }
    }
}
