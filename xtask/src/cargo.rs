//! Runs Cargo and other programs. Their output is passed through.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// `cargo ARGS` at the root of the workspace. The Cargo that started xtask is used, so toolchains
/// do not mix.
pub fn cargo<I: IntoIterator<Item: AsRef<OsStr>>>(workspace: &Workspace, args: I) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(&workspace.root);
    forget_own_package(&mut command);
    command
}

/// Removes the variables that `cargo run` sets for this package. Some build scripts depend on these
/// variables: a Cargo that has them compiles the packages of a Cargo without them again.
pub fn forget_own_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
}

/// Runs a command to its end. True when it succeeded.
pub fn run(command: &mut Command) -> Result<bool> {
    println!("$ {}", shown(command));
    let status = command.stdin(Stdio::null()).status().with_context(|| cannot_start(command))?;
    Ok(status.success())
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
    fn shown_command_has_no_folder() {
        assert_eq!(shown(Command::new("/some/where/cargo").args(["fmt", "--check"])), "cargo fmt --check");
    }
}
