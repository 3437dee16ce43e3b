//! The steps of `cargo xtask test`, in their order: cheap and telling ones first.
//!
//! All of them share one build profile and one target directory, so that dependencies are compiled once and checked
//! once, whatever runs.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{cargo, run, run_tests};
use crate::needs::{self, Need, Tests};
use crate::python;
use crate::results::Results;
use crate::seed::Seed;
use crate::service::Service;
use crate::tally::Outcome;
use crate::workspace::Workspace;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The layout of the source.
    Fmt,
    /// Lints, all of them errors.
    Clippy,
    /// Unit tests, integration tests, doctests.
    Test,
    /// The Python package: its wheel, its types, its tests.
    Python,
    /// A package with one feature alone, or with none: features unify across a workspace, and hide what is missing.
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

/// What all steps of a run share.
#[derive(Debug)]
pub struct Run<'a> {
    /// Where they run.
    pub workspace: &'a Workspace,
    /// What randomised tests draw from.
    pub seed: Seed,
    /// Whether tests that need outside tools run.
    pub all: bool,
    /// The packages whose tests run; none for all.
    pub packages: &'a [String],
}

/// All steps of this workspace, in their order.
pub fn list(workspace: &Workspace) -> Vec<Step> {
    let mut steps = vec![Step::Fmt, Step::Clippy, Step::Test, Step::Python];
    for (package, features) in &workspace.features {
        let alone = std::iter::once(None).chain(features.iter().cloned().map(Some));
        steps.extend(alone.map(|feature| Step::Feature { package: package.clone(), feature }));
    }
    steps.extend([Step::Doc, Step::Deny]);
    steps
}

/// The steps that `--all` alone runs: they need no more than the others, but minutes that a change seldom needs.
pub fn is_left_to_all(step: &Step) -> bool {
    matches!(step, Step::Feature { .. } | Step::Doc)
}

impl Step {
    /// The name that is printed and that `--only` looks in.
    pub fn name(&self) -> String {
        match self {
            Step::Feature { package, feature: Some(feature) } => format!("feature {package}/{feature}"),
            Step::Feature { package, feature: None } => format!("feature {package}, none"),
            step => step.kind().to_owned(),
        }
    }

    /// The name by which needs refer to the step.
    pub fn kind(&self) -> &'static str {
        match self {
            Step::Fmt => "fmt",
            Step::Clippy => "clippy",
            Step::Test => "test",
            Step::Python => "python",
            Step::Feature { .. } => "feature",
            Step::Doc => "doc",
            Step::Deny => "deny",
        }
    }

    /// Runs the step to its end.
    pub fn run(&self, of: &Run<'_>, results: &mut Results) -> Result<Outcome> {
        let mut command = match self {
            Step::Fmt => cargo(of.workspace, ["fmt", "--all", "--check"]),
            Step::Clippy => {
                cargo(of.workspace, ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
            }
            Step::Test => {
                let (mut command, _prepared) = suites(of)?;
                return Ok(Outcome::Ran(run_tests(&mut command, results, &mut std::io::stdout().lock())?));
            }
            Step::Python => return python::run_step(of, results),
            Step::Feature { package, feature } => {
                let mut command = cargo(of.workspace, ["check", "-p", package, "--no-default-features"]);
                command.args(feature.iter().flat_map(|feature| ["--features", feature]));
                command
            }
            Step::Doc => {
                let mut command = cargo(of.workspace, ["doc", "--workspace", "--no-deps"]);
                command.env("RUSTDOCFLAGS", "-D warnings");
                command
            }
            Step::Deny => Command::new("cargo-deny"),
        };
        if let Step::Fmt | Step::Clippy | Step::Deny = self
            && let Some(need) = needs::tool(self.kind())
        {
            let Some(found) = need.find(of.workspace) else {
                return Ok(Outcome::Skipped(need.line()));
            };
            if *self == Step::Deny {
                command = Command::new(found);
                command.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
                command.current_dir(&of.workspace.root);
            }
        }
        Ok(Outcome::Ran(run(&mut command)?))
    }
}

/// What a command that runs tests needs to be there while it runs.
#[derive(Debug)]
pub struct Prepared {
    /// What is not there, or not to be used.
    pub missing: Vec<(&'static Need, &'static Tests)>,
    /// They end with this.
    _servers: Vec<Service>,
}

/// `cargo test` over the whole workspace or some packages: every binary runs, also after one has failed.
pub fn suites(of: &Run<'_>) -> Result<(Command, Prepared)> {
    let mut command = cargo(of.workspace, ["test", "--no-fail-fast"]);
    match of.packages {
        [] => command.arg("--workspace"),
        packages => command.args(packages.iter().flat_map(|package| ["--package", package])),
    };
    let prepared = prepare(of, &mut command, |_| true)?;
    if !prepared.missing.is_empty() {
        let left_out = prepared.missing.iter();
        command.arg("--");
        command.args(left_out.flat_map(|(_, tests)| ["--skip".to_owned(), format!("{}::", tests.module)]));
    }
    Ok((command, prepared))
}

/// Gives a command that runs tests the seed, and the tools and servers that those of them need that are `wanted`.
pub fn prepare(of: &Run<'_>, command: &mut Command, wanted: impl Fn(&Tests) -> bool) -> Result<Prepared> {
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
                    command.env(tests.variable, server.told());
                    servers.push(server);
                }
                None => {
                    command.env(tests.variable, found);
                }
            },
            None => missing.push((need, tests)),
        }
    }
    Ok(Prepared { missing, _servers: servers })
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
    fn each_feature_is_a_step_of_its_own_and_so_is_none() {
        let names: Vec<_> = list(&workspace()).iter().map(Step::name).collect();
        let features = ["feature foreread, none", "feature foreread/local", "feature foreread/s3"];
        let expected: Vec<_> =
            ["fmt", "clippy", "test", "python"].into_iter().chain(features).chain(["doc", "deny"]).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn tests_that_need_tools_are_left_out_and_their_variables_unset() {
        let workspace = workspace();
        let of = Run { workspace: &workspace, seed: Seed::choose().unwrap(), all: false, packages: &[] };
        let (command, prepared) = suites(&of).unwrap();
        assert_eq!(prepared.missing.len(), needs::of_tests().count());
        let shown = shown(&command);
        assert!(shown.starts_with("cargo test --no-fail-fast --workspace -- --skip "), "{shown}");
        for (_, tests) in needs::of_tests() {
            assert!(shown.contains(&format!("--skip {}::", tests.module)), "{shown}");
            assert!(command.get_envs().any(|(name, value)| name == tests.variable && value.is_none()));
        }
        let packages = ["foreread-tier".to_owned(), "foreread-layers".to_owned()];
        let some = suites(&Run { packages: &packages, ..of }).unwrap().0;
        let shown = crate::cargo::shown(&some);
        let begins = "cargo test --no-fail-fast --package foreread-tier --package foreread-layers -- --skip ";
        assert!(shown.starts_with(begins), "{shown}");
    }

    #[test]
    fn every_need_belongs_to_a_step() {
        let steps = list(&workspace());
        let is_step = |need: &Need| steps.iter().any(|step| step.kind() == need.step);
        assert!(needs::NEEDS.iter().all(|need| is_step(need) || need.step == crate::package::STEP));
    }
}
