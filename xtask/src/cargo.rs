//! Runs Cargo and other programs. Their output is passed through, and test results are parsed from
//! it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::results::Results;
use crate::workspace::Workspace;

/// `cargo ARGS` at the root of the workspace. The Cargo that started xtask is used, so toolchains
/// do not mix.
pub fn cargo<I: IntoIterator<Item: AsRef<OsStr>>>(workspace: &Workspace, args: I) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(&workspace.root);
    command
}

/// Whether a program exists and exits with success. Its output is dropped.
pub fn answers(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command to its end. True when it succeeded.
pub fn run(command: &mut Command) -> Result<bool> {
    println!("$ {}", shown(command));
    let status = command.stdin(Stdio::null()).status().with_context(|| cannot_start(command))?;
    Ok(status.success())
}

/// Runs a command that runs Rust tests and parses their results from its standard output, which is
/// copied to `out` line by line. True if the command succeeded.
pub fn run_tests(command: &mut Command, results: &mut Results, out: &mut impl Write) -> Result<bool> {
    println!("$ {}", shown(command));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| cannot_start(command))?;
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        // Bytes, not text: the output of a test need not be UTF-8.
        while stdout.read_until(b'\n', &mut line).context("cannot read the tests' output")? > 0 {
            out.write_all(&line).and_then(|()| out.flush()).context("cannot write the tests' output")?;
            results.read_line(&String::from_utf8_lossy(&line));
            line.clear();
        }
    }
    Ok(child.wait().with_context(|| cannot_start(command))?.success())
}

/// The command as typed in a shell.
pub fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The error text of a command that cannot be started.
pub fn cannot_start(command: &Command) -> String {
    format!("cannot run `{}`", shown(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_does_not_answer() {
        assert!(!answers(&mut Command::new("foreread-no-such-program")));
    }

    #[test]
    fn shown_command_has_no_folder() {
        assert_eq!(shown(Command::new("/some/where/cargo").args(["fmt", "--check"])), "cargo fmt --check");
    }

    #[test]
    fn results_are_parsed_from_output_that_is_not_utf8() {
        let mut results = Results::default();
        let script =
            r"printf '\377 noise\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n'; exit 3";
        let mut out = Vec::new();
        let succeeded = run_tests(Command::new("sh").args(["-c", script]), &mut results, &mut out).unwrap();
        assert!(!succeeded);
        assert!(out.starts_with(b"\xff noise\n"), "what was printed goes through unchanged");
        assert_eq!(results.passed, 2);
    }
}
