//! Installs missing tools, for `--all`.
//!
//! Decision: system packages are installed on Debian as root only, where continuous integration
//! runs. Tools below the target directory are fetched anywhere. On other systems the run stops
//! before its first step with one line per missing tool and the command that installs it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{cargo, run};
use crate::needs::{NEEDS, Need, NeedSource, PYTHON, SYSTEM};
use crate::workspace::Workspace;

/// Installs everything that these steps need.
pub fn everything(workspace: &Workspace, steps: &[&str]) -> Result<()> {
    let wanted = || NEEDS.iter().filter(|need| steps.contains(&need.step));
    let missing = || wanted().filter(|need| need.find(workspace).is_none());
    // Debian's packages first: virtual environments need Python's venv.
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
        NeedSource::Program { package, .. } | NeedSource::Module { package, .. } => vec![package],
        NeedSource::Programs { packages, .. } | NeedSource::Ways { packages, .. } => packages.to_vec(),
        NeedSource::Component { .. }
        | NeedSource::Environment { .. }
        | NeedSource::Node { .. }
        | NeedSource::Crate { .. } => Vec::new(),
    }
}

fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists()
}

fn debian(packages: &[&str]) -> Result<()> {
    // A failed update is not fatal: the cached list may have the packages.
    run(&mut apt(&["update"]))?;
    let mut install = apt(&["install", "--yes", "--no-install-recommends"]);
    succeed(install.args(packages))
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Installs a tool that needs no root.
fn fetch(workspace: &Workspace, need: &Need) -> Result<()> {
    match need.source {
        // Rights cannot be installed. The final check reports what is still missing.
        NeedSource::Program { .. }
        | NeedSource::Module { .. }
        | NeedSource::Programs { .. }
        | NeedSource::Ways { .. } => Ok(()),
        NeedSource::Component { component, .. } => {
            succeed(Command::new("rustup").args(["component", "add", component]).current_dir(&workspace.root))
        }
        NeedSource::Environment { directory, with_system, packages } => {
            let venv = workspace.environment(directory);
            let mut make = Command::new(PYTHON);
            make.args(["-m", "venv"]).args(with_system.then_some(SYSTEM)).arg(&venv);
            succeed(&mut make)?;
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
            succeed(Command::new(venv.join("bin/python")).args(pip).args(packages))
        }
        NeedSource::Node { directory, package, version, .. } => {
            let home = workspace.environment(directory);
            // Without the directory npm uses a project further up.
            std::fs::create_dir_all(&home)
                .with_context(|| format!("cannot make the directory {}", home.display()))?;
            let mut install = Command::new("npm");
            // Package scripts are not needed: nothing is compiled.
            install.args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
            succeed(install.arg(&home).arg(format!("{package}@{version}")))
        }
        NeedSource::Crate { name, version } => build(workspace, name, version),
    }
}

/// Compiles a tool without optimisation: it runs for a second and compiles in one minute, not ten.
fn build(workspace: &Workspace, name: &str, version: &str) -> Result<()> {
    let scratch = workspace.tools().join("build");
    let mut install = cargo(workspace, ["install", "--locked", "--debug", "--force", "--version", version]);
    install.arg("--root").arg(workspace.tools()).arg("--target-dir").arg(&scratch).arg(name);
    succeed(install.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    std::fs::remove_dir_all(&scratch).context("cannot remove the tool's build directory")
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
    fn failed_command_is_named() {
        let error = succeed(Command::new("sh").args(["-c", "exit 1"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 1` failed");
    }
}
