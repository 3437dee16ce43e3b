//! The server's handle: start, address, status, drop.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use foreread_tier::Buffers;

use crate::address::Address;
use crate::answer_queue::AnswerQueue;
use crate::leases::Leases;
use crate::requests::SampleProvider;
use crate::server_loop::ServerLoop;
use crate::{StoreError, socket};

/// The settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerSettings {
    /// The most bytes of samples that all clients together may hold in shared memory. Further ones
    /// go through the socket, which costs a copy. 256 MiB by default.
    pub shared_bytes: u64,
    /// The most samples that one client may have requested and not received. Further requests wait
    /// for these. 256 by default.
    pub max_in_flight: usize,
    /// The most bytes whose release a client reports later, with its next request. At most a 256th
    /// of the shared bytes. 512 KiB by default.
    pub late_release_bytes: u64,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self { shared_bytes: 256 << 20, max_in_flight: 256, late_release_bytes: 512 << 10 }
    }
}

impl ServerSettings {
    /// Sets the most bytes that clients may hold in shared memory.
    #[must_use]
    pub fn with_shared_bytes(mut self, bytes: u64) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Sets the most samples that one client may have requested and not received.
    #[must_use]
    pub fn with_max_in_flight(mut self, samples: usize) -> Self {
        self.max_in_flight = samples;
        self
    }
}

/// The status of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// Connected clients.
    pub clients: u64,
    /// The most bytes that clients may hold in shared memory.
    pub shared_bytes: u64,
    /// Bytes that clients hold in shared memory, or that are on their way to them.
    pub used_bytes: u64,
    /// Samples of more than 8 KiB since the start that went through the socket, because clients
    /// held too much.
    pub over_the_socket: u64,
}

/// Serves the samples of this process's engine to other processes of the same user.
///
/// Dropping it ends its thread and its sockets. Samples that clients hold stay valid until they
/// release them. Requests of clients then fail at once. A forked child may drop it too, which does
/// nothing.
#[derive(Debug)]
pub struct Server {
    address: Address,
    queue: Arc<AnswerQueue>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Server {
    /// Serves `samples` on a new thread, at an address of its own. Samples in memory of `buffers`,
    /// which is [shared](Buffers::share) from now on, are not copied.
    ///
    /// # Errors
    /// If the system has no memory, no descriptors or no thread.
    pub fn start(
        samples: Arc<dyn SampleProvider>,
        buffers: Arc<dyn Buffers>,
        settings: ServerSettings,
    ) -> Result<Self, StoreError> {
        let failed = "cannot create a socket for workers";
        let wrong = |error| StoreError::system(failed, error);
        let address = Address::new().map_err(|error| StoreError::system(failed, error))?;
        let listener = socket::listen(&address.socket().map_err(wrong)?).map_err(wrong)?;
        Self::serve(samples, buffers, settings, address, listener)
    }

    /// The same at a socket with the path `path`, for every process that can open it. Its directory
    /// must be the user's alone, and no other server may use it. The socket stays when the server
    /// ends.
    ///
    /// # Errors
    /// As [`start`](Self::start), and if the path is longer than 107 bytes or in use.
    pub fn start_at(
        path: &Path,
        samples: Arc<dyn SampleProvider>,
        buffers: Arc<dyn Buffers>,
        settings: ServerSettings,
    ) -> Result<Self, StoreError> {
        let wrong = |error| StoreError::system(format!("cannot create the socket {}", path.display()), error);
        let address = Address::at(path);
        let listener = socket::listen(&address.socket().map_err(wrong)?).map_err(wrong)?;
        Self::serve(samples, buffers, settings, address, listener)
    }

    fn serve(
        samples: Arc<dyn SampleProvider>,
        buffers: Arc<dyn Buffers>,
        settings: ServerSettings,
        address: Address,
        listener: OwnedFd,
    ) -> Result<Self, StoreError> {
        let queue = Arc::new(AnswerQueue::new(Leases::new(buffers, settings.shared_bytes))?);
        let mut server_loop = ServerLoop::new(samples, Arc::clone(&queue), listener, &address, settings)?;
        let thread = std::thread::Builder::new()
            .name("foreread-store".to_owned())
            .spawn(move || server_loop.run())
            .map_err(|error| StoreError::system("cannot create the server thread", error))?;
        Ok(Self { address, queue, thread: Some(thread), process: std::process::id() })
    }

    /// The address for workers ([`Client::connect`](crate::Client::connect)), including the secret.
    /// Pass it by the environment or a pipe, because every user can read a process's arguments.
    pub fn address(&self) -> String {
        self.address.text()
    }

    /// Whether its thread has ended, after a failure.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The current status.
    pub fn status(&self) -> ServerStatus {
        ServerStatus {
            clients: self.queue.clients.load(Ordering::Relaxed),
            shared_bytes: self.queue.leases.limit(),
            used_bytes: self.queue.leases.bytes(),
            over_the_socket: self.queue.over_the_socket.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // A forked child has no such thread, and even detaching it is unsafe.
            std::mem::forget(thread);
            return;
        }
        self.queue.stop();
        // The engine may own the server and be dropped on the server's own thread.
        if thread.thread().id() != std::thread::current().id() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
