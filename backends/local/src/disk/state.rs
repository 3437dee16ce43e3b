//! The state that the tier's threads share.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_tier::{Budget, Buffers, TierError};
use foreread_types::{DatasetId, DatasetIdentity, SampleId};

use super::closing;
use super::commands::{DiskKey, PackJob, WriteOutcome};
use super::config::Access;
use super::counters::DiskCounters;
use super::dataset_dir::{DatasetDir, SegmentLimits};
use super::flock::{self, FileLock};
use super::folder::{Folder, FolderId};
use super::layout::LOCK;
use super::place::RecordPlace;
use super::quota::Quota;
use super::record_block::RecordBlock;
use super::table::PlaceTable;
use crate::jobs::lock;

/// One dataset of the run. Datasets with the same identity share it.
#[derive(Debug)]
pub(super) struct CachedDataset {
    /// The name of its cache.
    pub(super) identity: DatasetIdentity,
    /// The first number of each piece, and the identity in its records.
    pub(super) pieces: Vec<(u64, DatasetIdentity)>,
    pub(super) table: PlaceTable,
}

impl CachedDataset {
    /// The identity in the record of a sample.
    pub(super) fn record_identity(&self, id: SampleId) -> DatasetIdentity {
        let piece = self.pieces.partition_point(|(first, _)| *first <= id.0);
        piece.checked_sub(1).map_or(self.identity, |piece| self.pieces[piece].1)
    }
}

/// One directory of the tier.
#[derive(Debug)]
pub(super) struct CacheDirectory {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) quota: Quota,
    /// By set. Empty where the directory is not used.
    pub(super) dirs: Vec<DatasetDir>,
    pub(super) limits: SegmentLimits,
    /// Writing has failed, and no more is written.
    pub(super) failed: AtomicBool,
}

impl CacheDirectory {
    pub(super) fn is_writable(&self) -> bool {
        self.access == Access::Owner && !self.failed.load(Ordering::Relaxed)
    }

    /// Stops writing here and logs it once.
    pub(super) fn fail(&self, error: &dyn std::fmt::Display) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            let directory = self.path.display();
            tracing::warn!(%directory, "the disk cache is only read from now on: {error}");
        }
    }
}

/// The locks of a tier. The threads that write hold them too.
#[derive(Debug)]
pub(super) struct TierLocks {
    locks: Vec<FileLock>,
    /// Of datasets that other processes write, by directory and set.
    followed: Mutex<BTreeMap<(usize, usize), FileLock>>,
    /// By directory. `None` where a directory is not used.
    roots: Vec<Option<Folder>>,
    closing: Vec<FolderId>,
    /// The tier was dropped.
    close: AtomicBool,
}

impl TierLocks {
    /// The locks of the directories whose caches are in `roots`.
    pub(super) fn new(locks: Vec<FileLock>, roots: Vec<Option<Folder>>) -> Self {
        let closing = roots.iter().flatten().filter_map(|root| root.id().ok()).collect();
        Self { locks, followed: Mutex::default(), roots, closing, close: AtomicBool::new(false) }
    }

    /// Marks a cache that another process writes as in use. `false` if it is missing or being
    /// removed.
    pub(super) fn follow(&self, key: (usize, usize), dir: &DatasetDir) -> bool {
        let mut followed = lock(&self.followed);
        let is_there = |lock: &FileLock| dir.folder().is_ok_and(|folder| lock.is_at(&folder, LOCK));
        if followed.get(&key).is_some_and(is_there) {
            return true;
        }
        followed.remove(&key);
        // It was removed, and perhaps created again.
        let root = self.roots.get(key.0).and_then(Option::as_ref);
        let folder = root.and_then(|root| root.folder(&dir.identity().to_string()).ok()).map(Arc::new);
        let lock = folder.as_ref().and_then(|folder| flock::try_share(folder).ok().flatten());
        dir.set_folder(folder);
        followed.extend(lock.map(|lock| (key, lock)));
        followed.contains_key(&key)
    }

    /// From now on the locks are held only until queued writes are done.
    pub(super) fn close(&self) {
        if !self.close.swap(true, Ordering::Relaxed) {
            closing::mark_closing(&self.closing);
        }
    }
}

impl Drop for TierLocks {
    fn drop(&mut self) {
        let followed = std::mem::take(self.followed.get_mut().unwrap_or_else(PoisonError::into_inner));
        for lock in self.locks.drain(..).chain(followed.into_values()) {
            lock.touch();
        }
        if *self.close.get_mut() {
            closing::mark_free(&self.closing);
        }
    }
}

#[derive(Debug)]
pub(super) struct DiskState {
    pub(super) sets: Vec<CachedDataset>,
    /// The set of each of the run's datasets.
    pub(super) numbers: Vec<usize>,
    pub(super) directories: Vec<CacheDirectory>,
    pub(super) buffers: Arc<dyn Buffers>,
    pub(super) write_behind: Budget,
    /// The number of reads in flight.
    pub(super) reads_in_flight: AtomicUsize,
    /// The tier was dropped: the queue is written without waiting for reads.
    pub(super) closing: AtomicBool,
    /// A read error that may pass was logged.
    pub(super) error_logged: AtomicBool,
    pub(super) counters: DiskCounters,
    pub(super) jobs: Sender<PackJob>,
    /// Queued samples: their directory and the result.
    pub(super) pending_writes: Mutex<HashMap<DiskKey, (usize, WriteOutcome)>>,
}

impl DiskState {
    /// The set of one of the run's datasets.
    pub(super) fn set(&self, dataset: DatasetId) -> Option<usize> {
        self.numbers.get(dataset.0 as usize).copied()
    }

    pub(super) fn place(&self, (set, id): DiskKey) -> Option<RecordPlace> {
        self.sets.get(set)?.table.get(id)
    }

    /// Answers the samples of a block that is not written.
    pub(super) fn refuse(&self, block: RecordBlock, error: &TierError) {
        for record in block.waiting {
            if let Some((_, outcome)) = self.pending_writes().remove(&(block.set, record.id)) {
                let _ = outcome.set(error.clone()); // no other thread sets it
            }
            self.counters.failed();
            drop((record.room, record.write_behind));
            let _ = record.done.send(Err(error.clone())); // the receiver may be gone
        }
    }

    pub(super) fn pending_writes(&self) -> MutexGuard<'_, HashMap<DiskKey, (usize, WriteOutcome)>> {
        lock(&self.pending_writes)
    }
}
