//! The places that commands work in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The workspace that xtask was built from.
#[derive(Debug)]
pub struct Workspace {
    /// The folder of the workspace's `Cargo.toml`. Every command runs there.
    pub root: PathBuf,
    /// Cargo's target directory. Tools and servers of tests are below it.
    pub target: PathBuf,
}

impl Workspace {
    /// Finds it by the variables that `cargo run` sets. The compile-time value would be wrong after
    /// the checkout has moved.
    pub fn load() -> Result<Workspace> {
        let own = std::env::var_os("CARGO_MANIFEST_DIR").context("run xtask as `cargo xtask <command>`")?;
        let root = Path::new(&own).parent().context("xtask is in no workspace")?.to_owned();
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        Ok(Workspace { root, target })
    }

    /// The directory of running test servers.
    pub fn services(&self) -> PathBuf {
        self.target.join("services")
    }
}
