//! The `foreread` command in the process of Python.
//!
//! Decision: the wheel's command is a Python entry point that calls the command's code in this
//! module. A second executable in the wheel would contain the whole library once more. The price is
//! the start of an interpreter.

use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use foreread::Registry;
use pyo3::prelude::*;

/// The exit code of a Rust program that panicked.
const PANICKED: u8 = 101;

/// Runs the command with these words, the program's name first. Returns the exit code. Called once
/// per process: it configures logging for the whole process.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| {
        let run = || number(foreread_cli::run_arguments(Registry::with_defaults(), words));
        let code = catch_unwind(AssertUnwindSafe(run)).unwrap_or(PANICKED);
        // A Rust program does so at its end, a library does not. A closed pipe was reported
        // already.
        let _ = std::io::stdout().flush();
        code
    })
}

/// The number of an exit code, which the standard library can only compare.
fn number(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}
