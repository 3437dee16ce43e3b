//! Ranks of two machines, whose caches read from each other: faults of a machine's first rank, and
//! of the network.

use super::{BOUND, Network, equal_samples};
use crate::support::number;

/// Four ranks on two machines, with memory for 60 % of 1,500 samples together.
const MEMBERS: &str = r#"
    member() {
        n=$1; shift
        RANK=$n WORLD_SIZE=4 FOREREAD_MEET=10.7.0.1:29000 FOREREAD_TOKEN=b7e1c95a03f64d2893ab5c17e0d68f42 \
            exec ip netns exec n$((n / 2)) "$FOREREAD" load "$DATASET" --report json --epochs 5 \
            --batch-size 16 --look-ahead 512KiB --compute-ms 40 --digest \
            --memory $((225 * (40000 + 192))) "$@" > report-$n 2> printed-$n
    }
    for n in 0 1 2 3; do member $n & eval pid$n=$!; done
"#;

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-2, RANK-39
fn linked_caches_of_two_nodes_read_the_lower_bound() {
    let network = Network::new(equal_samples());
    network.run(4, &format!("{MEMBERS} wait"));
    let read = network.assert_well(4, &[]);
    println!("{:.4} of the lower bound", read as f64 / BOUND as f64);
    assert!(read <= BOUND + BOUND / 100, "{read} of {BOUND}");
    for rank in 0..4 {
        let report = network.report(rank);
        assert_eq!(number(&report, "/agent/direct_samples"), 0, "{report}");
        // The first rank of a node asks for all of them.
        let received = number(&report, "/peers/received");
        assert_eq!(received > 0, rank % 2 == 0, "{report}");
    }
}

/// The node's other rank reads storage without a cache, and each rank of the other node reads the
/// samples that the node had.
#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16, RANK-39
fn killed_host_of_a_node_costs_reads_only() {
    let network = Network::new(equal_samples());
    let script = r#"
        until_epoch 2 1
        kill -9 $pid2
        wait $pid0 $pid1 $pid3
        echo '{}' > report-2
    "#;
    network.run(4, &format!("{MEMBERS}{script}"));
    let read: u64 = [0, 1, 3].map(|rank| number(&network.report(rank), "/origin_bytes")).iter().sum();
    let bytes = 40_000 * 1500;
    // Of each remaining epoch, a quarter by the rank without a cache, and half of its earlier
    // samples.
    assert!(read <= BOUND + 4 * (bytes / 4 + bytes * 3 / 20) + bytes / 20, "{read}");
    network.assert_delivered(&[0, 1, 3]);
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16
fn restarted_host_of_a_node_keeps_samples_again() {
    let network = Network::new(equal_samples());
    let script = r#"
        until_epoch 2 1
        kill -9 $pid2
        wait $pid2 || true
        member 2 &
        wait
    "#;
    network.run(4, &format!("{MEMBERS}{script}"));
    network.assert_well(4, &[2]);
    // The other node gets samples from it, and it gets some.
    assert!(number(&network.report(2), "/peers/served") > 100, "{}", network.report(2));
    assert!(number(&network.report(2), "/peers/received") > 100, "{}", network.report(2));
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16
fn stopped_host_of_a_node_does_not_delay_others() {
    let network = Network::new(equal_samples());
    let script = r#"
        until_epoch 2 1
        kill -STOP $pid2
        wait $pid0 $pid1 $pid3
        kill -CONT $pid2
        wait
    "#;
    network.run(4, &format!("{MEMBERS}{script}"));
    network.assert_well(4, &[2]);
}

#[test]
#[ignore = "needs network namespaces"]
// semantics: RANK-16, RANK-18
fn node_behind_a_slow_link_is_not_waited_for() {
    let network = Network::new(equal_samples());
    let script = r#"
        until_epoch 2 1
        tc qdisc replace dev outer1 root tbf rate 2mbit burst 32k latency 200ms
        on 1 tc qdisc replace dev inner1 root tbf rate 2mbit burst 32k latency 200ms
        wait
    "#;
    network.run(4, &format!("{MEMBERS}{script}"));
    network.assert_well(4, &[]);
}
