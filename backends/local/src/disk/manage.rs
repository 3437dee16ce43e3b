//! What lies in a directory, whoever put it there, and getting rid of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use foreread_tier::TierError;
use foreread_types::Fingerprint;

use super::closing;
use super::error::from_io;
use super::index::{self, Found};
use super::layout::{self, INDEX, LOCK, OWNER, ROOT};
use super::lock;

/// One dataset's cache in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// The fingerprint of the dataset's catalog.
    pub fingerprint: Fingerprint,
    /// How many samples its index lists; 0 if the index cannot be read.
    pub samples: u64,
    /// The bytes that it takes on the disk, bookkeeping included.
    pub bytes: u64,
    /// When it was opened or closed last.
    pub last_used: SystemTime,
    /// Whether a process uses it now.
    pub in_use: bool,
    /// The process that writes it, if one does and said who it is.
    pub owner: Option<u32>,
}

/// Which caches are to be removed: those that every part of the rule names. An empty rule names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// Not used for so long.
    pub older_than: Option<Duration>,
    /// This dataset's.
    pub fingerprint: Option<Fingerprint>,
    /// All of them.
    pub all: bool,
}

impl Rule {
    /// Every cache that nobody uses.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Caches that nobody has used for `age`.
    pub fn older_than(age: Duration) -> Self {
        Self { older_than: Some(age), ..Self::default() }
    }

    /// The cache of one dataset.
    pub fn dataset(fingerprint: Fingerprint) -> Self {
        Self { fingerprint: Some(fingerprint), ..Self::default() }
    }

    fn names(&self, entry: &CacheEntry) -> bool {
        let old =
            self.older_than.is_none_or(|age| entry.last_used.elapsed().is_ok_and(|unused| unused >= age));
        let same = self.fingerprint.is_none_or(|fingerprint| fingerprint == entry.fingerprint);
        (self.all || self.older_than.is_some() || self.fingerprint.is_some()) && old && same
    }
}

/// A cache that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The fingerprint of the dataset's catalog.
    pub fingerprint: Fingerprint,
    /// The bytes that are free again.
    pub bytes: u64,
    /// What is still in the cache's directory: what this tier does not make, and what could not be removed. If any of
    /// the latter, the cache is listed on.
    pub left: Vec<PathBuf>,
}

/// The caches in `directory`, as a tier was given it, by fingerprint. A directory without any has none.
///
/// Reads the indexes, not the samples; takes some microseconds a thousand samples. A tier that this process has dropped
/// and that still writes there is waited for, for five seconds at most.
///
/// # Errors
/// If the directory cannot be read.
pub fn list(directory: &Path) -> Result<Vec<CacheEntry>, TierError> {
    let failed = |error: std::io::Error| from_io(&error, directory.display());
    let root = directory.join(ROOT);
    if let Ok(root) = root.canonicalize() {
        closing::wait(&root);
    }
    let datasets = match layout::datasets(&root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && directory.is_dir() => {
            return Ok(Vec::new());
        }
        other => other.map_err(failed)?,
    };
    let owner = lock::is_owned(&root).then(|| lock::owner(&root));
    let mut entries = Vec::with_capacity(datasets.len());
    for (fingerprint, path) in datasets {
        let samples = match index::read(&path.join(INDEX), 0, fingerprint) {
            Ok(Found::Right(listed)) => listed.living().len() as u64,
            _ => 0,
        };
        entries.push(CacheEntry {
            fingerprint,
            samples,
            bytes: layout::allocated(&path),
            last_used: layout::last_used(&path),
            in_use: lock::is_shared(&path),
            owner: owner
                .as_ref()
                .filter(|owner| owner.datasets.contains(&fingerprint))
                .and_then(|owner| owner.pid),
        });
    }
    Ok(entries)
}

/// Removes the caches in `directory` that `rule` names and nobody uses: the files with the names of those that this tier
/// makes. What is left of a cache is named.
///
/// # Errors
/// If the directory or a cache cannot be read or locked. What was removed before that stays removed.
pub fn clean(directory: &Path, rule: &Rule) -> Result<Vec<Removed>, TierError> {
    let root = directory.join(ROOT);
    let mut removed = Vec::new();
    for entry in list(directory)? {
        if !rule.names(&entry) || entry.in_use {
            continue;
        }
        let path = root.join(entry.fingerprint.to_string());
        removed.extend(remove(&path, entry.fingerprint).map_err(|error| from_io(&error, path.display()))?);
    }
    if !removed.is_empty() && names(&root).is_ok_and(|names| names == [root.join(OWNER)]) {
        // It counts for nothing; if it stays, the next owner uses it.
        let _ = lock::remove_owner(&root);
    }
    Ok(removed)
}

/// What is in a directory, in order.
fn names(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut names = entries.collect::<std::io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

/// Removes one dataset's cache, or `None` if it is in use.
fn remove(path: &Path, fingerprint: Fingerprint) -> std::io::Result<Option<Removed>> {
    let before = layout::allocated(path);
    let Some(_held) = lock::hold(path)? else { return Ok(None) };
    let mut stays = layout::remove_files(path)?;
    // The lock belongs to whatever of ours is left.
    let locked = !stays.is_empty();
    if !locked && let Err(error) = layout::remove(&path.join(LOCK)) {
        stays.push((path.join(LOCK), error));
    }
    for (file, error) in &stays {
        tracing::warn!(file = %file.display(), %error, "not removed");
    }
    let mut left = Vec::new();
    // Stays if there is something in it.
    if fs::remove_dir(path).is_err() {
        left = names(path)?;
        left.retain(|file| !locked || *file != path.join(LOCK));
    }
    let bytes = before.saturating_sub(layout::allocated(path));
    Ok(Some(Removed { fingerprint, bytes, left }))
}

/// Removes caches that nobody uses, the least recently used first, until what is below `root` beside the caches in
/// `own` takes at most `most` bytes, as far as that goes; what it takes then.
pub(super) fn make_room(root: &Path, own: &[&Path], most: u64) -> std::io::Result<u64> {
    let mut others = layout::allocated(root).saturating_sub(own.iter().map(|path| ours(path)).sum());
    if others <= most {
        return Ok(others);
    }
    let mut unused: Vec<_> = layout::datasets(root)?
        .into_iter()
        .filter(|(_, path)| !own.contains(&&**path))
        .map(|(fingerprint, path)| (layout::last_used(&path), fingerprint, path))
        .collect();
    unused.sort_unstable();
    for (_, fingerprint, path) in unused {
        if others <= most {
            break;
        }
        match remove(&path, fingerprint) {
            Ok(Some(Removed { bytes, .. })) => {
                tracing::info!(%fingerprint, bytes, "an old disk cache was removed to make room");
                others = others.saturating_sub(bytes);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%fingerprint, %error, "an old disk cache could not be removed"),
        }
    }
    Ok(others)
}

/// What the segments and indexes in a dataset's directory take: that is counted by record, the rest is not.
fn ours(path: &Path) -> u64 {
    let segments = layout::segments(path).unwrap_or_default();
    let names = segments.into_iter().map(layout::segment_name);
    let names = names.chain([INDEX.to_owned(), layout::NEXT_INDEX.to_owned(), LOCK.to_owned()]);
    names.map(|name| layout::allocated(&path.join(name))).sum()
}
