//! For tests only: a file system that behaves like Lustre, over a directory of a local disk.
//!
//! [`StandIn`] mounts the directory read-only by FUSE. Every file has a layout, which is readable
//! as
//! `lustre.lov`. An open, a close and a `stat` are requests to the MDT. A read is a request to each
//! OST that has a part of the range. Servers have a latency, a bandwidth and, as in a Lustre
//! client, a number of requests in flight. They can hang, be slow, and evict the client, and files
//! can be released to an archive. Every request is [counted](Counts).
//!
//! | call | requests |
//! |---|---|
//! | path lookup | none: the real client asks with the open or the `stat` |
//! | `open`, `close` | one to the MDT, of which 7 are in flight |
//! | `stat`, `fstat` | one to the MDT, of which 8 are in flight |
//! | `statx` with `AT_STATX_DONT_SYNC` | none |
//! | `pread` | one to each OST of the range, for each MiB, of which 8 are in flight |
//! | first read of an object | with `lock_latency`, one latency more |
//! | `pread` of data on the MDT | none for the first 8 KiB, then one to the MDT |
//! | `getxattr` | one to the MDT if the client has not seen the file before |
//! | listing a directory | one for the open, one for the entries |
//!
//! Decision: requests are timers of one [engine](StandIn), not threads, so that thousands may wait.
//! Data comes from the page cache of the local disk. The price: the file system is one client of
//! its own servers. Two mounts do not share the bandwidth of an OST.
//!
//! # Readers in the same process
//! A thread that reads from a hung OST cannot be killed until its file system is unmounted or
//! ended. A process that ends while its own thread waits never ends, because the FUSE device stays
//! open until that thread ends. So drop [`StandIn`] before the process ends, as unwinding does, or
//! let another process read.

mod commands;
mod counts;
mod engine;
mod filesystem;
mod mount;
mod nodes;
mod options;
mod served;
mod server_queue;
mod spec;
mod stand_in;

pub use commands::{StandInArguments, USAGE};
pub use counts::{Counts, LoggedRequest, OstCounts, RequestKind};
pub use options::{LayoutOf, StandInOptions};
pub use spec::LayoutSpec;
pub use stand_in::{EvictedFrom, Recall, StandIn};
