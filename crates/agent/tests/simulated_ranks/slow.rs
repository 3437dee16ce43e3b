//! Slow but working parts: an origin, a link, and ranks that wait for them.

use std::time::Duration;

use foreread::{Config, Loader};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier::TierProfile;
use foreread_tier_testing::FakeOrigin;
use futures::StreamExt;
use tokio::time::Instant;

use crate::rig::{Job, host, runtime};

/// Ranks whose group caches all samples.
fn job(ranks: u32, batch_size: u64, samples: u64, bytes: u64, latency: Duration) -> Job {
    let mut config = Config::default();
    (config.rank.ranks, config.batch_size, config.epochs) = (ranks, batch_size, 3);
    config.look_ahead = 4 * batch_size * bytes;
    let memory = vec![2 * samples * bytes; ranks as usize];
    let origin = FakeOrigin::uniform(samples, bytes).with_latency(latency);
    Job { network: SimulatedNetwork::new(1), origin, config, memory }
}

/// Takes all remaining batches. Returns the longest wait for a batch.
async fn train(job: &Job, loader: &mut Loader) -> Duration {
    let mut waited = Duration::ZERO;
    loop {
        let requested = Instant::now();
        let Some(batch) = loader.next().await else { return waited };
        waited = waited.max(requested.elapsed());
        for (id, bytes) in batch.unwrap().iter() {
            assert_eq!(*bytes, job.origin.expected(id), "sample {id}");
        }
    }
}

/// Runs all ranks to their ends. Returns the longest wait of each, and its number of late samples
/// from other ranks.
async fn run(job: &Job) -> Vec<(Duration, u64)> {
    let ranks = job.start(None).await.into_iter().map(|mut loader| {
        let job = job.clone();
        tokio::spawn(async move {
            let waited = train(&job, &mut loader).await;
            loader.leave_async(Duration::from_secs(60)).await.unwrap();
            let peers = loader.report().peers.unwrap();
            (waited, peers.late + peers.lost)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let mut fared = Vec::new();
    for rank in ranks {
        fared.push(rank.await.unwrap());
    }
    fared
}

#[test]
// semantics: RANK-18
fn owners_waiting_for_the_origin_do_not_time_out() {
    runtime().block_on(async {
        let job = job(3, 4, 60, 1000, Duration::from_secs(5));
        let fared = run(&job).await;
        assert!(
            fared.iter().all(|(waited, late)| *waited >= Duration::from_secs(5) && *late == 0),
            "{fared:?}"
        );
        // The origin answers few requests at a time, so that most reads are queued for longer than
        // that.
        let origin = FakeOrigin::uniform(60, 1000).with_latency(Duration::from_secs(1)).with_parallelism(4);
        let job = Job { network: SimulatedNetwork::new(2), origin, ..job };
        let fared = run(&job).await;
        assert!(
            fared.iter().all(|(waited, late)| *waited >= Duration::from_secs(3) && *late == 0),
            "{fared:?}"
        );
    });
}

/// File servers are silent for longer than a store is waited for that announces nothing. The other
/// ranks would wait for the same servers.
#[test]
// semantics: HPC-4
fn owners_waiting_for_silent_servers_are_waited_for() {
    runtime().block_on(async {
        let job = job(3, 4, 60, 1000, Duration::from_secs(100));
        let profile = TierProfile::new(64).with_patience(Some(Duration::from_secs(1200)));
        let job = Job { origin: job.origin.clone().with_profile(profile), ..job };
        let fared = run(&job).await;
        assert!(fared.iter().all(|(waited, late)| waited.as_secs() >= 100 && *late == 0), "{fared:?}");
        assert_eq!(job.origin.counts().tally().requests, 60, "each sample once");
    });
}

/// Every batch takes over a second at the full speed of the links.
#[test]
// semantics: RANK-18
fn slow_batches_at_full_link_speed_come_from_ranks() {
    runtime().block_on(async {
        let job = job(2, 60, 240, 200_000, Duration::from_millis(1));
        job.network.delay(&host(0), &host(1), Duration::from_millis(11));
        // 6 MB of 12 MB come from the other rank, at 6 MB/s.
        let fared = run(&job).await;
        let expected =
            |(waited, late): &(Duration, u64)| (1000..1700).contains(&waited.as_millis()) && *late == 0;
        assert!(fared.iter().all(expected), "{fared:?}");
        assert_eq!(job.origin.counts().tally().requests, 240, "each sample once");
    });
}

/// Every batch takes 2.7 s at the full speed of the links, and the origin is slower.
#[test]
// semantics: RANK-18
fn batches_that_exceed_the_origins_rate_come_from_ranks() {
    runtime().block_on(async {
        let job = job(2, 60, 240, 200_000, Duration::from_millis(1));
        job.network.delay(&host(0), &host(1), Duration::from_millis(28));
        // 6 MB of 12 MB come from the other rank, at 2.3 MB/s.
        let origin = FakeOrigin::uniform(240, 200_000).with_bandwidth(2_000_000);
        let job = Job { network: job.network, origin, config: job.config, memory: job.memory };
        let fared = run(&job).await;
        assert!(fared.iter().all(|(waited, late)| waited.as_secs() >= 2 && *late == 0), "{fared:?}");
        // Each sample once, except for second reads of late samples in the origin's queue: at most
        // 16.
        let requests = job.origin.counts().tally().requests;
        assert!(requests <= 240 + 16, "{requests} requests");
    });
}

/// A link of 1.3 MB/s, for samples of 2 MB.
#[test]
// semantics: RANK-18
fn slowing_link_delays_no_rank_for_two_seconds() {
    runtime().block_on(async {
        let job = job(3, 4, 60, 2_000_000, Duration::from_millis(5));
        job.network.delay(&host(0), &host(1), Duration::from_millis(50));
        let fared = run(&job).await;
        assert!(fared.iter().all(|(waited, _)| *waited <= Duration::from_secs(2)), "{fared:?}");
        // The others got theirs from the link, or from the third rank.
        let again = job.origin.counts().tally().requests - 60;
        assert!((1..60).contains(&again), "{again} were read again");
    });
}
