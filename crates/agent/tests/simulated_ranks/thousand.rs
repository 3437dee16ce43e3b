//! A thousand ranks in one process: the memory of each without its samples must be small.

use std::time::{Duration, Instant};

use foreread::Config;
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::FakeOrigin;
use futures::StreamExt;
use tokio::time::sleep;

use crate::rig::{Job, runtime};

/// Steps of each rank.
const STEPS: u64 = 10;
const EPOCHS: u64 = 5;
const BATCH: u64 = 4;
const BYTES: u64 = 1000;

/// The peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

async fn run(ranks: u32) {
    let samples = STEPS * BATCH * u64::from(ranks) / EPOCHS;
    let mut config = Config::default();
    (config.rank.ranks, config.batch_size, config.epochs) = (ranks, BATCH, EPOCHS);
    config.look_ahead = 3 * BATCH * BYTES;
    let memory = vec![4 * samples * BYTES / u64::from(ranks); ranks as usize];
    let origin = FakeOrigin::uniform(samples, BYTES).with_latency(Duration::from_millis(5));
    let job = Job { network: SimulatedNetwork::new(1), origin, config, memory };
    let began = Instant::now();
    let loaders = job.start(None).await;
    println!("{ranks} ranks have met and planned: {:?}, {} MiB at most", began.elapsed(), peak() >> 20);
    let tasks: Vec<_> = (0..)
        .zip(loaders)
        .map(|(rank, mut loader)| {
            let job = job.clone();
            tokio::spawn(async move {
                let mut delivered = Vec::new();
                while let Some(batch) = loader.next().await {
                    let batch = batch.unwrap();
                    for (id, bytes) in batch.iter() {
                        assert_eq!(*bytes, job.origin.expected(id), "sample {id}");
                        delivered.push((batch.epoch(), id));
                    }
                    sleep(Duration::from_millis(100)).await;
                }
                assert_eq!(delivered, job.expected(rank), "rank {rank}");
                loader.leave_async(Duration::from_secs(60)).await.unwrap()
            })
        })
        .collect();
    let mut merged = Vec::new();
    for task in tasks {
        merged.extend(task.await.unwrap());
    }
    println!("{ranks} ranks, {STEPS} steps: {:?}, {} MiB at most", began.elapsed(), peak() >> 20);
    assert_eq!((merged.len(), merged[0].ranks), (1, ranks));
    assert_eq!(merged[0].origin_requests, samples, "each sample once");
    assert!(peak() < 2 << 30, "{} MiB", peak() >> 20);
}

#[test]
// semantics: RANK-29
fn thousand_ranks_meet_plan_and_step_in_two_gibibytes() {
    let ranks = if std::env::var_os("FOREREAD_SOAK").is_some() { 1000 } else { 100 };
    runtime().block_on(run(ranks));
}
