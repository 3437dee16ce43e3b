//! A part of a benchmark in a process of its own: this program again, with arguments that say which.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first argument of a process that is a part of another.
pub const PART: &str = "--part";

/// Runs this program with `PART` and `args` and reads what [`answer`] printed.
///
/// # Errors
/// If it cannot be run, fails, or says something else.
pub fn ask<T: DeserializeOwned>(args: &[&dyn AsRef<OsStr>]) -> Result<T> {
    let program = std::env::current_exe().context("which program is this?")?;
    ask_of(Command::new(program).arg(PART).args(args.iter().map(|arg| arg.as_ref())))
}

/// Runs a program and reads the last line that it printed.
///
/// # Errors
/// As [`ask`].
pub fn ask_of<T: DeserializeOwned>(command: &mut Command) -> Result<T> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    let said = String::from_utf8(output.stdout)?;
    let line = said.lines().next_back().with_context(|| format!("{command:?} said nothing"))?;
    serde_json::from_str(line).with_context(|| format!("{command:?} said {line}"))
}

/// Says a part's result to the process that asked.
///
/// # Errors
/// If it cannot be put in words.
pub fn answer(result: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}
