//! The seed of randomised tests: new for every run, printed, and settable to repeat a run.
//!
//! Decision: one number, `FOREREAD_TEST_SEED`, seeds every draw of a run, proptest's too. The price
//! is that a run explores one seed. `cargo xtask soak` explores more.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// The variable that tests read.
pub const VARIABLE: &str = "FOREREAD_TEST_SEED";
/// The variable that proptest reads.
const PROPTEST: &str = "PROPTEST_RNG_SEED";

/// The seed of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// From the environment, else from the clock.
    pub fn choose() -> Result<Seed> {
        match std::env::var_os(VARIABLE) {
            Some(given) => Seed::parse(&given.to_string_lossy()),
            None => Ok(Seed::from_clock()),
        }
    }

    fn parse(text: &str) -> Result<Seed> {
        let number = text.trim().parse();
        number.map(Seed).with_context(|| format!("{VARIABLE}={text} is not a number from 0 to 2^64 - 1"))
    }

    fn from_clock() -> Seed {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        // Short enough to type. The low digits differ between runs.
        Seed(nanos / 1000 % 1_000_000_000)
    }

    /// The seed itself.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Sets the seed for the tests of `command`.
    pub fn export(self, command: &mut Command) -> &mut Command {
        command.env(VARIABLE, self.0.to_string());
        if std::env::var_os(PROPTEST).is_none() {
            command.env(PROPTEST, self.0.to_string());
        }
        command
    }
}

impl std::fmt::Display for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {} (repeat this run's draws with {VARIABLE}={})", self.0, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_seed_can_be_set() {
        let seed = Seed::from_clock();
        let shown = seed.to_string();
        let given = shown.trim_end_matches(')').rsplit('=').next().unwrap();
        assert_eq!(Seed::parse(given).unwrap(), seed);
    }

    #[test]
    fn invalid_seed_is_refused_by_name() {
        let error = Seed::parse("soon").unwrap_err().to_string();
        assert!(error.contains("FOREREAD_TEST_SEED=soon"), "{error}");
    }
}
