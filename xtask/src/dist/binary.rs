//! The static command: one file for every Linux of the architecture, without a libc to be there.
//!
//! Decision: glibc, linked statically, because it is what all tests run with. It looks up host
//! names in `/etc/hosts` and by DNS itself, from version 2.34 on. The price: sources of names that
//! are plug-ins (`nsswitch.conf` with LDAP, SSS, mDNS) are only found where the same glibc is
//! installed.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Part, Release, succeed};
use crate::cargo::cargo;

/// The target of the packages.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the command.
pub fn make(release: &Release<'_>) -> Result<Part> {
    // With a target, Cargo leaves build scripts and macros as they are, which cannot be static.
    let mut build = cargo(release.workspace, ["build", "--release", "--locked", "--target", TARGET]);
    build.args(["--package", "foreread-cli", "--bin", "foreread"]);
    succeed(build.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let built = release.workspace.target.join(TARGET).join("release/foreread");
    let headers = super::output_of(Command::new("readelf").arg("--dynamic").arg(&built))?;
    if headers.contains("(NEEDED)") {
        bail!("the command is not static: {headers}");
    }
    let made = release.output.join(format!("foreread-{}-x86_64-linux", release.version));
    std::fs::copy(&built, &made).context("cannot keep the command")?;
    Ok(Part::Made(made, "no shared library is needed".to_owned()))
}
