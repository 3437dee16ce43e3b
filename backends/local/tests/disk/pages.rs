//! The tier's bytes stay out of the page cache.

use std::fs;
use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::rig::{Mount, files, open, read, run, sample, store};

/// How many of a file's pages the page cache holds, and of how many.
fn cached(path: &Path) -> (u64, u64) {
    let file = fs::File::open(path).unwrap();
    let pages = file.metadata().unwrap().len().div_ceil(4096);
    let mut byte = [0];
    let held = (0..pages).filter(|page| {
        // Answered from the cache or not at all.
        match preadv2(file.as_fd(), &mut [IoSliceMut::new(&mut byte)], page * 4096, ReadWriteFlags::NOWAIT) {
            Ok(count) => count > 0,
            Err(Errno::AGAIN) => false,
            Err(errno) => panic!("{errno}"),
        }
    });
    (held.count() as u64, pages)
}

fn writes_and_reads_leave_no_pages(directory: &Path) {
    let tier = open(directory, 64 << 20);
    run(async {
        for id in 0..300 {
            store(&tier, &sample(id, 110_000)).await.unwrap().unwrap();
        }
        for _ in 0..2 {
            for id in 0..300 {
                let known = sample(id, 110_000);
                assert_eq!(read(&tier, &known).await.unwrap(), known.content);
            }
        }
    });
    drop(tier);
    let segments = files(directory).into_iter().filter(|path| path.extension().is_some());
    for path in segments {
        let (held, pages) = cached(&path);
        assert!(
            pages > 1000 && held <= pages / 100,
            "{held} of {pages} pages are cached: {}",
            path.display()
        );
    }
}

#[test]
fn the_page_cache_does_not_grow() {
    let directory = tempfile::tempdir().unwrap();
    if fs::File::open(directory.path()).is_ok_and(|file| {
        rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type as u64 & 0xFFFF_FFFF == 0x0102_1994)
    }) {
        println!("skipped: the files of a tmpfs are the page cache");
        return;
    }
    writes_and_reads_leave_no_pages(directory.path());
}

#[test]
fn nor_where_the_disk_is_a_file() {
    match Mount::ext4(128 << 20) {
        Some(mount) => writes_and_reads_leave_no_pages(&mount.path()),
        None => println!("skipped: ext4 cannot be mounted here"),
    }
}
