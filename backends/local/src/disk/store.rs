//! What the tier's threads share.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use foreread_tier::{Budget, Buffers, TierError};
use foreread_types::{DatasetId, DatasetIdentity, SampleId};

use super::closing;
use super::config::Access;
use super::counters::Counters;
use super::folder::{Folder, FolderId};
use super::format::Place;
use super::layout::LOCK;
use super::lock::{self, Lock};
use super::pack::Job;
use super::room::Room;
use super::shelf::{Bounds, Shelf};
use super::table::Table;
use crate::jobs::lock;

/// One dataset of the run; datasets with one identity are one.
#[derive(Debug)]
pub(super) struct Set {
    pub(super) identity: DatasetIdentity,
    pub(super) table: Table,
}

/// One directory of the tier.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) room: Room,
    /// By set; none where a reader has found nothing.
    pub(super) shelves: Vec<Shelf>,
    pub(super) bounds: Vec<Bounds>,
    /// Writing has failed; nothing is written here any more.
    pub(super) failed: AtomicBool,
}

impl Directory {
    pub(super) fn is_writable(&self) -> bool {
        self.access == Access::Owner && !self.failed.load(Ordering::Relaxed)
    }

    /// Stops writing here, and says so once.
    pub(super) fn fail(&self, error: &dyn std::fmt::Display) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            let directory = self.path.display();
            tracing::warn!(%directory, "the disk cache takes nothing more; what it holds is read on: {error}");
        }
    }
}

/// The locks that a tier holds. Whoever may still write holds them too.
#[derive(Debug)]
pub(super) struct Locks {
    locks: Vec<Lock>,
    /// Of what others write, by directory and set.
    followed: Mutex<BTreeMap<(usize, usize), Lock>>,
    /// By directory; none where a directory is not used.
    roots: Vec<Option<Folder>>,
    closing: Vec<FolderId>,
    /// The tier was dropped.
    let_go: AtomicBool,
}

impl Locks {
    /// The locks of the directories whose caches are in `roots`.
    pub(super) fn new(locks: Vec<Lock>, roots: Vec<Option<Folder>>) -> Self {
        let closing = roots.iter().flatten().filter_map(|root| root.id().ok()).collect();
        Self { locks, followed: Mutex::default(), roots, closing, let_go: AtomicBool::new(false) }
    }

    /// Marks a cache that another process writes as in use; false if it is not there or being removed.
    pub(super) fn follow(&self, key: (usize, usize), shelf: &Shelf) -> bool {
        let mut followed = lock(&self.followed);
        let is_there = |lock: &Lock| shelf.folder().is_ok_and(|folder| lock.is_at(&folder, LOCK));
        if followed.get(&key).is_some_and(is_there) {
            return true;
        }
        followed.remove(&key);
        // Removed, and perhaps made again.
        let root = self.roots.get(key.0).and_then(Option::as_ref);
        let folder = root.and_then(|root| root.folder(&shelf.identity().to_string()).ok()).map(Arc::new);
        let lock = folder.as_ref().and_then(|folder| lock::try_share(folder).ok().flatten());
        shelf.set_folder(folder);
        followed.extend(lock.map(|lock| (key, lock)));
        followed.contains_key(&key)
    }

    /// Says that they are held only until all is written.
    pub(super) fn let_go(&self) {
        if !self.let_go.swap(true, Ordering::Relaxed) {
            closing::begin(&self.closing);
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        let followed = std::mem::take(self.followed.get_mut().unwrap_or_else(PoisonError::into_inner));
        for lock in self.locks.drain(..).chain(followed.into_values()) {
            lock.touch();
        }
        if *self.let_go.get_mut() {
            closing::end(&self.closing);
        }
    }
}

/// A sample within a tier: which set, which sample.
pub(super) type Key = (usize, SampleId);

/// Why a sample that was on its way was not written; empty as long as it may be, and if it was.
pub(super) type Outcome = Arc<OnceLock<TierError>>;

#[derive(Debug)]
pub(super) struct Store {
    pub(super) sets: Vec<Set>,
    /// Which set each dataset of the run is.
    pub(super) numbers: Vec<usize>,
    pub(super) directories: Vec<Directory>,
    pub(super) buffers: Arc<dyn Buffers>,
    pub(super) behind: Budget,
    /// Reads under way.
    pub(super) reading: AtomicUsize,
    /// The tier was dropped: what is queued is written without waiting for anything.
    pub(super) closing: AtomicBool,
    /// A read has failed that may succeed another time, and that was said.
    pub(super) unread: AtomicBool,
    pub(super) counters: Counters,
    pub(super) jobs: Sender<Job>,
    /// Samples on their way to the disk, to which directory, and what becomes of them.
    pub(super) on_the_way: Mutex<HashMap<Key, (usize, Outcome)>>,
}

impl Store {
    /// The set that a dataset of the run is.
    pub(super) fn set(&self, dataset: DatasetId) -> Option<usize> {
        self.numbers.get(dataset.0 as usize).copied()
    }

    pub(super) fn place(&self, (set, id): Key) -> Option<Place> {
        self.sets.get(set)?.table.get(id)
    }

    pub(super) fn on_the_way(&self) -> MutexGuard<'_, HashMap<Key, (usize, Outcome)>> {
        lock(&self.on_the_way)
    }
}
