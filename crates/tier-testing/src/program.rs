//! Copies of programs that are executed at once.

use std::path::Path;
use std::process::Command;

/// Copies a program, so that it can be executed at once.
///
/// Another process writes the copy. A child that another thread forks meanwhile inherits every open
/// file of this process until its `exec`. A program that is open for writing cannot be executed
/// (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--").args([from, to]).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} cannot be copied", from.display());
}
