//! Soak tests of the Python package: other frameworks, newest releases, long runs.
//!
//! Decision: the newest PyTorch is tested here and not in the `python` step. Its wheel for Linux
//! contains CUDA: 7.5 GB and two minutes to fetch and unpack on every machine that runs all tests.
//! The price is that only soak runs detect breakage by a new release.

use anyhow::Result;

use crate::cargo::run_tests;
use crate::needs::{NEEDS, NeedSource};
use crate::results::Results;
use crate::steps::TestRun;
use crate::summary::StepOutcome;
use crate::{install, python};

/// The step name of needs that only soaks have.
pub const STEP: &str = "soak";

/// The frameworks' environment, below the target directory.
const DIRECTORY: &str = "frameworks";

/// Its packages: the frameworks of `docs/frameworks.md`, and imports of the package's tests.
pub const FRAMEWORKS: NeedSource = NeedSource::Environment {
    directory: DIRECTORY,
    with_system: false,
    packages: &[
        "torch==2.15.0",
        "torchvision==0.29.2",
        "accelerate==1.15.0",
        "lightning==2.6.6",
        "transformers==5.24.0",
        "torchdata==0.11.0",
        "jax==0.10.2",
        "tensorflow-cpu==2.21.0",
        "grain==0.2.18",
        "nvidia-dali-cuda120==2.4.0",
        "datasets==5.2.0",
        "pytest==9.2.0",
    ],
};

/// A soak test of the package.
#[derive(Debug)]
pub struct Soak {
    /// Its name.
    pub name: &'static str,
    /// The virtual environment that it runs in.
    environment: &'static str,
    /// Additional features of its wheel, and the build directory.
    features: &'static [&'static str],
    wheels: &'static str,
    /// Whether the variable for long runs is set.
    long: bool,
    /// The arguments of pytest.
    tests: &'static [&'static str],
}

/// All soak tests of the package.
pub const SOAKS: &[Soak] = &[
    Soak {
        name: "worker processes of Python and PyTorch, started and ended 200 times",
        environment: python::DIRECTORY,
        features: &[],
        wheels: "wheels",
        long: true,
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
        long: false,
        tests: &[
            "tests/test_dali.py",
            "tests/test_documents.py",
            "tests/test_frameworks.py",
            "tests/test_grain.py",
            "tests/test_huggingface.py",
            "tests/test_images.py",
            "tests/test_tensorflow.py",
            "tests/test_torch_loader.py",
            "tests/test_torch_training.py",
            "tests/test_torch_workers.py",
            "tests/test_torch_wrap.py",
        ],
    },
    Soak {
        name: "docs: their Python blocks, commands, links and spelling",
        environment: python::DIRECTORY,
        features: &[],
        wheels: "wheels",
        long: false,
        tests: &["tests/test_commands.py", "tests/test_documents.py", "tests/test_texts.py"],
    },
    Soak {
        name: "a wheel with OpenDAL's stores",
        environment: python::DIRECTORY,
        features: &["opendal"],
        wheels: "wheels-opendal",
        long: false,
        tests: &["tests/opendal_wheel.py"],
    },
];

impl Soak {
    /// Builds and installs the wheel and runs the tests. `variable` selects long runs.
    pub fn run(&self, of: &TestRun<'_>, variable: &str, results: &mut Results) -> Result<StepOutcome> {
        let missing = || {
            let own = NEEDS.iter().filter(|need| match need.source {
                NeedSource::Environment { directory, .. } => directory == self.environment,
                _ => false,
            });
            python::needs_of_environment().chain(own).find(|need| need.find(of.workspace).is_none())
        };
        if missing().is_some_and(|need| need.step == STEP) {
            // A failed installation is detected below.
            let _ = install::everything(of.workspace, &[STEP]);
        }
        if let Some(need) = missing() {
            return Ok(StepOutcome::Skipped(need.line()));
        }
        let Some(wheel) = python::wheel(of.workspace, self.wheels, self.features)? else {
            return Ok(StepOutcome::Ran(false));
        };
        if !python::install(of.workspace, self.environment, &wheel)? {
            return Ok(StepOutcome::Ran(false));
        }
        let mut tests = python::tests(of, self.environment);
        tests.args(self.tests).env_remove(variable).envs(self.long.then_some((variable, "1")));
        Ok(StepOutcome::Ran(run_tests(&mut tests, results, &mut std::io::stdout().lock())?))
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
    fn tests_of_the_table_exist() {
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
    fn long_python_tests_are_in_the_table() {
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
    fn framework_packages_are_pinned_needs() {
        let named = |need: &&crate::needs::Need| match need.source {
            NeedSource::Environment { directory, .. } => directory == DIRECTORY,
            _ => false,
        };
        assert_eq!(NEEDS.iter().filter(named).map(|need| need.step).collect::<Vec<_>>(), [STEP]);
    }
}
