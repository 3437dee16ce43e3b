//! One worker's connection, as the server sees it: what it asked, what it holds, what it is still to be told.
//!
//! All that a worker can make the server keep is bounded here; one that goes beyond is cut off ([`Outrageous`]). A worker
//! that keeps to the rules never meets these bounds.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::Bytes;
use foreread_tier::TierError;
use foreread_types::SampleId;
use rustix::io::Errno;

use crate::life::Life;
use crate::memory::Slot;
use crate::socket;
use crate::wire::{self, MOST, MOST_ANSWER, Records, Request};

/// Samples of one worker that the engine reads, or that wait for room, at one time; the others wait for these.
pub(crate) const MOST_UNDER_WAY: usize = 256;
/// Samples that a worker may have asked for.
const MOST_ASKED: usize = 4096;
/// Calls that a worker may have under way.
pub(crate) const MOST_CALLS: usize = 64;
/// Bytes of answers that a worker may leave unread, samples apart.
const MOST_UNREAD: usize = 4 << 20;
/// Messages that are heard or told in one turn, so that all workers have theirs.
const TURN: usize = 16;
/// Samples that are handed to the engine in one turn.
const START: usize = 32;

/// The worker does what no worker of ours does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outrageous(pub(crate) &'static str);

/// What went through, and whether there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing more for now.
    All,
    /// There may be more.
    More,
    /// The worker is gone.
    Gone,
}

/// A sample that waits for room.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) tag: u32,
    pub(crate) bytes: Bytes,
    pub(crate) since: Instant,
}

/// An answer that goes through the socket in parts.
#[derive(Debug)]
struct Parts {
    tag: u32,
    bytes: Bytes,
    at: usize,
    of_sample: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) life: Life,
    /// False once it is gone: who still reads for it sees that.
    pub(crate) wanted: Arc<AtomicBool>,
    asked: VecDeque<(u32, SampleId)>,
    /// Samples at the engine, waiting for room, or on their way through the socket.
    under_way: usize,
    calls: Vec<(u32, String, Bytes)>,
    calls_under_way: usize,
    held: Vec<Option<Slot>>,
    unused: Vec<u32>,
    /// Bytes of memory that the worker holds.
    pub(crate) held_bytes: usize,
    pub(crate) waiting: VecDeque<Waiting>,
    told: Vec<u8>,
    to_tell: VecDeque<Vec<u8>>,
    unread: usize,
    parts: VecDeque<Parts>,
    /// Whether the socket is watched for room to write.
    pub(crate) watched_for_room: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, life: Life) -> Self {
        Self {
            socket,
            life,
            wanted: Arc::new(AtomicBool::new(true)),
            asked: VecDeque::new(),
            under_way: 0,
            calls: Vec::new(),
            calls_under_way: 0,
            held: Vec::new(),
            unused: Vec::new(),
            held_bytes: 0,
            waiting: VecDeque::new(),
            told: Vec::new(),
            to_tell: VecDeque::new(),
            unread: 0,
            parts: VecDeque::new(),
            watched_for_room: false,
        }
    }

    /// Reads what the worker says; `freed` is set where it let something go.
    pub(crate) fn hear(&mut self, buffer: &mut [u8], freed: &mut bool) -> Result<Heard, Outrageous> {
        for _ in 0..TURN {
            match socket::hear(&self.socket, buffer) {
                Ok(0) => return Ok(Heard::Gone),
                Ok(length) => {
                    let message = buffer.get(..length).ok_or(Outrageous("a message is too long"))?;
                    self.take(message, freed)?;
                }
                Err(Errno::AGAIN) => return Ok(Heard::All),
                Err(Errno::INTR) => {}
                Err(_) => return Ok(Heard::Gone),
            }
        }
        Ok(Heard::More)
    }

    fn take(&mut self, message: &[u8], freed: &mut bool) -> Result<(), Outrageous> {
        let mut records = Records::of(message);
        while let Some(request) = records.request() {
            match request.map_err(|_| Outrageous("it says what has no meaning"))? {
                Request::Ask { tag, id } => {
                    if self.asked.len() + self.under_way >= MOST_ASKED {
                        return Err(Outrageous("it asks for too many samples at once"));
                    }
                    self.asked.push_back((tag, id));
                }
                Request::LetGo { slot } => {
                    let held = self.held.get_mut(slot as usize).and_then(Option::take);
                    let held = held.ok_or(Outrageous("it lets go of what it does not hold"))?;
                    self.held_bytes -= held.taken;
                    self.unused.push(slot);
                    *freed = true;
                }
                Request::Call { tag, name, payload } => {
                    if self.calls_under_way >= MOST_CALLS {
                        return Err(Outrageous("it has too many calls under way"));
                    }
                    self.calls_under_way += 1;
                    self.calls.push((tag, name.to_owned(), Bytes::copy_from_slice(payload)));
                }
            }
        }
        Ok(())
    }

    /// What the engine is to read next.
    pub(crate) fn start(&mut self) -> Vec<(u32, SampleId)> {
        let count = MOST_UNDER_WAY.saturating_sub(self.under_way).min(START).min(self.asked.len());
        self.under_way += count;
        self.asked.drain(..count).collect()
    }

    /// Whether [`start`](Self::start) has something to say.
    pub(crate) fn may_start(&self) -> bool {
        !self.asked.is_empty() && self.under_way < MOST_UNDER_WAY
    }

    /// What the layer above is to be asked: tag, name, payload.
    pub(crate) fn calls(&mut self) -> Vec<(u32, String, Bytes)> {
        std::mem::take(&mut self.calls)
    }

    /// The sample is in the memory, and the worker's from now on.
    pub(crate) fn give(&mut self, tag: u32, slot: Slot) -> Result<(), Outrageous> {
        self.under_way -= 1;
        self.held_bytes += slot.taken;
        let number = self.unused.pop().unwrap_or_else(|| {
            self.held.push(None);
            (self.held.len() - 1) as u32
        });
        wire::held(&mut self.told, tag, number, slot.offset as u64, slot.length as u64);
        self.held[number as usize] = Some(slot);
        self.fill()
    }

    /// The sample goes through the socket.
    pub(crate) fn give_whole(&mut self, tag: u32, bytes: Bytes) {
        self.parts.push_back(Parts { tag, bytes, at: 0, of_sample: true });
    }

    /// There is no such sample, or the call failed.
    pub(crate) fn fail(&mut self, tag: u32, of_sample: bool, error: &TierError) -> Result<(), Outrageous> {
        self.done(of_sample);
        wire::failed(&mut self.told, tag, error);
        self.fill()
    }

    /// What a call gave.
    pub(crate) fn reply(&mut self, tag: u32, bytes: Bytes) {
        self.parts.push_back(Parts { tag, bytes, at: 0, of_sample: false });
    }

    fn done(&mut self, of_sample: bool) {
        if of_sample {
            self.under_way -= 1;
        } else {
            self.calls_under_way -= 1;
        }
    }

    /// Closes the message that is being written where it is full.
    fn fill(&mut self) -> Result<(), Outrageous> {
        if self.told.len() + MOST_ANSWER > MOST {
            self.close_message();
        }
        if self.unread > MOST_UNREAD {
            return Err(Outrageous("it asks and does not listen"));
        }
        Ok(())
    }

    fn close_message(&mut self) {
        if !self.told.is_empty() {
            self.unread += self.told.len();
            self.to_tell.push_back(std::mem::take(&mut self.told));
        }
    }

    /// Sends what there is. [`Heard::More`] where the socket has no room for the rest, or it would take too long.
    pub(crate) fn tell(&mut self) -> Heard {
        self.close_message();
        for _ in 0..TURN {
            let sent = if let Some(message) = self.to_tell.front() {
                socket::tell(&self.socket, message)
            } else if let Some(parts) = self.parts.front() {
                let head = wire::part_head(parts.tag, parts.bytes.len() as u64, parts.at as u64);
                let end = parts.bytes.len().min(parts.at + MOST - head.len());
                socket::tell_parts(&self.socket, &head, &parts.bytes[parts.at..end])
            } else {
                return Heard::All;
            };
            match sent {
                Ok(()) => self.sent(),
                Err(Errno::INTR) => {}
                // No room in the socket, or none in the kernel for now.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Heard::More,
                Err(_) => return Heard::Gone,
            }
        }
        Heard::More
    }

    fn sent(&mut self) {
        if let Some(message) = self.to_tell.pop_front() {
            self.unread -= message.len();
        } else if let Some(mut parts) = self.parts.pop_front() {
            parts.at = parts.bytes.len().min(parts.at + MOST - wire::part_head(0, 0, 0).len());
            if parts.at == parts.bytes.len() {
                self.done(parts.of_sample);
            } else {
                // In turn, so that a giant does not hold up what is small.
                self.parts.push_back(parts);
            }
        }
    }
}
