//! Directories as origins ([`LocalOrigin`]: a disk, or a shared file system) and as caches
//! ([`DiskTier`], in [`disk`]).
//!
//! [`LocalOrigin`] reads files below a directory on a bounded pool of plain threads. Blocking calls
//! cost a third of an asynchronous runtime's file API. A few more threads list the directory.
//! [`LocalBackend`] opens an origin from a plain path or a `file` URL. [`PageCacheReader`] reads
//! ahead for programs that open files themselves.
//!
//! ```
//! use std::sync::Arc;
//! use foreread_local::{LocalConfig, LocalOrigin};
//! use foreread_tier::{HeapBuffers, OriginTier, Tier};
//! use futures::StreamExt;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let origin = LocalOrigin::open("src", LocalConfig::default(), Arc::new(HeapBuffers))?;
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let objects = runtime.block_on(origin.list("", None).collect::<Vec<_>>());
//! assert!(objects.iter().flatten().any(|object| &*object.path == "lib.rs"));
//! assert_eq!(origin.name(), "local");
//! # Ok(())
//! # }
//! ```

mod backend;
mod config;
mod core;
mod descriptors;
pub mod disk;
mod error;
mod file_reader;
mod file_system;
mod jobs;
mod list_retry;
mod lister;
mod page_cache;
mod place;
mod pool;
mod server_watch;

pub use backend::LocalBackend;
pub use config::{LocalConfig, directory_of};
pub use core::{LayoutReader, LocalOrigin};
pub use disk::{DiskConfig, DiskTier};
pub use file_system::is_on_this_machine;
pub use foreread_tier::{ReplaceableThrough, is_private_directory, replaceable_through};
pub use lister::ListThreads;
pub use page_cache::{PageCacheCounts, PageCacheReader};
pub use place::{ChangeTimes, unescaped};
