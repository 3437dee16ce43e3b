//! Ranks stop at any step, each at another one, and resume with more or fewer ranks. No sample is
//! repeated or missing.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread::{Config, Deal, Loader, SamplerKind, State};
use foreread_peer_testing::SimulatedNetwork;
use foreread_tier_testing::{FakeOrigin, TestRandom};
use foreread_types::SampleId;
use futures::StreamExt;
use tokio::time::sleep;

use crate::rig::{Delivered, Job, runtime};

/// Runs that stop once and resume once.
const RESUMES: u64 = 50;

/// Takes up to `steps` batches. Returns the samples by batch.
async fn take(loader: &mut Loader, origin: &FakeOrigin, steps: usize, pace: Duration) -> Vec<Vec<Delivered>> {
    let mut taken = Vec::new();
    while taken.len() < steps
        && let Some(batch) = loader.next().await
    {
        let batch = batch.unwrap();
        let samples = batch.iter().map(|(id, bytes)| {
            assert_eq!(*bytes, origin.expected(id), "sample {id}");
            (batch.epoch(), id)
        });
        taken.push(samples.collect());
        sleep(pace).await;
    }
    taken
}

/// Runs all ranks until each has taken its `steps`, and ends them. Returns each rank's samples and
/// rank 0's state.
async fn run(
    job: &Job,
    state: Option<&State>,
    steps: &[usize],
    draw: &mut TestRandom,
) -> (Vec<Vec<Vec<Delivered>>>, State) {
    let mut ranks = Vec::new();
    for (mut loader, steps) in job.start(state).await.into_iter().zip(steps.to_vec()) {
        let (origin, pace) = (job.origin.clone(), Duration::from_millis(draw.below(50)));
        ranks.push(tokio::spawn(async move {
            let taken = take(&mut loader, &origin, steps, pace).await;
            loader.leave_async(Duration::from_secs(60)).await.unwrap();
            (taken, loader.state())
        }));
    }
    let (mut taken, mut first) = (Vec::new(), None);
    for rank in ranks {
        let (batches, state) = rank.await.unwrap();
        taken.push(batches);
        first.get_or_insert(state);
    }
    (taken, first.unwrap())
}

fn job(draw: &mut TestRandom, ranks: u32) -> Job {
    let samples = 60 + draw.below(200);
    let sizes: Vec<u64> = (0..samples).map(|_| draw.below(500)).collect();
    let bytes: u64 = sizes.iter().sum();
    let origin = FakeOrigin::new(sizes.into_iter().enumerate().map(|(id, size)| (format!("{id:04}"), size)));
    let mut config = Config::default();
    config.rank.ranks = ranks;
    config.sampler = [SamplerKind::Shuffle, SamplerKind::Torch, SamplerKind::Feistel][draw.below(3) as usize];
    config.deal = [Deal::Torch, Deal::Blocks][draw.below(2) as usize];
    config.seed = draw.below(1 << 40);
    config.epochs = 1 + draw.below(3);
    config.batch_size = 1 + draw.below(8);
    config.look_ahead = 5_000;
    let memory = vec![2 * bytes / u64::from(ranks); ranks as usize];
    Job {
        network: SimulatedNetwork::new(1),
        origin: origin.with_latency(Duration::from_millis(1)),
        config,
        memory,
    }
}

/// Stops `before` ranks at a random step, and resumes with `after` ranks.
async fn resume(draw: &mut TestRandom, before: u32, after: u32) {
    let job = job(draw, before);
    let all = job.expected(0).len().div_ceil(job.config.batch_size as usize) as u64;
    let lowest = draw.below(all + 1) as usize;
    let mut steps: Vec<usize> = (0..before).map(|_| lowest + draw.below(4) as usize).collect();
    steps[draw.below(u64::from(before)) as usize] = lowest;
    let (mut taken, state) = run(&job, None, &steps, draw).await;
    let reported = format!("{before} ranks after {steps:?} steps, then {after}: {:?}", job.config);

    // Only steps that all ranks have completed count.
    let mut counts: BTreeMap<u64, BTreeMap<SampleId, u64>> = BTreeMap::new();
    let mut count = |(epoch, id): Delivered| *counts.entry(epoch).or_default().entry(id).or_default() += 1;
    for batches in &mut taken {
        batches.truncate(lowest);
        batches.iter().flatten().copied().for_each(&mut count);
    }
    let last = taken[0].last().map(|batch| batch[0].0);
    // As in a file.
    let state: State = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    let of_last: usize = taken.iter().flatten().flatten().filter(|(epoch, _)| Some(*epoch) == last).count();
    let samples = job.origin.samples();
    let (epoch, consumed) = match last {
        None => (0, 0),
        Some(last) if of_last as u64 >= samples => (last + 1, 0),
        Some(last) => (last, of_last as u64),
    };
    assert_eq!((state.epoch(), state.consumed()), (epoch, consumed), "{reported}");

    let mut config = job.config.clone();
    (config.rank.ranks, config.batch_size) = (after, 1 + draw.below(8));
    let memory = vec![job.memory.iter().sum::<u64>() / u64::from(after); after as usize];
    let resumed = Job { network: SimulatedNetwork::new(2), config, memory, ..job.clone() };
    let (taken, _) = run(&resumed, Some(&state), &vec![usize::MAX; after as usize], draw).await;
    taken.iter().flatten().flatten().copied().for_each(&mut count);

    for number in 0..job.config.epochs {
        let of_epoch = &counts[&number];
        assert_eq!(of_epoch.len() as u64, samples, "epoch {number} misses some: {reported}");
        let pad = |samples: u64, ranks: u32| samples.next_multiple_of(u64::from(ranks)) - samples;
        let padding = match number.cmp(&epoch) {
            std::cmp::Ordering::Less => pad(samples, before),
            std::cmp::Ordering::Equal => pad(samples - consumed, after),
            std::cmp::Ordering::Greater => pad(samples, after),
        };
        assert_eq!(
            of_epoch.values().sum::<u64>(),
            samples + padding,
            "epoch {number} repeats some: {reported}"
        );
    }
}

#[test]
// semantics: RANK-23
fn resume_with_other_ranks_repeats_and_skips_no_sample() {
    let mut draw = TestRandom::new();
    for number in 0..RESUMES {
        let (before, after) = [(4, 2), (2, 3), (3, 1)][(number % 3) as usize];
        runtime().block_on(resume(&mut draw, before, after));
    }
}
