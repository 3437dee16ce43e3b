//! The Python package's soaks: what needs more than its step has, or longer.
//!
//! Decision: the newest PyTorch is here and not in the step. The wheel that the registry has for Linux brings CUDA along, so
//! that the environment takes 7.5 GB and two minutes to fetch and unpack, on every machine that runs all tests. The price
//! is that what a new release breaks is seen by whoever runs the soaks.

use anyhow::Result;

use crate::cargo::run_tests;
use crate::needs::{NEEDS, Source};
use crate::results::Results;
use crate::steps::Run;
use crate::tally::Outcome;
use crate::{install, python};

/// The name by which needs refer to what soaks alone need.
pub const STEP: &str = "soak";

/// The frameworks' environment, below the target directory.
const DIRECTORY: &str = "frameworks";

/// What it has: what `docs/frameworks.md` is about, and what the package's own tests import.
pub const FRAMEWORKS: Source = Source::Environment {
    directory: DIRECTORY,
    with_system: false,
    packages: &[
        "torch==2.15.0",
        "torchvision==0.29.2",
        "accelerate==1.15.0",
        "lightning==2.6.6",
        "jax==0.10.2",
        "tensorflow-cpu==2.21.0",
        "pytest==9.2.0",
    ],
};

/// A soak of the package.
#[derive(Debug)]
pub struct Soak {
    /// What it does.
    pub name: &'static str,
    /// The environment that it runs in.
    environment: &'static str,
    /// Features that its wheel has beside its own, and where that is built.
    features: &'static [&'static str],
    wheels: &'static str,
    /// What pytest is told to run.
    tests: &'static [&'static str],
}

/// All of them.
pub const SOAKS: &[Soak] = &[
    Soak {
        name: "worker processes of Python and PyTorch, started and ended 200 times",
        environment: python::DIRECTORY,
        features: &[],
        wheels: "wheels",
        tests: &[
            "-s",
            "tests/test_torch_workers.py::test_starting_and_ending_leaves_nothing",
            "tests/test_share.py::test_workers_come_and_go_and_leave_nothing",
        ],
    },
    Soak {
        name: "the newest PyTorch, and frameworks",
        environment: DIRECTORY,
        features: &[],
        wheels: "wheels",
        tests: &[
            "tests/test_documents.py",
            "tests/test_frameworks.py",
            "tests/test_torch_loader.py",
            "tests/test_torch_training.py",
            "tests/test_torch_workers.py",
            "tests/test_torch_wrap.py",
        ],
    },
    Soak {
        name: "a wheel with OpenDAL's stores",
        environment: python::DIRECTORY,
        features: &["opendal"],
        wheels: "wheels-opendal",
        tests: &["tests/opendal_wheel.py"],
    },
];

impl Soak {
    /// Builds the wheel, installs it and runs the tests, which are told that it may take long (`variable`).
    pub fn run(&self, of: &Run<'_>, variable: &str, results: &mut Results) -> Result<Outcome> {
        let missing = || {
            let mut needs = NEEDS.iter().filter(|need| match need.source {
                Source::Environment { directory, .. } => {
                    [python::DIRECTORY, self.environment].contains(&directory)
                }
                _ => need.step == python::DIRECTORY,
            });
            needs.find(|need| need.find(of.workspace).is_none())
        };
        if missing().is_some_and(|need| need.step == STEP) {
            // What cannot be fetched is found missing below.
            let _ = install::everything(of.workspace, &[STEP]);
        }
        if let Some(need) = missing() {
            return Ok(Outcome::Skipped(need.line()));
        }
        let Some(wheel) = python::wheel(of.workspace, self.wheels, self.features)? else {
            return Ok(Outcome::Ran(false));
        };
        if !python::install(of.workspace, self.environment, &wheel)? {
            return Ok(Outcome::Ran(false));
        }
        let mut tests = python::tests(of, self.environment);
        tests.args(self.tests).env(variable, "1");
        Ok(Outcome::Ran(run_tests(&mut tests, results, &mut std::io::stdout().lock())?))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn tests_of_python() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/python/tests")
    }

    #[test]
    fn the_tests_in_the_table_are_there() {
        for word in SOAKS
            .iter()
            .flat_map(|soak| soak.tests)
            .filter(|word| word.ends_with(".py") || word.contains("::"))
        {
            let (file, test) = word.split_once("::").unwrap_or((word, ""));
            let path = tests_of_python().join("..").join(file);
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(text.contains(&format!("def {test}")), "{word}");
        }
    }

    #[test]
    fn each_test_of_python_that_can_be_long_is_in_the_table() {
        let long = std::fs::read_dir(tests_of_python()).unwrap().map(|entry| entry.unwrap().path());
        let long: Vec<_> = long
            .filter(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("FOREREAD_SOAK")))
            .map(|path| format!("tests/{}::", path.file_name().unwrap().to_str().unwrap()))
            .collect();
        assert!(!long.is_empty(), "none was found: are they read otherwise now?");
        for file in long {
            assert!(SOAKS.iter().flat_map(|soak| soak.tests).any(|word| word.starts_with(&file)), "{file}");
        }
    }

    #[test]
    fn every_package_of_the_frameworks_is_pinned_and_in_the_needs() {
        let named = |need: &&crate::needs::Need| matches!(need.source, Source::Environment { directory, .. } if directory == DIRECTORY);
        assert_eq!(NEEDS.iter().filter(named).map(|need| need.step).collect::<Vec<_>>(), [STEP]);
    }
}
