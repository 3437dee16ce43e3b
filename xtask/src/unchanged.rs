//! The soak of `foreread run`: programs of Debian and readers of PyPI see the same with copies of
//! none, half and all of their files.
//!
//! Decision: the readers have an environment of their own, and the programs are installed as they
//! are released. The price is 3 GB, so only soaks run these tests.

use anyhow::Result;

use crate::cargo::{self, run, run_tests};
use crate::needs::{NEEDS, NeedSource};
use crate::results::Results;
use crate::steps::TestRun;
use crate::summary::StepOutcome;
use crate::{install, python};

/// The soak's name.
pub const SOAK: &str = "unchanged: programs of Debian and readers of PyPI";

/// The step name of the programs and readers.
pub const STEP: &str = "soak --only unchanged";

/// The tests.
const TESTS: &[&str] = &["tests/unchanged_programs.py", "tests/unchanged_packages.py"];

/// The variable with the path of the command.
const PROGRAM: &str = "FOREREAD_TEST_PROGRAM";

/// The readers' environment, below the target directory.
const READERS_AT: &str = "readers";

/// The readers, and pytest. TensorFlow and DALI have processors only.
pub const READERS: NeedSource = NeedSource::Environment {
    directory: READERS_AT,
    with_system: false,
    packages: &[
        "tensorflow-cpu==2.21.0",
        "nvidia-dali-cuda120==2.4.0",
        "opencv-python-headless==5.0.0.93",
        "webdataset==1.0.2",
        "safetensors==0.8.0",
        "tifffile==2026.3.3",
        "pillow==13.0.0",
        "numpy==2.4.6",
        "pytest==9.2.0",
    ],
};

/// The programs, and compilers of programs.
pub const PROGRAMS: NeedSource = NeedSource::Ways {
    ways: &["env"],
    // BusyBox must be static.
    script: "rsync --version && git --version && perl -v && node --version && javac --version && go version \
             && musl-gcc --version && busybox true && ! ldd $(command -v busybox)",
    packages: &[
        "rsync",
        "git",
        "perl",
        "nodejs",
        "default-jdk-headless",
        "golang-go",
        "musl-tools",
        "busybox-static",
    ],
    remedy: "sudo apt-get install rsync git perl nodejs default-jdk-headless golang-go musl-tools \
             busybox-static",
};

/// Builds the command and runs the tests with it.
pub fn check(of: &TestRun<'_>, results: &mut Results) -> Result<StepOutcome> {
    let missing = || NEEDS.iter().find(|need| need.step == STEP && need.find(of.workspace).is_none());
    if missing().is_some() {
        // A failed installation is detected below.
        let _ = install::everything(of.workspace, &[STEP]);
    }
    if let Some(need) = missing() {
        return Ok(StepOutcome::Skipped(need.line()));
    }
    if !run(&mut cargo::cargo(of.workspace, ["build", "--package", "foreread-cli"]))? {
        return Ok(StepOutcome::Ran(false));
    }
    let mut tests = python::tests(of, READERS_AT);
    tests.arg("-s").args(TESTS).env(PROGRAM, of.workspace.target.join("debug/foreread"));
    Ok(StepOutcome::Ran(run_tests(&mut tests, results, &mut std::io::stdout().lock())?))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tests_of_unchanged_programs_are_in_the_list() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/python");
        let files = std::fs::read_dir(package.join("tests")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut found: Vec<_> = names
            .filter(|name| name.starts_with("unchanged_") && name.ends_with(".py"))
            .map(|name| format!("tests/{name}"))
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(found, TESTS);
        let serving = std::fs::read_to_string(package.join("tests/serving.py")).unwrap();
        assert!(serving.contains(PROGRAM), "the tests read another variable");
    }
}
