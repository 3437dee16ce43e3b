//! Samples are exchanged inside one run: on every kind of connection, from its handshake to its last frame.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use foreread_peer::frame::{HEADER, Header, Kind};
use foreread_peer::{
    Address, Counters, Network, Nonce, PeerTier, Purpose, RunId, Server, Settings, Simulated, System,
    handshake,
};
use foreread_tier::{ErrorKind, Serve, Tier};
use foreread_types::Rank;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::encrypted::{encrypted, files};
use crate::support::{How, Node, Shelf, batch, identity, read_all, read_one, run, samples};

/// A run that differs from [`run`] in what rank 0 has drawn, and in nothing else.
fn other_run() -> RunId {
    RunId::new(Nonce::new([2; 16]), &[])
}

/// Every kind of connection that ranks have, with a place to listen at.
fn networks(directory: &Path) -> Vec<(&'static str, Arc<dyn Network>, Address)> {
    let tls = encrypted(&files(directory, &["127.0.0.1"], None));
    let tcp = || Address::tcp("127.0.0.1", 0);
    vec![
        ("tcp", Arc::new(System), tcp()),
        ("unix", Arc::new(System), Address::local(directory.join("plain/0").to_string_lossy())),
        ("tls", Arc::clone(&tls), tcp()),
        ("unix beside tls", tls, Address::local(directory.join("beside/0").to_string_lossy())),
    ]
}

fn nothing() -> Arc<Shelf> {
    Shelf::new(&[], |_, _| How::Now)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rank_of_another_run_gets_no_sample_on_any_connection() {
    let directory = tempfile::tempdir().unwrap();
    let known = samples(3, 1000);
    for (what, network, address) in networks(directory.path()) {
        let shelf = Shelf::new(&known, |_, _| How::Now);
        let owner = Node::new(&network, 0, &[address], Settings::default(), shelf).await;
        let none = Settings::default();
        let other = Node::with_identity(&network, identity(1), other_run(), &[], none, nothing()).await;
        for _ in 0..3 {
            let error = read_one(&owner.tier_for(&other), &known[0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Transient, "{what}: {error}");
            assert!(error.to_string().contains("rank 0 there is in another run"), "{what}: {error}");
        }
        let same = Node::new(&network, 1, &[], Settings::default(), nothing()).await;
        read_all(&owner.tier_for(&same), &known).await;
        let tally = owner.server.counters().read();
        assert_eq!((tally.served, tally.strangers), (3, 0), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn rank_in_no_run_yet_serves_nobody() {
    let world = Simulated::new(1);
    let known = samples(2, 1000);
    let listener = world.host("one").listen(&Address::tcp("one", 0)).await.unwrap();
    let counters = Arc::new(Counters::default());
    let server =
        Server::start(&Handle::current(), identity(0), vec![listener], Settings::default(), counters);
    let shelf: Arc<dyn Serve> = Shelf::new(&known, |_, _| How::Now);
    server.serve(Arc::downgrade(&shelf));
    let asker = Node::new(&world.host("two"), 1, &[], Settings::default(), nothing()).await;
    let tier = || PeerTier::new(vec![asker.asker.remote(Rank(0), server.addresses().to_vec())]);
    let error = read_one(&tier(), &known[0]).await.unwrap_err().to_string();
    assert!(error.contains("in another run, or in none yet"), "{error}");
    server.enter(run());
    read_all(&tier(), &known).await;
    // It stays in that run.
    server.enter(other_run());
    read_all(&tier(), &known).await;
}

/// Whoever has the token and says the right words at first, and goes on with another run's frames.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_takes_no_frame_of_another_run_on_any_connection() {
    let directory = tempfile::tempdir().unwrap();
    let known = samples(1, 1000);
    for (what, network, address) in networks(directory.path()) {
        let mut listener = network.listen(&address).await.unwrap();
        let address = listener.address().clone();
        let content = known[0].content.clone();
        let answers = tokio::spawn(async move {
            let (stream, from) = listener.accept().await.unwrap();
            let spoke = AtomicBool::new(false);
            let wanted = |purpose| purpose == Purpose::Samples(run());
            let answered = handshake::answer(stream, from, &identity(0), wanted, &spoke).await;
            let (mut stream, _) = answered.unwrap();
            let mut header = [0; HEADER];
            stream.read_exact(&mut header).await.unwrap();
            let asked = Header::decode(&header).unwrap();
            assert_eq!(asked.job, run().tag());
            let frame = Header::new(Kind::Answer, other_run().tag(), asked.request).over(&content);
            stream.write_all(&[&frame.encode()[..], &content].concat()).await.unwrap();
            stream.flush().await.unwrap();
            // Until the asker has closed it.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        });
        let asker = Node::new(&network, 1, &[], Settings::default(), nothing()).await;
        let tier = PeerTier::new(vec![asker.asker.remote(Rank(0), vec![address])]);
        let answer = tier.read(batch(&known)).next().await.unwrap();
        let error = answer.result.unwrap_err().to_string();
        assert!(error.contains("a frame of another run"), "{what}: {error}");
        answers.await.unwrap();
    }
}

/// The same from who asks: a question of another run ends its connection.
#[tokio::test(start_paused = true)]
async fn server_takes_no_frame_of_another_run() {
    let world = Simulated::new(1);
    let known = samples(1, 1000);
    let shelf = Shelf::new(&known, |_, _| How::Now);
    let owner = Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], Settings::default(), shelf).await;
    let network = world.host("two");
    let mut stream = crate::support::raw(&network, &owner.server.addresses()[0], 1).await;
    let asks = foreread_peer::frame::Ask::encode(std::iter::once(foreread_peer::frame::Ask {
        key: known[0].key,
        due: foreread_types::Tick(0),
        length: 1000,
    }));
    let frame = Header::new(Kind::Ask, other_run().tag(), 1).over(&asks);
    stream.write_all(&[&frame.encode()[..], &asks].concat()).await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    assert!(heard.is_empty());
    assert_eq!(owner.server.counters().read().served, 0);
}
