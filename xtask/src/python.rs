//! The Python package's step: build the wheel, install it where a user would, check its types, run
//! its tests.
//!
//! The wheel is built with the profile and target directory of all other steps, so that
//! dependencies are compiled once. The environment sees Debian's packages, because Debian's PyTorch
//! is much smaller than the registry's. Warnings are errors in the tests. They also get the path of
//! the wheel, and some install it into an empty environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::background::StepCommand;
use crate::cargo::{run, run_tests};
use crate::needs::{self, Need, NeedSource};
use crate::results::Results;
use crate::second_attempt;
use crate::steps::TestRun;
use crate::summary::StepOutcome;
use crate::workspace::Workspace;

/// The step's virtual environment below the target directory, with maturin.
pub const DIRECTORY: &str = "python";

/// Its pinned packages. NumPy is the newest that Debian's PyTorch supports, and the others are the
/// newest that support this NumPy.
pub const ENVIRONMENT: NeedSource = NeedSource::Environment {
    directory: DIRECTORY,
    with_system: true,
    packages: &[
        "maturin==1.16.0",
        "pytest==9.2.0",
        "pytest-xdist==3.8.0",
        "mypy==2.4.1",
        "numpy==1.26.4",
        "pandas==2.3.3",
        "pyarrow==21.0.0",
        "tqdm==4.70.1",
        // Writers of packed formats.
        "h5py==3.16.0",
        "lmdb==3.0.0",
        // The site of the guides, manifests for Kubernetes, and spelling.
        "mkdocs-material==9.8.2",
        "kubernetes-validate==1.37.0",
        "typos==1.52.0",
    ],
};

/// The package.
const PACKAGE: &str = "crates/python";

/// The directory of the step's wheel below the target directory.
const WHEELS: &str = "wheels";

/// Builds, installs and tests the package. Skipped without `--all`.
pub fn run_step(of: &TestRun<'_>, results: &mut Results) -> Result<StepOutcome> {
    if let Err(missing) = find_needs(of) {
        return Ok(StepOutcome::Skipped(missing));
    }
    let Some(wheel) = wheel(of.workspace, WHEELS, &[])? else { return Ok(StepOutcome::Ran(false)) };
    let there = install(of.workspace, DIRECTORY, &wheel)?
        && run(python(of.workspace, DIRECTORY).args(["-m", "mypy", "--config-file"]).args(TYPES))?
        && run(python(of.workspace, DIRECTORY).args(["-m", "mypy.stubtest"]).args(STUBS))?;
    if !there {
        return Ok(StepOutcome::Ran(false));
    }
    let mut tests = tests(of, DIRECTORY);
    // Tests of other frameworks are soak tests.
    tests.args(["-m", "not frameworks", "tests"]).env("FOREREAD_TEST_WHEEL", &wheel);
    // Most of a test's time is spent waiting for processes that import PyTorch.
    tests.args(["--dist", "load", "--tx"]).arg(workers(of.workspace));
    let out = &mut std::io::stdout().lock();
    let alone = |paths: &[&str]| {
        let mut alone = self::tests(of, DIRECTORY);
        alone.args(paths).env("FOREREAD_TEST_WHEEL", &wheel);
        alone
    };
    let passed = run_tests(&mut tests, results, out)? || second_attempt::run(results, alone, out)?;
    Ok(StepOutcome::Ran(passed))
}

/// The command that builds the wheel: what it compiles, the whole step has then compiled already.
pub fn wheel_command(of: &TestRun<'_>) -> StepCommand {
    find_needs(of)?;
    Ok(build_wheel(of.workspace, &of.workspace.target.join(WHEELS), &[]))
}

/// What the package's tests import, and what builds the wheel: all needs of the step but the rights
/// and servers of single tests. Soaks need these too.
pub fn needs_of_environment() -> impl Iterator<Item = &'static Need> {
    let needs = needs::NEEDS.iter().filter(|need| need.step == "python");
    needs.filter(|need| !matches!(need.source, NeedSource::Ways { .. }))
}

/// Fails with the first missing tool of the step. Without `--all`, always fails with all of them.
fn find_needs(of: &TestRun<'_>) -> Result<(), String> {
    let needs = || needs::NEEDS.iter().filter(|need| need.step == "python");
    if !of.all {
        let lines: Vec<_> = needs().map(|need| format!("{} (`{}`)", need.name, need.how_to_get())).collect();
        return Err(format!("needs {}; `cargo xtask test --all` gets them", lines.join(", ")));
    }
    let missing = needs().find(|need| need.find(of.workspace).is_none());
    missing.map_or(Ok(()), |missing| Err(missing.line()))
}

const TYPES: &[&str] = &["pyproject.toml", "-p", "foreread"];
const STUBS: &[&str] =
    &["--mypy-config-file=pyproject.toml", "--allowlist=crates/python/stubtest.txt", "foreread._native"];

/// Python's options for tests: development mode, and warnings are errors.
const STRICT: &[&str] = &["-X", "dev", "-W", "error"];

/// An environment's Python at the root of the workspace. It imports installed packages only and
/// writes no files.
fn python(workspace: &Workspace, environment: &str) -> Command {
    let mut command = Command::new(program(workspace, environment, "python"));
    command.current_dir(&workspace.root).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    command.env("MYPY_CACHE_DIR", workspace.target.join("mypy")).env_remove("FOREREAD_TEST_WHEEL");
    command
}

fn program(workspace: &Workspace, environment: &str, name: &str) -> PathBuf {
    workspace.environment(environment).join("bin").join(name)
}

/// The package's tests in an environment. The caller selects them.
pub fn tests(of: &TestRun<'_>, environment: &str) -> Command {
    let mut tests = python(of.workspace, environment);
    tests.args(STRICT).args(["-m", "pytest", "-rfEs", "-p", "no:cacheprovider", "--quiet"]);
    of.seed.export(&mut tests);
    tests.arg("--config-file=../../pyproject.toml").current_dir(of.workspace.root.join(PACKAGE));
    tests
}

/// Two processes of pytest-xdist for each core, which run tests with the same warnings as errors.
fn workers(workspace: &Workspace) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let python = program(workspace, DIRECTORY, "python");
    format!("{}*popen//python='{}' {}", 2 * cores, python.display(), STRICT.join(" "))
}

/// The environment's Python, with the wheel of this checkout. `cargo xtask test --all` makes the
/// environment.
pub fn installed(workspace: &Workspace) -> Result<Command> {
    let wheel = wheel(workspace, WHEELS, &[])?.context("the wheel cannot be built")?;
    ensure!(install(workspace, DIRECTORY, &wheel)?, "the wheel cannot be installed");
    Ok(python(workspace, DIRECTORY))
}

/// Builds the wheel with additional features into an empty directory below the target directory.
/// None on failure.
pub fn wheel(workspace: &Workspace, directory: &str, features: &[&str]) -> Result<Option<PathBuf>> {
    let wheels = workspace.target.join(directory);
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("the last wheel cannot be removed")?;
    }
    let mut build = build_wheel(workspace, &wheels, features);
    if !run(&mut build)? {
        return Ok(None);
    }
    let mut made = std::fs::read_dir(&wheels).context("there are no wheels")?;
    let made = made.next().context("there is no wheel")?;
    Ok(Some(made.context("the wheel cannot be found")?.path()))
}

fn build_wheel(workspace: &Workspace, wheels: &Path, features: &[&str]) -> Command {
    let mut build = Command::new(program(workspace, DIRECTORY, "maturin"));
    build.args(["build", "--profile", "dev", "--locked", "--compatibility", "linux", "--manifest-path"]);
    build.arg(format!("{PACKAGE}/Cargo.toml")).arg("--out").arg(wheels).current_dir(&workspace.root);
    build.arg("--interpreter").arg(program(workspace, DIRECTORY, "python"));
    build.args(features.iter().flat_map(|feature| ["--features", feature]));
    build.env("CARGO_TARGET_DIR", &workspace.target);
    build
}

/// Installs the wheel in an environment, replacing the previous one. True on success.
pub fn install(workspace: &Workspace, environment: &str, wheel: &Path) -> Result<bool> {
    let mut install = python(workspace, environment);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    run(install.arg("--force-reinstall").arg(wheel))
}
