//! Connections that have not sent their greeting yet, and the log of those that were refused.
//!
//! A connection is a worker's when its user is the server's and its oldest message has the server's secret. Until then it
//! holds a descriptor and nothing else, and there are few of them: a new one takes the place of the oldest. So processes
//! that connect and send nothing keep no worker out. The price is that a worker which is stopped between its two system
//! calls while hundreds of others connect has to connect again.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::Secret;
use crate::log_limit::LogLimit;
use crate::{socket, wire};

/// Connections that may wait for their greeting.
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
    pending: VecDeque<PendingAuth>,
    refused: LogLimit,
    /// Why the last one was refused.
    why: String,
    shortages: LogLimit,
}

impl Admission {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            secret,
            user: socket::own_user(),
            pending: VecDeque::new(),
            refused: LogLimit::default(),
            why: String::new(),
            shortages: LogLimit::default(),
        }
    }

    /// Whether one has to leave before another may add.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// The one that waits longest.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.pending.front().map(|oldest| oldest.key)
    }

    /// Whether `key` waits here.
    pub(crate) fn has(&self, key: u64) -> bool {
        self.pending.iter().any(|one| one.key == key)
    }

    /// Begins to wait for the greeting of a new connection. One of another user is refused at once.
    pub(crate) fn add(&mut self, key: u64, socket: OwnedFd, watch: &OwnedFd) {
        let failed = |error: Errno| format!("its connection failed: {error}");
        let other = match socket::peer_credentials(&socket) {
            Ok(other) => other,
            Err(error) => return self.note_refused(&failed(error)),
        };
        if !socket::is_same_user(other, self.user) {
            let (theirs, own) = (other.user, self.user);
            let why = format!("it is of user {theirs}, and this data source serves user {own} alone");
            return self.refuse(&socket, &why);
        }
        match epoll::add(watch, &socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN) {
            Ok(()) => self.pending.push_back(PendingAuth { key, socket, process: other.process }),
            Err(error) => self.note_refused(&failed(error)),
        }
    }

    /// The socket and process of a connection whose greeting has come and is right. One that sent something else, or has
    /// gone, waits no longer.
    pub(crate) fn authenticate(
        &mut self,
        key: u64,
        buffer: &mut [u8],
        watch: &OwnedFd,
    ) -> Option<(OwnedFd, i32)> {
        let at = self.pending.iter().position(|one| one.key == key)?;
        let received = socket::receive_message(&self.pending[at].socket, buffer);
        if matches!(received, Err(Errno::AGAIN | Errno::INTR)) {
            return None;
        }
        let PendingAuth { socket, process, .. } = self.pending.remove(at)?;
        // By name: a forked child may keep the socket open, and with it the watching.
        let _ = epoll::delete(watch, &socket);
        let message = received.ok().filter(|length| *length > 0)?;
        let message = buffer.get(..message).unwrap_or_default();
        match wire::parse_greeting(message) {
            Ok(secret) if self.secret.matches(&secret) => Some((socket, process)),
            Ok(_) => {
                self.refuse(&socket, "it does not have the secret of this data source's address");
                None
            }
            Err(wire::MalformedMessage) => {
                self.refuse(&socket, "its oldest message is no greeting of this version of foreread");
                None
            }
        }
    }

    /// Ends a connection whose greeting has not come.
    pub(crate) fn evict(&mut self, key: u64, watch: &OwnedFd) {
        let Some(at) = self.pending.iter().position(|one| one.key == key) else { return };
        if let Some(one) = self.pending.remove(at) {
            end(&one.socket, watch);
            self.note_refused("it connected and sent no greeting");
        }
    }

    /// Ends all that wait.
    pub(crate) fn close(&mut self, watch: &OwnedFd) {
        self.pending.drain(..).for_each(|one| end(&one.socket, watch));
    }

    /// Sends a connection the reason why it is refused, and logs it.
    pub(crate) fn refuse(&mut self, socket: &OwnedFd, why: &str) {
        // One that does not listen does not need the reason.
        let _ = socket::send_message(socket, &wire::refused(why));
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        self.note_refused(why);
    }

    /// Logs that a connection was refused, once a minute.
    pub(crate) fn note_refused(&mut self, why: &str) {
        why.clone_into(&mut self.why);
        let count = self.refused.note(Instant::now());
        self.log_refused(count);
    }

    /// Logs that no connection can be accepted, once a minute.
    pub(crate) fn note_shortage(&mut self, error: Errno) {
        if let Some(count) = self.shortages.note(Instant::now()) {
            tracing::warn!(%error, count, "workers have to wait for a connection: raise the limit of open files (ulimit -n)");
        }
    }

    /// Logs what is due.
    pub(crate) fn log(&mut self) {
        let count = self.refused.due(Instant::now());
        self.log_refused(count);
    }

    fn log_refused(&self, count: Option<u64>) {
        if let Some(count) = count {
            tracing::warn!(
                count,
                why = self.why,
                "connections to the data source were refused, the last for this reason"
            );
        }
    }

    /// When something is to be logged.
    pub(crate) fn next_log(&self) -> Option<Instant> {
        self.refused.due_at()
    }
}

/// Ends a connection also where a forked child keeps its socket open.
fn end(socket: &OwnedFd, watch: &OwnedFd) {
    let _ = epoll::delete(watch, socket);
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}
