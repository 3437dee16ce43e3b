//! Waiting for a condition that the product shows.
//!
//! Decision: this is the one loop of the tests that sleeps. Its bound is minutes, because it says
//! that something never happens, and nothing about speed: a busy machine must not fail a test.

use std::time::{Duration, Instant};

/// The time after which a condition counts as never met: five minutes.
pub const NEVER: Duration = Duration::from_secs(300);

/// Waits until `holds` is true, and looks every 2 ms.
///
/// # Panics
///
/// With `what`, if the condition does not hold within five minutes.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < NEVER, "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
