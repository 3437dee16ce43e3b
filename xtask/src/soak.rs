//! `cargo xtask soak`: the test suites for longer, to be run before a release or overnight.
//!
//! Decision: the dev profile, as in every other run. It is optimised already, and keeps the overflow checks and debug
//! assertions that a long run is there to trip.

use anyhow::Result;

use crate::cargo::{self, run_tests};
use crate::seed::Seed;
use crate::steps::{Run, suites};
use crate::tally::{Outcome, Tally};
use crate::test::skip_needs;
use crate::workspace::Workspace;

/// What `soak` takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Random cases for each property test (an ordinary run has 256)
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    cases: u32,
}

/// Runs the suites with long runs on; true when none failed.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let seed = Seed::choose()?;
    println!("{seed}");
    let mut command = suites(&Run { workspace: &workspace, seed, all: false });
    command.env("FOREREAD_SOAK", "1").env("PROPTEST_CASES", args.cases.to_string());
    let mut tally = Tally::default();
    tally.step("soak", |results| {
        Ok(Outcome::Ran(run_tests(&mut command, results, &mut std::io::stdout().lock())?))
    });
    // Ten seconds and 2.5 GB: PyTorch's order at the size from which it shuffles otherwise.
    tally.step("torch's large path", |_| {
        let example = ["run", "--package", "foreread-oracle", "--example", "torch_large_vector"];
        Ok(Outcome::Ran(cargo::run(&mut cargo::cargo(&workspace, example))?))
    });
    skip_needs(&mut tally);
    print!("\n{}", tally.summary(seed));
    Ok(tally.succeeded())
}
