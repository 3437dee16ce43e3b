//! Getting what is missing, for `--all`.
//!
//! Decision: only Debian is installed on, and only by root, because that is where continuous integration runs; what
//! goes under the target directory is fetched anywhere. Everywhere else the run ends before its first step, with one
//! line for each missing thing and the command that gets it, as `--all` promises to skip nothing.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{cargo, run};
use crate::needs::{NEEDS, Need, PYTHON, SYSTEM, Source};
use crate::workspace::Workspace;

/// Sees to it that all that these steps need is there.
pub fn everything(workspace: &Workspace, steps: &[&str]) -> Result<()> {
    let wanted = || NEEDS.iter().filter(|need| steps.contains(&need.step));
    let missing = || wanted().filter(|need| need.find(workspace).is_none());
    // Debian's packages first and together: Python's venv must be there before an environment can be made.
    let packages: Vec<_> = missing().flat_map(debian_packages).collect();
    let mut trouble = Vec::new();
    if !packages.is_empty() && is_debian() && rustix::process::geteuid().is_root() {
        trouble.extend(debian(&packages).err());
    }
    for need in missing() {
        trouble.extend(fetch(workspace, need).err());
    }
    for error in trouble {
        eprintln!("xtask: {error:#}");
    }
    let lines: Vec<_> = missing().map(|need| format!("  {}: `{}`", need.name, need.how_to_get())).collect();
    if !lines.is_empty() {
        bail!(
            "--all skips nothing, and this is missing (root on Debian has it installed):\n{}",
            lines.join("\n")
        );
    }
    Ok(())
}

fn debian_packages(need: &Need) -> Vec<&'static str> {
    match need.source {
        Source::Program { package, .. } | Source::Module { package, .. } => vec![package],
        Source::Programs { packages, .. } | Source::Ways { packages, .. } => packages.to_vec(),
        Source::Component { .. }
        | Source::Environment { .. }
        | Source::Node { .. }
        | Source::Crate { .. } => Vec::new(),
    }
}

fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists()
}

fn debian(packages: &[&str]) -> Result<()> {
    // A stale list is no reason to stop: the packages may be in it all the same.
    run(&mut apt(&["update"]))?;
    let mut install = apt(&["install", "--yes", "--no-install-recommends"]);
    succeed(install.args(packages))
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Gets what needs no root.
fn fetch(workspace: &Workspace, need: &Need) -> Result<()> {
    match need.source {
        // Rights are given by whoever has them; what is still missing is said in the end.
        Source::Program { .. } | Source::Module { .. } | Source::Programs { .. } | Source::Ways { .. } => {
            Ok(())
        }
        Source::Component { component, .. } => {
            succeed(Command::new("rustup").args(["component", "add", component]).current_dir(&workspace.root))
        }
        Source::Environment { directory, with_system, packages } => {
            let venv = workspace.environment(directory);
            let mut make = Command::new(PYTHON);
            make.args(["-m", "venv"]).args(with_system.then_some(SYSTEM)).arg(&venv);
            succeed(&mut make)?;
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
            succeed(Command::new(venv.join("bin/python")).args(pip).args(packages))
        }
        Source::Node { directory, package, version, .. } => {
            let home = workspace.environment(directory);
            // npm looks for a project above a directory that is not there.
            std::fs::create_dir_all(&home)
                .with_context(|| format!("cannot make the directory {}", home.display()))?;
            let mut install = Command::new("npm");
            // No scripts of packages run: nothing has to be compiled.
            install.args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
            succeed(install.arg(&home).arg(format!("{package}@{version}")))
        }
        Source::Crate { name, version } => build(workspace, name, version),
    }
}

/// Compiles a tool without optimisation: it runs for a second, and takes one minute to compile instead of ten.
fn build(workspace: &Workspace, name: &str, version: &str) -> Result<()> {
    let scratch = workspace.tools().join("build");
    let mut install = cargo(workspace, ["install", "--locked", "--debug", "--force", "--version", version]);
    install.arg("--root").arg(workspace.tools()).arg("--target-dir").arg(&scratch).arg(name);
    succeed(install.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    std::fs::remove_dir_all(&scratch).context("cannot remove what compiling the tool left behind")
}

fn succeed(command: &mut Command) -> Result<()> {
    if !run(command)? {
        bail!("`{}` failed", crate::cargo::shown(command));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_named() {
        let error = succeed(Command::new("sh").args(["-c", "exit 1"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 1` failed");
    }
}
