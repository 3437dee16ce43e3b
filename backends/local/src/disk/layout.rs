//! The files of a cache: their names, and what they take.
//!
//! ```text
//! DIRECTORY/foreread-cache/owner                     locked by the process that owns the space
//! DIRECTORY/foreread-cache/<fingerprint>/lock        locked, shared, by every process that uses the dataset's cache
//! DIRECTORY/foreread-cache/<fingerprint>/index
//! DIRECTORY/foreread-cache/<fingerprint>/00000.segment ...
//! ```
//!
//! Nothing else is ever opened for writing, changed or removed. What has one of these names in one of these places is
//! ours, whatever is in it: a file whose first bytes were damaged says nothing of itself any more, and would otherwise
//! hold its room for ever.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use foreread_types::Fingerprint;

use super::format::{self, BLOCK, SEGMENT_MAGIC};

pub(crate) const ROOT: &str = "foreread-cache";
pub(super) const OWNER: &str = "owner";
pub(super) const LOCK: &str = "lock";
pub(super) const INDEX: &str = "index";
/// An index that is being rewritten; it counts only once it has the other's name.
pub(super) const NEXT_INDEX: &str = "index.next";

pub(super) fn segment_name(number: u16) -> String {
    format!("{number:05}.segment")
}

fn segment_number(name: &str) -> Option<u16> {
    let number = name.strip_suffix(".segment").filter(|digits| digits.len() == 5)?;
    number.parse().ok().filter(|number| *number < format::MAX_SEGMENTS && segment_name(*number) == name)
}

/// The segments in a dataset's directory, ascending.
pub(super) fn segments(directory: &Path) -> std::io::Result<Vec<u16>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        found.extend(entry?.file_name().to_str().and_then(segment_number));
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether `path` is the right segment, by its header.
pub(super) fn is_segment(path: &Path, fingerprint: Fingerprint, number: u16) -> std::io::Result<bool> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    file.take(BLOCK).read_to_end(&mut bytes)?;
    Ok(format::is_right(&bytes, SEGMENT_MAGIC, fingerprint, number))
}

/// Removes a file, or an empty directory that has its name.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::IsADirectory => fs::remove_dir(path),
        done => done,
    }
}

/// Removes all files of a dataset's cache but its lock; those that could not be removed, and why.
pub(super) fn remove_files(directory: &Path) -> std::io::Result<Vec<(PathBuf, std::io::Error)>> {
    // The index first: segments without one are garbage, an index without segments is a list of misses.
    let names = [INDEX, NEXT_INDEX].map(str::to_owned).into_iter();
    let names = names.chain(segments(directory)?.into_iter().map(segment_name));
    let paths = names.map(|name| directory.join(name));
    Ok(paths.filter_map(|path| remove(&path).err().map(|error| (path, error))).collect())
}

/// The datasets' caches below `root`, by fingerprint.
pub(super) fn datasets(root: &Path) -> std::io::Result<Vec<(Fingerprint, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let Some(fingerprint) = entry.file_name().to_str().and_then(|name| name.parse::<Fingerprint>().ok())
        else {
            continue;
        };
        let path = entry.path();
        // Whatever it has lost. What is not ours may stay in it when it is removed.
        let has = |name: &&str| fs::symlink_metadata(path.join(name)).is_ok();
        if entry.file_name() == *fingerprint.to_string()
            && entry.file_type()?.is_dir()
            && ([LOCK, INDEX, NEXT_INDEX].iter().any(has)
                || segments(&path).is_ok_and(|found| !found.is_empty()))
        {
            found.push((fingerprint, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The bytes that `path` and all below it take on the disk. What vanishes meanwhile takes none.
pub(super) fn allocated(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let own = metadata.blocks() * 512;
    if !metadata.is_dir() {
        return own;
    }
    let Ok(entries) = fs::read_dir(path) else { return own };
    entries.flatten().fold(own, |sum, entry| sum + allocated(&entry.path()))
}

/// When a dataset's cache was opened or closed last.
pub(super) fn last_used(directory: &Path) -> SystemTime {
    let modified = fs::metadata(directory.join(LOCK)).and_then(|metadata| metadata.modified());
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
}
