//! Exact times, on the paused clock.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use foreread_layers::{Limit, Stack};
use foreread_loader::{PassReport, ReadSource};
use foreread_memory::MemoryTier;
use foreread_tier_testing::FakeOrigin;
use tokio::time::sleep;

use crate::rig::{Rig, next};

const MS: Duration = Duration::from_millis(1);

/// Runs to the end with a trainer that computes for `compute` per batch.
async fn train(rig: &Rig, compute: Duration) -> Vec<PassReport> {
    let mut loader = rig.start();
    while let Some(batch) = next(&mut loader).await {
        batch.unwrap();
        sleep(compute).await;
    }
    loader.report().passes
}

fn near(time: Duration, bound: Duration, percent: u32) {
    let most = bound + bound * percent / 100;
    assert!(time >= bound && time <= most, "{time:?} for at least {bound:?}");
}

#[tokio::test(start_paused = true)]
async fn epoch_time_is_bound_by_bandwidth() {
    // 1000 samples of 100 KB at 100 MB/s: a second.
    let fake = FakeOrigin::uniform(1000, 100_000).with_latency(5 * MS).with_bandwidth(100_000_000);
    let rig = Rig { look_ahead: 8 << 20, batch_size: 20, epochs: 3, ..Rig::new(fake) };
    let passes = train(&rig, MS).await;
    near(passes[0].time, Duration::from_secs(1), 2);
    // Later epochs begin with a full buffer, so slightly less than all samples remain.
    for pass in &passes[1..] {
        near(pass.time + 100 * MS, Duration::from_secs(1), 12);
    }
    let total: Duration = passes.iter().map(|pass| pass.time).sum();
    near(total + 3 * MS, Duration::from_secs(3), 1);
}

#[tokio::test(start_paused = true)]
async fn epoch_time_is_bound_by_latency_and_parallelism() {
    // 960 samples, 16 at once, 10 ms each: 600 ms.
    let fake = FakeOrigin::uniform(960, 1000).with_latency(10 * MS).with_parallelism(16);
    let rig = Rig { look_ahead: 256 << 10, epochs: 1, ..Rig::new(fake) };
    near(train(&rig, Duration::ZERO).await[0].time, 600 * MS, 2);
}

#[tokio::test(start_paused = true)]
async fn warm_epoch_reads_only_uncached_samples() {
    // Half of the samples are cached, so a later epoch takes half as long.
    let (bytes, footprint) = (100_000, 100_416);
    let fake = FakeOrigin::uniform(1000, bytes).with_bandwidth(100_000_000);
    let memory = Arc::new(MemoryTier::new(500 * footprint));
    let rig = Rig { look_ahead: 4 << 20, epochs: 3, batch_size: 20, ..Rig::new(fake) };
    let rig = rig.cache(ReadSource::Memory, memory, 500 * footprint);
    let passes = train(&rig, Duration::ZERO).await;
    near(passes[0].time, Duration::from_secs(1), 2);
    for pass in &passes[1..] {
        assert!(pass.reads.from(ReadSource::Memory).samples >= 500);
        near(pass.time + 30 * MS, 500 * MS, 12);
    }
    assert!(rig.fake.counts().tally().bytes <= 2000 * bytes);
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-1
async fn look_ahead_crosses_the_epoch_boundary() {
    // A batch of 8 takes 8 ms to read and 10 ms to compute.
    let fake = FakeOrigin::uniform(400, 10_000).with_latency(5 * MS).with_bandwidth(10_000_000);
    let rig = Rig { epochs: 4, look_ahead: 500_000, ..Rig::new(fake) };
    let passes = train(&rig, 10 * MS).await;
    assert_eq!(passes.len(), 4);
    assert!(passes[0].first_batch > Duration::ZERO && passes[0].stall == passes[0].first_batch);
    for pass in &passes[1..] {
        assert_eq!((pass.first_batch, pass.stall), (Duration::ZERO, Duration::ZERO), "pass {}", pass.pass);
        assert_eq!(pass.time, 490 * MS, "the time of computing");
    }
}

#[tokio::test(start_paused = true)]
async fn stall_and_compute_add_up_to_the_time() {
    // A batch takes 20 ms to read and 5 ms to compute.
    let fake = FakeOrigin::uniform(160, 25_000).with_bandwidth(10_000_000);
    let rig = Rig { epochs: 1, look_ahead: 500_000, ..Rig::new(fake) };
    let pass = &train(&rig, 5 * MS).await[0];
    assert_eq!((pass.batches, pass.time), (20, 400 * MS));
    assert_eq!((pass.first_batch, pass.stall), (20 * MS, 400 * MS - 19 * 5 * MS));
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-7
async fn look_ahead_shrinks_for_a_slow_trainer_and_grows_again() {
    const MB: u64 = 1_000_000;
    let fake = FakeOrigin::uniform(4000, 100_000).with_latency(20 * MS).with_zeroes();
    let rig = Rig { look_ahead: 100 * MB, epochs: 2, batch_size: 10, ..Rig::new(fake) };
    let mut loader = rig.start();
    let mut waited = Duration::ZERO;
    // A megabyte every half second: ten seconds of demand are 20 MB.
    for _ in 0..300 {
        next(&mut loader).await.unwrap().unwrap();
        sleep(500 * MS).await;
    }
    waited += loader.report().passes[0].stall;
    assert!(waited <= 50 * MS, "{waited:?}: the first batch alone was waited for");
    let look_ahead = loader.look_ahead();
    assert_eq!((look_ahead.allowed, look_ahead.now), (100 * MB, 20 * MB));
    assert!(loader.staged_bytes() <= look_ahead.now + 2 * MB, "{} bytes", loader.staged_bytes());
    // The origin is silent for longer than the samples read ahead last, so the whole look-ahead may
    // be used again.
    rig.fake.set_latency(Duration::from_secs(60));
    for _ in 0..40 {
        next(&mut loader).await.unwrap().unwrap();
        sleep(500 * MS).await;
    }
    assert_eq!(loader.look_ahead().now, 100 * MB);
    assert_eq!(loader.look_ahead().lowest, 20 * MB);
}

/// Samples without room in a cache were requested first, and those of the first batch after them.
#[tokio::test(start_paused = true)]
async fn first_batch_gets_the_first_slots() {
    let latency = Duration::from_millis(10);
    let (bytes, footprint) = (10_000, 10_432);
    let fake = FakeOrigin::uniform(1000, bytes).with_latency(latency);
    let memory = Arc::new(MemoryTier::new(500 * footprint));
    let limit = Limit::new(NonZeroUsize::new(8).unwrap());
    let origin = Stack::bare().with_limit(Some(limit)).wrap(Arc::new(fake.clone()));
    let rig = Rig { origin: Some(origin), look_ahead: 4 << 20, batch_size: 8, ..Rig::new(fake) };
    let rig = rig.cache(ReadSource::Memory, memory, 500 * footprint);
    let mut loader = rig.start();
    next(&mut loader).await.unwrap().unwrap();
    let ids = rig.ids();
    let tick = |id| ids.iter().position(|other| *other == id).unwrap();
    let order: Vec<usize> = rig.fake.counts().order().iter().take(24).map(|key| tick(key.id)).collect();
    assert_eq!(order[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(loader.report().passes[0].first_batch, latency);
}
