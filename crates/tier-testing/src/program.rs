//! Copies of programs that are run at once.

use std::path::Path;
use std::process::Command;

/// Copies a program, so that it can be run at once.
///
/// Another process writes the copy. A child that another thread starts meanwhile has every open file of this process, until it
/// runs its own program. A program that is still open for writing cannot be run (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--").args([from, to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} cannot be copied", from.display());
}
