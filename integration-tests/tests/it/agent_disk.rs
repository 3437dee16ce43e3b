//! An agent with a disk: the samples that it keeps there, their jobs, and its writes.

use std::fs;

use foreread_tier_testing::store::NumberedObjects;
use foreread_tier_testing::until;
use serde_json::Value;

use crate::agent_node::{LENGTH, Node, Running, TAKEN, assert_requests, digests, fetched};
use crate::support::{number, run};

/// The bytes of a sample on a disk: its bytes and trailer, a multiple of 64, and its index.
const ON_DISK: u64 = 10_048 + 20;

/// The fixed bytes of a disk cache.
const OVERHEAD: u64 = 300_000;

/// An agent with a disk for `kept` samples, and memory for `in_memory`.
fn with_disk(samples: u64, in_memory: u64, kept: u64, more: &[&str]) -> Node {
    let mut node = Node::without_agent(samples, LENGTH);
    start(&mut node, in_memory, kept, more);
    node
}

fn start(node: &mut Node, in_memory: u64, kept: u64, more: &[&str]) {
    let directory = node.directory.path().join("disk");
    fs::create_dir_all(&directory).unwrap();
    let disk = format!("{}={}", directory.display(), kept * ON_DISK + OVERHEAD);
    node.start_with(in_memory * TAKEN, &[&["--disk", &*disk][..], more].concat());
}

fn load(node: &Node, bucket: &str, arguments: &[&str]) -> Value {
    let mut command =
        node.foreread(&["load", bucket, "--report", "json", "--look-ahead", "500KB", "--digest"]);
    run(command.args(arguments).args(["--progress", "off"]).arg("--agent").arg(node.socket())).json()
}

/// Runs jobs until all 400 samples are on the disk: a busy one skips some.
fn write_all(node: &Node) {
    until("all samples are on the disk", || {
        load(node, "s3://train", &[]);
        number(&node.status(), "/datasets/0/disk_samples") == 400
    });
}

#[test]
// semantics: AGENT-14
fn samples_on_disk_are_not_read_again_and_outlive_the_agent() {
    let mut node = with_disk(1000, 300, 400, &[]);
    let job = ["--seed", "3", "--epochs", "3"];
    let report = load(&node, "s3://train", &job);
    assert_eq!(number(&report, "/agent/samples"), fetched(&report));
    // Samples are written behind their uses, and `stop` waits a second for them.
    until("they are written", || number(&node.look(), "/datasets/0/disk_samples") >= 390);
    let (status, requests) = (node.status(), node.store.requests().get);
    assert_eq!(digests(&report), node.digests(&job));
    let (held, on_disk) =
        (number(&status, "/datasets/0/held_samples"), number(&status, "/datasets/0/disk_samples"));
    println!("{held} in memory, {on_disk} on the disk, {} reads in three epochs", number(&status, "/reads"));
    // How many samples memory keeps depends on how soon the job gives its own back.
    assert!((390..=405).contains(&on_disk) && held > 0, "{status}");
    // The savings by memory are tested on simulated time.
    let reads = number(&status, "/reads");
    assert!(reads <= 1000 + 2 * (1000 - 390), "{reads}");
    assert_requests(requests, reads);
    assert!(number(&status, "/disk_reads") > 0);

    run(&mut node.agent(&["stop"])).ok();
    let before = node.store.requests().get;
    start(&mut node, 300, 400, &[]);
    let report = load(&node, "s3://train", &["--seed", "4", "--epochs", "1"]);
    assert_eq!(digests(&report), node.digests(&["--seed", "4", "--epochs", "1"]));
    let read = number(&node.status(), "/reads");
    assert!(read <= 1000 - 390, "{read} of 1000 after {before}");
}

/// Guards against this fault: an agent opened its disk for the first dataset of a job alone, which
/// removed the samples that it had of the second one.
#[test]
// semantics: AGENT-14
fn restarted_agent_keeps_both_datasets_of_a_job() {
    let mut node = with_disk(300, 0, 400, &[]);
    node.store.numbered("other", NumberedObjects::new(300, LENGTH));
    let job = ["--epochs", "2", "--validate", "s3://other"];
    let on_disk = |node: &Node| {
        let status = node.status();
        let datasets = status["datasets"].as_array().unwrap().iter();
        datasets.map(|dataset| number(dataset, "/disk_samples")).collect::<Vec<u64>>()
    };
    let mut before = Vec::new();
    until("both datasets are on the disk", || {
        load(&node, "s3://train", &job);
        before = on_disk(&node);
        before.iter().sum::<u64>() >= 380 && before.iter().all(|kept| *kept > 20)
    });
    run(&mut node.agent(&["stop"])).ok();
    start(&mut node, 0, 400, &[]);
    load(&node, "s3://train", &["--epochs", "1", "--validate", "s3://other"]);
    let after = on_disk(&node);
    assert!(after.iter().zip(&before).all(|(after, before)| after >= before), "{after:?} {before:?}");
}

#[test]
// semantics: AGENT-14
fn third_of_three_datasets_gets_the_disk() {
    let node = with_disk(400, 0, 450, &[]);
    run(&mut node.agent(&["set", "disk-writes-per-day=1000000"])).fails(2);
    run(&mut node.agent(&["set", "disk-writes-per-day=100000"])).ok();
    for bucket in ["second", "third"] {
        node.store.numbered(bucket, NumberedObjects::new(400, LENGTH));
    }
    for bucket in ["train", "second", "third"] {
        // The budget of writes grows with time. A refused sample is tried again at its next use.
        until("it is written", || {
            load(&node, &format!("s3://{bucket}"), &["--epochs", "1"]);
            let status = node.status();
            let datasets = status["datasets"].as_array().unwrap();
            let of =
                datasets.iter().find(|dataset| dataset["url"].as_str().unwrap().contains(bucket)).unwrap();
            number(of, "/disk_samples") == 400
        });
        let before = node.store.requests().get;
        // From the second epoch on, nothing is read: the lower bound.
        load(&node, &format!("s3://{bucket}"), &["--epochs", "2", "--seed", "9"]);
        assert_requests(node.store.requests().get - before, 0);
    }
    let status = node.status();
    assert!(number(&status, "/disk/written_bytes") >= 3 * 400 * LENGTH, "{status}");
}

#[test]
// semantics: AGENT-15
fn writes_beyond_the_budget_are_refused_and_counted() {
    let node = with_disk(400, 0, 420, &[]);
    node.store.numbered("second", NumberedObjects::new(400, LENGTH));
    write_all(&node);
    run(&mut node.agent(&["set", "disk-writes-per-day=0"])).ok();
    load(&node, "s3://second", &["--epochs", "2"]);
    let status = node.status();
    // The free room at the start was its only budget.
    assert!(number(&status, "/disk/written_bytes") <= 420 * ON_DISK + OVERHEAD, "{status}");
    assert!(number(&status, "/disk/refused") > 300, "{status}");
    let left = number(&status, "/datasets/0/disk_samples");
    assert!(left >= 350, "{left}: samples left for others that may not be written");
    let text = run(&mut node.agent(&["status"])).stdout;
    assert!(text.contains("samples not written (disk-writes-per-day)"), "{text}");
}

#[test]
// semantics: AGENT-14
fn damaged_disk_costs_reads_and_no_sample() {
    let node = with_disk(400, 0, 420, &[]);
    write_all(&node);
    let mut damaged = 0;
    for entry in walk(&node.directory.path().join("disk")) {
        let mut bytes = fs::read(&entry).unwrap();
        if bytes.len() < 100_000 {
            continue;
        }
        bytes.iter_mut().step_by(97_001).for_each(|byte| *byte ^= 1);
        damaged += bytes.len() / 97_001;
        // In place: the agent has the file open.
        std::os::unix::fs::FileExt::write_all_at(
            &fs::OpenOptions::new().write(true).open(&entry).unwrap(),
            &bytes,
            0,
        )
        .unwrap();
    }
    assert!(damaged > 20, "{damaged}");
    let report = load(&node, "s3://train", &["--seed", "6"]);
    assert_eq!(digests(&report), node.digests(&["--seed", "6"]));
}

/// The disk was read-only, or gone, after a dataset had come while samples were read and written.
#[test]
// semantics: AGENT-14
fn datasets_that_come_under_load_share_the_disk() {
    let node = with_disk(1000, 100, 600, &[]);
    for number in 0..4 {
        node.store.numbered(&format!("other{number}"), NumberedObjects::new(100, LENGTH));
    }
    run(&mut node.agent(&["set", "disk-writes-per-day=100000"])).ok();
    let capacity = || number(&node.status(), "/disk/capacity");
    let jobs = ["1", "2"].map(|seed| {
        let mut job = node.foreread(&["load", "s3://train", "--report", "json", "--digest", "--seed", seed]);
        job.args(["--epochs", "10", "--look-ahead", "2MB", "--progress", "off", "--agent"])
            .arg(node.socket());
        Running::start(job)
    });
    until("samples are written", || number(&node.look(), "/disk/written_bytes") > 1_000_000);
    let first = capacity();
    // A job on a busy machine may take the agent for silent, and read by itself.
    let mut direct = 0;
    let mut digests_of = |report: Value| {
        direct += number(&report, "/agent/direct_samples");
        digests(&report)
    };
    for number in 0..4 {
        let bucket = format!("s3://other{number}");
        let mut alone = node.foreread(&["load", &bucket, "--report", "json", "--digest", "--agent", "off"]);
        assert_eq!(digests_of(load(&node, &bucket, &[])), digests(&run(&mut alone).json()));
        // Each dataset takes something for its index.
        assert!(capacity() > first / 2, "{} of {first}", capacity());
    }
    for (job, seed) in jobs.into_iter().zip(["1", "2"]) {
        assert_eq!(digests_of(job.report()), node.digests(&["--seed", seed, "--epochs", "10"]));
    }
    let status = node.status();
    let (reads, requests) = (number(&status, "/reads"), node.store.requests().get);
    // Jobs without the agent have separate caches. A late read is hedged by each of seven
    // processes.
    let hedged = requests - reads - (2 * 1000 + 4 * 100 + direct);
    assert!(hedged <= 7 * 16 + requests * 3 / 100, "{hedged}: {status}");
    assert!(number(&status, "/disk_reads") > 0);
}

/// All files below a directory.
fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}
