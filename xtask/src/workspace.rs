//! The workspace from `cargo metadata`: its root, packages and features.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

/// The workspace that xtask was built from.
#[derive(Debug)]
pub struct Workspace {
    /// The folder of the workspace's `Cargo.toml`. Every command runs there.
    pub root: PathBuf,
    /// Cargo's target directory. Tools that xtask installs are below it.
    pub target: PathBuf,
    /// All packages and their folders, sorted by name.
    pub packages: Vec<(String, PathBuf)>,
    /// Packages that have features, and the features that their sources name. Both sorted by name.
    /// A feature that a package only forwards is checked in the package that names it.
    pub features: Vec<(String, Vec<String>)>,
}

impl Workspace {
    /// Runs `cargo metadata` without dependencies, which needs neither network nor complete lock
    /// file.
    pub fn load() -> Result<Workspace> {
        // Set by `cargo run`. The compile-time value would be wrong after the checkout has moved.
        let own = std::env::var_os("CARGO_MANIFEST_DIR").context("run xtask as `cargo xtask <command>`")?;
        let manifest = PathBuf::from(own).join("Cargo.toml");
        let metadata = MetadataCommand::new()
            .manifest_path(&manifest)
            .no_deps()
            .exec()
            .context("cannot read the workspace's manifests")?;
        let folder = |manifest: &Path| manifest.parent().map(Path::to_owned).unwrap_or_default();
        let mut features = Vec::new();
        for package in metadata.packages.iter().filter(|package| !package.features.is_empty()) {
            let mut source = String::new();
            read_sources(&folder(package.manifest_path.as_std_path()), &mut source)?;
            features.push((package.name.to_string(), named_in(&source, package.features.keys())));
        }
        features.sort();
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

    /// The directory of tools that `--all` compiles.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// The directory of running test servers.
    pub fn services(&self) -> PathBuf {
        self.target.join("services")
    }

    /// A virtual environment of `--all`.
    pub fn environment(&self, directory: &str) -> PathBuf {
        self.target.join(directory)
    }
}

/// Adds the Rust files below a directory to `text`.
fn read_sources(directory: &Path, text: &mut String) -> Result<()> {
    let cannot = || format!("cannot read {}", directory.display());
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.is_dir() {
            read_sources(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &std::fs::read_to_string(&path).with_context(cannot)?;
        }
    }
    Ok(())
}

/// The features that the source names, sorted.
fn named_in<'a>(source: &str, features: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut named: Vec<_> =
        features.filter(|name| source.contains(&format!("feature = \"{name}\""))).cloned().collect();
    named.sort();
    named
}

#[cfg(test)]
mod tests {
    use super::named_in;

    #[test]
    fn forwarded_features_are_left_to_the_package_that_names_them() {
        let features = ["s3", "default", "cloud", "peer"].map(String::from);
        let source = "#[cfg(feature = \"s3\")] mod a; #[cfg(not(feature = \"peer\"))] mod b; // cloud";
        assert_eq!(named_in(source, features.iter()), ["peer", "s3"]);
    }
}
