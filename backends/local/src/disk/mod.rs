//! A cache on local disks: packed segments, found again by the next run, never between the trainer and its first use.
//!
//! # What lies where
//!
//! Each directory holds, in `foreread-cache-<uid>/<identity of the catalog>`, append-only *segment* files of records (a
//! header, the sample, zeros up to a multiple of 4096) and one *index* of 32 bytes a record, appended after the data.
//! A file a sample would cost an open and an inode each; a database would bring its own cache and write twice.
//! In memory there are eight bytes a sample of the dataset, so a lookup is one load.
//!
//! # What may happen to it
//!
//! Every record carries its dataset's identity, its sample's id and a crc32c, all checked on every read. So whatever
//! has happened to the files, the worst is a miss: the read fails as [`Corrupt`](foreread_tier::ErrorKind::Corrupt) or
//! [`Absent`](foreread_tier::ErrorKind::Absent), the engine reads the origin, and the sample is stored again.
//!
//! * *Killed at any moment*: a record counts once it is listed, and it is listed after it was written.
//! * *Power lost*: nothing is synced, so the index may list what never reached the disk; that is found when it is read.
//! * *A flipped byte, a torn, lost or foreign file, another version*: an entry, record or segment is lost, an index
//!   costs the directory's cache of that dataset; one line of log each.
//! * *A full disk or quota, at the start or later, one that fails or becomes read-only*: nothing is written there any
//!   more, what is there is read on.
//!
//! # Other users
//!
//! A directory may be everybody's. The cache in it is one user's: mode 0700, files 0600, whatever the umask, opened once
//! and used by its descriptor only (`root.rs`). What others put in its place is neither read nor changed. Samples may be
//! private, and a file of samples that somebody else wrote may run code where it is unpickled. A directory that is
//! [shared](DiskDirectory::shared) serves all users instead, and all are trusted.
//!
//! # Whose the space is
//!
//! One process owns the space of a directory at a time, by a lock that ends with it. Another that opens the directory
//! reads what is there of its datasets and what the owner adds, or is refused with the owner's process id
//! ([`WhenOwned`]). The capacity is that of everything in this user's cache: other datasets' caches, indexes and
//! what file systems add are counted before samples are. *Other datasets' caches are removed at opening only, only when
//! the run's own datasets could need their room, the least recently used first, and never one that any process uses.*
//! [`list`] and [`clean`] are for everything else.
//!
//! # Writing behind
//!
//! A sample that is to be kept is copied by a thread into a block of up to 1 MiB, and written by another one, which
//! gives way to reads (`write.rs`). The copies count against a budget of their own; when it is full, a sample is not
//! stored, which is counted, and the next use may store it. So neither the trainer nor the look-ahead ever waits for a
//! disk, and the price is one copy, which direct I/O needs anyway.
//!
//! # Beside the page cache
//!
//! Reads and writes bypass it (`O_DIRECT`), because a disk tier that is read through it takes the memory that the
//! memory tier was promised. Where a file system refuses that, pages are dropped after use.
//!
//! # Measured
//!
//! `cargo xtask bench --bench figures -- disk_tier`: 5,000 samples of 110 KB, a virtual disk, two cores, medians of seven
//! rounds in turns.
//!
//! * CPU a sample, the consumer's included: by `io_uring` 15 us, by threads 24; a loop of direct reads with 16 in flight,
//!   which does not look at what it reads, 12 to 13. Samples of 16 KB: 7, 11 and 8 us. Beside other work (load 4 to 11)
//!   25 to 30, 40 to 49 and 18 to 26. So [`DiskReader::Auto`] is a ring wherever there can be one.
//! * Reads: 95 % of the loop's rate by `io_uring`, 92 % by threads; with samples of 16 KB as many as the loop.
//! * Context switches: 2.0 a sample with threads, 0.4 to 0.9 with a ring. The checksum is 5 us from the cores' caches and
//!   10 from memory, of which touching the bytes at all is 7.5, and which whoever reads them next is spared.
//! * Memory that is used again ([`RecycledBuffers`](foreread_tier::RecycledBuffers)) saves threads 4 to 8 us a sample; with
//!   a ring the difference is lost in the noise.
//! * Opening 5,000 samples again: 1.5 ms, whether they have 110 KB or 16. Page cache after 28 passes: 12 of 135,003
//!   pages, which are the segments' headers.

mod aligned;
mod closing;
mod config;
mod counters;
mod dataset_dir;
mod error;
mod file;
mod flock;
mod folder;
mod format;
mod index;
mod layout;
mod manage;
mod open;
mod packer;
mod quota;
mod readers;
mod record_reader;
mod ring;
mod root;
mod state;
mod table;
mod tier;
mod uring;
mod writer;

pub use config::{
    DatasetOnDisk, DatasetUsage, DirectoryAccess, DiskConfig, DiskCounts, DiskDirectory, DiskReader,
    WhenOwned,
};
pub use manage::{CacheEntry, Removed, Rule, clean, list};
pub(crate) use root::is_cache_name;
pub use tier::DiskTier;
