//! A cache on local disks: packed segments that the next run reuses, written off the trainer's
//! path.
//!
//! # Files
//!
//! Each directory has one subdirectory per dataset, `foreread-cache-<uid>/<identity of the
//! catalog>`. It holds append-only *segment* files of records, back to back: the sample, its
//! trailer, and zeros up to a multiple of 64. One *index* has 20 bytes per record, appended after
//! the data. One file per sample would cost an open and an inode each. A database would bring its
//! own cache and write twice. In memory there are eight bytes per sample of the dataset, so a
//! lookup is one load.
//!
//! # The way of a sample
//!
//! ```text
//! DiskTier::store        tier.rs         reserve write-behind budget, queue a PackJob
//!       |
//!       v
//! Packer                 packer.rs       copy the sample into an aligned RecordBlock of up to 1 MiB
//!       |  WriteCommand
//!       v
//! DirectoryWriter        writer.rs       one thread per directory, waits for reads in flight
//!       |
//!       |-> SegmentWriter::write         dataset_dir.rs   1. append the block to a segment
//!       |-> SegmentWriter::list          index.rs         2. append its entries to the index
//!       |-> PlaceTable::put              table.rs         3. publish the locations for lookups
//!       |-> StoreReply                                    4. complete the caller's future
//!       `-> empty_a_piece                emptying.rs      5. after removals, recover dead space
//!
//! DiskTier::read -> DiskReaders (threads or io_uring) -> RecordReader: look up, read, check;
//!                                                       small neighbours in one read
//! ```
//!
//! A sample is copied by one thread and written by another, which waits for reads. The copies have
//! a separate budget. When it is full, a sample is not stored. That is counted, and the next use
//! may store it. So neither the trainer nor the look-ahead ever waits for a disk. The price is one
//! copy, which direct I/O needs in any case.
//!
//! # Failures
//!
//! Every record carries its dataset's identity, its sample's id and a crc32c, and every read checks
//! all of them. So the worst damage to the files is a miss. The read fails as
//! [`Corrupt`](foreread_tier::ErrorKind::Corrupt) or [`Absent`](foreread_tier::ErrorKind::Absent),
//! the engine reads the origin, and the sample is stored again.
//!
//! * *Killed at any moment*: a record counts once it is listed, and it is listed after it was
//!   written.
//! * *Power lost*: nothing is synced, so the index may list records that never reached the disk.
//!   Reading detects them.
//! * *A flipped byte, a torn, lost or foreign file, another version*: an entry, a record or a
//!   segment is lost. An invalid index costs the directory's cache of that dataset. Each is one
//!   line of log.
//! * *A full disk or quota at any time, a disk that fails or becomes read-only*: writing there
//!   ends, and stored samples are still read.
//!
//! # Other users
//!
//! All users may be able to write to a directory. The cache in it is one user's: mode 0700, files
//! 0600, whatever the umask. It is opened once and used only by its descriptor (`root.rs`). Other
//! objects in its place are neither read nor changed. Samples may be private, and a planted file of
//! samples may run code where it is unpickled. A directory that is [shared](DiskDirectory::shared)
//! serves all users instead, and all are trusted.
//!
//! # Ownership of the space
//!
//! One process owns the space of a directory at a time, by a lock that ends with it. Another
//! process that opens the directory reads its datasets there and the samples that the owner adds.
//! Or it is refused with the owner's process id ([`WhenOwned`]). The capacity includes everything
//! in this user's cache: other datasets' caches, indexes and the file system's overhead are counted
//! before samples. *Other datasets' caches are removed only at opening, and only when the run's own
//! datasets could need their space. The least recently used go first. A cache that a process uses
//! stays.* [`list`] and [`clean`] are for everything else.
//!
//! # Page cache
//!
//! Reads and writes bypass it (`O_DIRECT`). A disk tier that reads through it would take the memory
//! that the memory tier was promised. Where a file system refuses direct I/O, pages are dropped
//! after use.
//!
//! # Measured
//!
//! `cargo xtask bench --bench figures -- disk_tier`: 5,000 samples of 110 KB, a virtual disk, two
//! cores, medians of seven rounds in turns.
//!
//! * CPU per sample with its consumer: 15 us by `io_uring`, 24 by threads. A loop of direct reads
//!   with 16 in flight takes 12 to 13, without looking at the bytes. Samples of 16 KB: 7, 11 and 8
//!   us. With other work (load 4 to 11): 25 to 30, 40 to 49 and 18 to 26. So [`DiskReader::Auto`]
//!   is a ring wherever possible.
//! * Reads: 95 % of the loop's rate by `io_uring`, 92 % by threads. With samples of 16 KB both
//!   reach the loop's rate.
//! * Context switches: 2.0 per sample with threads, 0.4 to 0.9 with a ring. The checksum takes 5 us
//!   from the cores' caches and 10 from memory. Touching the bytes at all is 7.5 of these, which
//!   the next reader of the bytes saves.
//! * Reused memory ([`ArenaBuffers`](foreread_tier::ArenaBuffers)) saves threads 4 to 8 us per
//!   sample. With a ring the difference is lost in the noise.
//! * Opening 5,000 samples again: 1.5 ms, for 110 KB and for 16 KB each. Page cache after 28
//!   passes: 12 of 135,003 pages, which are the segments' headers.
//! * Records back to back instead of in blocks of their own, old and new in turns on a fast device:
//!   samples of 110 KB take the same CPU and 1 % more time. Those of 16 KB take 5 % more CPU and 4
//!   to 7 % more time, because a read has a part of its neighbours' sectors. In return, samples
//!   of 1,000 bytes are 93 % of the disk's room, and those of 110 KB 99.4 %. In whole blocks, the
//!   small ones would be less than a quarter.

mod aligned;
mod closing;
mod commands;
mod config;
mod counters;
mod dataset_dir;
mod dead_space;
mod emptying;
mod error;
mod file;
mod flock;
mod folder;
mod format;
mod index;
mod layout;
mod manage;
mod open;
mod owned_segment;
mod packer;
mod place;
mod quota;
mod readers;
mod record_block;
mod record_reader;
mod ring;
mod root;
mod shared_room;
mod state;
mod table;
mod tier;
mod uring;
mod writer;

pub use config::{
    Access, DatasetLineage, DatasetOnDisk, DatasetUsage, DiskConfig, DiskCounts, DiskDirectory, DiskOutlook,
    DiskReader, WhenOwned,
};
pub use manage::{CacheEntry, CleanRule, RemovedCache, clean, list};
pub use open::{Reservation, reserve};
pub(crate) use root::is_cache_name;
pub use shared_room::SharedRoom;
pub use tier::DiskTier;
