//! `cargo xtask soak`: long runs of the Rust tests, before a release or overnight.
//!
//! First all suites with many more cases per property test. Then, one by one, the tests that do
//! more when `FOREREAD_SOAK` is set. They print their progress. `.ci/soak` provides the tools that
//! some need, and has the soaks of the Python package and of the packages of a release.
//!
//! Decision: the dev profile, as in every other run. It is optimised and keeps the overflow checks
//! and debug assertions that a long run should trigger. Long runs are ordinary tests, so every run
//! of the suites has a short version of each. The price is a table (`soaks.txt`), which a test
//! compares with the sources.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use crate::cargo::{self, cargo};
use crate::workspace::Workspace;

/// The variable that selects long runs.
const VARIABLE: &str = "FOREREAD_SOAK";

/// The variables of the seed of random tests: our own, and proptest's.
const SEED: [&str; 2] = ["FOREREAD_TEST_SEED", "PROPTEST_RNG_SEED"];

/// All suites, with many cases.
const PROPERTIES: &str = "property tests";

/// Arguments of `soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Random cases for each property test (an ordinary run has 256)
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    cases: u32,
    /// Run only the soaks whose name contains this
    #[arg(long, value_name = "SUBSTRING")]
    only: Option<String>,
}

/// A test with a long version.
#[derive(Debug)]
struct Long {
    package: &'static str,
    test: &'static str,
    /// The long version's work.
    name: &'static str,
}

fn table() -> impl Iterator<Item = Long> {
    let rows = include_str!("soaks.txt").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let (package, rest) = row.split_once(' ')?;
        let (test, name) = rest.split_once(' ')?;
        Some(Long { package, test, name })
    })
}

/// Runs the chosen soaks. True if none failed.
pub fn run(args: &Args) -> Result<bool> {
    let workspace = Workspace::load()?;
    let suites = vec!["test", "--workspace", "--no-fail-fast", "--", "--include-ignored"];
    let mut soaks = vec![(PROPERTIES, suites)];
    soaks.extend(table().map(|long| {
        let words = ["test", "--package", long.package, long.test, "--", "--include-ignored", "--nocapture"];
        (long.name, words.to_vec())
    }));
    let names: Vec<_> = soaks.iter().map(|(name, _)| *name).collect();
    let is_chosen = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(&**only));
    soaks.retain(|(name, _)| is_chosen(name));
    if soaks.is_empty() {
        bail!("no soak's name contains what was given; they are: {}", names.join("; "));
    }
    let seed = seed();
    let mut failed = Vec::new();
    for (number, (name, words)) in soaks.iter().enumerate() {
        println!("\nsoak {} of {}: {name} (repeat with {}={seed})", number + 1, soaks.len(), SEED[0]);
        let mut command = cargo(&workspace, words);
        command.env("PROPTEST_CASES", args.cases.to_string());
        if *name != PROPERTIES {
            command.env(VARIABLE, "1");
        }
        if !cargo::run(command.envs(SEED.map(|variable| (variable, &seed))))? {
            failed.push(*name);
        }
    }
    println!("\n{} of {} passed", soaks.len() - failed.len(), soaks.len());
    failed.iter().for_each(|name| println!("failed: {name}"));
    Ok(failed.is_empty())
}

/// The seed from the environment, else one of the clock, short enough to type.
fn seed() -> String {
    std::env::var(SEED[0]).unwrap_or_else(|_| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (since.as_micros() % 1_000_000_000).to_string()
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    /// The Rust sources of a folder, with their text.
    fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
        let (mut pending, mut found) = (vec![folder.to_owned()], Vec::new());
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
        found
    }

    fn all_sources() -> Vec<(PathBuf, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let folders = ["crates", "backends", "integration-tests"];
        folders.iter().flat_map(|folder| sources(&root.join(folder))).collect()
    }

    #[test]
    fn each_test_of_the_table_is_in_its_package() {
        let sources = all_sources();
        assert!(table().count() > 20);
        for long in table() {
            let folder = format!("/{}/", long.package.trim_start_matches("foreread-"));
            let head = format!("fn {}()", long.test);
            let there = sources.iter().filter(|(_, text)| text.contains(&head));
            let there: Vec<_> = there.map(|(path, _)| path.to_str().unwrap()).collect();
            assert!(there.len() == 1 && there[0].contains(&folder), "{}: {there:?}", long.test);
        }
    }

    #[test]
    fn files_with_long_tests_are_in_the_table() {
        let mut found = 0;
        for (path, text) in all_sources() {
            let path = path.to_str().unwrap();
            // `support.rs` reads the variable for its folder's tests. `.ci/soak` has the formats.
            if !path.contains("/tests/") || path.ends_with("/support.rs") || path.contains("/formats/") {
                continue;
            }
            if [VARIABLE, "is_soak()", " times(", ".seeds("].iter().any(|word| text.contains(word)) {
                let is_listed = table().any(|long| text.contains(&format!("fn {}()", long.test)));
                assert!(is_listed, "{path} has no test in soaks.txt");
                found += 1;
            }
        }
        assert!(found > 5, "{found} files were found: are they read otherwise now?");
    }
}
