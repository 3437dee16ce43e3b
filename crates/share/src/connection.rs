//! The server's side of one worker's connection: its requests, its leased slots and its unsent
//! answers.
//!
//! Everything that a worker can make the server keep is bounded here. A worker that exceeds a bound
//! is disconnected ([`ProtocolViolation`]). Correct workers never reach the bounds.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::Bytes;
use foreread_tier::TierError;
use foreread_types::SampleId;
use rustix::io::Errno;

use crate::memory::SharedSlot;
use crate::peer_process::PeerProcess;
use crate::socket;
use crate::wire::{self, MAX_ANSWER, MAX_MESSAGE, RecordReader, WorkerRecord};

/// Samples of one worker that are being read or wait for room. Further requests wait for these.
pub(crate) const MAX_IN_FLIGHT: usize = 256;
/// Requests for samples that one worker may have open.
const MAX_REQUESTED: usize = 4096;
/// Calls that one worker may have open.
pub(crate) const MAX_CALLS: usize = 64;
/// Unread bytes of answers that one worker may have, without samples.
const MAX_UNREAD: usize = 4 << 20;
/// Messages received or sent per turn, so that every worker gets a turn.
const MESSAGES_PER_TURN: usize = 16;
/// Requests passed to the engine per turn.
const REQUESTS_PER_TURN: usize = 32;

/// A correct worker never does this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation(pub(crate) &'static str);

/// The progress on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoStatus {
    /// Nothing more for now.
    Done,
    /// There may be more.
    More,
    /// The worker has disconnected.
    Closed,
}

/// A sample that waits for room.
#[derive(Debug)]
pub(crate) struct QueuedSample {
    pub(crate) tag: u32,
    pub(crate) bytes: Bytes,
    pub(crate) since: Instant,
}

/// An answer that is sent through the socket in parts.
#[derive(Debug)]
struct PartialAnswer {
    tag: u32,
    bytes: Bytes,
    at: usize,
    of_sample: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) process: PeerProcess,
    /// Set to false when the worker has left, so that open requests can be skipped.
    pub(crate) wanted: Arc<AtomicBool>,
    requested: VecDeque<(u32, SampleId)>,
    /// Samples at the engine, waiting for room, or on their way through the socket.
    in_flight: usize,
    calls: Vec<(u32, String, Bytes)>,
    calls_in_flight: usize,
    leases: Vec<Option<SharedSlot>>,
    free_slots: Vec<u32>,
    /// Bytes of shared memory that the worker holds.
    pub(crate) leased_bytes: usize,
    pub(crate) waiting: VecDeque<QueuedSample>,
    message: Vec<u8>,
    send_queue: VecDeque<Vec<u8>>,
    unread: usize,
    parts: VecDeque<PartialAnswer>,
    /// Whether the socket is watched for writability.
    pub(crate) watches_writable: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, process: PeerProcess) -> Self {
        Self {
            socket,
            process,
            wanted: Arc::new(AtomicBool::new(true)),
            requested: VecDeque::new(),
            in_flight: 0,
            calls: Vec::new(),
            calls_in_flight: 0,
            leases: Vec::new(),
            free_slots: Vec::new(),
            leased_bytes: 0,
            waiting: VecDeque::new(),
            message: Vec::new(),
            send_queue: VecDeque::new(),
            unread: 0,
            parts: VecDeque::new(),
            watches_writable: false,
        }
    }

    /// Receives messages. Sets `freed` if the worker released a slot.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        freed: &mut bool,
    ) -> Result<IoStatus, ProtocolViolation> {
        for _ in 0..MESSAGES_PER_TURN {
            match socket::receive_message(&self.socket, buffer) {
                Ok(0) => return Ok(IoStatus::Closed),
                Ok(length) => {
                    let message = buffer.get(..length).ok_or(ProtocolViolation("a message is too long"))?;
                    self.handle_message(message, freed)?;
                }
                Err(Errno::AGAIN) => return Ok(IoStatus::Done),
                Err(Errno::INTR) => {}
                Err(_) => return Ok(IoStatus::Closed),
            }
        }
        Ok(IoStatus::More)
    }

    fn handle_message(&mut self, message: &[u8], freed: &mut bool) -> Result<(), ProtocolViolation> {
        let mut records = RecordReader::of(message);
        while let Some(request) = records.request() {
            match request.map_err(|_| ProtocolViolation("malformed message"))? {
                WorkerRecord::Request { tag, id } => {
                    if self.requested.len() + self.in_flight >= MAX_REQUESTED {
                        return Err(ProtocolViolation("too many open requests for samples"));
                    }
                    self.requested.push_back((tag, id));
                }
                WorkerRecord::Release { slot } => {
                    let lease = self.leases.get_mut(slot as usize).and_then(Option::take);
                    let lease = lease.ok_or(ProtocolViolation("release of a slot that it does not hold"))?;
                    self.leased_bytes -= lease.taken;
                    self.free_slots.push(slot);
                    *freed = true;
                }
                WorkerRecord::Call { tag, name, payload } => {
                    if self.calls_in_flight >= MAX_CALLS {
                        return Err(ProtocolViolation("too many open calls"));
                    }
                    self.calls_in_flight += 1;
                    self.calls.push((tag, name.to_owned(), Bytes::copy_from_slice(payload)));
                }
            }
        }
        Ok(())
    }

    /// The next requests for the engine.
    pub(crate) fn take_requests(&mut self) -> Vec<(u32, SampleId)> {
        let count =
            MAX_IN_FLIGHT.saturating_sub(self.in_flight).min(REQUESTS_PER_TURN).min(self.requested.len());
        self.in_flight += count;
        self.requested.drain(..count).collect()
    }

    /// Whether [`take_requests`](Self::take_requests) returns anything.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requested.is_empty() && self.in_flight < MAX_IN_FLIGHT
    }

    /// The calls to pass on: tag, name, payload.
    pub(crate) fn calls(&mut self) -> Vec<(u32, String, Bytes)> {
        std::mem::take(&mut self.calls)
    }

    /// Leases a slot with its sample to the worker.
    pub(crate) fn lease(&mut self, tag: u32, slot: SharedSlot) -> Result<(), ProtocolViolation> {
        self.in_flight -= 1;
        self.leased_bytes += slot.taken;
        let number = self.free_slots.pop().unwrap_or_else(|| {
            self.leases.push(None);
            (self.leases.len() - 1) as u32
        });
        wire::leased(&mut self.message, tag, number, slot.offset as u64, slot.length as u64);
        self.leases[number as usize] = Some(slot);
        self.check_message()
    }

    /// Sends the sample through the socket.
    pub(crate) fn send_in_parts(&mut self, tag: u32, bytes: Bytes) {
        self.parts.push_back(PartialAnswer { tag, bytes, at: 0, of_sample: true });
    }

    /// Reports that a sample or a call failed.
    pub(crate) fn fail(
        &mut self,
        tag: u32,
        of_sample: bool,
        error: &TierError,
    ) -> Result<(), ProtocolViolation> {
        self.done(of_sample);
        wire::failed(&mut self.message, tag, error);
        self.check_message()
    }

    /// Sends the result of a call.
    pub(crate) fn reply(&mut self, tag: u32, bytes: Bytes) {
        self.parts.push_back(PartialAnswer { tag, bytes, at: 0, of_sample: false });
    }

    fn done(&mut self, of_sample: bool) {
        if of_sample {
            self.in_flight -= 1;
        } else {
            self.calls_in_flight -= 1;
        }
    }

    /// Closes the current message if it is full.
    fn check_message(&mut self) -> Result<(), ProtocolViolation> {
        if self.message.len() + MAX_ANSWER > MAX_MESSAGE {
            self.close_message();
        }
        if self.unread > MAX_UNREAD {
            return Err(ProtocolViolation("too many unread answers"));
        }
        Ok(())
    }

    fn close_message(&mut self) {
        if !self.message.is_empty() {
            self.unread += self.message.len();
            self.send_queue.push_back(std::mem::take(&mut self.message));
        }
    }

    /// Sends what is queued. Returns [`IoStatus::More`] if the socket is full or the turn is over.
    pub(crate) fn send(&mut self) -> IoStatus {
        self.close_message();
        for _ in 0..MESSAGES_PER_TURN {
            let sent = if let Some(message) = self.send_queue.front() {
                socket::send_message(&self.socket, message)
            } else if let Some(parts) = self.parts.front() {
                let head = wire::part_head(parts.tag, parts.bytes.len() as u64, parts.at as u64);
                let end = parts.bytes.len().min(parts.at + MAX_MESSAGE - head.len());
                socket::send_parts(&self.socket, &head, &parts.bytes[parts.at..end])
            } else {
                return IoStatus::Done;
            };
            match sent {
                Ok(()) => self.sent(),
                Err(Errno::INTR) => {}
                // The socket is full, or the kernel has no memory for now.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return IoStatus::More,
                Err(_) => return IoStatus::Closed,
            }
        }
        IoStatus::More
    }

    fn sent(&mut self) {
        if let Some(message) = self.send_queue.pop_front() {
            self.unread -= message.len();
        } else if let Some(mut parts) = self.parts.pop_front() {
            parts.at = parts.bytes.len().min(parts.at + MAX_MESSAGE - wire::part_head(0, 0, 0).len());
            if parts.at == parts.bytes.len() {
                self.done(parts.of_sample);
            } else {
                // Round robin, so that a large answer does not delay small ones.
                self.parts.push_back(parts);
            }
        }
    }
}
