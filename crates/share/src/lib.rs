//! One engine for all processes of a node: samples by id over a Unix socket, their bytes through shared memory.
//!
//! Worker processes (those of PyTorch's `DataLoader`, say) would each open a cache and read the origin for themselves.
//! Instead the main process has a [`Server`], which serves what its engine ([`Samples`]) delivers, and each worker a
//! [`Client`].
//!
//! # How it works
//!
//! * The server listens on a socket whose name lies in Linux's abstract namespace: nothing is left on any disk, however
//!   the process ends. Only processes of the same user are let in, and only those whose first message has the 128 random
//!   bits that the main process's [address](Server::address) gives its workers.
//! * Each client gets a descriptor of the server's memory (sealed: neither end can shrink it, and only the server
//!   writes) and maps it for reading. A sample is copied into that memory once; the answer says where.
//! * Which parts of the memory are taken is known in the server's own memory alone. A client can read what is not meant
//!   for it, and can corrupt nothing.
//! * A client says when it lets go of a sample. One that ends, however it ends, gives back all it held.
//! * Where the memory is full, answers wait for room, in order and in turn among clients, as long as room comes free.
//!   Where it does not, and where a sample is larger than the memory, the bytes go through the socket: what clients
//!   hold never stops anybody.
//!
//! # Decisions, and their price
//!
//! * *One thread serves all clients, and answers may come from any thread*: [`Samples::get`] only starts reads, so a slow
//!   sample holds back itself alone. Whoever answers copies. The price is a wake-up of the serving thread an answer
//!   (fewer under load), and that a very large copy for one client delays the others by its length.
//! * *The client has no thread and no runtime*: it lives in processes that have just been forked. One of the threads that
//!   wait reads the socket for all. The price is that what a client lets go is told with its next request, or when
//!   enough has come together.
//! * *Either end notices the other's death by its process* and not by the socket alone: processes that were forked at the
//!   wrong time hold copies of sockets and keep them open. Where the kernel gives no descriptor of the process, the server
//!   looks once a second.
//! * *Messages, not a stream* (`SOCK_SEQPACKET`): no frame is ever half there, and threads need not take turns to write.
//!   The price is that this works on Linux alone; elsewhere the crate is empty.
//!
//! ```no_run
//! # #[cfg(target_os = "linux")] {
//! use std::sync::Arc;
//! use foreread_share::{Ask, Call, Client, Samples, Server, Settings};
//! use foreread_types::SampleId;
//!
//! struct Numbers;
//! impl Samples for Numbers {
//!     fn get(&self, asks: Vec<Ask>) {
//!         for ask in asks {
//!             let text = ask.id().to_string();
//!             ask.answer(Ok(text.into()));
//!         }
//!     }
//!     fn call(&self, call: Call) {
//!         let payload = call.payload().clone();
//!         call.answer(Ok(payload));
//!     }
//! }
//!
//! let server = Server::start(Arc::new(Numbers), Settings::default())?;
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
pub use requests::{Ask, Call, Samples};
pub use server::{Server, ServerStatus, Settings};
pub use shared_sample::Held;
