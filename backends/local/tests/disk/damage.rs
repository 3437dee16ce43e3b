//! A flipped byte anywhere, a file that is too short or gone: nothing wrong is delivered.

use std::fs;
use std::path::{Path, PathBuf};

use foreread_local::disk::DiskTier;
use foreread_tier::ErrorKind;
use foreread_tier_testing::Known;
use foreread_types::Fingerprint;

use crate::rig::{copy, files, open, read, run, sample, store, verify};

const SAMPLES: u64 = 3;

fn small(id: u64) -> Known {
    sample(id, 40 + id * 7)
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
    directory.join(format!("foreread-cache/{}/{name}", Fingerprint(1)))
}

/// What is left of `cache` after `damage`: how many samples can be read; what was lost can be stored again.
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
fn a_flipped_byte_costs_what_it_hits() {
    let cache = cache();
    let mut places: Vec<(&str, usize)> = (0..64 + SAMPLES as usize * 32).map(|at| ("index", at)).collect();
    let segment = "00000.segment";
    places.extend((0..40).chain([100, 2000, 4095]).map(|at| (segment, at)));
    for id in 0..SAMPLES as usize {
        let used = 64 + small(id as u64).content.len();
        places.extend((0..used).chain([used, 4095]).map(|at| (segment, 4096 * (id + 1) + at)));
    }
    for (at, (name, place)) in places.into_iter().enumerate() {
        let left = after(cache.path(), |copy| edit(&file(copy, name), |bytes| bytes[place] ^= 1 << (at % 8)));
        let header = place < if name == "index" { 64 } else { 4096 };
        let expected = if header { 0 } else { SAMPLES - 1 };
        assert!(left >= expected, "{name} at {place}: {left} left");
    }
}

#[test]
fn a_truncated_file_costs_what_was_cut() {
    let cache = cache();
    for length in (0..64 + SAMPLES as usize * 32).step_by(7) {
        let left = after(cache.path(), |copy| edit(&file(copy, "index"), |bytes| bytes.truncate(length)));
        assert_eq!(left as usize, length.saturating_sub(64) / 32, "an index of {length} bytes");
    }
    for length in (0..4096 * (SAMPLES as usize + 1)).step_by(509) {
        let left =
            after(cache.path(), |copy| edit(&file(copy, "00000.segment"), |bytes| bytes.truncate(length)));
        assert_eq!(left as usize, (length / 4096).saturating_sub(1), "a segment of {length} bytes");
    }
}

#[test]
fn a_lost_file_costs_what_was_in_it() {
    let cache = cache();
    for name in ["index", "00000.segment", "lock"] {
        let left = after(cache.path(), |copy| fs::remove_file(file(copy, name)).unwrap());
        assert_eq!(left, if name == "lock" { SAMPLES } else { 0 }, "{name}");
    }
}

#[test]
fn another_version_is_begun_afresh() {
    let cache = cache();
    for name in ["index", "00000.segment"] {
        assert_eq!(after(cache.path(), |copy| edit(&file(copy, name), |bytes| bytes[8] += 1)), 0, "{name}");
    }
}

#[test]
fn records_that_changed_places_are_not_taken_for_each_other() {
    let cache = cache();
    let left = after(cache.path(), |copy| {
        edit(&file(copy, "00000.segment"), |bytes| {
            let (first, second) = bytes[4096..].split_at_mut(4096);
            first.swap_with_slice(&mut second[..4096]);
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
        let theirs = copy.join(format!("foreread-cache/{}/00000.segment", Fingerprint(2)));
        fs::copy(theirs, file(copy, "00000.segment")).unwrap();
    });
    assert_eq!(left, 0);
}

/// Damage under a tier that is open: the read says so once, and the sample can be stored again.
#[test]
fn a_byte_that_flips_under_an_open_tier_is_corrupt_and_then_absent() {
    let cache = cache();
    let tier = open(cache.path(), 4 << 20);
    let segment = files(cache.path()).into_iter().find(|path| path.ends_with("00000.segment")).unwrap();
    edit_in_place(&segment, 4096 + 64 + 3);
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
