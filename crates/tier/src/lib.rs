//! The contract between the engine and every place that samples can be read from.
//!
//! A *tier* answers reads, each by a future of its own ([`ReadFuture`]), so a slow read holds back only itself, and
//! retrying, limiting or hedging a read is a plain `async fn` around any tier instead of code in each. Reads of one
//! moment form a burst, which [`submit`](Tier::submit) ends. A tier that keeps samples ([`CacheTier`]) also answers *lookups* synchronously: memory says
//! [`Lookup::Ready`] at once, a disk says [`Lookup::Stored`] and is then read like an origin. An origin
//! ([`OriginTier`]) can list what it holds, and a [`Backend`] opens one from a URL.
//!
//! Memory is counted where it is held: a [`Charge`] on a [`Budget`] rides inside a [`Sample`] and ends with the
//! sample's last handle, wherever that is (the trainer's, usually).
//!
//! # What the contract was tried against
//!
//! * *S3*: a read is one GET, sent at the first poll; `Whole` needs no HEAD; the version goes into
//!   `If-Match`; a 503 is [`ErrorKind::Throttled`] with `retry_after`. Nothing in the contract is a file.
//! * *A peer*: a burst is one framed request, its answers come back as they are found; a peer knows samples by
//!   [`SampleKey`](foreread_types::SampleKey) alone, so requests carry both the key and the object.
//! * *A disk cache*: `lookup` consults an index in memory, `read` does aligned I/O through [`Buffers`], `reserve` and
//!   `store` are separate so that a full write-behind queue is found out before any byte is copied.
//!
//! The price of a future a read is one boxed future for the layers and one for the backend; a busy consumer is woken
//! rarely, because backends call the wakers of several answers one after the other.

mod backend;
mod budget;
mod buffers;
mod cache;
mod error;
mod path;
mod peers;
mod recycled;
mod request;
mod sample;
mod tier;

pub use backend::{Backend, Context, OpenOptions};
pub use budget::{Budget, Charge};
pub use buffers::{Buffer, Buffers, HeapBuffers};
pub use cache::{CacheTier, Lookup};
pub use error::{BoxError, ErrorKind, TierError};
pub use path::check_path;
pub use peers::{Asked, Peers, Serve, Served, Serving};
pub use recycled::RecycledBuffers;
pub use request::{Block, Change, Object, ReadRequest, Span, Version, unix_nanoseconds};
pub use sample::{Sample, SampleTag};
pub use tier::{OriginTier, ReadFuture, Tier, TierProfile};
