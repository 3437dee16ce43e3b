//! Samples in shards, through an agent or the cache that the ranks of a node share: the first epoch
//! reads blocks, each once.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use foreread_tier_testing::store::{Archive, HttpStore, NumberedObjects};
use serde_json::Value;

use crate::agent_node::{Node, TAKEN, digests};
use crate::s3::at;
use crate::support::{number, run};

const SHARDS: u64 = 4;
const SAMPLES: u64 = 2000;
/// The blocks of all shards, of 2 MB.
const BLOCKS: u64 = 12;

/// The calibration of a store with 50 ms latency, limited by requests and not by bytes.
const LATE: &str = "version = 1\nmade = 0\n[origin]\nurl = \"s3://train\"\nsample_bytes = 10000\n\
    latency_seconds = 0.05\nstream_bytes_per_second = 80000000\n\
    [[origin.read]]\nparallelism = 8\nbytes_per_second = 500000000\nspread = 0.0\nsamples = 100\n";

/// A node whose store has the samples in shards, without an agent yet.
fn node() -> Node {
    let node = Node::without_agent(1, 1);
    let store = &node.store;
    store.bucket("shards");
    for shard in 0..SHARDS {
        // Of different lengths, so that no sample has the bytes of one in another shard.
        let members = NumberedObjects::named(SAMPLES / SHARDS, 9_990 + shard, |id| format!("{id:04}.bin"));
        store.put_content("shards", &format!("{shard}.tar"), Arc::new(Archive::new(members)));
    }
    store.set_latency(Duration::from_millis(5));
    let catalog = node.directory.path().join("catalog");
    run(&mut at(store, &["index", "s3://shards", "-o", catalog.to_str().unwrap()])).ok();
    fs::write(node.directory.path().join("late.toml"), LATE).unwrap();
    node
}

/// What jobs over the shards have in common.
fn load(node: &Node, arguments: &[&str]) -> std::process::Command {
    let place = |name: &str| node.directory.path().join(name);
    let mut command = node.foreread(&["load"]);
    command.arg(place("catalog")).args(["--report", "json", "--digest", "--progress", "off"]);
    command.arg("--calibration").arg(place("late.toml")).args(["--look-ahead", "1MB"]).args(arguments);
    command
}

/// A job with the node's agent.
fn job(node: &Node, arguments: &[&str]) -> Value {
    run(load(node, arguments).arg("--agent").arg(node.socket())).json()
}

fn alone(node: &Node, arguments: &[&str]) -> Vec<String> {
    digests(&run(load(node, arguments).args(["--agent", "off", "--memory", "0"])).json())
}

fn requests(store: &HttpStore) -> (u64, u64) {
    let requested = store.requests();
    store.reset();
    (requested.get, requested.bytes)
}

#[test]
// semantics: AGENT-27
fn agent_reads_blocks_of_shards_once() {
    let mut node = node();
    let arguments = ["--epochs", "2", "--seed", "3"];
    let expected = alone(&node, &arguments);
    node.start(SAMPLES * 5 / 4 * TAKEN);
    requests(&node.store);
    let report = job(&node, &arguments);
    assert_eq!(digests(&report), expected);
    assert_eq!(number(&report, "/agent/direct_samples"), 0);
    let (got, bytes) = requests(&node.store);
    println!("{got} requests, {bytes} bytes");
    assert_eq!(got, BLOCKS);
    assert!(bytes <= SAMPLES * 11_000, "{bytes}");
    // Another job finds them in memory.
    assert_eq!(
        digests(&job(&node, &["--epochs", "2", "--seed", "4"])),
        alone(&node, &["--epochs", "2", "--seed", "4"])
    );
}

#[test]
// semantics: AGENT-27
fn half_of_shards_is_read_in_blocks_and_each_byte_once() {
    let mut node = node();
    let arguments = ["--epochs", "2", "--seed", "3"];
    let expected = alone(&node, &arguments);
    node.start(SAMPLES / 2 * TAKEN);
    requests(&node.store);
    assert_eq!(digests(&job(&node, &arguments)), expected);
    let (got, bytes) = requests(&node.store);
    println!("{got} requests, {bytes} bytes");
    // Nearly half in blocks, and the other samples one by one in each epoch.
    assert!(got <= SAMPLES + SAMPLES / 5, "{got} requests");
    assert!(bytes <= SAMPLES / 2 * 3 * 11_000, "{bytes}");
}

#[test]
// semantics: AGENT-27
fn ranks_of_a_node_read_blocks_into_their_memory() {
    let node = node();
    requests(&node.store);
    let meeting = tempfile::tempdir().unwrap();
    let start = |rank: u32| {
        let mut command = load(&node, &["--epochs", "2", "--seed", "3", "--memory", "16MB"]);
        command.env("FOREREAD_MEET", meeting.path()).env("WORLD_SIZE", "2").env("RANK", rank.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..2).map(start).collect();
    let reports: Vec<Value> = ranks
        .into_iter()
        .map(|process| {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice(&output.stdout).unwrap()
        })
        .collect();
    let (got, bytes) = requests(&node.store);
    println!("{got} requests, {bytes} bytes");
    for (rank, report) in reports.iter().enumerate() {
        let rank = rank.to_string();
        let of_rank =
            ["--epochs", "2", "--seed", "3", "--world-size", "2", "--rank", &rank, "--peers", "off"];
        assert_eq!(digests(report), alone(&node, &of_rank));
        assert_eq!(number(report, "/agent/direct_samples"), 0);
    }
    assert_eq!(got, BLOCKS);
    assert!(bytes <= SAMPLES * 11_000, "{bytes}");
}
