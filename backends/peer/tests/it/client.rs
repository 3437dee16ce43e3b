//! Ranks that are slow, silent, dead, restarted, or have another identity.

use std::sync::Arc;
use std::time::Duration;

use foreread_peer::{
    Address, Identity, PeerClient, PeerCounters, PeerServer, RawFrames, ServerLimits, Token, Transport,
    WireProtection, frame,
};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{ErrorKind, PeerService, Tier};
use foreread_tier_testing::{KnownSample, ReadAll};
use foreread_types::{Rank, SampleKey};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::support::{
    AnswerRule, JOB, Node, SampleStore, WIRES, batch, identity, raw_answer, read_all, read_one, run, samples,
};

/// Two ranks with a network between them. The first has the samples.
async fn two(
    known: &[KnownSample],
    rule: impl Fn(u64) -> AnswerRule + Send + Sync + 'static,
) -> (SimulatedNetwork, Node, Node) {
    let world = SimulatedNetwork::new(5);
    let (one, two) = (world.host("one"), world.host("two"));
    let store = SampleStore::new(known, move |_, requested| rule(requested.key.id.0));
    let owner = Node::new(&one, 0, &[Address::tcp("one", 9)], ServerLimits::default(), store).await;
    let requester =
        Node::new(&two, 1, &[], ServerLimits::default(), SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    (world, owner, requester)
}

#[tokio::test(start_paused = true)]
// semantics: RANK-17, RANK-19
async fn silent_rank_fails_requests_in_bounded_time() {
    let known = samples(10, 1000);
    let (world, owner, requester) =
        two(&known, |id| if id < 5 { AnswerRule::Now } else { AnswerRule::Reading(Duration::from_secs(9)) })
            .await;
    let tier = owner.seen_by(&requester);
    let mut answers = tier.read_all(batch(&known));
    for _ in 0..5 {
        assert!(answers.next().await.unwrap().result.is_ok());
    }
    sleep(Duration::from_secs(2)).await;
    world.cut("one", "two");
    let began = Instant::now();
    for _ in 0..5 {
        let error = answers.next().await.unwrap().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert!(error.to_string().contains("rank 0: "), "{error}");
        assert!(error.object().is_some_and(|object| object.starts_with("s/")));
    }
    assert!(answers.next().await.is_none());
    let took = began.elapsed();
    // The last heartbeat arrived at most 0.1 s before. Then 0.65 s of silence, a jitter of at most
    // 0.2 s, and a second for the second connection.
    assert!(took >= Duration::from_millis(1550) && took <= Duration::from_millis(1850), "{took:?}");
    assert_eq!(requester.server.counters().read().disconnected, 5);
    // Connecting takes a second at most. Then requests fail at once during the backoff.
    sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    assert_eq!(read_one(&tier, &known[0]).await.unwrap_err().kind(), ErrorKind::Transient);
    assert_eq!(began.elapsed().as_millis(), 1000);
    assert!(format!("{tier:?}").contains(r#"link: "down""#));
    assert!(read_one(&tier, &known[0]).await.is_err());
    assert_eq!(began.elapsed().as_millis(), 1000);
    // Once the cable is mended, the rank is used again.
    world.mend("one", "two");
    sleep(Duration::from_secs(1)).await;
    read_all(&tier, &known[..5]).await;
}

/// A process that was stopped for a second: open requests are sent again on a second connection,
/// and none fails.
#[tokio::test(start_paused = true)]
// semantics: RANK-19
async fn paused_owner_gets_requests_again_on_a_second_connection() {
    let known = samples(10, 1000);
    let rule = |id| if id < 5 { AnswerRule::Now } else { AnswerRule::Reading(Duration::from_millis(200)) };
    let (world, owner, requester) = two(&known, rule).await;
    let tier = owner.seen_by(&requester);
    let mut answers = tier.read_all(batch(&known));
    for _ in 0..5 {
        assert!(answers.next().await.unwrap().result.is_ok());
    }
    world.cut("one", "two");
    let mend = async {
        sleep(Duration::from_secs(1)).await;
        world.mend("one", "two");
    };
    let rest = async { answers.collect::<Vec<_>>().await };
    let ((), rest) = tokio::join!(mend, rest);
    assert!(rest.len() == 5 && rest.iter().all(|answer| answer.result.is_ok()), "{rest:?}");
    let counters = requester.server.counters().read();
    assert_eq!((counters.received, counters.disconnected, counters.timed_out), (10, 0, 0));
    owner.rests().await;
}

/// A sample that is no longer waited for is not sent.
#[tokio::test(start_paused = true)]
async fn dropped_read_is_cancelled_alone() {
    let known = samples(3, 1000);
    let (_world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(3))).await;
    let tier = owner.seen_by(&requester);
    let mut reads: Vec<_> = known.iter().map(|known| tier.read(Arc::new(known.whole(0)))).collect();
    tier.submit();
    sleep(Duration::from_secs(1)).await;
    drop(reads.remove(1));
    for (read, known) in reads.into_iter().zip([&known[0], &known[2]]) {
        assert_eq!(read.await.unwrap(), known.content);
    }
    owner.rests().await;
    assert_eq!((requester.server.counters().read().timed_out, owner.server.counters().read().served), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn dead_rank_fails_its_requests_at_once_and_is_used_again_later() {
    let known = samples(10, 1000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(9))).await;
    let tier = owner.seen_by(&requester);
    let mut answers = tier.read_all(batch(&known));
    sleep(Duration::from_secs(1)).await;
    let (began, addresses) = (Instant::now(), owner.server.addresses().to_vec());
    drop(owner);
    let first = answers.next().await.unwrap().result.unwrap_err();
    assert_eq!((first.kind(), began.elapsed()), (ErrorKind::Transient, Duration::ZERO));
    assert_eq!(answers.count().await, 9);
    assert!(read_one(&tier, &known[0]).await.is_err());
    sleep(Duration::from_secs(1)).await;
    let refused = read_one(&tier, &known[0]).await.unwrap_err();
    assert!(refused.to_string().contains("cannot connect"), "{refused}");
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let again = Node::new(&world.host("one"), 0, &addresses, ServerLimits::default(), store).await;
    sleep(Duration::from_secs(1)).await;
    read_all(&tier, &known).await;
    // Without open requests, the end of a connection is not a failure.
    drop(again);
    sleep(Duration::from_millis(1)).await;
    assert!(!format!("{tier:?}").contains("down"), "{tier:?}");
}

#[tokio::test(start_paused = true)]
async fn rank_restarted_at_another_address_is_found() {
    let known = samples(3, 1000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Now).await;
    let tier = owner.seen_by(&requester);
    read_all(&tier, &known).await;
    drop(owner);
    assert!(read_one(&tier, &known[0]).await.is_err());
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let again =
        Node::new(&world.host("three"), 0, &[Address::tcp("three", 0)], ServerLimits::default(), store).await;
    tier.moved(again.server.addresses().to_vec());
    read_all(&tier, &known).await;
}

/// Of several addresses, the first to accept the connection has all the remaining time for the
/// handshake.
#[tokio::test(start_paused = true)]
async fn busy_rank_with_several_addresses_gets_the_whole_timeout() {
    let known = samples(3, 1000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Now).await;
    world.delay("one", "two", Duration::from_millis(110));
    let mut addresses = owner.server.addresses().to_vec();
    addresses.extend([Address::tcp("three", 9), Address::tcp("zero", 9)]);
    let tier = requester.requester.remote(Rank(0), addresses);
    read_all(&tier, &known).await;
}

#[tokio::test(start_paused = true)]
// semantics: RANK-17
async fn acknowledged_sample_is_waited_for() {
    let known = samples(4, 1000);
    let (_world, owner, requester) =
        two(&known, |id| AnswerRule::Reading(Duration::from_secs(id * 10 + 5))).await;
    let tier = owner.seen_by(&requester);
    let began = Instant::now();
    let mut answers = tier.read_all(batch(&known));
    for tag in 0..3 {
        let answer = answers.next().await.unwrap();
        assert!(answer.result.is_ok() && answer.tag == tag, "{answer:?}");
        assert_eq!(began.elapsed().as_secs(), u64::from(tag) * 10 + 5);
    }
    let late = answers.next().await.unwrap().result.unwrap_err();
    assert_eq!(late.to_string(), "peer: s/3: transient failure: rank 0: it did not arrive within 30 s");
    assert_eq!(began.elapsed().as_secs(), 30);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(
        (owner.store.open(), requester.server.counters().read().timed_out),
        (0, 1),
        "the owner gets the cancellation"
    );
}

#[tokio::test(start_paused = true)]
// semantics: RANK-17
async fn unacknowledged_sample_fails_alone() {
    let known = samples(4, 1000);
    let rule = |id| match id {
        0 => AnswerRule::Never,
        1 => AnswerRule::Silently(Duration::from_millis(900)),
        2 => AnswerRule::Reading(Duration::from_secs(3)),
        _ => AnswerRule::Silently(Duration::from_millis(1100)),
    };
    let (_world, owner, requester) = two(&known, rule).await;
    let tier = owner.seen_by(&requester);
    let began = Instant::now();
    let answers: Vec<_> = tier
        .read_all(batch(&known))
        .map(|answer| {
            (answer.tag, answer.result.map_err(|error| error.kind()).is_ok(), began.elapsed().as_millis())
        })
        .collect()
        .await;
    assert_eq!(answers, [(1, true, 900), (0, false, 1000), (3, false, 1000), (2, true, 3000)]);
    assert_eq!(owner.store.open(), 0, "the server stops as well");
    read_all(&tier, &known[2..3]).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_reads_are_cancelled_at_the_server() {
    let known = samples(100, 1000);
    let (_world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(20))).await;
    let tier = owner.seen_by(&requester);
    let (kept, dropped) = (tier.read_all(batch(&known[..50])), tier.read_all(batch(&known[50..])));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(owner.store.open(), 100);
    drop(dropped);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(owner.store.open(), 50);
    assert_eq!(kept.filter(|answer| std::future::ready(answer.result.is_ok())).count().await, 50);
    assert_eq!(owner.store.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_cable_is_not_a_heartbeat_timeout() {
    let known = samples(20, 60_000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Now).await;
    world.delay("one", "two", Duration::from_millis(100));
    // 64 KiB in 100 ms: 1.2 MB take 2 s.
    read_all(&owner.seen_by(&requester), &known).await;
    assert_eq!(owner.server.counters().read().served, 20);
    let large = samples(1, 2_000_000);
    let store = SampleStore::new(&large, |_, _| AnswerRule::Now);
    let slow =
        Node::new(&world.host("one"), 2, &[Address::tcp("one", 0)], ServerLimits::default(), store).await;
    read_all(&slow.seen_by(&requester), &large).await;
    assert_eq!(requester.server.counters().read().timed_out, 0);
}

#[tokio::test(start_paused = true)]
// semantics: RANK-31
async fn other_token_opens_no_connection_in_either_direction() {
    let known = samples(1, 1000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Now).await;
    let token = Token::new("4c0d92f7ba8e4167a35e19d2c680fb73").unwrap();
    let stranger = Identity { token, ..identity(7) };
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let listen = [Address::tcp("three", 0)];
    let stranger =
        Node::with_identity(&world.host("three"), stranger, run(), &listen, ServerLimits::default(), store)
            .await;
    let error = read_one(&owner.seen_by(&stranger), &known[0]).await.unwrap_err();
    assert!(error.to_string().contains("another token"), "{error}");
    assert_eq!(owner.server.counters().read().unauthenticated, 1);
    let error = read_one(&stranger.seen_by(&requester), &known[0]).await.unwrap_err();
    assert!(error.to_string().contains("another token"), "{error}");
    assert_eq!((owner.server.counters().read().served, stranger.server.counters().read().served), (0, 0));
    // A rank with another number than expected, and another job.
    let wrong = requester.requester.remote(Rank(5), owner.server.addresses().to_vec());
    let error = read_one(&wrong, &known[0]).await.unwrap_err();
    assert!(error.to_string().contains("rank 0 answers there and not rank 5"), "{error}");
    let other_job = Identity { job: JOB + 1, ..identity(8) };
    let other = Node::with_identity(
        &world.host("three"),
        other_job,
        run(),
        &[Address::tcp("three", 0)],
        ServerLimits::default(),
        SampleStore::new(&known, |_, _| AnswerRule::Now),
    )
    .await;
    let error = read_one(&owner.seen_by(&other), &known[0]).await.unwrap_err();
    assert!(error.to_string().contains("of another job"), "{error}");
}

/// A rank that dies during its handshake does not count as unauthenticated.
#[tokio::test(start_paused = true)]
async fn interrupted_handshake_of_the_job_is_not_counted() {
    let (world, owner, _asker) = two(&samples(1, 1000), |_| AnswerRule::Now).await;
    let address = &owner.server.addresses()[0];
    let hello = |job: u64| [b"FRDH\x05\x01\0\0\x03\0\0\0", &job.to_le_bytes()[..], &[7; 32]].concat();
    for (job, waits) in [(JOB, false), (JOB, true), (JOB + 1, false), (JOB + 1, true)] {
        let mut stream = world.host("three").connect(address).await.unwrap();
        stream.write_all(&hello(job)).await.unwrap();
        if waits {
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).await.unwrap();
            assert!(reply.is_empty(), "nothing is expected before the first message is there");
        }
        drop(stream);
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(owner.server.counters().read().unauthenticated, 2, "of another job");
}

type Frames = Box<dyn Fn(&mut RawFrames, u64) -> Vec<u8> + Send>;

/// A rank that answers one request with frames made by the test.
async fn answers_with(
    wire: WireProtection,
    frames: impl Fn(&mut RawFrames, u64) -> Vec<u8> + Send + 'static,
) -> (SimulatedNetwork, Arc<PeerClient>) {
    let world = SimulatedNetwork::new(2);
    let mut listener = world.host("one").listen(&Address::tcp("one", 0)).await.unwrap();
    let address = listener.address().clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, mut raw) = raw_answer(&mut *listener, wire).await;
            let mut header = vec![0; raw.head()];
            stream.read_exact(&mut header).await.unwrap();
            let header = frame::FrameHeader::decode(header.first_chunk().unwrap()).unwrap();
            let mut sample_requests = vec![0; header.length as usize];
            stream.read_exact(&mut sample_requests).await.unwrap();
            stream.write_all(&frames(&mut raw, header.request)).await.unwrap();
            stream.flush().await.unwrap();
            sleep(Duration::from_millis(200)).await;
        }
    });
    let host = world.host("two");
    let settings = ServerLimits { wire, ..ServerLimits::default() };
    let requester = Node::new(&host, 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let tier = requester.requester.remote(Rank(0), vec![address]);
    (world, tier)
}

fn header(kind: frame::FrameKind, request: u64) -> frame::FrameHeader {
    frame::FrameHeader::new(kind, run().tag(), request)
}

fn answer(raw: &mut RawFrames, request: u64, tag: u32, key: SampleKey, payload: &[u8]) -> Vec<u8> {
    let header = frame::FrameHeader { tag, sample: key.id.0, ..header(frame::FrameKind::Answer, request) };
    raw.frame(header, Some(key), payload)
}

#[tokio::test(start_paused = true)]
// semantics: RANK-34
async fn wrong_responses_harm_no_other_sample() {
    let known = samples(4, 1000);
    for wire in WIRES {
        let content: Vec<_> = known.iter().map(|known| (known.key, known.content.clone())).collect();
        let frames = move |raw: &mut RawFrames, request| {
            let whole = |raw: &mut RawFrames, request, tag: u32, at: usize| {
                answer(raw, request, tag, content[at].0, &content[at].1)
            };
            let mut damaged = whole(raw, request, 0, 0);
            damaged[raw.head() + 500] ^= 1;
            let short = answer(raw, request, 1, content[1].0, &content[1].1[..999]);
            // Samples and requests that were never requested, and one twice.
            let unknown = [whole(raw, request, 77, 0), whole(raw, request + 9, 0, 0)].concat();
            let good = [(2, 2), (2, 2), (3, 3)].map(|(tag, at)| whole(raw, request, tag, at)).concat();
            [damaged, short, unknown, good].concat()
        };
        let (_world, tier) = answers_with(wire, frames).await;
        let mut answers: Vec<_> = tier.read_all(batch(&known)).collect().await;
        answers.sort_by_key(|answer| answer.tag);
        let expected: Vec<_> =
            answers.iter().map(|a| a.result.as_ref().map(|b| b.len()).map_err(|e| e.kind())).collect();
        assert_eq!(
            expected,
            [Err(ErrorKind::Corrupt), Err(ErrorKind::Changed), Ok(1000), Ok(1000)],
            "{wire}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_no_rank_sends_end_the_connection_at_once() {
    let known = samples(2, 1000);
    for wire in WIRES {
        for (expected, frames) in nonsense(known[0].key, wire) {
            let (_world, tier) = answers_with(wire, frames).await;
            let began = Instant::now();
            let answers: Vec<_> = tier.read_all(batch(&known)).collect().await;
            assert_eq!((answers.len(), began.elapsed()), (2, Duration::ZERO), "{wire}: {expected}");
            for answer in answers {
                let error = answer.result.unwrap_err();
                assert!(
                    error.to_string().contains(expected) && error.kind() == ErrorKind::Transient,
                    "{wire}: {expected}: {error}"
                );
            }
        }
    }
}

/// Frames that end a connection, each with a part of the error.
fn nonsense(key: SampleKey, wire: WireProtection) -> [(&'static str, Frames); 6] {
    let no_frame = if wire == WireProtection::Authenticated { "arrived damaged" } else { "not a frame" };
    let damaged = move |raw: &mut RawFrames, request| {
        let mut bytes = answer(raw, request, 0, key, &[7; 1000]);
        bytes[20] ^= 1;
        bytes
    };
    let other = SampleKey { id: foreread_types::SampleId(key.id.0 + 1), ..key };
    let other_run = |request| frame::FrameHeader::new(frame::FrameKind::Heartbeat, run().tag() + 1, request);
    let long_error = |request| frame::FrameHeader { status: 3, ..header(frame::FrameKind::Answer, request) };
    [
        (no_frame, Box::new(|_, _| vec![0x55; 4096])),
        ("arrived damaged", Box::new(damaged)),
        (
            "sample 1 as the answer to sample 0",
            Box::new(move |raw, request| answer(raw, request, 0, other, &[7; 1000])),
        ),
        (
            "unexpected frame Request from a server",
            Box::new(|raw, request| raw.frame(header(frame::FrameKind::Request, request), None, &[])),
        ),
        ("of another run", Box::new(move |raw, request| raw.frame(other_run(request), None, &[]))),
        (
            "an error in 2000 bytes",
            Box::new(move |raw, request| raw.frame(long_error(request), None, &[0; 2000])),
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn connection_closes_when_its_client_is_dropped() {
    let known = samples(5, 1000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(3))).await;
    let tier = owner.seen_by(&requester);
    let answers = tier.read_all(batch(&known));
    drop(tier);
    assert!(answers.all(|answer| std::future::ready(answer.result.is_ok())).await, "pending reads complete");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(world.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn rendezvous_connections_are_passed_to_their_receiver() {
    let world = SimulatedNetwork::new(2);
    let host = world.host("one");
    let listener = host.listen(&Address::tcp("one", 0)).await.unwrap();
    let server = PeerServer::start(
        &Handle::current(),
        identity(0),
        vec![listener],
        ServerLimits::default(),
        Arc::new(PeerCounters::default()),
    );
    let mut meetings = server.meetings().unwrap();
    assert!(server.meetings().is_none());
    let (network, address): (Arc<dyn Transport>, _) = (world.host("two"), server.addresses()[0].clone());
    let patience = Duration::from_secs(1);
    let me = identity(4);
    let open = || foreread_peer::ControlConnection::open(&*network, &address, &me, None, patience);
    let (mut ours, rank) = open().await.unwrap();
    assert_eq!(rank, Rank(0));
    let (greeting, mut theirs) = meetings.recv().await.unwrap();
    assert_eq!((greeting.rank, &*greeting.from), (Rank(4), "two"));
    let blob = bytes::Bytes::from(vec![3; 1 << 20]);
    let (sent, received) = tokio::join!(ours.send(17, blob.clone()), theirs.receive(1 << 20));
    sent.unwrap();
    assert_eq!(received.unwrap(), Some((17, blob)));
    theirs.send(1, bytes::Bytes::new()).await.unwrap();
    assert_eq!(ours.receive(0).await.unwrap(), Some((1, bytes::Bytes::new())));
    // A message above the limit is not read.
    ours.send(1, bytes::Bytes::from_static(b"12345")).await.unwrap();
    assert!(theirs.receive(4).await.unwrap_err().to_string().contains("5 bytes where a message of 4"));
    drop(theirs);
    assert_eq!(ours.receive(10).await.unwrap(), None);
    drop(meetings);
    let refused = open().await.err().unwrap();
    assert_eq!(refused.kind(), foreread_peer::WireErrorKind::Refused);
}

#[tokio::test(start_paused = true)]
async fn half_received_message_is_received_later() {
    let world = SimulatedNetwork::new(2);
    let host = world.host("one");
    let listener = host.listen(&Address::tcp("one", 0)).await.unwrap();
    let counters = Arc::new(PeerCounters::default());
    let server =
        PeerServer::start(&Handle::current(), identity(0), vec![listener], ServerLimits::default(), counters);
    let mut meetings = server.meetings().unwrap();
    let network = world.host("two");
    let address = &server.addresses()[0];
    let (mut ours, _) = foreread_peer::ControlConnection::open(
        &*network,
        address,
        &identity(4),
        None,
        Duration::from_secs(1),
    )
    .await
    .unwrap();
    let (_, mut theirs) = meetings.recv().await.unwrap();
    world.delay("one", "two", Duration::from_millis(50));
    let sending = tokio::spawn(async move {
        ours.send(1, bytes::Bytes::from(vec![1; 200_000])).await.unwrap();
        ours.send(2, bytes::Bytes::from(vec![2; 3])).await.unwrap();
        ours
    });
    let mut tries = 0;
    let first = loop {
        tries += 1;
        let receive = tokio::time::timeout(Duration::from_millis(30), theirs.receive(1 << 20));
        if let Ok(received) = receive.await {
            break received.unwrap().unwrap();
        }
    };
    assert!(tries > 3 && first.0 == 1 && first.1.iter().all(|byte| *byte == 1) && first.1.len() == 200_000);
    assert_eq!(theirs.receive(3).await.unwrap().unwrap().1, vec![2; 3]);
    drop(sending.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn source_that_ends_early_holds_nothing() {
    #[derive(Debug)]
    struct Ends;
    impl PeerService for Ends {
        fn serve(&self, _: Rank, _: Vec<foreread_tier::PeerRequest>) -> foreread_tier::PeerReplies {
            futures::stream::empty().boxed()
        }
    }
    let known = samples(2, 1000);
    let (_world, owner, requester) = two(&known, |_| AnswerRule::Now).await;
    let source: Arc<dyn PeerService> = Arc::new(Ends);
    owner.server.serve(Arc::downgrade(&source));
    let answers: Vec<_> = owner.seen_by(&requester).read_all(batch(&known)).collect().await;
    assert!(answers.iter().all(|answer| answer.result.as_ref().unwrap_err().kind() == ErrorKind::Absent));
}
