//! The Python package's step: build the wheel, install it where a user would, check its types, run its tests.
//!
//! The wheel is built in the profile and the target directory of all other steps, so that dependencies are compiled once. The
//! environment sees Debian's packages: its PyTorch is there, and nothing has to be fetched that is larger than all else.
//! The tests are told to take every warning for an error, as a user's own may.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{run, run_tests};
use crate::needs::{self, Source};
use crate::results::Results;
use crate::steps::Run;
use crate::tally::Outcome;
use crate::workspace::Workspace;

/// The step's environment, below the target directory, and what it has, pinned. NumPy is the newest that Debian's PyTorch
/// can be used with, and the others the newest that can be used with that.
pub const ENVIRONMENT: Source = Source::Environment {
    directory: "python",
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
    let wheels = of.workspace.target.join("wheels");
    let there = install(of.workspace, &wheels)?
        && run(python(of.workspace).args(["-m", "mypy", "--config-file"]).args(TYPES))?
        && run(python(of.workspace).args(["-m", "mypy.stubtest"]).args(STUBS))?;
    if !there {
        return Ok(Outcome::Ran(false));
    }
    let mut tests = python(of.workspace);
    tests.args(["-X", "dev", "-W", "error", "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--quiet"]);
    of.seed.export(&mut tests);
    tests.arg("--config-file=pyproject.toml").arg("tests").current_dir(of.workspace.root.join(PACKAGE));
    Ok(Outcome::Ran(run_tests(&mut tests, results, &mut std::io::stdout().lock())?))
}

const TYPES: &[&str] = &["crates/python/pyproject.toml", "-p", "foreread"];
const STUBS: &[&str] = &[
    "--mypy-config-file=crates/python/pyproject.toml",
    "--allowlist=crates/python/stubtest.txt",
    "foreread._native",
];

/// The environment's Python, at the root of the workspace. What it imports is what is installed, and it leaves nothing behind.
fn python(workspace: &Workspace) -> Command {
    let mut command = Command::new(program(workspace, "python"));
    command.current_dir(&workspace.root).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
    command.env("MYPY_CACHE_DIR", workspace.target.join("mypy"));
    command
}

fn program(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.environment("python").join("bin").join(name)
}

/// Builds the wheel and installs it in the place of the last one; true when both succeeded.
fn install(workspace: &Workspace, wheels: &Path) -> Result<bool> {
    if wheels.exists() {
        std::fs::remove_dir_all(wheels).context("the last wheel cannot be removed")?;
    }
    let mut build = Command::new(program(workspace, "maturin"));
    build.args(["build", "--profile", "dev", "--locked", "--compatibility", "linux", "--manifest-path"]);
    build.arg(format!("{PACKAGE}/Cargo.toml")).arg("--out").arg(wheels).current_dir(&workspace.root);
    build.arg("--interpreter").arg(program(workspace, "python"));
    build.env("CARGO_TARGET_DIR", &workspace.target);
    if !run(&mut build)? {
        return Ok(false);
    }
    let made = std::fs::read_dir(wheels).context("there are no wheels")?;
    let mut install = python(workspace);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    install.arg("--force-reinstall");
    for wheel in made {
        install.arg(wheel.context("the wheel cannot be found")?.path());
    }
    run(&mut install)
}
