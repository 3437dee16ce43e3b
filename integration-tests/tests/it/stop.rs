//! Ending early: nothing hangs, whatever the run was doing.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Samples, foreread};

#[test]
fn an_interrupt_ends_the_command_at_once() {
    let samples = Samples::awkward(300, 10_000);
    // So slow an origin that the run would take five minutes.
    let target = samples.path().to_str().unwrap();
    let mut child = foreread(["load", target, "--origin-limit", "10KB/s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let interrupt =
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
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
