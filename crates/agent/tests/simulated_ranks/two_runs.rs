//! A leftover rank of one run, and a later run over other data at rank 0's old address. Both have
//! the same token, ids and lengths.

use std::time::Duration;

use foreread::{Config, Loader};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::FakeOrigin;
use futures::StreamExt;
use tokio::time::sleep;

use crate::rig::{Delivered, Job, runtime};

const SAMPLES: u64 = 240;

/// Two ranks, each with memory for little more than half of the samples of `seed`. Both send each
/// other requests in every epoch.
fn job(network: &SimulatedNetwork, seed: u64, epochs: u64) -> Job {
    let mut config = Config::default();
    (config.rank.ranks, config.batch_size, config.epochs, config.look_ahead) = (2, 4, epochs, 4_000);
    let origin = FakeOrigin::uniform(SAMPLES, 1000).with_seed(seed).with_latency(Duration::from_millis(2));
    Job { network: network.clone(), origin, config, memory: vec![180_000; 2] }
}

/// Takes this many batches, and compares every byte with the origin.
async fn train(job: &Job, loader: &mut Loader, batches: usize) -> Vec<Delivered> {
    let mut taken = Vec::new();
    for _ in 0..batches {
        let Some(batch) = loader.next().await else { break };
        let batch = batch.unwrap();
        for (id, bytes) in batch.iter() {
            assert_eq!(*bytes, job.origin.expected(id), "sample {id} after {} samples", taken.len());
            taken.push((batch.epoch(), id));
        }
        sleep(Duration::from_millis(50)).await;
    }
    taken
}

#[test]
// semantics: RANK-7
fn leftover_rank_and_later_run_get_their_own_bytes() {
    runtime().block_on(async {
        let network = SimulatedNetwork::new(1);
        let (old, new) = (job(&network, 1, 12), job(&network, 2, 20));
        let mut loaders = old.start(None).await.into_iter();
        let (mut first, mut left_over) = (loaders.next().unwrap(), loaders.next().unwrap());
        let (_, mut taken) = tokio::join!(train(&old, &mut first, 20), train(&old, &mut left_over, 20));
        drop(first);
        sleep(Duration::from_secs(1)).await;

        let rest = {
            let old = old.clone();
            tokio::spawn(async move {
                let rest = train(&old, &mut left_over, usize::MAX).await;
                drop(left_over);
                rest
            })
        };
        let mut loaders = new.start(None).await.into_iter();
        let (mut first, mut second) = (loaders.next().unwrap(), loaders.next().unwrap());
        let (of_first, of_second) =
            tokio::join!(train(&new, &mut first, usize::MAX), train(&new, &mut second, usize::MAX));
        assert_eq!([of_first, of_second], [new.expected(0), new.expected(1)]);
        taken.extend(rest.await.unwrap());
        assert_eq!(taken, old.expected(1));
        let report = first.report();
        let closing = tokio::spawn(first.close_async());
        second.close_async().await.unwrap();
        closing.await.unwrap().unwrap();
        // The later run is not affected: its ranks have read each sample once.
        assert_eq!(new.origin.counts().tally().requests, SAMPLES);
        assert_eq!(report.skipped, 0);
    });
}
