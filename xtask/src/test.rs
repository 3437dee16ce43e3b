//! `cargo xtask test`: every test that needs only Cargo and a C compiler, or all with `--all`.

use anyhow::{Result, bail};

use crate::background::Background;
use crate::install;
use crate::seed::Seed;
use crate::steps::{self, TestRun, TestStep};
use crate::summary::Summary;
use crate::workspace::Workspace;

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Skip nothing: install what is missing (on Debian, as root) and run what needs it
    #[arg(long)]
    all: bool,
    /// Run only the step of this name, or those whose name contains it
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Run only the Rust tests of this package
    #[arg(short, long, value_name = "CRATE", conflicts_with = "only")]
    package: Vec<String>,
}

/// Runs the steps. True if none failed.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let seed = Seed::choose()?;
    println!("{seed}");
    let mut steps = match args.package.is_empty() {
        true => chosen(steps::list(&workspace), args.only.as_deref())?,
        false => vec![TestStep::Test],
    };
    let chosen = steps.len();
    if !args.all && args.only.is_none() {
        steps.retain(|step| !steps::is_left_to_all(step));
    }
    let left = chosen - steps.len();
    if args.all {
        let kinds: Vec<_> = steps.iter().map(TestStep::kind).collect();
        install::everything(&workspace, &kinds)?;
    }
    let run = TestRun { workspace: &workspace, seed, all: args.all, packages: &args.package };
    let mut summary = Summary::default();
    run_steps(&steps, &run, &mut summary);
    if left > 0 {
        summary.skip(format!(
            "{left} steps (each feature alone, doc, wheel); `cargo xtask test --all` runs them"
        ));
    }
    let complete = !args.all || summary.skipped() == 0;
    if !complete {
        println!("\nfailed: --all skips nothing, and the lines below name what was skipped");
    }
    print!("\n{}", summary.summary(seed));
    Ok(summary.succeeded() && complete)
}

/// Runs them in their order. Once the tests are compiled, steps that only compile run in the
/// background.
fn run_steps(steps: &[TestStep], run: &TestRun<'_>, summary: &mut Summary) {
    let has_tests = steps.contains(&TestStep::Build);
    let (later, now): (Vec<_>, Vec<_>) =
        steps.iter().partition(|step| has_tests && steps::may_run_in_background(step));
    let mut later = later.iter().map(|step| (step.name(), step.command(run))).collect();
    let mut background: Option<Background> = None;
    for step in now {
        match step {
            TestStep::Test => background = Some(Background::start(std::mem::take(&mut later))),
            // It would wait for Cargo's lock, and with more output than this.
            TestStep::Python => {
                let ended = || background.as_ref().and_then(Background::next_ended);
                while let Some(ended) = ended() {
                    let is_wheel = ended.name == TestStep::Wheel.name();
                    summary.ended(ended);
                    if is_wheel {
                        break;
                    }
                }
            }
            _ => {}
        }
        summary.step(&step.name(), |results| step.run(run, results));
    }
    while let Some(ended) = background.as_ref().and_then(Background::next_ended) {
        summary.ended(ended);
    }
}

fn chosen(steps: Vec<TestStep>, only: Option<&str>) -> Result<Vec<TestStep>> {
    let Some(only) = only else { return Ok(steps) };
    let names: Vec<_> = steps.iter().map(TestStep::name).collect();
    // `test` is a part of the names of packages, too.
    let is_whole = names.iter().any(|name| name == only);
    let is_chosen = |step: &TestStep| if is_whole { step.name() == only } else { step.name().contains(only) };
    let chosen: Vec<_> = steps.into_iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        bail!("no step's name contains `{only}`; the steps are: {}", names.join("; "));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matches_a_part_of_the_name() {
        let steps = chosen(vec![TestStep::Fmt, TestStep::Clippy, TestStep::Doc], Some("c")).unwrap();
        assert_eq!(steps, [TestStep::Clippy, TestStep::Doc]);
        let feature = TestStep::Feature { package: "foreread-tier-testing".to_owned(), feature: None };
        let of_a_feature = chosen(vec![TestStep::Test, feature.clone()], Some("testing")).unwrap();
        assert_eq!(of_a_feature, std::slice::from_ref(&feature));
        assert_eq!(chosen(vec![TestStep::Test, feature], Some("test")).unwrap(), [TestStep::Test]);
    }

    #[test]
    fn unknown_step_is_an_error_that_lists_the_steps() {
        let error = chosen(vec![TestStep::Fmt, TestStep::Doc], Some("lint")).unwrap_err().to_string();
        assert_eq!(error, "no step's name contains `lint`; the steps are: fmt; doc");
    }
}
