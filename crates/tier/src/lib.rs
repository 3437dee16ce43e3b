//! The contract between the engine and everything that samples can be read from.
//!
//! A *tier* answers reads, each by its own future ([`ReadFuture`]), so a slow read delays only
//! itself. Retries, limits and hedges are plain `async fn`s around any tier instead of code in
//! each. Concurrent reads form a burst, which [`submit`](Tier::submit) ends. A cache
//! ([`CacheTier`]) also answers *lookups* synchronously. Memory answers [`Lookup::Ready`]. A disk
//! answers [`Lookup::Stored`] and is then read like an origin. An origin ([`OriginTier`]) can list
//! its objects, and a [`Backend`] opens one from a URL.
//!
//! Memory is counted where it is held. A [`Charge`] on a [`Budget`] is part of a [`Sample`] and
//! ends with the sample's last handle, which is usually the trainer's.
//!
//! # What the contract was tried against
//!
//! * *S3*: a read is one GET, sent at the first poll. `Whole` needs no HEAD, the version becomes
//!   `If-Match`, and a 503 is [`ErrorKind::Throttled`] with `retry_after`. Nothing in the contract
//!   is specific to files.
//! * *A peer*: a burst is one framed request, whose answers come back as they are found. A peer
//!   knows samples by their [`SampleKey`](foreread_types::SampleKey) alone, so requests carry both
//!   the key and the object.
//! * *A disk cache*: `lookup` reads an index in memory, and `read` does aligned I/O through
//!   [`Buffers`]. `reserve` and `store` are separate, so that a full write-behind queue is detected
//!   before any byte is copied.
//!
//! The price of a future per read is one boxed future for the layers and one for the tier. A
//! busy consumer is woken rarely, because tiers call the wakers of several answers in a row.

mod arena;
mod backend;
mod budget;
mod buffers;
mod cache;
mod error;
mod layout;
mod lock;
mod path;
mod peers;
mod private_directory;
mod request;
mod sample;
mod tier;
mod user_directory;

pub use arena::{ArenaBuffers, MappedRegion, SharedPlace, SharedRegion, lasting_descriptor, memory_file};
pub use backend::{Backend, OpenContext, OpenOptions};
pub use budget::{Budget, Charge};
pub use buffers::{Buffer, Buffers, HeapBuffers, Lifetime};
pub use cache::{CacheTier, Lookup};
pub use error::{BoxError, ErrorKind, TierError};
pub use layout::{LayoutsFuture, ObjectLayout, StorageServer, UnknownServer};
pub use lock::lock;
pub use path::{ListRange, check_path};
pub use peers::{ANNOUNCE_INTERVAL, PeerReplies, PeerReply, PeerRequest, PeerService};
pub use private_directory::{ReplaceableThrough, is_private_directory, replaceable_through};
pub use request::{FileChange, Object, ReadBlock, ReadRequest, Span, StoredPart, Version, unix_nanoseconds};
pub use sample::Sample;
pub use tier::{OriginTier, ReadFuture, Tier, TierProfile};
pub use user_directory::{private_user_directory, user_directory};
