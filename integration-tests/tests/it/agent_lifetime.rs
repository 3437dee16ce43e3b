//! An agent that comes late, or does not answer, and its releases: datasets, disks, places.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use foreread_tier_testing::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::agent_node::{LENGTH, Node, PATIENT, Running, TAKEN, digests, fetched};
use crate::support::{Samples, content, foreread, number, run};

const COUNT: u64 = 100;

/// A directory of samples, and an agent with memory for `kept` of them.
fn with_directory(kept: u64) -> (Node, Samples) {
    let mut node = Node::without_agent(1, LENGTH);
    node.start(kept * TAKEN);
    let samples = Samples::new();
    write(&samples, 0);
    (node, samples)
}

fn write(samples: &Samples, version: u64) {
    for number in 0..COUNT {
        samples.add(&format!("{number}.bin"), &content(1000 * version + number, LENGTH as usize));
    }
}

fn load(node: &Node, path: &Path) -> Value {
    let mut command = foreread(["load", path.to_str().unwrap(), "--report=json", "--epochs=2", "--digest"]);
    command.env(PATIENT.0, PATIENT.1);
    run(command.args(["--look-ahead=100KB", "--agent"]).arg(node.socket())).json()
}

fn datasets(node: &Node) -> Vec<Value> {
    node.look()["datasets"].as_array().unwrap().clone()
}

#[test]
// semantics: AGENT-29
fn job_without_an_agent_uses_one_that_starts_later() {
    let mut node = Node::without_agent(1000, LENGTH);
    let arguments = ["--seed", "3", "--epochs", "3"];
    let job =
        Running::start(node.job(&[&arguments[..], &["--memory", "1MB", "--compute-ms", "100"]].concat()));
    until("it runs alone", || job.errors().contains("until it serves this run"));
    // It must not be over before the agent is there.
    job.signal(Signal::STOP);
    node.start(1000 * TAKEN);
    job.signal(Signal::CONT);
    until("it is attached", || !node.look()["jobs"].as_array().unwrap().is_empty());
    let report = job.report();
    assert!(number(&report, "/agent/samples") > 0, "{report}");
    assert_eq!(digests(&report), node.digests(&arguments));
}

/// A killed process has its locks until its memory is released.
#[test]
// semantics: AGENT-5
fn agent_starts_at_once_after_one_was_killed() {
    let mut node = Node::without_agent(1, LENGTH);
    for _ in 0..10 {
        node.start(1000 * TAKEN);
        node.signal(Signal::KILL);
    }
    node.start(TAKEN);
    let line = run(&mut node.agent(&["start", "--memory", "1MB"])).fails(1);
    assert!(line.contains("an agent serves already"), "{line}");
}

#[test]
// semantics: AGENT-31
fn stop_ends_an_agent_that_does_not_answer() {
    let mut node = Node::new(1, 1);
    let is_gone = |process: u32| !Path::new(&format!("/proc/{process}/fd")).exists();
    node.signal(Signal::STOP);
    let named = run(&mut node.agent(&["status"])).fails(1);
    assert!(named.contains(&format!("process {}", node.process)) && named.contains("agent stop"), "{named}");
    run(&mut node.agent(&["stop"])).ok();
    until("it has ended", || is_gone(node.process));
    node.start(1_000_000);
    fs::remove_file(node.socket()).unwrap();
    run(&mut node.agent(&["stop"])).ok();
    until("it has ended, too", || is_gone(node.process));
    let none = run(&mut node.agent(&["stop"])).fails(1);
    assert!(none.contains("agent start"), "{none}");
}

#[test]
// semantics: AGENT-30
fn dataset_is_closed_after_its_last_job_and_its_samples_stay() {
    let (node, samples) = with_directory(COUNT);
    let alias = node.directory.path().join("alias");
    symlink(samples.path(), &alias).unwrap();
    load(&node, samples.path());
    let is_open = || {
        let files = fs::read_dir(format!("/proc/{}/fd", node.process)).unwrap();
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to.starts_with(samples.path())))
    };
    until("it is closed", || !is_open());
    let reads = number(&node.look(), "/reads");
    // Another path to it is the same dataset.
    let report = load(&node, &alias);
    assert_eq!((number(&report, "/agent/samples"), datasets(&node).len()), (fetched(&report), 1));
    let read = number(&node.look(), "/reads") - reads;
    assert!(read < COUNT / 4, "{read} were read again");
    until("it is closed again", || !is_open());
}

#[test]
// semantics: AGENT-30
fn dataset_without_samples_is_forgotten() {
    let (node, samples) = with_directory(0);
    for _ in 0..2 {
        let report = load(&node, samples.path());
        assert_eq!(number(&report, "/agent/direct_samples"), 0);
        until("it is forgotten", || datasets(&node).is_empty());
    }
}

#[test]
// semantics: AGENT-11
fn pinned_dataset_that_was_replaced_gives_its_room() {
    let (node, samples) = with_directory(COUNT);
    run(&mut node.agent(&["set", &format!("pin@{}=true", samples.path().display())])).ok();
    load(&node, samples.path());
    assert!(number(&datasets(&node)[0], "/held_samples") > COUNT * 9 / 10);
    write(&samples, 1);
    load(&node, samples.path());
    let held: Vec<u64> = datasets(&node).iter().map(|dataset| number(dataset, "/held_samples")).collect();
    assert!(held.last().is_some_and(|held| *held > COUNT * 9 / 10), "{held:?}");
}

/// Before its first dataset, an agent owns no space.
#[test]
// semantics: DISK-19
fn idle_agents_do_not_share_a_disk() {
    let mut node = Node::without_agent(1, LENGTH);
    let directory = node.directory.path().join("disk");
    fs::create_dir(&directory).unwrap();
    let disk = format!("{}=20MB", directory.display());
    node.start_with(1_000_000, &["--disk", &disk]);
    let mut second = Node::without_agent(1, LENGTH);
    let refused = run(second.agent(&["start", "--memory=1MB"]).args(["--disk", &disk])).fails(1);
    assert!(refused.contains(&format!("belongs to the agent of process {}", node.process)), "{refused}");
    assert!(refused.contains(&directory.display().to_string()), "{refused}");
    // The first one uses it.
    let samples = Samples::new();
    write(&samples, 0);
    load(&node, samples.path());
    let refused = run(second.agent(&["start", "--memory=1MB"]).args(["--disk", &disk])).fails(1);
    assert!(refused.contains(&format!("owned by process {}", node.process)), "{refused}");
    assert_eq!(node.status()["disk"]["problem"], Value::Null);
    run(&mut node.agent(&["stop"])).ok();
    // A cleaned cache has no lock that would stay.
    run(&mut foreread(["cache", "clean", "--all", directory.to_str().unwrap()])).ok();
    let user = rustix::process::geteuid().as_raw();
    let left = fs::read_dir(directory.join(format!("foreread-cache-{user}"))).unwrap();
    assert_eq!(left.map(|left| left.unwrap().file_name()).collect::<Vec<_>>(), [""; 0]);
    second.start_with(1_000_000, &["--disk", &disk]);
}
