//! Processes with several loaders: one for training and one for validation, and a loader that is
//! created again.

use std::time::Duration;

use foreread::ranks::Meetings;
use foreread::{Config, Loader};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::FakeOrigin;
use futures::StreamExt;

use crate::rig::{Delivered, Job, runtime};

const SAMPLES: u64 = 120;

/// Two ranks whose group caches all samples, in two epochs.
fn job(network: &SimulatedNetwork, batch_size: u64) -> Job {
    let mut config = Config::default();
    (config.rank.ranks, config.batch_size, config.epochs, config.look_ahead) = (2, batch_size, 2, 5_000);
    let origin = FakeOrigin::uniform(SAMPLES, 100).with_latency(Duration::from_millis(2));
    Job { network: network.clone(), origin, config, memory: vec![SAMPLES * 1000; 2] }
}

/// The samples of the next batch.
async fn take(loader: &mut Loader) -> Option<Vec<Delivered>> {
    let batch = loader.next().await?.unwrap();
    Some(batch.iter().map(|(id, _)| (batch.epoch(), id)).collect())
}

/// Takes all remaining batches, from each rank's loaders in turn.
async fn take_all(loaders: &mut [Loader]) -> Vec<Vec<Delivered>> {
    let mut taken = vec![Vec::new(); loaders.len()];
    let mut live: Vec<usize> = (0..loaders.len()).collect();
    while !live.is_empty() {
        for at in std::mem::take(&mut live) {
            if let Some(batch) = take(&mut loaders[at]).await {
                taken[at].extend(batch);
                live.push(at);
            }
        }
    }
    taken
}

async fn close(loaders: Vec<Loader>) {
    let closing: Vec<_> = loaders.into_iter().map(|loader| tokio::spawn(loader.close_async())).collect();
    for one in closing {
        one.await.unwrap().unwrap();
    }
}

#[test]
// semantics: RANK-12
fn training_and_validation_loaders_coexist_on_every_rank() {
    runtime().block_on(async {
        let (network, meetings) = (SimulatedNetwork::new(1), Meetings::new());
        let (training, validation) = (job(&network, 5), job(&network, 7));
        let mut loaders = training.start_in(&meetings, None).await;
        loaders.extend(validation.start_in(&meetings, None).await);
        let taken = take_all(&mut loaders).await;
        for rank in 0..2 {
            assert_eq!(taken[rank], training.expected(rank as u32), "training on rank {rank}");
            assert_eq!(taken[2 + rank], validation.expected(rank as u32), "validation on rank {rank}");
        }
        close(loaders).await;
        for job in [training, validation] {
            assert_eq!(job.origin.counts().tally().requests, SAMPLES, "each sample once, for both ranks");
        }
    });
}

#[test]
fn loader_is_created_again_while_the_old_one_lives() {
    runtime().block_on(async {
        let (job, meetings) = (job(&SimulatedNetwork::new(1), 5), Meetings::new());
        let mut old = job.start_in(&meetings, None).await;
        for loader in &mut old {
            take(loader).await.unwrap();
        }
        let mut new = job.start_in(&meetings, None).await;
        let taken = take_all(&mut new).await;
        assert_eq!(taken, [job.expected(0), job.expected(1)]);
        close(old).await;
        // The first loader has freed its number, while the second is alive.
        let mut last = job.start_in(&meetings, None).await;
        assert_eq!(take_all(&mut last).await, taken);
        close(new).await;
        close(last).await;
    });
}

#[test]
// semantics: RANK-12
fn different_order_of_loaders_is_reported_with_the_difference() {
    runtime().block_on(async {
        let (network, meetings) = (SimulatedNetwork::new(1), Meetings::new());
        let (training, validation) = (job(&network, 5), job(&network, 7));
        let first = tokio::spawn(training.builder_in(&meetings, 0).start_async());
        let second = tokio::spawn(validation.builder_in(&meetings, 1).start_async());
        for rank in [first, second] {
            let error = rank.await.unwrap().err().unwrap().to_string();
            let line = "rank 1 differs from rank 0: batch size is 7, rank 0's is 5";
            assert!(error.contains(line), "{error}");
        }
    });
}
