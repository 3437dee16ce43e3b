//! What a disk tier is told, and what it says of itself.

use std::path::PathBuf;

use foreread_types::DatasetIdentity;

use super::folder::Permissions;
use super::root;

/// Reads under way at once where nobody says otherwise: a device is saturated by 16 to 32.
const PARALLELISM: usize = 32;

/// Bytes on their way to the disk at once where nobody says otherwise.
const WRITE_BEHIND: u64 = 32 << 20;

/// Where a disk tier keeps its samples, and how it goes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskConfig {
    /// The directories. At most 32.
    pub directories: Vec<DiskDirectory>,
    /// The bytes that may wait to be written at once; a sample that finds no room there is not stored. 32 MiB.
    pub write_behind: u64,
    /// Reads under way at once, at most; 32.
    pub parallelism: usize,
    /// What carries the reads out; [`DiskReader::Auto`].
    pub reader: DiskReader,
    /// What to do with a directory whose space another process owns; [`WhenOwned::ReadOnly`].
    pub when_owned: WhenOwned,
    /// The length in bytes at which a segment file is closed and the next one begun, 1 MiB to 64 GiB; `None`, the
    /// default, chooses 256 MiB, or more where there would be more than 128 files.
    pub segment: Option<u64>,
}

impl DiskConfig {
    /// Caches in `directories`: paths with capacities in bytes, or more fully as [`DiskDirectory`].
    pub fn new(directories: impl IntoIterator<Item = impl Into<DiskDirectory>>) -> Self {
        Self {
            directories: directories.into_iter().map(Into::into).collect(),
            write_behind: WRITE_BEHIND,
            parallelism: PARALLELISM,
            reader: DiskReader::default(),
            when_owned: WhenOwned::default(),
            segment: None,
        }
    }

    /// The same with at most `bytes` on their way to the disk at once.
    #[must_use]
    pub fn with_write_behind(self, bytes: u64) -> Self {
        Self { write_behind: bytes, ..self }
    }

    /// The same with at most `parallelism` reads under way at once (0 is taken as 1).
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self {
        Self { parallelism: parallelism.max(1), ..self }
    }

    /// The same, read so.
    #[must_use]
    pub fn with_reader(self, reader: DiskReader) -> Self {
        Self { reader, ..self }
    }

    /// The same, with a directory that another process owns treated so.
    #[must_use]
    pub fn when_owned(self, when_owned: WhenOwned) -> Self {
        Self { when_owned, ..self }
    }

    /// The same with segments of `bytes`.
    #[must_use]
    pub fn with_segment(self, bytes: u64) -> Self {
        Self { segment: Some(bytes), ..self }
    }
}

/// A directory of a disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskDirectory {
    /// The directory, in which the cache is one of the entries.
    pub path: PathBuf,
    /// The bytes that the cache in it may take, other datasets' caches and all bookkeeping included.
    pub capacity: u64,
    /// Which part of this user's cache it is: 0, or another for each further process that writes on this node.
    pub part: u32,
    /// Whether one cache serves all users. Then owners and modes are not checked, and are what the umask and the file
    /// system make of them. For file systems that keep neither, and for caches that an administrator fills. All who can
    /// write to the directory are trusted.
    pub shared: bool,
}

impl DiskDirectory {
    /// This user's own cache in `path`, of `capacity` bytes.
    pub fn new(path: impl Into<PathBuf>, capacity: u64) -> Self {
        Self { path: path.into(), capacity, part: 0, shared: false }
    }

    /// The same, part `part` of it.
    #[must_use]
    pub fn with_part(self, part: u32) -> Self {
        Self { part, ..self }
    }

    /// The same, with one cache for all users if `shared`.
    #[must_use]
    pub fn with_shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// How many parts the cache has now: at least 1.
    pub fn parts(&self) -> u32 {
        root::count_parts(self)
    }

    pub(super) fn permissions(&self) -> Permissions {
        if self.shared { Permissions::Shared } else { Permissions::Private }
    }
}

impl From<(PathBuf, u64)> for DiskDirectory {
    fn from((path, capacity): (PathBuf, u64)) -> Self {
        Self::new(path, capacity)
    }
}

/// What carries the reads of a disk tier out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskReader {
    /// `io_uring` where the kernel and the container allow it, else threads. (Which of the two was found by measuring:
    /// see the module's own figures.)
    #[default]
    Auto,
    /// Threads, one for each read under way.
    Threads,
    /// `io_uring`: one thread, or two, for all of them. Opening fails where that is refused.
    Ring,
}

impl DiskReader {
    /// Its name in reports: `auto`, `threads` or `io_uring`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Threads => "threads",
            Self::Ring => "io_uring",
        }
    }
}

/// What to do with a directory whose space another process owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenOwned {
    /// Read what it holds and write nothing.
    #[default]
    ReadOnly,
    /// Fail, naming the directory and the process.
    Refuse,
}

/// What a tier may do with a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryAccess {
    /// It owns the space.
    Owner,
    /// It reads what is there: another process owns the space, nothing can be written, or there is no room.
    ReadOnly,
    /// Nothing: the directory could not be used.
    Unused,
}

/// A dataset of the run, in the order of its [`DatasetId`](foreread_types::DatasetId)s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetOnDisk {
    /// The dataset's identity: what the samples are kept under.
    pub identity: DatasetIdentity,
    /// How many samples there are; others are refused.
    pub samples: u64,
    /// The sum of their lengths in bytes. Only as much of other datasets' old caches is removed as this needs.
    pub bytes: u64,
}

/// What is kept of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetUsage {
    /// How many samples.
    pub samples: u64,
    /// The bytes that they take: the sum of their footprints.
    pub bytes: u64,
}

/// What has happened since the tier was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Samples written.
    pub written: u64,
    /// Their footprints, in bytes.
    pub written_bytes: u64,
    /// Samples that were not stored because too much was on its way already.
    pub skipped: u64,
    /// Samples that were not stored because the disk failed or was full.
    pub failed: u64,
    /// Samples that were dropped because their record was not what it should be.
    pub corrupt: u64,
}
