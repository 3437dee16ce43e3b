//! The `foreread` command as it is now, for the tests beside it: Cargo builds a package's own programs before its tests,
//! and no other package's.

use std::process::ExitCode;

fn main() -> ExitCode {
    foreread_cli::run()
}
