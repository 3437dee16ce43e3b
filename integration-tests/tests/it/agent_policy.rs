//! The policy of an agent: limits, weights and room, from its file and by `agent set`; `foreread
//! warm`.

use std::fs;
use std::time::Instant;

use foreread_tier_testing::until;
use serde_json::Value;

use crate::agent_node::{LENGTH, Node, Running, TAKEN, assert_requests, digests};
use crate::support::{number, run};

/// Large samples, so that a limit in bytes needs few requests. Limits are low, so that a slow
/// machine reaches them.
const LARGE: u64 = 100_000;

/// Jobs over large samples that never end by themselves.
fn endless_jobs(node: &Node, names: &[&str]) -> Vec<Running> {
    let job = |(seed, name): (usize, &&str)| {
        let mut command = node.foreread(&["load", "s3://train", "--epochs", "1000", "--look-ahead", "20MB"]);
        command.args(["--batch-size", "16"]);
        command.args(["--seed", &seed.to_string(), "--job-name", name, "--progress", "off"]);
        command.arg("--agent").arg(node.socket());
        Running::start(command)
    };
    names.iter().enumerate().map(job).collect()
}

/// The bytes that are read from storage, and those for each job by its name.
fn read_bytes(status: &Value) -> (u64, Vec<(String, u64)>) {
    let jobs = status["jobs"].as_array().unwrap().iter();
    let of = |job: &Value| (job["name"].as_str().unwrap().to_owned(), number(job, "/read_bytes"));
    let mut jobs: Vec<_> = jobs.map(of).collect();
    jobs.sort();
    (number(status, "/read_bytes"), jobs)
}

/// While so many bytes are read: the bytes per second, and the part of each job.
fn rates(node: &Node, bytes: u64) -> (f64, Vec<f64>) {
    let begun = Instant::now();
    let (before, jobs_before) = read_bytes(&node.look());
    let (mut after, mut jobs) = (before, Vec::new());
    until("the bytes are read", || {
        (after, jobs) = read_bytes(&node.look());
        after >= before + bytes
    });
    // Both looks are within this time, so that a limit never seems exceeded.
    let took = begun.elapsed().as_secs_f64();
    let read = (after - before) as f64;
    let of = |((name, before), (same, after)): (&(String, u64), &(String, u64))| {
        assert_eq!(name, same);
        (after - before) as f64 / read
    };
    (read / took, jobs_before.iter().zip(&jobs).map(of).collect())
}

#[test]
// semantics: AGENT-10
fn limit_of_a_store_holds_over_four_jobs_and_changes_at_once() {
    let mut node = Node::without_agent(2000, LARGE);
    node.start_with(0, &["--origin-limit", "10MB/s"]);
    let jobs = endless_jobs(&node, &["a", "b", "c", "d"]);
    until("all read", || {
        let status = node.status();
        number(&status, "/read_bytes") > 2_000_000 && status["jobs"].as_array().unwrap().len() == 4
    });
    until("jobs have equal shares", || {
        let (all, each) = rates(&node, 40_000_000);
        println!("{:.2} MB/s of 10, by job {each:.3?}", all / 1e6);
        assert!(all <= 10.2e6, "{all}");
        each.iter().all(|part| (part - 0.25).abs() < 0.02)
    });
    run(&mut node.agent(&["set", "limit@*=3MB/s"])).ok();
    until("the new limit holds", || {
        let (all, _) = rates(&node, 12_000_000);
        println!("{:.2} MB/s of 3", all / 1e6);
        (2.5e6..=3.06e6).contains(&all)
    });
    let status = node.status();
    let policy = status["policy"].as_array().unwrap();
    assert!(
        policy
            .iter()
            .any(|value| value["key"] == "limit@*" && value["value"] == "3MB/s" && value["source"] == "set")
    );
    until("all jobs wait for the limit", || {
        let status = node.look();
        status["jobs"].as_array().unwrap().iter().all(|job| job["waits_for"] == "limit")
    });
    drop(jobs);
}

#[test]
// semantics: AGENT-10
fn weights_divide_the_time_of_a_store() {
    let mut node = Node::without_agent(2000, LARGE);
    let policy = node.directory.path().join("agent.toml");
    fs::write(&policy, "[weight]\nheavy = 4\n\"mid*\" = 2\n[limit]\n\"s3://*\" = \"8MB/s\"\n").unwrap();
    node.start_with(0, &["--policy", policy.to_str().unwrap()]);
    let jobs = endless_jobs(&node, &["heavy", "light", "middle"]);
    until("all read", || {
        let (_, jobs) = read_bytes(&node.status());
        jobs.len() == 3 && jobs.iter().all(|(_, bytes)| *bytes > 2_000_000)
    });
    // On a busy machine, jobs are late with their requests in some seconds.
    let check = |expected: [f64; 3]| {
        until("shares are by weight", || {
            let (all, each) = rates(&node, 24_000_000);
            println!("{each:.3?} of {:.1} MB/s, expected {expected:.3?}", all / 1e6);
            each.iter().zip(expected).all(|(part, expected)| (part / expected - 1.0).abs() < 0.05)
        });
    };
    check([4.0 / 7.0, 1.0 / 7.0, 2.0 / 7.0]);
    // The file is read again by itself.
    fs::write(&policy, "[weight]\nlight = 3\n[limit]\n\"s3://train\" = \"6MB/s\"\n").unwrap();
    until("the new limit is shown", || number(&node.look(), "/stores/0/limit") == 6_000_000);
    check([1.0 / 5.0, 3.0 / 5.0, 1.0 / 5.0]);
    // A mistake changes nothing, and is shown.
    fs::write(&policy, "[colour]\nlight = 3\n").unwrap();
    until("the mistake is shown", || node.look()["policy"].to_string().contains("there is no such key"));
    assert_eq!(number(&node.status(), "/stores/0/limit"), 6_000_000);
    drop(jobs);
}

#[test]
// semantics: AGENT-11
fn pinned_dataset_stays_and_unused_ones_leave() {
    let node = Node::new(100, 110);
    node.store.numbered("other", foreread_tier_testing::store::NumberedObjects::new(100, LENGTH));
    let load = |bucket: &str| {
        let mut command = node.foreread(&["load", bucket, "--report", "json", "--look-ahead", "1MB"]);
        run(command.arg("--agent").arg(node.socket())).json()
    };
    let held = |bucket: &str| {
        let status = node.status();
        let datasets = status["datasets"].as_array().unwrap();
        let of = datasets.iter().find(|dataset| dataset["url"].as_str().unwrap().contains(bucket));
        of.map_or(0, |dataset| number(dataset, "/held_samples"))
    };
    // A job on a busy machine may take the agent for silent, and read by itself.
    until("it is kept", || {
        load("s3://train");
        held("train") == 100
    });
    run(&mut node.agent(&["set", "pin@s3://train*=true"])).ok();
    load("s3://other");
    assert_eq!(held("train"), 100);
    assert!(held("other") <= 10, "{}", held("other"));
    run(&mut node.agent(&["set", "pin@s3://train*=none"])).ok();
    until("the other one is kept", || {
        load("s3://other");
        held("other") >= 95
    });
    assert!(held("train") <= 10, "{}", held("train"));
    run(&mut node.agent(&["set", "cap@s3://other*=200KB"])).ok();
    assert!(held("other") <= 19, "{}", held("other"));
    assert!(run(&mut node.agent(&["set", "floor@x=1TB"])).fails(2).contains("and the memory is"));
}

#[test]
// semantics: AGENT-12
fn warm_fills_the_memory_once_however_many_ask() {
    let node = Node::new(1000, 2000);
    let warm = |arguments: &[&str]| {
        let mut command = node.foreread(&["warm", "s3://train", "--report", "json", "--progress", "off"]);
        command.args(arguments).arg("--agent").arg(node.socket());
        command
    };
    let asking: Vec<Running> = (0..4).map(|_| Running::start(warm(&["--wait", "80%"]))).collect();
    for asked in asking {
        let report = asked.report();
        assert!(number(&report, "/held_samples") >= 800, "{report}");
    }
    let report = run(&mut warm(&["--wait", "100%"])).json();
    assert_eq!((number(&report, "/held_samples"), &report["is_active"]), (1000, &Value::Bool(false)));
    assert_requests(node.store.requests().get, 1000);
    // The job reads nothing.
    let report = run(&mut node.job(&["--seed", "5"])).json();
    assert_eq!(digests(&report), node.digests(&["--seed", "5"]));
    assert_requests(number(&node.status(), "/reads"), 1000);
    // Without waiting, and without an agent.
    assert!(run(&mut warm(&[])).stdout.contains("\"is_active\""));
    let mut alone = node.foreread(&["warm", "s3://train", "--agent", "off"]);
    assert!(run(&mut alone).fails(1).contains("no agent keeps s3://train"));
    assert!(run(&mut warm(&["--wait", "much"])).fails(2).contains("such as 80%"));
}

#[test]
// semantics: AGENT-12
fn warming_takes_free_room_only() {
    let node = Node::new(1000, 300);
    let other = "other";
    node.store.numbered(other, foreread_tier_testing::store::NumberedObjects::new(200, LENGTH));
    let mut job =
        node.foreread(&["load", "s3://other", "--epochs", "1000", "--compute-ms", "20", "--report", "json"]);
    job.arg("--agent").arg(node.socket());
    let job = Running::start(job);
    until("the job's samples are kept", || number(&node.look(), "/samples") == 200);
    let mut warm = node.foreread(&["warm", "s3://train", "--wait", "100%", "--report", "json", "--agent"]);
    let report = run(warm.arg(node.socket())).json();
    let held = number(&report, "/held_samples");
    assert!((90..=100).contains(&held) && report["is_active"] == false, "{report}");
    let reads = node.store.requests().get;
    assert!(reads <= 200 + 110 + 64, "{reads}");
    assert!(number(&node.status(), "/held_bytes") <= 300 * TAKEN);
    drop(job);
}
