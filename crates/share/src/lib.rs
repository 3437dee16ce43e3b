//! One engine for all processes of a node: samples by id over a Unix socket, their bytes through
//! shared memory.
//!
//! Worker processes (such as those of PyTorch's `DataLoader`) would each open a cache and read the
//! origin. Instead the main process has a [`Server`], which serves the samples of its engine
//! ([`SampleProvider`]), and each worker a [`Client`].
//!
//! # How it works
//!
//! * The server listens on a name in Linux's abstract socket namespace, so no file remains. It
//!   admits only processes of the same user whose first message has the 128-bit secret of the
//!   server's [address](Server::address).
//! * Each client maps the server's memory for reading. The memory is sealed: neither end can shrink
//!   it, and only the server writes. A sample is copied into that memory once, and the answer has
//!   its offset.
//! * Which parts of the memory are in use is known to the server alone. A client can read other
//!   clients' samples, and can corrupt nothing.
//! * A client releases its samples. When a client ends in any way, its samples are released.
//! * While the memory is full, answers wait for room, in turn among clients, as long as slots are
//!   released. Otherwise the bytes go through the socket, as do samples larger than the memory. So
//!   no client can block another.
//!
//! # Decisions and price
//!
//! * *One thread serves all clients, and answers may come from any thread.* [`SampleProvider::get`]
//!   only starts reads, so a slow sample delays no other. The answering thread makes the copy. The
//!   price is a wake-up of the serving thread per answer (fewer under load). A very large copy for
//!   one client delays the others.
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
//! use foreread_share::{SampleRequest, WorkerCall, Client, SampleProvider, Server, ServerSettings};
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
//! let server = Server::start(Arc::new(Numbers), ServerSettings::default())?;
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
mod client;
mod connection;
mod error;
mod extents;
mod log_limit;
mod mapping;
mod memory;
mod peer_process;
mod requests;
mod server;
mod server_loop;
mod shared_sample;
mod socket;
mod wire;
mod worker_connection;

pub use client::Client;
pub use error::{ShareError, ShareErrorKind};
pub use requests::{SampleProvider, SampleRequest, WorkerCall};
pub use server::{Server, ServerSettings, ServerStatus};
pub use shared_sample::SharedBytes;
