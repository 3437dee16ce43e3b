//! Whole groups of ranks in one process, each on a node of its own: over a simulated network with
//! faults, from an origin that counts requests, on a simulated clock.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

mod blocks;
mod ends;
#[path = "../../../foreread/tests/endurance/rig.rs"]
mod fakes;
mod faults;
mod resume;
mod rig;
mod several;
mod slow;
mod thousand;
mod two_runs;
