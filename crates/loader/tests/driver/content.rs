//! The right samples with the right bytes in the right order.

use std::sync::Arc;
use std::time::Duration;

use foreread_loader::{OnError, ReadSource};
use foreread_memory::MemoryTier;
use foreread_tier::{CacheTier, ErrorKind};
use foreread_tier_testing::{FailingTier, Fault, StoredCache, When};
use foreread_types::SampleId;
use tokio::runtime::Runtime;

use crate::rig::{Rig, mixed, next};

#[tokio::test(start_paused = true)]
async fn three_epochs_through_two_caches() {
    let fake =
        mixed(500, 37, 5_000).with_latency(Duration::from_millis(3)).with_jitter(Duration::from_millis(9));
    let total: u64 = (0..500).map(|id| fake.object(SampleId(id)).size).sum();
    let (memory, disk) = (Arc::new(MemoryTier::new(total / 4)), Arc::new(StoredCache::new(total / 2)));
    let rig = Rig { epochs: 3, look_ahead: 100_000, ..Rig::new(fake) }
        .cache(ReadSource::Memory, Arc::clone(&memory) as _, total / 4)
        .cache(ReadSource::Disk, Arc::clone(&disk) as _, total / 2);
    let mut loader = rig.start();
    assert_eq!(rig.check_all(&mut loader).await, 3 * 63);
    let report = loader.report();
    let read = rig.fake.counts().tally().bytes;
    assert!(read <= loader.plan().origin_bytes() && read >= loader.plan().floor(), "{read}");
    let by = |source| report.passes.iter().map(|pass| pass.reads.from(source).samples).sum::<u64>();
    assert_eq!(ReadSource::ALL.map(by).iter().sum::<u64>(), 1500);
    assert_eq!(by(ReadSource::Origin), rig.fake.counts().tally().requests);
    assert_eq!(by(ReadSource::Disk), disk.counts().tally().requests);
    assert!(by(ReadSource::Memory) > 0 && memory.budget().used() <= total / 4);
    assert_eq!(loader.staged_bytes(), 0);
}

#[test]
fn plain_thread_iterates_while_a_runtime_reads() {
    let runtime = Runtime::new().unwrap();
    let rig = Rig { epochs: 3, look_ahead: 20_000, ..Rig::new(mixed(300, 41, 3_000)) };
    let rig = rig.cache(ReadSource::Memory, Arc::new(MemoryTier::new(100_000)), 100_000);
    let loader = rig.start_on(runtime.handle());
    let trainer = std::thread::spawn(move || {
        let ids: Vec<_> = loader.batches().flat_map(|batch| rig.check(&batch.unwrap())).collect();
        assert_eq!(ids, rig.ids());
        assert!(loader.next_timeout(Duration::ZERO).unwrap().is_none(), "the end is repeated");
        loader.staged_bytes()
    });
    assert_eq!(trainer.join().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
// semantics: DISK-1
async fn failing_cache_costs_only_reads() {
    let stored = Arc::new(StoredCache::new(1 << 20));
    let failing = FailingTier::new(Arc::clone(&stored))
        .on(When::Every(5), Fault::Error(ErrorKind::Corrupt))
        .on(When::Every(7), Fault::Short);
    let rig = Rig { epochs: 4, look_ahead: 10_000, ..Rig::new(mixed(120, 37, 1_000)) };
    let rig = rig.cache(ReadSource::Disk, Arc::new(failing), 1 << 20);
    let mut loader = rig.start();
    rig.check_all(&mut loader).await;
    let tally = rig.fake.counts().tally();
    assert!((121..480).contains(&tally.requests), "{tally:?}");
    assert_eq!(stored.len(), 120, "what failed was stored again");
    assert_eq!(loader.staged_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn full_cache_costs_only_reads() {
    let failing = FailingTier::new(Arc::new(StoredCache::new(1 << 20))).with_failing_stores(ErrorKind::Full);
    let rig = Rig { look_ahead: 10_000, ..Rig::new(mixed(120, 37, 1_000)) };
    let rig = rig.cache(ReadSource::Disk, Arc::new(failing) as Arc<dyn CacheTier>, 1 << 20);
    rig.check_all(&mut rig.start()).await;
}

#[tokio::test(start_paused = true)]
async fn unreadable_samples_are_skipped_or_substituted() {
    let fake = mixed(64, 37, 1_000);
    let lost = [SampleId(3), SampleId(40)];
    for (on_error, missing) in [(OnError::Skip, 2), (OnError::Substitute, 0)] {
        let mut rig = Rig { on_error, ..Rig::new(fake.clone()) };
        let mut failing = FailingTier::new(Arc::new(fake.clone()));
        for id in lost {
            let key = fake.request(id, Default::default()).key;
            failing = failing.on(When::Key(key), Fault::Error(ErrorKind::NotFound));
        }
        rig = rig.origin(failing);
        let (mut loader, mut ids) = (rig.start(), Vec::new());
        while let Some(batch) = next(&mut loader).await {
            ids.push(rig.check(&batch.unwrap()));
        }
        let expected: Vec<_> = rig.ids();
        for (got, expected) in ids.iter().zip(expected.chunks(8)) {
            let bad = expected.iter().filter(|id| lost.contains(id)).count();
            assert_eq!(got.len(), if missing == 0 { 8 } else { 8 - bad });
            assert!(!got.iter().any(|id| lost.contains(id)));
        }
        let report = loader.report();
        assert_eq!((report.skipped, report.substituted), (2 * missing, 4 - 2 * missing));
        assert_eq!(loader.staged_bytes(), 0);
    }
}
