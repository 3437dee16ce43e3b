//! `cargo xtask bench`: runs the benchmarks. `--against COMMIT` compares the command of this
//! checkout with that of a commit.
//!
//! For the comparison with other loaders it builds the Python package in the release profile, and
//! runs Ceph's gateway where Ceph is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::ceph;
use crate::workspace::Workspace;

/// The bench that compares loaders, and its group that needs Ceph.
const LOADERS: &str = "loaders";
const CEPH: &str = "ceph";

/// The bench whose tools read symbols and line tables, which the release profile leaves out.
const INSTRUCTIONS: &str = "instructions";

/// Where the bench finds the package, and Ceph.
const PACKAGE: &str = "FOREREAD_BENCH_PACKAGE";
const GATEWAY: &str = "FOREREAD_BENCH_CEPH";

/// Capacity of Ceph for the bench, in bytes: its samples in four formats.
const ROOM: u64 = 4 << 30;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compare the command of this checkout with the one of this commit, pair by pair
    #[arg(long, value_name = "COMMIT")]
    against: Option<String>,
    /// Handed to `cargo bench -p foreread-benches`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs the benchmarks. True when they ran to their end.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    if let Some(commit) = &args.against {
        return against(&workspace, commit);
    }
    let mut bench = cargo::cargo(&workspace, ["bench", "-p", "foreread-benches"]);
    if args.args.iter().any(|arg| arg == INSTRUCTIONS) {
        bench.args(["--profile", "profiling"]);
    }
    bench.args(&args.args);
    let mut service = None;
    // Other benches do not need it.
    if args.args.iter().any(|arg| arg == LOADERS) {
        bench.env(PACKAGE, package(&workspace)?);
        if wants_ceph(&args.args) && ceph::is_there() {
            let ceph = ceph::start(&workspace, ROOM)?;
            bench.env(GATEWAY, ceph.test_value());
            service = Some(ceph);
        }
    }
    let done = cargo::run(&mut bench);
    drop(service);
    done
}

/// Builds the command of this checkout and that of `commit`, and runs them in turn.
fn against(workspace: &Workspace, commit: &str) -> Result<bool> {
    let Some(commit) = resolved(workspace, commit)? else { bail!("{commit}: there is no such commit") };
    let home = workspace.target.join("against");
    let tree = home.join(&commit);
    if !tree.join("Cargo.toml").exists() {
        std::fs::create_dir_all(&home).context("there is no place for another checkout")?;
        // A clone, not a work tree: it leaves no record in this checkout.
        let (from, to) = (workspace.root.as_os_str(), tree.as_os_str());
        let mut clone = Command::new("git");
        clone.args(["clone", "--quiet", "--no-checkout"]).args([from, to]);
        let mut checkout = Command::new("git");
        checkout.arg("-C").arg(&tree).args(["checkout", "--quiet", &commit]);
        if !cargo::run(&mut clone)? || !cargo::run(&mut checkout)? {
            bail!("{commit} cannot be checked out");
        }
    }
    let mut built = Vec::new();
    for (root, target) in [(&workspace.root, &workspace.target), (&tree, &home.join("target"))] {
        let mut build =
            cargo::cargo(workspace, ["build", "--release", "-p", "foreread-cli", "--bin", "foreread"]);
        if !cargo::run(build.current_dir(root).env("CARGO_TARGET_DIR", target))? {
            bail!("the command cannot be built in {}", root.display());
        }
        built.push(target.join("release/foreread"));
    }
    let mut bench = cargo::cargo(workspace, ["bench", "-p", "foreread-benches", "--bench", "against"]);
    cargo::run(bench.env("FOREREAD_BENCH_NEW", &built[0]).env("FOREREAD_BENCH_OLD", &built[1]))
}

/// The whole name of a commit.
fn resolved(workspace: &Workspace, commit: &str) -> Result<Option<String>> {
    let mut parse = Command::new("git");
    parse.args(["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")]);
    let output = parse.current_dir(&workspace.root).output().context("git cannot be run")?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

/// Whether Ceph's group is requested: the arguments after `--` that are not files.
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
    fn ceph_is_started_on_request_or_by_default() {
        let wants = |words: &str| wants_ceph(&words.split(' ').map(String::from).collect::<Vec<_>>());
        assert!(wants("--bench loaders") && wants("--bench loaders -- a.svg"));
        assert!(wants("--bench loaders -- a.svg local ceph"));
        assert!(!wants("--bench loaders -- a.svg local"));
    }
}
