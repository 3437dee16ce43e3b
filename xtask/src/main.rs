//! `cargo xtask <command>`: the project's own commands, the same on every machine and in continuous
//! integration.
//!
//! Decision: they are a Rust program, not scripts. So a checkout needs only Cargo and a C compiler,
//! and the parsing of features and test results is tested like the rest. The price is that xtask
//! must compile before anything runs. It therefore depends on no crate of this workspace.

mod background;
mod bench;
mod cargo;
mod ceph;
mod dist;
mod emulators;
mod formats;
mod install;
mod lines;
mod needs;
mod package;
mod pictures;
mod python;
mod recording;
mod results;
mod second_attempt;
mod seed;
mod service;
mod soak;
mod steps;
mod summary;
mod test;
mod unchanged;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The project's own commands",
    disable_version_flag = true
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Format, lints, tests, each feature alone, documentation, licences
    Test(test::Args),
    /// The test suites for longer: more random cases, long runs on
    Soak(soak::Args),
    /// The benchmarks. Arguments go to `cargo bench -p foreread-benches`
    Bench(bench::Args),
    /// The packages of a release in target/dist, with checksums: wheels, binary, image, sources
    Dist(dist::Args),
    /// The lines of code of each package, without tests, comments and blanks
    Lines,
    /// Makes the pictures of the documents again, into docs/img
    Pictures(pictures::Args),
    /// Ceph's S3 gateway for use by hand, until Ctrl-C. Prints the variables to export
    Ceph,
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Lines => lines::run(),
        Command::Pictures(args) => pictures::run_command(&args),
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
