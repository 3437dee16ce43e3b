//! `foreread completions`: prints a shell's completion script.

use std::io::Write;

use anyhow::Result;
use clap::Command;
use clap_complete::{Shell, generate};

use crate::output;

pub fn run(shell: Shell, mut command: Command) -> Result<()> {
    // The generator panics if its output cannot be written.
    let mut script = Vec::new();
    generate(shell, &mut command, "foreread", &mut script);
    let mut out = output::stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
