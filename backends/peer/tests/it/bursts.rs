//! Bursts of requests to a rank: when they are sent, and the end of dropped requests.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use foreread_peer::{Address, ServerLimits};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::Tier;
use foreread_tier_testing::KnownSample;
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use crate::support::{AnswerRule, Node, SampleStore, samples};

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

/// A connection that ended before it handled a sweep left the next one without it.
#[tokio::test(start_paused = true)]
async fn drop_before_a_new_connection_began_is_cancelled_there() {
    let known = samples(2, 1000);
    let (world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(20))).await;
    let tier = owner.seen_by(&requester);
    // A connection that cannot be opened. A read is dropped during the attempt.
    world.cut("one", "two");
    let first = tier.read(Arc::new(known[0].whole(0)));
    tier.submit();
    sleep(Duration::from_millis(10)).await;
    drop(first);
    sleep(Duration::from_secs(3)).await;
    world.mend("one", "two");
    sleep(Duration::from_secs(1)).await;
    // The next connection opens, and the read is dropped before its task has run.
    let second = tier.read(Arc::new(known[1].whole(0)));
    tier.submit();
    drop(second);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(owner.store.open(), 0, "the dropped read was not cancelled");
}

/// The control: the same without the earlier failed connection.
#[tokio::test(start_paused = true)]
async fn drop_before_the_first_connection_began_is_cancelled_there() {
    let known = samples(2, 1000);
    let (_world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(20))).await;
    let tier = owner.seen_by(&requester);
    let second = tier.read(Arc::new(known[1].whole(0)));
    tier.submit();
    drop(second);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(owner.store.open(), 0, "the dropped read was not cancelled");
}

/// Nothing is sent before the burst ends. Then it is sent without a poll, as one request.
#[tokio::test(start_paused = true)]
async fn burst_is_one_question_and_leaves_without_a_poll() {
    let known = samples(100, 100);
    let (_world, owner, requester) = two(&known, |_| AnswerRule::Reading(Duration::from_secs(5))).await;
    let tier = owner.seen_by(&requester);
    let reads: Vec<_> = known.iter().map(|known| tier.read(Arc::new(known.whole(0)))).collect();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(owner.store.open(), 0, "held back");
    tier.submit();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(owner.store.open(), 100, "sent without a poll");
    assert!(join_all(reads).await.iter().all(Result::is_ok));
    owner.rests().await;
}

/// Some reads of a burst are dropped, in every state of a read.
#[tokio::test(start_paused = true)]
async fn partially_dropped_burst_delivers_the_others() {
    let known = samples(300, 100);
    let (_world, owner, requester) = two(&known, |id| match id % 3 {
        0 => AnswerRule::Now,
        1 => AnswerRule::Reading(Duration::from_secs(2)),
        _ => AnswerRule::Silently(Duration::from_millis(300)),
    })
    .await;
    let tier = owner.seen_by(&requester);
    for dropped_at in 0..6 {
        let mut reads: Vec<_> = known.iter().map(|known| Some(tier.read(Arc::new(known.whole(0))))).collect();
        let drop_some = |reads: &mut Vec<Option<foreread_tier::ReadFuture>>| {
            reads.iter_mut().enumerate().filter(|(at, _)| at % 7 < 3).for_each(|(_, read)| *read = None);
        };
        if dropped_at == 0 {
            drop_some(&mut reads);
        }
        if dropped_at < 5 {
            tier.submit();
        }
        match dropped_at {
            1 => drop_some(&mut reads),
            2 => {
                tokio::task::yield_now().await;
                drop_some(&mut reads);
            }
            3 => {
                sleep(Duration::from_millis(100)).await;
                drop_some(&mut reads);
            }
            4 => {
                sleep(Duration::from_millis(500)).await;
                drop_some(&mut reads);
            }
            _ => {}
        }
        let rest = reads.into_iter().zip(&known).filter_map(|(read, known)| Some((read?, known)));
        let rest = join_all(rest.map(|(read, known)| async move {
            assert_eq!(read.await.unwrap(), known.content);
        }));
        timeout(Duration::from_secs(60), rest).await.expect("it hangs");
        owner.rests().await;
        let counters = requester.server.counters().read();
        assert_eq!((counters.disconnected, counters.timed_out), (0, 0), "{dropped_at}");
    }
}

/// Counts wake-ups of a task that polls many reads by hand.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A read that was submitted and never polled completes at its first poll.
#[tokio::test(start_paused = true)]
async fn answer_waits_for_the_first_poll() {
    let known = samples(1, 100);
    let (_world, owner, requester) = two(&known, |_| AnswerRule::Now).await;
    let tier = owner.seen_by(&requester);
    let mut read = pin!(tier.read(Arc::new(known[0].whole(0))));
    tier.submit();
    sleep(Duration::from_secs(1)).await;
    let counts = Arc::new(Counts::default());
    let waker = Waker::from(Arc::clone(&counts));
    match read.as_mut().poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(answer) => assert_eq!(answer.unwrap(), known[0].content),
        Poll::Pending => panic!("it was answered"),
    }
}
