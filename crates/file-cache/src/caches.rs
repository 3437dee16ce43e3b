//! The caches of files in a directory: listing and removing them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::directory::{CacheDirectory, lock};
use crate::run_directory::has_runs;

/// A cache of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCacheEntry {
    /// Its directory.
    pub path: PathBuf,
    /// The number of copies.
    pub copies: u64,
    /// Their bytes, and those of the table.
    pub bytes: u64,
    /// When its last host has begun.
    pub last_used: SystemTime,
    /// Whether a process makes copies there.
    pub in_use: bool,
}

/// The caches of this user in a directory that was given to `--disk`, those of other nodes
/// included.
pub fn file_caches(directory: &Path) -> Vec<FileCacheEntry> {
    let entries = CacheDirectory::existing(directory);
    entries.iter().map(look).filter(|entry| entry.copies > 0 || entry.in_use).collect()
}

/// Removes a cache, unless a process uses it. `false` if it is in use.
pub fn remove_file_cache(entry: &FileCacheEntry) -> bool {
    remove_unused(&CacheDirectory::at(entry.path.clone()))
}

/// Removes the copies of a cache, unless a process uses them. `false` if they are in use.
pub(crate) fn remove_unused(cache: &CacheDirectory) -> bool {
    let Ok(file) = cache.lock_file() else { return false };
    if !lock(&file, false) {
        return false;
    }
    // Runs that start from now on wait for a host, which makes another table.
    if cache.set_ready(false).is_err() || has_runs(cache) {
        return false;
    }
    cache.remove_copies();
    true
}

fn look(cache: &CacheDirectory) -> FileCacheEntry {
    use std::os::unix::fs::MetadataExt;
    let allocated = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.blocks() * 512);
    let folders = std::fs::read_dir(cache.copies()).into_iter().flatten().flatten();
    let files = folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten();
    let sizes: Vec<u64> = files.map(|file| allocated(&file.path())).collect();
    let besides = allocated(&cache.table());
    let used = std::fs::metadata(cache.path().join("ready")).and_then(|found| found.modified());
    FileCacheEntry {
        path: cache.path().to_owned(),
        copies: sizes.len() as u64,
        bytes: sizes.iter().sum::<u64>() + besides,
        last_used: used.unwrap_or(SystemTime::UNIX_EPOCH),
        in_use: cache.lock_file().is_ok_and(|file| !lock(&file, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_listed_and_removed_unless_in_use() {
        let parent = tempfile::tempdir().unwrap();
        assert!(file_caches(parent.path()).is_empty());
        let cache = CacheDirectory::open(parent.path(), None).unwrap();
        let of_node = CacheDirectory::open(parent.path(), Some("n1")).unwrap();
        std::fs::create_dir(cache.copies().join("ab")).unwrap();
        std::fs::write(cache.copies().join("ab/ab12-1"), [1; 5000]).unwrap();
        let found = file_caches(parent.path());
        let paths: Vec<_> = found.iter().map(|entry| (&*entry.path, entry.copies)).collect();
        // One without copies is not listed.
        assert_eq!(paths, [(cache.path(), 1)]);
        assert!(of_node.path().is_dir());
        assert!(found[0].bytes >= 5000 && !found[0].in_use, "{found:?}");
        let file = cache.lock_file().unwrap();
        assert!(lock(&file, false) && file_caches(parent.path())[0].in_use);
        assert!(!remove_file_cache(&found[0]));
        drop(file);
        assert!(remove_file_cache(&found[0]) && file_caches(parent.path()).is_empty());
        assert_eq!(std::fs::read_dir(cache.copies()).unwrap().count(), 0);
    }
}
