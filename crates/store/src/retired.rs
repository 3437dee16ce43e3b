//! Clients whose connection the server has ended, and which may still read samples.
//!
//! A sample that a client holds stays valid, also when the server ends. So its lease lasts until
//! the client has closed its own end, which it does after its last sample, or has exited. A server
//! that ended leaves a thread that waits for that. If the process itself ends, the kernel keeps the
//! memory as long as a client maps it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::leases::Lease;
use crate::peer_process::PeerProcess;

/// How often the end of clients is looked for after the server's.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A client without a connection.
#[derive(Debug)]
pub(crate) struct RetiredClient {
    socket: OwnedFd,
    process: PeerProcess,
    leases: Vec<Lease>,
}

impl RetiredClient {
    pub(crate) fn new(socket: OwnedFd, process: PeerProcess, leases: Vec<Lease>) -> Self {
        Self { socket, process, leases }
    }

    pub(crate) fn holds_samples(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Whether the client may still read its samples.
    pub(crate) fn is_reading(&self) -> bool {
        let mut watched = [PollFd::new(&self.socket, PollFlags::empty())];
        let polled = poll(&mut watched, Some(&Timespec::default()));
        let has_closed = polled.is_ok() && watched[0].revents().contains(PollFlags::HUP);
        !has_closed && !self.process.has_exited()
    }
}

/// Keeps the samples of these clients until none reads them.
pub(crate) fn keep_until_unread(mut clients: Vec<RetiredClient>) {
    clients.retain(RetiredClient::is_reading);
    if clients.is_empty() {
        return;
    }
    let wait = move || {
        while !clients.is_empty() {
            std::thread::sleep(POLL_INTERVAL);
            clients.retain(RetiredClient::is_reading);
        }
    };
    // Without a thread the memory is lost to this process, and stays right for the clients.
    let thread = std::thread::Builder::new().name("foreread-leases".to_owned());
    if let Err(error) = thread.spawn(wait) {
        tracing::warn!(%error, "samples that other processes hold stay in memory");
    }
}
