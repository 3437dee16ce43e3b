//! A cache on local disks: packed segments, found again by the next run, never between the trainer and its first use.
//!
//! # What lies where
//!
//! Each directory holds, in `foreread-cache/<fingerprint of the catalog>`, append-only *segment* files of records (a
//! header, the sample, zeros up to a multiple of 4096) and one *index* of 32 bytes a record, appended after the data.
//! A file a sample would cost an open and an inode each; a database would bring its own cache and write twice.
//! In memory there are eight bytes a sample of the dataset, so a lookup is one load.
//!
//! # What may happen to it
//!
//! Every record carries its dataset's fingerprint, its sample's id and a crc32c, all checked on every read. So whatever
//! has happened to the files, the worst is a miss: the read fails as [`Corrupt`](foreread_tier::ErrorKind::Corrupt) or
//! [`Absent`](foreread_tier::ErrorKind::Absent), the engine reads the origin, and the sample is stored again.
//!
//! * *Killed at any moment*: a record counts once it is listed, and it is listed after it was written.
//! * *Power lost*: nothing is synced, so the index may list what never reached the disk; that is found when it is read.
//! * *A flipped byte, a torn, lost or foreign file, another version*: an entry, record or segment is lost, an index
//!   costs the directory's cache of that dataset; one line of log each.
//! * *A full disk, one that fails or becomes read-only*: nothing is written there any more, what is there is read on.
//!
//! # Whose the space is
//!
//! One process owns the space of a directory at a time, by a lock that ends with it. Another that opens the directory
//! reads what is there of its datasets and what the owner adds, or is refused with the owner's process id
//! ([`WhenOwned`]). The capacity is that of everything below `foreread-cache`: other datasets' caches, indexes and
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
//! `examples/disk.rs`: 10,000 samples of 110 KB, a virtual disk, two cores that others used as well; the ranges are
//! those of the load.
//!
//! * Reads: 900-1,880 MB/s, 75-105 % of a loop of direct reads with 16 in flight in the same run, which does not look
//!   at what it reads. CPU, the consumer's included: 24-26 us a sample at best, 12-17 of them the loop's own, and 30-45
//!   under load. The checksum is 5 us from the cores' caches and 10 from memory, of which touching the bytes at all is
//!   7.5, and which whoever reads them next is spared.
//! * Writes: 1,360 MB/s and 37 us of CPU: a copy, a checksum, and memory that is new to the core.
//! * Opening 10,000 samples (1.1 GB) again: 8 ms. Page cache afterwards: less than 1 % of the segments' pages.
//! * `io_uring`, one thread with 16 in flight, against 16 threads, both with the checksum: 3-6 us of CPU less, the same
//!   wall clock. Left out: many containers refuse it, and one thread checks at most 5 GB/s. It is the next step where
//!   CPU is what is short.

mod aligned;
mod closing;
mod config;
mod counters;
mod error;
mod file;
mod format;
mod index;
mod layout;
mod lock;
mod manage;
mod open;
mod pack;
mod read;
mod readers;
mod ring;
mod room;
mod shelf;
mod store;
mod table;
mod tier;
mod uring;
mod write;

pub use config::{Access, DatasetOnDisk, DiskConfig, DiskCounts, DiskReader, Stored, WhenOwned};
pub use manage::{CacheEntry, Removed, Rule, clean, list};
pub use tier::DiskTier;
