//! The limits of the memory that serving holds, and fairness between ranks.

use std::sync::Arc;
use std::time::Duration;

use foreread_peer::{Address, ServerLimits, frame};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::{ReadAll, TestRandom};
use foreread_types::Rank;
use futures::StreamExt;
use futures::future::join_all;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::support::{AnswerRule, Node, SampleStore, batch, raw, read_all, run, samples};

/// Each rank requests everything from every other at once, and no budget has room for even one of
/// the samples.
#[tokio::test(start_paused = true)]
// semantics: RANK-30
async fn mutual_requests_beyond_the_budget_do_not_deadlock() {
    for (seed, budget) in [(1, 1), (2, 5_000), (3, 200_000), (4, 32 << 20)] {
        let world = SimulatedNetwork::new(seed);
        let settings = ServerLimits { budget, share: budget / 2 + 1, ..ServerLimits::default() };
        let known = samples(150, 20_000);
        let mut nodes = Vec::new();
        for rank in 0..4u32 {
            let host = world.host(format!("h{rank}"));
            let store = SampleStore::new(&known, move |from, requested| {
                match (requested.key.id.0 + u64::from(from.0) * 3 + u64::from(rank)) % 7 {
                    0 => AnswerRule::Reading(Duration::from_millis(requested.key.id.0 * 3)),
                    1 => AnswerRule::Silently(Duration::from_millis(requested.key.id.0)),
                    _ => AnswerRule::Now,
                }
            });
            let listen = [Address::tcp(format!("h{rank}"), 0)];
            nodes.push(Node::new(&host, rank, &listen, settings, store).await);
        }
        let nodes = &nodes;
        let known = &known;
        let reads = nodes.iter().enumerate().flat_map(|(me, requester)| {
            let others = nodes.iter().enumerate().filter(move |(other, _)| *other != me);
            others.map(move |(_, owner)| async move {
                let tier = owner.seen_by(requester);
                // In four concurrent batches.
                join_all(known.chunks(40).map(|part| read_all(&tier, part))).await;
            })
        });
        timeout(Duration::from_secs(600), join_all(reads)).await.expect("no deadlock");
        join_all(nodes.iter().map(Node::rests)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn greedy_rank_does_not_starve_another() {
    let world = SimulatedNetwork::new(1);
    let known = samples(3000, 20_000);
    let settings = ServerLimits { budget: 400_000, share: 200_000, ..ServerLimits::default() };
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let owner = Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], settings, store).await;
    // One second per 6.4 MB: time passes as on a cable.
    let greedy =
        Node::new(&world.host("two"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let modest =
        Node::new(&world.host("three"), 2, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now))
            .await;
    for host in ["two", "three"] {
        world.delay("one", host, Duration::from_millis(10));
    }
    let (wants_all, wants_one) = (owner.seen_by(&greedy), owner.seen_by(&modest));
    let mut all = wants_all.read_all(batch(&known)).ready_chunks(1_000_000);
    let hungry = tokio::spawn(async move {
        let mut got = 0;
        while let Some(some) = all.next().await {
            got += some.iter().filter(|answer| answer.result.is_ok()).count();
        }
        got
    });
    sleep(Duration::from_millis(100)).await;
    let mut slowest = Duration::ZERO;
    for one in known.iter().take(20) {
        let began = tokio::time::Instant::now();
        read_all(&wants_one, std::slice::from_ref(one)).await;
        slowest = slowest.max(began.elapsed());
    }
    assert!(!hungry.is_finished(), "the greedy rank still requests");
    assert!(slowest <= Duration::from_millis(100), "{slowest:?} for one sample");
    assert_eq!(hungry.await.unwrap(), 3000, "and its later requests do not time out");
}

#[tokio::test(start_paused = true)]
// semantics: RANK-30
async fn rank_that_does_not_read_holds_its_share_and_is_closed() {
    let world = SimulatedNetwork::new(1);
    let known = samples(2000, 20_000);
    let settings = ServerLimits { budget: 300_000, share: 200_000, ..ServerLimits::default() };
    let store = SampleStore::new(&known, |_, _| AnswerRule::Now);
    let owner = Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], settings, store).await;
    let requester =
        Node::new(&world.host("two"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let sample_requests =
        frame::RequestedSample::encode(batch(&known).iter().map(|request| frame::RequestedSample {
            key: request.key,
            due: request.due,
            length: request.len(),
        }));
    let request_header = frame::FrameHeader::new(frame::FrameKind::Request, run().tag(), 1);
    // More than the budget has shares.
    let mut hung = Vec::new();
    for number in 0..10 {
        let address = &owner.server.addresses()[0];
        let (mut stream, mut frames) = raw(&world.host("three"), address, 10 + number, settings.wire).await;
        stream.write_all(&frames.frame(request_header, None, &sample_requests)).await.unwrap();
        hung.push(stream);
    }
    sleep(Duration::from_secs(1)).await;
    assert!(owner.server.in_use() <= 300_000, "{}", owner.server.in_use());
    let began = tokio::time::Instant::now();
    read_all(&owner.seen_by(&requester), &known[..100]).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    sleep(Duration::from_secs(12)).await;
    assert_eq!((owner.server.in_use(), owner.store.open()), (0, 0), "write timeout");
    drop(hung);
}

#[tokio::test(start_paused = true)]
async fn origin_reads_do_not_delay_cached_samples() {
    let world = SimulatedNetwork::new(1);
    let known = samples(1000, 20_000);
    let settings = ServerLimits { budget: 100_000, share: 100_000, ..ServerLimits::default() };
    let rule = |_: Rank, requested: &foreread_tier::PeerRequest| match requested.key.id.0 {
        0..900 => AnswerRule::Reading(Duration::from_secs(5)),
        _ => AnswerRule::Now,
    };
    let owner =
        Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], settings, SampleStore::new(&known, rule))
            .await;
    let requester =
        Node::new(&world.host("two"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let tier = owner.seen_by(&requester);
    let far = tier.read_all(batch(&known[..900]));
    sleep(Duration::from_millis(10)).await;
    let began = tokio::time::Instant::now();
    read_all(&tier, &known[900..]).await;
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    assert_eq!(far.filter(|answer| std::future::ready(answer.result.is_ok())).count().await, 900);
}

#[tokio::test(start_paused = true)]
async fn random_disconnects_lose_no_response_and_no_budget() {
    let mut draw = TestRandom::new();
    for _ in 0..20 {
        let world = SimulatedNetwork::new(draw.below(u64::MAX));
        let known = samples(100, 5_000);
        let store = SampleStore::new(&known, |_, requested| match requested.key.id.0 % 3 {
            0 => AnswerRule::Reading(Duration::from_millis(40)),
            _ => AnswerRule::Now,
        });
        let settings = ServerLimits { budget: 50_000, share: 20_000, ..ServerLimits::default() };
        let owner = Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], settings, store).await;
        let requester =
            Node::new(&world.host("two"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now))
                .await;
        world.breaking(0.02);
        let tier = Arc::new(owner.seen_by(&requester));
        for _ in 0..30 {
            let from = draw.below(90) as usize;
            let mut answers: Vec<_> = tier.read_all(batch(&known[from..])).collect().await;
            answers.sort_by_key(|answer| answer.tag);
            assert_eq!(answers.len(), 100 - from, "one answer for each tag");
            for (answer, known) in answers.iter().zip(&known[from..]) {
                assert!(answer.result.as_ref().map_or(true, |bytes| *bytes == known.content));
            }
            sleep(Duration::from_millis(draw.below(300))).await;
        }
        world.breaking(0.0);
        sleep(Duration::from_secs(1)).await;
        read_all(&tier, &known).await;
        owner.rests().await;
    }
}

/// A rank that requests and cancels without end, while an urgent sample that does not fit is first
/// in the queue.
#[tokio::test(start_paused = true)]
async fn cancelled_samples_leave_the_queue() {
    let world = SimulatedNetwork::new(1);
    let known = samples(2000, 20_000);
    let settings = ServerLimits { budget: 20_000, share: 20_000, ..ServerLimits::default() };
    let store = SampleStore::new(&known, |_, requested| match requested.key.id.0 {
        0 => AnswerRule::Silently(Duration::from_millis(900)),
        _ => AnswerRule::Now,
    });
    let owner = Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], settings, store).await;
    let requester =
        Node::new(&world.host("two"), 1, &[], settings, SampleStore::new(&[], |_, _| AnswerRule::Now)).await;
    let tier = owner.seen_by(&requester);
    let first = tier.read_all(batch(&known[..2]));
    sleep(Duration::from_millis(10)).await;
    for _ in 0..200 {
        drop(tier.read_all(batch(&known[2..])));
        tokio::task::yield_now().await;
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(owner.store.open(), 1, "the others never started");
    assert_eq!(first.filter(|answer| std::future::ready(answer.result.is_ok())).count().await, 2);
    read_all(&tier, &known[1..50]).await;
    assert_eq!(owner.server.counters().read().served, 51);
}
