//! The run, from start to end: progress, lost ranks, restarted ranks, and leaving.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foreread_peer::meet::{MeetErrorKind, RendezvousSteps, RunEnd, RunGroup};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::{Object, PeerReplies, PeerReply, PeerRequest, PeerService, ReadRequest, Span, Tier};
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, Tick};
use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{CATALOG, DEADLINE, Job, all, begin, words};

const SECOND: Duration = Duration::from_secs(1);

/// All ranks leave at once.
async fn leave(groups: &[Arc<RunGroup>], deadline: Duration) -> Vec<RunEnd> {
    let leaving = groups.iter().map(|group| {
        let group = Arc::clone(group);
        tokio::spawn(async move { group.leave(deadline).await })
    });
    let leaving: Vec<_> = leaving.collect();
    all(leaving).await
}

#[tokio::test(start_paused = true)]
async fn lowest_progress_is_that_of_the_slowest_rank() {
    let job = Job::new(4);
    let groups = job.start().await;
    let mut lowest = groups[0].lowest().unwrap();
    assert!(groups[1].lowest().is_none());
    for rank in [0, 1, 2] {
        groups[rank].progress(100 + rank as u64);
    }
    sleep(SECOND).await;
    assert_eq!(*lowest.borrow(), 0, "rank 3 has expected nothing");
    for at in 1..=50 {
        groups[3].progress(at);
    }
    assert_eq!(*timeout(SECOND, lowest.wait_for(|at| *at == 50)).await.unwrap().unwrap(), 50);
    groups[3].progress(1000);
    assert_eq!(*timeout(SECOND, lowest.wait_for(|at| *at > 50)).await.unwrap().unwrap(), 100);
    // Sent before leaving, received before the end.
    groups.iter().for_each(|group| group.progress(2000));
    leave(&groups, DEADLINE).await;
    assert_eq!(*lowest.borrow(), 2000);
}

#[tokio::test(start_paused = true)]
async fn reports_come_to_rank_0_and_a_lost_ranks_is_missing() {
    let job = Job::new(4);
    let groups = job.start().await;
    for (rank, group) in groups.iter().enumerate().take(3) {
        let big = Bytes::from(vec![rank as u8; 3 << 20]);
        assert!(group.report(big, DEADLINE).await);
    }
    job.network.cut("r0", "r3");
    let began = Instant::now();
    let reports = groups[0].reports(SECOND * 5).await;
    assert_eq!(began.elapsed(), SECOND * 5);
    let lengths: Vec<_> = reports.iter().map(|report| report.as_ref().map(Bytes::len)).collect();
    assert_eq!(lengths, [Some(3 << 20), Some(3 << 20), Some(3 << 20), None]);
    assert!(reports[2].as_ref().unwrap().iter().all(|byte| *byte == 2));
    assert!(!groups[3].report(Bytes::from_static(b"late"), SECOND).await);
    assert!(groups[1].reports(SECOND).await.is_empty());
}

#[tokio::test(start_paused = true)]
// semantics: RANK-22
async fn rank_that_is_done_early_serves_until_all_are() {
    let job = Job::new(3);
    let groups = job.start().await;
    let began = Instant::now();
    let late = Arc::clone(&groups[2]);
    let (early, late) = tokio::join!(leave(&groups[..2], DEADLINE), async {
        sleep(SECOND * 20).await;
        late.leave(DEADLINE).await
    });
    assert_eq!((early, late), (vec![RunEnd::Together, RunEnd::Together], RunEnd::Together));
    assert!((SECOND * 20..SECOND * 21).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
// semantics: RANK-22
async fn hanging_rank_is_abandoned_at_the_deadline() {
    let job = Job::new(4);
    let groups = job.start().await;
    let began = Instant::now();
    // Rank 2 is alive and never done.
    let mut rest = groups.clone();
    let hung = rest.remove(2);
    for left in leave(&rest, SECOND * 5).await {
        assert!(
            matches!(&left, RunEnd::Without(who) if who == &[Rank(2)]) || left == RunEnd::Unheard,
            "{left:?}"
        );
    }
    assert!(began.elapsed() < SECOND * 8, "{:?}", began.elapsed());
    assert_eq!(hung.leave(SECOND).await, RunEnd::Without(vec![Rank(2)]));
}

#[tokio::test(start_paused = true)]
async fn disconnected_rank_is_gone_and_not_waited_for() {
    let job = Job::new(4);
    let mut groups = job.start().await;
    job.network.cut("r0", "r3");
    let began = Instant::now();
    let cut_off = groups.pop().unwrap();
    for left in leave(&groups, SECOND * 60).await {
        assert_eq!(left, RunEnd::Without(vec![Rank(3)]));
    }
    assert!(began.elapsed() < SECOND * 15, "{:?}", began.elapsed());
    assert_eq!(groups[0].gone(), [Rank(3)]);
    assert_eq!(cut_off.leave(SECOND * 2).await, RunEnd::Unheard);
}

#[tokio::test(start_paused = true)]
async fn mended_cable_brings_the_rank_back() {
    let job = Job::new(3);
    let groups = job.start().await;
    job.network.cut("r0", "r2");
    sleep(SECOND * 15).await;
    assert_eq!(groups[0].gone(), [Rank(2)]);
    groups[2].progress(7);
    job.network.mend("r0", "r2");
    sleep(SECOND * 15).await;
    assert_eq!(groups[0].gone(), []);
    (0..2).for_each(|rank| groups[rank].progress(9));
    sleep(SECOND).await;
    assert_eq!(*groups[0].lowest().unwrap().borrow(), 7);
    assert_eq!(leave(&groups, DEADLINE).await, [RunEnd::Together, RunEnd::Together, RunEnd::Together]);
}

/// As if rank 0's process was paused: all others have lost it and reconnect at once.
#[tokio::test(start_paused = true)]
async fn paused_rank_0_does_not_report_the_others_as_gone() {
    let job = Job::new(3);
    let groups = job.start().await;
    (1..3).for_each(|rank| job.network.sever("r0", &format!("r{rank}")));
    for _ in 0..500 {
        sleep(Duration::from_millis(20)).await;
        assert_eq!(groups[0].gone(), []);
    }
    assert_eq!(leave(&groups, DEADLINE).await, [RunEnd::Together, RunEnd::Together, RunEnd::Together]);
}

/// Connections break at any moment, a few per rank and run.
#[tokio::test(start_paused = true)]
// semantics: RANK-9
async fn broken_connections_cost_only_time() {
    for seed in 0..60 {
        let job = Job { network: SimulatedNetwork::new(seed), size: 5 };
        job.network.breaking(0.02);
        let ranks = (0..5).map(|rank| {
            job.spawn(rank, Duration::ZERO, move |joining| async move {
                let group = begin(joining.unwrap()).await.unwrap();
                for step in 1..=20 {
                    group.progress(step);
                    sleep(Duration::from_millis(100)).await;
                }
                let reported = group.report(Bytes::from_static(b"{}"), DEADLINE).await;
                let reports = group.reports(DEADLINE).await;
                let left = group.leave(DEADLINE).await;
                let lowest = group.lowest().map(|lowest| *lowest.borrow());
                (reported, reports.iter().flatten().count(), left, lowest)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let began = Instant::now();
        let ended = all(ranks).await;
        assert_eq!(ended[0], (true, 5, RunEnd::Together, Some(20)), "seed {seed}");
        for other in &ended[1..] {
            assert_eq!(*other, (true, 0, RunEnd::Together, None), "seed {seed}");
        }
        assert!(began.elapsed() < DEADLINE, "seed {seed}: {:?}", began.elapsed());
    }
}

/// Serves samples that name the rank.
#[derive(Debug)]
pub struct RankSamples(pub u32);

impl PeerService for RankSamples {
    fn serve(&self, _: Rank, requested: Vec<PeerRequest>) -> PeerReplies {
        let rank = self.0;
        let answer = move |requested: PeerRequest| {
            let text = format!("{rank}:{:05}", requested.key.id);
            PeerReply::Done { tag: requested.tag, result: Ok(text.into()) }
        };
        stream::iter(requested.into_iter().map(answer)).boxed()
    }
}

/// The sample that `group` gets from `rank`.
pub async fn read_from(group: &RunGroup, rank: u32) -> Result<Bytes, foreread_tier::TierError> {
    let key = SampleKey::new(DatasetId(0), SampleId(42));
    let object = Object { path: "x".into(), size: 7, version: None };
    let request = ReadRequest::new(key, object, Span::Whole, Tick(0));
    group.client(Rank(rank)).read(Arc::new(request)).await
}

#[tokio::test(start_paused = true)]
// semantics: RANK-9
async fn restarted_rank_takes_its_place() {
    let job = Job::new(3);
    let mut groups = job.start().await;
    let holds: Vec<Arc<dyn PeerService>> =
        (0..3).map(|rank| Arc::new(RankSamples(rank)) as Arc<dyn PeerService>).collect();
    for (group, holds) in groups.iter().zip(&holds) {
        group.serve(Arc::downgrade(holds));
    }
    assert_eq!(read_from(&groups[1], 2).await.unwrap(), "2:00042");
    groups[2].progress(5);
    sleep(SECOND).await;

    drop(groups.pop());
    sleep(SECOND * 4).await;
    assert!(read_from(&groups[1], 2).await.is_err());
    assert_eq!(groups[0].gone(), [Rank(2)]);

    // The same process again: it gets the shared value, and its differing setting is reported.
    let settings = job.settings(2);
    let mut wrong = RendezvousSteps::join(settings).await.unwrap();
    assert_eq!(wrong.share(None).await.unwrap(), CATALOG);
    let digest = |_| panic!("only rank 0 does this");
    let error = wrong.exchange(words("6", ""), "other".into(), digest).await.unwrap_err();
    assert_eq!(error.kind(), MeetErrorKind::Differs);
    assert!(error.to_string().ends_with("differs from rank 0: seed is 6, rank 0's is 5"), "{error}");
    drop(wrong);
    sleep(SECOND).await;

    let again =
        job.spawn(2, Duration::ZERO, move |joining| async move { begin(joining.unwrap()).await.unwrap() });
    let again = Arc::new(again.await.unwrap());
    assert_eq!(again.run(), groups[0].run(), "it has joined the same run");
    again.serve(Arc::downgrade(&holds[2]));
    groups.push(again);
    sleep(SECOND).await;
    assert_eq!(groups[0].gone(), []);
    assert_eq!(read_from(&groups[1], 2).await.unwrap(), "2:00042");
    assert_eq!(read_from(&groups[2], 1).await.unwrap(), "1:00042");
    for group in &groups {
        group.progress(9);
    }
    assert_eq!(leave(&groups, DEADLINE).await, [RunEnd::Together, RunEnd::Together, RunEnd::Together]);
    assert_eq!(*groups[0].lowest().unwrap().borrow(), 9);
}

#[tokio::test(start_paused = true)]
async fn dead_rank_0_ends_waits_and_samples_still_flow() {
    let job = Job::new(3);
    let mut groups = job.start().await;
    let holds: Vec<Arc<dyn PeerService>> =
        (0..3).map(|rank| Arc::new(RankSamples(rank)) as Arc<dyn PeerService>).collect();
    for (group, holds) in groups.iter().zip(&holds) {
        group.serve(Arc::downgrade(holds));
    }
    drop(groups.remove(0));
    sleep(SECOND * 30).await;
    assert_eq!(read_from(&groups[0], 2).await.unwrap(), "2:00042");
    groups[0].progress(8);
    assert!(!groups[0].report(Bytes::from_static(b"{}"), SECOND * 2).await);
    let began = Instant::now();
    assert_eq!(leave(&groups, SECOND * 4).await, [RunEnd::Unheard, RunEnd::Unheard]);
    assert!(began.elapsed() < SECOND * 7, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
// semantics: RANK-6
async fn rank_0_alone_cannot_be_started_again() {
    let job = Job::new(3);
    let mut groups = job.start().await;
    drop(groups.remove(0));
    let began = Instant::now();
    let error = RendezvousSteps::join(job.settings(0)).await.unwrap_err();
    assert_eq!(error.kind(), MeetErrorKind::Broken);
    let line = error.to_string();
    assert!(line.starts_with("rank 0 was started again while rank 1 (process "), "{line}");
    assert!(line.ends_with("start all ranks again (another rank is refused, too)"), "{line}");
    // Until then, other ranks could still come.
    assert!(began.elapsed() >= DEADLINE, "{:?}", began.elapsed());
}
