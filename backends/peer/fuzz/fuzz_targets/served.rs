//! Sends arbitrary bytes to a rank on an authenticated connection. The connection ends or
//! continues, and nothing of it remains held.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use foreread_peer::{
    Address, Identity, Nonce, PeerServer, Purpose, RunId, ServerLimits, Token, WireProtection, handshake,
};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{PeerRequest, PeerService, PeerReply, PeerReplies};
use foreread_types::Rank;
use futures::{StreamExt, stream};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[derive(Debug)]
struct FixedSample;

impl PeerService for FixedSample {
    fn serve(&self, _: Rank, requested: Vec<PeerRequest>) -> PeerReplies {
        let answers = requested.into_iter().flat_map(|requested| {
            let done = PeerReply::Done { tag: requested.tag, result: Ok(vec![7; 100].into()) };
            [PeerReply::Reading { tag: requested.tag }, done]
        });
        stream::iter(answers.collect::<Vec<_>>()).boxed()
    }
}

fuzz_target!(|bytes: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let world = SimulatedNetwork::new(1);
        let listener = world.host("one").listen(&Address::tcp("one", 0)).await.expect("a listener");
        let token = Token::new("b7e1c95a03f64d2893ab5c17e0d68f42").expect("a token");
        let identity = |rank| Identity { rank: Rank(rank), job: 1, token: token.clone() };
        let runtime = tokio::runtime::Handle::current();
        let settings = ServerLimits { budget: 1000, share: 1000, wire: WireProtection::Checksummed };
        let server = PeerServer::start(&runtime, identity(0), vec![listener], settings, Arc::default());
        let run = RunId::new(Nonce::default(), &[]);
        server.enter(run);
        let source: Arc<dyn PeerService> = Arc::new(FixedSample);
        server.serve(Arc::downgrade(&source));
        let stream = world.host("two").connect(&server.addresses()[0]).await.expect("a connection");
        // Without tags, because payloads with an invalid tag are never decoded.
        let requested =
            let purpose = Purpose::Samples(run);
            handshake::initiate(stream, &identity(1), purpose, WireProtection::Checksummed, None).await;
        let (mut stream, _) = requested.expect("a handshake").0.into_raw();
        let _ = stream.write_all(bytes).await;
        let mut heard = [0; 4096];
        while let Ok(Ok(1..)) = timeout(Duration::from_millis(90), stream.read(&mut heard)).await {}
        drop(stream);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(server.in_use(), 0);
    });
});
