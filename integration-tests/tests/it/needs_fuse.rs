//! The file system that behaves like Lustre, mounted by FUSE.
//!
//! `FOREREAD_TEST_FUSE` states that this process may mount one.

mod faults;
mod lustre;
mod origin;
mod placement;
mod requests;
mod unchanged;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use foreread_lustre_testing::{StandIn, StandInOptions};
use tempfile::TempDir;

use crate::support::needed;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Files on a local disk, and the mount over them.
pub struct Mounted {
    pub stand_in: StandIn,
    pub backing: TempDir,
}

/// Mounts a directory.
pub fn mount(backing: &Path, options: StandInOptions) -> StandIn {
    needed("FOREREAD_TEST_FUSE");
    StandIn::mount(backing, options).unwrap()
}

/// Mounts files of these names and sizes.
pub fn mounted(options: StandInOptions, files: &[(&str, usize)]) -> Mounted {
    let backing = tempfile::tempdir().unwrap();
    for (name, size) in files {
        let path = backing.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(name, *size)).unwrap();
    }
    let stand_in = mount(backing.path(), options);
    Mounted { stand_in, backing }
}

/// Bytes that differ from file to file and from place to place.
pub fn content(name: &str, size: usize) -> Vec<u8> {
    let salt = name.bytes().fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    (0..size as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 24) as u8).collect()
}

impl Mounted {
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.stand_in.root().join(name)
    }

    /// The OST hangs until the result is dropped.
    pub fn hang(&self, ost: u32) -> Finally<impl FnMut()> {
        self.stand_in.hang(ost);
        Finally(move || self.stand_in.resume(ost))
    }

    pub fn open(&self, name: &str) -> fs::File {
        fs::File::open(self.path(name)).unwrap()
    }
}

/// Runs at the end of its scope, also after a panic. A scope that panics waits for its threads
/// first, so their own waits have to end.
pub struct Finally<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Reads a range and compares it.
#[track_caller]
pub fn assert_range(file: &fs::File, name: &str, from: usize, length: usize) {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, from as u64).unwrap();
    assert!(bytes == content(name, from + length)[from..], "{name}: other bytes from {from}");
}

/// Whether a path is a mount point of this process.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}
