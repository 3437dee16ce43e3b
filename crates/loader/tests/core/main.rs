//! Tests the core against a reference model: random runs in random interleavings, checked after
//! every step.
//!
//! [`scenario`] draws a run, its caches and its faults. [`model`] computes the expected result in
//! the simplest way. [`world`] simulates origin, caches and trainer in a random order, and
//! compares. A failure prints the smallest scenario and the seed. `PROPTEST_RNG_SEED` repeats it,
//! `PROPTEST_CASES` sets the number of runs, and `FOREREAD_SOAK` (any value) multiplies it by ten.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod accounting;
mod faults;
mod model;
mod scenario;
mod world;

use std::hash::{BuildHasher, RandomState};

use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::scenario::scenarios;
use crate::world::{RunOutcome, World};

fn config() -> Config {
    let mut config = Config { failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 10_000;
    }
    if std::env::var_os("FOREREAD_SOAK").is_some() {
        config.cases = config.cases.saturating_mul(10);
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(RandomState::new().hash_one(0));
    }
    config
}

#[test]
// semantics: ORDER-3, CACHE-5, CACHE-6, RANK-3, FAIL-3
fn random_runs_and_interleavings_match_the_model() {
    let config = config();
    if let RngSeed::Fixed(seed) = config.rng_seed {
        println!("PROPTEST_RNG_SEED={seed}");
    }
    let outcomes = std::cell::RefCell::new(std::collections::BTreeMap::<RunOutcome, u32>::new());
    let result = TestRunner::new(config).run(&scenarios(), |scenario| {
        let outcome = World::new(&scenario).play()?;
        *outcomes.borrow_mut().entry(outcome).or_default() += 1;
        Ok(())
    });
    println!("{:?}", outcomes.borrow());
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
