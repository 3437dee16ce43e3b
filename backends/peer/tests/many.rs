//! A thousand ranks in one process. A separate test binary, because it measures the memory of the
//! process.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod common;

use std::sync::Arc;

use foreread_peer::{Address, Identity, Nonce, PeerClientFactory, PeerServer, RunId, ServerLimits, Token};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{HeapBuffers, OpenContext};
use foreread_tier_testing::ReadAll;
use foreread_types::Rank;
use futures::StreamExt;
use tokio::runtime::Handle;

use self::common::{FixedSample, resident};

#[tokio::test(start_paused = true)]
async fn idle_connection_takes_a_few_kilobytes() {
    const RANKS: u32 = 1000;
    let world = SimulatedNetwork::new(3);
    let (known, source) = FixedSample::bytes(10_000);
    let identity = |rank| {
        let token = Token::new("b7e1c95a03f64d2893ab5c17e0d68f42").unwrap();
        Identity { rank: Rank(rank), job: 1, token }
    };
    let listener = world.host("one").listen(&Address::tcp("one", 0)).await.unwrap();
    let server = PeerServer::start(
        &Handle::current(),
        identity(0),
        vec![listener],
        ServerLimits::default(),
        Arc::default(),
    );
    let run = RunId::new(Nonce::default(), &[]);
    server.enter(run);
    server.serve(Arc::downgrade(&source));
    let context = OpenContext { buffers: Arc::new(HeapBuffers), runtime: Handle::current(), seed: 1 };
    let before = resident();
    let mut tiers = Vec::new();
    for rank in 1..=RANKS {
        let network = world.host(format!("h{rank}"));
        let requester = PeerClientFactory::new(identity(rank), run, network, &context, Arc::default());
        let tier = requester.remote(Rank(0), server.addresses().to_vec());
        let answers: Vec<_> = tier.read_all((0..10).map(|tag| known.whole(tag)).collect()).collect().await;
        assert!(answers.iter().all(|answer| answer.result.as_ref().is_ok_and(|got| *got == known.content)));
        tiers.push(tier);
    }
    assert_eq!(world.connections(), RANKS as usize);
    let each = resident().saturating_sub(before) / 1024 / u64::from(RANKS);
    println!("{each} KiB for each connection, both ends and its rank");
    assert!(each <= 24, "{each} KiB");
}
