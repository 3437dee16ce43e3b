//! Staging memory: its bounds, its release, and that too little of it hangs no run.

use std::sync::Arc;
use std::time::Duration;

use foreread_loader::ReadSource;
use foreread_memory::MemoryTier;
use foreread_oracle::Weighted;
use foreread_planner::Retention;
use foreread_tier_testing::FakeOrigin;
use futures::StreamExt;
use tokio::time::{sleep, timeout};

use crate::rig::{Rig, marked, mixed, next};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn two_held_batches_and_tiny_look_ahead_do_not_deadlock() {
    for look_ahead in [0, 1, 900, 5_000] {
        let rig = Rig { look_ahead, ..Rig::new(mixed(200, 37, 1_000).with_latency(2 * MS)) };
        let (mut loader, mut ids, mut held) = (rig.start(), Vec::new(), Vec::new());
        while let Some(batch) = timeout(1000 * MS, loader.next()).await.expect("no deadlock") {
            let batch = batch.unwrap();
            ids.extend(rig.check(&batch));
            held.push(batch);
            if held.len() > 2 {
                held.remove(0);
            }
        }
        assert_eq!(ids, rig.ids());
        drop(held);
        assert_eq!(loader.staged_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn staging_stays_within_the_look_ahead_or_two_batches() {
    for (look_ahead, bound) in [(0, 16_000), (10_000, 16_000), (40_000, 40_000)] {
        let rig = Rig { look_ahead, ..Rig::new(FakeOrigin::uniform(400, 1_000).with_latency(2 * MS)) };
        let (mut loader, mut most) = (rig.start(), 0);
        loop {
            sleep(MS).await;
            most = most.max(loader.staged_bytes());
            let Some(batch) = next(&mut loader).await else { break };
            // Held for a moment, and dropped before the next request.
            let batch = batch.unwrap();
            most = most.max(loader.staged_bytes());
            sleep(MS).await;
            drop(batch);
        }
        assert!(most <= bound && most >= 8_000, "{most} with {look_ahead} ahead");
    }
}

#[tokio::test(start_paused = true)]
async fn taken_batch_frees_look_ahead_at_once() {
    // All samples read ahead are in the memory tier, so the trainer's position bounds the
    // look-ahead.
    let rig = Rig { look_ahead: 40_000, epochs: 1, ..Rig::new(FakeOrigin::uniform(400, 1_000)) };
    let rig = rig.cache(ReadSource::Memory, Arc::new(MemoryTier::new(1 << 20)), 1 << 20);
    let mut loader = rig.start();
    sleep(MS).await;
    let before = rig.fake.counts().tally().requests;
    let _held = next(&mut loader).await;
    sleep(MS).await;
    assert_eq!(rig.fake.counts().tally().requests, before + 8);
}

#[tokio::test(start_paused = true)]
async fn dropped_batch_frees_look_ahead_at_once() {
    let rig = Rig { look_ahead: 20_000, ..Rig::new(FakeOrigin::uniform(400, 1_000)) };
    let mut loader = rig.start();
    let held = next(&mut loader).await;
    sleep(MS).await;
    let before = rig.fake.counts().tally().requests;
    drop(held);
    sleep(MS).await;
    assert!(rig.fake.counts().tally().requests > before);
}

#[test]
fn thousands_of_handovers_lose_no_wake_up() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for look_ahead in [0, 2_000, 20_000] {
        let rig = Rig { look_ahead, batch_size: 1, ..Rig::new(mixed(2_000, 7, 50)) };
        let (mut loader, mut held, mut ids) = (rig.start_on(runtime.handle()), Vec::new(), Vec::new());
        let long = Duration::from_secs(300);
        loop {
            let batch = if ids.len().is_multiple_of(2) {
                loader.next_timeout(long).transpose()
            } else {
                runtime.block_on(async { timeout(long, loader.next()).await.expect("no hang") })
            };
            let Some(batch) = batch else { break };
            let batch = batch.unwrap();
            ids.extend(rig.check(&batch));
            held.push(batch);
            held.truncate(ids.len() % 3);
        }
        assert_eq!(ids, rig.ids());
    }
}

/// When one of two threads took the batch that both waited for, the other's wait was forgotten.
#[test]
fn second_waiting_thread_is_always_served() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rig = Rig { look_ahead: 0, batch_size: 1, ..Rig::new(FakeOrigin::uniform(40, 1_000)) };
    let loader = rig.start_on(runtime.handle());
    let take = || {
        let began = std::time::Instant::now();
        // It may return early, but not because its wait was forgotten.
        let mut waits = std::iter::repeat_with(|| loader.next_timeout(Duration::from_secs(600)));
        let batch = waits.find_map(|batch| {
            assert!(batch.is_ok() || began.elapsed() < Duration::from_secs(300), "it hangs");
            batch.ok()
        });
        batch.flatten().unwrap()
    };
    // All batches are held, so that the next is read only on request.
    let mut held = Vec::new();
    for _ in 0..20 {
        let both = std::thread::scope(|scope| [scope.spawn(take), scope.spawn(take)].map(|one| one.join()));
        held.extend(both.map(|batch| batch.unwrap()));
    }
    assert_eq!(held.len(), 40);
}

#[tokio::test(start_paused = true)]
// semantics: CACHE-6
async fn batch_or_sample_larger_than_all_memory_is_delivered() {
    for memory in [60_000, 40_000] {
        let rig = Rig { look_ahead: 10_000, batch_size: 16, ..Rig::new(FakeOrigin::uniform(64, 50_000)) };
        let rig = rig.cache(ReadSource::Memory, Arc::new(MemoryTier::new(memory)), memory);
        assert_eq!(rig.check_all(&mut rig.start()).await, 8);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_wait_loses_no_batch() {
    let rig = Rig::new(mixed(100, 37, 1_000).with_latency(5 * MS).with_parallelism(4));
    let (mut loader, mut ids, mut dropped) = (rig.start(), Vec::new(), 0);
    loop {
        match timeout(MS, loader.next()).await {
            Err(_) => dropped += 1,
            Ok(None) => break,
            Ok(Some(batch)) => ids.extend(rig.check(&batch.unwrap())),
        }
    }
    assert_eq!(ids, rig.ids());
    assert!(dropped > 100, "{dropped}");
}

#[tokio::test(start_paused = true)]
// semantics: FAIL-17
async fn dropped_loader_ends_all_its_work() {
    let mark = Arc::new(());
    let fake = mixed(1000, 37, 1_000).with_latency(5 * MS).with_parallelism(8);
    let rig = Rig { epochs: 3, look_ahead: 50_000, ..Rig::new(fake.clone()) }.origin(marked(&fake, &mark));
    let mut loader = rig.start();
    let batch = next(&mut loader).await.unwrap().unwrap();
    // Now there are complete batches, samples of incomplete batches, and reads in flight.
    sleep(7 * MS).await;
    let at_once = fake.counts().tally();
    assert!(at_once.in_flight > 0 && Arc::strong_count(&mark) > 1 + batch.len());
    drop(loader);
    sleep(Duration::from_secs(60)).await;
    let later = fake.counts().tally();
    assert_eq!((later.in_flight, later.requests), (0, at_once.requests));
    assert_eq!(later.cancelled, at_once.in_flight);
    assert_eq!(Arc::strong_count(&mark), 1 + batch.len(), "only the trainer's batch is left");
    rig.check(&batch);
    drop(batch);
    assert_eq!(Arc::strong_count(&mark), 1);
}

#[tokio::test(start_paused = true)]
async fn threshold_hit_rate_matches_the_plan() {
    let samples = 3_000u32;
    let weights: Vec<f64> = (0..samples).map(|id| 1.0 / f64::from(1 + id % 100)).collect();
    let sampler = Arc::new(Weighted::new(&weights, u64::from(samples), 5).unwrap());
    let fake = FakeOrigin::uniform(u64::from(samples), 2_000);
    let room = u64::from(samples) * 2_368 / 4;
    let rig = Rig { sampler, epochs: 6, batch_size: 32, look_ahead: 100_000, ..Rig::new(fake) };
    let rig = rig.cache(ReadSource::Memory, Arc::new(MemoryTier::new(room)), room);
    let mut loader = rig.start();
    assert!(matches!(loader.plan().retention(), Retention::Threshold { .. }));
    rig.check_all(&mut loader).await;
    let used = 6.0 * f64::from(samples) * 2_000.0;
    let planned = 1.0 - loader.plan().origin_bytes() as f64 / used;
    let hit = 1.0 - rig.fake.counts().tally().bytes as f64 / used;
    assert!((hit - planned).abs() < 0.02, "{hit} instead of {planned}");
}
