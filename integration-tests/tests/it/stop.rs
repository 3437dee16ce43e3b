//! Ending early: nothing hangs.

use crate::ranks::Rank;
use crate::support::{Samples, foreread};

/// Whether interrupts are ignored, as in background jobs of a shell. The command inherits this.
fn interrupts_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 0b10 != 0)
}

#[test]
// semantics: FAIL-17
fn interrupt_ends_the_command_at_once() {
    let samples = Samples::awkward(300, 10_000);
    // With this slow origin the run would take hours.
    let target = samples.path().to_str().unwrap();
    let mut command =
        foreread(["load", target, "--batch-size", "1", "--epochs", "100", "--origin-limit", "10KB/s"]);
    let run = Rank::start(command.env("RUST_LOG", "foreread_cli=debug"));
    run.wait_for_first_batch();
    run.signal(if interrupts_are_ignored() { "-TERM" } else { "-INT" });
    assert_ne!(run.wait().code, Some(0));
}
