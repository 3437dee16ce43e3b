//! Open files of objects that hold many samples.
//!
//! Opening and closing a file on a file server takes two requests, and reading a sample takes one.
//! So the files of shards stay open, up to [`MAX_FILES`], the least recently used are closed. A
//! kept file keeps the state that the catalog describes even if its name leads to another file. So
//! every [`CHECK_EVERY`] the file is checked by a request to the server, and opened again if it was
//! removed. The price: a shard that was replaced may be read for that long, with the bytes of the
//! catalog, and its disk space is free only then.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreread_tier::{Object, Version};
use lru::LruCache;
use rustix::process::{Resource, getrlimit};

use crate::jobs::lock;

/// The largest number of kept files. A quarter of the process's limit if that is less.
const MAX_FILES: usize = 256;

/// The time between two checks of a kept file.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// A file that stays open.
#[derive(Debug)]
pub(crate) struct KeptFile {
    pub(crate) file: OwnedFd,
    opened: Instant,
    /// The time of the last check, in milliseconds since `opened`.
    checked: AtomicU64,
}

impl KeptFile {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self { file, opened: Instant::now(), checked: AtomicU64::new(0) }
    }

    /// Whether the file has to be checked at `now`. Only one of several callers gets `true`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let now = now.duration_since(self.opened).as_millis() as u64;
        let checked = self.checked.load(Ordering::Relaxed);
        now.saturating_sub(checked) >= CHECK_EVERY.as_millis() as u64
            && self.checked.compare_exchange(checked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// One state of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    path: Arc<str>,
    size: u64,
    version: Option<Version>,
}

impl FileKey {
    fn of(object: &Object) -> Self {
        Self { path: Arc::clone(&object.path), size: object.size, version: object.version.clone() }
    }
}

/// The kept files of an origin.
#[derive(Debug)]
pub(crate) struct KeptFiles(Mutex<LruCache<FileKey, Arc<KeptFile>>>);

impl KeptFiles {
    pub(crate) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let files = usize::try_from(limit).unwrap_or(MAX_FILES).min(MAX_FILES);
        Self(Mutex::new(LruCache::new(NonZeroUsize::new(files).unwrap_or(NonZeroUsize::MIN))))
    }

    /// The kept file of an object.
    pub(crate) fn get(&self, object: &Object) -> Option<Arc<KeptFile>> {
        lock(&self.0).get(&FileKey::of(object)).map(Arc::clone)
    }

    /// Keeps a file. Returns it with the file that it replaces, which the caller closes.
    pub(crate) fn keep(&self, object: &Object, file: OwnedFd) -> (Arc<KeptFile>, Option<Arc<KeptFile>>) {
        let kept = Arc::new(KeptFile::new(file));
        let closed = lock(&self.0).push(FileKey::of(object), Arc::clone(&kept));
        (kept, closed.map(|(_, file)| file))
    }

    /// Closes an object's file after its last reader.
    pub(crate) fn forget(&self, object: &Object) {
        let closed = lock(&self.0).pop(&FileKey::of(object));
        drop(closed); // outside of the lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: HPC-7
    fn kept_file_is_checked_every_ten_seconds_by_one_caller() {
        let kept = KeptFile::new(std::fs::File::open("/dev/null").unwrap().into());
        let is_due = |ms| kept.is_due(kept.opened + Duration::from_millis(ms));
        assert!(!is_due(9999) && is_due(10_000) && !is_due(10_000));
        assert!(!is_due(19_999) && is_due(25_000) && !is_due(34_999) && is_due(35_000));
    }
}
