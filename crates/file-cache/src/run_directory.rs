//! The directory of a run in a cache: the lock of its process, and the names of its datasets.
//!
//! The host finds runs by these directories, and a run without a lock has ended. A killed process
//! leaves its directory, which the host removes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::directory::{CacheDirectory, lock, open_lock};
use crate::root::RootIdentity;
use crate::table::RootName;

/// The runs of a cache whose processes live.
pub(crate) fn has_runs(cache: &CacheDirectory) -> bool {
    runs(cache).any(|run| is_alive(&run))
}

pub(crate) fn runs(cache: &CacheDirectory) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(cache.runs()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.extension().is_none())
}

/// Whether the process of a run has its lock. That of this process counts as alive, too.
pub(crate) fn is_alive(run: &Path) -> bool {
    // Opened apart, so this process's own lock is seen as well.
    open_lock(&run.join("lock")).is_ok_and(|file| !lock(&file, false))
}

/// Writes down the names of datasets, for [`read_names`].
pub(crate) fn write_names(path: &Path, names: &[RootName]) -> std::io::Result<()> {
    let line = |root: &RootName| {
        let RootIdentity { device, inode, dataset, .. } = root.identity;
        let numbers = format!("{device} {inode} {dataset}");
        let [path, target] = [&root.path, &root.target].map(|path| path.as_os_str().as_bytes());
        [path, b"\0", target, b"\0", numbers.as_bytes(), b"\0"].concat()
    };
    let all: Vec<u8> = names.iter().flat_map(line).collect();
    std::fs::write(path, all)
}

/// The names of datasets that a run has written down.
pub(crate) fn read_names(path: &Path) -> Vec<RootName> {
    let written = std::fs::read(path).unwrap_or_default();
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let paths: Vec<&[u8]> = written.split(|byte| *byte == 0).filter(|path| !path.is_empty()).collect();
    let (roots, _) = paths.as_chunks::<3>();
    let name = |[name, target, numbers]: &[&[u8]; 3]| {
        let numbers: Vec<u64> =
            std::str::from_utf8(numbers).ok()?.split(' ').filter_map(|number| number.parse().ok()).collect();
        let &[device, inode, dataset] = &numbers[..] else { return None };
        // The mount is that of the run's namespace.
        let identity = RootIdentity { device, inode, mount: 0, dataset };
        Some(RootName { path: path(name), target: path(target), identity })
    };
    roots.iter().filter_map(name).collect()
}
