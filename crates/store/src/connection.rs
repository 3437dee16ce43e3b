//! The server's side of one client's connection: its requests, its leases and its unsent answers.
//!
//! Everything that a client can make the server keep is bounded here. A client that exceeds a bound
//! is disconnected ([`ProtocolViolation`]). Correct clients never reach the bounds.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_tier::{SharedRegion, TierError};
use foreread_types::{SampleKey, Tick};
use rustix::io::Errno;

use crate::leases::Lease;
use crate::peer_process::PeerProcess;
use crate::retired::RetiredClient;
use crate::socket;
use crate::wire::{self, ClientRecord, MAX_ANSWER, MAX_INLINE, MAX_MESSAGE, PART_HEAD, RecordReader};

/// Requests for samples that one client may have open, in addition to those in flight.
const MAX_REQUESTED: usize = 4096;
/// Calls that one client may have open.
pub(crate) const MAX_CALLS: usize = 64;
/// Unread bytes of answers that one client may have, without samples in flight.
const MAX_UNREAD: usize = 4 << 20;
/// Messages received or sent per turn, so that every client gets a turn.
const MESSAGES_PER_TURN: usize = 16;
/// Requests passed to the engine per turn.
const REQUESTS_PER_TURN: usize = 32;

/// A correct client never does this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation(pub(crate) &'static str);

/// The progress on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoStatus {
    /// Nothing more for now.
    Done,
    /// There may be more.
    More,
    /// The client has disconnected.
    Closed,
}

/// A sample that was requested, with its tag and the time of its use.
pub(crate) type OpenRequest = (u32, SampleKey, Tick);

/// An answer that is sent through the socket in parts.
#[derive(Debug)]
struct PartialAnswer {
    tag: u32,
    bytes: Bytes,
    at: usize,
    of_sample: bool,
}

impl PartialAnswer {
    /// Where the next part ends.
    fn end(&self) -> usize {
        self.bytes.len().min(self.at + MAX_MESSAGE - PART_HEAD)
    }
}

/// A message on its way to the client, with the region whose descriptor goes with it.
#[derive(Debug)]
struct QueuedMessage {
    bytes: Vec<u8>,
    region: Option<Arc<SharedRegion>>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) process: PeerProcess,
    /// Set to false when the client has left, so that open requests can be skipped.
    pub(crate) wanted: Arc<AtomicBool>,
    requested: VecDeque<OpenRequest>,
    /// Samples at the engine, or on their way through the socket.
    in_flight: usize,
    max_in_flight: usize,
    calls: Vec<(u32, String, Bytes)>,
    calls_in_flight: usize,
    leases: Vec<Option<Lease>>,
    free_slots: Vec<u32>,
    /// The regions that the client has mapped.
    regions: BTreeMap<u32, Weak<SharedRegion>>,
    message: Vec<u8>,
    send_queue: VecDeque<QueuedMessage>,
    unread: usize,
    parts: VecDeque<PartialAnswer>,
    /// Whether the socket is watched for writability.
    pub(crate) watches_writable: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, process: PeerProcess, max_in_flight: usize) -> Self {
        Self {
            socket,
            process,
            wanted: Arc::new(AtomicBool::new(true)),
            requested: VecDeque::new(),
            in_flight: 0,
            max_in_flight,
            calls: Vec::new(),
            calls_in_flight: 0,
            leases: Vec::new(),
            free_slots: Vec::new(),
            regions: BTreeMap::new(),
            message: Vec::new(),
            send_queue: VecDeque::new(),
            unread: 0,
            parts: VecDeque::new(),
            watches_writable: false,
        }
    }

    /// The samples that the client may still read when this end closes the connection.
    pub(crate) fn retire(self) -> RetiredClient {
        RetiredClient::new(self.socket, self.process, self.leases.into_iter().flatten().collect())
    }

    /// Receives messages.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<IoStatus, ProtocolViolation> {
        for _ in 0..MESSAGES_PER_TURN {
            match socket::receive_message(&self.socket, buffer) {
                Ok(0) => return Ok(IoStatus::Closed),
                Ok(length) => {
                    let message = buffer.get(..length).ok_or(ProtocolViolation("a message is too long"))?;
                    self.handle_message(message)?;
                }
                Err(Errno::AGAIN) => return Ok(IoStatus::Done),
                Err(Errno::INTR) => {}
                Err(_) => return Ok(IoStatus::Closed),
            }
        }
        Ok(IoStatus::More)
    }

    fn handle_message(&mut self, message: &[u8]) -> Result<(), ProtocolViolation> {
        let mut records = RecordReader::of(message);
        while let Some(request) = records.request() {
            match request.map_err(|_| ProtocolViolation("malformed message"))? {
                ClientRecord::Request { tag, key, due } => {
                    if self.requested.len() >= MAX_REQUESTED {
                        return Err(ProtocolViolation("too many open requests for samples"));
                    }
                    self.requested.push_back((tag, key, due));
                }
                ClientRecord::Release { slot } => {
                    let lease = self.leases.get_mut(slot as usize).and_then(Option::take);
                    drop(lease.ok_or(ProtocolViolation("release of a slot that it does not hold"))?);
                    self.free_slots.push(slot);
                }
                ClientRecord::Ping { number } => {
                    wire::pong(&mut self.message, number);
                    self.check_message()?;
                }
                ClientRecord::Call { tag, name, payload } => {
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
    pub(crate) fn take_requests(&mut self) -> Vec<OpenRequest> {
        let room = self.max_in_flight.saturating_sub(self.in_flight);
        let count = room.min(REQUESTS_PER_TURN).min(self.requested.len());
        self.in_flight += count;
        self.requested.drain(..count).collect()
    }

    /// Whether [`take_requests`](Self::take_requests) returns anything.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requested.is_empty() && self.in_flight < self.max_in_flight
    }

    /// The calls to pass on: tag, name, payload.
    pub(crate) fn calls(&mut self) -> Vec<(u32, String, Bytes)> {
        std::mem::take(&mut self.calls)
    }

    /// Leases a sample to the client.
    pub(crate) fn lease(&mut self, tag: u32, lease: Lease) -> Result<(), ProtocolViolation> {
        self.in_flight -= 1;
        let (region, offset) = (&lease.place.region, lease.place.offset);
        let number = region.number();
        if let Entry::Vacant(vacant) = self.regions.entry(number) {
            vacant.insert(Arc::downgrade(region));
            self.close_message();
            self.queue(wire::region(number, region.length()), Some(Arc::clone(region)));
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.leases.push(None);
            (self.leases.len() - 1) as u32
        });
        wire::leased(&mut self.message, tag, slot, number, offset, lease.bytes.len() as u64);
        self.leases[slot as usize] = Some(lease);
        self.check_message()
    }

    /// Whether the client has mapped a region.
    pub(crate) fn has_regions(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Has the client unmap the regions that have ended.
    pub(crate) fn end_regions(&mut self) -> Result<(), ProtocolViolation> {
        let is_ended = |_: &u32, region: &mut Weak<SharedRegion>| region.strong_count() == 0;
        for (number, _) in self.regions.extract_if(.., is_ended) {
            wire::ended(&mut self.message, number);
        }
        self.check_message()
    }

    /// Sends the sample through the socket: a short one with other answers.
    pub(crate) fn send_whole(&mut self, tag: u32, bytes: Bytes) -> Result<(), ProtocolViolation> {
        if bytes.len() > MAX_INLINE {
            self.parts.push_back(PartialAnswer { tag, bytes, at: 0, of_sample: true });
            return Ok(());
        }
        self.in_flight -= 1;
        self.message.extend(wire::part_head(tag, bytes.len() as u64, 0, bytes.len()));
        self.message.extend(bytes);
        self.check_message()
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
        if self.unread > MAX_UNREAD + self.max_in_flight * MAX_INLINE {
            return Err(ProtocolViolation("too many unread answers"));
        }
        Ok(())
    }

    fn close_message(&mut self) {
        if !self.message.is_empty() {
            let message = std::mem::take(&mut self.message);
            self.queue(message, None);
        }
    }

    fn queue(&mut self, bytes: Vec<u8>, region: Option<Arc<SharedRegion>>) {
        self.unread += bytes.len();
        self.send_queue.push_back(QueuedMessage { bytes, region });
    }

    /// Sends queued messages. Returns [`IoStatus::More`] if the socket is full or the turn is over.
    pub(crate) fn send(&mut self) -> IoStatus {
        self.close_message();
        for _ in 0..MESSAGES_PER_TURN {
            let sent = if let Some(QueuedMessage { bytes, region }) = self.send_queue.front() {
                match region {
                    Some(region) => socket::send_with_fd(&self.socket, bytes, region.descriptor()),
                    None => socket::send_message(&self.socket, bytes),
                }
            } else if let Some(parts) = self.parts.front() {
                let end = parts.end();
                let total = parts.bytes.len() as u64;
                let head = wire::part_head(parts.tag, total, parts.at as u64, end - parts.at);
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
            self.unread -= message.bytes.len();
        } else if let Some(mut parts) = self.parts.pop_front() {
            parts.at = parts.end();
            if parts.at == parts.bytes.len() {
                self.done(parts.of_sample);
            } else {
                // Round robin, so that a large answer does not delay small ones.
                self.parts.push_back(parts);
            }
        }
    }
}
