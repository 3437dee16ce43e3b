//! Samples arrive unchanged over every network.

use std::sync::Arc;

use foreread_peer::{Address, ServerLimits, SystemTransport, Transport, WireProtection};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{ErrorKind, Span};
use foreread_tier_testing::{ReadAll, conformance};
use foreread_types::{DatasetId, SampleKey};
use futures::StreamExt;

use crate::support::{AnswerRule, Node, SampleStore, WIRES, batch, read_all, read_one, samples};

async fn conforms(network: Arc<dyn Transport>, address: Address, wire: WireProtection) {
    let known = conformance::samples(11);
    let settings = ServerLimits { wire, ..ServerLimits::default() };
    for settings in [settings, ServerLimits { budget: 1, share: 1, ..settings }] {
        let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
        let owner = Node::new(&network, 0, std::slice::from_ref(&address), settings, store).await;
        let requester =
            Node::new(&network, 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
        conformance::tier(&*owner.seen_by(&requester), &known).await;
        owner.rests().await;
        owner.server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tier_conformance_over_tcp() {
    for wire in WIRES {
        conforms(Arc::new(SystemTransport), Address::tcp("127.0.0.1", 0), wire).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tier_conformance_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    conforms(
        Arc::new(SystemTransport),
        Address::local(directory.path().join("rank/0").to_string_lossy()),
        WireProtection::default(),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn tier_conformance_over_a_network_in_memory() {
    for wire in WIRES {
        conforms(SimulatedNetwork::new(3).host("one"), Address::tcp("one", 0), wire).await;
    }
}

#[tokio::test]
async fn unix_sockets_are_preferred_and_tcp_is_the_fallback() {
    let directory = tempfile::tempdir().unwrap();
    let network: Arc<dyn Transport> = Arc::new(SystemTransport);
    let known = samples(3, 1000);
    let unix = Address::local(directory.path().join("rank/0").to_string_lossy());
    let listen = [Address::tcp("127.0.0.1", 0), unix.clone()];
    let owner = Node::new(
        &network,
        0,
        &listen,
        ServerLimits::default(),
        SampleStore::new(&known, |_, _| AnswerRule::Now),
    )
    .await;
    let requester =
        Node::new(&network, 1, &[], ServerLimits::default(), SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await;
    let addresses = owner.server.addresses().to_vec();
    let remote = requester.requester.remote(foreread_types::Rank(0), addresses.clone());
    assert!(format!("{remote:?}").contains("[Local("), "{remote:?}");
    read_all(&remote, &known).await;
    // A socket of another node, where no process listens.
    let elsewhere =
        vec![Address::local(directory.path().join("other/0").to_string_lossy()), addresses[0].clone()];
    let remote = requester.requester.remote(foreread_types::Rank(0), elsewhere);
    read_all(&remote, &known).await;
}

#[tokio::test(start_paused = true)]
async fn batches_longer_than_a_frame_are_answered_whole() {
    let network = SimulatedNetwork::new(3).host("one");
    let known = samples(10_000, 10);
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let owner = Node::new(&network, 0, &[Address::tcp("one", 0)], ServerLimits::default(), store).await;
    let requester =
        Node::new(&network, 1, &[], ServerLimits::default(), SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await;
    read_all(&owner.seen_by(&requester), &known).await;
    let (served, got) = (owner.server.counters().read(), requester.server.counters().read());
    assert_eq!((served.served, served.served_bytes, served.refused), (10_000, 100_000, 0));
    assert_eq!(
        (got.requested, got.received, got.received_bytes, got.timed_out, got.disconnected),
        (10_000, 10_000, 100_000, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn each_error_kind_arrives_and_harms_no_other_sample() {
    let network = SimulatedNetwork::new(3).host("one");
    let known = samples(4, 100);
    let store = SampleStore::new(&known, |_, requested| match requested.key.id.0 {
        1 => AnswerRule::Fails(ErrorKind::NotFound),
        2 => AnswerRule::Fails(ErrorKind::Throttled),
        _ => AnswerRule::Now,
    });
    let owner = Node::new(&network, 0, &[Address::tcp("one", 0)], ServerLimits::default(), store).await;
    let requester =
        Node::new(&network, 1, &[], ServerLimits::default(), SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await;
    let tier = owner.seen_by(&requester);
    let mut requested = batch(&known);
    let mut other = known[0].whole(4);
    other.key = SampleKey { dataset: DatasetId(9), ..other.key };
    requested.push(other);
    let mut longer = known[3].whole(5);
    longer.object.size = 101;
    requested.push(longer);
    let mut huge = known[3].whole(6);
    huge.object.size = 5 << 30;
    requested.push(huge);
    let mut part = known[3].whole(7);
    (part.object.size, part.span) = (1 << 40, Span::Range(700..800));
    requested.push(part);
    let mut answers: Vec<_> = tier.read_all(requested).collect().await;
    answers.sort_by_key(|answer| answer.tag);
    let expected =
        answers.iter().map(|answer| answer.result.as_ref().map(|bytes| &bytes[..]).map_err(|e| e.kind()));
    assert_eq!(
        expected.collect::<Vec<_>>(),
        [
            Ok(&known[0].content[..]),
            Err(ErrorKind::NotFound),
            Err(ErrorKind::Throttled),
            Ok(&known[3].content[..]),
            Err(ErrorKind::Absent),
            Err(ErrorKind::Changed),
            Err(ErrorKind::Unsupported),
            Ok(&known[3].content[..]),
        ]
    );
    let error = answers[1].result.as_ref().unwrap_err();
    assert_eq!(error.to_string(), "peer: s/1: not found: rank 0: on command");
}

#[tokio::test(start_paused = true)]
async fn server_without_a_source_holds_no_sample() {
    let network = SimulatedNetwork::new(3).host("one");
    let known = samples(1, 100);
    let mut owner = Node::new(
        &network,
        0,
        &[Address::tcp("one", 0)],
        ServerLimits::default(),
        SampleStore::new(&known, |_, _| AnswerRule::Now),
    )
    .await;
    let requester =
        Node::new(&network, 1, &[], ServerLimits::default(), SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await;
    let tier = owner.seen_by(&requester);
    assert!(read_one(&tier, &known[0]).await.is_ok());
    owner.store = SampleStore::new(&known, |_, _| AnswerRule::Now); // the first is gone
    assert_eq!(read_one(&tier, &known[0]).await.unwrap_err().kind(), ErrorKind::Absent);
}
