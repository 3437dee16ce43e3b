//! Caches of small samples, of which many are removed: their space is free again, and nothing else
//! is lost.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foreread_local::disk::{DatasetOnDisk, DiskTier};
use foreread_tier::{Buffer, Buffers, CacheTier, ErrorKind, HeapBuffers, Sample, TierError};
use foreread_tier_testing::{KnownSample, until};
use foreread_types::{DatasetId, DatasetIdentity, SampleId, SampleKey, SplitMix64};

use crate::rig::{Mount, config, is_stored, place, read, run, sample, seed, store, taken, verify};

const SEGMENT: u64 = 1 << 20;

fn dataset(print: u128, samples: u64) -> DatasetOnDisk {
    DatasetOnDisk { identity: DatasetIdentity(print), samples, bytes: samples * 1000 }
}

fn open(directory: &Path, capacity: u64) -> DiskTier {
    open_sets(directory, capacity, &[dataset(1, 400_000)])
}

fn open_sets(directory: &Path, capacity: u64, sets: &[DatasetOnDisk]) -> DiskTier {
    let config = config(directory, capacity).with_segment(SEGMENT);
    DiskTier::open(config, sets, Arc::new(HeapBuffers)).unwrap()
}

fn known(id: u64) -> KnownSample {
    sample(id, 1000)
}

fn keys(ids: impl Iterator<Item = u64>) -> Vec<SampleKey> {
    ids.map(|id| known(id).key).collect()
}

/// Stores samples until one does not fit. Returns how many were tried.
fn fill(tier: &DiskTier, samples: impl Iterator<Item = KnownSample>) -> u64 {
    // With many small segments in a full cache, there may be no room for a further one.
    let check = |stored: Vec<Result<(), TierError>>| {
        let failed = stored.into_iter().filter_map(Result::err).find(|error| error.kind() != ErrorKind::Full);
        assert!(failed.is_none(), "{failed:?}");
    };
    run(async {
        let (mut writes, mut tried) = (Vec::new(), 0);
        for known in samples {
            let Some(room) = tier.reserve(tier.footprint().of(known.object.size)) else { break };
            writes.push(tier.store(room, known.key, Sample::uncharged(known.content)));
            tried += 1;
            if writes.len() == 64 {
                check(futures::future::join_all(writes.drain(..)).await);
            }
        }
        check(futures::future::join_all(writes).await);
        tried
    })
}

/// A full cache had no space to move records, and kept half of its space dead.
#[test]
// semantics: DISK-26
fn full_cache_is_emptied_too() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 8 << 20);
    let first = fill(&tier, (0..40_000).map(known));
    let mut draw = SplitMix64(seed());
    let (mut live, mut next): (Vec<u64>, u64) = ((0..first).collect(), first);
    for _ in 0..300 {
        let gone: Vec<u64> =
            (0..50).map(|_| live.swap_remove(draw.below(live.len() as u64) as usize)).collect();
        run(tier.remove(keys(gone.into_iter())));
        let tried = fill(&tier, (next..next + 60).map(known));
        live.extend((next..next + tried).filter(|id| is_stored(&tier, &known(*id))));
        next += tried;
        assert!(taken(directory.path()) <= 8 << 20);
    }
    // At most a quarter of the live bytes may be dead. The writer recovers space while it has
    // nothing else to do.
    until("there is room for removed samples", || {
        next += fill(&tier, (next..next + 60).map(known));
        tier.stored(DatasetId(0)).samples * 100 >= first * 78
    });
    assert_eq!(run(verify(&tier, known)), tier.stored(DatasetId(0)).samples);
    assert_eq!(tier.counts().corrupt, 0);
}

/// Moved records left gaps that were charged only at the next opening.
#[test]
// semantics: DISK-8
fn moved_records_take_no_more_than_before() {
    let directory = tempfile::tempdir().unwrap();
    let capacity = 24 << 20;
    let known = |id| sample(id, 4100);
    let sets = [dataset(1, 100_000)];
    let tier = open_sets(directory.path(), capacity, &sets);
    let mut next = fill(&tier, (0..100_000).map(known));
    let mut draw = SplitMix64(seed());
    for _ in 0..3 {
        let stored = tier.samples(DatasetId(0)).into_iter().filter(|_| draw.below(100) < 40);
        run(tier.remove(stored.map(|id| SampleKey::new(DatasetId(0), id)).collect()));
        next += fill(&tier, (next..100_000).map(known));
        run(tier.flush());
        assert!(taken(directory.path()) <= capacity, "{}", taken(directory.path()));
    }
    let before = tier.stored(DatasetId(0)).samples;
    drop(tier);
    let tier = open_sets(directory.path(), capacity, &sets);
    assert_eq!(tier.stored(DatasetId(0)).samples, before, "all fit again");
    assert_eq!(run(verify(&tier, known)), before);
    run(tier
        .remove(tier.samples(DatasetId(0)).into_iter().map(|id| SampleKey::new(DatasetId(0), id)).collect()));
    assert_eq!(tier.free(), tier.capacity());
}

/// A panic of the allocator ended the thread that writes, and later stores waited for ever.
#[test]
fn panic_of_the_allocator_does_not_end_the_writer() {
    #[derive(Debug)]
    struct Exploding(AtomicBool);
    impl Buffers for Exploding {
        fn allocate(&self, length: usize, align: usize) -> Option<Buffer> {
            assert!(!self.0.load(Ordering::Relaxed), "no memory");
            HeapBuffers.allocate(length, align)
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let buffers = Arc::new(Exploding(AtomicBool::new(false)));
    let shared = Arc::clone(&buffers) as Arc<dyn Buffers>;
    let tier = DiskTier::open(config(directory.path(), 32 << 20), &[dataset(1, 20_000)], shared).unwrap();
    fill(&tier, (0..4000).map(known));
    let before = tier.free();
    buffers.0.store(true, Ordering::Relaxed);
    run(tier.remove(keys((0..4000).step_by(2))));
    until("space is recovered", || tier.free() > before + 1_000_000);
    fill(&tier, (5000..5003).map(known));
    assert!((5000..5003).all(|id| is_stored(&tier, &known(id))));
}

/// Each removal wrote an empty block, and broke the chain of blocks.
#[test]
fn damaged_segment_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let capacity = 16 << 20;
    let tier = open_sets(directory.path(), capacity, &[dataset(1, 20_000)]);
    fill(&tier, (0..4000).map(known));
    let segment = place(directory.path(), 1).join("00000.segment");
    let file = std::fs::File::options().write(true).open(&segment).unwrap();
    let zeros = vec![0; file.metadata().unwrap().len() as usize - 4096];
    std::os::unix::fs::FileExt::write_all_at(&file, &zeros, 4096).unwrap();
    file.sync_all().unwrap();
    run(tier.remove(keys((0..3000).step_by(2))));
    for id in 0..500 {
        assert_eq!(fill(&tier, std::iter::once(known(5000 + id))), 1);
        run(tier.remove(keys(std::iter::once(1 + 2 * id))));
    }
    fill(&tier, (8000..20_000).map(known));
    run(tier.flush());
    assert!(taken(directory.path()) <= capacity, "{}", taken(directory.path()));
}

/// The index had entries of removed records whose space another dataset used.
#[test]
// semantics: DISK-8
fn index_after_a_large_removal_fits_its_charge() {
    let directory = tempfile::tempdir().unwrap();
    let capacity = 8 << 20;
    let tier = open_sets(directory.path(), capacity, &[dataset(1, 100_000), dataset(2, 4000)]);
    let stored = fill(&tier, (0..100_000).map(|id| sample(id, 30)));
    run(tier.remove(keys(0..stored * 7 / 8)));
    let other = |id| KnownSample { key: SampleKey::new(DatasetId(1), SampleId(id)), ..sample(id, 20_000) };
    fill(&tier, (0..4000).map(other));
    run(tier.flush());
    assert!(taken(directory.path()) <= capacity, "{}", taken(directory.path()));
}

/// A removal wrote to a full file system, which ended all writing.
#[test]
// semantics: DISK-10
fn removal_on_a_full_file_system_does_not_end_writing() {
    let Some(mount) = Mount::tmpfs(12 << 20) else {
        println!("skipped: tmpfs cannot be mounted here");
        return;
    };
    let tier = open(&mount.path(), 64 << 20);
    fill(&tier, (0..8000).map(known));
    let filler = mount.path().join("filler");
    let file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut &file, &[1; 4096]).is_ok() {}
    // Enough for the index and its copy, and little more.
    file.set_len(file.metadata().unwrap().len() - (200 << 10)).unwrap();
    run(tier.remove(keys((0..4000).map(|id| 2 * id))));
    run(tier.flush());
    drop(file);
    std::fs::remove_file(filler).unwrap();
    fill(&tier, (8000..8100).map(known));
    assert!((8000..8100).all(|id| is_stored(&tier, &known(id))));
}

/// A reader of another process's cache took moved records for damaged ones.
#[test]
// semantics: DISK-19
fn reader_of_a_cache_loses_no_moved_record() {
    let directory = tempfile::tempdir().unwrap();
    let owner = open(directory.path(), 16 << 20);
    fill(&owner, (0..8000).map(known));
    let reader = open(directory.path(), 16 << 20);
    reader.refresh();
    assert_eq!(reader.stored(DatasetId(0)).samples, 8000);
    let before = owner.free();
    run(owner.remove(keys((0..8000).step_by(2))));
    until("space is recovered", || owner.free() > before + 2_000_000);
    run(async {
        for id in (1..8000).step_by(2) {
            match read(&reader, &known(id)).await {
                Ok(bytes) => assert_eq!(bytes, known(id).content),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Absent, "{error}"),
            }
        }
    });
    // The owner may still move records.
    until("the reader finds all records", || {
        reader.refresh();
        run(verify(&reader, known)) == 4000
    });
    assert_eq!(reader.counts().corrupt, 0);
}

/// The overhead of further segments was kept when they were removed.
#[test]
fn overhead_of_removed_segments_is_released() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 8 << 20);
    run(async {
        for id in 0..100 {
            if !matches!(store(&tier, &sample(id, 600_000)).await, Some(Ok(()))) {
                break;
            }
        }
    });
    run(tier.remove(keys(0..100)));
    assert_eq!(tier.free(), tier.capacity());
}

/// A sample above 32 MiB takes more than its footprint, and was lost at the next opening.
#[test]
fn large_sample_needs_its_whole_room() {
    let size = 32 << 20;
    // Without the overhead of many segments.
    let open = |directory: &Path, capacity| {
        DiskTier::open(config(directory, capacity), &[dataset(1, 10)], Arc::new(HeapBuffers)).unwrap()
    };
    let room_for = |more: u64| {
        let directory = tempfile::tempdir().unwrap();
        let probe = open(directory.path(), 64 << 20);
        let overhead = (64 << 20) - probe.capacity();
        let capacity = overhead + probe.footprint().of(size) + more;
        drop(probe);
        let directory = tempfile::tempdir().unwrap();
        let tier = open(directory.path(), capacity);
        let stored = run(store(&tier, &sample(0, size))).is_some_and(|stored| stored.is_ok());
        drop(tier);
        (stored, open(directory.path(), capacity).stored(DatasetId(0)).samples == 1)
    };
    assert_eq!(room_for(0), (false, false));
    assert_eq!(room_for(64 << 10), (true, true));
}
