//! Simulated ranks: client and server machines, links, stores and trainers on one seeded
//! scheduler.
//!
//! One number gives one run, without threads, clocks or hash order. The trace has the same hash
//! twice. The bytes of frames pass through real queues, so a connection may break within a frame.
//! Stores, their breakers and when they give up are small models of the product's rules.
//!
//! These are unit tests of the crate, so that the machines need not be public.
//!
//! `FOREREAD_TEST_SEED` repeats a failure, `FOREREAD_TRACE` prints the events.

mod ends;
mod pipe;
mod world;

use std::time::Duration;

use foreread_tier_testing::TestRandom;

use self::world::{Outcome, World};

/// Runs in an ordinary test, and in a long one.
const RUNS: (u64, u64) = (10, 5000);

/// The longest wait of a trainer whose own process runs.
const STALL: Duration = Duration::from_secs(2);

fn run(seed: u64) -> Outcome {
    World::new(seed).run()
}

#[test]
// semantics: RANK-20
fn simulated_ranks_get_every_sample_within_bounds() {
    let mut sum = Outcome::default();
    for seed in TestRandom::new().seeds(RUNS.0, RUNS.1) {
        let outcome = run(seed);
        assert!(outcome.stall <= STALL, "seed {seed}: a trainer waited for {:?}", outcome.stall);
        assert_eq!(outcome.off_plan, 0, "seed {seed}: reads of others' samples long after the last fault");
        sum.add(&outcome);
    }
    // The runs have covered these cases.
    let Outcome { requested, failed, late, resumed, broken, .. } = sum;
    assert!(requested > 0 && failed > 0 && late > 0 && resumed > 0 && broken > 0, "{sum:?}");
}

/// The connection of a stopped rank broke before the rank saw it.
#[test]
// semantics: RANK-20
fn connection_that_broke_at_a_stopped_rank_is_opened_again() {
    assert_eq!(run(12_258_340_199_148_119_097).off_plan, 0);
}

#[test]
// semantics: RANK-20
fn same_seed_gives_the_same_trace() {
    for seed in 1..3 {
        let (one, other) = (run(seed), run(seed));
        assert_eq!(one.digest, other.digest, "seed {seed}");
        assert_ne!(one.digest, run(seed + 100).digest);
    }
}
