//! The contracts of a tier and of a cache.

use std::sync::Arc;

use foreread_local::disk::{DatasetOnDisk, DiskTier};
use foreread_tier::{Budget, CacheTier, ErrorKind, HeapBuffers, Sample};
use foreread_tier_testing::conformance;
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey};

use crate::rig::{config, is_stored, known, open, open_as, read, run, sample, store, taken, verify};

#[tokio::test]
// semantics: DISK-23
async fn cache_conformance() {
    let directory = tempfile::tempdir().unwrap();
    conformance::cache(Arc::new(open(directory.path(), 16 << 20))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cache_conformance_with_several_directories() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory.path().join("a"), 12 << 20).with_segment(1 << 20);
    config.directories.push((directory.path().join("b"), 20 << 20).into());
    // With 100, a ring has two threads.
    for parallelism in [1, 32, 100] {
        let config = config.clone().with_parallelism(parallelism);
        conformance::cache(Arc::new(open_as(config).unwrap())).await;
    }
    assert!(taken(&directory.path().join("a")) <= 12 << 20);
}

#[test]
fn warm_start_recovers_all_samples_and_continues() {
    let directory = tempfile::tempdir().unwrap();
    let mut bytes = 0;
    for round in 0..4 {
        let tier = open(directory.path(), 64 << 20);
        let stored = tier.stored(DatasetId(0));
        assert_eq!((stored.samples, stored.bytes), (round * 50, bytes));
        assert_eq!(tier.stored(DatasetId(1)).samples, 0);
        // Each opening begins a new block.
        let gaps = tier.capacity() - bytes - tier.free();
        assert!(gaps <= round * 4096, "{gaps} bytes of gaps in round {round}");
        run(async {
            assert_eq!(verify(&tier, known).await, round * 50);
            for id in round * 50..(round + 1) * 50 {
                store(&tier, &known(id)).await.unwrap().unwrap();
                bytes += tier.footprint().of(known(id).object.size);
            }
        });
        assert_eq!(tier.counts().written, 50);
    }
}

#[test]
fn removed_samples_stay_removed_after_a_warm_start() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 64 << 20);
    run(async {
        for id in 0..60 {
            store(&tier, &known(id)).await.unwrap().unwrap();
        }
        tier.remove((10..60).filter(|id| id % 3 > 0).map(|id| known(id).key).collect()).await;
    });
    drop(tier);
    let tier = open(directory.path(), 64 << 20);
    let expected: Vec<u64> = (0..60).filter(|id| *id < 10 || id % 3 == 0).collect();
    assert_eq!(tier.samples(DatasetId(0)).iter().map(|id| id.0).collect::<Vec<_>>(), expected);
    assert_eq!(run(verify(&tier, known)), expected.len() as u64);
}

#[test]
fn datasets_with_one_identity_share_a_cache() {
    let directory = tempfile::tempdir().unwrap();
    let dataset = DatasetOnDisk { identity: DatasetIdentity(7), samples: 10, bytes: 1000 };
    let datasets = [dataset, dataset];
    let tier = DiskTier::open(config(directory.path(), 8 << 20), &datasets, Arc::new(HeapBuffers)).unwrap();
    let mut known = sample(3, 333);
    run(async {
        store(&tier, &known).await.unwrap().unwrap();
        known.key.dataset = DatasetId(1);
        assert_eq!(read(&tier, &known).await.unwrap(), known.content);
    });
    assert_eq!(tier.stored(DatasetId(1)).samples, 1);
}

#[test]
fn foreign_samples_and_charges_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 8 << 20);
    let other = Budget::new(1 << 20);
    run(async {
        let bytes = Sample::uncharged(sample(0, 10).content);
        for key in [SampleKey::new(DatasetId(0), SampleId(4000)), SampleKey::new(DatasetId(2), SampleId(0))] {
            let error = tier.store(tier.reserve(4096).unwrap(), key, bytes.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        let key = SampleKey::new(DatasetId(0), SampleId(0));
        let error = tier.store(other.charge(4096), key, bytes.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    });
    assert_eq!(tier.free(), tier.capacity());
}

/// Write-behind: the look-ahead is freed after the copy, and samples that do not fit are refused at
/// once.
#[test]
fn full_write_queue_refuses_at_once_and_counts() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open_as(config(directory.path(), 256 << 20).with_write_behind(4 << 20)).unwrap();
    let big: Vec<_> = (0..64).map(|id| sample(id, 1 << 20)).collect();
    run(async {
        let mut waiting = Vec::new();
        let mut refused = 0;
        for known in &big {
            let room = tier.reserve(tier.footprint().of(1 << 20)).unwrap();
            let mut stored = Box::pin(tier.store(room, known.key, Sample::uncharged(known.content.clone())));
            match futures::poll!(&mut stored) {
                std::task::Poll::Ready(Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Full);
                    refused += 1;
                }
                std::task::Poll::Ready(Ok(())) => {}
                std::task::Poll::Pending => waiting.push(stored),
            }
        }
        // Each was polled once. If one had waited for the disk, the next would have found space.
        assert!(refused > 0, "64 MiB at once fit 4 MiB of write-behind");
        assert_eq!(tier.counts().skipped, refused);
        for stored in waiting {
            stored.await.unwrap();
        }
        let kept = big.iter().filter(|known| is_stored(&tier, known)).count() as u64;
        assert_eq!(kept + refused, 64);
        assert_eq!(tier.free(), tier.capacity() - kept * tier.footprint().of(1 << 20));
    });
}

#[test]
fn sample_larger_than_write_behind_or_segment_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 64 << 20).with_write_behind(1 << 20).with_segment(1 << 20);
    let tier = open_as(config).unwrap();
    let (large, small) = (sample(1, 5_000_001), sample(2, 100));
    run(async {
        store(&tier, &large).await.unwrap().unwrap();
        store(&tier, &small).await.unwrap().unwrap();
        assert_eq!(read(&tier, &large).await.unwrap(), large.content);
        assert_eq!(read(&tier, &small).await.unwrap(), small.content);
    });
}

#[test]
fn samples_are_spread_over_directories_by_free_space() {
    let directory = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "c"].map(|name| directory.path().join(name));
    let mut config = config(&paths[0], 6 << 20);
    config.directories.extend([(paths[1].clone(), 12 << 20), (paths[2].clone(), 6 << 20)].map(Into::into));
    let tier = open_as(config.clone()).unwrap();
    let mut stored = 0;
    run(async {
        while let Some(done) = store(&tier, &sample(stored, 100_000)).await {
            done.unwrap();
            stored += 1;
        }
    });
    assert!(stored * 102_400 > tier.capacity() - 4 * 102_400, "{stored} samples of {}", tier.capacity());
    for foreread_local::disk::DiskDirectory { path, capacity, .. } in &config.directories {
        let taken = taken(path);
        assert!(taken <= *capacity && taken > capacity / 2, "{taken} of {capacity} in {}", path.display());
    }
    drop(tier);
    // The order of the directories does not affect their contents.
    config.directories.reverse();
    let tier = open_as(config).unwrap();
    assert_eq!(run(verify(&tier, |id| sample(id, 100_000))), stored);
}

/// A second store waits for the first one's write, even between its two steps: to register the
/// sample, and to queue it.
#[test]
fn second_store_of_a_sample_waits_for_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 64 << 20);
    const CALLERS: usize = 4;
    let barrier = std::sync::Barrier::new(CALLERS);
    let wrong = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for id in 0..4000 {
                    let known = sample(id, 100);
                    barrier.wait();
                    let stored = runtime.block_on(store(&tier, &known)).unwrap();
                    // A panic in one thread would leave the others waiting.
                    let right = stored.is_ok() && is_stored(&tier, &known);
                    wrong.fetch_add(u64::from(!right), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(wrong.into_inner(), 0, "samples that were reported as stored and were not");
}
