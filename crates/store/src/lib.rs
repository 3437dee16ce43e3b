//! The node's store: samples by id over a Unix socket, their bytes in memory that processes share.
//!
//! Worker processes (such as those of PyTorch's `DataLoader`) would each open a cache and read the
//! origin. Instead one process has a [`Server`], which serves the samples of its engine
//! ([`SampleProvider`]), and every other process a [`Client`].
//!
//! # How it works
//!
//! * A server for the workers of one job listens on a name in Linux's abstract socket namespace, so
//!   no file remains. It admits only processes of the same user whose first message has the 128-bit
//!   secret of the server's [address](Server::address). A server for all jobs of a user listens at
//!   a path in a private directory.
//! * The engine's samples lie in regions of memory that other processes can map
//!   ([`Buffers::share`](foreread_tier::Buffers::share)). A client gets a region's descriptor with
//!   the first sample in it, and maps it for reading. The answer to a request has the sample's
//!   region and offset. So a sample is never copied.
//! * The server holds a handle on each sample until the client releases it, or ends in any way. So
//!   the memory is not reused, and counts in the engine's budget.
//! * Samples of all clients together are limited to [a number of
//!   bytes](ServerSettings::shared_bytes). Beyond that the bytes go through the socket, as do
//!   samples of at most 8 KiB in private memory. So no client can block another.
//!
//! # Decisions and price
//!
//! * *One thread serves all clients, and answers may come from any thread.* [`SampleProvider::get`]
//!   only starts reads, so a slow sample delays no other. The price is a wake-up of the serving
//!   thread per answer (fewer under load).
//! * *The client has no thread and no runtime*, because it is used in processes that were just
//!   forked. One of the waiting threads reads the socket for all. The price: a release is sent with
//!   the next request, or when enough have accumulated.
//! * *Each end watches the other's process*, not only the socket, because forked processes may hold
//!   copies of sockets and keep them open. Where the kernel provides no pidfd, the server polls
//!   once a second.
//! * *Messages, not a stream* (`SOCK_SEQPACKET`): frames are never partial, and threads can write
//!   without a lock. The price is that it works only on Linux. Elsewhere the crate is empty.
//!
//! ```no_run
//! # #[cfg(target_os = "linux")] {
//! use std::sync::Arc;
//! use foreread_store::{SampleRequest, WorkerCall, Client, SampleProvider, Server, ServerSettings};
//! use foreread_tier::ArenaBuffers;
//! use foreread_types::SampleId;
//!
//! struct Numbers;
//! impl SampleProvider for Numbers {
//!     fn get(&self, requests: Vec<SampleRequest>) {
//!         for request in requests {
//!             let text = request.id().to_string();
//!             request.answer(Ok(text.into()));
//!         }
//!     }
//!     fn call(&self, call: WorkerCall) {
//!         let payload = call.payload().clone();
//!         call.answer(Ok(payload));
//!     }
//! }
//!
//! let buffers = Arc::new(ArenaBuffers::default());
//! let server = Server::start(Arc::new(Numbers), buffers, ServerSettings::default())?;
//! // In a worker:
//! let client = Client::connect(&server.address())?;
//! let samples = client.get(&[SampleId(7)]);
//! assert_eq!(samples[0].as_ref().unwrap().as_ref(), b"7");
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg(target_os = "linux")]

mod address;
mod admission;
mod answer_queue;
pub mod attach;
mod client;
mod connection;
mod error;
mod host;
mod jobs;
mod leases;
mod log_limit;
mod mapping;
mod peer_process;
mod requests;
mod retired;
mod server;
mod server_loop;
mod shared_sample;
mod socket;
mod wire;
mod worker_connection;

pub use client::{Client, Received, RequestStream};
pub use error::{StoreError, StoreErrorKind};
/// The room of a dataset, which is a part of the rule.
pub use foreread_planner::CacheBounds;
pub use host::{
    Answer, DatasetState, JobState, NodeStore, OriginLimits, OriginState, OriginUse, SampleBlock,
    SampleReader, StoreCounts, StoreJob, StoreRequest, StoreStatus,
};
pub use jobs::{LocalClient, StoreJobs};
pub use requests::{ConnectionId, SampleProvider, SampleRequest, WorkerCall};
pub use server::{Server, ServerSettings, ServerStatus};
pub use shared_sample::SharedBytes;
