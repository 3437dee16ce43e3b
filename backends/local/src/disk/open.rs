//! Opening a directory: ownership, available space, and recovery of its contents.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use foreread_tier::{ErrorKind, TierError};
use foreread_types::DatasetIdentity;

use super::closing;
use super::config::{Access, DatasetOnDisk, DiskConfig, DiskDirectory, DiskOutlook, WhenOwned};
use super::dataset_dir::{DatasetDir, SEGMENT_OVERHEAD, SegmentLimits, SegmentWriter};
use super::emptying::PIECE;
use super::error::{about, from_errno, from_io};
use super::flock::{self, FileLock, ProcessId};
use super::folder::Folder;
use super::index::{self, INDEX_OVERHEAD, IndexFile};
use super::layout::{AGENT, OWNER};
use super::manage;
use super::place::{BLOCK, FOOTPRINT, MAX_DIRECTORIES, MAX_START, UNIT};
use super::quota::Quota;
use super::root::{self, CacheRoot};
use super::state::{CacheDirectory, CachedDataset};

/// The default segment length in bytes, and the limit of segment files.
const SEGMENT_BYTES: u64 = 256 << 20;
const MAX_SEGMENT_FILES: u64 = 128;

/// The limit of a segment's length. The records of its last block may begin 1 MiB later.
const MAX_SEGMENT_BYTES: u64 = MAX_START as u64 * UNIT - (2 << 20);

/// Bytes of directories and locks, and those for moving records.
const FIXED: u64 = (64 << 10) + PIECE;

/// An opened directory.
#[derive(Debug)]
pub(super) struct OpenedDirectory {
    pub(super) directory: CacheDirectory,
    /// By set. Empty for a reader.
    pub(super) segment_writers: Vec<SegmentWriter>,
    pub(super) locks: Vec<FileLock>,
}

/// Opens the caches of the directories and creates missing ones. `None` for a directory that cannot
/// be used.
///
/// # Errors
/// If the number of directories is invalid, two lead to the same place, or one is unusable or too
/// small.
pub(super) fn open_roots(
    config: &DiskConfig,
    sets: &[CachedDataset],
) -> Result<Vec<Option<Folder>>, TierError> {
    check(config, sets.len())?;
    let mut roots: Vec<Option<Folder>> = Vec::with_capacity(config.directories.len());
    for directory in &config.directories {
        let path = &directory.path;
        let opened = match root::open(directory)? {
            CacheRoot::Open(root) => match root::open_part(root, directory.part) {
                // It was made by fewer ranks and is read-only now.
                Err(error) if error.kind() == ErrorKind::Denied && holds_any_part(path, sets) => {
                    CacheRoot::Unusable(error)
                }
                part => part?,
            },
            unusable @ CacheRoot::Unusable(_) => unusable,
        };
        if directory.part == 0 {
            root::warn_of_legacy(path);
        }
        let root = match opened {
            CacheRoot::Open(root) => root,
            CacheRoot::Unusable(error) => {
                let directory = path.display();
                tracing::warn!(%directory, "the run continues without this disk cache: {error}");
                roots.push(None);
                continue;
            }
        };
        // Two paths can be compared only once the directory exists.
        let id = root.id().map_err(|errno| from_errno(errno, path.display()))?;
        let same = |other: &Option<Folder>| other.as_ref().is_some_and(|other| other.id() == Ok(id));
        if let Some(before) = roots.iter().position(same) {
            let other = config.directories[before].path.display();
            let why = format!("it is the same directory as {other}, which is also given; name it once");
            return Err(about(ErrorKind::Invalid, path.display(), why));
        }
        roots.push(Some(root));
    }
    Ok(roots)
}

/// Checks the number of directories and their sizes.
fn check(config: &DiskConfig, sets: usize) -> Result<(), TierError> {
    let count = config.directories.len();
    if !(1..=MAX_DIRECTORIES).contains(&count) {
        let why = "a disk tier has 1 to 32 of them";
        return Err(about(ErrorKind::Invalid, format_args!("{count} directories"), why));
    }
    let least = least_capacity(config.segment, sets, BLOCK);
    for DiskDirectory { path, capacity, .. } in &config.directories {
        if *capacity < least {
            let why = format!("{capacity} bytes cannot hold a single sample; give it at least {least}");
            return Err(about(ErrorKind::Invalid, path.display(), why));
        }
    }
    Ok(())
}

/// A directory that an agent has, until this is dropped.
#[derive(Debug)]
pub struct Reservation(#[expect(dead_code, reason = "the lock ends when it is dropped")] FileLock);

/// Reserves a directory for an agent. Its caches open with its first dataset, and again with each
/// new one, so their lock does not keep other agents away. `None` if the directory cannot be used,
/// which is reported when it is opened.
///
/// # Errors
/// The agent or owner that has the directory, and the remedy.
pub fn reserve(directory: &DiskDirectory) -> Result<Option<Reservation>, TierError> {
    let Ok(CacheRoot::Open(root)) = root::open(directory) else { return Ok(None) };
    let path = directory.path.display();
    // A tier of this process that was dropped may still write.
    closing::wait(root.id().map_err(|errno| from_errno(errno, &path))?);
    let owned = |detail| Err(about(ErrorKind::Other, &path, detail));
    if flock::is_owned(&root) {
        return owned(owned_message(&flock::owner(&root), &directory.path, &ProcessId::this()));
    }
    match flock::lock(&root, AGENT, &[]) {
        Ok(Some(lock)) => Ok(Some(Reservation(lock))),
        Ok(None) => {
            let agent = flock::holder(&root, AGENT);
            owned(format!(
                "its space belongs to the agent of {agent}; stop that agent, or choose another directory"
            ))
        }
        Err(error) => {
            tracing::debug!(%error, directory = %path, "the directory cannot be reserved");
            Ok(None)
        }
    }
}

/// The offer of the directories if they were opened. Nothing is created, removed or locked.
///
/// # Errors
/// If the number of directories is invalid, or one is too small.
pub(super) fn look(
    config: &DiskConfig,
    sets: &[CachedDataset],
    datasets: &[DatasetOnDisk],
) -> Result<DiskOutlook, TierError> {
    check(config, sets.len())?;
    let mut found = DiskOutlook::default();
    for directory in &config.directories {
        let entries = root::find_part(directory).and_then(|part| manage::entries_of(&part).ok());
        let (mut others, mut in_use) = (0u64, 0u64);
        for (entry, _) in entries.unwrap_or_default() {
            if sets.iter().any(|set| set.identity == entry.identity) {
                found.warm = found.warm.saturating_add(entry.bytes);
                continue;
            }
            others = others.saturating_add(entry.bytes);
            in_use = in_use.saturating_add(if entry.in_use { entry.bytes } else { 0 });
        }
        // Opening removes unused caches of other datasets for as much space as this run needs.
        let capacity = directory.capacity;
        let overhead = overhead(limits(config.segment, capacity), sets.len());
        let need = share_of(config, capacity, datasets).saturating_add(overhead).min(capacity);
        let others = others.min(in_use.max(capacity.saturating_sub(need)));
        let room =
            capacity.saturating_sub(overhead).saturating_sub(folders_of(sets.len())).saturating_sub(others);
        found.capacity = found.capacity.saturating_add(room);
    }
    found.warm = found.warm.min(footprints(datasets));
    Ok(found)
}

/// Opens the tier's directory `number`, whose caches are in `root`.
pub(super) fn open(
    config: &DiskConfig,
    number: u8,
    root: Option<&Folder>,
    sets: &[CachedDataset],
    datasets: &[DatasetOnDisk],
) -> Result<OpenedDirectory, TierError> {
    let DiskDirectory { path, capacity, .. } = &config.directories[usize::from(number)];
    let Some(root) = root else {
        return Ok(read_only(path, Access::Unused, &[]));
    };
    closing::wait(root.id().map_err(|errno| from_errno(errno, path.display()))?);
    let identities: Vec<DatasetIdentity> = sets.iter().map(|set| set.identity).collect();
    let owner = flock::own(root, &identities).map_err(|error| from_io(&error, root.path_of(OWNER).display()));
    let opened = match owner {
        Ok(Some(owner)) => open_owned(config, number, sets, datasets, root, *capacity, owner),
        Ok(None) => {
            let detail = owned_message(&flock::owner(root), path, &ProcessId::this());
            if config.when_owned == WhenOwned::Refuse {
                return Err(about(ErrorKind::Other, path.display(), detail));
            }
            tracing::warn!(directory = %path.display(), "the disk cache is only read: {detail}");
            return Ok(read_only(path, Access::ReadOnly, sets));
        }
        Err(error) => Err(error),
    };
    match opened {
        // Existing samples can still be read.
        Err(error) if error.kind() == ErrorKind::Full => {
            sets.iter().for_each(|set| set.table.clear(number));
            let directory = path.display();
            tracing::warn!(%directory, "the disk cache is only read: {error}");
            Ok(read_only(path, Access::ReadOnly, sets))
        }
        Err(error) if error.kind() == ErrorKind::Denied && holds_any(root, number, sets) => {
            tracing::warn!(directory = %path.display(), "the disk cache is only read: {error}");
            Ok(read_only(path, Access::ReadOnly, sets))
        }
        Err(error) if error.kind() == ErrorKind::Denied && holds_any_part(path, sets) => {
            tracing::warn!(directory = %path.display(), "the run continues without this disk cache: {error}");
            Ok(read_only(path, Access::Unused, &[]))
        }
        opened => opened,
    }
}

/// Whether another rank's part of a directory holds one of the datasets.
fn holds_any_part(directory: &Path, sets: &[CachedDataset]) -> bool {
    root::existing(directory).is_ok_and(|parts| parts.iter().any(|part| holds_any(part, 0, sets)))
}

/// Whether there is an index of one of the run's datasets.
fn holds_any(root: &Folder, number: u8, sets: &[CachedDataset]) -> bool {
    sets.iter().any(|set| {
        let folder = root.folder(&set.identity.to_string());
        folder
            .is_ok_and(|folder| matches!(index::read(&folder, number, set.identity), Ok(IndexFile::Valid(_))))
    })
}

/// Names the owner of the directory `path` and the remedy for the process `this`.
fn owned_message(owner: &flock::DirectoryOwner, path: &Path, this: &ProcessId) -> String {
    let path = path.display();
    if owner.process.as_ref() == Some(this) {
        return format!(
            "its space is owned by another loader of {owner}, which is this one; give each \
             loader a separate directory, such as val=20GB below the named one"
        );
    }
    format!(
        "its space is owned by {owner}; wait for it to end, or choose another directory \
         (where it is another rank of this job: one for each rank, as in {path}/$LOCAL_RANK)"
    )
}

/// A directory that is only read. Each dataset's cache is locked when its follower finds it.
fn read_only(path: &Path, access: Access, sets: &[CachedDataset]) -> OpenedDirectory {
    let dirs = sets.iter().map(|set| DatasetDir::followed(set.identity)).collect();
    let (path, quota, failed) = (path.to_owned(), Quota::new(0, None), AtomicBool::default());
    let limits = SegmentLimits::default();
    let directory = CacheDirectory { path, access, quota, dirs, limits, failed };
    OpenedDirectory { directory, segment_writers: Vec::new(), locks: Vec::new() }
}

fn open_owned(
    config: &DiskConfig,
    number: u8,
    sets: &[CachedDataset],
    datasets: &[DatasetOnDisk],
    root: &Folder,
    capacity: u64,
    owner: FileLock,
) -> Result<OpenedDirectory, TierError> {
    let path = &config.directories[usize::from(number)].path;
    let (mut folders, mut locks) = (Vec::with_capacity(sets.len()), vec![owner]);
    for set in sets {
        let name = set.identity.to_string();
        let shared = flock::share(root, &name);
        let (folder, lock) = shared.map_err(|error| from_io(&error, root.path_of(name).display()))?;
        if let Some((_, location)) = config.locations.iter().find(|(known, _)| *known == set.identity) {
            lock.write_location(location);
        }
        lock.touch();
        locks.push(lock);
        folders.push((set.identity, folder));
    }
    let limits = limits(config.segment, capacity);
    let overhead = overhead(limits, sets.len());
    let need = share_of(config, capacity, datasets).saturating_add(overhead).min(capacity);
    let own: Vec<(DatasetIdentity, &Folder)> =
        folders.iter().map(|(print, folder)| (*print, folder)).collect();
    let others = manage::make_room(root, &own, &config.kept, capacity.saturating_sub(need))
        .map_err(|errno| from_errno(errno, path.display()))?;
    let room = config.directories[usize::from(number)].room.clone();
    let quota = Quota::new(capacity.saturating_sub(overhead).saturating_sub(others), room);
    if quota.budget().limit() == 0 {
        tracing::warn!(
            directory = %path.display(), capacity, others,
            "the disk cache has no space: give it more, or clean other caches there (`foreread cache clean`)"
        );
    }
    let dirs: Vec<DatasetDir> =
        folders.into_iter().map(|(identity, folder)| DatasetDir::owned(identity, folder)).collect();
    let segment_writers = dirs
        .iter()
        .zip(sets)
        .map(|(dir, set)| SegmentWriter::recover(dir, number, &set.table, &quota, limits))
        .collect::<Result<Vec<_>, _>>()?;
    let (path, access, failed) = (path.clone(), Access::Owner, AtomicBool::default());
    let directory = CacheDirectory { path, access, quota, dirs, limits, failed };
    Ok(OpenedDirectory { directory, segment_writers, locks })
}

/// The limits of the segments in a directory of `capacity` bytes, with this length if it is set.
fn limits(segment: Option<u64>, capacity: u64) -> SegmentLimits {
    let segment = segment.unwrap_or_else(|| SEGMENT_BYTES.max(capacity / MAX_SEGMENT_FILES));
    let segment = segment.clamp(1 << 20, MAX_SEGMENT_BYTES);
    SegmentLimits { segment, segments: (capacity / segment) as usize + 3 }
}

/// The bytes that are reserved for everything except samples and their index entries.
fn overhead(limits: SegmentLimits, sets: usize) -> u64 {
    let set = (limits.segments as u64).saturating_mul(SEGMENT_OVERHEAD).saturating_add(INDEX_OVERHEAD);
    FIXED.saturating_add(set.saturating_mul(sets as u64))
}

/// The bytes of the cache's directory, the owner file and one directory per set.
fn folders_of(sets: usize) -> u64 {
    BLOCK * (sets as u64 + 2)
}

/// The smallest capacity of a directory with space for `bytes` bytes of samples of `sets` datasets.
fn least_capacity(segment: Option<u64>, sets: usize, bytes: u64) -> u64 {
    let there = folders_of(sets).saturating_add(bytes);
    let mut least = 0;
    loop {
        // A larger directory may have more segments.
        let need = overhead(limits(segment, least), sets).saturating_add(there);
        if need <= least {
            return least;
        }
        least = need;
    }
}

/// The least capacity of a directory for samples of one dataset, `bytes` bytes in all.
pub(super) fn room_for(samples: u64, bytes: u64) -> u64 {
    least_capacity(None, 1, FOOTPRINT.most(samples, bytes))
}

/// The most bytes that the datasets take.
fn footprints(datasets: &[DatasetOnDisk]) -> u64 {
    let most = |dataset: &DatasetOnDisk| FOOTPRINT.most(dataset.samples, dataset.bytes);
    datasets.iter().map(most).fold(0, u64::saturating_add)
}

/// The share of the run's datasets that a directory of `capacity` bytes can receive.
fn share_of(config: &DiskConfig, capacity: u64, datasets: &[DatasetOnDisk]) -> u64 {
    let total: u128 = config.directories.iter().map(|directory| u128::from(directory.capacity)).sum();
    let share = u128::from(footprints(datasets)) * u128::from(capacity) / total.max(1);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_message_names_the_remedy() {
        let this = ProcessId::this();
        let owner = |process| flock::DirectoryOwner { process, ..flock::DirectoryOwner::default() };
        let reported = |process| owned_message(&owner(process), Path::new("/scratch"), &this);
        let ours = reported(Some(this.clone()));
        let pid = std::process::id();
        assert!(
            ours.starts_with(&format!(
                "its space is owned by another loader of process {pid}, which is this one; "
            )),
            "{ours}"
        );
        assert!(ours.ends_with("a separate directory, such as val=20GB below the named one"), "{ours}");
        let theirs = reported(Some(ProcessId { life: "of another container".to_owned(), ..this.clone() }));
        let wait = format!("its space is owned by process {pid}; wait for it to end");
        assert!(theirs.starts_with(&wait), "{theirs}");
        assert!(theirs.contains("one for each rank, as in /scratch/$LOCAL_RANK"), "{theirs}");
        assert!(reported(None).starts_with("its space is owned by another process; "));
    }
}
