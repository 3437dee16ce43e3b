//! What Cargo says about this workspace: where it is, its packages, their features.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

/// The workspace that xtask was built from.
#[derive(Debug)]
pub struct Workspace {
    /// The folder of the workspace's `Cargo.toml`; every command runs there.
    pub root: PathBuf,
    /// Cargo's target directory; what xtask installs lies under it too, so that removing it removes everything.
    pub target: PathBuf,
    /// All packages and their folders, sorted by name.
    pub packages: Vec<(String, PathBuf)>,
    /// Packages that have features, and their features without `default`; both sorted by name.
    pub features: Vec<(String, Vec<String>)>,
}

impl Workspace {
    /// Asks `cargo metadata`, without dependencies: that needs neither a network nor a complete lock file.
    pub fn load() -> Result<Workspace> {
        // Set by `cargo run` at run time; the compile-time value would go stale when the checkout moves.
        let own = std::env::var_os("CARGO_MANIFEST_DIR").context("run xtask as `cargo xtask <command>`")?;
        let manifest = PathBuf::from(own).join("Cargo.toml");
        let metadata = MetadataCommand::new()
            .manifest_path(&manifest)
            .no_deps()
            .exec()
            .context("cannot read the workspace's manifests")?;
        let mut features: Vec<_> = metadata
            .packages
            .iter()
            .map(|package| (package.name.to_string(), alone(package.features.keys())))
            .filter(|(_, features)| !features.is_empty())
            .collect();
        features.sort();
        let folder = |manifest: &Path| manifest.parent().map(Path::to_owned).unwrap_or_default();
        let packages = metadata.packages.iter();
        let mut packages: Vec<_> = packages
            .map(|package| (package.name.to_string(), folder(package.manifest_path.as_std_path())))
            .collect();
        packages.sort();
        Ok(Workspace {
            packages,
            root: metadata.workspace_root.into_std_path_buf(),
            target: metadata.target_directory.into_std_path_buf(),
            features,
        })
    }

    /// Where tools that `--all` builds are kept.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Where servers that tests need keep what they have, while they run.
    pub fn services(&self) -> PathBuf {
        self.target.join("services")
    }

    /// A Python environment that `--all` fills.
    pub fn environment(&self, directory: &str) -> PathBuf {
        self.target.join(directory)
    }
}

/// The features worth a check of their own. `default` is what every other step builds.
fn alone<'a>(features: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut features: Vec<_> = features.filter(|name| *name != "default").cloned().collect();
    features.sort();
    features
}

#[cfg(test)]
mod tests {
    use super::alone;

    #[test]
    fn default_is_no_feature_of_its_own() {
        let features = ["s3", "default", "local"].map(String::from);
        assert_eq!(alone(features.iter()), ["local", "s3"]);
    }
}
