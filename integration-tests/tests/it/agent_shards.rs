//! Samples in shards, through an agent or the cache that the ranks of a node share: the first epoch
//! reads blocks, each once.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use foreread_tier_testing::store::{Archive, HttpStore, NumberedObjects};
use serde_json::Value;

use crate::agent_node::{Node, Running, TAKEN, digests};
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

/// The common arguments of jobs over the shards.
fn load(node: &Node, arguments: &[&str]) -> Command {
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
fn warming_reads_shards_in_blocks() {
    let mut node = node();
    node.start(SAMPLES * 5 / 4 * TAKEN);
    requests(&node.store);
    let catalog = node.directory.path().join("catalog");
    let mut warm = node.foreread(&["warm", catalog.to_str().unwrap(), "--wait", "100%", "--progress", "off"]);
    run(warm.arg("--agent").arg(node.socket())).ok();
    let (got, bytes) = requests(&node.store);
    println!("{got} requests, {bytes} bytes");
    assert!(got <= 8 * SHARDS && bytes <= SAMPLES * 11_000, "{got} requests, {bytes} bytes");
    // The job after it finds them.
    let expected = alone(&node, &["--epochs", "1", "--seed", "3"]);
    requests(&node.store);
    assert_eq!(digests(&job(&node, &["--epochs", "1", "--seed", "3"])), expected);
    assert_eq!(requests(&node.store).0, 0);
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

/// The reports of two ranks of one node, and the digests of the same ranks alone.
fn ranks_and_alone(load: &dyn Fn(&[&str]) -> Command, memory: &str) -> (Vec<Value>, Vec<Vec<String>>) {
    let meeting = tempfile::tempdir().unwrap();
    let start = |rank: u32| {
        let mut command = load(&["--epochs", "2", "--seed", "3", "--memory", memory]);
        command.env("FOREREAD_MEET", meeting.path()).env("WORLD_SIZE", "2").env("RANK", rank.to_string());
        Running::start(command)
    };
    let ranks = [start(0), start(1)];
    let reports = ranks.map(Running::report).into();
    let alone = |rank| {
        let of_rank = ["--epochs", "2", "--seed", "3", "--world-size", "2", "--rank", rank, "--peers", "off"];
        digests(&run(load(&of_rank).args(["--agent", "off", "--memory", "0"])).json())
    };
    (reports, ["0", "1"].map(alone).into())
}

#[test]
// semantics: AGENT-27
fn ranks_of_a_node_read_blocks_into_their_memory() {
    let node = node();
    requests(&node.store);
    let (reports, alone) = ranks_and_alone(&|arguments| load(&node, arguments), "16MB");
    let read: u64 = reports.iter().map(|report| number(report, "/origin_requests")).sum();
    assert_eq!(read, BLOCKS);
    for (report, alone) in reports.iter().zip(alone) {
        assert_eq!(digests(report), alone);
        assert_eq!(number(report, "/agent/direct_samples"), 0);
    }
}

/// Rows of a compressed table, 25 in each page.
const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/foreread/tests/fixtures/units.parquet");
const PAGES: u64 = 24;

fn units() -> Node {
    let node = Node::without_agent(1, 1);
    node.store.bucket("units");
    node.store.put("units", "units.parquet", fs::read(UNITS).unwrap());
    node
}

fn load_units(node: &Node, arguments: &[&str]) -> Command {
    let mut command = node.foreread(&["load", "s3://units/units.parquet", "--report", "json", "--digest"]);
    command.args(["--progress", "off", "--look-ahead", "30KB"]).args(arguments);
    command
}

#[test]
// semantics: AGENT-27
fn agent_decodes_each_compressed_unit_once() {
    let mut node = units();
    let arguments = ["--epochs", "3", "--seed", "3"];
    let expected = digests(&run(load_units(&node, &arguments).args(["--agent", "off"])).json());
    node.start(100_000);
    // Such an agent would decode a page for nearly every row.
    let refused = run(load_units(&node, &arguments).arg("--agent").arg(node.socket()));
    assert!(refused.stderr.contains("compressed units, and need"), "{}", refused.stderr);
    assert_eq!(digests(&refused.json()), expected);
    run(&mut node.agent(&["stop"])).ok();
    node.start(1_000_000);
    requests(&node.store);
    // And the table's footer, by each job.
    for reads in [PAGES + 4, 4] {
        let report = run(load_units(&node, &arguments).arg("--agent").arg(node.socket())).json();
        assert_eq!(digests(&report), expected);
        assert_eq!(number(&report, "/agent/direct_samples"), 0);
        assert_eq!(requests(&node.store).0, reads);
    }
}

#[test]
// semantics: AGENT-27
fn ranks_of_a_node_decode_each_compressed_unit_once() {
    let node = units();
    for (memory, is_shared) in [("1MB", true), ("100KB", false)] {
        requests(&node.store);
        let (reports, alone) = ranks_and_alone(&|arguments| load_units(&node, arguments), memory);
        for (report, alone) in reports.iter().zip(alone) {
            assert_eq!(digests(report), alone);
            assert_eq!(report["agent"].is_object(), is_shared, "{report}");
        }
        let read: u64 = reports.iter().map(|report| number(report, "/origin_requests")).sum();
        assert!(!is_shared || read == PAGES, "{read} requests");
    }
}
