//! The files of a cache: their names, and what they take.
//!
//! ```text
//! DIRECTORY/foreread-cache/owner                     locked by the process that owns the space
//! DIRECTORY/foreread-cache/<fingerprint>/lock        locked, shared, by every process that uses the dataset's cache
//! DIRECTORY/foreread-cache/<fingerprint>/index
//! DIRECTORY/foreread-cache/<fingerprint>/00000.segment ...
//! ```
//!
//! Nothing else is ever opened for writing, changed or removed, and of these only what begins with our magic numbers.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use foreread_types::Fingerprint;

use super::format::{self, BLOCK, Header, INDEX_HEADER, INDEX_MAGIC, SEGMENT_MAGIC};

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

/// What kind of file `path` is, by its header.
pub(super) fn kind(
    path: &Path,
    magic: [u8; 8],
    fingerprint: Fingerprint,
    number: u16,
) -> std::io::Result<Header> {
    let length = if magic == INDEX_MAGIC { INDEX_HEADER } else { BLOCK as usize };
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(Header::Foreign);
    }
    let mut bytes = Vec::with_capacity(length);
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(format::check_file(&bytes, magic, fingerprint, number))
}

/// Removes the segment files that are ours, and their number's.
pub(super) fn remove_segment(directory: &Path, fingerprint: Fingerprint, number: u16) -> std::io::Result<()> {
    let path = directory.join(segment_name(number));
    match kind(&path, SEGMENT_MAGIC, fingerprint, number)? {
        Header::Foreign => Ok(()),
        _ => fs::remove_file(path),
    }
}

/// Removes all files of a dataset's cache but its lock.
pub(super) fn remove_files(directory: &Path, fingerprint: Fingerprint) -> std::io::Result<()> {
    // The index first: segments without one are garbage, an index without segments is a list of misses.
    for name in [INDEX, NEXT_INDEX] {
        let path = directory.join(name);
        match kind(&path, INDEX_MAGIC, fingerprint, 0) {
            Ok(Header::Foreign) => {}
            Ok(_) => fs::remove_file(path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    for number in segments(directory)? {
        remove_segment(directory, fingerprint, number)?;
    }
    Ok(())
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
        // One of ours has a lock, whatever else it has lost.
        if entry.file_name() == *fingerprint.to_string()
            && entry.file_type()?.is_dir()
            && entry.path().join(LOCK).exists()
        {
            found.push((fingerprint, entry.path()));
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
