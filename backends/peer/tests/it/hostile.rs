//! Frames that no rank sends, from authenticated and unauthenticated peers. They cause errors, and
//! never a panic or a hang.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foreread_peer::frame::{FrameHeader, FrameKind, RequestedSample, encode_tags};
use foreread_peer::{Address, RawFrames, ServerLimits, SystemTransport, Transport, WireProtection};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::ReadAll;
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, Tick};
use futures::StreamExt;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::support::{AnswerRule, Node, SampleStore, WIRES, batch, raw, raw_answer, read_all, run, samples};

/// Valid bytes of a requester, or of a server.
fn seed(requests_or_answers: usize, raw: &mut RawFrames) -> Vec<u8> {
    let header = |kind, request| FrameHeader::new(kind, run().tag(), request);
    let sample_request =
        |id| RequestedSample { key: SampleKey::new(DatasetId(0), SampleId(id)), due: Tick(id), length: 1000 };
    let sample_requests = RequestedSample::encode((0..5).map(sample_request));
    let tags = encode_tags(&[0, 1, 4]);
    let words = FrameHeader { status: 3, tag: 1, sample: 1, ..header(FrameKind::Answer, 0) };
    let content = &samples(1, 1000)[0].content;
    let key = SampleKey::new(DatasetId(0), SampleId(0));
    let requesting: [(FrameHeader, Option<SampleKey>, &[u8]); 4] = [
        (header(FrameKind::Request, 1), None, &sample_requests),
        (header(FrameKind::Cancel, 1), None, &tags),
        (header(FrameKind::Request, 2), None, &sample_requests),
        (header(FrameKind::Cancel, 2), None, &[]),
    ];
    let answering: [(FrameHeader, Option<SampleKey>, &[u8]); 4] = [
        (header(FrameKind::Reading, 0), None, &tags),
        (header(FrameKind::Heartbeat, 0), None, &[]),
        (words, None, b"why"),
        (header(FrameKind::Answer, 0), Some(key), content),
    ];
    let frames = [requesting, answering][requests_or_answers];
    frames.into_iter().flat_map(|(header, sample, payload)| raw.frame(header, sample, payload)).collect()
}

/// The bytes to send on a connection, once its keys are known.
type Sends<'a> = &'a mut (dyn FnMut(&mut RawFrames) -> Vec<u8> + Send);

type Change = (u8, prop::sample::Index, prop::sample::Index, u64);

/// Changes bytes. Half of the time the checksums are corrected, so that the protected fields are
/// tested as well.
fn mutate(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for (what, at, other, value) in changes {
        if bytes.is_empty() {
            break;
        }
        let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
        match what % 6 {
            0 => bytes[at] ^= *value as u8 | 1,
            1 => bytes.truncate(at),
            2 => bytes.splice(at..at, value.to_le_bytes()).for_each(drop),
            3 => drop(bytes.drain(at.min(other)..at.max(other))),
            4 => {
                let part = bytes[at.min(other)..at.max(other)].to_vec();
                bytes.splice(at..at, part).for_each(drop);
            }
            // A header field that is wrong and plausible.
            _ => {
                let starts = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"frd\x01"));
                let starts: Vec<usize> = starts.filter(|at| at + 48 <= bytes.len()).collect();
                let Some(start) = starts.get(at % starts.len().max(1)).copied() else { continue };
                let field = [4, 5, 6, 7, 8, 16, 24, 32, 36, 40][other % 10];
                let header = &mut bytes[start..start + 48];
                let end = field
                    + if (8..32).contains(&field) {
                        8
                    } else if field >= 32 {
                        4
                    } else {
                        1
                    };
                header[field..end].copy_from_slice(&value.to_le_bytes()[..end - field]);
                let seal = crc32c::crc32c(&header[..44]);
                header[44..].copy_from_slice(&seal.to_le_bytes());
            }
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let value = prop_oneof![any::<u64>(), 0..2000u64, Just(u64::MAX), Just(1 << 31)];
    prop::collection::vec(
        (any::<u8>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), value),
        1..5,
    )
}

/// Half of the time without tags, so that the protected fields are tested as well.
fn wires() -> impl Strategy<Value = WireProtection> {
    prop_oneof![
        3 => Just(WireProtection::Checksummed),
        2 => Just(WireProtection::Authenticated),
        1 => Just(WireProtection::Sealed)
    ]
}

fn paused<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(future)
}

/// Sends bytes to a server after a handshake, while another rank is served.
async fn to_server(wire: WireProtection, bytes: Sends<'_>) {
    let world = SimulatedNetwork::new(1);
    let known = samples(5, 1000);
    let store = SampleStore::new(&known, |_, requested| match requested.key.id.0 {
        3 => AnswerRule::Never,
        4 => AnswerRule::Reading(Duration::from_millis(50)),
        _ => AnswerRule::Now,
    });
    let settings = ServerLimits { budget: 10_000, share: 5_000, wire };
    let owner = Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], settings, store).await;
    let requester =
        Node::new(&world.host("two"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let (mut stream, mut frames) =
        raw(&world.host("three"), &owner.server.addresses()[0], 2, settings.wire).await;
    let _ = stream.write_all(&bytes(&mut frames)).await; // it may be cut off before all is sent
    let _ = stream.flush().await;
    read_all(&owner.seen_by(&requester), &known[..3]).await;
    let mut heard = vec![0; 1 << 16];
    // Reads its replies until none arrives, or the connection ends.
    for _ in 0..20 {
        let read = timeout(Duration::from_millis(200), stream.read(&mut heard)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) {
            break;
        }
    }
    drop(stream);
    // Nothing of the closed connection remains held.
    owner.rests().await;
}

/// Sends bytes to a client after a handshake.
async fn to_requester(wire: WireProtection, bytes: Sends<'_>) {
    let world = SimulatedNetwork::new(1);
    let mut listener = world.host("one").listen(&Address::tcp("one", 0)).await.unwrap();
    let address = listener.address().clone();
    let sends = async {
        let (mut stream, mut frames) = raw_answer(&mut *listener, wire).await;
        let _ = stream.write_all(&bytes(&mut frames)).await;
        let _ = stream.flush().await;
        std::future::pending::<()>().await;
    };
    let host = world.host("two");
    let settings = ServerLimits { wire, ..ServerLimits::default() };
    let requester = Node::new(&host, 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let tier = requester.requester.remote(Rank(0), vec![address]);
    let known = samples(5, 1000);
    let answers = timeout(Duration::from_secs(32), tier.read_all(batch(&known)).collect::<Vec<_>>());
    let answers = tokio::select! { answers = answers => answers, () = sends => return };
    let mut answers = answers.expect("no question waits longer than half a minute");
    answers.sort_by_key(|answer| answer.tag);
    assert_eq!(answers.iter().map(|answer| answer.tag).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for (answer, known) in answers.iter().zip(&known) {
        assert!(answer.result.as_ref().map_or(true, |bytes| *bytes == known.content), "never other bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_requests_do_not_break_the_server(which in 0..2usize, wire in wires(), changes in changes()) {
        paused(to_server(wire, &mut |raw| mutate(seed(which, raw), &changes)));
    }

    #[test]
    // semantics: RANK-34
    fn mutated_responses_complete_every_request(which in 0..2usize, wire in wires(), changes in changes()) {
        paused(to_requester(wire, &mut |raw| mutate(seed(which, raw), &changes)));
    }
}

#[test]
fn valid_bytes_are_accepted_and_invalid_ones_rejected() {
    for wire in WIRES {
        for which in 0..2 {
            paused(to_server(wire, &mut |raw| seed(which, raw)));
            paused(to_requester(wire, &mut |raw| seed(which, raw)));
        }
        for bytes in [vec![0; 100_000], vec![0xff; 3], Vec::new(), b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
            paused(to_server(wire, &mut |_| bytes.clone()));
            paused(to_requester(wire, &mut |_| bytes.clone()));
        }
    }
}

/// Mutates for `FOREREAD_FUZZ_SECONDS`, or not at all.
#[test]
fn fuzz() {
    let seconds =
        std::env::var("FOREREAD_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let draw = (0..2usize, wires(), changes());
    for number in 0u64.. {
        if Instant::now() >= until {
            eprintln!("{number} connections were tried");
            break;
        }
        let (which, wire, changes) = draw.new_tree(&mut runner).unwrap().current();
        eprintln_on_panic(&(which, wire, &changes), || {
            paused(to_server(wire, &mut |raw| mutate(seed(which, raw), &changes)));
            paused(to_requester(wire, &mut |raw| mutate(seed(which, raw), &changes)));
        });
    }
}

fn eprintln_on_panic(tried: &dyn std::fmt::Debug, act: impl FnOnce()) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
    if let Err(panic) = result {
        eprintln!("seed, wire and changes were {tried:?}");
        std::panic::resume_unwind(panic);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_frame_and_silence_harm_no_rank_on_real_sockets() {
    let network: Arc<dyn Transport> = Arc::new(SystemTransport);
    let known = samples(20, 50_000);
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let listen = [Address::tcp("127.0.0.1", 0)];
    let owner = Node::new(&network, 0, &listen, ServerLimits::default(), store).await;
    let requester =
        Node::new(&network, 1, &[], ServerLimits::default(), SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await;
    let mut halves = Vec::new();
    for length in [0, 1, 47, 48, 87, 88] {
        let (mut stream, mut frames) =
            raw(&network, &owner.server.addresses()[0], 9, WireProtection::Authenticated).await;
        let sample_requests =
            frames.frame(FrameHeader::new(FrameKind::Request, run().tag(), 1), None, &[0; 28]);
        stream.write_all(&sample_requests[..length]).await.unwrap();
        halves.push(stream);
    }
    read_all(&owner.seen_by(&requester), &known).await;
}
