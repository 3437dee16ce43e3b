//! The source archive with all dependencies: it builds without a network.
//!
//! Decision: what the last commit holds, and what `cargo vendor` fetches for its lock file.
//! Packages that no Linux build compiles (Windows, macOS, browsers) keep their manifests and lose
//! their files: Cargo reads the manifests of all, and they are two thirds of the bytes. The price
//! is an archive for Linux alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::{CargoOpt, MetadataCommand};

use super::{Part, Release, output_of, scratch, succeed};
use crate::cargo::cargo;

/// Where the dependencies are in the archive.
const VENDOR: &str = "vendor";

/// The platforms that the archive builds for.
const PLATFORMS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Makes the archive.
pub fn make(release: &Release<'_>) -> Result<Part> {
    let root = &release.workspace.root;
    if !root.join(".git").exists() {
        return Ok(Part::Skipped("needs a checkout by git: the archive is made from a commit".to_owned()));
    }
    let directory = scratch(release.workspace, "source")?;
    let name = format!("foreread-{}", release.version);
    let tree = directory.join(&name);
    let plain = directory.join("plain.tar");
    let mut archive = Command::new("git");
    archive.args(["archive", "--format=tar"]).arg(format!("--prefix={name}/"));
    succeed(archive.arg("--output").arg(&plain).arg("HEAD").current_dir(root))?;
    succeed(Command::new("tar").arg("-xf").arg(&plain).arg("-C").arg(&directory))?;
    vendor(release, &tree)?;
    let (kept, emptied) = prune(&tree)?;

    let date = output_of(Command::new("git").args(["log", "-1", "--format=%cI"]).current_dir(root))?;
    let made = release.output.join(format!("{name}-vendored.tar.xz"));
    // The same commit gives the same bytes.
    let mut pack = Command::new("tar");
    pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    pack.arg(format!("--mtime={}", date.trim())).args(["--use-compress-program", "xz -T0 -6", "-cf"]);
    succeed(pack.arg(&made).arg("-C").arg(&directory).arg(&name))?;
    Ok(Part::Made(made, format!("with {kept} dependencies; {emptied} of other platforms are empty")))
}

/// Fetches the dependencies into the tree, and has its Cargo use them.
fn vendor(release: &Release<'_>, tree: &Path) -> Result<()> {
    let mut vendor = cargo(release.workspace, ["vendor", "--locked", "--versioned-dirs", VENDOR]);
    let settings = output_of(vendor.current_dir(tree))?;
    let path = tree.join(".cargo/config.toml");
    let before = std::fs::read_to_string(&path).context("the checkout has no .cargo/config.toml")?;
    let text = format!("{before}\n# The dependencies of this archive.\n{settings}");
    std::fs::write(&path, text).context("cannot write the archive's .cargo/config.toml")
}

/// Empties the packages that no platform of ours compiles. How many were kept, and how many
/// emptied.
fn prune(tree: &Path) -> Result<(usize, usize)> {
    let mut used = BTreeSet::new();
    for platform in PLATFORMS {
        let metadata = MetadataCommand::new()
            .current_dir(tree)
            .features(CargoOpt::AllFeatures)
            .other_options(["--locked", "--offline", "--filter-platform", platform].map(str::to_owned))
            .exec()
            .context("the archive's packages cannot be resolved")?;
        used.extend(metadata.packages.iter().map(|package| format!("{}-{}", package.name, package.version)));
    }
    let (mut kept, mut emptied) = (0, 0);
    for entry in std::fs::read_dir(tree.join(VENDOR)).context("there are no dependencies")? {
        let package = entry.context("cannot list the dependencies")?.path();
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if used.contains(&name) {
            kept += 1;
        } else {
            empty(&package).with_context(|| format!("cannot empty {name}"))?;
            emptied += 1;
        }
    }
    if kept == 0 {
        bail!("no dependency is used: are the folders' names made otherwise now?");
    }
    Ok((kept, emptied))
}

/// Leaves a package's manifest, an empty library, and the checksum by which the lock file knows it.
fn empty(package: &Path) -> Result<()> {
    let manifest = std::fs::read(package.join("Cargo.toml"))?;
    let sums = std::fs::read_to_string(package.join(".cargo-checksum.json"))?;
    let sums: serde_json::Value = serde_json::from_str(&sums)?;
    let sums = serde_json::json!({ "files": {}, "package": sums["package"] });
    std::fs::remove_dir_all(package)?;
    std::fs::create_dir_all(package.join("src"))?;
    std::fs::write(package.join("Cargo.toml"), manifest)?;
    std::fs::write(package.join("src/lib.rs"), "")?;
    std::fs::write(package.join(".cargo-checksum.json"), sums.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_package_keeps_manifest_and_checksum() {
        let directory = tempfile::tempdir().unwrap();
        let package = directory.path().join("windows-1.0.0");
        std::fs::create_dir_all(package.join("lib")).unwrap();
        std::fs::write(package.join("lib/large.a"), [0; 100]).unwrap();
        std::fs::write(package.join("Cargo.toml"), "[package]").unwrap();
        let sums = r#"{"files":{"lib/large.a":"aa"},"package":"bb"}"#;
        std::fs::write(package.join(".cargo-checksum.json"), sums).unwrap();
        empty(&package).unwrap();
        assert!(!package.join("lib").exists());
        assert_eq!(std::fs::read_to_string(package.join("Cargo.toml")).unwrap(), "[package]");
        let sums = std::fs::read_to_string(package.join(".cargo-checksum.json")).unwrap();
        assert_eq!(sums, r#"{"files":{},"package":"bb"}"#);
    }
}
