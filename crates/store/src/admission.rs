//! Connections that are not authenticated yet, and the log of refused ones.
//!
//! A connection is authenticated by its user id and by the secret in its first message. Until then
//! it holds one descriptor. Their number is bounded, and a new connection evicts the oldest. So
//! silent connections cannot lock out workers. The price: a worker that is stopped between its two
//! system calls while hundreds of others connect has to reconnect.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::{Address, Secret};
use crate::log_limit::LogLimit;
use crate::{socket, wire};

/// The maximum number of unauthenticated connections.
pub(crate) const MAX_PENDING: usize = 256;

#[derive(Debug)]
struct PendingAuth {
    key: u64,
    socket: OwnedFd,
    process: i32,
}

#[derive(Debug)]
pub(crate) struct Admission {
    secret: Secret,
    user: u32,
    /// Whether the kernel lets only processes with authority connect: a socket in a private
    /// directory. In other user namespaces their user ids are other numbers.
    is_private: bool,
    pending: VecDeque<PendingAuth>,
    refused: LogLimit,
    /// Why the last connection was refused.
    why: String,
    shortages: LogLimit,
}

impl Admission {
    pub(crate) fn new(address: &Address) -> Self {
        Self {
            secret: address.secret,
            user: socket::own_user(),
            is_private: address.path().is_some(),
            pending: VecDeque::new(),
            refused: LogLimit::default(),
            why: String::new(),
            shortages: LogLimit::default(),
        }
    }

    /// Whether a connection must be evicted before another is added.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// The oldest connection.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.pending.front().map(|oldest| oldest.key)
    }

    /// Whether `key` is an unauthenticated connection.
    pub(crate) fn has(&self, key: u64) -> bool {
        self.pending.iter().any(|one| one.key == key)
    }

    /// Adds a new connection. One of another user is refused at once.
    pub(crate) fn add(&mut self, key: u64, socket: OwnedFd, watch: &OwnedFd) {
        let failed = |error: Errno| format!("its connection failed: {error}");
        let other = match socket::peer_credentials(&socket) {
            Ok(other) => other,
            Err(error) => return self.note_refused(&failed(error)),
        };
        if !self.is_private && !socket::is_same_user(other, self.user) {
            let (theirs, own) = (other.user, self.user);
            let why = format!("it belongs to user {theirs}, and this data source serves only user {own}");
            return self.refuse(&socket, &why);
        }
        match epoll::add(watch, &socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN) {
            Ok(()) => self.pending.push_back(PendingAuth { key, socket, process: other.process }),
            Err(error) => self.note_refused(&failed(error)),
        }
    }

    /// Returns the socket, process and protocol version of a connection whose greeting is correct.
    /// A closed connection or a wrong greeting ends it.
    pub(crate) fn authenticate(
        &mut self,
        key: u64,
        buffer: &mut [u8],
        watch: &OwnedFd,
    ) -> Option<(OwnedFd, i32, u16)> {
        let at = self.pending.iter().position(|one| one.key == key)?;
        let received = socket::receive_message(&self.pending[at].socket, buffer);
        if matches!(received, Err(Errno::AGAIN | Errno::INTR)) {
            return None;
        }
        let PendingAuth { socket, process, .. } = self.pending.remove(at)?;
        // Explicitly, because a forked child may keep the socket and its watch alive.
        let _ = epoll::delete(watch, &socket);
        let message = received.ok().filter(|length| *length > 0)?;
        let message = buffer.get(..message).unwrap_or_default();
        let why = match wire::parse_greeting(message) {
            Ok(greeting) if !self.secret.matches(&greeting.secret) => {
                "it does not have the secret of this data source's address".to_owned()
            }
            Ok(greeting) => match greeting.common_version() {
                Some(version) => return Some((socket, process, version)),
                None => {
                    let ((least, greatest), own) = (greeting.versions, wire::VERSIONS);
                    format!(
                        "it understands versions {least} to {greatest} of the protocol, and this end {} to \
                         {}: install the same version of foreread at both",
                        own.start(),
                        own.end()
                    )
                }
            },
            Err(wire::MalformedMessage) => {
                "its first message is not a greeting of this version of foreread".to_owned()
            }
        };
        self.refuse(&socket, &why);
        None
    }

    /// Closes a connection without a greeting.
    pub(crate) fn evict(&mut self, key: u64, watch: &OwnedFd) {
        let Some(at) = self.pending.iter().position(|one| one.key == key) else { return };
        if let Some(one) = self.pending.remove(at) {
            end(&one.socket, watch);
            self.note_refused("it connected and sent no greeting");
        }
    }

    /// Closes all connections.
    pub(crate) fn close(&mut self, watch: &OwnedFd) {
        self.pending.drain(..).for_each(|one| end(&one.socket, watch));
    }

    /// Sends the reason for a refusal and logs it.
    pub(crate) fn refuse(&mut self, socket: &OwnedFd, why: &str) {
        // The result does not matter: a peer that does not read needs no reason.
        let _ = socket::send_message(socket, &wire::refused(why));
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        self.note_refused(why);
    }

    /// Logs a refused connection, once a minute.
    pub(crate) fn note_refused(&mut self, why: &str) {
        why.clone_into(&mut self.why);
        let count = self.refused.note(Instant::now());
        self.log_refused(count);
    }

    /// Logs that no connection can be accepted, once a minute.
    pub(crate) fn note_shortage(&mut self, error: Errno) {
        if let Some(count) = self.shortages.note(Instant::now()) {
            tracing::warn!(
                %error,
                count,
                "no descriptor for new workers: raise the limit of open files (ulimit -n)"
            );
        }
    }

    /// Writes due log lines.
    pub(crate) fn log(&mut self) {
        let count = self.refused.due(Instant::now());
        self.log_refused(count);
    }

    fn log_refused(&self, count: Option<u64>) {
        if let Some(count) = count {
            tracing::warn!(
                count,
                why = self.why,
                "refused connections to the data source, the last one for this reason"
            );
        }
    }

    /// When the next log line is due.
    pub(crate) fn next_log(&self) -> Option<Instant> {
        self.refused.due_at()
    }
}

/// Shuts a connection down, even if a forked child keeps its socket open.
fn end(socket: &OwnedFd, watch: &OwnedFd) {
    let _ = epoll::delete(watch, socket);
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}
