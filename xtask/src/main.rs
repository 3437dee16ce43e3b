//! `cargo xtask <command>`: tasks without a usual tool, the same on every machine and in continuous
//! integration: servers for tests, long runs with seeds, comparisons of two commits.
//!
//! Decision: everything else is a usual tool, called by a script: `.ci/run`, `.ci/soak`,
//! `packaging/dist`. These commands are a Rust program, so that servers end with it in every case.
//! The price is that it must compile before these run. It therefore depends on no crate of this
//! workspace.

mod bench;
mod cargo;
mod ceph;
mod servers;
mod soak;
mod test_server;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Servers for tests, long runs, benchmarks",
    disable_version_flag = true
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a command while the servers that tests need are up: Ceph, moto and Azurite
    Servers(servers::Args),
    /// The test suites for longer: more random cases, long runs on
    Soak(soak::Args),
    /// The benchmarks. Arguments go to `cargo bench -p foreread-benches`
    Bench(bench::Args),
    /// Ceph's S3 gateway for use by hand, until Ctrl-C. Prints the variables to export
    Ceph,
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Servers(args) => servers::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Ceph => ceph::serve(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
