//! Local copies of whole files, for programs that are not changed: `foreread run -- CMD`.
//!
//! A program's opens are decided in the program, by the library of `foreread_preload` and a mapped
//! table. This crate is the other side: it lists the files of the datasets and copies
//! them to a local disk or to memory. It publishes the copies in the table, and removes some for
//! others.
//!
//! # Decisions and price
//!
//! * *One process is the host* of a directory of copies: the first that gets the lock. The others
//!   wait for the lock, so one of them takes over when the host ends or dies. Meanwhile their
//!   programs are served as before, because the table and the copies are files.
//! * *A copy is made next to the program*, which has opened the original at once. Both reads share
//!   the page cache, so the storage is read once. The pages stay until the kernel needs them: a
//!   program may not have read them yet.
//! * *Where the kernel keeps no pages over opens, the copy is made first* (`pages`), and an open
//!   waits for it: the storage is read once there, too. The price is the time to the first byte.
//! * *A copy never changes.* It is made without a name, gets its name when it is whole, and no
//!   other copy gets this name. The original must be the same before and after.
//! * *A dataset is a directory and not a path* (`root`), and each process of a program decides
//!   whether its path leads there.
//! * *A copy leaves only if no process has it open or mapped*: the kernel grants a write lease
//!   then.
//! * *Files that a copy cannot stand for are left out*: with extended attributes, with holes, or
//!   changed a moment ago.
//!
//! * *An agent may be the host*: its copies share the room of its samples.
//!
//! Which files are copied is the decision of
//! [`FileChoice`](foreread_planner::FileChoice).
#![cfg(target_os = "linux")]

mod adoption;
mod caches;
mod copy_store;
mod copying;
mod directory;
mod error;
mod eviction;
mod file_host;
mod guard;
mod host;
mod host_state;
mod listing;
mod mapping;
mod orders;
mod original;
mod pages;
mod recognition;
mod report;
mod root;
mod run;
mod run_directory;
mod settings;
mod table;
mod trace;
mod writes;

pub use caches::{FileCacheEntry, file_caches, remove_file_cache};
pub use copy_store::{CopyStore, memory_directory, node_of};
pub use error::FileCacheError;
pub use file_host::{FileHost, FilesStatus, RunStatus};
pub use host_state::HostCounts;
pub use original::settle_after;
pub use report::{RunCounts, RunReport};
pub use run::FileRun;
pub use settings::{CheckOriginals, FileOrder, RunSettings};
pub use writes::WriteBudget;
