//! The capacity is never exceeded, and a failing disk costs only cached samples.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use foreread_local::disk::{self, Access, CleanRule, DatasetOnDisk, DiskTier};
use foreread_tier::{CacheTier, ErrorKind, HeapBuffers, Sample};
use foreread_tier_testing::until;
use foreread_types::{DatasetId, DatasetIdentity, SplitMix64};

use crate::rig::{
    Mount, config, copy, dataset, is_stored, known, listen, open, open_as, place, read, root, run, sample,
    seed, store, taken, verify, warnings,
};

#[test]
fn capacity_is_never_exceeded() {
    let mut draw = SplitMix64(seed());
    let directory = tempfile::tempdir().unwrap();
    let capacity = 6 << 20;
    for _ in 0..4 {
        let tier = open_as(config(directory.path(), capacity).with_segment(1 << 20)).unwrap();
        run(async {
            for _ in 0..300 {
                let known = known(draw.below(200));
                match draw.below(3) {
                    0 => tier.remove(vec![known.key]).await,
                    _ => {
                        if let Some(Err(error)) = store(&tier, &known).await {
                            assert_eq!(error.kind(), ErrorKind::Full);
                        }
                    }
                }
                let taken = taken(directory.path());
                assert!(taken <= capacity, "{taken} bytes of {capacity}");
            }
            verify(&tier, known).await;
        });
        assert_eq!(tier.counts().corrupt, 0);
    }
}

/// Records were rounded up to 4 KiB.
#[test]
// semantics: DISK-26
fn small_samples_use_the_room_of_the_disk() {
    for (size, count) in [(1000, 100_000), (1024, 100_000), (110_000, 1000)] {
        let directory = tempfile::tempdir().unwrap();
        let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples: count, bytes: count * size };
        let capacity = 96 << 20;
        let tier =
            DiskTier::open(config(directory.path(), capacity), &[dataset], Arc::new(HeapBuffers)).unwrap();
        let stored = run(async {
            let mut writes = Vec::new();
            for id in 0..count {
                let Some(room) = tier.reserve(tier.footprint().of(size)) else { break };
                let known = sample(id, size);
                let sample = Sample::uncharged(known.content);
                writes.push(tier.store(room, known.key, sample));
                // As many as the queue takes.
                if writes.len() == 64 {
                    futures::future::try_join_all(writes.drain(..)).await.unwrap();
                }
            }
            futures::future::try_join_all(writes).await.unwrap();
            tier.stored(DatasetId(0)).samples
        });
        let part = (stored * size) as f64 / capacity as f64;
        println!("{stored} samples of {size} bytes are {part:.3} of {capacity} bytes");
        assert!(part >= 0.9, "samples of {size} bytes: {part:.3} of the room");
        assert!(taken(directory.path()) <= capacity);
    }
}

/// Live records of the same blocks kept the space of removed ones.
#[test]
// semantics: DISK-26
fn removed_small_samples_free_their_space() {
    let directory = tempfile::tempdir().unwrap();
    let dataset = DatasetOnDisk { identity: DatasetIdentity(1), samples: 8000, bytes: 8_000_000 };
    let open = || {
        let config = config(directory.path(), 16 << 20).with_segment(1 << 20);
        DiskTier::open(config, &[dataset], Arc::new(HeapBuffers)).unwrap()
    };
    let tier = open();
    let known = |id| sample(id, 1000);
    run(async {
        for ids in (0..8000).collect::<Vec<u64>>().chunks(500) {
            futures::future::join_all(ids.iter().map(|id| async {
                store(&tier, &known(*id)).await.unwrap().unwrap();
            }))
            .await;
        }
    });
    let full = tier.free();
    // Every second one is removed in parts, while the others are read.
    let is_removing = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run(async {
                for part in (0..8000).step_by(2).collect::<Vec<u64>>().chunks(100) {
                    tier.remove(part.iter().map(|id| known(*id).key).collect()).await;
                }
            });
            is_removing.store(false, std::sync::atomic::Ordering::Release);
        });
        let mut rounds = 0;
        while is_removing.load(std::sync::atomic::Ordering::Acquire) || rounds == 0 {
            run(async {
                let ids: Vec<u64> = (1..8000).step_by(2).collect();
                for part in ids.chunks(200) {
                    let reads = part.iter().map(|id| async { (*id, read(&tier, &known(*id)).await) });
                    for (id, result) in futures::future::join_all(reads).await {
                        assert_eq!(result.unwrap(), known(id).content, "sample {id}");
                    }
                }
            });
            rounds += 1;
        }
    });
    // The writer recovers the space while it has nothing else to do.
    let removed = 4000 * tier.footprint().of(1000);
    until("three quarters of the removed bytes are free again", || tier.free() - full >= removed * 3 / 4);
    assert_eq!(tier.counts().corrupt, 0);
    assert!(taken(directory.path()) <= (16 << 20) - tier.free());
    drop(tier);
    let tier = open();
    assert_eq!((run(verify(&tier, known)), tier.counts().corrupt), (4000, 0));
    run(tier.remove((0..8000).map(|id| known(id).key).collect()));
    assert_eq!(tier.free(), tier.capacity());
}

#[test]
fn smaller_capacity_drops_the_excess() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 32 << 20);
    run(async {
        for id in 0..200 {
            store(&tier, &sample(id, 100_000)).await.unwrap().unwrap();
        }
    });
    drop(tier);
    let tier = open(directory.path(), 8 << 20);
    let kept = tier.stored(DatasetId(0));
    assert!(kept.samples > 20 && kept.bytes <= tier.capacity(), "{kept:?} of {}", tier.capacity());
    assert!(taken(directory.path()) <= 8 << 20, "{}", taken(directory.path()));
    assert_eq!(run(verify(&tier, |id| sample(id, 100_000))), kept.samples);
}

#[test]
fn old_caches_are_removed_only_for_needed_space() {
    let directory = tempfile::tempdir().unwrap();
    let fill = |print: u128, samples: u64| {
        let mut dataset = dataset(print);
        dataset.bytes = samples * 100_000;
        dataset.samples = samples;
        let config = config(directory.path(), 16 << 20);
        let tier = DiskTier::open(config, &[dataset], Arc::new(HeapBuffers)).unwrap();
        run(async {
            for id in 0..samples {
                if let Some(done) = store(&tier, &sample(id, 100_000)).await {
                    done.unwrap();
                }
            }
        });
        assert!(taken(directory.path()) <= 16 << 20);
        tier
    };
    let prints = || {
        let entries = disk::list(directory.path()).unwrap();
        entries.iter().map(|entry| entry.identity.0).collect::<Vec<_>>()
    };
    for print in [5, 4, 3] {
        drop(fill(print, 40));
    }
    assert_eq!(prints(), [3, 4, 5], "three times 4 MiB fit 16 MiB");
    for print in [5, 4, 3] {
        let lock = fs::File::options().write(true).open(place(directory.path(), print).join("lock")).unwrap();
        lock.set_modified(SystemTime::now() - Duration::from_secs(print as u64)).unwrap();
    }
    // Another process reads the oldest.
    let lock = place(directory.path(), 5).join("lock");
    let reader = fs::File::open(&lock).unwrap();
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockShared).unwrap();
    drop(fill(6, 60));
    assert_eq!(prints(), [3, 5, 6]);
    drop(fill(7, 140));
    assert_eq!(prints(), [5, 7]);
    let entries = disk::list(directory.path()).unwrap();
    assert!(entries[0].in_use && !entries[1].in_use);
    drop(reader);
    // A child of another test holds this process's locks until it executes its own program.
    let mut cleaned = 0;
    until("both caches are cleaned", || {
        cleaned += disk::clean(directory.path(), &CleanRule::all()).unwrap().len();
        cleaned == 2
    });
    assert!(prints().is_empty());
}

#[test]
// semantics: DISK-10, DISK-22
fn full_disk_costs_only_samples_that_do_not_fit() {
    listen();
    for (kind, mount) in [("tmpfs", Mount::tmpfs(6 << 20)), ("ext4", Mount::ext4(24 << 20))] {
        let Some(mount) = mount else {
            println!("skipped: {kind} cannot be mounted here");
            continue;
        };
        let open = || open(&mount.path(), 1 << 30);
        let tier = open();
        let mut refused = 0;
        run(async {
            for id in 0..400 {
                match store(&tier, &sample(id, 100_000)).await {
                    Some(Ok(())) => assert_eq!(refused, 0, "after a failure nothing is written"),
                    Some(Err(error)) => {
                        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                        refused += 1;
                    }
                    None => refused += 1,
                }
            }
            let kept = verify(&tier, |id| sample(id, 100_000)).await;
            assert!(kept > 20 && kept + refused == 400, "{kind}: {kept} kept, {refused} refused");
            // Freed space is not used again in this run, but in the next.
            tier.remove((0..20).map(|id| sample(id, 100_000).key).collect()).await;
        });
        let counts = tier.counts();
        assert!((1..=refused).contains(&counts.failed), "{kind}: {counts:?}, {refused} refused");
        let reported = warnings(&mount.path());
        assert_eq!(reported.len(), 1, "{kind}: one line for it: {reported:?}");
        assert!(
            reported[0].contains("only read from now on") && reported[0].contains("free some"),
            "{reported:?}"
        );
        drop(tier);
        let tier = open();
        run(async {
            verify(&tier, |id| sample(id, 100_000)).await;
            store(&tier, &sample(0, 100_000)).await.unwrap().unwrap();
        });
        assert_eq!(tier.counts().corrupt, 0);
    }
}

/// A failing disk, or a file system that the kernel makes read-only.
#[test]
// semantics: DISK-22
fn disk_failing_under_an_open_tier_costs_only_misses() {
    static SHUTDOWN: libc::c_ulong = 0x8004_587D; // EXT4_IOC_SHUTDOWN
    static NOT_EVEN_THE_LOG: u32 = 2;
    let Some(mount) = Mount::ext4(32 << 20) else {
        println!("skipped: ext4 cannot be mounted here");
        return;
    };
    listen();
    let tier = open(&mount.path(), 16 << 20);
    run(async {
        for id in 0..40 {
            store(&tier, &known(id)).await.unwrap().unwrap();
        }
        let root = fs::File::open(mount.path()).unwrap();
        // SAFETY: the descriptor is open, and this request reads one `u32` from the given address.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const NOT_EVEN_THE_LOG) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        let several = [50, 51, 52].map(known);
        let stored = futures::future::join_all(several.iter().map(|known| store(&tier, known))).await;
        let failed = stored.iter().flatten().filter(|stored| stored.is_err()).count() as u64;
        let error = stored.into_iter().flatten().find_map(Result::err).unwrap();
        assert_eq!(tier.counts().failed, failed, "each is counted");
        let reported = warnings(&mount.path());
        assert_eq!(reported.len(), 1, "one line for all of them: {reported:?}");
        assert!(!is_stored(&tier, &known(50)) && tier.reserve(4096).is_none(), "{error}");
        verify(&tier, known).await;
        tier.remove((0..40).map(|id| known(id).key).collect()).await;
        assert_eq!(verify(&tier, known).await, 0);
    });
}

#[test]
fn unusable_directory_is_named_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    for (path, kind) in [(directory.path().join("no/such"), ErrorKind::NotFound), (file, ErrorKind::Invalid)]
    {
        let error = open_as(config(&path, 8 << 20)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert!(error.to_string().contains("choose"), "{error}");
    }
    if rustix::process::geteuid().is_root() {
        println!("skipped: root may write to any directory");
    } else {
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let error = open_as(config(directory.path(), 8 << 20)).unwrap_err();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(error.kind(), ErrorKind::Denied);
    }
}

/// Remounts a file system read-only. The threads of a dropped tier close its files later.
fn make_read_only(path: &std::path::Path) {
    let remount = || crate::rig::command(&["mount", "-o", "remount,ro", path.to_str().unwrap()]);
    until("its files are closed", remount);
}

#[test]
// semantics: DISK-11
fn read_only_directory_is_used_if_it_holds_the_dataset() {
    listen();
    let (Some(filled), Some(empty)) = (Mount::tmpfs(8 << 20), Mount::tmpfs(8 << 20)) else {
        println!("skipped: tmpfs cannot be mounted here");
        return;
    };
    let path = filled.path();
    let tier = open(&path, 4 << 20);
    run(store(&tier, &known(1))).unwrap().unwrap();
    drop(tier);
    make_read_only(&path);
    let tier = open(&path, 4 << 20);
    assert_eq!(tier.access(), [Access::ReadOnly]);
    assert_eq!(run(read(&tier, &known(1))).unwrap(), known(1).content);
    assert!(tier.capacity() == 0 && tier.reserve(4096).is_none());
    assert_eq!(disk::list(&path).unwrap()[0].samples, 1);
    let reported = warnings(&path);
    assert!(reported.len() == 1 && reported[0].contains("is only read"), "{reported:?}");
    drop(tier);
    // Another dataset has no cache there, and the second directory has none at all.
    let other = DiskTier::open(config(&path, 4 << 20), &[dataset(9)], Arc::new(HeapBuffers));
    make_read_only(&empty.path());
    for refused in [other, open_as(config(&empty.path(), 4 << 20))] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("read-only; choose a directory on another"), "{error}");
    }
}

/// Fills the free space of a file system.
fn fill(path: &std::path::Path) {
    use std::io::Write;
    let mut file = fs::File::create(path.join("others")).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write(&vec![1; size]).is_ok_and(|written| written > 0) {}
    }
    // Buffered writes would fail only later.
    while file.sync_all().is_err() {}
}

#[test]
// semantics: DISK-10
fn full_disk_at_the_start_costs_one_warning() {
    listen();
    for (kind, mount) in [("tmpfs", Mount::tmpfs(6 << 20)), ("ext4", Mount::ext4(24 << 20))] {
        let Some(mount) = mount else {
            println!("skipped: {kind} cannot be mounted here");
            continue;
        };
        let path = mount.path();
        fill(&path);
        let tier = open(&path, 1 << 30);
        assert!([[Access::ReadOnly], [Access::Unused]].contains(&[tier.access()[0]]), "{:?}", tier.access());
        assert!(tier.capacity() == 0 && tier.reserve(4096).is_none());
        drop(tier);
        let reported = warnings(&path);
        assert!(reported.len() == 1 && reported[0].contains("the disk is full"), "{kind}: {reported:?}");
    }
}

#[test]
// semantics: DISK-10
fn full_disk_at_the_start_keeps_existing_samples() {
    listen();
    for (kind, mount) in [("tmpfs", Mount::tmpfs(6 << 20)), ("ext4", Mount::ext4(24 << 20))] {
        let Some(mount) = mount else {
            println!("skipped: {kind} cannot be mounted here");
            continue;
        };
        let path = mount.path();
        let tier = open(&path, 1 << 30);
        run(async {
            for id in 0..20 {
                store(&tier, &known(id)).await.unwrap().unwrap();
            }
        });
        drop(tier);
        assert_eq!(disk::list(&path).unwrap().len(), 2); // waits for the last writes
        fill(&path);
        // With a valid index, and with an index that must be rewritten and does not fit.
        for damage in [false, true] {
            if damage {
                let index = fs::File::options().write(true).open(place(&path, 1).join("index")).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&index, &[0xff], 64 + 5 * 20).unwrap();
                fill(&path);
            }
            let before = warnings(&path).len();
            let tier = open(&path, 1 << 30);
            run(async {
                assert_eq!(verify(&tier, known).await, 20 - u64::from(damage), "{kind}");
                if let Some(stored) = store(&tier, &sample(100, 100_000)).await {
                    assert_eq!(stored.unwrap_err().kind(), ErrorKind::Full);
                }
            });
            drop(tier);
            assert_eq!(disk::list(&path).unwrap().len(), 2);
            let reported = warnings(&path).split_off(before);
            let full = reported.iter().filter(|line| line.contains("the disk is full")).count();
            assert_eq!(full, 1, "{kind}: {reported:?}");
        }
    }
}

#[test]
fn foreign_files_are_neither_changed_nor_removed() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 8 << 20);
    run(store(&tier, &known(5))).unwrap().unwrap();
    drop(tier);
    let root = root(directory.path());
    let own = root.join(DatasetIdentity(1).to_string());
    let foreign = [
        directory.path().join("file"),
        root.join("notes.txt"),
        own.join("notes.txt"),
        own.join("123.segment"),
    ];
    for path in &foreign {
        fs::write(path, "another program's, and more than eight bytes").unwrap();
    }
    let tier = open(directory.path(), 8 << 20);
    assert_eq!(run(read(&tier, &known(5))).unwrap(), known(5).content);
    run(tier.remove(vec![known(5).key]));
    assert!(!is_stored(&tier, &known(5)));
    drop(tier);
    let removed = disk::clean(directory.path(), &CleanRule::dataset(DatasetIdentity(1))).unwrap();
    assert_eq!(removed[0].left, [own.join("123.segment"), own.join("notes.txt")], "what is left is named");
    for path in &foreign {
        assert!(path.exists(), "{}", path.display());
    }
    assert!(!own.join("index").exists() && !own.join("00000.segment").exists());
}

#[test]
fn cache_copied_to_another_directory_works_there() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tier = open(from.path(), 8 << 20);
    run(store(&tier, &known(7))).unwrap().unwrap();
    copy(from.path(), to.path());
    let copied = open(to.path(), 8 << 20);
    assert_eq!(run(verify(&copied, known)), 1);
}

#[test]
// semantics: DISK-20
fn directory_given_twice_is_refused_even_if_missing() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    for name in ["there", "linked"] {
        fs::create_dir(at(name)).unwrap();
    }
    std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
    for (first, second) in
        [("there", "there/."), ("new", "new"), ("newer", "there/../newer"), ("there", "link")]
    {
        let twice = [(at(first), 8 << 20), (at(second), 8 << 20)];
        let error = open_as(foreread_local::DiskConfig::new(twice)).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{first} and {second}: {text}");
        assert!(text.contains(at(second).to_str().unwrap()) && text.contains("name it once"), "{text}");
    }
}

#[test]
fn sum_of_capacities_does_not_overflow() {
    let parent = tempfile::tempdir().unwrap();
    let both = ["a", "b"].map(|name| (parent.path().join(name), 15_000_000 << 40));
    let tier = open_as(foreread_local::DiskConfig::new(both).with_reader(crate::reader())).unwrap();
    assert_eq!((tier.capacity(), tier.free()), (u64::MAX, u64::MAX));
    run(store(&tier, &known(1))).unwrap().unwrap();
    assert_eq!(run(read(&tier, &known(1))).unwrap(), known(1).content);
}

#[test]
// semantics: DISK-20
fn capacity_below_one_sample_is_refused_with_the_minimum() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("small");
    let refused = |capacity| {
        let error = open_as(config(&path, capacity)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && !path.exists(), "{text}");
        text.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let least = refused(1);
    assert_eq!(refused(16 << 10), least);
    assert_eq!(refused(least - 1), least);
    let tier = open(&path, least);
    run(store(&tier, &sample(0, 100))).unwrap().unwrap();
    assert!(taken(&path) <= least);
}

/// A segment that cannot be opened keeps its space.
#[test]
fn segment_that_cannot_be_opened_is_charged() {
    let directory = tempfile::tempdir().unwrap();
    let (capacity, held) = (6 << 20, 2 << 20);
    drop(open(directory.path(), capacity));
    let segment = place(directory.path(), 1).join("00000.segment");
    // Reading it fails for root too.
    fs::create_dir(&segment).unwrap();
    fs::write(segment.join("file"), vec![1; held as usize]).unwrap();
    for _ in 0..2 {
        let tier = open(directory.path(), capacity);
        assert!(tier.capacity() - tier.free() >= held, "{} of {} free", tier.free(), tier.capacity());
        let mut id = 0;
        while let Some(done) = run(store(&tier, &sample(id, 100_000))) {
            done.unwrap();
            id += 1;
        }
        assert!(tier.stored(DatasetId(0)).samples > 0);
        drop(tier);
        let taken = taken(directory.path());
        assert!(taken <= capacity, "{taken} bytes of {capacity}");
    }
}

/// The second store waits for the first one's write, which fails.
#[test]
fn failed_write_fails_all_stores_of_its_sample() {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 64 << 20);
    fs::remove_dir_all(root(directory.path())).unwrap();
    // Copying the first takes long enough for the others to be queued.
    let samples = [sample(0, 16 << 20), sample(1, 1 << 20), sample(1, 1 << 20)];
    let stores: Vec<_> = samples
        .iter()
        .map(|known| {
            let room = tier.reserve(tier.footprint().of(known.object.size)).unwrap();
            tier.store(room, known.key, Sample::uncharged(known.content.clone()))
        })
        .collect();
    let stored = run(futures::future::join_all(stores));
    assert!(stored.iter().all(Result::is_err), "{stored:?}");
    assert!(!is_stored(&tier, &samples[1]));
}
