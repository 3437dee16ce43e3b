//! Numbers that tests draw, from one seed for a whole run of the tests.

use std::time::UNIX_EPOCH;

use foreread_types::SplitMix64;

/// `SplitMix64` from the seed of this run of the tests, `FOREREAD_TEST_SEED`, or else from the clock.
#[derive(Debug)]
pub struct Draw {
    /// What it began with.
    pub seed: u64,
    generator: SplitMix64,
}

impl Draw {
    /// Prints the seed, so that whoever reads of a failure can repeat it.
    ///
    /// # Panics
    /// If `FOREREAD_TEST_SEED` is no number.
    #[expect(clippy::new_without_default, reason = "what prints is asked for by name")]
    pub fn new() -> Self {
        let seed = match std::env::var("FOREREAD_TEST_SEED") {
            Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("FOREREAD_TEST_SEED is a number")),
            Err(_) => UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64 % 1_000_000_000),
        };
        println!("FOREREAD_TEST_SEED={seed}");
        Self::of(seed)
    }

    /// Always the same numbers: for one of many cases, which says its own number where it fails.
    pub const fn of(seed: u64) -> Self {
        Self { seed, generator: SplitMix64(seed) }
    }

    /// The next number, below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.generator.below(bound)
    }
}
