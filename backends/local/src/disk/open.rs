//! Opening a directory: whose it is, what of it is ours to fill, and what is in it already.

use std::fs;
use std::path::{Path, PathBuf};

use foreread_tier::{ErrorKind, TierError};
use foreread_types::Fingerprint;

use super::closing;
use super::config::{Access, DatasetOnDisk, DiskConfig, WhenOwned};
use super::error::{NAME, from_io};
use super::format::{BLOCK, FOOTPRINT, MAX_START};
use super::layout::ROOT;
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
    /// Where its caches are, by one name whatever way leads there.
    pub(super) root: PathBuf,
    pub(super) directory: Directory,
    /// By set; none for a reader.
    pub(super) ledgers: Vec<Ledger>,
    pub(super) locks: Vec<Lock>,
}

/// Opens `path` as the tier's directory `number`, with at most `capacity` bytes.
pub(super) fn open(
    config: &DiskConfig,
    number: u8,
    sets: &[Set],
    datasets: &[DatasetOnDisk],
) -> Result<Opened, TierError> {
    let (path, capacity) = &config.directories[usize::from(number)];
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
    let root = root.canonicalize().map_err(failed)?;
    closing::wait(&root);
    let fingerprints: Vec<Fingerprint> = sets.iter().map(|set| set.fingerprint).collect();
    match lock::own(&root, &fingerprints).map_err(failed)? {
        Some(owner) => own(config, number, sets, datasets, &root, *capacity, owner),
        None => {
            let owner = lock::owner(&root);
            let detail =
                format!("its space is owned by {owner}; wait for it to end, or choose another directory");
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

fn read_only(path: PathBuf, root: PathBuf, sets: &[Set]) -> Opened {
    let shelves: Vec<Shelf> = sets.iter().map(|set| Shelf::new(&root, set.fingerprint)).collect();
    // What the owner has not begun yet cannot be locked, and has nothing that could be removed.
    let locks = shelves.iter().filter_map(|shelf| lock::share(&shelf.path, false).ok()).collect();
    let directory = Directory::new(path, Access::ReadOnly, Room::new(0), shelves, Vec::new());
    Opened { root, directory, ledgers: Vec::new(), locks }
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
        let lock = lock::share(&shelf.path, true).map_err(failed)?;
        lock.touch();
        locks.push(lock);
    }
    let segment = config.segment.unwrap_or_else(|| SEGMENT_BYTES.max(capacity / SEGMENTS));
    let segment = segment.clamp(1 << 20, u64::from(MAX_START) * BLOCK);
    let segments = (capacity / segment) as usize + 2;
    let bounds: Vec<Bounds> = sets
        .iter()
        .map(|set| {
            let samples = samples_of(datasets, set.fingerprint).min(capacity / BLOCK);
            Bounds { segment, samples, segments }
        })
        .collect();
    let overhead = bounds.iter().map(|bounds| index::room(bounds.samples) + bounds.segments as u64 * SEGMENT);
    let overhead = overhead.sum::<u64>() + FIXED;
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
    Ok(Opened { root: root.to_owned(), directory, ledgers, locks })
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
