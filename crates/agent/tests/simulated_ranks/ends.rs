//! The end of ranks: finished ranks serve the others, and no rank waits for a lost one.

use std::time::Duration;

use foreread::{Config, ErrorKind, Loader};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::FakeOrigin;
use futures::StreamExt;
use tokio::time::{Instant, sleep};

use crate::rig::{Job, runtime};

const SAMPLES: u64 = 300;

/// Ranks whose group caches all samples, in three epochs.
fn job(ranks: u32) -> Job {
    let mut config = Config::default();
    (config.rank.ranks, config.batch_size, config.epochs, config.look_ahead) = (ranks, 5, 3, 5_000);
    let memory = vec![SAMPLES * 1000; ranks as usize];
    let origin = FakeOrigin::uniform(SAMPLES, 100).with_latency(Duration::from_millis(2));
    Job { network: SimulatedNetwork::new(1), origin, config, memory }
}

/// Takes all remaining batches, one per `pace`.
async fn train(loader: &mut Loader, pace: Duration) {
    while let Some(batch) = loader.next().await {
        batch.unwrap();
        sleep(pace).await;
    }
}

#[test]
fn closed_rank_in_async_code_serves_the_others() {
    runtime().block_on(async {
        let job = job(2);
        let mut loaders = job.start(None).await.into_iter();
        let (mut quick, mut slow) = (loaders.next().unwrap(), loaders.next().unwrap());
        let began = Instant::now();
        let quick = tokio::spawn(async move {
            train(&mut quick, Duration::ZERO).await;
            quick.close_async().await.unwrap();
            began.elapsed()
        });
        train(&mut slow, Duration::from_millis(100)).await;
        let trained = began.elapsed();
        slow.close_async().await.unwrap();
        assert!(quick.await.unwrap() >= trained);
        assert_eq!(job.origin.counts().tally().requests, SAMPLES, "each sample once");
    });
}

#[test]
// semantics: RANK-22
fn reported_rank_does_not_wait_for_a_dead_rank_0() {
    runtime().block_on(async {
        let mut loaders = job(3).start(None).await;
        let (done, mut others) = (loaders.remove(1), loaders);
        let leaving = tokio::spawn(async move { done.leave_async(Duration::from_secs(600)).await });
        sleep(Duration::from_secs(1)).await;
        drop(others.remove(0));
        let began = Instant::now();
        assert!(leaving.await.unwrap().unwrap().is_none());
        assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    });
}

#[test]
// semantics: RANK-22
fn interrupted_rank_serves_the_others_for_five_seconds() {
    runtime().block_on(async {
        let loaders = job(3).start(None).await;
        let began = Instant::now();
        // Rank 2 lives and never finishes.
        let leaving = loaders.iter().take(2).map(|one| one.leave_async(Loader::INTERRUPTED_FAREWELL));
        assert!(futures::future::join_all(leaving).await.iter().all(Result::is_ok));
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    });
}

#[test]
// semantics: FAIL-18
fn leave_without_a_bound_ends_when_all_are_done() {
    runtime().block_on(async {
        let mut leaving = Vec::new();
        for loader in job(3).start(None).await {
            // The clock belongs to this thread, so it must not block.
            let refused = loader.leave(Duration::MAX).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
            let refused = loader.leave_unless(Duration::MAX, || false).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
            leaving.push(tokio::spawn(async move { loader.leave_async(Duration::MAX).await }));
        }
        for (rank, leaving) in leaving.into_iter().enumerate() {
            let all = leaving.await.unwrap().unwrap();
            assert_eq!(all.map(|all| all.ranks), (rank == 0).then_some(3), "rank {rank}");
        }
    });
}
