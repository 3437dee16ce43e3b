//! What becomes of asks when a trainer waits: only what will come in time, or comes from the origin, is waited for.

use std::sync::Arc;
use std::time::Duration;

use foreread_peer::{Address, PeerTier, Settings, Simulated};
use foreread_tier::{Completion, ErrorKind, Tier};
use foreread_tier_testing::Known;
use foreread_types::Tick;
use futures::StreamExt;
use tokio::time::{Instant, sleep};

use crate::support::{How, Node, Shelf, batch, read_all, samples};

const LATER: Duration = Duration::from_millis(100);

/// A rank that asks another, over a cable that takes `delay` for 64 KiB.
struct Pair {
    world: Simulated,
    owner: Node,
    asker: Node,
    tier: Arc<PeerTier>,
}

impl Pair {
    async fn new(
        known: &[Known],
        delay: Duration,
        rule: impl Fn(u64) -> How + Send + Sync + 'static,
    ) -> Self {
        let world = Simulated::new(5);
        let shelf = Shelf::new(known, move |_, asked| rule(asked.key.id.0));
        let owner =
            Node::new(&world.host("one"), 0, &[Address::tcp("one", 0)], Settings::default(), shelf).await;
        let none = Shelf::new(&[], |_, _| How::Now);
        let asker = Node::new(&world.host("two"), 1, &[], Settings::default(), none).await;
        let tier = Arc::new(owner.tier_for(&asker));
        world.delay("one", "two", delay);
        Self { world, owner, asker, tier }
    }

    /// Asks for all of `known`; from `patience` on its trainer waits for what is due by `due`, until it is answered. Says how
    /// each was answered, and after how long.
    async fn wait(
        &self,
        known: &[Known],
        due: u64,
        patience: Duration,
        within: Duration,
    ) -> Vec<(u32, Result<(), ErrorKind>, Duration)> {
        let began = Instant::now();
        let mut answers = self.tier.read(batch(known));
        let hurry = async {
            sleep(patience).await;
            loop {
                self.tier.hurry(Tick(due), (patience + within).saturating_sub(began.elapsed()));
                sleep(LATER).await;
            }
        };
        let mut all = Vec::new();
        let answered = async {
            while let Some(Completion { tag, result }) = answers.next().await {
                all.push((tag, result.map(drop).map_err(|error| error.kind()), began.elapsed()));
            }
        };
        tokio::select! {
            () = hurry => {}
            () = answered => {}
        }
        all.sort_by_key(|(tag, ..)| *tag);
        all
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn what_its_owner_reads_from_the_origin_is_waited_for_however_long_it_takes() {
    let known = samples(20, 1000);
    let pair = Pair::new(&known, Duration::from_millis(1), |_| How::Reading(7 * SECOND)).await;
    let all = pair.wait(&known, 100, SECOND, Duration::ZERO).await;
    assert!(all.iter().all(|(_, result, after)| result.is_ok() && *after < 8 * SECOND), "{all:?}");
    assert_eq!(pair.asker.server.counters().read().late, 0);
}

#[tokio::test(start_paused = true)]
async fn what_nothing_good_is_known_of_fails_at_once_and_what_nobody_waits_for_does_not() {
    let known = samples(8, 1000);
    let rule = |id| How::Silently(Duration::from_millis(if id == 3 { 300 } else { 900 }));
    let pair = Pair::new(&known, Duration::ZERO, rule).await;
    let all = pair.wait(&known, 4, Duration::from_millis(500), Duration::ZERO).await;
    for (tag, result, after) in all {
        let expected = match tag {
            3 => (Ok(()), 300),
            0..5 => (Err(ErrorKind::Transient), 500),
            _ => (Ok(()), 900),
        };
        assert_eq!((result, after.as_millis()), expected, "sample {tag}");
    }
    assert_eq!((pair.asker.server.counters().read().late, pair.owner.shelf.open()), (4, 0));
}

/// 2 MB take 1.5 s on such a cable, and the words of its owner are stuck behind them.
#[tokio::test(start_paused = true)]
async fn a_link_that_is_slow_and_moves_is_not_waited_for() {
    let known = samples(8, 2_000_000);
    let rule = |_| How::Reading(Duration::from_millis(5));
    let pair = Pair::new(&known, Duration::from_millis(50), rule).await;
    let all = pair.wait(&known, 8, SECOND, Duration::from_millis(600)).await;
    let bound = Duration::from_millis(1700);
    assert!(all.iter().all(|(.., after)| *after <= bound), "{all:?}");
    let came = all.iter().filter(|(_, result, _)| result.is_ok()).count();
    assert!(came <= 1, "{came} of 16 MB at 1.3 MB/s");
    // What was given up is not sent: the next one has the cable for itself, but for what is under way.
    sleep(2 * SECOND).await;
    let began = Instant::now();
    read_all(&pair.tier, &known[..1]).await;
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    pair.owner.rests().await;
    pair.world.delay("one", "two", Duration::ZERO);
    read_all(&pair.tier, &known).await;
}

/// A batch that takes more than a second at the full speed of a link that is as it should be.
#[tokio::test(start_paused = true)]
async fn what_will_come_in_time_is_not_given_up() {
    let known = samples(100, 200_000);
    let pair = Pair::new(&known, Duration::from_millis(4), |_| How::Now).await;
    // 20 MB at 16 MB/s.
    let all = pair.wait(&known, 100, SECOND, Duration::from_millis(600)).await;
    let took = all.iter().map(|(.., after)| *after).max().unwrap();
    assert!(took > SECOND && all.iter().all(|(_, result, _)| result.is_ok()), "{took:?}");
    // At 8 MB/s, what is due first comes, and the rest is given up at once.
    pair.world.delay("one", "two", Duration::from_millis(8));
    let all = pair.wait(&known, 100, SECOND, Duration::from_millis(600)).await;
    let came = all.iter().filter(|(_, result, _)| result.is_ok()).count();
    assert!((50..70).contains(&came), "{came}");
    assert!(all[..40].iter().all(|(_, result, _)| result.is_ok()));
    let given_up = all.iter().filter(|(_, result, _)| result.is_err());
    let (first, last) = given_up.fold((u128::MAX, 0), |(first, last), (.., after)| {
        (first.min(after.as_millis()), last.max(after.as_millis()))
    });
    assert!(first == 1000 && last <= 1700, "given up after {first} to {last} ms");
}
