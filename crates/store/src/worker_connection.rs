//! A client's connection to the server, shared by all threads of the client.
//!
//! It has no thread. One of the waiting threads receives for all and distributes the results. When
//! it has its own result it leaves, and another thread takes over. The price is a lock and a
//! wake-up between threads of one client. Most clients have one thread.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foreread_tier::lock;
use foreread_types::{SampleKey, Tick};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::address::Address;
use crate::connection::MAX_CALLS;
use crate::mapping::ReadMapping;
use crate::peer_process::PeerProcess;
use crate::wire::{self, MAX_CALL_NAME, MAX_MESSAGE, MalformedMessage, RecordReader, ServerRecord};
use crate::{StoreError, StoreErrorKind, socket};

/// How often a waiting thread checks `stop` and the server process.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the server may take to accept a worker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before another attempt to connect to a full backlog.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Messages received before waiting threads are notified.
const MESSAGES_PER_TURN: usize = 16;
/// Released slots are reported at the latest when this many have accumulated.
const MAX_RELEASES: usize = 1024;

/// The bytes of a sample, or of a call's result.
#[derive(Debug)]
pub(crate) enum SampleBytes {
    /// In shared memory, in a slot that must be released.
    Shared { slot: u32, region: Arc<ReadMapping>, offset: usize, length: usize },
    /// In this process's own memory.
    Own(Vec<u8>),
}

/// The result of sending a request.
#[derive(Debug)]
pub(crate) enum SendStatus<T> {
    Sent(T),
    /// The maximum number of requests is in flight.
    LimitReached,
    /// The socket is full.
    WouldBlock,
}

/// A result for one caller, with its tag.
pub(crate) type CallerResult = (u32, Result<SampleBytes, StoreError>);

#[derive(Debug)]
pub(crate) struct WorkerConnection {
    socket: OwnedFd,
    server: PeerProcess,
    max_in_flight: usize,
    release_threshold: usize,
    own_pid: u32,
    /// Whether regions can be passed on to other processes.
    passes_on: bool,
    state: Mutex<ConnectionState>,
    result_ready: Condvar,
    buffer: Mutex<Vec<u8>>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    next_tag: u32,
    next_caller: u64,
    /// Requested samples that have not arrived.
    samples: usize,
    /// Calls that were not answered yet.
    calls: usize,
    /// The open requests by tag.
    waiting: HashMap<u32, PendingRequest>,
    /// Results by caller.
    results: HashMap<u64, Vec<CallerResult>>,
    receiving: bool,
    end: Option<StoreError>,
    /// The regions of shared memory by number.
    regions: HashMap<u32, Arc<ReadMapping>>,
    /// When the last message of the server arrived.
    heard: Option<Instant>,
    released: Vec<u32>,
    released_bytes: usize,
}

#[derive(Debug)]
struct PendingRequest {
    /// `None` after the caller has left.
    caller: Option<u64>,
    of_sample: bool,
    parts: Vec<u8>,
}

/// Calls the user's `stop` from time to time during a wait.
pub(crate) struct StopCheck<'a> {
    stop: &'a mut dyn FnMut() -> bool,
    checked: Instant,
}

impl<'a> StopCheck<'a> {
    pub(crate) fn new(stop: &'a mut dyn FnMut() -> bool) -> Self {
        Self { stop, checked: Instant::now() }
    }

    /// Calls `stop`, unless it was called recently.
    fn check(&mut self) -> Result<(), StoreError> {
        if self.checked.elapsed() < POLL_INTERVAL {
            return Ok(());
        }
        let stop = (self.stop)();
        self.checked = Instant::now();
        if stop { Err(StoreError::interrupted()) } else { Ok(()) }
    }
}

impl WorkerConnection {
    /// Connects to the server at `address`.
    pub(crate) fn connect(address: &Address, stop_check: &mut StopCheck<'_>) -> Result<Self, StoreError> {
        let wrong = |error| StoreError::system("cannot connect to the main process", error);
        let begun = Instant::now();
        let to = address.socket().map_err(wrong)?;
        let late = || StoreError::new(StoreErrorKind::Gone, "the main process does not answer");
        let socket = loop {
            match socket::connect(&to) {
                Ok(socket) => break socket,
                Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(StoreError::gone()),
                Err(Errno::AGAIN | Errno::INTR) if begun.elapsed() < CONNECT_TIMEOUT => {
                    std::thread::sleep(RETRY_INTERVAL)
                }
                Err(Errno::AGAIN | Errno::INTR) => return Err(late()),
                Err(error) => return Err(wrong(error)),
            }
            stop_check.check()?;
        };
        let other = socket::peer_credentials(&socket)
            .map_err(|error| StoreError::system("cannot determine the user of the data source", error))?;
        let own = socket::own_user();
        // In a container the user ids of the other end may be unknown. There the socket's
        // directory, which was mounted, is the proof.
        let is_trusted = other.user == 0 || socket::is_unknown(other.user);
        if !(socket::is_same_user(other, own) || address.path().is_some() && is_trusted) {
            let detail =
                format!("the data source belongs to user {}, and this process to user {own}", other.user);
            return Err(StoreError::new(StoreErrorKind::Refused, detail));
        }
        let process = PeerProcess::of_peer(&socket, other.process);
        match socket::send_message(&socket, &wire::greeting(&address.secret)) {
            // If the server has already closed the connection, its reason can still be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(wrong(error)),
        }
        let mut buffer = vec![0; MAX_MESSAGE];
        let mut reset = false;
        let length = loop {
            match socket::receive_message(&socket, &mut buffer) {
                Ok(received) => break received.min(buffer.len()),
                // Closed before our greeting was read. The reason is still to be read.
                Err(Errno::CONNRESET) if !reset => {
                    reset = true;
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(StoreError::gone()),
            }
            if process.has_exited() {
                return Err(StoreError::gone());
            }
            if begun.elapsed() >= CONNECT_TIMEOUT {
                return Err(late());
            }
            wait(&socket, &process, false, POLL_INTERVAL)?;
            stop_check.check()?;
        };
        let hello = match RecordReader::of(&buffer[..length]).answer() {
            Some(Ok(ServerRecord::Hello(hello))) if wire::VERSIONS.contains(&hello.version) => hello,
            Some(Ok(ServerRecord::Refused(why))) => {
                return Err(StoreError::new(
                    StoreErrorKind::Refused,
                    format!("the main process refuses: {why}"),
                ));
            }
            None => return Err(StoreError::gone()),
            _ => return Err(StoreError::malformed("the main process has another version of foreread")),
        };
        Ok(Self {
            socket,
            server: process,
            max_in_flight: hello.max_in_flight as usize,
            release_threshold: usize::try_from(hello.release_threshold).unwrap_or(usize::MAX),
            own_pid: std::process::id(),
            // A worker of a job has no workers of its own.
            passes_on: address.path().is_some(),
            state: Mutex::default(),
            result_ready: Condvar::new(),
            buffer: Mutex::new(buffer),
        })
    }

    /// Whether the server's process is known to run.
    pub(crate) fn is_server_running(&self) -> bool {
        self.server.is_running()
    }

    /// Whether this process made the connection.
    pub(crate) fn is_own(&self) -> bool {
        self.own_pid == std::process::id()
    }

    /// Registers a caller. [`leave`](Self::leave) ends it.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = lock(&self.state);
        state.next_caller += 1;
        state.next_caller
    }

    /// Removes a caller. Slots of its late results are released on arrival.
    pub(crate) fn leave(&self, caller: u64) {
        // In a forked child another thread may own the lock, and the socket is the parent's.
        if !self.is_own() {
            return;
        }
        let mut state = lock(&self.state);
        for waiting in state.waiting.values_mut().filter(|waiting| waiting.caller == Some(caller)) {
            waiting.caller = None;
        }
        for (_, received) in state.results.remove(&caller).into_iter().flatten() {
            if let Ok(SampleBytes::Shared { slot, length, .. }) = received {
                self.add_release(&mut state, slot, length);
            }
        }
    }

    /// Requests as many samples as allowed and returns their tags.
    pub(crate) fn send_requests(
        &self,
        caller: u64,
        samples: &[(SampleKey, Tick)],
    ) -> Result<SendStatus<Vec<u32>>, StoreError> {
        let mut state = lock(&self.state);
        let count = samples
            .len()
            .min(self.max_in_flight.saturating_sub(state.samples))
            .min(MAX_MESSAGE / 2 / wire::REQUEST_BYTES);
        if count == 0 {
            return Ok(SendStatus::LimitReached);
        }
        let mut message =
            Vec::with_capacity(count * wire::REQUEST_BYTES + state.released.len() * wire::RELEASE_BYTES);
        let release = state.released.len().min(MAX_RELEASES);
        state.released[..release].iter().for_each(|slot| wire::release(&mut message, *slot));
        let mut tags = Vec::with_capacity(count);
        for &(key, due) in &samples[..count] {
            let tag = state.tag();
            wire::encode_request(&mut message, tag, key, due);
            tags.push(tag);
        }
        if !self.send(&state, &message)? {
            return Ok(SendStatus::WouldBlock);
        }
        state.released.drain(..release);
        state.released_bytes = 0;
        state.samples += count;
        for &tag in &tags {
            state
                .waiting
                .insert(tag, PendingRequest { caller: Some(caller), of_sample: true, parts: Vec::new() });
        }
        Ok(SendStatus::Sent(tags))
    }

    /// Makes a call, unless the maximum number is in flight.
    pub(crate) fn call(&self, caller: u64, name: &str, payload: &[u8]) -> Result<SendStatus<()>, StoreError> {
        let mut state = lock(&self.state);
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

    /// Sends a message. Returns false if the socket is full.
    fn send(&self, state: &ConnectionState, message: &[u8]) -> Result<bool, StoreError> {
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        // A send error is ignored here, because earlier messages of the server must be received
        // before its end is reported.
        Ok(socket::send_message(&self.socket, message).is_ok())
    }

    /// Sends a ping, unless the socket is full.
    pub(crate) fn ping(&self, number: u32) -> Result<(), StoreError> {
        let state = lock(&self.state);
        self.send(&state, &wire::ping(number)).map(drop)
    }

    /// When the last message of the server arrived. `None` if none has arrived.
    pub(crate) fn heard(&self) -> Option<Instant> {
        lock(&self.state).heard
    }

    /// Takes the results for `caller`.
    pub(crate) fn take(&self, caller: u64) -> Vec<CallerResult> {
        lock(&self.state).results.remove(&caller).unwrap_or_default()
    }

    /// Waits until `caller` may have a result, or, with `to_send`, until the socket may be
    /// writable.
    pub(crate) fn wait(
        &self,
        caller: u64,
        to_send: bool,
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), StoreError> {
        stop_check.check()?;
        let mut state = lock(&self.state);
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
        let received = self.receive_or_wait(to_send);
        let mut state = lock(&self.state);
        state.receiving = false;
        if let Err(error) = &received {
            state.end.get_or_insert_with(|| error.clone());
        }
        drop(state);
        self.result_ready.notify_all();
        // A caller with results takes them first, and sees the end at its next wait.
        Ok(())
    }

    /// Receives messages, and waits if there are none. An error ends the connection.
    fn receive_or_wait(&self, to_send: bool) -> Result<(), StoreError> {
        let mut buffer = lock(&self.buffer);
        if self.receive(&mut buffer)? {
            return Ok(());
        }
        wait(&self.socket, &self.server, to_send, POLL_INTERVAL)?;
        if !self.receive(&mut buffer)? && self.server.has_exited() {
            return Err(StoreError::gone());
        }
        Ok(())
    }

    /// Returns whether a message was received.
    fn receive(&self, buffer: &mut [u8]) -> Result<bool, StoreError> {
        for turn in 0..MESSAGES_PER_TURN {
            let (length, descriptor) = match socket::receive_with_fd(&self.socket, buffer) {
                Ok((0, _)) => return Err(StoreError::gone()),
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(turn > 0),
                Err(_) => return Err(StoreError::gone()),
            };
            let malformed = |_| StoreError::malformed("malformed message from the main process");
            let message = buffer.get(..length).ok_or(MalformedMessage).map_err(malformed)?;
            let mut records = RecordReader::of(message);
            if let Some(descriptor) = descriptor {
                self.map_region(records.answer(), descriptor)?;
            }
            let mut state = lock(&self.state);
            state.heard = Some(Instant::now());
            while let Some(answer) = records.answer() {
                answer.and_then(|answer| self.on(&mut state, answer)).map_err(malformed)?;
            }
        }
        Ok(true)
    }

    /// Maps a region of the server's memory.
    fn map_region(
        &self,
        record: Option<Result<ServerRecord<'_>, MalformedMessage>>,
        descriptor: OwnedFd,
    ) -> Result<(), StoreError> {
        let Some(Ok(ServerRecord::Region { number, length })) = record else {
            return Err(StoreError::malformed("a descriptor without a region from the main process"));
        };
        let region = Arc::new(ReadMapping::open(descriptor, length, self.passes_on)?);
        lock(&self.state).regions.insert(number, region);
        Ok(())
    }

    fn on(&self, state: &mut ConnectionState, answer: ServerRecord<'_>) -> Result<(), MalformedMessage> {
        let (tag, received) = match answer {
            ServerRecord::Leased { tag, slot, region, offset, length } => {
                let region = state.regions.get(&region).filter(|region| region.contains(offset, length));
                let region = Arc::clone(region.ok_or(MalformedMessage)?);
                let (offset, length) = (offset as usize, length as usize);
                (tag, Ok(SampleBytes::Shared { slot, region, offset, length }))
            }
            // Samples in it that are still held keep its mapping.
            ServerRecord::Ended { number } => {
                state.regions.remove(&number);
                return Ok(());
            }
            ServerRecord::Pong => return Ok(()),
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
            ServerRecord::Failed { tag, error } => (tag, Err(StoreError::sample(error))),
            ServerRecord::Hello(_) | ServerRecord::Refused(_) | ServerRecord::Region { .. } => {
                return Err(MalformedMessage);
            }
        };
        let waiting = state.waiting.remove(&tag).ok_or(MalformedMessage)?;
        if waiting.of_sample {
            state.samples -= 1;
        } else {
            state.calls -= 1;
        }
        match (waiting.caller, received) {
            (Some(caller), received) => state.results.entry(caller).or_default().push((tag, received)),
            (None, Ok(SampleBytes::Shared { slot, length, .. })) => self.add_release(state, slot, length),
            (None, _) => {}
        }
        Ok(())
    }

    /// Releases the sample in `slot`. Reported with the next request, or when enough have
    /// accumulated.
    pub(crate) fn release(&self, slot: u32, length: usize) {
        // A forked child holds nothing, and a thread that does not exist there may own the lock.
        if self.is_own() {
            self.add_release(&mut lock(&self.state), slot, length);
        }
    }

    fn add_release(&self, state: &mut ConnectionState, slot: u32, length: usize) {
        state.released.push(slot);
        state.released_bytes += length;
        if state.released_bytes < self.release_threshold && state.released.len() < MAX_RELEASES {
            return;
        }
        let mut message = Vec::with_capacity(MAX_RELEASES * wire::RELEASE_BYTES);
        let first = state.released.len().saturating_sub(MAX_RELEASES);
        state.released[first..].iter().for_each(|slot| wire::release(&mut message, *slot));
        // Messages that cannot be sent now are sent later.
        if self.send(state, &message).unwrap_or(false) {
            state.released.truncate(first);
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

/// Waits until the socket is readable or, with `to_send`, writable, or the server process ends.
fn wait(socket: &OwnedFd, process: &PeerProcess, to_send: bool, longest: Duration) -> Result<(), StoreError> {
    let what = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut watched = Vec::with_capacity(2);
    watched.push(PollFd::new(socket, what));
    if let Some(process) = process.descriptor() {
        watched.push(PollFd::from_borrowed_fd(process, PollFlags::IN));
    }
    match poll(&mut watched, Some(&socket::timeout(longest))) {
        // After a signal the caller checks `stop`.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(StoreError::system("the socket cannot be watched", error)),
    }
}

/// A registered caller, removed when dropped.
#[derive(Debug)]
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
