//! The steps of `cargo xtask test`: formatting, then the tests, and lints and checks while they
//! run.
//!
//! All share one build profile and one target directory, so that dependencies are compiled once and
//! checked once.

use std::process::Command;

use anyhow::Result;

use crate::background::StepCommand;
use crate::cargo::{cargo, run, run_tests};
use crate::needs::{self, Need, Tests};
use crate::python;
use crate::results::Results;
use crate::second_attempt;
use crate::seed::Seed;
use crate::service::TestServer;
use crate::summary::StepOutcome;
use crate::workspace::Workspace;

/// The environment variable of Rust's test harness for the number of tests that run at a time.
const THREADS: &str = "RUST_TEST_THREADS";

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestStep {
    /// Source formatting.
    Fmt,
    /// Compiles the tests.
    Build,
    /// Unit tests, integration tests, doctests.
    Test,
    /// Compiles the Python package's wheel.
    Wheel,
    /// The Python package: its wheel, its types, its tests.
    Python,
    /// Lints, all of them errors.
    Clippy,
    /// A package with one feature alone, or none. Features unify across a workspace, which hides
    /// missing ones.
    Feature {
        /// The package.
        package: String,
        /// The feature.
        feature: Option<String>,
    },
    /// The documentation, and its links.
    Doc,
    /// Licences, sources and bans of all dependencies.
    Deny,
}

/// Settings of a run.
#[derive(Debug)]
pub struct TestRun<'a> {
    /// The workspace.
    pub workspace: &'a Workspace,
    /// The seed of randomised tests.
    pub seed: Seed,
    /// Whether tests that need tools run.
    pub all: bool,
    /// The packages whose tests run. Empty for all.
    pub packages: &'a [String],
}

/// All steps of this workspace, in their order.
pub fn list(workspace: &Workspace) -> Vec<TestStep> {
    let mut steps = vec![TestStep::Fmt, TestStep::Build, TestStep::Test];
    steps.extend([TestStep::Wheel, TestStep::Python, TestStep::Clippy]);
    for (package, features) in &workspace.features {
        let alone = std::iter::once(None).chain(features.iter().cloned().map(Some));
        steps.extend(alone.map(|feature| TestStep::Feature { package: package.clone(), feature }));
    }
    steps.extend([TestStep::Doc, TestStep::Deny]);
    steps
}

/// The steps that `--all` alone runs: they need no more than the others, but minutes that a change
/// seldom needs.
pub fn is_left_to_all(step: &TestStep) -> bool {
    matches!(step, TestStep::Wheel | TestStep::Feature { .. } | TestStep::Doc)
}

/// The steps that may run while tests run: they compile only, and no later step uses another's
/// result but for what is compiled already.
pub fn may_run_in_background(step: &TestStep) -> bool {
    use TestStep::{Clippy, Deny, Doc, Feature, Wheel};
    matches!(step, Wheel | Clippy | Feature { .. } | Doc | Deny)
}

impl TestStep {
    /// The name in the output and for `--only`.
    pub fn name(&self) -> String {
        match self {
            TestStep::Feature { package, feature: Some(feature) } => format!("feature {package}/{feature}"),
            TestStep::Feature { package, feature: None } => format!("feature {package}, none"),
            step => step.kind().to_owned(),
        }
    }

    /// The name by which needs refer to the step.
    pub fn kind(&self) -> &'static str {
        match self {
            TestStep::Fmt => "fmt",
            TestStep::Clippy => "clippy",
            TestStep::Build => "build",
            TestStep::Test => "test",
            TestStep::Wheel => "wheel",
            TestStep::Python => "python",
            TestStep::Feature { .. } => "feature",
            TestStep::Doc => "doc",
            TestStep::Deny => "deny",
        }
    }

    /// Runs the step to its end.
    pub fn run(&self, of: &TestRun<'_>, results: &mut Results) -> Result<StepOutcome> {
        match self {
            TestStep::Test => {
                let (mut command, _prepared) = suites(of)?;
                let out = &mut std::io::stdout().lock();
                let passed = run_tests(&mut command, results, out)?
                    || second_attempt::run(results, |names| alone(of, &command, names), out)?;
                Ok(StepOutcome::Ran(passed))
            }
            TestStep::Python => python::run_step(of, results),
            step => match step.command(of) {
                Ok(mut command) => Ok(StepOutcome::Ran(run(&mut command)?)),
                Err(missing) => Ok(StepOutcome::Skipped(missing)),
            },
        }
    }

    /// The command of a step that is nothing more, or the line of what it needs and is missing. The
    /// tests' command is without the servers that they need.
    pub fn command(&self, of: &TestRun<'_>) -> StepCommand {
        let found = match needs::tool(self.kind()) {
            Some(need) => Some(need.find(of.workspace).ok_or_else(|| need.line())?),
            None => None,
        };
        Ok(match (self, found) {
            (TestStep::Fmt, _) => cargo(of.workspace, ["fmt", "--all", "--check"]),
            (TestStep::Clippy, _) => {
                cargo(of.workspace, ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
            }
            (TestStep::Build | TestStep::Test, _) => cargo(of.workspace, ["test", "--workspace", "--no-run"]),
            (TestStep::Wheel | TestStep::Python, _) => python::wheel_command(of)?,
            (TestStep::Feature { package, feature }, _) => {
                let mut command = cargo(of.workspace, ["check", "-p", package, "--no-default-features"]);
                command.args(feature.iter().flat_map(|feature| ["--features", feature]));
                command
            }
            (TestStep::Doc, _) => {
                let mut command = cargo(of.workspace, ["doc", "--workspace", "--no-deps"]);
                command.env("RUSTDOCFLAGS", "-D warnings");
                command
            }
            (TestStep::Deny, found) => {
                let mut command = Command::new(found.unwrap_or_else(|| "cargo-deny".into()));
                command.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
                command.current_dir(&of.workspace.root);
                command
            }
        })
    }
}

/// Servers and missing tools of a command that runs tests.
#[derive(Debug)]
pub struct PreparedTests {
    /// Tools that are missing or not used.
    pub missing: Vec<(&'static Need, &'static Tests)>,
    /// They are stopped on drop.
    _servers: Vec<TestServer>,
}

/// `cargo test` for the workspace or some packages. A failed binary does not stop the others. Where
/// tools are used, it runs the ignored tests, too: these need them.
///
/// Two tests run at a time on each core: most of a test's time is spent waiting for processes,
/// timeouts and disks. With one for each core, the cores were idle for 60 % of the step.
pub fn suites(of: &TestRun<'_>) -> Result<(Command, PreparedTests)> {
    let mut command = cargo(of.workspace, ["test", "--no-fail-fast"]);
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (2 * cores).to_string());
    }
    select_packages(of, &mut command);
    let prepared = prepare(of, &mut command, |_| true)?;
    if of.all {
        let left_out = prepared.missing.iter();
        command.args(["--", "--include-ignored"]);
        command.args(left_out.flat_map(|(_, tests)| ["--skip".to_owned(), format!("{}::", tests.module)]));
    }
    Ok((command, prepared))
}

fn select_packages(of: &TestRun<'_>, command: &mut Command) {
    match of.packages {
        [] => command.arg("--workspace"),
        packages => command.args(packages.iter().flat_map(|package| ["--package", package])),
    };
}

/// The command that runs these tests of the suites, one at a time.
fn alone(of: &TestRun<'_>, suites: &Command, names: &[&str]) -> Command {
    let mut command = cargo(of.workspace, ["test", "--no-fail-fast", "--tests"]);
    select_packages(of, &mut command);
    for (name, value) in suites.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["--", "--test-threads=1", "--include-ignored", "--exact"]).args(names);
    command
}

/// Sets the seed for a command that runs tests, and the tools and servers of the `wanted` tests.
pub fn prepare(
    of: &TestRun<'_>,
    command: &mut Command,
    wanted: impl Fn(&Tests) -> bool,
) -> Result<PreparedTests> {
    of.seed.export(command);
    let (mut missing, mut servers) = (Vec::new(), Vec::new());
    for (need, tests) in needs::of_tests() {
        command.env_remove(tests.variable);
        if !wanted(tests) {
            continue;
        }
        match of.all.then(|| need.find(of.workspace)).flatten() {
            Some(found) => match need.start(of.workspace)? {
                Some(server) => {
                    command.env(tests.variable, server.test_value());
                    servers.push(server);
                }
                None => {
                    command.env(tests.variable, found);
                }
            },
            None => missing.push((need, tests)),
        }
    }
    Ok(PreparedTests { missing, _servers: servers })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cargo::shown;

    fn workspace() -> Workspace {
        let features = vec![("foreread".to_owned(), vec!["local".to_owned(), "s3".to_owned()])];
        Workspace { root: PathBuf::from("."), target: PathBuf::from("target"), features, packages: vec![] }
    }

    #[test]
    fn each_feature_is_a_step_and_so_is_none() {
        let names: Vec<_> = list(&workspace()).iter().map(TestStep::name).collect();
        let features = ["feature foreread, none", "feature foreread/local", "feature foreread/s3"];
        let expected: Vec<_> = ["fmt", "build", "test", "wheel", "python", "clippy"]
            .into_iter()
            .chain(features)
            .chain(["doc", "deny"])
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn tests_with_needs_are_skipped_without_all() {
        let workspace = workspace();
        let of = TestRun { workspace: &workspace, seed: Seed::choose().unwrap(), all: false, packages: &[] };
        let (command, prepared) = suites(&of).unwrap();
        assert_eq!(prepared.missing.len(), needs::of_tests().count());
        let shown = shown(&command);
        assert_eq!(shown, "cargo test --no-fail-fast --workspace");
        for (_, tests) in needs::of_tests() {
            assert!(command.get_envs().any(|(name, value)| name == tests.variable && value.is_none()));
        }
        let packages = ["foreread-tier".to_owned(), "foreread-layers".to_owned()];
        let some = suites(&TestRun { packages: &packages, ..of }).unwrap().0;
        let shown = crate::cargo::shown(&some);
        assert_eq!(shown, "cargo test --no-fail-fast --package foreread-tier --package foreread-layers");
    }

    #[test]
    fn tests_run_alone_in_the_environment_of_all() {
        let workspace = workspace();
        let of = TestRun { workspace: &workspace, seed: Seed::choose().unwrap(), all: false, packages: &[] };
        let (suites, _prepared) = suites(&of).unwrap();
        let command = alone(&of, &suites, &["a::b", "c"]);
        let expected = "cargo test --no-fail-fast --tests --workspace -- --test-threads=1 --include-ignored \
                        --exact a::b c";
        assert_eq!(shown(&command), expected);
        assert!(suites.get_envs().eq(command.get_envs()));
    }

    #[test]
    fn every_need_belongs_to_a_step() {
        let steps = list(&workspace());
        let is_step = |need: &Need| steps.iter().any(|step| step.kind() == need.step);
        let others = [crate::package::STEP, crate::dist::STEP, crate::formats::STEP, crate::unchanged::STEP];
        assert!(needs::NEEDS.iter().all(|need| is_step(need) || others.contains(&need.step)));
    }
}
