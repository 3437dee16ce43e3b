//! The place of copies: a directory of a local disk, or a `tmpfs`.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use foreread_local::is_on_this_machine;

use crate::directory::CacheDirectory;
use crate::error::FileCacheError;

/// Where copies are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyStore {
    /// In a directory of a local disk.
    Disk {
        /// The directory.
        directory: PathBuf,
        /// The most bytes.
        bytes: u64,
        /// The part of them that may be written in a day, after the disk was filled once.
        writes_per_day: f64,
        /// The name of this node, if nodes share the directory.
        node: Option<String>,
    },
    /// In memory, as files of a `tmpfs`.
    Memory {
        /// The directory of the file system.
        directory: PathBuf,
        /// The most bytes.
        bytes: u64,
    },
}

impl CopyStore {
    pub(crate) fn directory(&self) -> &Path {
        match self {
            Self::Disk { directory, .. } | Self::Memory { directory, .. } => directory,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Disk { bytes, .. } | Self::Memory { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn writes_per_day(&self) -> Option<f64> {
        match self {
            Self::Disk { writes_per_day, .. } => Some(*writes_per_day),
            Self::Memory { .. } => None,
        }
    }

    pub(crate) fn open(&self) -> Result<CacheDirectory, FileCacheError> {
        match self {
            Self::Disk { directory, node, .. } => CacheDirectory::open(directory, node.as_deref()),
            Self::Memory { directory, .. } => CacheDirectory::open(directory, None),
        }
    }
}

/// The directory of a `tmpfs` with room for copies, and the bytes that it has left.
pub fn memory_directory() -> Option<(PathBuf, u64)> {
    let directory = Path::new("/dev/shm");
    let found = rustix::fs::statvfs(directory).ok()?;
    Some((directory.to_owned(), found.f_bavail.saturating_mul(found.f_frsize)))
}

/// A path without links, as far as it is there.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    match found {
        Some((ancestor, real)) => path.strip_prefix(ancestor).map_or(real.clone(), |rest| real.join(rest)),
        None => path,
    }
}

/// The name of this node, if other nodes may see a directory: on a file system that is not this
/// machine's.
pub fn node_of(directory: &Path) -> Option<String> {
    let real = resolved(directory);
    if real.ancestors().find(|path| path.exists()).is_some_and(is_local) {
        return None;
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).collect())
}

/// Whether a file or directory is on a file system of this machine.
pub(crate) fn is_local(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| is_on_this_machine(file.as_fd()))
}
