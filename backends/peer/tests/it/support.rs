//! Ranks with samples, and rules for how they answer.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::{
    Address, BoxedStream, Identity, Nonce, PeerClient, PeerClientFactory, PeerCounters, PeerServer, Purpose,
    RawFrames, RunId, SampleOffer, ServerLimits, Token, Transport, TransportListener, WireProtection,
    handshake,
};
use foreread_tier::{
    ArenaBuffers, ErrorKind, OpenContext, PeerReplies, PeerReply, PeerRequest, PeerService, Tier, TierError,
};
use foreread_tier_testing::{KnownSample, ReadAll};
use foreread_types::{Rank, SampleKey};
use futures::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::time::sleep;

pub const JOB: u64 = 0x0123_4567_89ab_cdef;

pub fn identity(rank: u32) -> Identity {
    let token = Token::new("b7e1c95a03f64d2893ab5c17e0d68f42").unwrap();
    Identity { rank: Rank(rank), job: JOB, token }
}

/// The default run of the tests.
pub fn run() -> RunId {
    RunId::new(Nonce::new([1; 16]), &[])
}

/// How a rank handles a request.
#[derive(Clone, Copy, Debug)]
pub enum AnswerRule {
    /// Answers at once.
    Now,
    /// Answers after a time without an acknowledgement.
    Silently(Duration),
    /// Acknowledges, and answers after a time.
    Reading(Duration),
    /// Never replies.
    Never,
    /// Fails.
    Fails(ErrorKind),
}

type Rule = Box<dyn Fn(Rank, &PeerRequest) -> AnswerRule + Send + Sync>;

/// A rank's samples.
pub struct SampleStore {
    samples: HashMap<SampleKey, Bytes>,
    rule: Rule,
    /// Reads that a caller still waits for.
    pub open: Arc<AtomicUsize>,
}

impl fmt::Debug for SampleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleStore").field("samples", &self.samples.len()).finish_non_exhaustive()
    }
}

impl SampleStore {
    pub fn new(
        known: &[KnownSample],
        rule: impl Fn(Rank, &PeerRequest) -> AnswerRule + Send + Sync + 'static,
    ) -> Arc<Self> {
        let samples = known.iter().map(|known| (known.key, known.content.clone())).collect();
        Arc::new(Self { samples, rule: Box::new(rule), open: Arc::default() })
    }

    pub fn open(&self) -> usize {
        self.open.load(SeqCst)
    }
}

struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, SeqCst);
        Self(Arc::clone(open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl PeerService for SampleStore {
    fn serve(&self, from: Rank, requested: Vec<PeerRequest>) -> PeerReplies {
        let one = |requested: PeerRequest| {
            let tag = requested.tag;
            let held = self.samples.get(&requested.key).cloned();
            let result = held.ok_or_else(|| TierError::new(ErrorKind::Absent, "store"));
            let open = Open::new(&self.open);
            let done = move |result| {
                drop(open);
                PeerReply::Done { tag, result }
            };
            match (self.rule)(from, &requested) {
                AnswerRule::Now => stream::iter([done(result)]).boxed(),
                AnswerRule::Fails(kind) => {
                    let error = TierError::new(kind, "store").with_detail("on command");
                    stream::iter([done(Err(error))]).boxed()
                }
                AnswerRule::Never => {
                    let pending = async move {
                        let _held = done;
                        std::future::pending().await
                    };
                    stream::once(pending).boxed()
                }
                AnswerRule::Silently(time) => {
                    let answer = async move {
                        sleep(time).await;
                        done(result)
                    };
                    stream::once(answer).boxed()
                }
                AnswerRule::Reading(time) => {
                    let answer = async move {
                        sleep(time).await;
                        done(result)
                    };
                    stream::iter([PeerReply::Reading { tag }]).chain(stream::once(answer)).boxed()
                }
            }
        };
        stream::select_all(requested.into_iter().map(one)).boxed()
    }
}

/// A rank that serves and requests samples.
pub struct Node {
    pub server: PeerServer,
    pub requester: PeerClientFactory,
    pub store: Arc<SampleStore>,
    rank: Rank,
}

pub fn context() -> OpenContext {
    let buffers = Arc::new(ArenaBuffers::default());
    OpenContext { buffers, runtime: Handle::current(), seed: 7 }
}

impl Node {
    pub async fn new(
        network: &Arc<dyn Transport>,
        rank: u32,
        listen: &[Address],
        settings: ServerLimits,
        store: Arc<SampleStore>,
    ) -> Self {
        Self::with_identity(network, identity(rank), run(), listen, settings, store).await
    }

    pub async fn with_identity(
        network: &Arc<dyn Transport>,
        identity: Identity,
        run: RunId,
        listen: &[Address],
        settings: ServerLimits,
        store: Arc<SampleStore>,
    ) -> Self {
        let mut listeners = Vec::new();
        for address in listen {
            listeners.push(network.listen(address).await.unwrap());
        }
        let counters = Arc::new(PeerCounters::default());
        let runtime = Handle::current();
        let requester = PeerClientFactory::new(
            identity.clone(),
            run,
            Arc::clone(network),
            &context(),
            Arc::clone(&counters),
        )
        .with_wire(settings.wire);
        let rank = identity.rank;
        let server = PeerServer::start(&runtime, identity, listeners, settings, counters);
        server.enter(run);
        let source: Arc<dyn PeerService> = store.clone();
        server.serve(Arc::downgrade(&source));
        Self { server, requester, store, rank }
    }

    /// Waits until it holds nothing. A response is released when its write returns, and may have
    /// arrived before.
    pub async fn rests(&self) {
        let held = || (self.server.in_use(), self.store.open());
        for _ in 0..1000 {
            if held() == (0, 0) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} bytes and answers are held ten seconds after the last", held());
    }

    /// This node as a tier of `other`.
    pub fn seen_by(&self, other: &Self) -> Arc<PeerClient> {
        other.requester.remote(self.rank, self.server.addresses().to_vec())
    }
}

/// `count` samples of `size` bytes.
pub fn samples(count: u64, size: u64) -> Vec<KnownSample> {
    let names: Vec<String> = (0..count).map(|id| format!("s/{id}")).collect();
    KnownSample::generate(5, names.iter().map(|name| (name.as_str(), size)))
}

pub fn batch(known: &[KnownSample]) -> Vec<foreread_tier::ReadRequest> {
    known.iter().zip(0..).map(|(known, tag)| known.whole(tag)).collect()
}

/// Reads all of `known` and checks the bytes.
pub async fn read_all(tier: &PeerClient, known: &[KnownSample]) {
    let mut answers = tier.read_all(batch(known));
    let mut count = 0;
    while let Some(answer) = answers.next().await {
        let expected = &known[answer.tag as usize];
        match answer.result {
            Ok(bytes) => assert!(bytes == expected.content, "{}", expected.object.path),
            Err(error) => panic!("{error}"),
        }
        count += 1;
    }
    assert_eq!(count, known.len());
}

/// Reads one sample.
pub async fn read_one(tier: &PeerClient, known: &KnownSample) -> Result<Bytes, TierError> {
    tier.read(Arc::new(known.whole(3))).await
}

/// Every protection of connections between nodes.
pub const WIRES: [WireProtection; 3] =
    [WireProtection::Authenticated, WireProtection::Sealed, WireProtection::Checksummed];

/// An authenticated connection on which the test sends its own frames.
pub async fn raw(
    network: &Arc<dyn Transport>,
    address: &Address,
    rank: u32,
    wire: WireProtection,
) -> (BoxedStream, RawFrames) {
    let stream = network.connect(address).await.unwrap();
    let (me, purpose) = (identity(rank), Purpose::Samples(run()));
    handshake::initiate(stream, &me, purpose, wire.over(address), None).await.unwrap().0.into_raw()
}

/// The same at the server's end, as rank 0.
pub async fn raw_answer(
    listener: &mut dyn TransportListener,
    wire: WireProtection,
) -> (BoxedStream, RawFrames) {
    let (stream, from) = listener.accept().await.unwrap();
    let (me, offer, spoke) =
        (identity(0), SampleOffer::new(wire.over(listener.address())), AtomicBool::new(false));
    let wanted = |purpose| purpose == Purpose::Samples(run());
    let known = [me];
    handshake::answer(stream, from, &known, &offer, wanted, &spoke).await.unwrap().0.into_raw()
}
