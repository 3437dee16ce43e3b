//! Opening a directory: whose it is, what of it is ours to fill, and what is in it already.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use foreread_tier::{ErrorKind, TierError};
use foreread_types::Fingerprint;

use super::closing;
use super::config::{Access, DatasetOnDisk, DiskConfig, WhenOwned};
use super::error::{NAME, from_io};
use super::format::{BLOCK, FOOTPRINT, MAX_DIRECTORIES, MAX_START};
use super::layout::{OWNER, ROOT};
use super::lock::{self, Lock};
use super::room::Room;
use super::shelf::{Bounds, Ledger, SEGMENT, Shelf};
use super::store::{Directory, Set};
use super::{index, manage};

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

/// Where the caches of the directories are, each by one name whatever way leads there. Makes what is missing.
///
/// # Errors
/// If there is no directory or too many, or one cannot be used, leads to where another does, or has too little room.
pub(super) fn places(
    config: &DiskConfig,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
) -> Result<Vec<PathBuf>, TierError> {
    let invalid = |what: String, why: String| {
        Err(TierError::new(ErrorKind::Invalid, NAME).with_object(what).with_detail(why))
    };
    let count = config.directories.len();
    if !(1..=MAX_DIRECTORIES).contains(&count) {
        return invalid(format!("{count} directories"), "a disk tier has 1 to 32 of them".to_owned());
    }
    let least = least(config, sets, datasets);
    for (path, capacity) in &config.directories {
        if *capacity < least {
            let why = format!("{capacity} bytes cannot hold a single sample; give it at least {least}");
            return invalid(path.display().to_string(), why);
        }
    }
    let mut places: Vec<(PathBuf, (u64, u64))> = Vec::with_capacity(count);
    for (path, _) in &config.directories {
        let failed = |error: std::io::Error| from_io(&error, path.display());
        let root = path.join(ROOT);
        for directory in [path, &root] {
            match fs::create_dir(directory) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists && !directory.is_dir() => {
                    return Err(failed(error));
                }
                _ => {}
            }
        }
        // Only now: before it was there, nothing told where it would be.
        let metadata = fs::metadata(&root).map_err(failed)?;
        let place = (metadata.dev(), metadata.ino());
        if let Some(before) = places.iter().position(|(_, other)| *other == place) {
            let other = config.directories[before].0.display();
            let why = format!("it leads to the same place as {other}, which is named before; name it once");
            return invalid(path.display().to_string(), why);
        }
        places.push((root.canonicalize().map_err(failed)?, place));
    }
    Ok(places.into_iter().map(|(root, _)| root).collect())
}

/// Opens the tier's directory `number`, whose caches are at `root`.
pub(super) fn open(
    config: &DiskConfig,
    number: u8,
    root: &Path,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
) -> Result<Opened, TierError> {
    let (path, capacity) = &config.directories[usize::from(number)];
    closing::wait(root);
    let fingerprints: Vec<Fingerprint> = sets.iter().map(|set| set.fingerprint).collect();
    let owned = lock::own(root, &fingerprints);
    match owned.map_err(|error| from_io(&error, path.join(ROOT).join(OWNER).display()))? {
        Some(owner) => own(config, number, sets, datasets, root, *capacity, owner),
        None => {
            let detail = taken(&lock::owner(root), path, std::process::id());
            if config.when_owned == WhenOwned::Refuse {
                return Err(TierError::new(ErrorKind::Other, NAME)
                    .with_object(path.display().to_string())
                    .with_detail(detail));
            }
            tracing::warn!(directory = %path.display(), "the disk cache is only read: {detail}");
            Ok(read_only(path.clone(), root, sets))
        }
    }
}

/// Who owns the space of the directory `path`, and what the process `here` can do about it.
fn taken(owner: &lock::Owner, path: &Path, here: u32) -> String {
    let path = path.display();
    if owner.pid == Some(here) {
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

/// Each cache is locked when it is found, by whoever follows it.
fn read_only(path: PathBuf, root: &Path, sets: &[Set]) -> Opened {
    let shelves = sets.iter().map(|set| Shelf::new(root, set.fingerprint)).collect();
    let directory = Directory::new(path, Access::ReadOnly, Room::new(0), shelves, Vec::new());
    Opened { directory, ledgers: Vec::new(), locks: Vec::new() }
}

fn own(
    config: &DiskConfig,
    number: u8,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
    root: &Path,
    capacity: u64,
    owner: Lock,
) -> Result<Opened, TierError> {
    let path = &config.directories[usize::from(number)].0;
    let failed = |error: std::io::Error| from_io(&error, path.display());
    let shelves: Vec<Shelf> = sets.iter().map(|set| Shelf::new(root, set.fingerprint)).collect();
    let mut locks = vec![owner];
    for shelf in &shelves {
        let lock = lock::share(&shelf.path).map_err(|error| from_io(&error, shelf.path.display()))?;
        lock.touch();
        locks.push(lock);
    }
    let bounds = bounds(config, capacity, sets, datasets);
    let overhead = overhead(&bounds);
    let need = share_of(config, capacity, datasets).saturating_add(overhead).min(capacity);
    let own: Vec<&Path> = shelves.iter().map(|shelf| &*shelf.path).collect();
    let others = manage::make_room(root, &own, capacity.saturating_sub(need)).map_err(failed)?;
    let room = Room::new(capacity.saturating_sub(overhead).saturating_sub(others));
    if room.budget().limit() == 0 {
        tracing::warn!(
            directory = %path.display(), capacity, others,
            "the disk cache has no room: give it more, or clean what else is there (`foreread cache clean`)"
        );
    }
    let ledgers = shelves
        .iter()
        .zip(sets)
        .zip(&bounds)
        .map(|((shelf, set), &bounds)| Ledger::recover(shelf, number, &set.table, &room, bounds))
        .collect::<Result<Vec<_>, _>>()?;
    let directory = Directory::new(path.clone(), Access::Owner, room, shelves, bounds);
    Ok(Opened { directory, ledgers, locks })
}

/// What each set may become in a directory of `capacity` bytes.
fn bounds(config: &DiskConfig, capacity: u64, sets: &[Set], datasets: &[DatasetOnDisk]) -> Vec<Bounds> {
    let segment = config.segment.unwrap_or_else(|| SEGMENT_BYTES.max(capacity / SEGMENTS));
    let segment = segment.clamp(1 << 20, u64::from(MAX_START) * BLOCK);
    let segments = (capacity / segment) as usize + 2;
    let samples = |set: &Set| samples_of(datasets, set.fingerprint).min(capacity / BLOCK);
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

fn samples_of(datasets: &[DatasetOnDisk], fingerprint: Fingerprint) -> u64 {
    let same = datasets.iter().filter(|dataset| dataset.fingerprint == fingerprint);
    same.map(|dataset| dataset.samples).max().unwrap_or(0)
}

/// What of the run's datasets could come to lie in a directory of `capacity` bytes, at most.
fn share_of(config: &DiskConfig, capacity: u64, datasets: &[DatasetOnDisk]) -> u64 {
    let rounding = FOOTPRINT.of(1);
    let most =
        |dataset: &DatasetOnDisk| dataset.bytes.saturating_add(dataset.samples.saturating_mul(rounding));
    let all = datasets.iter().map(most).fold(0, u64::saturating_add);
    let total: u128 = config.directories.iter().map(|(_, capacity)| u128::from(*capacity)).sum();
    let share = u128::from(all) * u128::from(capacity) / total.max(1);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_the_space_is_says_what_to_do_about_it() {
        let owner = |pid| lock::Owner { pid, ..lock::Owner::default() };
        let said = |pid| taken(&owner(pid), Path::new("/scratch"), 7);
        let ours = said(Some(7));
        assert!(
            ours.starts_with("its space is owned by another loader of process 7, which is this one; "),
            "{ours}"
        );
        assert!(
            ours.ends_with("a directory of its own, such as val=20GB below the one that is named"),
            "{ours}"
        );
        let theirs = said(Some(8));
        assert!(theirs.starts_with("its space is owned by process 8; wait for it to end"), "{theirs}");
        assert!(theirs.contains("one for each rank, as in /scratch/$LOCAL_RANK"), "{theirs}");
        assert!(said(None).starts_with("its space is owned by another process; "));
    }
}
