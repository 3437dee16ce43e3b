//! A man in the middle without the token. It reads and changes all traffic, recomputes checksums
//! without keys, and keeps frames of other connections, ranks and runs. It can delay and cut, and
//! nothing else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::frame::HEADER;
use foreread_peer::{
    Address, BoxedStream, ControlConnection, Identity, Nonce, PeerServer, RunId, ServerLimits, Transport,
    WireProtection,
};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::PeerService;
use foreread_tier_testing::{KnownSample, ReadAll, TestRandom};
use foreread_types::Rank;
use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use crate::support::{AnswerRule, Node, SampleStore, batch, identity, samples};

/// Bytes of the requester's two handshake messages, and of the server's one.
const HELLO: usize = 92;
const ANSWER: usize = 112;
const CONFIRMATION: usize = 16;

/// The actions of the man in the middle, and the messages that it has seen.
struct Middle {
    draw: TestRandom,
    wire: WireProtection,
    /// One of this many frames is changed.
    every: u64,
    changed: u64,
    seen: Vec<Vec<u8>>,
}

type Shared = Arc<Mutex<Middle>>;

impl Middle {
    fn shared(draw: TestRandom, wire: WireProtection, every: u64) -> Shared {
        Arc::new(Mutex::new(Self { draw, wire, every, changed: 0, seen: Vec::new() }))
    }

    /// Bytes before the payload of a frame or record.
    fn head(&self) -> usize {
        match self.wire {
            WireProtection::Authenticated => HEADER + 40,
            WireProtection::Checksummed => HEADER,
            WireProtection::Sealed => 2,
        }
    }

    fn payload(&self, head: &[u8]) -> usize {
        match self.wire {
            WireProtection::Sealed => usize::from(u16::from_le_bytes([head[0], head[1]])),
            _ => u32::from_le_bytes([head[36], head[37], head[38], head[39]]) as usize,
        }
    }

    /// Recomputes checksums that need no key.
    fn recompute(&self, frame: &mut [u8]) {
        if self.wire != WireProtection::Sealed && frame.len() >= self.head() {
            let check = crc32c::crc32c(&frame[self.head()..]);
            frame[40..44].copy_from_slice(&check.to_le_bytes());
            let seal = crc32c::crc32c(&frame[..44]);
            frame[44..48].copy_from_slice(&seal.to_le_bytes());
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.draw.below(bound.max(1) as u64) as usize
    }

    /// The bytes to pass on for a frame, and the bytes to send back.
    fn pass(&mut self, frame: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        if self.seen.len() < 500 {
            self.seen.push(frame.clone());
        } else {
            let at = self.below(500);
            self.seen[at] = frame.clone();
        }
        if self.draw.below(self.every) > 0 {
            return (frame, Vec::new());
        }
        self.changed += 1;
        let at = self.below(self.seen.len());
        let (other, head) = (self.seen[at].clone(), self.head());
        let mut wrong = frame.clone();
        match self.draw.below(9) {
            // One bit: anywhere, and in the payload.
            0 => {
                let at = self.below(wrong.len());
                wrong[at] ^= 1 << self.below(8);
            }
            1 if frame.len() > head => {
                let at = head + self.below(frame.len() - head);
                wrong[at] ^= 1 << self.below(8);
            }
            // A field of the header.
            2 => {
                let (at, value) = (self.below(head.min(44)), self.draw.below(256) as u8);
                wrong[at] = value;
            }
            // Repeated, dropped, sent back, replaced by an earlier frame.
            3 => return ([&frame[..], &frame].concat(), Vec::new()),
            4 => return (Vec::new(), Vec::new()),
            5 => return (frame.clone(), frame),
            6 => return (other, Vec::new()),
            // The payload of another frame of the same length, or its tags.
            7 if other.len() == frame.len() => wrong[head..].copy_from_slice(&other[head..]),
            8 if head > HEADER && other.len() >= head => {
                wrong[HEADER..head].copy_from_slice(&other[HEADER..head])
            }
            // Cut in the middle, followed by an earlier frame.
            _ => {
                let at = self.below(wrong.len());
                wrong.truncate(at);
                wrong.extend(&other);
                return (wrong, Vec::new());
            }
        }
        self.recompute(&mut wrong);
        (wrong, Vec::new())
    }
}

async fn part(from: &mut (impl AsyncRead + Unpin), length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

async fn put(into: &tokio::sync::Mutex<impl AsyncWrite + Unpin>, bytes: &[u8]) -> Option<()> {
    let mut into = into.lock().await;
    into.write_all(bytes).await.ok()?;
    into.flush().await.ok()
}

type Way = Arc<tokio::sync::Mutex<WriteHalf<BoxedStream>>>;

/// One direction, after its handshake messages of these lengths. Each of them may have a changed
/// bit.
async fn pump(
    middle: Shared,
    mut from: ReadHalf<BoxedStream>,
    into: Way,
    back: Way,
    handshake: &[usize],
) -> Option<()> {
    for length in handshake {
        let mut bytes = part(&mut from, *length).await?;
        {
            let mut middle = middle.lock().unwrap();
            let every = middle.every * 8;
            if middle.draw.below(every) == 0 {
                let at = middle.below(*length);
                bytes[at] ^= 1 << middle.below(8);
                middle.changed += 1;
            }
        }
        put(&into, &bytes).await?;
    }
    let head = middle.lock().unwrap().head();
    loop {
        let mut frame = part(&mut from, head).await?;
        let payload = middle.lock().unwrap().payload(&frame);
        frame.extend(part(&mut from, payload).await?);
        let (on, reflected) = middle.lock().unwrap().pass(frame);
        put(&into, &on).await?;
        put(&back, &reflected).await?;
    }
}

/// Listens as `relay` and connects each client to one of `owners`, mostly the first.
async fn relay(network: Arc<dyn Transport>, middle: Shared, owners: Vec<Address>) -> Address {
    let mut listener = network.listen(&Address::tcp("relay", 0)).await.unwrap();
    let address = listener.address().clone();
    tokio::spawn(async move {
        loop {
            let (requester, _) = listener.accept().await.unwrap();
            let to = {
                let mut middle = middle.lock().unwrap();
                let misdirect = middle.draw.below(16) == 0;
                if misdirect { middle.below(owners.len()) } else { 0 }
            };
            let owner = network.connect(&owners[to]).await.unwrap();
            let ((from_asker, to_asker), (from_owner, to_owner)) = (split(requester), split(owner));
            let shared = |half| Arc::new(tokio::sync::Mutex::new(half));
            let (to_asker, to_owner): (Way, Way) = (shared(to_asker), shared(to_owner));
            let there = pump(
                Arc::clone(&middle),
                from_asker,
                Arc::clone(&to_owner),
                Arc::clone(&to_asker),
                &[HELLO, CONFIRMATION],
            );
            let back = pump(Arc::clone(&middle), from_owner, to_asker, to_owner, &[ANSWER]);
            // Both ends are closed when one is.
            tokio::spawn(async move {
                tokio::select! {
                    _ = there => {}
                    _ = back => {}
                }
            });
        }
    });
    address
}

fn other_run() -> RunId {
    RunId::new(Nonce::new([2; 16]), &[])
}

/// Samples with the ids and lengths of [`samples`], and other bytes.
fn other_samples(known: &[KnownSample], seed: u64) -> Vec<KnownSample> {
    let names: Vec<_> = known.iter().map(|known| (&*known.object.path, known.object.size)).collect();
    KnownSample::generate(seed, names)
}

/// Three servers: the expected rank, another rank of its run, and the same rank in another run.
async fn owners(world: &SimulatedNetwork, known: &[KnownSample], settings: ServerLimits) -> [Node; 3] {
    let store = |known: &[KnownSample]| SampleStore::new(known, |_, _| AnswerRule::Now);
    let at = |host: &str| [Address::tcp(host, 0)];
    let (second, third) = (store(&other_samples(known, 6)), store(&other_samples(known, 7)));
    [
        Node::new(&world.host("one"), 0, &at("one"), settings, store(known)).await,
        Node::new(&world.host("two"), 2, &at("two"), settings, second).await,
        Node::with_identity(&world.host("three"), identity(0), other_run(), &at("three"), settings, third)
            .await,
    ]
}

/// The results of clients through a relay until it has changed this many frames: right bytes, wrong
/// bytes, errors.
async fn through_a_relay(
    draw: TestRandom,
    wire: WireProtection,
    every: u64,
    changes: u64,
) -> (u64, u64, u64) {
    let world = SimulatedNetwork::new(draw.seed);
    let settings = ServerLimits { wire, ..ServerLimits::default() };
    let known = samples(6, 1000);
    let nodes = owners(&world, &known, settings).await;
    let askers = [
        Node::new(&world.host("asker"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await,
        Node::with_identity(
            &world.host("asker"),
            identity(1),
            other_run(),
            &[],
            settings,
            SampleStore::new(&[], |_, _| AnswerRule::Now),
        )
        .await,
    ];
    let middle = Middle::shared(draw, wire, every);
    let addresses =
        |first: usize| (0..3).map(|at| nodes[(first + at) % 3].server.addresses()[0].clone()).collect();
    // Requests to each of the three servers, by a client of its run, for the bytes it has.
    let contents = [known.clone(), other_samples(&known, 6), other_samples(&known, 7)];
    let mut ways = Vec::new();
    for (at, (requester, rank)) in [(0, 0), (0, 2), (1, 0)].into_iter().enumerate() {
        let address = relay(world.host("relay"), Arc::clone(&middle), addresses(at)).await;
        ways.push((&askers[requester], Rank(rank), address, &contents[at]));
    }
    let (mut right, mut wrong, mut failed) = (0, 0, 0);
    while middle.lock().unwrap().changed < changes {
        for (requester, rank, address, content) in &ways {
            let tier = requester.requester.remote(*rank, vec![address.clone()]);
            let answers =
                timeout(Duration::from_secs(60), tier.read_all(batch(&known)).collect::<Vec<_>>()).await;
            for answer in answers.expect("no question waits longer than half a minute") {
                match answer.result {
                    Ok(bytes) if bytes == content[answer.tag as usize].content => right += 1,
                    Ok(_) => wrong += 1,
                    Err(_) => failed += 1,
                }
            }
        }
    }
    for node in &nodes {
        node.rests().await;
    }
    (right, wrong, failed)
}

#[tokio::test(start_paused = true)]
// semantics: RANK-35
async fn relay_that_changes_10000_frames_delivers_no_wrong_byte() {
    let (right, wrong, failed) =
        through_a_relay(TestRandom::new(), WireProtection::Authenticated, 4, 10_000).await;
    println!("{right} samples came, {failed} did not");
    assert_eq!(wrong, 0);
    assert!(right > 1000 && failed > 1000, "{right} came, {failed} did not");
}

#[tokio::test(start_paused = true)]
// semantics: RANK-35
async fn relay_of_sealed_samples_delivers_no_wrong_byte() {
    let (right, wrong, failed) = through_a_relay(TestRandom::new(), WireProtection::Sealed, 4, 1_000).await;
    assert_eq!(wrong, 0);
    assert!(right > 100 && failed > 100, "{right} came, {failed} did not");
}

/// The same relay without keyed protection: it can do the attacks that the other modes prevent.
#[tokio::test(start_paused = true)]
// semantics: RANK-35
async fn relay_of_checksummed_samples_can_change_them() {
    let (_, wrong, _) = through_a_relay(TestRandom::new(), WireProtection::Checksummed, 4, 1_000).await;
    assert!(wrong > 100, "{wrong}");
}

/// A relay that changes nothing has no effect.
#[tokio::test(start_paused = true)]
async fn relay_that_changes_nothing_is_not_noticed() {
    for wire in [WireProtection::Authenticated, WireProtection::Sealed] {
        let world = SimulatedNetwork::new(1);
        let settings = ServerLimits { wire, ..ServerLimits::default() };
        let known = samples(6, 20_000);
        let nodes = owners(&world, &known, settings).await;
        let requester =
            Node::new(&world.host("asker"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now))
                .await;
        let middle = Middle::shared(TestRandom::of(1), wire, u64::MAX >> 8);
        let owner = vec![nodes[0].server.addresses()[0].clone()];
        let address = relay(world.host("relay"), Arc::clone(&middle), owner).await;
        let tier = requester.requester.remote(Rank(0), vec![address]);
        crate::support::read_all(&tier, &known).await;
        let seen = middle.lock().unwrap().seen.concat();
        let content = &known[0].content[..32];
        let readable = seen.windows(32).any(|part| part == content);
        assert_eq!(readable, wire == WireProtection::Authenticated, "{wire}");
    }
}

/// Rendezvous messages through the relay: each arrives in the order of sending.
#[tokio::test(start_paused = true)]
// semantics: RANK-35
async fn relay_of_a_rendezvous_delivers_no_other_message() {
    let draw = TestRandom::new();
    let world = SimulatedNetwork::new(draw.seed);
    let mut servers = Vec::new();
    for (rank, host) in [(0, "one"), (2, "two")] {
        let listener = world.host(host).listen(&Address::tcp(host, 0)).await.unwrap();
        let runtime = tokio::runtime::Handle::current();
        let settings = ServerLimits::default();
        servers.push(PeerServer::start(&runtime, identity(rank), vec![listener], settings, Arc::default()));
    }
    let source: Arc<dyn PeerService> = SampleStore::new(&[], |_, _| AnswerRule::Now);
    servers[0].serve(Arc::downgrade(&source));
    let middle = Middle::shared(draw, WireProtection::Sealed, 4);
    let owners = servers.iter().map(|server| server.addresses()[0].clone()).collect();
    let address = relay(world.host("relay"), Arc::clone(&middle), owners).await;
    // Each server returns the message with one byte more.
    for server in &servers {
        let mut meetings = server.meetings().unwrap();
        tokio::spawn(async move {
            while let Some((_, mut connection)) = meetings.recv().await {
                tokio::spawn(async move {
                    while let Ok(Some((what, bytes))) = connection.receive(1 << 20).await {
                        let longer = Bytes::from([&bytes[..], &[7]].concat());
                        if connection.send(what + 1, longer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }
    let (network, me): (_, Identity) = (world.host("asker"), identity(1));
    let (mut right, mut failed) = (0, 0);
    while middle.lock().unwrap().changed < 1000 {
        let open = ControlConnection::open(&*network, &address, &me, Some(Rank(0)), Duration::from_secs(1));
        let Ok((mut connection, _)) = open.await else { continue };
        for number in 0..20u32 {
            let bytes = Bytes::from(vec![number as u8; 100 * number as usize]);
            let exchange = async {
                connection.send(number, bytes.clone()).await.ok()?;
                connection.receive(1 << 20).await.ok()?
            };
            // A dropped message is missed by its receiver.
            let Ok(Some((what, longer))) = timeout(Duration::from_secs(1), exchange).await else {
                failed += 1;
                break;
            };
            assert_eq!((what, &longer[..]), (number + 1, &[&bytes[..], &[7]].concat()[..]));
            right += 1;
        }
    }
    assert!(right > 100 && failed > 100, "{right} came, {failed} did not");
}
