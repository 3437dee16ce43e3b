//! Parses the output of Rust's test harness and pytest.
//!
//! Decision: the lines for people are parsed, because the machine-readable format is not stable
//! yet. The price: a test that prints such a line would be counted. Cargo hides the output of
//! passing tests, so only the counts of a failed run can be affected.

/// The lines of a failed test's output that are kept. The panic's message comes first.
const KEPT_LINES: usize = 12;

/// Summed results of the test binaries of one run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Results {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// The failed tests, in order.
    pub failed_tests: Vec<FailedTest>,
    /// Failed tests that passed in a second attempt, with the output of the first one.
    pub unstable_tests: Vec<FailedTest>,
    /// Test binaries that have begun and not ended, and workers of pytest that have crashed.
    pub unfinished: u64,
    /// For each test that is marked `#[ignore]`, the reason. Its name where none is given.
    pub ignored: Vec<String>,
    /// Skipped Python tests, with their reasons.
    pub skipped: Vec<String>,
    /// Whether the next line belongs to the output of the failed tests of a binary.
    pub in_output: bool,
}

/// The line before and after the output of the failed tests of a binary.
const FAILURES: &str = "failures:";

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedTest {
    /// Its path; of a Python test with the error.
    pub name: String,
    /// The first lines of its output, without blank lines.
    pub output: Vec<String>,
}

impl FailedTest {
    /// The name by which the test can be run.
    pub fn path(&self) -> &str {
        self.name.split_once(" - ").map_or(&*self.name, |(path, _)| path)
    }
}

impl Results {
    /// Parses one line of output. Most lines have no result.
    pub fn read_line(&mut self, line: &str) {
        let line = without_colours(line);
        let line = line.trim_end();
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.in_output = false;
            self.unfinished = self.unfinished.saturating_sub(1);
            self.passed += number_before(summary, " passed");
            self.failed += number_before(summary, " failed");
        } else if self.in_output {
            self.in_output = line != FAILURES;
            self.read_output(line);
        } else if let Some(sums) = pytest_sums(line) {
            self.passed += number_before(sums, " passed");
            // An error in setup or teardown counts as a failure.
            self.failed += number_before(sums, " failed") + number_before(sums, " error");
        } else if let Some(skipped) = line.strip_prefix("SKIPPED [") {
            self.skipped.push(skipped.split_once("] ").map_or(skipped, |(_, what)| what).to_owned());
        } else if let Some((name, reason)) = ignored_test(line) {
            self.ignored.push(if reason.is_empty() { name } else { reason }.to_owned());
        } else if is_begin(line) || line.contains("] node down: ") {
            self.unfinished += 1;
        } else if line == FAILURES {
            self.in_output = true;
        } else if let Some(test) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
            self.failed_tests.push(FailedTest { name: test.to_owned(), output: Vec::new() });
        }
    }

    /// Parses a line between the two headings `failures:` of Rust's harness.
    fn read_output(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            self.failed_tests.push(FailedTest { name: name.to_owned(), output: Vec::new() });
        } else if let Some(test) = self.failed_tests.last_mut()
            && self.in_output
            && !line.is_empty()
            && test.output.len() < KEPT_LINES
        {
            test.output.push(line.to_owned());
        }
    }
}

/// Whether a test binary begins: `running 3 tests`.
fn is_begin(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|line| line.split_once(" test"));
    count.is_some_and(|(count, rest)| count.parse::<u64>().is_ok() && ["", "s"].contains(&rest))
}

/// The sums in pytest's last line, `1 failed, 89 passed in 20.39s`, with or without a rule around
/// it.
fn pytest_sums(line: &str) -> Option<&str> {
    let (sums, time) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
    let time = time.split_once(' ').map_or(time, |(seconds, _)| seconds);
    let is_time = time.strip_suffix('s').is_some_and(|time| time.parse::<f64>().is_ok());
    let is_sum = |part: &str| {
        part.split_once(' ').is_some_and(|(number, word)| {
            number.parse::<u64>().is_ok() && word.chars().all(|c| c.is_ascii_lowercase())
        })
    };
    (is_time && sums.split(", ").all(is_sum)).then_some(sums)
}

/// Name and reason from `test NAME ... ignored, REASON`.
fn ignored_test(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let reason = outcome.strip_prefix("ignored")?;
    Some((name, reason.trim_start_matches(", ")))
}

/// The number directly before `word`, or 0.
fn number_before(text: &str, word: &str) -> u64 {
    let Some(end) = text.find(word) else { return 0 };
    let number = &text[..end];
    let start = number.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    number[start..].parse().unwrap_or(0)
}

/// The line without terminal colours (`CARGO_TERM_COLOR=always`).
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..at]);
        let code = &rest[at + 2..];
        rest = code.find(|c: char| c.is_ascii_alphabetic()).map_or("", |end| &code[end + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Results {
        let mut results = Results::default();
        output.lines().for_each(|line| results.read_line(line));
        results
    }

    #[test]
    fn binaries_and_doctests_are_summed() {
        let results = read(
            "running 2 tests\n\
             test a ... ok\n\
             test b ... ok\n\
             \n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             \n\
             \x20  Doc-tests foreread_types\n\
             test result: ok. 11 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in \
             1.23s\n",
        );
        assert_eq!(results, Results { passed: 13, ..Results::default() });
    }

    #[test]
    fn failed_binary_counts_passed_and_failed_tests() {
        let results =
            read("test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n");
        assert_eq!((results.passed, results.failed), (10, 2));
    }

    #[test]
    fn failed_tests_keep_their_output() {
        let results = read(
            "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\n\
             thread 'a::b' panicked at x.rs:3:5:\nleft: 1\n\n---- c stdout ----\nError: gone\n\n\n\
             failures:\n    a::b\n    c\n\n\
             test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!((results.passed, results.failed), (10, 2));
        let [first, second] = &results.failed_tests[..] else { panic!("{results:?}") };
        assert_eq!(first.name, "a::b");
        assert_eq!(first.output, ["thread 'a::b' panicked at x.rs:3:5:", "left: 1"]);
        assert_eq!((second.name.as_str(), &second.output[..]), ("c", &["Error: gone".to_owned()][..]));
    }

    #[test]
    fn long_output_of_a_failed_test_is_cut() {
        let long = format!("failures:\n---- a stdout ----\n{}failures:\n", "line\n".repeat(50));
        assert_eq!(read(&long).failed_tests[0].output.len(), KEPT_LINES);
    }

    #[test]
    fn pythons_tests_are_summed_too() {
        let results = read(
            "......s.F                                             [100%]\n\
             SKIPPED [1] tests/test_x.py:20: no disk\n\
             FAILED tests/test_x.py::test_y - AssertionError: 3 passed in it\n\
             1 failed, 89 passed, 1 skipped, 2 errors in 140.39s (0:02:20)\n\
             ======= 7 passed in 0.12s =======\n",
        );
        assert_eq!((results.passed, results.failed), (96, 3));
        assert_eq!(results.skipped, ["tests/test_x.py:20: no disk"]);
        let [failed] = &results.failed_tests[..] else { panic!("{results:?}") };
        assert_eq!(failed.name, "tests/test_x.py::test_y - AssertionError: 3 passed in it");
        assert_eq!(failed.path(), "tests/test_x.py::test_y");
        assert_eq!(read("compiled 3 crates in 2.00s\n"), read("89 passed in a row\n"));
    }

    #[test]
    fn crashed_binary_is_unfinished() {
        let ended = "test result: ok. 2 passed; 0 failed\n";
        let results = read(&format!("running 2 tests\n{ended}running 1 test\nrunning 2 tests\n{ended}"));
        assert_eq!((results.passed, results.unfinished), (4, 1));
        assert_eq!(read("running tests\nrunning 3 testers\n").unfinished, 0);
    }

    #[test]
    fn crashed_worker_of_pytest_is_unfinished() {
        let results = read(
            ".[gw1] node down: Not properly terminated\n\
             FAILED test_x.py::test_a - worker 'gw1' crashed while running 'test_x.py::tes...\n\
             1 failed, 1 passed in 4.73s\n",
        );
        assert_eq!((results.failed, results.failed_tests.len(), results.unfinished), (1, 1, 1));
    }

    #[test]
    fn ignored_tests_keep_their_reason() {
        let results = read(
            "test disk::fills_up ... ignored, needs 10 GiB\n\
             test order::wraps ... ignored\n\
             test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        );
        assert_eq!(results.ignored, ["needs 10 GiB", "order::wraps"]);
    }

    #[test]
    fn colours_do_not_hide_a_result() {
        let results = read("test result: \u{1b}[32mok\u{1b}[0m. 7 passed; 0 failed; 0 ignored\n");
        assert_eq!(results.passed, 7);
    }

    #[test]
    fn other_lines_are_ignored() {
        let noise =
            "warning: unused\ntest \nthe test result: ok. 1 passed\ntest result: \n99 passed\n\u{1b}[";
        assert_eq!(read(noise), Results::default());
    }
}
