//! The server's handle: start, address, status, drop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crate::address::Address;
use crate::answer_queue::AnswerQueue;
use crate::memory::SharedMemory;
use crate::requests::SampleProvider;
use crate::server_loop::ServerLoop;
use crate::{ShareError, socket};

/// The settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerSettings {
    /// The maximum size of the shared memory. Physical memory is allocated on first use.
    /// Samples that workers hold at one time should fit. Others go through the socket, which
    /// costs another copy. 256 MiB by default.
    pub shared_bytes: u64,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self { shared_bytes: 256 << 20 }
    }
}

impl ServerSettings {
    /// Sets the size of the shared memory in bytes.
    #[must_use]
    pub fn with_shared_bytes(mut self, bytes: u64) -> Self {
        self.shared_bytes = bytes;
        self
    }
}

/// The status of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// Connected workers.
    pub clients: u64,
    /// The size of the shared memory in bytes.
    pub shared_bytes: u64,
    /// Bytes in use: held by workers, or on their way to them.
    pub used_bytes: u64,
    /// Samples since the start that went through the socket because the shared memory was full.
    pub over_the_socket: u64,
}

/// Serves the samples of this process's engine to worker processes of the same user.
///
/// Dropping it ends its thread, its sockets and its shared memory. Samples that workers hold
/// stay valid until they release them. Requests of workers then fail at once. A forked child may
/// drop it too, which does nothing.
#[derive(Debug)]
pub struct Server {
    address: Address,
    queue: Arc<AnswerQueue>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Server {
    /// Serves `samples` on a new thread.
    ///
    /// # Errors
    /// If the system has no memory, no descriptors or no thread.
    pub fn start(samples: Arc<dyn SampleProvider>, settings: ServerSettings) -> Result<Self, ShareError> {
        let failed = "cannot create a socket for workers";
        let wrong = |error| ShareError::system(failed, error);
        let queue = Arc::new(AnswerQueue::new(SharedMemory::new(settings.shared_bytes)?)?);
        let address = Address::new().map_err(|error| ShareError::system(failed, error))?;
        let listener = socket::listen(&address.socket().map_err(wrong)?).map_err(wrong)?;
        let mut server_loop = ServerLoop::new(samples, Arc::clone(&queue), listener, address.secret)?;
        let thread = std::thread::Builder::new()
            .name("foreread-share".to_owned())
            .spawn(move || server_loop.run())
            .map_err(|error| ShareError::system("cannot create the server thread", error))?;
        Ok(Self { address, queue, thread: Some(thread), process: std::process::id() })
    }

    /// The address for workers ([`Client::connect`](crate::Client::connect)), including the secret.
    /// Pass it by the environment or a pipe, because every user can read a process's arguments.
    pub fn address(&self) -> String {
        self.address.text()
    }

    /// The current status.
    pub fn status(&self) -> ServerStatus {
        let memory = &self.queue.memory;
        ServerStatus {
            clients: self.queue.clients.load(Ordering::Relaxed),
            shared_bytes: memory.length() as u64,
            used_bytes: (memory.length() - memory.free_bytes()) as u64,
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
