//! A run whose rank 0 was killed, and a later run over other data with the same address, token, ids
//! and lengths. Left-over ranks of the earlier run must not get the later run's bytes, nor delay
//! it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::ranks::{Rank, RankJob, assert_digests, ids};
use crate::support::{Samples, content, load, number};

/// The same names and lengths twice, with other bytes.
fn twice(count: u64, bytes: u64) -> (Samples, Samples) {
    let (one, other) = (Samples::awkward(count, bytes), Samples::awkward(count, bytes));
    for (number, path) in (10_000..).zip(other.in_order()) {
        let length = fs::metadata(&path).unwrap().len();
        fs::write(&path, content(number, length as usize)).unwrap();
    }
    (one, other)
}

/// A port that was free a moment ago.
fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(job: &RankJob, rank: u32, port: u16, more: &[String]) -> Rank {
    let mut command = job.command(rank);
    command
        .args(more)
        .env("FOREREAD_MEET", format!("127.0.0.1:{port}"))
        .env("FOREREAD_TOKEN", "b7e1c95a03f64d2893ab5c17e0d68f42");
    job.start_as(&mut command)
}

fn disk(directory: &Path, rank: u32) -> String {
    let own = directory.join(rank.to_string());
    fs::create_dir_all(&own).unwrap();
    format!("--disk={}=100MB", own.display())
}

/// Kills rank 0 during a run over `one` and starts a run over `other` with the same address.
/// Returns the report of the left-over rank, after both runs have delivered their samples.
fn after_a_kill(
    (one, other): (&Samples, &Samples),
    arguments: &[&str],
    more: impl Fn(&str, u32) -> Vec<String>,
) -> Value {
    let port = port();
    let (old, new) = (RankJob::new(2, one, arguments), RankJob::new(2, other, arguments));
    let mut ranks: Vec<Rank> = (0..2).map(|rank| start(&old, rank, port, &more("old", rank))).collect();
    ranks[0].wait_for_first_batch();
    ranks[0].process.kill().unwrap();
    ranks[0].process.wait().unwrap();
    let left_over = ranks.remove(1);
    let later: Vec<Rank> = (0..2).map(|rank| start(&new, rank, port, &more("new", rank))).collect();
    let report = left_over.wait().json();
    let reports: Vec<Value> = later.into_iter().map(|rank| rank.wait().json()).collect();
    assert_digests(other, &reports);
    for epoch in report["epochs"].as_array().unwrap() {
        let of = epoch["epoch"].as_u64().unwrap();
        let expected = ids(number(&report, "/samples"), of, 2, 1);
        assert_eq!(epoch["digest"], one.digest(&expected), "epoch {of}");
    }
    report
}

#[test]
// semantics: RANK-7
fn left_over_rank_delivers_its_own_data_to_the_end() {
    let (one, other) = twice(320, 5000);
    // Room for half: the other rank's samples are requested in each epoch.
    let memory = (one.bytes() / 2).to_string();
    let arguments = [
        "--epochs",
        "5",
        "--batch-size",
        "8",
        "--digest",
        "--compute-ms",
        "150",
        "--look-ahead",
        "64KiB",
        "--memory",
        &memory,
    ];
    let report = after_a_kill((&one, &other), &arguments, |_, _| Vec::new());
    assert_eq!(number(&report, "/epochs/4/epoch"), 4);
}

#[test]
// semantics: RANK-7
fn left_over_rank_keeps_no_foreign_bytes_on_disk() {
    let (one, other) = twice(400, 5000);
    let directory = tempfile::tempdir().unwrap();
    // Many epochs: a rank caches copies of samples that it uses at least twice.
    let arguments = [
        "--epochs",
        "8",
        "--batch-size",
        "8",
        "--digest",
        "--compute-ms",
        "100",
        "--look-ahead",
        "64KiB",
        "--memory",
        "0",
    ];
    let more = |run: &str, rank: u32| vec![disk(&directory.path().join(run), rank)];
    after_a_kill((&one, &other), &arguments, more);
    // A later run alone, from its cache.
    let kept = disk(&directory.path().join("old"), 1);
    let again = load(&one, &["--epochs", "1", "--digest", "--memory", "0", &kept]);
    crate::support::assert_digests(&one, &again);
    let read = number(&again, "/origin_requests");
    assert!(read < 150, "{read} of 400 samples were not on the disk");
}
