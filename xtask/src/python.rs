//! The Python package's step: build the wheel, install it where a user would, check its types, run its tests.
//!
//! The wheel is built in the profile and the target directory of all other steps, so that dependencies are compiled once. The
//! environment sees Debian's packages: its PyTorch is there, and nothing has to be fetched that is larger than all else.
//! The tests are told to take every warning for an error, as a user's own may; they are told where the wheel is too, and
//! some install it once more, into an environment that has nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{run, run_tests};
use crate::needs::{self, Source};
use crate::results::Results;
use crate::steps::Run;
use crate::tally::Outcome;
use crate::workspace::Workspace;

/// The step's environment below the target directory; what builds wheels is there too.
pub const DIRECTORY: &str = "python";

/// What it has, pinned. NumPy is the newest that Debian's PyTorch
/// can be used with, and the others the newest that can be used with that.
pub const ENVIRONMENT: Source = Source::Environment {
    directory: DIRECTORY,
    with_system: true,
    packages: &[
        "maturin==1.16.0",
        "pytest==9.2.0",
        "mypy==2.4.1",
        "numpy==1.26.4",
        "pandas==2.3.3",
        "pyarrow==21.0.0",
        "tqdm==4.70.1",
    ],
};

/// The package.
const PACKAGE: &str = "crates/python";

/// Builds, installs and tests the package; skipped without `--all`.
pub fn run_step(of: &Run<'_>, results: &mut Results) -> Result<Outcome> {
    let needs = || needs::NEEDS.iter().filter(|need| need.step == "python");
    if !of.all {
        let lines: Vec<_> = needs().map(|need| format!("{} (`{}`)", need.name, need.how_to_get())).collect();
        let lines = lines.join(", ");
        return Ok(Outcome::Skipped(format!("needs {lines}; `cargo xtask test --all` gets them")));
    }
    if let Some(missing) = needs().find(|need| need.find(of.workspace).is_none()) {
        return Ok(Outcome::Skipped(missing.line()));
    }
    let Some(wheel) = wheel(of.workspace, "wheels", &[])? else { return Ok(Outcome::Ran(false)) };
    let there = install(of.workspace, DIRECTORY, &wheel)?
        && run(python(of.workspace, DIRECTORY).args(["-m", "mypy", "--config-file"]).args(TYPES))?
        && run(python(of.workspace, DIRECTORY).args(["-m", "mypy.stubtest"]).args(STUBS))?;
    if !there {
        return Ok(Outcome::Ran(false));
    }
    let mut tests = tests(of, DIRECTORY);
    // What needs frameworks of its own is one of the soaks.
    tests.args(["-m", "not frameworks", "tests"]).env("FOREREAD_TEST_WHEEL", &wheel);
    Ok(Outcome::Ran(run_tests(&mut tests, results, &mut std::io::stdout().lock())?))
}

const TYPES: &[&str] = &["crates/python/pyproject.toml", "-p", "foreread"];
const STUBS: &[&str] = &[
    "--mypy-config-file=crates/python/pyproject.toml",
    "--allowlist=crates/python/stubtest.txt",
    "foreread._native",
];

/// An environment's Python, at the root of the workspace. What it imports is what is installed, and it leaves nothing behind.
fn python(workspace: &Workspace, environment: &str) -> Command {
    let mut command = Command::new(program(workspace, environment, "python"));
    command.current_dir(&workspace.root).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    command.env("MYPY_CACHE_DIR", workspace.target.join("mypy")).env_remove("FOREREAD_TEST_WHEEL");
    command
}

fn program(workspace: &Workspace, environment: &str, name: &str) -> PathBuf {
    workspace.environment(environment).join("bin").join(name)
}

/// The package's tests in an environment; which of them is for the caller to add.
pub fn tests(of: &Run<'_>, environment: &str) -> Command {
    let mut tests = python(of.workspace, environment);
    tests.args(["-X", "dev", "-W", "error", "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--quiet"]);
    of.seed.export(&mut tests);
    tests.arg("--config-file=pyproject.toml").current_dir(of.workspace.root.join(PACKAGE));
    tests
}

/// Builds the wheel with these features beside its own, alone in a directory below the target's; nothing where that failed.
pub fn wheel(workspace: &Workspace, directory: &str, features: &[&str]) -> Result<Option<PathBuf>> {
    let wheels = workspace.target.join(directory);
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).context("the last wheel cannot be removed")?;
    }
    let mut build = Command::new(program(workspace, DIRECTORY, "maturin"));
    build.args(["build", "--profile", "dev", "--locked", "--compatibility", "linux", "--manifest-path"]);
    build.arg(format!("{PACKAGE}/Cargo.toml")).arg("--out").arg(&wheels).current_dir(&workspace.root);
    build.arg("--interpreter").arg(program(workspace, DIRECTORY, "python"));
    build.args(features.iter().flat_map(|feature| ["--features", feature]));
    build.env("CARGO_TARGET_DIR", &workspace.target);
    if !run(&mut build)? {
        return Ok(None);
    }
    let mut made = std::fs::read_dir(&wheels).context("there are no wheels")?;
    let made = made.next().context("there is no wheel")?;
    Ok(Some(made.context("the wheel cannot be found")?.path()))
}

/// Installs the wheel in an environment, in the place of the last one; true when that succeeded.
pub fn install(workspace: &Workspace, environment: &str, wheel: &Path) -> Result<bool> {
    let mut install = python(workspace, environment);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    run(install.arg("--force-reinstall").arg(wheel))
}
