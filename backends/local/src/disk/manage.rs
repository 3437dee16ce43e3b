//! Listing and removing the caches in a directory.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use foreread_tier::TierError;
use foreread_types::DatasetIdentity;
use rustix::io::Errno;

use super::closing;
use super::error::from_errno;
use super::folder::Folder;
use super::index::{self, IndexFile};
use super::layout::{self, AGENT, INDEX, LOCK, OWNER};
use super::{flock, root};

/// One dataset's cache in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// The dataset's identity.
    pub identity: DatasetIdentity,
    /// Where the dataset was when the cache was last written, if the cache has that.
    pub location: Option<String>,
    /// The directory of its files.
    pub path: PathBuf,
    /// Whether an earlier version made it. Such a cache is not used.
    pub is_old: bool,
    /// The number of samples in its index. 0 if the index cannot be read.
    pub samples: u64,
    /// The allocated bytes, bookkeeping included.
    pub bytes: u64,
    /// When it was last opened or closed.
    pub last_used: SystemTime,
    /// Whether a process uses it now.
    pub in_use: bool,
    /// The id of the process that writes it, where it is known.
    pub owner: Option<u32>,
}

/// Selects caches for removal. All conditions must hold. An empty rule selects none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanRule {
    /// Minimum time since the last use.
    pub older_than: Option<Duration>,
    /// The dataset.
    pub identity: Option<DatasetIdentity>,
    /// All caches.
    pub all: bool,
}

impl CleanRule {
    /// Selects every unused cache.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Selects caches that have not been used for `age`.
    pub fn older_than(age: Duration) -> Self {
        Self { older_than: Some(age), ..Self::default() }
    }

    /// Selects the cache of one dataset.
    pub fn dataset(identity: DatasetIdentity) -> Self {
        Self { identity: Some(identity), ..Self::default() }
    }

    /// Whether the rule selects this cache. [`clean`] does not remove it while it is in use.
    pub fn selects(&self, entry: &CacheEntry) -> bool {
        let old =
            self.older_than.is_none_or(|age| entry.last_used.elapsed().is_ok_and(|unused| unused >= age));
        let same = self.identity.is_none_or(|identity| identity == entry.identity);
        (self.all || self.older_than.is_some() || self.identity.is_some()) && old && same
    }
}

/// A cache that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemovedCache {
    /// The dataset's identity.
    pub identity: DatasetIdentity,
    /// The directory of its files.
    pub path: PathBuf,
    /// The freed bytes.
    pub bytes: u64,
    /// The files that remain in the directory: foreign files, and files that could not be removed.
    /// In the latter case the cache stays listed.
    pub left: Vec<PathBuf>,
}

/// The caches in `directory`, by identity. These are this user's, the shared ones, and this user's
/// caches of earlier versions.
///
/// Reads the indexes and not the samples, which takes some microseconds per thousand samples. Waits
/// up to five seconds for a dropped tier of this process that still writes there.
///
/// # Errors
/// If the directory cannot be read.
pub fn list(directory: &Path) -> Result<Vec<CacheEntry>, TierError> {
    let mut entries = Vec::new();
    for root in root::existing(directory)? {
        entries.extend(entries_of(&root)?.into_iter().map(|(entry, _)| entry));
    }
    entries.sort_by(|one, other| (one.identity, &one.path).cmp(&(other.identity, &other.path)));
    Ok(entries)
}

/// The caches in one root.
pub(super) fn entries_of(root: &Folder) -> Result<Vec<(CacheEntry, Folder)>, TierError> {
    let failed = |errno| from_errno(errno, root.path().display());
    closing::wait(root.id().map_err(failed)?);
    let owner = flock::is_owned(root).then(|| flock::owner(root));
    let describe = |(identity, folder): (DatasetIdentity, Folder)| {
        let samples = match index::read(&folder, 0, identity) {
            Ok(IndexFile::Valid(listed)) => listed.live().len() as u64,
            _ => 0,
        };
        let owner = owner.as_ref().filter(|owner| owner.datasets.contains(&identity));
        let entry = CacheEntry {
            identity,
            location: flock::location(&folder),
            path: folder.path().to_owned(),
            is_old: root::is_legacy(root),
            samples,
            bytes: folder.allocated("."),
            last_used: layout::last_used(&folder),
            in_use: flock::is_shared(&folder),
            owner: owner.and_then(flock::DirectoryOwner::pid),
        };
        (entry, folder)
    };
    Ok(layout::datasets(root).map_err(failed)?.into_iter().map(describe).collect())
}

/// Removes the unused caches in `directory` that `rule` selects. Only files with the tier's own
/// names are removed. Remaining files are named.
///
/// # Errors
/// If the directory or a cache cannot be read or locked. Caches that were removed before stay
/// removed.
pub fn clean(directory: &Path, rule: &CleanRule) -> Result<Vec<RemovedCache>, TierError> {
    let mut removed = Vec::new();
    for root in root::existing(directory)? {
        let before = removed.len();
        for (entry, folder) in entries_of(&root)? {
            if !rule.selects(&entry) || entry.in_use {
                continue;
            }
            let gone = remove(&root, &folder, entry.identity);
            removed.extend(gone.map_err(|errno| from_errno(errno, entry.path.display()))?);
        }
        let names = root.names().unwrap_or_default();
        let are_locks = names.iter().all(|name| name == OWNER || name == AGENT);
        if (removed.len() > before || rule.all) && are_locks {
            // An unused lock is harmless: the next owner reuses it.
            for name in names.iter().filter_map(|name| name.to_str()) {
                let _ = flock::remove_unlocked(&root, name);
            }
        }
        if root::is_legacy(&root) {
            // Fails if it is not empty.
            let _ = std::fs::remove_dir(root.path());
        }
    }
    removed.sort_by(|one, other| (one.identity, &one.path).cmp(&(other.identity, &other.path)));
    Ok(removed)
}

/// Removes one dataset's cache in `root`. `None` if it is in use.
fn remove(root: &Folder, dataset: &Folder, identity: DatasetIdentity) -> Result<Option<RemovedCache>, Errno> {
    let before = dataset.allocated(".");
    let Some(_held) = flock::hold(dataset)? else { return Ok(None) };
    let mut stays = layout::remove_files(dataset)?;
    // The lock stays with remaining files of the cache.
    let locked = !stays.is_empty();
    if !locked && let Err(errno) = dataset.remove(LOCK) {
        stays.push((LOCK.to_owned(), errno));
    }
    for (file, errno) in &stays {
        tracing::warn!(file = %dataset.path_of(file).display(), %errno, "not removed");
    }
    let name = identity.to_string();
    let (mut left, mut after) = (Vec::new(), 0);
    // Fails if it is not empty.
    if root.remove_folder(&name).is_err() {
        let names = dataset.names()?.into_iter().filter(|file| !locked || file != LOCK);
        left = names.map(|file| dataset.path_of(file)).collect();
        after = dataset.allocated(".");
    }
    let (path, bytes) = (dataset.path().to_owned(), before.saturating_sub(after));
    Ok(Some(RemovedCache { identity, path, bytes, left }))
}

/// Removes unused caches, least recently used first, until `root` without the caches in `own` takes
/// at most `most` bytes. Caches in `kept` stay. Returns the bytes that it takes then.
pub(super) fn make_room(
    root: &Folder,
    own: &[(DatasetIdentity, &Folder)],
    kept: &[DatasetIdentity],
    most: u64,
) -> Result<u64, Errno> {
    let mut others =
        layout::allocated(root).saturating_sub(own.iter().map(|(_, folder)| counted(folder)).sum());
    if others <= most {
        return Ok(others);
    }
    let mut unused: Vec<_> = layout::datasets(root)?
        .into_iter()
        .filter(|(identity, _)| own.iter().all(|(other, _)| other != identity) && !kept.contains(identity))
        .map(|(identity, folder)| (layout::last_used(&folder), identity, folder))
        .collect();
    unused.sort_unstable_by_key(|(used, identity, _)| (*used, *identity));
    for (_, identity, folder) in unused {
        if others <= most {
            break;
        }
        match remove(root, &folder, identity) {
            Ok(Some(RemovedCache { bytes, .. })) => {
                tracing::info!(%identity, bytes, "an old disk cache was removed to make room");
                others = others.saturating_sub(bytes);
            }
            Ok(None) => {}
            Err(errno) => tracing::warn!(%identity, %errno, "an old disk cache could not be removed"),
        }
    }
    Ok(others)
}

/// The bytes of a dataset's files that are counted per record.
fn counted(dataset: &Folder) -> u64 {
    let segments = layout::segments(dataset).unwrap_or_default();
    let names = segments.into_iter().map(layout::segment_name);
    let names = names.chain([INDEX, layout::NEXT_INDEX, LOCK].map(str::to_owned));
    names.map(|name| dataset.allocated(&*name)).sum()
}
