//! Random numbers for tests, from one seed per test run.

use std::time::UNIX_EPOCH;

use foreread_types::SplitMix64;

/// `SplitMix64`, seeded by `FOREREAD_TEST_SEED` or by the clock.
#[derive(Debug)]
pub struct TestRandom {
    /// The seed.
    pub seed: u64,
    generator: SplitMix64,
}

impl TestRandom {
    /// Prints the seed, so that a failure can be reproduced.
    ///
    /// # Panics
    /// If `FOREREAD_TEST_SEED` is not a number.
    #[expect(clippy::new_without_default, reason = "it prints, so it is called by name")]
    pub fn new() -> Self {
        let seed = match std::env::var("FOREREAD_TEST_SEED") {
            Ok(seed) => {
                seed.parse().unwrap_or_else(|_| panic!("invalid FOREREAD_TEST_SEED: expected a number"))
            }
            Err(_) => UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64 % 1_000_000_000),
        };
        println!("FOREREAD_TEST_SEED={seed}");
        Self::of(seed)
    }

    /// A fixed sequence, for one of many cases that reports its own number on failure.
    pub const fn of(seed: u64) -> Self {
        Self { seed, generator: SplitMix64(seed) }
    }

    /// The seeds of so many cases, or of `soak` with `FOREREAD_SOAK`, each printed. The first is
    /// the seed itself, so that a failure can be repeated.
    pub fn seeds(mut self, cases: u64, soak: u64) -> impl Iterator<Item = u64> {
        let cases = if std::env::var_os("FOREREAD_SOAK").is_some() { soak } else { cases };
        (0..cases).map(move |case| {
            let seed = if case == 0 { self.seed } else { self.below(u64::MAX) };
            println!("FOREREAD_TEST_SEED={seed}");
            seed
        })
    }

    /// The next number, below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.generator.below(bound)
    }
}
