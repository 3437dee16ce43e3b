//! The server's outside: started, asked where it is, dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crate::address::Address;
use crate::answer_queue::AnswerQueue;
use crate::memory::SharedMemory;
use crate::requests::Samples;
use crate::server_loop::ServerLoop;
use crate::{ShareError, socket};

/// What a server may use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Bytes of shared memory at most; they are made real as they are first used. What workers hold at one time should
    /// fit: what does not goes through the socket, which takes another copy. 256 MiB by default.
    pub shared_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { shared_bytes: 256 << 20 }
    }
}

impl Settings {
    /// The same with `bytes` of shared memory.
    #[must_use]
    pub fn with_shared_bytes(mut self, bytes: u64) -> Self {
        self.shared_bytes = bytes;
        self
    }
}

/// How a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// Workers that are connected.
    pub clients: u64,
    /// Bytes of shared memory.
    pub shared_bytes: u64,
    /// Bytes of it that are in use: held by workers, or on their way to them.
    pub used_bytes: u64,
    /// Samples whose bytes went through the socket for want of room, since the start.
    pub over_the_socket: u64,
}

/// Serves the samples of this process's engine to worker processes of the same user.
///
/// Dropping it ends everything: its thread, its sockets, and its shared memory, but for what workers still hold, which
/// stays right until they let go. Requests of workers then fail at once. A child that was forked from this process may
/// drop it too; that does nothing.
#[derive(Debug)]
pub struct Server {
    address: Address,
    queue: Arc<AnswerQueue>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Server {
    /// Serves `samples`, from a thread of its own.
    ///
    /// # Errors
    /// Where the system has no memory, no descriptors or no thread for it.
    pub fn start(samples: Arc<dyn Samples>, settings: Settings) -> Result<Self, ShareError> {
        let failed = "no socket to serve workers from";
        let wrong = |error| ShareError::system(failed, error);
        let queue = Arc::new(AnswerQueue::new(SharedMemory::new(settings.shared_bytes)?)?);
        let address = Address::new().map_err(|error| ShareError::system(failed, error))?;
        let listener = socket::listen(&address.socket().map_err(wrong)?).map_err(wrong)?;
        let mut server_loop = ServerLoop::new(samples, Arc::clone(&queue), listener, address.secret)?;
        let thread = std::thread::Builder::new()
            .name("foreread-share".to_owned())
            .spawn(move || server_loop.run())
            .map_err(|error| ShareError::system("no thread to serve workers from", error))?;
        Ok(Self { address, queue, thread: Some(thread), process: std::process::id() })
    }

    /// Where workers find it ([`Client::connect`](crate::Client::connect)), with the secret that lets them in: pass it by the
    /// environment or a pipe, because every user can read a process's arguments.
    pub fn address(&self) -> String {
        self.address.text()
    }

    /// How it does.
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
            // There is no such thread in a forked child: not even letting it go is safe.
            std::mem::forget(thread);
            return;
        }
        self.queue.stop();
        // The engine may hold the server and be let go by the server's own thread.
        if thread.thread().id() != std::thread::current().id() {
            // A panic was told already when it happened.
            let _ = thread.join();
        }
    }
}
