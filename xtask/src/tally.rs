//! What a run adds up to: steps and tests that passed and failed, and what was skipped with its reason.

use std::fmt::Write;
use std::time::Instant;

use anyhow::Result;

use crate::results::Results;
use crate::seed::Seed;

/// How a step ended.
#[derive(Debug)]
pub enum Outcome {
    /// It ran; true when it succeeded.
    Ran(bool),
    /// It did not run. One line: what it needs and how to get that.
    Skipped(String),
}

/// The sums of a run. A step counts as one test, and so does each Rust test.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u64,
    failures: u64,
    failed_steps: Vec<String>,
    skipped: Vec<String>,
}

impl Tally {
    /// Runs one step: header, work, time. A step that cannot even start has failed; the others still run.
    /// The work notes in the results what the test binaries said that it ran.
    pub fn step(&mut self, name: &str, work: impl FnOnce(&mut Results) -> Result<Outcome>) {
        println!("\n== {name}");
        let start = Instant::now();
        let mut results = Results::default();
        let outcome = work(&mut results).unwrap_or_else(|error| {
            println!("{error:#}");
            Outcome::Ran(false)
        });
        let word = match outcome {
            Outcome::Ran(true) => {
                self.passed += 1;
                "passed"
            }
            Outcome::Ran(false) => {
                self.failures += 1;
                self.failed_steps.push(name.to_owned());
                "FAILED"
            }
            Outcome::Skipped(reason) => {
                self.skip(format!("{name}: {reason}"));
                "skipped"
            }
        };
        self.add(results);
        println!("== {name}: {word} in {:.1} s", start.elapsed().as_secs_f64());
    }

    fn add(&mut self, results: Results) {
        self.passed += results.passed;
        self.failures += results.failed;
        results.skipped.into_iter().for_each(|test| self.skip(test));
        for test in results.ignored {
            self.skip(format!("{test}; run it with `cargo test -- --ignored`"));
        }
    }

    /// Counts something that did not run.
    pub fn skip(&mut self, line: String) {
        self.skipped.push(line);
    }

    /// Whether nothing failed.
    pub fn succeeded(&self) -> bool {
        self.failures == 0
    }

    /// How many things did not run.
    pub fn skipped(&self) -> usize {
        self.skipped.len()
    }

    /// The end of a run's output: failed steps, the seed, what was skipped, and last the line with the sums.
    pub fn summary(&self, seed: Seed) -> String {
        let mut text = String::new();
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
    fn steps_and_tests_are_summed_and_the_sums_come_last() {
        let mut tally = Tally::default();
        tally.step("fmt", |_| Ok(Outcome::Ran(true)));
        tally.step("clippy", |_| Ok(Outcome::Skipped("needs clippy".into())));
        tally.step("test", |results| {
            *results = Results {
                passed: 5,
                failed: 2,
                ignored: vec!["slow: takes a day".into()],
                ..Results::default()
            };
            Ok(Outcome::Ran(false))
        });
        tally.step("doc", |_| anyhow::bail!("cannot run `cargo doc`"));
        assert!(!tally.succeeded());
        let summary = tally.summary(Seed::choose().unwrap());
        let lines: Vec<_> = summary.lines().collect();
        assert_eq!(lines[..2], ["failed: test", "failed: doc"]);
        assert!(lines[2].starts_with("seed "));
        assert_eq!(lines[3], "skipped: clippy: needs clippy");
        assert!(lines[4].starts_with("skipped: slow: takes a day"));
        assert_eq!(lines[5..], ["6 passed, 4 failed, 2 skipped"]);
    }
}
