//! Damaged, truncated, missing or foreign files: no wrong bytes are delivered, and no space is
//! lost.

use std::fs;
use std::path::{Path, PathBuf};

use foreread_local::disk::{self, CleanRule, DiskTier};
use foreread_tier::ErrorKind;
use foreread_tier_testing::KnownSample;
use foreread_types::{DatasetIdentity, SplitMix64};

use crate::rig::{config, copy, files, open, place, read, root, run, sample, seed, store, verify};

const SAMPLES: u64 = 3;

/// The length of each record of [`small`], which begins with the sample and ends with its trailer.
const RECORD: usize = 128;
const TRAILER: usize = 24;

/// The length of an index entry.
const ENTRY: usize = 20;

fn small(id: u64) -> KnownSample {
    sample(id, 60 + id * 7)
}

/// A cache of a few small samples in one segment.
fn cache() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path(), 4 << 20);
    run(async {
        for id in 0..SAMPLES {
            store(&tier, &small(id)).await.unwrap().unwrap();
        }
    });
    drop(tier);
    directory
}

fn file(directory: &Path, name: &str) -> PathBuf {
    place(directory, 1).join(name)
}

/// The number of readable samples of `cache` after `damage`. Lost samples can be stored again.
fn after(cache: &Path, damage: impl FnOnce(&Path)) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    copy(cache, directory.path());
    damage(directory.path());
    let tier = open(directory.path(), 4 << 20);
    let right = run(verify(&tier, small));
    refill(&tier);
    drop(tier);
    let tier = open(directory.path(), 4 << 20);
    assert_eq!(run(verify(&tier, small)), SAMPLES, "after what was lost was stored again");
    right
}

fn refill(tier: &DiskTier) {
    run(async {
        for id in 0..SAMPLES {
            store(tier, &small(id)).await.unwrap().unwrap();
            assert_eq!(read(tier, &small(id)).await.unwrap(), small(id).content);
        }
    });
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
// semantics: DISK-9
fn flipped_byte_costs_only_its_record() {
    let cache = cache();
    let mut places: Vec<(&str, usize)> = (0..64 + SAMPLES as usize * ENTRY).map(|at| ("index", at)).collect();
    let segment = "00000.segment";
    places.extend((0..40).chain([100, 2000, 4095]).map(|at| (segment, at)));
    places.extend((0..SAMPLES as usize * RECORD + 100).map(|at| (segment, 4096 + at)));
    // A third of the bytes in each run, another one for each seed.
    let first = (seed() % 3) as usize;
    for (at, (name, place)) in places.into_iter().enumerate().skip(first).step_by(3) {
        let left = after(cache.path(), |copy| edit(&file(copy, name), |bytes| bytes[place] ^= 1 << (at % 8)));
        let record = place.saturating_sub(4096) / RECORD;
        let is_padding = || {
            let length = small(record as u64).content.len();
            record >= SAMPLES as usize || (length..RECORD - TRAILER).contains(&(place % RECORD))
        };
        let expected = match name {
            "index" if place < 64 => 0,
            "index" => SAMPLES - 1,
            _ if place < 4096 => 0,
            _ if is_padding() => SAMPLES,
            _ => SAMPLES - 1,
        };
        assert_eq!(left, expected, "{name} at {place}");
    }
}

#[test]
// semantics: DISK-9
fn truncated_file_costs_only_the_lost_records() {
    let cache = cache();
    for length in (0..64 + SAMPLES as usize * ENTRY).step_by(7) {
        let left = after(cache.path(), |copy| edit(&file(copy, "index"), |bytes| bytes.truncate(length)));
        assert_eq!(left as usize, length.saturating_sub(64) / ENTRY, "an index of {length} bytes");
    }
    for length in (0..4096).step_by(509).chain((4096..2 * 4096).step_by(61)) {
        let left =
            after(cache.path(), |copy| edit(&file(copy, "00000.segment"), |bytes| bytes.truncate(length)));
        assert_eq!(
            left as usize,
            length.saturating_sub(4096).div_euclid(RECORD).min(SAMPLES as usize),
            "a segment of {length} bytes"
        );
    }
}

#[test]
// semantics: DISK-9
fn lost_file_costs_only_its_records() {
    let cache = cache();
    for name in ["index", "00000.segment", "lock"] {
        let left = after(cache.path(), |copy| fs::remove_file(file(copy, name)).unwrap());
        assert_eq!(left, if name == "lock" { SAMPLES } else { 0 }, "{name}");
    }
}

#[test]
// semantics: DISK-9
fn garbled_index_gives_no_wrong_sample() {
    let cache = cache();
    let mut draw = SplitMix64(seed());
    for _ in 0..20 {
        let from = draw.below(64 + SAMPLES * ENTRY as u64) as usize;
        after(cache.path(), |copy| {
            edit(&file(copy, "index"), |bytes| {
                bytes[from..].iter_mut().for_each(|byte| *byte = draw.below(256) as u8);
            });
        });
    }
}

#[test]
// semantics: DISK-9
fn cache_of_another_version_is_replaced() {
    let cache = cache();
    for (name, length) in [("index", 64), ("00000.segment", 4096)] {
        // The checksum fits each time, so only the version decides.
        for (added, expected) in [(0, SAMPLES), (1, 0)] {
            let left = after(cache.path(), |copy| {
                edit(&file(copy, name), |bytes| {
                    bytes[8] += added;
                    let (header, sum) = bytes[..length].split_last_chunk_mut::<4>().unwrap();
                    *sum = crc32c::crc32c(header).to_le_bytes();
                });
            });
            assert_eq!(left, expected, "{name} of version + {added}");
        }
    }
}

#[test]
fn swapped_records_are_never_mistaken() {
    let cache = cache();
    let left = after(cache.path(), |copy| {
        edit(&file(copy, "00000.segment"), |bytes| {
            let (first, second) = bytes[4096..].split_at_mut(RECORD);
            first.swap_with_slice(&mut second[..RECORD]);
        });
    });
    assert_eq!(left, SAMPLES - 2);
    // A segment of another dataset under this one's name.
    let left = after(cache.path(), |copy| {
        let tier = open(copy, 4 << 20);
        let mut other = small(0);
        other.key.dataset = foreread_types::DatasetId(1);
        run(store(&tier, &other)).unwrap().unwrap();
        drop(tier);
        let theirs = place(copy, 2).join("00000.segment");
        fs::copy(theirs, file(copy, "00000.segment")).unwrap();
    });
    assert_eq!(left, 0);
}

/// Noise, zeros, an empty file or another kind of object under the name of a cache file.
#[test]
// semantics: DISK-9
fn foreign_object_with_a_cache_file_name_is_replaced() {
    let cache = cache();
    for name in ["index", "00000.segment"] {
        for length in [0, 8, 64, 4096, 50_000] {
            let left = after(cache.path(), |copy| {
                edit(&file(copy, name), |bytes| {
                    let length = length.min(bytes.len());
                    bytes[..length].fill(0);
                });
            });
            assert_eq!(left, if length == 0 { SAMPLES } else { 0 }, "{length} zeros at the head of {name}");
        }
        let left = after(cache.path(), |copy| fs::write(file(copy, name), "another program's").unwrap());
        assert_eq!(left, 0, "another file as {name}");
        let elsewhere = cache.path().join("elsewhere");
        fs::write(&elsewhere, "another program's").unwrap();
        let left = after(cache.path(), |copy| {
            fs::remove_file(file(copy, name)).unwrap();
            std::os::unix::fs::symlink(&elsewhere, file(copy, name)).unwrap();
        });
        assert_eq!(left, 0, "a link as {name}");
        assert_eq!(fs::read(&elsewhere).unwrap(), b"another program's", "what it led to is not touched");
    }
    let left = after(cache.path(), |copy| {
        fs::remove_file(file(copy, "index")).unwrap();
        fs::create_dir(file(copy, "index")).unwrap();
    });
    assert_eq!(left, 0, "a directory as the index");
    let left = after(cache.path(), |copy| fs::create_dir(file(copy, "index.next")).unwrap());
    assert_eq!(left, SAMPLES, "a directory as the next index");
}

#[test]
fn zeroed_segment_is_freed_and_zeroed_cache_removed() {
    let cache = cache();
    edit(&file(cache.path(), "00000.segment"), |bytes| bytes.fill(0));
    let tier = open(cache.path(), 4 << 20);
    assert_eq!(tier.free(), tier.capacity());
    assert!(!file(cache.path(), "00000.segment").exists());
    refill(&tier);
    drop(tier);
    assert_eq!(disk::list(cache.path()).unwrap().len(), 2); // waits for the last writes
    for name in ["index", "00000.segment"] {
        edit(&file(cache.path(), name), |bytes| bytes.fill(0));
    }
    let removed = disk::clean(cache.path(), &CleanRule::all()).unwrap();
    assert!(removed.len() == 2 && removed.iter().all(|removed| removed.left.is_empty()), "{removed:?}");
    assert_eq!(files(cache.path()), [] as [PathBuf; 0], "nothing stays, the owner's file neither");
    open(cache.path(), 4 << 20);
}

#[test]
// semantics: DISK-19
fn unremovable_files_are_named_and_stay_listed() {
    let cache = cache();
    fs::remove_file(file(cache.path(), "00000.segment")).unwrap();
    fs::create_dir(file(cache.path(), "00000.segment")).unwrap();
    fs::write(file(cache.path(), "00000.segment").join("file"), "x").unwrap();
    let removed = disk::clean(cache.path(), &CleanRule::dataset(DatasetIdentity(1))).unwrap();
    assert_eq!(removed[0].left, [file(cache.path(), "00000.segment")]);
    assert!(disk::list(cache.path()).unwrap().iter().any(|entry| entry.identity == DatasetIdentity(1)));
    // A cache without its lock is listed and removed too.
    fs::remove_file(file(cache.path(), "lock")).unwrap();
    fs::remove_dir_all(file(cache.path(), "00000.segment")).unwrap();
    fs::write(file(cache.path(), "00003.segment"), "x").unwrap();
    assert!(disk::list(cache.path()).unwrap().iter().all(|entry| !entry.in_use));
    let removed = disk::clean(cache.path(), &CleanRule::dataset(DatasetIdentity(1))).unwrap();
    assert_eq!(removed[0].left, [] as [PathBuf; 0]);
    assert!(!file(cache.path(), "lock").parent().unwrap().exists());
}

#[test]
fn directory_in_place_of_a_lock_locks_and_is_removed() {
    let cache = cache();
    fs::remove_file(file(cache.path(), "lock")).unwrap();
    fs::create_dir(file(cache.path(), "lock")).unwrap();
    let tier = open(cache.path(), 4 << 20);
    assert!(disk::list(cache.path()).unwrap()[0].in_use);
    drop(tier);
    assert!(!disk::list(cache.path()).unwrap()[0].in_use);
    assert_eq!(disk::clean(cache.path(), &CleanRule::all()).unwrap().len(), 2);
    assert!(disk::list(cache.path()).unwrap().is_empty());
}

#[test]
fn directory_in_place_of_a_file_is_named() {
    let cache = cache();
    let owner = root(cache.path()).join("owner");
    for path in [file(cache.path(), "index"), owner] {
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        let text = crate::rig::open_as(config(cache.path(), 4 << 20)).unwrap_err().to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("move it away"), "{text}");
        fs::remove_dir_all(path).unwrap();
    }
    open(cache.path(), 4 << 20);
}

/// Damage under an open tier: the read reports it once, and the sample can be stored again.
#[test]
fn byte_flipped_under_an_open_tier_is_corrupt_then_absent() {
    let cache = cache();
    let tier = open(cache.path(), 4 << 20);
    let segment = files(cache.path()).into_iter().find(|path| path.ends_with("00000.segment")).unwrap();
    edit_in_place(&segment, 4096 + 3);
    let known = small(0);
    run(async {
        assert_eq!(read(&tier, &known).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(read(&tier, &known).await.unwrap_err().kind(), ErrorKind::Absent);
        assert_eq!(tier.counts().corrupt, 1);
        store(&tier, &known).await.unwrap().unwrap();
        assert_eq!(read(&tier, &known).await.unwrap(), known.content);
    });
}

fn edit_in_place(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.sync_all().unwrap();
}
