//! Ending early: nothing hangs.

use std::process::Stdio;
use std::time::{Duration, Instant};

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
    // With this slow origin the run would take five minutes.
    let target = samples.path().to_str().unwrap();
    let mut child = foreread(["load", target, "--origin-limit", "10KB/s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let signal = if interrupts_are_ignored() { "-TERM" } else { "-INT" };
    let interrupt =
        std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("the command still runs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
