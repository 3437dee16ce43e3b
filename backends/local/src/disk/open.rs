//! Opening a directory: whose it is, what of it is ours to fill, and what is in it already.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use foreread_tier::{ErrorKind, TierError};
use foreread_types::DatasetIdentity;

use super::closing;
use super::config::{Access, DatasetOnDisk, DiskConfig, DiskDirectory, WhenOwned};
use super::error::{about, from_errno, from_io};
use super::folder::Folder;
use super::format::{BLOCK, FOOTPRINT, MAX_DIRECTORIES, MAX_START};
use super::index::{self, Found};
use super::layout::OWNER;
use super::lock::{self, Lock, Process};
use super::manage;
use super::room::Room;
use super::root::{self, Root};
use super::shelf::{Bounds, Ledger, SEGMENT, Shelf};
use super::store::{Directory, Set};

/// The length of a segment where nobody says otherwise, in bytes, and how many there are at most.
const SEGMENT_BYTES: u64 = 256 << 20;
const SEGMENTS: u64 = 128;

/// What directories and locks take, in bytes.
const FIXED: u64 = 64 << 10;

/// A directory that was opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) directory: Directory,
    /// By set; none for a reader.
    pub(super) ledgers: Vec<Ledger>,
    pub(super) locks: Vec<Lock>,
}

/// The caches of the directories, open; makes what is missing. None for a directory that cannot be used.
///
/// # Errors
/// If there is no directory or too many, or one cannot be used, leads to where another does, or has too little room.
pub(super) fn roots(
    config: &DiskConfig,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
) -> Result<Vec<Option<Folder>>, TierError> {
    let count = config.directories.len();
    if !(1..=MAX_DIRECTORIES).contains(&count) {
        let why = "a disk tier has 1 to 32 of them";
        return Err(about(ErrorKind::Invalid, format_args!("{count} directories"), why));
    }
    let least = least(config, sets, datasets);
    for DiskDirectory { path, capacity, .. } in &config.directories {
        if *capacity < least {
            let why = format!("{capacity} bytes cannot hold a single sample; give it at least {least}");
            return Err(about(ErrorKind::Invalid, path.display(), why));
        }
    }
    let mut roots: Vec<Option<Folder>> = Vec::with_capacity(count);
    for directory in &config.directories {
        let path = &directory.path;
        let opened = match root::open(directory)? {
            Root::Open(root) => match root::part(root, directory.part) {
                // Made by fewer ranks, and read-only by now.
                Err(error) if error.kind() == ErrorKind::Denied && holds_any_part(path, sets) => {
                    Root::Unusable(error)
                }
                part => part?,
            },
            unusable @ Root::Unusable(_) => unusable,
        };
        if directory.part == 0 {
            root::warn_of_old(path);
        }
        let root = match opened {
            Root::Open(root) => root,
            Root::Unusable(error) => {
                tracing::warn!(directory = %path.display(), "the run continues without this disk cache: {error}");
                roots.push(None);
                continue;
            }
        };
        // Only now: before it was there, nothing told where it would be.
        let id = root.id().map_err(|errno| from_errno(errno, path.display()))?;
        let same = |other: &Option<Folder>| other.as_ref().is_some_and(|other| other.id() == Ok(id));
        if let Some(before) = roots.iter().position(same) {
            let other = config.directories[before].path.display();
            let why = format!("it leads to the same place as {other}, which is named before; name it once");
            return Err(about(ErrorKind::Invalid, path.display(), why));
        }
        roots.push(Some(root));
    }
    Ok(roots)
}

/// Opens the tier's directory `number`, whose caches are in `root`.
pub(super) fn open(
    config: &DiskConfig,
    number: u8,
    root: Option<&Folder>,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
) -> Result<Opened, TierError> {
    let DiskDirectory { path, capacity, .. } = &config.directories[usize::from(number)];
    let Some(root) = root else {
        return Ok(unwritten(path, Access::Unused, &[]));
    };
    closing::wait(root.id().map_err(|errno| from_errno(errno, path.display()))?);
    let identities: Vec<DatasetIdentity> = sets.iter().map(|set| set.identity).collect();
    let owner = lock::own(root, &identities).map_err(|error| from_io(&error, root.path_of(OWNER).display()));
    let opened = match owner {
        Ok(Some(owner)) => own(config, number, sets, datasets, root, *capacity, owner),
        Ok(None) => {
            let detail = taken(&lock::owner(root), path, &Process::this());
            if config.when_owned == WhenOwned::Refuse {
                return Err(about(ErrorKind::Other, path.display(), detail));
            }
            tracing::warn!(directory = %path.display(), "the disk cache is only read: {detail}");
            return Ok(unwritten(path, Access::ReadOnly, sets));
        }
        Err(error) => Err(error),
    };
    match opened {
        // What is there can be read all the same.
        Err(error) if error.kind() == ErrorKind::Full => {
            sets.iter().for_each(|set| set.table.clear(number));
            let directory = path.display();
            tracing::warn!(%directory, "the disk cache takes nothing; what it holds is read: {error}");
            Ok(unwritten(path, Access::ReadOnly, sets))
        }
        Err(error) if error.kind() == ErrorKind::Denied && holds_any(root, number, sets) => {
            tracing::warn!(directory = %path.display(), "the disk cache is only read: {error}");
            Ok(unwritten(path, Access::ReadOnly, sets))
        }
        Err(error) if error.kind() == ErrorKind::Denied && holds_any_part(path, sets) => {
            tracing::warn!(directory = %path.display(), "the run continues without this disk cache: {error}");
            Ok(unwritten(path, Access::Unused, &[]))
        }
        opened => opened,
    }
}

/// Whether another rank's part of a directory has what this rank's part lacks.
fn holds_any_part(directory: &Path, sets: &[Set]) -> bool {
    root::existing(directory).is_ok_and(|parts| parts.iter().any(|part| holds_any(part, 0, sets)))
}

/// Whether there is an index of one of the run's datasets.
fn holds_any(root: &Folder, number: u8, sets: &[Set]) -> bool {
    sets.iter().any(|set| {
        let folder = root.folder(&set.identity.to_string());
        folder.is_ok_and(|folder| matches!(index::read(&folder, number, set.identity), Ok(Found::Right(_))))
    })
}

/// Who owns the space of the directory `path`, and what the process `this` can do about it.
fn taken(owner: &lock::Owner, path: &Path, this: &Process) -> String {
    let path = path.display();
    if owner.process.as_ref() == Some(this) {
        return format!(
            "its space is owned by another loader of {owner}, which is this one; give each loader a directory of its own, such as \
             val=20GB below the one that is named"
        );
    }
    format!(
        "its space is owned by {owner}; wait for it to end, or choose another directory (where it is another rank of this \
         job: one for each rank, as in {path}/$LOCAL_RANK)"
    )
}

/// A directory that is not written. The cache of each of `sets` is locked when it is found, by whoever follows it.
fn unwritten(path: &Path, access: Access, sets: &[Set]) -> Opened {
    let shelves = sets.iter().map(|set| Shelf::followed(set.identity)).collect();
    let (path, room, failed) = (path.to_owned(), Room::new(0), AtomicBool::default());
    let directory = Directory { path, access, room, shelves, bounds: Vec::new(), failed };
    Opened { directory, ledgers: Vec::new(), locks: Vec::new() }
}

fn own(
    config: &DiskConfig,
    number: u8,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
    root: &Folder,
    capacity: u64,
    owner: Lock,
) -> Result<Opened, TierError> {
    let path = &config.directories[usize::from(number)].path;
    let (mut folders, mut locks) = (Vec::with_capacity(sets.len()), vec![owner]);
    for set in sets {
        let name = set.identity.to_string();
        let shared = lock::share(root, &name);
        let (folder, lock) = shared.map_err(|error| from_io(&error, root.path_of(name).display()))?;
        lock.touch();
        locks.push(lock);
        folders.push((set.identity, folder));
    }
    let bounds = bounds(config, capacity, sets, datasets);
    let overhead = overhead(&bounds);
    let need = share_of(config, capacity, datasets).saturating_add(overhead).min(capacity);
    let own: Vec<(DatasetIdentity, &Folder)> =
        folders.iter().map(|(print, folder)| (*print, folder)).collect();
    let others = manage::make_room(root, &own, capacity.saturating_sub(need))
        .map_err(|errno| from_errno(errno, path.display()))?;
    let room = Room::new(capacity.saturating_sub(overhead).saturating_sub(others));
    if room.budget().limit() == 0 {
        tracing::warn!(
            directory = %path.display(), capacity, others,
            "the disk cache has no room: give it more, or clean what else is there (`foreread cache clean`)"
        );
    }
    let shelves: Vec<Shelf> =
        folders.into_iter().map(|(identity, folder)| Shelf::owned(identity, folder)).collect();
    let ledgers = shelves
        .iter()
        .zip(sets)
        .zip(&bounds)
        .map(|((shelf, set), &bounds)| Ledger::recover(shelf, number, &set.table, &room, bounds))
        .collect::<Result<Vec<_>, _>>()?;
    let (path, access, failed) = (path.clone(), Access::Owner, AtomicBool::default());
    let directory = Directory { path, access, room, shelves, bounds, failed };
    Ok(Opened { directory, ledgers, locks })
}

/// What each set may become in a directory of `capacity` bytes.
fn bounds(config: &DiskConfig, capacity: u64, sets: &[Set], datasets: &[DatasetOnDisk]) -> Vec<Bounds> {
    let segment = config.segment.unwrap_or_else(|| SEGMENT_BYTES.max(capacity / SEGMENTS));
    let segment = segment.clamp(1 << 20, u64::from(MAX_START) * BLOCK);
    let segments = (capacity / segment) as usize + 2;
    let samples = |set: &Set| samples_of(datasets, set.identity).min(capacity / BLOCK);
    sets.iter().map(|set| Bounds { segment, samples: samples(set), segments }).collect()
}

/// What is set aside for everything but samples, in bytes.
fn overhead(bounds: &[Bounds]) -> u64 {
    let one = |bounds: &Bounds| index::room(bounds.samples).saturating_add(bounds.segments as u64 * SEGMENT);
    bounds.iter().map(one).fold(FIXED, u64::saturating_add)
}

/// The least capacity of a directory that leaves room for a sample, in bytes.
fn least(config: &DiskConfig, sets: &[Set], datasets: &[DatasetOnDisk]) -> u64 {
    let mut least = 0;
    loop {
        // More room for samples needs more for the list of them. What is there anyhow is counted, too: the caches'
        // directory, the owner's file, and a directory a set.
        let there = BLOCK * (sets.len() as u64 + 2);
        let need = overhead(&bounds(config, least, sets, datasets)).saturating_add(there + BLOCK);
        if need <= least {
            return least;
        }
        least = need;
    }
}

fn samples_of(datasets: &[DatasetOnDisk], identity: DatasetIdentity) -> u64 {
    let same = datasets.iter().filter(|dataset| dataset.identity == identity);
    same.map(|dataset| dataset.samples).max().unwrap_or(0)
}

/// What of the run's datasets could come to lie in a directory of `capacity` bytes, at most.
fn share_of(config: &DiskConfig, capacity: u64, datasets: &[DatasetOnDisk]) -> u64 {
    let rounding = FOOTPRINT.of(1);
    let most =
        |dataset: &DatasetOnDisk| dataset.bytes.saturating_add(dataset.samples.saturating_mul(rounding));
    let all = datasets.iter().map(most).fold(0, u64::saturating_add);
    let total: u128 = config.directories.iter().map(|directory| u128::from(directory.capacity)).sum();
    let share = u128::from(all) * u128::from(capacity) / total.max(1);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_the_space_is_says_what_to_do_about_it() {
        let this = Process::this();
        let owner = |process| lock::Owner { process, ..lock::Owner::default() };
        let said = |process| taken(&owner(process), Path::new("/scratch"), &this);
        let ours = said(Some(this.clone()));
        let pid = std::process::id();
        assert!(
            ours.starts_with(&format!(
                "its space is owned by another loader of process {pid}, which is this one; "
            )),
            "{ours}"
        );
        assert!(
            ours.ends_with("a directory of its own, such as val=20GB below the one that is named"),
            "{ours}"
        );
        let theirs = said(Some(Process { life: "of another container".to_owned(), ..this.clone() }));
        let wait = format!("its space is owned by process {pid}; wait for it to end");
        assert!(theirs.starts_with(&wait), "{theirs}");
        assert!(theirs.contains("one for each rank, as in /scratch/$LOCAL_RANK"), "{theirs}");
        assert!(said(None).starts_with("its space is owned by another process; "));
    }
}
