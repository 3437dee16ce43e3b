//! Finds the commit that `--version` shows, and leaves symbols out of release binaries.
//!
//! `FOREREAD_COMMIT` wins: packagers build from archives without a history. Without it and without
//! git, or outside of this project's repository, there is no commit, and no error. The price of the
//! commit: this crate is built again after each commit.

use std::path::{Path, PathBuf};
use std::process::Command;

const VARIABLE: &str = "FOREREAD_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    strip();
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let set = std::env::var(VARIABLE).ok().filter(|commit| !commit.trim().is_empty());
    if let Some(commit) = set.map(|commit| commit.trim().to_owned()).or_else(from_git) {
        println!("cargo:rustc-env=BUILT_FROM_COMMIT={commit}");
    }
}

/// Strips the binary of a build without debug information. `strip` in the workspace's profile has
/// no effect: Cargo (1.95) drops it for packages with an optimisation level of their own.
fn strip() {
    let is = |variable, value: &str| std::env::var(variable).is_ok_and(|set| set == value);
    if is("PROFILE", "release") && is("DEBUG", "false") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo:rustc-link-arg-bin=foreread=-Wl,--strip-all");
    }
}

/// The commit of the repository that this file belongs to.
fn from_git() -> Option<String> {
    // A copy in another project's repository is not tracked there, or has another history.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // The log of HEAD changes with every commit and checkout. A repository without a log of it has
    // at least HEAD.
    for name in ["logs/HEAD", "HEAD"] {
        let path = git(&["rev-parse", "--git-path", name]).map(PathBuf::from);
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
            break;
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// The output of git in this crate's directory, if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let output = Command::new("git").args(arguments).current_dir(Path::new(&here)).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
