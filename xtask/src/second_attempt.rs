//! A second attempt for a few failed tests, without other tests next to them.
//!
//! Decision: hundreds of tests start processes, and run while lints are compiled. One of thousands
//! can fail by a delay of seconds, and a run of an hour with it. So up to [`MOST`] failed tests
//! run once more, one at a time. The price: a fault that shows rarely does not fail the run. The
//! last lines therefore name each such test as unstable, with its output. It is a fault to mend.

use std::io::Write;
use std::process::Command;

use anyhow::Result;

use crate::cargo::run_tests;
use crate::results::Results;

/// The most failed tests of a step that run again. More are no accident.
const MOST: usize = 2;

/// Runs the failed tests again with the command for their names. True if all passed: they are
/// then counted as passed, and as unstable.
pub fn run(
    results: &mut Results,
    command: impl FnOnce(&[&str]) -> Command,
    out: &mut impl Write,
) -> Result<bool> {
    let failed = results.failed_tests.len();
    // A crash is no delay, and a test binary that crashed has no names of failed tests.
    let has_all_names = failed as u64 == results.failed && results.unfinished == 0;
    if failed == 0 || failed > MOST || !has_all_names {
        return Ok(false);
    }
    println!("\nsecond attempt, without other tests");
    let names: Vec<&str> = results.failed_tests.iter().map(|test| test.path()).collect();
    let mut again = Results::default();
    let succeeded = run_tests(&mut command(&names), &mut again, out)?;
    if !succeeded || again.passed < failed as u64 {
        return Ok(false);
    }
    results.passed += results.failed;
    results.failed = 0;
    results.unstable_tests = std::mem::take(&mut results.failed_tests);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::FailedTest;

    fn attempt(results: &mut Results, script: &str) -> bool {
        let command = |names: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).args(names);
            command
        };
        run(results, command, &mut Vec::new()).unwrap()
    }

    fn failed(names: &[&str]) -> Results {
        let failed_tests =
            names.iter().map(|name| FailedTest { name: (*name).to_owned(), output: vec![] }).collect();
        Results { passed: 9, failed: names.len() as u64, failed_tests, ..Results::default() }
    }

    const PASSES: &str = "echo \"test result: ok. $# passed; 0 failed\"; test \"$1\" = a::b";

    #[test]
    fn test_that_passes_alone_is_unstable() {
        let mut results = failed(&["a::b", "c"]);
        assert!(attempt(&mut results, PASSES));
        assert_eq!((results.passed, results.failed, results.failed_tests.len()), (11, 0, 0));
        assert_eq!(results.unstable_tests.len(), 2);
    }

    #[test]
    fn test_that_fails_again_or_is_not_found_has_failed() {
        for script in ["echo 'test result: FAILED. 0 passed; 1 failed'; exit 1", "echo nothing ran"] {
            let mut results = failed(&["a::b"]);
            assert!(!attempt(&mut results, script));
            assert_eq!((results.passed, results.failed, results.failed_tests.len()), (9, 1, 1));
        }
    }

    #[test]
    fn many_failures_and_crashes_have_no_second_attempt() {
        assert!(!attempt(&mut failed(&["a::b", "c", "d"]), PASSES));
        assert!(!attempt(&mut failed(&[]), PASSES));
        assert!(!attempt(&mut Results { failed: 2, ..failed(&["a::b"]) }, PASSES));
        assert!(!attempt(&mut Results { unfinished: 1, ..failed(&["a::b"]) }, PASSES));
    }
}
