//! `cargo xtask bench`: the benchmarks, with the arguments handed on.
//!
//! What the comparison with other loaders needs is made for it: the Python package of this checkout in the release profile, and
//! Ceph's gateway while it runs, where Ceph is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::ceph;
use crate::workspace::Workspace;

/// The bench that compares loaders, and its group that needs Ceph.
const LOADERS: &str = "loaders";
const CEPH: &str = "ceph";

/// Where the bench finds the package, and Ceph.
const PACKAGE: &str = "FOREREAD_BENCH_PACKAGE";
const GATEWAY: &str = "FOREREAD_BENCH_CEPH";

/// What the bench may store in Ceph, in bytes: its samples in four forms.
const ROOM: u64 = 4 << 30;

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
    let mut bench = cargo::cargo(&workspace, ["bench", "-p", "foreread-benches"]);
    bench.args(&args.args);
    let mut service = None;
    // Nobody waits for it where other benches are meant.
    if args.args.iter().any(|arg| arg == LOADERS) {
        bench.env(PACKAGE, package(&workspace)?);
        if wants_ceph(&args.args) && ceph::is_there(&workspace) {
            let ceph = ceph::start_with(&workspace, ROOM)?;
            bench.env(GATEWAY, ceph.told());
            service = Some(ceph);
        }
    }
    let done = cargo::run(&mut bench);
    drop(service);
    done
}

/// Whether Ceph's group is one of those that are asked for: the words behind `--` that are no file.
fn wants_ceph(args: &[String]) -> bool {
    let behind = args.iter().skip_while(|arg| *arg != "--").skip(1);
    let groups: Vec<_> = behind.filter(|word| !word.ends_with(".svg")).collect();
    groups.is_empty() || groups.iter().any(|word| *word == CEPH)
}

/// Builds the Python package as a wheel would hold it, and returns the directory to import it from.
fn package(workspace: &Workspace) -> Result<PathBuf> {
    if !cargo::run(&mut cargo::cargo(workspace, ["build", "--release", "-p", "foreread-python"]))? {
        bail!("the Python package cannot be built");
    }
    let home = workspace.target.join("bench-package");
    let (package, native) = (home.join("foreread"), workspace.target.join("release/lib_native.so"));
    if home.exists() {
        std::fs::remove_dir_all(&home).context("the last package cannot be removed")?;
    }
    std::fs::create_dir_all(&home).context("there is no place for the package")?;
    copy(&workspace.root.join("crates/python/python/foreread"), &package)?;
    copy(&native, &package.join("_native.abi3.so"))?;
    Ok(home)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    match cargo::run(copy.arg("-r").arg(from).arg(to))? {
        true => Ok(()),
        false => bail!("{} cannot be copied", from.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::wants_ceph;

    #[test]
    fn ceph_is_started_where_it_is_asked_for_or_nothing_is() {
        let wants = |words: &str| wants_ceph(&words.split(' ').map(String::from).collect::<Vec<_>>());
        assert!(wants("--bench loaders") && wants("--bench loaders -- a.svg"));
        assert!(wants("--bench loaders -- a.svg local ceph"));
        assert!(!wants("--bench loaders -- a.svg local"));
    }
}
