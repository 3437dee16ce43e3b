//! The contract between the engine and every place that samples can be read from.
//!
//! A *tier* answers batches of reads. The answers come back one by one and in any order ([`Completions`]), so a slow
//! read holds back only itself, and retrying, limiting or hedging can be a layer around any tier instead of code in
//! each. A tier that keeps samples ([`CacheTier`]) also answers *lookups* synchronously: memory says
//! [`Lookup::Ready`] at once, a disk says [`Lookup::Stored`] and is then read like an origin. An origin
//! ([`OriginTier`]) can list what it holds, and a [`Backend`] opens one from a URL.
//!
//! Memory is counted where it is held: a [`Charge`] on a [`Budget`] rides inside a [`Sample`] and ends with the
//! sample's last handle, wherever that is (the trainer's, usually).
//!
//! # What the contract was tried against
//!
//! * *S3*: a batch becomes as many GETs as the limit allows; `Whole` is one GET without a HEAD; the version goes into
//!   `If-Match`; a 503 is [`ErrorKind::Throttled`] with `retry_after`. Nothing in the contract is a file.
//! * *A peer*: a batch is one framed request, its answers stream back as they are found; a peer knows samples by
//!   [`SampleKey`](foreread_types::SampleKey) alone, so requests carry both the key and the object.
//! * *A disk cache*: `lookup` consults an index in memory, `read` does aligned I/O through [`Buffers`], `reserve` and
//!   `store` are separate so that a full write-behind queue is found out before any byte is copied.
//!
//! The price of streams of completions is one boxed stream a batch and a wake-up per answer at worst; batches make
//! the first cheap, and a busy consumer makes the second rare.

mod backend;
mod budget;
mod buffers;
mod cache;
mod error;
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
pub use peers::{Asked, Peers, Serve, Served, Serving};
pub use recycled::RecycledBuffers;
pub use request::{Change, Completion, Completions, Object, ReadRequest, Span, Version};
pub use sample::{Sample, SampleTag};
pub use tier::{OriginTier, Tier, TierProfile};
