//! The Python wheel for this machine's architecture, and its bill of materials.
//!
//! Decision: zig is the linker, with the symbols of glibc 2.17. That is the oldest glibc that
//! Rust's standard library supports, and the one of CentOS 7. So one wheel serves every Linux since
//! 2014, without a build container. The price is a C compiler (clang) other than the one of the
//! tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{DIRECTORY, Part, Release, missing_tools, output_of, scratch, succeed};

/// The wheel's platform: glibc 2.17.
const PLATFORM: &str = "manylinux_2_17";

/// Builds and checks the wheel.
pub fn make(release: &Release<'_>) -> Result<Part> {
    if let Some(missing) = missing_tools(release.workspace) {
        return Ok(Part::Skipped(missing));
    }
    build(release, &mut maturin(release, super::binary::TARGET))
}

/// The command that builds a wheel for a target. Its output directory is left to [`build`].
pub fn maturin(release: &Release<'_>, target: &str) -> Command {
    let tools = release.workspace.environment(DIRECTORY).join("bin");
    let mut maturin = Command::new(tools.join("maturin"));
    maturin.args(["build", "--release", "--locked", "--zig", "--compatibility", PLATFORM]);
    maturin.args(["--target", target]).current_dir(&release.workspace.root);
    // The linker is the environment's `python -m ziglang`.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(tools).chain(std::env::split_paths(&path));
    maturin.env("PATH", std::env::join_paths(paths).unwrap_or(path));
    maturin.env("CARGO_TARGET_DIR", &release.workspace.target);
    maturin
}

/// Runs such a command, checks the wheel's platform, and moves it to the packages.
pub fn build(release: &Release<'_>, maturin: &mut Command) -> Result<Part> {
    let made = scratch(release.workspace, "wheel")?;
    succeed(maturin.arg("--out").arg(&made))?;
    let wheel = only_file(&made)?;
    let tools = release.workspace.environment(DIRECTORY).join("bin");
    let shown = output_of(Command::new(tools.join("auditwheel")).arg("show").arg(&wheel))?;
    let Some(platform) = platform(&shown) else {
        bail!("auditwheel names no platform: {shown}");
    };
    if !platform.starts_with(PLATFORM) {
        bail!("the wheel needs {platform}, a newer glibc than {PLATFORM}: {shown}");
    }
    let name = wheel.file_name().context("the wheel has no name")?;
    let kept = release.output.join(name);
    std::fs::rename(&wheel, &kept).context("cannot keep the wheel")?;
    Ok(Part::Made(kept, format!("CPython 3.11 and newer, {platform} by auditwheel")))
}

/// The platform in the output of `auditwheel show`: the first quoted word after the tag's heading.
fn platform(shown: &str) -> Option<&str> {
    let after = shown.split_once("platform tag:").map(|(_, after)| after)?;
    after.split('"').nth(1)
}

fn only_file(directory: &Path) -> Result<PathBuf> {
    let mut files = std::fs::read_dir(directory).context("cannot list what was built")?;
    let first = files.next().context("nothing was built")??.path();
    Ok(first)
}

/// The list of all that was compiled into the wheel, with versions and licences. maturin writes it
/// in CycloneDX's format. The other packages contain a part of the same.
pub fn bill_of_materials(release: &Release<'_>) -> Result<Part> {
    let wheel = wheel_for(release, "x86_64");
    let Some(wheel) = wheel else {
        return Ok(Part::Skipped("needs the wheel: `cargo xtask dist`".to_owned()));
    };
    let python = release.workspace.environment(DIRECTORY).join("bin/python");
    let script = "import sys, zipfile\n\
        wheel = zipfile.ZipFile(sys.argv[1])\n\
        (name,) = (name for name in wheel.namelist() if name.endswith('.cyclonedx.json'))\n\
        sys.stdout.write(wheel.read(name).decode())";
    let text = output_of(Command::new(python).args(["-c", script]).arg(wheel))?;
    let parsed: serde_json::Value = serde_json::from_str(&text).context("it is no JSON")?;
    let count = parsed["components"].as_array().map_or(0, Vec::len);
    let path = release.output.join(format!("foreread-{}.cyclonedx.json", release.version));
    std::fs::write(&path, text).context("cannot write it")?;
    Ok(Part::Made(path, format!("{count} components, CycloneDX, for the wheel")))
}

/// The wheel of this version for an architecture, if it was made.
pub fn wheel_for(release: &Release<'_>, architecture: &str) -> Option<PathBuf> {
    let start = format!("foreread-{}-", release.version);
    let files = std::fs::read_dir(&release.output).ok()?.flatten().map(|file| file.path());
    let mut wheels = files.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&start) && name.ends_with(&format!("{architecture}.whl"))
    });
    wheels.next()
}

#[cfg(test)]
mod tests {
    use super::platform;

    #[test]
    fn platform_is_found_in_the_output_of_auditwheel() {
        let shown = "\na.whl is consistent with\nthe following platform tag: \"manylinux_2_17_x86_64\".\n\n\
                     The wheel references external versioned symbols: \"libc.so.6\"";
        assert_eq!(platform(shown), Some("manylinux_2_17_x86_64"));
        assert_eq!(platform("nothing of the kind"), None);
    }
}
