//! `foreread run` with an agent, which makes the copies.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::agent_node::{LENGTH, Node, Running};
use crate::support::{content, number, run};
use crate::unchanged::{ended, report};

/// The agent's disk.
const ROOM: u64 = 4_000_000;

/// The bytes of a few copies.
const UNDER_WAY: u64 = 8 * 8192;

/// Files that take most of it.
const FILES: u64 = 300;

/// An agent with a disk, and files.
fn node() -> (Node, PathBuf) {
    let mut node = Node::without_agent(300, LENGTH);
    let [disk, root] = ["disk", "files"].map(|name| node.directory.path().join(name));
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&root).unwrap();
    for number in 0..FILES {
        fs::write(root.join(format!("{number:03}")), content(number, 8000)).unwrap();
    }
    node.start_with(1_000_000, &["--disk", &format!("{}={ROOM}", disk.display())]);
    (node, root)
}

fn unchanged(node: &Node, root: &PathBuf, script: &str) -> Command {
    let mut command = node.foreread(&["run", "--report", "json", "--agent"]);
    command.arg(node.socket()).arg("--root").arg(root).args(["--", "sh", "-c", script]);
    command.current_dir(root);
    command
}

/// The bytes of the directory's files that count in the room.
fn bytes_on_disk(node: &Node) -> u64 {
    let du = Command::new("du").args(["-s", "-B1"]).arg(node.directory.path().join("disk")).output().unwrap();
    String::from_utf8(du.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
// semantics: FILES-11
fn agent_makes_copies_within_the_room_of_its_samples() {
    let (mut node, root) = node();
    let expected = run(Command::new("sh").args(["-c", "cat * | sha256sum"]).current_dir(&root)).ok();
    // Samples of a job take a part of the room first.
    let mut load = node.foreread(&["load", "s3://train", "--report", "json", "--progress", "off", "--agent"]);
    run(load.arg(node.socket()));
    until("samples are on the disk", || number(&node.look(), "/datasets/0/disk_samples") > 100);
    let copies = |status: &Value| status["files"]["host"]["copies"].as_u64().unwrap_or_default();
    // Copies are made while a program runs, and a program that reads these files once ends too
    // soon.
    let script = "while [ -e ../disk ] && [ ! -e ../end ]; do cat * | sha256sum; sleep .05; done";
    let program = Running::start(unchanged(&node, &root, script));
    until("copies are made", || copies(&node.status()) > 50);
    fs::write(node.directory.path().join("end"), b"").unwrap();
    let (found, _) = ended(program);
    assert!(found.lines().all(|line| line == expected.trim()), "{found}");
    let finished = run(&mut unchanged(&node, &root, "cat * | sha256sum"));
    let (report, status) = (report(&finished), node.status());
    assert_eq!(finished.stdout, expected);
    assert!(number(&report, "/served") > 50 && report["host"].is_null(), "{report}");
    let samples = number(&status, "/datasets/0/disk_bytes");
    let files = number(&status, "/files/host/held_bytes");
    println!("{samples} bytes of samples, {files} of files, {} in all", bytes_on_disk(&node));
    // They are listed, and not removed while the agent has them.
    let disk = node.directory.path().join("disk");
    let text = run(node.foreread(&["cache", "list"]).arg(&disk)).ok();
    assert!(text.contains("whole files") && text.contains("in use"), "{text}");
    let text = run(node.foreread(&["cache", "clean", "--all"]).arg(&disk)).ok();
    assert!(text.contains("skipped whole files"), "{text}");
    // One quota, apart from the table of the copies.
    assert!(samples > 900_000 && samples + files <= ROOM, "{status}");
    assert!(number(&status, "/disk/held_bytes") <= ROOM, "{status}");
    // Another agent counts the copies that are there.
    run(&mut node.agent(&["stop"])).ok();
    node.start_with(1_000_000, &["--disk", &format!("{}={ROOM}", disk.display())]);
    // The copies that were under way at the end are gone.
    assert!(number(&node.status(), "/disk/held_bytes") >= files - UNDER_WAY, "{}", node.status());
    run(&mut node.agent(&["stop"])).ok();
    let text = run(node.foreread(&["cache", "clean", "--all"]).arg(&disk)).ok();
    assert!(text.contains("removed whole files"), "{text}");
    assert!(bytes_on_disk(&node) < 500_000, "{}", bytes_on_disk(&node));
}

#[test]
// semantics: FILES-11
fn agent_shows_programs_and_may_end_before_them() {
    let (node, root) = node();
    let expected = run(Command::new("sh").args(["-c", "cat * | sha256sum"]).current_dir(&root)).ok();
    let script = "while [ -e ../disk ] && [ ! -e ../end ]; do cat * | sha256sum; sleep .05; done";
    let program = Running::start(unchanged(&node, &root, script));
    until("the program is served", || number_or_0(&node.look(), "/files/runs/0/served") > FILES);
    let text = run(&mut node.agent(&["status"])).stdout;
    assert!(text.contains("files        ") && text.contains("opens had a local copy"), "{text}");
    let process = number(&node.status(), "/process");
    let user = rustix::process::geteuid().as_raw();
    let ready = node.directory.path().join(format!("disk/foreread-files-{user}/ready"));
    let began = || fs::metadata(&ready).and_then(|found| found.modified()).ok();
    let before = began();
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    until("the program's run has taken over", || began() > before);
    fs::write(node.directory.path().join("end"), b"").unwrap();
    let (found, report) = ended(program);
    assert!(found.lines().all(|line| line == expected.trim()), "{found}");
    assert!(report["host"].is_object() && number(&report, "/served") > FILES, "{report}");
}

fn number_or_0(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

#[test]
// semantics: FILES-11
fn runs_without_room_or_agent_are_one_line() {
    let node = Node::without_agent(1, LENGTH);
    let mut command = node.foreread(&["run", "--root", ".", "--agent"]);
    let line = run(command.arg(node.socket()).args(["--", "true"])).fails(2);
    assert!(line.contains("--disk DIR=SIZE") && line.contains("no agent"), "{line}");
}
