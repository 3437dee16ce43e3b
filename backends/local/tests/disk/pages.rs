//! The tier's bytes stay out of the page cache.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::rig::{Mount, files, open, read, run, sample, store};

/// The number of a file's pages in the page cache, and of all its pages. Reading them would cause
/// read-ahead.
fn cached(path: &Path) -> (usize, usize) {
    let file = fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let mut held = vec![0u8; length.div_ceil(4096)];
    // SAFETY: a new mapping of an open file that is not accessed. `mincore` writes one byte per
    // page, and `held` has as many. It is unmapped here, and no reference remains.
    let requested = unsafe {
        let (none, shared) = (libc::PROT_NONE, libc::MAP_SHARED);
        let start = libc::mmap(std::ptr::null_mut(), length, none, shared, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        let requested = libc::mincore(start, length, held.as_mut_ptr());
        libc::munmap(start, length);
        requested
    };
    assert_eq!(requested, 0, "{}", std::io::Error::last_os_error());
    (held.iter().filter(|&&page| page & 1 == 1).count(), held.len())
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
fn page_cache_does_not_grow() {
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
fn page_cache_does_not_grow_on_a_loop_device() {
    match Mount::ext4(128 << 20) {
        Some(mount) => writes_and_reads_leave_no_pages(&mount.path()),
        None => println!("skipped: ext4 cannot be mounted here"),
    }
}
