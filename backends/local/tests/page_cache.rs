//! Read-ahead into the page cache of a real file system.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, too")]

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::unix::fs::symlink;
use std::path::Path;

use foreread_local::{PageCacheCounts, PageCacheReader};
use foreread_tier_testing::until;
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;

const FILES: usize = 40;
const SIZE: usize = 300_000;

/// Directories of tests in memory have no page cache that is apart from them. The build's directory
/// is on a disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn write(root: &Path, number: usize) {
    let path = root.join(number.to_string());
    fs::write(&path, vec![number as u8; SIZE]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // Only written pages can be dropped.
    rustix::fs::fadvise(&file, 0, None::<NonZeroU64>, Advice::DontNeed).unwrap();
}

/// Whether the bytes at the beginning, the middle and the end are in the page cache.
fn is_cached(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    [0, SIZE / 2, SIZE - 1].into_iter().all(|offset| {
        let mut byte = [0];
        let mut buffers = [IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(&file, &mut buffers, offset as u64, ReadWriteFlags::NOWAIT).is_ok()
    })
}

fn reader(root: &Path, look_ahead: u64) -> PageCacheReader {
    PageCacheReader::new(root, look_ahead, |id| (id < 1000).then(|| id.to_string())).unwrap()
}

#[test]
fn files_come_into_the_page_cache_before_their_use() {
    let directory = directory();
    (0..FILES).for_each(|number| write(directory.path(), number));
    let path = |number: usize| directory.path().join(number.to_string());
    let missing = (0..FILES).filter(|&number| !is_cached(&path(number))).count();
    assert!(missing > FILES / 2, "this directory's file system keeps {} of {FILES}", FILES - missing);

    // Ten files, and the files that the other threads have begun.
    let reader = reader(directory.path(), 10 * SIZE as u64);
    reader.announce((0..FILES as i64).rev().collect());
    until("the first ten are cached", || (FILES - 10..FILES).all(|number| is_cached(&path(number))));
    let begun = reader.counts();
    assert!(begun.read_ahead + begun.cached <= 18, "{begun:?}");
    assert!((0..FILES - 20).any(|number| !is_cached(&path(number))), "it reads too far ahead");

    // The last file of the order is used last.
    for used in 1..=FILES {
        reader.advance(used);
        let next = FILES.saturating_sub(used + 1);
        until("the next file is cached", || is_cached(&path(next)) || reader.counts().is_aside);
    }
    assert!(reader.counts().read_ahead >= (missing / 2) as u64, "{:?}", reader.counts());
}

#[test]
fn files_that_cannot_be_opened_are_passed_over() {
    let directory = directory();
    write(directory.path(), 0);
    fs::create_dir(directory.path().join("1")).unwrap();
    symlink("missing", directory.path().join("2")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        directory.path().join("3"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::write(directory.path().join("4"), "").unwrap();
    let reader = reader(directory.path(), 1 << 20);
    reader.announce(vec![-1, 3, 1, 2, 5000, 4, 0]);
    until("the last file is cached", || is_cached(&directory.path().join("0")));
    until("all of them are counted", || reader.counts().read_ahead + reader.counts().cached >= 2);
    let PageCacheCounts { bytes, .. } = reader.counts();
    assert!(bytes == 0 || bytes == SIZE as u64, "{bytes}");
}

#[test]
fn reader_ends_at_once() {
    let directory = directory();
    (0..4).for_each(|number| write(directory.path(), number));
    for _ in 0..20 {
        let reader = reader(directory.path(), 1 << 20);
        reader.announce(vec![0, 1, 2, 3]);
        drop(reader);
    }
    assert!(PageCacheReader::new(&directory.path().join("none"), 1, |_| None).is_err());
}
