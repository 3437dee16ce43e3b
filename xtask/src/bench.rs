//! `cargo xtask bench`: the benchmarks, with the arguments handed on.

use anyhow::Result;

use crate::cargo;
use crate::workspace::Workspace;

/// What `bench` takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Handed to `cargo bench -p foreread-benches`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs the benchmarks; true when they ran to their end.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    cargo::run(cargo::cargo(&workspace, ["bench", "-p", "foreread-benches"]).args(&args.args))
}
