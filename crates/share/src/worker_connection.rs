//! A worker's connection to the server, used by all threads of the worker.
//!
//! There is no thread behind it. Of the threads that wait, one listens for all and hands the others what came for them;
//! when it has something for itself it leaves, and another takes its place. The price is a lock and a wake-up between
//! threads of one worker; most workers have one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foreread_types::SampleId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::address::Address;
use crate::connection::MAX_CALLS;
use crate::mapping::ReadMapping;
use crate::peer_process::PeerProcess;
use crate::wire::{self, MAX_CALL_NAME, MAX_MESSAGE, MalformedMessage, RecordReader, ServerRecord};
use crate::{ShareError, ShareErrorKind, socket};

/// How often who waits looks up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the server may take to let a worker in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to leave a server alone whose door is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Messages heard before the others are told.
const MESSAGES_PER_TURN: usize = 16;
/// Slots that are let go of are told when so many have come together.
const MAX_RELEASES: usize = 1024;

/// Where a sample, or what a call gave, is.
#[derive(Debug)]
pub(crate) enum SampleBytes {
    /// In the shared memory; the slot is to be let go.
    Shared { slot: u32, offset: usize, length: usize },
    /// In this process's own.
    Own(Vec<u8>),
}

/// Whether a request went.
#[derive(Debug)]
pub(crate) enum SendStatus<T> {
    Sent(T),
    /// As many as may be are under way: some answer has to come first.
    LimitReached,
    /// The socket has no room for it now.
    WouldBlock,
}

/// What came for one who waits: the tag, and what it was.
pub(crate) type CallerResult = (u32, Result<SampleBytes, ShareError>);

#[derive(Debug)]
pub(crate) struct WorkerConnection {
    socket: OwnedFd,
    server: PeerProcess,
    pub(crate) mapping: ReadMapping,
    max_in_flight: usize,
    release: usize,
    own_pid: u32,
    state: Mutex<ConnectionState>,
    result_ready: Condvar,
    buffer: Mutex<Vec<u8>>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    next_tag: u32,
    next_caller: u64,
    /// Samples that were checked for and did not come yet.
    samples: usize,
    /// Calls that were made and not answered yet.
    calls: usize,
    /// Who waits for what.
    waiting: HashMap<u32, PendingRequest>,
    /// What came, for those who wait.
    results: HashMap<u64, Vec<CallerResult>>,
    receiving: bool,
    end: Option<ShareError>,
    release: Vec<u32>,
    released_bytes: usize,
}

#[derive(Debug)]
struct PendingRequest {
    /// Nobody, where the caller has left.
    caller: Option<u64>,
    of_sample: bool,
    parts: Vec<u8>,
}

/// What one who waits wants to receive of its waiting.
pub(crate) struct StopCheck<'a> {
    stop: &'a mut dyn FnMut() -> bool,
    checked: Instant,
}

impl<'a> StopCheck<'a> {
    pub(crate) fn new(stop: &'a mut dyn FnMut() -> bool) -> Self {
        Self { stop, checked: Instant::now() }
    }

    /// Asks whether to stop, where that was not checked for a while.
    fn check(&mut self) -> Result<(), ShareError> {
        if self.checked.elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        let stop = (self.stop)();
        self.checked = Instant::now();
        if stop { Err(ShareError::interrupted()) } else { Ok(()) }
    }
}

impl WorkerConnection {
    /// Connects to the server at `address`.
    pub(crate) fn connect(address: &Address, stop_check: &mut StopCheck<'_>) -> Result<Self, ShareError> {
        let wrong = |error| ShareError::system("no connection to the main process", error);
        let begun = Instant::now();
        let to = address.socket().map_err(wrong)?;
        let late = || ShareError::new(ShareErrorKind::Gone, "the main process does not answer");
        let socket = loop {
            match socket::connect(&to) {
                Ok(socket) => break socket,
                Err(Errno::CONNREFUSED) => return Err(ShareError::gone()),
                Err(Errno::AGAIN | Errno::INTR) if begun.elapsed() < CONNECT_TIMEOUT => {
                    std::thread::sleep(RETRY_INTERVAL)
                }
                Err(Errno::AGAIN | Errno::INTR) => return Err(late()),
                Err(error) => return Err(wrong(error)),
            }
            stop_check.check()?;
        };
        let other = socket::peer_credentials(&socket)
            .map_err(|error| ShareError::system("whose the data source is cannot be found out", error))?;
        let own = socket::own_user();
        if !socket::is_same_user(other, own) {
            let detail = format!("the data source is of user {}, this process of user {own}", other.user);
            return Err(ShareError::new(ShareErrorKind::Refused, detail));
        }
        let process = PeerProcess::of_peer(&socket, other.process);
        match socket::send_message(&socket, &wire::greeting(&address.secret)) {
            // Where the server has ended the connection already, its reason can still be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(wrong(error)),
        }
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut reset = false;
        let (length, descriptor) = loop {
            match socket::receive_with_fd(&socket, &mut buffer) {
                Ok(heard) => break heard,
                // Closed before our greeting was read: the reason is still to be read.
                Err(Errno::CONNRESET) if !reset => {
                    reset = true;
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(ShareError::gone()),
            }
            if process.has_exited() {
                return Err(ShareError::gone());
            }
            if begun.elapsed() >= CONNECT_TIMEOUT {
                return Err(late());
            }
            wait(&socket, &process, false, POLL_INTERVAL)?;
            stop_check.check()?;
        };
        let (hello, descriptor) = match (RecordReader::of(&buffer[..length]).answer(), descriptor) {
            (Some(Ok(ServerRecord::Hello(hello))), Some(descriptor)) => (hello, descriptor),
            (Some(Ok(ServerRecord::Refused(why))), _) => {
                return Err(ShareError::new(
                    ShareErrorKind::Refused,
                    format!("the main process refuses: {why}"),
                ));
            }
            (None, _) => return Err(ShareError::gone()),
            _ => return Err(ShareError::malformed("the main process speaks another version of foreread")),
        };
        Ok(Self {
            socket,
            server: process,
            mapping: ReadMapping::open(descriptor, hello.memory)?,
            max_in_flight: hello.max_in_flight as usize,
            release: usize::try_from(hello.release_threshold).unwrap_or(usize::MAX),
            own_pid: std::process::id(),
            state: Mutex::default(),
            result_ready: Condvar::new(),
            buffer: Mutex::new(buffer),
        })
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that connected.
    pub(crate) fn is_own(&self) -> bool {
        self.own_pid == std::process::id()
    }

    /// Begins to wait; [`leave`](Self::leave) ends it.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = self.state();
        state.next_caller += 1;
        state.next_caller
    }

    /// Ends a caller's waiting: what is still to come for it is let go as it comes.
    pub(crate) fn leave(&self, caller: u64) {
        let mut state = self.state();
        for waiting in state.waiting.values_mut().filter(|waiting| waiting.caller == Some(caller)) {
            waiting.caller = None;
        }
        for (_, came) in state.results.remove(&caller).into_iter().flatten() {
            if let Ok(SampleBytes::Shared { slot, length, .. }) = came {
                self.add_release(&mut state, slot, length);
            }
        }
    }

    /// Asks for as many of `ids` as may be under way and says which tag each got: none where too many are under way.
    pub(crate) fn ask(&self, caller: u64, ids: &[SampleId]) -> Result<SendStatus<Vec<u32>>, ShareError> {
        let mut state = self.state();
        let count = ids
            .len()
            .min(self.max_in_flight.saturating_sub(state.samples))
            .min(MAX_MESSAGE / 2 / wire::ASK_BYTES);
        if count == 0 {
            return Ok(SendStatus::LimitReached);
        }
        let mut message =
            Vec::with_capacity(count * wire::ASK_BYTES + state.release.len() * wire::RELEASE_BYTES);
        let release = state.release.len().min(MAX_RELEASES);
        state.release[..release].iter().for_each(|slot| wire::release(&mut message, *slot));
        let mut tags = Vec::with_capacity(count);
        for &id in &ids[..count] {
            let tag = state.tag();
            wire::ask(&mut message, tag, id);
            tags.push(tag);
        }
        if !self.send(&state, &message)? {
            return Ok(SendStatus::WouldBlock);
        }
        state.release.drain(..release);
        state.released_bytes = 0;
        state.samples += count;
        for &tag in &tags {
            state
                .waiting
                .insert(tag, PendingRequest { caller: Some(caller), of_sample: true, parts: Vec::new() });
        }
        Ok(SendStatus::Sent(tags))
    }

    /// Makes a call, if no more than may be are under way.
    pub(crate) fn call(&self, caller: u64, name: &str, payload: &[u8]) -> Result<SendStatus<()>, ShareError> {
        let mut state = self.state();
        if state.calls >= MAX_CALLS {
            return Ok(SendStatus::LimitReached);
        }
        let tag = state.tag();
        let mut message = Vec::with_capacity(MAX_CALL_NAME + payload.len());
        wire::call(&mut message, tag, name, payload);
        if !self.send(&state, &message)? {
            return Ok(SendStatus::WouldBlock);
        }
        state.calls += 1;
        state
            .waiting
            .insert(tag, PendingRequest { caller: Some(caller), of_sample: false, parts: Vec::new() });
        Ok(SendStatus::Sent(()))
    }

    /// Sends a message; whether the socket had room for it.
    fn send(&self, state: &ConnectionState, message: &[u8]) -> Result<bool, ShareError> {
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        // Where the server is end, what it said before is still to be heard: that it is end is heard after it.
        Ok(socket::send_message(&self.socket, message).is_ok())
    }

    /// What has come for `caller`.
    pub(crate) fn take(&self, caller: u64) -> Vec<CallerResult> {
        self.state().results.remove(&caller).unwrap_or_default()
    }

    /// Waits until something may have come for `caller`, or, if it wants `to_send`, until something may be sent.
    pub(crate) fn wait(
        &self,
        caller: u64,
        to_send: bool,
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), ShareError> {
        stop_check.check()?;
        let mut state = self.state();
        if state.results.contains_key(&caller) {
            return Ok(());
        }
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        if state.receiving {
            let waited = self.result_ready.wait_timeout(state, POLL_INTERVAL);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return Ok(());
        }
        state.receiving = true;
        drop(state);
        let heard = self.receive_or_wait(to_send);
        let mut state = self.state();
        state.receiving = false;
        if let Err(error) = &heard {
            state.end.get_or_insert_with(|| error.clone());
        }
        drop(state);
        self.result_ready.notify_all();
        // Who has something results takes that first, and hears of the end the next time.
        Ok(())
    }

    /// Hears what there is, and waits for something where there is nothing. An error ends the connection.
    fn receive_or_wait(&self, to_send: bool) -> Result<(), ShareError> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.receive(&mut buffer)? {
            return Ok(());
        }
        wait(&self.socket, &self.server, to_send, POLL_INTERVAL)?;
        if !self.receive(&mut buffer)? && self.server.has_exited() {
            return Err(ShareError::gone());
        }
        Ok(())
    }

    /// Whether anything was heard.
    fn receive(&self, buffer: &mut [u8]) -> Result<bool, ShareError> {
        for turn in 0..MESSAGES_PER_TURN {
            let length = match socket::receive_message(&self.socket, buffer) {
                Ok(0) => return Err(ShareError::gone()),
                Ok(length) => length,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(turn > 0),
                Err(_) => return Err(ShareError::gone()),
            };
            let malformed = |_| ShareError::malformed("the main process says what has no meaning");
            let message = buffer.get(..length).ok_or(MalformedMessage).map_err(malformed)?;
            let mut state = self.state();
            let mut records = RecordReader::of(message);
            while let Some(answer) = records.answer() {
                answer.and_then(|answer| self.on(&mut state, answer)).map_err(malformed)?;
            }
        }
        Ok(true)
    }

    fn on(&self, state: &mut ConnectionState, answer: ServerRecord<'_>) -> Result<(), MalformedMessage> {
        let (tag, came) = match answer {
            ServerRecord::Leased { tag, slot, offset, length } => {
                if !self.mapping.contains(offset, length) {
                    return Err(MalformedMessage);
                }
                (tag, Ok(SampleBytes::Shared { slot, offset: offset as usize, length: length as usize }))
            }
            ServerRecord::Part { tag, total, at, bytes } => {
                let waiting = state.waiting.get_mut(&tag).ok_or(MalformedMessage)?;
                let total = usize::try_from(total).map_err(|_| MalformedMessage)?;
                let parts = &mut waiting.parts;
                if parts.len() as u64 != at || parts.len() + bytes.len() > total {
                    return Err(MalformedMessage);
                }
                if at == 0 && parts.try_reserve_exact(total).is_err() {
                    return Err(MalformedMessage);
                }
                parts.extend_from_slice(bytes);
                if parts.len() < total {
                    return Ok(());
                }
                (tag, Ok(SampleBytes::Own(std::mem::take(parts))))
            }
            ServerRecord::Failed { tag, error } => (tag, Err(ShareError::sample(error))),
            ServerRecord::Hello(_) | ServerRecord::Refused(_) => return Err(MalformedMessage),
        };
        let waiting = state.waiting.remove(&tag).ok_or(MalformedMessage)?;
        if waiting.of_sample {
            state.samples -= 1;
        } else {
            state.calls -= 1;
        }
        match (waiting.caller, came) {
            (Some(caller), came) => state.results.entry(caller).or_default().push((tag, came)),
            (None, Ok(SampleBytes::Shared { slot, length, .. })) => self.add_release(state, slot, length),
            (None, _) => {}
        }
        Ok(())
    }

    /// The sample in `slot` is no longer read. Told with the next request, or when enough has come together.
    pub(crate) fn release(&self, slot: u32, length: usize) {
        // A forked child holds nothing, and the lock may be held by a thread that it does not have.
        if self.is_own() {
            self.add_release(&mut self.state(), slot, length);
        }
    }

    fn add_release(&self, state: &mut ConnectionState, slot: u32, length: usize) {
        state.release.push(slot);
        state.released_bytes += length;
        if state.released_bytes < self.release && state.release.len() < MAX_RELEASES {
            return;
        }
        let mut message = Vec::with_capacity(MAX_RELEASES * wire::RELEASE_BYTES);
        let first = state.release.len().saturating_sub(MAX_RELEASES);
        state.release[first..].iter().for_each(|slot| wire::release(&mut message, *slot));
        // What does not go now goes later.
        if self.send(state, &message).unwrap_or(false) {
            state.release.truncate(first);
            state.released_bytes = 0;
        }
    }
}

impl ConnectionState {
    fn tag(&mut self) -> u32 {
        loop {
            self.next_tag = self.next_tag.wrapping_add(1);
            if !self.waiting.contains_key(&self.next_tag) {
                return self.next_tag;
            }
        }
    }
}

/// Waits until the socket has something, the other end's process ends, or, if wanted, something may be sent.
fn wait(socket: &OwnedFd, process: &PeerProcess, to_send: bool, longest: Duration) -> Result<(), ShareError> {
    let what = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut watched = Vec::with_capacity(2);
    watched.push(PollFd::new(socket, what));
    if let Some(process) = process.descriptor() {
        watched.push(PollFd::from_borrowed_fd(process, PollFlags::IN));
    }
    match poll(&mut watched, Some(&socket::timeout(longest))) {
        // A signal: who waits looks up.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(ShareError::system("the socket cannot be watched", error)),
    }
}

/// A place in the queue of those who wait, left when dropped.
pub(crate) struct CallerGuard {
    pub(crate) connection: Arc<WorkerConnection>,
    pub(crate) number: u64,
}

impl CallerGuard {
    pub(crate) fn new(connection: &Arc<WorkerConnection>) -> Self {
        Self { connection: Arc::clone(connection), number: connection.enter() }
    }
}

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.connection.leave(self.number);
    }
}
