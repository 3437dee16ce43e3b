//! File names of a cache, and their sizes.
//!
//! ```text
//! DIRECTORY/foreread-cache-<uid>/owner                 locked by the process that owns the space
//! DIRECTORY/foreread-cache-<uid>/agent                 locked by the agent that has the directory
//! DIRECTORY/foreread-cache-<uid>/<identity>/lock       shared lock of each user of the cache
//! DIRECTORY/foreread-cache-<uid>/<identity>/index
//! DIRECTORY/foreread-cache-<uid>/<identity>/00000.segment ...
//! DIRECTORY/foreread-cache-<uid>/rank-1/...            the same for each further rank on the node
//! ```
//!
//! No other file is ever opened for writing, changed or removed. Any file with one of these names
//! here belongs to the cache, whatever its contents. A file with damaged first bytes can no longer
//! be recognised and would otherwise keep its space for ever.

use std::io::{ErrorKind, Read};
use std::time::{Duration, SystemTime};

use foreread_types::DatasetIdentity;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::folder::Folder;
use super::format::{self, SEGMENT_MAGIC};
use super::place::{BLOCK, MAX_SEGMENTS};
use super::root::is_folder;

pub(super) const OWNER: &str = "owner";
pub(super) const AGENT: &str = "agent";
pub(super) const LOCK: &str = "lock";
pub(super) const INDEX: &str = "index";
/// An index that is being rewritten. It counts only after it is renamed.
pub(super) const NEXT_INDEX: &str = "index.next";

/// Name prefix of the parts of ranks.
const PART_PREFIX: &str = "rank-";

/// More parts than ranks on any node.
const MAX_PARTS: u32 = 1024;

pub(super) fn part_name(part: u32) -> String {
    format!("{PART_PREFIX}{part}")
}

/// The parts in a root, except the root itself, ascending.
pub(super) fn parts(root: &Folder) -> Vec<u32> {
    let number = |name: std::ffi::OsString| {
        let number = name.to_str()?.strip_prefix(PART_PREFIX)?.parse::<u32>().ok()?;
        let is_part = (1..MAX_PARTS).contains(&number) && part_name(number).as_str() == name;
        (is_part && root.stat(&name).is_ok_and(|stat| is_folder(&stat))).then_some(number)
    };
    let mut parts: Vec<u32> = root.names().unwrap_or_default().into_iter().filter_map(number).collect();
    parts.sort_unstable();
    parts
}

pub(super) fn segment_name(number: u16) -> String {
    format!("{number:05}.segment")
}

fn segment_number(name: &str) -> Option<u16> {
    let number = name.strip_suffix(".segment").filter(|digits| digits.len() == 5)?;
    number.parse().ok().filter(|number| *number < MAX_SEGMENTS && segment_name(*number) == name)
}

/// The segments in a dataset's directory, ascending.
pub(super) fn segments(dataset: &Folder) -> Result<Vec<u16>, Errno> {
    let names = dataset.names()?;
    Ok(names.iter().filter_map(|name| name.to_str().and_then(segment_number)).collect())
}

/// Whether the header of segment `number` is valid.
pub(super) fn is_segment(dataset: &Folder, identity: DatasetIdentity, number: u16) -> std::io::Result<bool> {
    let file = std::fs::File::from(dataset.open(&segment_name(number), OFlags::RDONLY)?);
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    match file.take(BLOCK).read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error), // a pipe blocks
        _ => {}
    }
    Ok(format::is_valid_header(&bytes, SEGMENT_MAGIC, identity, number))
}

/// Removes all files of a dataset's cache except its lock. Returns the files that remain, with the
/// reasons.
pub(super) fn remove_files(dataset: &Folder) -> Result<Vec<(String, Errno)>, Errno> {
    // The index first: segments without an index are unused, an index without segments lists only
    // misses.
    let names = [INDEX, NEXT_INDEX].map(str::to_owned).into_iter();
    let names = names.chain(segments(dataset)?.into_iter().map(segment_name));
    Ok(names.filter_map(|name| dataset.remove(&*name).err().map(|errno| (name, errno))).collect())
}

/// The datasets' caches in `root`, by identity.
pub(super) fn datasets(root: &Folder) -> Result<Vec<(DatasetIdentity, Folder)>, Errno> {
    let mut found = Vec::new();
    for name in root.names()? {
        let Some(name) = name.to_str() else { continue };
        let Some(identity) = name.parse::<DatasetIdentity>().ok().filter(|print| print.to_string() == name)
        else {
            continue;
        };
        let Ok(dataset) = root.folder(name) else { continue };
        // A cache may have lost files. Foreign files stay when it is removed.
        if [LOCK, INDEX, NEXT_INDEX].iter().any(|name| dataset.has(name))
            || segments(&dataset).is_ok_and(|found| !found.is_empty())
        {
            found.push((identity, dataset));
        }
    }
    found.sort_unstable_by_key(|(identity, _)| *identity);
    Ok(found)
}

/// The allocated bytes of a root or part, without the parts of other ranks.
pub(super) fn allocated(root: &Folder) -> u64 {
    let parts = parts(root);
    let is_part = |name: &std::ffi::OsString| parts.iter().any(|part| part_name(*part).as_str() == name);
    let own = root.stat(".").map_or(0, |stat| stat.st_blocks as u64 * 512);
    let names = root.names().unwrap_or_default();
    names.iter().filter(|name| !is_part(name)).fold(own, |sum, name| sum + root.allocated(&**name))
}

/// When a dataset's cache was last opened or closed.
pub(super) fn last_used(dataset: &Folder) -> SystemTime {
    let modified = dataset.stat(LOCK).ok().and_then(|stat| {
        let since =
            Duration::new(u64::try_from(stat.st_mtime).ok()?, u32::try_from(stat.st_mtime_nsec).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    });
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
}
