//! Ranks on simulated machines: each in a network namespace with a separate address and a link of 1
//! Gbit/s.
//!
//! `FOREREAD_TEST_NETWORK` holds the words that make a namespace in which namespaces may be made,
//! to be put before a command.

mod cluster;
mod linked;

use std::process::Command;

use serde_json::Value;

use crate::ranks::{assert_digests, assert_digests_of};
use crate::support::{DEADLINE, Finished, Samples, binary, clean, content, needed, number, watch};

/// `$MACHINES` machines `n0`, `n1`, ... at 10.7.0.1 and up on one bridge, by default three. `on N
/// COMMAND` runs on one of them. `rank N ARGUMENTS` is a rank of a run of `$RANKS` that writes its
/// report to `report-N`. `until_epoch N EPOCH` waits for the rank's first batch of an epoch.
pub(crate) const MACHINES: &str = r#"
set -e
ip link set lo up
ip link add bridge type bridge
ip link set bridge up
mkdir -p /run/netns 2>/dev/null || true
mount -t tmpfs tmpfs /run/netns 2>/dev/null || true
for n in $(seq 0 $((${MACHINES:-3} - 1))); do
    ip netns add n$n
    ip link add outer$n type veth peer name inner$n
    ip link set inner$n netns n$n
    ip link set outer$n master bridge up
    ip -n n$n addr add 10.7.0.$((n + 1))/24 dev inner$n
    ip -n n$n link set lo up
    ip -n n$n link set inner$n up
    tc qdisc add dev outer$n root tbf rate 1gbit burst 512k latency 20ms
    ip netns exec n$n tc qdisc add dev inner$n root tbf rate 1gbit burst 512k latency 20ms
done
on() { machine=$1; shift; ip netns exec n$machine "$@"; }
rank() {
    n=$1; shift
    RANK=$n WORLD_SIZE=$RANKS FOREREAD_MEET=10.7.0.1:29000 FOREREAD_TOKEN=b7e1c95a03f64d2893ab5c17e0d68f42 \
        exec ip netns exec n$n "$FOREREAD" load "$DATASET" --report json "$@" > report-$n 2> printed-$n
}
until_epoch() { until grep -q "first batch epoch=$2 " printed-$1; do sleep 0.05; done; }
"#;

/// The words that make a namespace for networks.
fn words() -> String {
    needed("FOREREAD_TEST_NETWORK")
}

struct Network {
    samples: Samples,
    words: String,
    directory: tempfile::TempDir,
}

impl Network {
    fn new(samples: Samples) -> Self {
        let words = words();
        Self { samples, words, directory: tempfile::tempdir().unwrap() }
    }

    /// Runs a shell script on the machines.
    #[track_caller]
    fn run(&self, ranks: u32, script: &str) -> Finished {
        let words: Vec<&str> = self.words.split(' ').collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["sh", "-c", &format!("{MACHINES}\n{script}")]);
        clean(&mut command)
            .env("DATASET", self.samples.path())
            .env("FOREREAD", binary())
            .env("RANKS", ranks.to_string())
            .env("RUST_LOG", "warn,foreread_cli=debug")
            .current_dir(self.directory.path());
        watch(&mut command, DEADLINE, |_| ())
    }

    fn report(&self, rank: u32) -> Value {
        let read = |what: &str| {
            std::fs::read_to_string(self.directory.path().join(format!("{what}-{rank}"))).unwrap()
        };
        let report = read("report");
        serde_json::from_str(&report)
            .unwrap_or_else(|_| panic!("rank {rank} printed {report}{}", read("printed")))
    }

    /// Asserts that these ranks of four delivered their orders.
    #[track_caller]
    fn assert_delivered(&self, ranks: &[u32]) {
        for rank in ranks {
            assert_digests_of(&self.samples, 4, *rank, &self.report(*rank));
        }
    }

    /// Asserts that each rank delivered its order, and that only the ranks `but` waited for a lost
    /// one. Returns the total reads from the origin.
    #[track_caller]
    fn assert_well(&self, ranks: u32, but: &[u32]) -> u64 {
        let reports: Vec<Value> = (0..ranks).map(|rank| self.report(rank)).collect();
        assert_digests(&self.samples, &reports);
        for (rank, report) in (0..).zip(&reports).filter(|(rank, _)| !but.contains(rank)) {
            // A rank that waits for a lost one waits half a minute. That it waits two seconds at
            // most is shown on a simulated network, because this machine may have other work.
            assert!(longest_stall(report) < 20.0, "rank {rank} waited {} s", longest_stall(report));
        }
        reports.iter().map(|report| number(report, "/origin_bytes")).sum()
    }
}

/// The most stalled seconds of a rank in an epoch, without the first.
fn longest_stall(report: &Value) -> f64 {
    let epochs = report["epochs"].as_array().unwrap();
    epochs.iter().skip(1).map(|epoch| epoch["stall_seconds"].as_f64().unwrap()).fold(0.0, f64::max)
}

const RUN: &str = "--epochs 6 --batch-size 16 --memory 100MB --look-ahead 8MiB --compute-ms 20 --digest";

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16
fn disconnected_rank_does_not_delay_others() {
    let network = Network::new(Samples::awkward(1500, 40_000));
    let script = format!(
        "for n in 0 1 2; do rank $n {RUN} & done\n\
         until_epoch 2 1\n\
         ip link set outer2 down\n\
         wait\n"
    );
    network.run(3, &script);
    let read = network.assert_well(3, &[]);
    // At most, in each of the five remaining epochs: the lost rank's third of the others' samples,
    // and the others' two thirds of its samples.
    let bytes = network.samples.bytes();
    assert!(read <= bytes + 5 * bytes * 4 / 9 + bytes / 20, "{read} of {bytes}");
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16
fn killed_and_restarted_ranks_cost_reads_only() {
    let network = Network::new(Samples::awkward(1500, 40_000));
    let script = format!(
        "for n in 0 1 2; do rank $n {RUN} & eval pid$n=$!; done\n\
         until_epoch 2 1\n\
         kill -9 $pid2\n\
         wait $pid2 || true\n\
         rank 2 {RUN} &\n\
         wait\n"
    );
    network.run(3, &script);
    let read = network.assert_well(3, &[2]);
    // The lost rank's third, by the others, which use two thirds of it per epoch, and once by the
    // restarted rank.
    let bytes = network.samples.bytes();
    assert!(read <= bytes + 5 * bytes * 2 / 9 + bytes / 3 + bytes / 20, "{read} of {bytes}");
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16
fn rank_stopped_until_others_end_does_not_delay_them() {
    let network = Network::new(Samples::awkward(1500, 40_000));
    let script = format!(
        "for n in 0 1 2; do rank $n {RUN} & eval pid$n=$!; done\n\
         until_epoch 1 1\n\
         kill -STOP $pid1\n\
         wait $pid0 $pid2\n\
         kill -CONT $pid1\n\
         wait\n"
    );
    network.run(3, &script);
    network.assert_well(3, &[1]);
}

/// Ranks of one node in a namespace without any address: not even the loopback interface is up.
#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-39, RANK-8
fn ranks_of_a_node_without_network_share_its_cache() {
    let network = Network::new(Samples::awkward(600, 20_000));
    let script = r#"
        ip netns add none
        member() {
            n=$1
            RANK=$n WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
                exec ip netns exec none "$FOREREAD" load "$DATASET" --report json \
                --epochs 3 --batch-size 16 --memory 20MB --digest > report-$n 2> printed-$n
        }
        ip netns exec none cat /proc/net/route | wc -l > report-4
        for n in 0 1; do member $n & done
        wait
    "#;
    network.run(2, script);
    assert_eq!(network.report(4), 0, "the namespace has no route");
    let read = network.assert_well(2, &[]);
    assert_eq!(read, network.samples.bytes(), "each sample is read once");
}

/// Guards against this fault: the first rank of a node, which hosts its disk, was killed. When it
/// was restarted, it opened its part of the disk with its part of the size. That removed half of
/// the samples.
#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-37
fn restarted_host_does_not_shrink_the_disk() {
    let network = Network::new(Samples::awkward(600, 20_000));
    let script = r#"
        member() {
            n=$1; shift
            RANK=$n WORLD_SIZE=4 FOREREAD_MEET=10.7.0.1:29000 FOREREAD_TOKEN=b7e1c95a03f64d2893ab5c17e0d68f42 \
                exec ip netns exec n$((n / 2)) "$FOREREAD" load "$DATASET" --report json --epochs 8 --digest \
                --batch-size 16 --look-ahead 512KiB --memory 100kB --compute-ms 60 \
                --disk "$PWD/disk$((n / 2))=8MB" > report-$n 2> printed-$n
        }
        for n in 0 1 2 3; do member $n & eval pid$n=$!; done
        until_epoch 2 3
        kill -9 $pid2
        wait $pid2 || true
        member 2 &
        wait
        "$FOREREAD" load "$DATASET" --report json --memory 0 --epochs 1 --digest --disk "$PWD/disk1=8MB" > report-4
    "#;
    network.run(4, script);
    network.assert_well(4, &[2]);
    assert!(number(&network.report(3), "/agent/direct_samples") > 0);
    let read = number(&network.report(4), "/origin_requests");
    assert!(read < 350, "{read} of 600 samples are not on the disk that had half of them");
}

/// Jobs in containers: namespaces of their own for users, mounts and the network. Only the
/// directory of the agent's socket and the data are the same. No user of one side exists in the
/// other.
#[test]
#[ignore = "needs network namespaces"]
// semantics: AGENT-16
fn containers_with_the_agents_directory_share_its_cache() {
    let network = Network::new(Samples::awkward(200, 10_000));
    let script = r#"
        mkdir -m 700 agent
        "$FOREREAD" agent start --memory 100MB --socket "$PWD/agent/node.sock"
        for n in 0 1; do
            ip netns exec n$n unshare --user --mount sh -c '
                "$FOREREAD" load "$DATASET" --epochs 2 --seed $0 --digest --report json \
                    --agent "$PWD/agent/node.sock" > report-$0 2> printed-$0' $n
        done
        # Without the directory there is no agent: sockets of other kinds would be found in any case.
        ip netns exec n2 unshare --mount sh -c '
            mount -t tmpfs none "$PWD/agent"
            "$FOREREAD" load "$DATASET" --epochs 1 --report json --agent "$PWD/agent/node.sock" > report-2 2> printed-2'
        "$FOREREAD" agent status --report json --socket "$PWD/agent/node.sock" > report-3
        "$FOREREAD" agent stop --socket "$PWD/agent/node.sock"
    "#;
    network.run(1, script);
    for rank in 0..2 {
        let agent = &network.report(rank)["agent"];
        assert!(number(agent, "/samples") >= 200 && number(agent, "/direct_samples") == 0, "{agent}");
    }
    assert!(network.report(2)["agent"].is_null());
    assert_eq!(number(&network.report(3), "/reads"), 200, "each sample was read once for both");
}

/// Four ranks on two machines, each with an agent for 30 % of 1,500 samples.
const TWO_NODES: &str = r#"
    member() {
        n=$1; shift
        RANK=$n WORLD_SIZE=4 FOREREAD_MEET=10.7.0.1:29000 FOREREAD_TOKEN=b7e1c95a03f64d2893ab5c17e0d68f42 \
            exec ip netns exec n$((n / 2)) "$FOREREAD" load "$DATASET" --report json --epochs 5 \
            --batch-size 16 --look-ahead 512KiB --compute-ms 40 --digest \
            --agent "$PWD/agent$((n / 2))/node.sock" "$@" > report-$n 2> printed-$n
    }
    for n in 0 1; do
        mkdir -m 700 agent$n
        on $n "$FOREREAD" agent start --memory $((450 * (40000 + 192))) --socket "$PWD/agent$n/node.sock"
    done
    finish() {
        wait
        for n in 0 1; do
            "$FOREREAD" agent status --report json --socket "$PWD/agent$n/node.sock" > report-1$n
            "$FOREREAD" agent stop --socket "$PWD/agent$n/node.sock"
        done
    }
"#;

/// The bytes that no cache of 900 of these samples can save in five epochs: all once, and then in
/// each epoch the samples that the caches have no room for.
const BOUND: u64 = 40_000 * (1500 + 4 * 600);

/// 1,500 samples of 40,000 bytes.
fn equal_samples() -> Samples {
    let samples = Samples::new();
    (0..1500_u64).for_each(|id| samples.add(&id.to_string(), &content(id, 40_000)));
    samples
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: AGENT-25
fn ranks_of_two_nodes_share_their_agents_caches() {
    let network = Network::new(equal_samples());
    network.run(4, &format!("{TWO_NODES} for n in 0 1 2 3; do member $n & done; finish"));
    let read_directly = network.assert_well(4, &[]);
    assert_eq!(read_directly, 0);
    let agents = [network.report(10), network.report(11)];
    let read: u64 = agents.iter().map(|agent| number(agent, "/read_bytes")).sum();
    println!("{:.4} of the lower bound", read as f64 / BOUND as f64);
    assert!(read <= BOUND + BOUND / 100, "{read} of {BOUND}");
    for rank in 0..4 {
        let report = network.report(rank);
        assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
        // A third of the samples that its node uses is on the other one. The first rank requests
        // all.
        let received = number(&report, "/peers/received");
        let expected = if rank % 2 == 0 { 8 * 80..8 * 145 } else { 0..1 };
        assert!(expected.contains(&received), "{received}");
    }
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: AGENT-25
fn agent_that_dies_under_ranks_of_two_nodes_costs_reads_only() {
    let network = Network::new(equal_samples());
    let script = r#"
        for n in 0 1 2 3; do member $n & done
        on 0 "$FOREREAD" load "$DATASET" --report json --epochs 3 --seed 9 --digest --compute-ms 20 \
            --look-ahead 512KiB --agent "$PWD/agent0/node.sock" > report-4 2> printed-4 &
        for n in 0 1 2 3 4; do until_epoch $n 1; done
        killed=$("$FOREREAD" agent status --report json --socket "$PWD/agent1/node.sock" | \
            sed 's/{"process":\([0-9]*\).*/\1/')
        kill -9 $killed
        wait
        "$FOREREAD" agent stop --socket "$PWD/agent0/node.sock"
    "#;
    network.run(4, &format!("{TWO_NODES}{script}"));
    // Read by the ranks of the second node.
    assert!(network.assert_well(4, &[]) > 0);
    let other = network.report(4);
    assert_eq!(number(&other, "/agent/direct_samples"), 0, "{other}");
    let ids = |report: &Value| number(&report["epochs"][2], "/samples");
    assert_eq!(ids(&other), 1500);
}
