//! Settings and reports of a disk tier.

use std::path::PathBuf;

use foreread_types::DatasetIdentity;

use super::folder::Permissions;
use super::root;
use super::shared_room::SharedRoom;

/// Default number of concurrent reads. 16 to 32 saturate a device.
const PARALLELISM: usize = 32;

/// Default limit of queued writes in bytes.
const WRITE_BEHIND: u64 = 32 << 20;

/// Settings of a disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskConfig {
    /// The directories, at most 32.
    pub directories: Vec<DiskDirectory>,
    /// Limit of the bytes that wait to be written. Samples above it are not stored. 32 MiB by
    /// default.
    pub write_behind: u64,
    /// Limit of concurrent reads. 32 by default.
    pub parallelism: usize,
    /// How reads are executed. [`DiskReader::Auto`] by default.
    pub reader: DiskReader,
    /// The use of a directory that another process owns (default: [`WhenOwned::ReadOnly`]).
    pub when_owned: WhenOwned,
    /// Segment length in bytes, 1 MiB to 64 GiB. `None`, the default, chooses 256 MiB, or more
    /// where that would make more than 128 files.
    pub segment: Option<u64>,
    /// Where datasets are stored, as [`list`](super::list) reports it. Empty by default.
    pub locations: Vec<(DatasetIdentity, String)>,
    /// The datasets that continue the caches of earlier ones.
    pub lineages: Vec<DatasetLineage>,
    /// Other datasets whose caches are not removed to make room.
    pub kept: Vec<DatasetIdentity>,
}

impl DiskConfig {
    /// Caches in `directories`: pairs of path and capacity, or [`DiskDirectory`]s.
    pub fn new(directories: impl IntoIterator<Item = impl Into<DiskDirectory>>) -> Self {
        Self {
            directories: directories.into_iter().map(Into::into).collect(),
            write_behind: WRITE_BEHIND,
            parallelism: PARALLELISM,
            reader: DiskReader::default(),
            when_owned: WhenOwned::default(),
            segment: None,
            locations: Vec::new(),
            lineages: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Sets the limit of queued writes in bytes.
    #[must_use]
    pub fn with_write_behind(self, bytes: u64) -> Self {
        Self { write_behind: bytes, ..self }
    }

    /// Sets the limit of concurrent reads. 0 counts as 1.
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self {
        Self { parallelism: parallelism.max(1), ..self }
    }

    /// Sets how reads are executed.
    #[must_use]
    pub fn with_reader(self, reader: DiskReader) -> Self {
        Self { reader, ..self }
    }

    /// Sets the use of a directory that another process owns.
    #[must_use]
    pub fn when_owned(self, when_owned: WhenOwned) -> Self {
        Self { when_owned, ..self }
    }

    /// Sets the segment length in bytes.
    #[must_use]
    pub fn with_segment(self, bytes: u64) -> Self {
        Self { segment: Some(bytes), ..self }
    }

    /// Sets where datasets are stored.
    #[must_use]
    pub fn with_locations(self, locations: Vec<(DatasetIdentity, String)>) -> Self {
        Self { locations, ..self }
    }

    /// Sets the datasets that continue the caches of earlier ones.
    #[must_use]
    pub fn with_lineages(self, lineages: Vec<DatasetLineage>) -> Self {
        Self { lineages, ..self }
    }

    /// Keeps the caches of these datasets, which are not the tier's yet.
    #[must_use]
    pub fn with_kept(self, kept: Vec<DatasetIdentity>) -> Self {
        Self { kept, ..self }
    }
}

/// A directory of a disk tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskDirectory {
    /// The directory that holds the cache.
    pub path: PathBuf,
    /// Limit of the cache in bytes. It includes other datasets' caches and all bookkeeping.
    pub capacity: u64,
    /// The part of this user's cache: 0, or another number for each further process on this node.
    pub part: u32,
    /// Whether one cache serves all users.
    ///
    /// Owners and modes are then not checked. The umask and the file system decide them. This is
    /// for file systems that keep neither, and for caches that an administrator fills. All users
    /// who can write to the directory are trusted.
    pub shared: bool,
    /// The room that copies of whole files share. Its capacity is `capacity`.
    pub room: Option<SharedRoom>,
}

impl DiskDirectory {
    /// This user's own cache of `capacity` bytes in `path`.
    pub fn new(path: impl Into<PathBuf>, capacity: u64) -> Self {
        Self { path: path.into(), capacity, part: 0, shared: false, room: None }
    }

    /// Sets the part.
    #[must_use]
    pub fn with_part(self, part: u32) -> Self {
        Self { part, ..self }
    }

    /// Sets whether one cache serves all users.
    #[must_use]
    pub fn with_shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    /// Shares its room with copies of whole files.
    #[must_use]
    pub fn with_room(self, room: SharedRoom) -> Self {
        Self { room: Some(room), ..self }
    }

    /// The number of parts that the cache has now, at least 1.
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

/// How a disk tier reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskReader {
    /// `io_uring` where the kernel and the container allow it, otherwise threads. The measurements
    /// are in the module's documentation.
    #[default]
    Auto,
    /// One thread per concurrent read.
    Threads,
    /// `io_uring` with one or two threads. Opening fails where it is refused.
    Ring,
}

impl DiskReader {
    /// The name in reports: `auto`, `threads` or `io_uring`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Threads => "threads",
            Self::Ring => "io_uring",
        }
    }
}

/// The use of a directory that another process owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenOwned {
    /// Read its contents and write nothing.
    #[default]
    ReadOnly,
    /// Fail with an error that names the directory and the process.
    Refuse,
}

/// How a tier may use a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The tier owns the space.
    Owner,
    /// Read only: another process owns the space, nothing can be written, or the disk is full.
    ReadOnly,
    /// Not at all.
    Unused,
}

/// A dataset of the run, in the order of its [`DatasetId`](foreread_types::DatasetId)s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetOnDisk {
    /// The dataset's identity, which is the cache key.
    pub identity: DatasetIdentity,
    /// The number of samples. Larger ids are refused.
    pub samples: u64,
    /// The sum of the samples' lengths. It limits how much of other datasets' caches is removed.
    pub bytes: u64,
}

/// A dataset whose samples have the numbers that they had in earlier datasets, as far as they were
/// there. It continues the cache of the earliest.
///
/// A record names the dataset in which its sample was new. So the numbers of datasets that have
/// grown apart cannot be confused: the other's record is a miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetLineage {
    /// The dataset's identity, as in [`DatasetOnDisk`].
    pub identity: DatasetIdentity,
    /// The first number of each piece, and the identity in its records. Ascending, from 0. The
    /// first identity names the cache.
    pub pieces: Vec<(u64, DatasetIdentity)>,
    /// The numbers of samples that are gone, ascending. Their records are removed.
    pub gone: Vec<u64>,
}

/// The offer of a disk tier if it were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskOutlook {
    /// The bytes of footprints that would fit.
    pub capacity: u64,
    /// The bytes of the run's datasets that are there, up to their footprints. Damaged ones count.
    pub warm: u64,
}

/// The cached part of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetUsage {
    /// The number of samples.
    pub samples: u64,
    /// The sum of their footprints in bytes.
    pub bytes: u64,
}

/// Event counts since the tier was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Samples written.
    pub written: u64,
    /// Sum of the footprints of written samples, in bytes.
    pub written_bytes: u64,
    /// Stores that were left out because the write queue was full.
    pub skipped: u64,
    /// Samples that were not stored because the disk failed or was full.
    pub failed: u64,
    /// Samples that were dropped because their record was invalid.
    pub corrupt: u64,
}
