//! The `foreread` command, as a library of one function, so that the integration tests run the very code that is built
//! with them.
//!
//! Standard output carries the result alone; progress, logs and errors go to standard error. Exit codes: 0 done,
//! 1 failed, 2 wrong usage, 128 + n ended by signal n after its state was saved (`load --state`), 141 (that is, SIGPIPE's)
//! when whoever reads standard output has gone away before the work was done.

mod allocator;
mod arguments;
mod commands;
mod output;
mod progress;
mod settings;
mod signals;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::arguments::{Arguments, Command};

/// Reads the command line, does what it says, and tells how the program ends.
pub fn run() -> ExitCode {
    allocator::set_up();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let done = match arguments.command {
        Command::Demo(options) => commands::demo::run(&options),
        Command::Index(options) => commands::index::run(&options),
        Command::Order(options) => commands::order::run(&options),
        Command::Load(options) => match commands::load::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Plan(options) => commands::plan::run(&options),
        Command::Calibrate(options) => commands::calibrate::run(&options),
        Command::Simulate(options) => commands::simulate::run(&options),
        Command::Cache(options) => commands::cache::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::fail(&error),
    }
}

/// What the argument parser says: help and version as they are, an error as one line like any other.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // Help that cannot be printed helps nobody.
        let _ = error.print();
        return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let rest: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    output::complain(format!("{first} {}", rest.join("; ")).trim_end());
    ExitCode::from(2)
}
