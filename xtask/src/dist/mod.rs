//! `cargo xtask dist`: what a release consists of, each with its checksum.
//!
//! Decision: every part is one command of a usual tool (maturin, Cargo, git, buildah), so that a
//! release can be repeated by hand. A part whose tool is missing is skipped with the command that
//! makes it, and the others are still made. The price is that only a look at the table shows
//! whether a release is complete; `--all` refuses an incomplete one.

mod aarch64;
mod binary;
mod image;
mod source;
mod wheel;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::needs::{NEEDS, NeedSource};
use crate::results::Results;
use crate::steps::TestRun;
use crate::summary::StepOutcome;
use crate::workspace::Workspace;
use crate::{cargo, install, python};

/// The step name of needs that only this command has.
pub const STEP: &str = "dist";

/// The soak that makes, installs and runs the packages.
pub const SOAK: &str = "dist: packages are made, installed and run";

/// The environment of the packaging tools, below the target directory.
const DIRECTORY: &str = "dist-tools";

/// Its packages: a builder of wheels, a linker with the symbols of old glibcs, a check of the
/// result.
pub const ENVIRONMENT: NeedSource = NeedSource::Environment {
    directory: DIRECTORY,
    with_system: false,
    packages: &["maturin==1.16.0", "ziglang==0.17.1", "auditwheel==6.8.2"],
};

/// Where the soak's tests find the packages.
const VARIABLE: &str = "FOREREAD_DIST";

/// Arguments of `dist`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Make only the parts whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,
    /// Fail if a part was skipped
    #[arg(long)]
    all: bool,
}

/// What the parts need to know.
#[derive(Debug)]
struct Release<'a> {
    workspace: &'a Workspace,
    /// The package version.
    version: String,
    /// The directory of the finished packages.
    output: PathBuf,
}

/// How a part ended.
#[derive(Debug)]
enum Part {
    /// The file that was made, and one line about it.
    Made(PathBuf, String),
    /// Why it was not made, with the command that makes it.
    Skipped(String),
}

type Maker = fn(&Release<'_>) -> Result<Part>;

/// All parts. The image contains the binary, and the bill of materials comes from the wheel.
const PARTS: &[(&str, Maker)] = &[
    ("source", source::make),
    ("wheel for x86-64", wheel::make),
    ("wheel for aarch64", aarch64::make),
    ("bill of materials", wheel::bill_of_materials),
    ("static binary", binary::make),
    ("container image", image::make),
    ("Apptainer definition", image::apptainer),
];

/// Makes the chosen parts; true if none failed.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let (table, complete) = make(&workspace, args.only.as_deref())?;
    print!("\n{table}");
    Ok(complete || !args.all)
}

/// Makes the parts whose name contains `only`. The table of all, and whether none was skipped.
fn make(workspace: &Workspace, only: Option<&str>) -> Result<(String, bool)> {
    // What cannot be installed is reported by the part that needs it.
    let _ = install::everything(workspace, &[STEP]);
    let output = workspace.target.join("dist");
    std::fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let release = Release { workspace, version: env!("CARGO_PKG_VERSION").to_owned(), output };
    let chosen: Vec<_> =
        PARTS.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    if chosen.is_empty() {
        let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
        bail!("no part's name contains what was given; they are: {}", names.join("; "));
    }
    let mut made = Vec::new();
    for (name, maker) in chosen {
        println!("\n== {name}");
        made.push((*name, maker(&release).with_context(|| format!("{name} cannot be made"))?));
    }
    let files: Vec<&Path> = made.iter().filter_map(|(_, part)| part.file()).collect();
    let sums = checksums(&release.output, &files)?;
    let complete = made.iter().all(|(_, part)| part.file().is_some());
    Ok((table(&made, &sums)?, complete))
}

impl Part {
    fn file(&self) -> Option<&Path> {
        match self {
            Part::Made(file, _) => Some(file),
            Part::Skipped(_) => None,
        }
    }
}

/// The SHA-256 of each file in order, also written to `SHA256SUMS` next to them.
fn checksums(output: &Path, files: &[&Path]) -> Result<Vec<String>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let names = files.iter().filter_map(|file| file.file_name());
    let text = output_of(Command::new("sha256sum").args(names).current_dir(output))?;
    std::fs::write(output.join("SHA256SUMS"), &text).context("cannot write SHA256SUMS")?;
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// A line for each part: name, size, checksum, file, and what is to be known about it.
fn table(made: &[(&str, Part)], sums: &[String]) -> Result<String> {
    let mut text = String::new();
    let mut sums = sums.iter();
    for (name, part) in made {
        match part {
            Part::Made(file, note) => {
                let size =
                    std::fs::metadata(file).with_context(|| format!("{} is gone", file.display()))?.len();
                let sum = sums.next().map(String::as_str).unwrap_or_default();
                let shown = file.file_name().unwrap_or_default().to_string_lossy();
                writeln!(text, "{name:22}{:>7.1} MB  {shown}: {note}", size as f64 / 1e6)?;
                writeln!(text, "{:34}sha256 {sum}", "")?;
            }
            Part::Skipped(reason) => writeln!(text, "{name:22}skipped     {reason}")?,
        }
    }
    Ok(text)
}

/// Makes all parts and runs the tests of the packages: `cargo xtask soak --only dist`.
pub fn check(of: &TestRun<'_>, results: &mut Results) -> Result<StepOutcome> {
    let (table, _) = make(of.workspace, None)?;
    print!("\n{table}");
    if let Some(need) = python::needs_of_environment().find(|need| need.find(of.workspace).is_none()) {
        return Ok(StepOutcome::Skipped(need.line()));
    }
    let mut tests = python::tests(of, python::DIRECTORY);
    tests.arg("tests/dist_packages.py").env(VARIABLE, of.workspace.target.join("dist"));
    Ok(StepOutcome::Ran(cargo::run_tests(&mut tests, results, &mut std::io::stdout().lock())?))
}

/// Runs a command whose failure ends the part.
fn succeed(command: &mut Command) -> Result<()> {
    if !cargo::run(command)? {
        bail!("`{}` failed", cargo::shown(command));
    }
    Ok(())
}

/// The standard output of a command that succeeds.
fn output_of(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| cargo::cannot_start(command))?;
    if !done.status.success() {
        bail!("`{}` failed: {}", cargo::shown(command), String::from_utf8_lossy(&done.stderr));
    }
    String::from_utf8(done.stdout).with_context(|| format!("`{}` prints no text", cargo::shown(command)))
}

/// An empty directory below the target directory.
fn scratch(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let path = workspace.target.join("dist-scratch").join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).with_context(|| format!("cannot empty {}", path.display()))?;
    }
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// The line of the packaging tools' need, if they are missing.
fn missing_tools(workspace: &Workspace) -> Option<String> {
    let tools = NEEDS.iter().filter(|need| need.step == STEP);
    let mut tools = tools.filter(|need| matches!(need.source, NeedSource::Environment { .. }));
    tools.find(|need| need.find(workspace).is_none()).map(crate::needs::Need::line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_sizes_sums_and_skipped_parts() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.whl");
        std::fs::write(&file, vec![0; 1_500_000]).unwrap();
        let sums = checksums(directory.path(), &[&file]).unwrap();
        let made = [
            ("wheel", Part::Made(file, "glibc 2.17".to_owned())),
            ("image", Part::Skipped("needs buildah".to_owned())),
        ];
        let table = table(&made, &sums).unwrap();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[0], "wheel                     1.5 MB  a.whl: glibc 2.17");
        // sha256sum's result for 1.5 million zeros.
        let listed = std::fs::read_to_string(directory.path().join("SHA256SUMS")).unwrap();
        assert_eq!(listed, format!("{}  a.whl\n", sums[0]));
        assert_eq!(lines[1].trim(), format!("sha256 {}", sums[0]));
        assert_eq!(lines[2], "image                 skipped     needs buildah");
    }

    #[test]
    fn failed_command_is_reported_with_its_errors() {
        let error = output_of(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("failed: why"), "{error}");
    }
}
