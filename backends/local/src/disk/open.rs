//! Opening a directory: ownership, available space, and recovery of its contents.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use foreread_tier::{ErrorKind, TierError};
use foreread_types::DatasetIdentity;

use super::closing;
use super::config::{Access, DatasetOnDisk, DiskConfig, DiskDirectory, DiskOutlook, WhenOwned};
use super::dataset_dir::{DatasetDir, SEGMENT_OVERHEAD, SegmentLimits, SegmentWriter};
use super::error::{about, from_errno, from_io};
use super::flock::{self, FileLock, ProcessId};
use super::folder::Folder;
use super::format::{BLOCK, FOOTPRINT, MAX_DIRECTORIES, MAX_START};
use super::index::{self, IndexFile};
use super::layout::OWNER;
use super::manage;
use super::quota::Quota;
use super::root::{self, CacheRoot};
use super::state::{CacheDirectory, CachedDataset};

/// The default segment length in bytes, and the limit of segment files.
const SEGMENT_BYTES: u64 = 256 << 20;
const MAX_SEGMENT_FILES: u64 = 128;

/// Bytes of directories and locks.
const FIXED: u64 = 64 << 10;

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
    datasets: &[DatasetOnDisk],
) -> Result<Vec<Option<Folder>>, TierError> {
    check(config, sets, datasets)?;
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
fn check(config: &DiskConfig, sets: &[CachedDataset], datasets: &[DatasetOnDisk]) -> Result<(), TierError> {
    let count = config.directories.len();
    if !(1..=MAX_DIRECTORIES).contains(&count) {
        let why = "a disk tier has 1 to 32 of them";
        return Err(about(ErrorKind::Invalid, format_args!("{count} directories"), why));
    }
    let least = min_capacity(config, sets, datasets);
    for DiskDirectory { path, capacity, .. } in &config.directories {
        if *capacity < least {
            let why = format!("{capacity} bytes cannot hold a single sample; give it at least {least}");
            return Err(about(ErrorKind::Invalid, path.display(), why));
        }
    }
    Ok(())
}

/// What the directories would offer if they were opened. Nothing is created, removed or locked.
///
/// # Errors
/// If the number of directories is invalid, or one is too small.
pub(super) fn look(
    config: &DiskConfig,
    sets: &[CachedDataset],
    datasets: &[DatasetOnDisk],
) -> Result<DiskOutlook, TierError> {
    check(config, sets, datasets)?;
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
        let overhead = overhead(&limits(config, capacity, sets, datasets));
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
    let (path, quota, failed) = (path.to_owned(), Quota::new(0), AtomicBool::default());
    let directory = CacheDirectory { path, access, quota, dirs, limits: Vec::new(), failed };
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
    let limits = limits(config, capacity, sets, datasets);
    let overhead = overhead(&limits);
    let need = share_of(config, capacity, datasets).saturating_add(overhead).min(capacity);
    let own: Vec<(DatasetIdentity, &Folder)> =
        folders.iter().map(|(print, folder)| (*print, folder)).collect();
    let others = manage::make_room(root, &own, capacity.saturating_sub(need))
        .map_err(|errno| from_errno(errno, path.display()))?;
    let quota = Quota::new(capacity.saturating_sub(overhead).saturating_sub(others));
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
        .zip(&limits)
        .map(|((dir, set), &limits)| SegmentWriter::recover(dir, number, &set.table, &quota, limits))
        .collect::<Result<Vec<_>, _>>()?;
    let (path, access, failed) = (path.clone(), Access::Owner, AtomicBool::default());
    let directory = CacheDirectory { path, access, quota, dirs, limits, failed };
    Ok(OpenedDirectory { directory, segment_writers, locks })
}

/// The limits of each set in a directory of `capacity` bytes.
fn limits(
    config: &DiskConfig,
    capacity: u64,
    sets: &[CachedDataset],
    datasets: &[DatasetOnDisk],
) -> Vec<SegmentLimits> {
    let samples = sets.iter().map(|set| samples_of(datasets, set.identity));
    samples.map(|samples| limits_of(config.segment, capacity, samples)).collect()
}

/// The limits of one set of `samples` samples, with this length of segments if it is set.
fn limits_of(segment: Option<u64>, capacity: u64, samples: u64) -> SegmentLimits {
    let segment = segment.unwrap_or_else(|| SEGMENT_BYTES.max(capacity / MAX_SEGMENT_FILES));
    let segment = segment.clamp(1 << 20, u64::from(MAX_START) * BLOCK);
    let segments = (capacity / segment) as usize + 2;
    SegmentLimits { segment, samples: samples.min(capacity / BLOCK), segments }
}

/// The bytes that are reserved for everything except samples.
fn overhead(limits: &[SegmentLimits]) -> u64 {
    let one = |limits: &SegmentLimits| {
        index::max_bytes(limits.samples).saturating_add(limits.segments as u64 * SEGMENT_OVERHEAD)
    };
    limits.iter().map(one).fold(FIXED, u64::saturating_add)
}

/// The bytes of the cache's directory, the owner file and one directory per set.
fn folders_of(sets: usize) -> u64 {
    BLOCK * (sets as u64 + 2)
}

/// The smallest capacity of a directory with space for one sample, in bytes.
fn min_capacity(config: &DiskConfig, sets: &[CachedDataset], datasets: &[DatasetOnDisk]) -> u64 {
    let there = folders_of(sets.len());
    least_capacity(|least| overhead(&limits(config, least, sets, datasets)).saturating_add(there + BLOCK))
}

/// The least capacity that is not below its own need: more samples need a longer index.
fn least_capacity(need: impl Fn(u64) -> u64) -> u64 {
    let mut least = 0;
    loop {
        let need = need(least);
        if need <= least {
            return least;
        }
        least = need;
    }
}

/// The least capacity of a directory for samples of one dataset, `bytes` bytes in all.
pub(super) fn room_for(samples: u64, bytes: u64) -> u64 {
    let there = FOOTPRINT.most(samples, bytes).saturating_add(folders_of(1));
    least_capacity(|least| overhead(&[limits_of(None, least, samples)]).saturating_add(there))
}

fn samples_of(datasets: &[DatasetOnDisk], identity: DatasetIdentity) -> u64 {
    let same = datasets.iter().filter(|dataset| dataset.identity == identity);
    same.map(|dataset| dataset.samples).max().unwrap_or(0)
}

/// The most bytes that the datasets take.
fn footprints(datasets: &[DatasetOnDisk]) -> u64 {
    let rounding = FOOTPRINT.of(1);
    let most =
        |dataset: &DatasetOnDisk| dataset.bytes.saturating_add(dataset.samples.saturating_mul(rounding));
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
