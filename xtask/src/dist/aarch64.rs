//! The Python wheel for aarch64, cross-compiled.
//!
//! There are two ways. The first is the toolchain in use, if it has the standard library for
//! aarch64 (`rustup target add`). The second is Debian's packages of Rust for both architectures,
//! unpacked below the target directory. It is for machines that reach Debian's archive and not
//! rustup's. It takes the compiler and the standard library from Debian, because both must be of
//! one version. zig compiles C and links in both.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Part, Release, missing_tools, output_of, succeed, wheel};
use crate::cargo::answers;

/// The target.
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Debian's packages of the compiler, and the standard library for both architectures.
const PACKAGES: &[&str] = &["rustc-web", STANDARD_LIBRARY, "libstd-rust-web-dev:arm64"];

/// The package of the standard library. The compiler's own libraries are among its dependencies,
/// and have their versions in their names.
const STANDARD_LIBRARY: &str = "libstd-rust-web-dev";

/// The commands for a machine that has neither way.
const BY_HAND: &str = "rustup target add aarch64-unknown-linux-gnu && cargo xtask dist --only aarch64";

/// Builds the wheel, if one of the ways is there.
pub fn make(release: &Release<'_>) -> Result<Part> {
    if let Some(missing) = missing_tools(release.workspace) {
        return Ok(Part::Skipped(missing));
    }
    let mut maturin = wheel::maturin(release, TARGET);
    if !has_standard_library(&mut Command::new("rustc")) {
        let Some(toolchain) = debian_toolchain(release)? else {
            return Ok(Part::Skipped(format!("no standard library for {TARGET}: `{BY_HAND}`")));
        };
        toolchain.export(&mut maturin);
        // What another compiler has built is not used.
        maturin.env("CARGO_TARGET_DIR", release.workspace.target.join("aarch64"));
    }
    wheel::build(release, &mut maturin)
}

/// Whether a compiler has the target's standard library.
fn has_standard_library(rustc: &mut Command) -> bool {
    let Ok(directory) = output_of(rustc.args(["--print", "target-libdir", "--target", TARGET])) else {
        return false;
    };
    let files = std::fs::read_dir(directory.trim()).into_iter().flatten().flatten();
    files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

/// Debian's compiler, unpacked.
struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    /// Makes a command use this compiler.
    fn export(&self, command: &mut Command) {
        let library = self.root.join("usr/lib").join("x86_64-linux-gnu");
        command.env("RUSTC", self.root.join("usr/bin/rustc")).env("LD_LIBRARY_PATH", library);
    }
}

/// Fetches and unpacks Debian's packages. None on other systems, and where they cannot be had.
fn debian_toolchain(release: &Release<'_>) -> Result<Option<Toolchain>> {
    let toolchain = Toolchain { root: release.workspace.tools().join("debian-rust") };
    let works = |toolchain: &Toolchain| {
        let mut rustc = Command::new(toolchain.root.join("usr/bin/rustc"));
        toolchain.export(&mut rustc);
        has_standard_library(&mut rustc)
    };
    if works(&toolchain) {
        return Ok(Some(toolchain));
    }
    if !Path::new("/etc/debian_version").exists() || !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let debs = super::scratch(release.workspace, "debian-rust")?;
    succeed(Command::new("dpkg").args(["--add-architecture", "arm64"]))?;
    succeed(Command::new("apt-get").args(["update", "--quiet"]))?;
    let library = dependency(STANDARD_LIBRARY, "libstd-rust")?;
    let llvm = dependency(&library, "libllvm")?;
    let mut download = Command::new("apt-get");
    download.arg("download").args(PACKAGES).args([library, llvm]).current_dir(&debs);
    if !answers(&mut download) {
        return Ok(None);
    }
    std::fs::create_dir_all(&toolchain.root).context("cannot make the toolchain's directory")?;
    for deb in std::fs::read_dir(&debs).context("cannot list the packages")?.flatten() {
        succeed(Command::new("dpkg").arg("-x").arg(deb.path()).arg(&toolchain.root))?;
    }
    Ok(works(&toolchain).then_some(toolchain))
}

/// The first dependency of a Debian package whose name starts so.
fn dependency(package: &str, start: &str) -> Result<String> {
    let shown = output_of(Command::new("apt-cache").args(["show", package]))?;
    let found = named(&shown, start).with_context(|| format!("{package} depends on no {start}"))?;
    Ok(found.to_owned())
}

/// The same, in the output of `apt-cache show`. The newest version is the first.
fn named<'a>(shown: &'a str, start: &str) -> Option<&'a str> {
    let mut lines = shown.lines().filter_map(|line| line.strip_prefix("Depends: "));
    let names = lines.next()?.split(", ").filter_map(|dependency| dependency.split(' ').next());
    names.into_iter().find(|name| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn dependency_of_the_newest_version_is_found() {
        let shown = "Package: a\nDepends: libc6 (>= 2.36), libllvm22 (>= 1:22), zlib1g\nSize: 1\n\n\
                     Package: a\nDepends: libllvm19\n";
        assert_eq!(named(shown, "libllvm"), Some("libllvm22"));
        assert_eq!(named(shown, "libstd-rust"), None);
    }
}
