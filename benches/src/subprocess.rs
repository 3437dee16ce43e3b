//! Runs a part of a benchmark in a separate process: this program with arguments that select the
//! part.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first argument of such a process.
pub const FLAG: &str = "--part";

/// Runs this program with `FLAG` and `args` and parses the result that [`print_result`] printed.
///
/// # Errors
/// If the process cannot be started, fails, or prints another type of result.
pub fn run<T: DeserializeOwned>(args: &[&dyn AsRef<OsStr>]) -> Result<T> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    run_command(Command::new(program).arg(FLAG).args(args.iter().map(|arg| arg.as_ref())))
}

/// Runs a program and parses the last line of its output.
///
/// # Errors
/// As [`run`].
pub fn run_command<T: DeserializeOwned>(command: &mut Command) -> Result<T> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", output.status);
    }
    let stdout = String::from_utf8(output.stdout)?;
    let line = stdout.lines().next_back().with_context(|| format!("no output from {command:?}"))?;
    serde_json::from_str(line).with_context(|| format!("invalid output from {command:?}: {line}"))
}

/// Runs this program once for each rank, all at the same time, and parses their results. `set_up`
/// adds the part and its arguments.
///
/// # Errors
/// As [`run`].
pub fn run_ranks<T: DeserializeOwned>(ranks: u32, set_up: impl Fn(&mut Command)) -> Result<Vec<T>> {
    let meeting = tempfile::tempdir()?;
    let start = |rank: u32| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(FLAG);
        set_up(&mut command);
        command
            .env("FOREREAD_MEET", meeting.path())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a rank")
    };
    let children = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let mut found = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a rank failed: {}", output.status);
        found.push(serde_json::from_slice(&output.stdout)?);
    }
    Ok(found)
}

/// Prints the result for the parent process.
///
/// # Errors
/// If the result cannot be serialized.
pub fn print_result(result: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}
