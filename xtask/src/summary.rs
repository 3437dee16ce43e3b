//! The summary of a run: passed and failed steps and tests, and skipped ones with their reasons.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::background::EndedStep;
use crate::results::{FailedTest, Results};
use crate::seed::Seed;

/// How a step ended.
#[derive(Debug)]
pub enum StepOutcome {
    /// It ran. True when it succeeded.
    Ran(bool),
    /// It did not run. One line: the missing need and how to install it.
    Skipped(String),
}

/// The sums of a run. A step counts as one test, and so does each Rust test.
#[derive(Debug, Default)]
pub struct Summary {
    passed: u64,
    failures: u64,
    failed_steps: Vec<String>,
    failed_tests: Vec<FailedTest>,
    unstable_tests: Vec<FailedTest>,
    skipped: Vec<String>,
}

impl Summary {
    /// Runs one step and prints its header and time. A step that cannot start counts as failed.
    /// `work` adds the results of test binaries.
    pub fn step(&mut self, name: &str, work: impl FnOnce(&mut Results) -> Result<StepOutcome>) {
        println!("\n== {name}");
        let start = Instant::now();
        let mut results = Results::default();
        let outcome = work(&mut results);
        self.end(name, outcome, start.elapsed());
        self.add(results);
    }

    /// Prints the whole of a step that ran in the background, and adds its outcome.
    pub fn ended(&mut self, step: EndedStep) {
        print!("\n== {}, in the background\n{}", step.name, step.output);
        self.end(&step.name, step.outcome, step.took);
    }

    fn end(&mut self, name: &str, outcome: Result<StepOutcome>, took: Duration) {
        let outcome = outcome.unwrap_or_else(|error| {
            println!("{error:#}");
            StepOutcome::Ran(false)
        });
        let word = match outcome {
            StepOutcome::Ran(true) => {
                self.passed += 1;
                "passed"
            }
            StepOutcome::Ran(false) => {
                self.failures += 1;
                self.failed_steps.push(name.to_owned());
                "FAILED"
            }
            StepOutcome::Skipped(reason) => {
                self.skip(format!("{name}: {reason}"));
                "skipped"
            }
        };
        println!("== {name}: {word} in {:.1} s", took.as_secs_f64());
    }

    fn add(&mut self, results: Results) {
        self.passed += results.passed;
        self.failures += results.failed;
        self.failed_tests.extend(results.failed_tests);
        self.unstable_tests.extend(results.unstable_tests);
        results.skipped.into_iter().for_each(|test| self.skip(test));
        let mut ignored: BTreeMap<String, u64> = BTreeMap::new();
        results.ignored.into_iter().for_each(|reason| *ignored.entry(reason).or_default() += 1);
        for (reason, count) in ignored {
            self.skip(format!("{count} tests: {reason}; `cargo xtask test --all` runs them"));
        }
    }

    /// Counts something as skipped.
    pub fn skip(&mut self, line: String) {
        self.skipped.push(line);
    }

    /// Whether nothing failed.
    pub fn succeeded(&self) -> bool {
        self.failures == 0
    }

    /// The number of skipped things.
    pub fn skipped(&self) -> usize {
        self.skipped.len()
    }

    /// The end of the output: unstable and failed tests, failed steps, the seed, skipped things and
    /// the sums.
    pub fn summary(&self, seed: Seed) -> String {
        let mut text = String::new();
        let unstable = self.unstable_tests.iter().map(|test| ("unstable test", test));
        for (kind, test) in unstable.chain(self.failed_tests.iter().map(|test| ("failed test", test))) {
            let _ = writeln!(text, "{kind}: {}", test.name);
            for line in &test.output {
                let _ = writeln!(text, "    {line}");
            }
        }
        for step in &self.failed_steps {
            let _ = writeln!(text, "failed: {step}");
        }
        let _ = writeln!(text, "{seed}");
        for line in &self.skipped {
            let _ = writeln!(text, "skipped: {line}");
        }
        let _ =
            writeln!(text, "{} passed, {} failed, {} skipped", self.passed, self.failures, self.skipped());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_steps_and_tests_come_last() {
        let mut summary = Summary::default();
        summary.step("fmt", |_| Ok(StepOutcome::Ran(true)));
        summary.step("clippy", |_| Ok(StepOutcome::Skipped("needs clippy".into())));
        summary.step("test", |results| {
            results.passed = 5;
            results.failed = 2;
            results.failed_tests = vec![FailedTest { name: "a::b".into(), output: vec!["left: 1".into()] }];
            results.unstable_tests = vec![FailedTest { name: "c".into(), output: vec![] }];
            results.ignored = vec!["needs FUSE".into(); 2];
            Ok(StepOutcome::Ran(false))
        });
        summary.step("doc", |_| anyhow::bail!("cannot run `cargo doc`"));
        assert!(!summary.succeeded());
        let summary = summary.summary(Seed::choose().unwrap());
        let lines: Vec<_> = summary.lines().collect();
        assert_eq!(lines[..3], ["unstable test: c", "failed test: a::b", "    left: 1"]);
        assert_eq!(lines[3..5], ["failed: test", "failed: doc"]);
        assert!(lines[5].starts_with("seed "));
        assert_eq!(lines[6], "skipped: clippy: needs clippy");
        assert_eq!(lines[7], "skipped: 2 tests: needs FUSE; `cargo xtask test --all` runs them");
        assert_eq!(lines[8..], ["6 passed, 4 failed, 2 skipped"]);
    }
}
