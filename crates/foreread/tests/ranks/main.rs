//! Ranks that work together, whole, in one process: over a network in memory whose cables break,
//! from an origin that counts, on a simulated clock.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

mod ends;
#[path = "../endurance/rig.rs"]
mod fakes;
mod faults;
mod resume;
mod rig;
mod several;
mod slow;
mod thousand;
mod two_runs;
