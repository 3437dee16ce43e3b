//! Samples are exchanged inside one run only: on every kind of connection, from its handshake to
//! its last frame.

use std::path::Path;
use std::sync::Arc;

use foreread_peer::frame::{FrameHeader, FrameKind};
use foreread_peer::{
    Address, Nonce, PeerCounters, PeerServer, RunId, ServerLimits, SystemTransport, Transport, WireProtection,
};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{ErrorKind, PeerService};
use foreread_tier_testing::ReadAll;
use foreread_types::Rank;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::support::{
    AnswerRule, Node, SampleStore, WIRES, batch, identity, raw, raw_answer, read_all, read_one, run, samples,
};

/// A run that differs from [`run`] only in rank 0's nonce.
fn other_run() -> RunId {
    RunId::new(Nonce::new([2; 16]), &[])
}

/// Every kind of connection, with an address to listen at.
fn connections(directory: &Path) -> Vec<(WireProtection, Address)> {
    let tcp = WIRES.map(|wire| (wire, Address::tcp("127.0.0.1", 0)));
    let unix = (WireProtection::Authenticated, Address::local(directory.join("rank/0").to_string_lossy()));
    tcp.into_iter().chain([unix]).collect()
}

fn nothing() -> Arc<SampleStore> {
    SampleStore::new(&[], |_, _| AnswerRule::Now)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-7
async fn rank_of_another_run_gets_no_sample_on_any_connection() {
    let directory = tempfile::tempdir().unwrap();
    let known = samples(3, 1000);
    let network: Arc<dyn Transport> = Arc::new(SystemTransport);
    for (wire, address) in connections(directory.path()) {
        let (what, settings) =
            (format!("{wire} {address}"), ServerLimits { wire, ..ServerLimits::default() });
        let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
        let owner = Node::new(&network, 0, &[address], settings, store).await;
        let other = Node::with_identity(&network, identity(1), other_run(), &[], settings, nothing()).await;
        for _ in 0..3 {
            let error = read_one(&owner.seen_by(&other), &known[0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Transient, "{what}: {error}");
            assert!(error.to_string().contains("rank 0 there is in another run"), "{what}: {error}");
        }
        let same = Node::new(&network, 1, &[], settings, nothing()).await;
        read_all(&owner.seen_by(&same), &known).await;
        let tally = owner.server.counters().read();
        assert_eq!((tally.served, tally.unauthenticated), (3, 0), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn rank_in_no_run_serves_no_sample() {
    let world = SimulatedNetwork::new(1);
    let known = samples(2, 1000);
    let listener = world.host("one").listen(&Address::tcp("one", 0)).await.unwrap();
    let counters = Arc::new(PeerCounters::default());
    let server =
        PeerServer::start(&Handle::current(), identity(0), vec![listener], ServerLimits::default(), counters);
    let store: Arc<dyn PeerService> = SampleStore::new(&known, |_, _| AnswerRule::Now);
    server.serve(Arc::downgrade(&store));
    let requester = Node::new(&world.host("two"), 1, &[], ServerLimits::default(), nothing()).await;
    let tier = || requester.requester.remote(Rank(0), server.addresses().to_vec());
    let error = read_one(&tier(), &known[0]).await.unwrap_err().to_string();
    assert!(error.contains("in another run, or in none yet"), "{error}");
    server.enter(run());
    read_all(&tier(), &known).await;
    // It stays in that run.
    server.enter(other_run());
    read_all(&tier(), &known).await;
}

/// A server with the token and a valid handshake that continues with frames of another run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
// semantics: RANK-7
async fn client_rejects_frames_of_another_run_on_any_connection() {
    let directory = tempfile::tempdir().unwrap();
    let known = samples(1, 1000);
    let network: Arc<dyn Transport> = Arc::new(SystemTransport);
    for (wire, address) in connections(directory.path()) {
        let (what, settings) =
            (format!("{wire} {address}"), ServerLimits { wire, ..ServerLimits::default() });
        let mut listener = network.listen(&address).await.unwrap();
        let address = listener.address().clone();
        let (key, content) = (known[0].key, known[0].content.clone());
        let answers = tokio::spawn(async move {
            let (mut stream, mut frames) = raw_answer(&mut *listener, wire).await;
            let mut header = vec![0; frames.head()];
            stream.read_exact(&mut header).await.unwrap();
            let requested = FrameHeader::decode(header.first_chunk().unwrap()).unwrap();
            assert_eq!(requested.job, run().tag());
            let header = FrameHeader::new(FrameKind::Answer, other_run().tag(), requested.request);
            stream.write_all(&frames.frame(header, Some(key), &content)).await.unwrap();
            stream.flush().await.unwrap();
            // Until the client has closed it.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        });
        let requester = Node::new(&network, 1, &[], settings, nothing()).await;
        let tier = requester.requester.remote(Rank(0), vec![address]);
        let answer = tier.read_all(batch(&known)).next().await.unwrap();
        let error = answer.result.unwrap_err().to_string();
        assert!(error.contains("a frame of another run"), "{what}: {error}");
        answers.await.unwrap();
    }
}

/// The same from the client: a request of another run ends its connection.
#[tokio::test(start_paused = true)]
async fn server_rejects_frames_of_another_run() {
    let world = SimulatedNetwork::new(1);
    let known = samples(1, 1000);
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let owner =
        Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], ServerLimits::default(), store).await;
    let network = world.host("two");
    let (mut stream, mut frames) =
        raw(&network, &owner.server.addresses()[0], 1, WireProtection::Authenticated).await;
    let sample_requests = foreread_peer::frame::RequestedSample::encode(std::iter::once(
        foreread_peer::frame::RequestedSample {
            key: known[0].key,
            due: foreread_types::Tick(0),
            length: 1000,
        },
    ));
    let header = FrameHeader::new(FrameKind::Request, other_run().tag(), 1);
    stream.write_all(&frames.frame(header, None, &sample_requests)).await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    assert!(heard.is_empty());
    assert_eq!(owner.server.counters().read().served, 0);
}
