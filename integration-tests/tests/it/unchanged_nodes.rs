//! `foreread run` on two nodes, which are two directories for copies here: hosts give each other
//! copies if they share a token and a directory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Finished, content, foreread, number, run};

pub const TOKEN: &str = "b7e1c95a03f64d2893ab5c17e0d68f42";

const FILES: u64 = 90;
const LENGTH: usize = 40_000;

/// Room for half of the files.
const ROOM: u64 = FILES / 2 * 40_960;

/// Files below `data` that are old enough to be copied.
fn dataset() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("data")).unwrap();
    for number in 0..FILES {
        fs::write(directory.path().join(format!("data/{number:03}")), content(number, LENGTH)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(3100));
    directory
}

/// Epochs in random orders. Each prints one digest of all files.
fn epochs(count: usize) -> String {
    let epoch = "for f in $(shuf -e data/*); do sha256sum $f; sleep .005; done | sort | sha256sum";
    vec![epoch; count].join("; ")
}

/// `foreread run` on a node, with a token if `meets`.
fn node(directory: &Path, name: &str, meets: bool, script: &str) -> Command {
    let disk = directory.join(name);
    fs::create_dir_all(&disk).unwrap();
    let mut command = foreread(["run", "--report", "json", "--disk-writes-per-day", "1e9", "--root", "data"]);
    command.arg(format!("--disk={}={ROOM}", disk.display())).args(["--", "sh", "-c", script]);
    command.current_dir(directory).env("FOREREAD_MEET", directory.join("meet"));
    if meets {
        command.env("FOREREAD_TOKEN", TOKEN);
    }
    command
}

/// Runs commands at once.
pub fn all_at_once(commands: Vec<Command>) -> Vec<Finished> {
    std::thread::scope(|scope| {
        let start = |mut command: Command| scope.spawn(move || run(&mut command));
        let started: Vec<_> = commands.into_iter().map(start).collect();
        started.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

#[track_caller]
pub fn report(finished: &Finished) -> Value {
    let line = finished.stderr.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|_| panic!("no report: {}", finished.stderr))
}

fn plain(directory: &Path) -> String {
    let output = Command::new("sh").args(["-c", &epochs(1)]).current_dir(directory).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The files of hosts in the directory in which they find each other.
fn hosts(directory: &Path) -> usize {
    let found = fs::read_dir(directory.join("meet")).unwrap().map(|entry| entry.unwrap().path());
    found.map(|path| fs::read_dir(path).unwrap().count()).sum()
}

#[test]
// semantics: FILES-10
fn nodes_with_a_token_give_each_other_copies() {
    let directory = dataset();
    let path = directory.path();
    fs::create_dir(path.join("meet")).unwrap();
    let expected = plain(path);
    for meets in [false, true] {
        let name = |number: u32| format!("disk-{meets}-{number}");
        let start = |number| node(path, &name(number), meets, &epochs(4));
        let finished = all_at_once(vec![start(0), start(1)]);
        let reports: Vec<Value> = finished.iter().map(report).collect();
        let sum = |name: &str| reports.iter().map(|report| number(report, name)).sum::<u64>();
        assert!(finished.iter().all(|finished| finished.stdout == expected.repeat(4)), "{reports:?}");
        let (fetched, given) = (sum("/host/fetched"), sum("/host/given"));
        println!("token {meets}: {fetched} fetched of {} copied, {given} given", sum("/host/copied"));
        assert_eq!(sum("/host/fetched_bytes"), fetched * LENGTH as u64);
        if meets {
            assert!(fetched > 20 && given >= fetched, "{reports:?}");
        } else {
            assert_eq!((fetched, given), (0, 0));
        }
        assert_eq!(hosts(path), 0, "files of hosts that have ended");
    }
}

#[test]
// semantics: FILES-10
fn killed_host_of_another_node_costs_reads_only() {
    let directory = dataset();
    let path = directory.path();
    fs::create_dir(path.join("meet")).unwrap();
    let expected = plain(path);
    let start = |name: &str, count: usize| {
        let mut command = node(path, name, true, &epochs(count));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (mut killed, other) = (start("disk-0", 9), start("disk-1", 6));
    let begun = Instant::now();
    while hosts(path) < 2 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(3));
    kill_process(Pid::from_raw(killed.id() as i32).unwrap(), Signal::KILL).unwrap();
    killed.wait().unwrap();
    let output = other.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected.repeat(6), "{errors}");
    assert_eq!(hosts(path), 1, "the file of the killed host");
    // The next host of the node replaces it.
    let finished = run(&mut node(path, "disk-0", true, &epochs(1)));
    assert_eq!((finished.ok(), hosts(path)), (expected, 0));
}

#[test]
// semantics: FILES-10
fn weak_token_is_refused_and_other_meetings_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("data")).unwrap();
    let start = |token: &str, meet: &str| {
        let mut command = node(directory.path(), "disk", false, "true");
        run(command.env("FOREREAD_TOKEN", token).env("FOREREAD_MEET", meet))
    };
    let line = start("hunter2", "/tmp").fails(2);
    assert!(line.contains("FOREREAD_TOKEN cannot be used"), "{line}");
    for meet in ["node1:7000", "node1:7000,node2:7000"] {
        start("hunter2", meet).ok();
        start(TOKEN, meet).ok();
    }
    // A directory that is not there costs a warning.
    start(TOKEN, "/no/such/directory").ok();
}
