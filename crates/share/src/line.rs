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
use crate::connection::MOST_CALLS;
use crate::life::Life;
use crate::window::Window;
use crate::wire::{self, Answer, MOST, MOST_NAME, Malformed, Records};
use crate::{ShareError, ShareErrorKind, socket};

/// How often who waits looks up.
const LOOK_UP: Duration = Duration::from_millis(100);
/// How long the server may take to let a worker in.
const GREETING: Duration = Duration::from_secs(30);
/// How long to leave a server alone whose door is full.
const KNOCK: Duration = Duration::from_millis(5);
/// Messages heard before the others are told.
const TURN: usize = 16;
/// Slots that are let go of are told when so many have come together.
const MOST_LET_GO: usize = 1024;

/// Where a sample, or what a call gave, is.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the shared memory; the slot is to be let go.
    Shared { slot: u32, offset: usize, length: usize },
    /// In this process's own.
    Own(Vec<u8>),
}

/// Whether a request went.
#[derive(Debug)]
pub(crate) enum Sent<T> {
    Went(T),
    /// As many as may be are under way: some answer has to come first.
    TooMany,
    /// The socket has no room for it now.
    NoRoom,
}

/// What came for one who waits: the tag, and what it was.
pub(crate) type Arrived = (u32, Result<Place, ShareError>);

#[derive(Debug)]
pub(crate) struct Line {
    socket: OwnedFd,
    life: Life,
    pub(crate) window: Window,
    under_way: usize,
    let_go: usize,
    process: u32,
    state: Mutex<State>,
    arrived: Condvar,
    buffer: Mutex<Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    next_tag: u32,
    next_caller: u64,
    /// Samples that were asked for and did not come yet.
    samples: usize,
    /// Calls that were made and not answered yet.
    calls: usize,
    /// Who waits for what.
    waiting: HashMap<u32, Waiting>,
    /// What came, for those who wait.
    arrived: HashMap<u64, Vec<Arrived>>,
    listening: bool,
    gone: Option<ShareError>,
    let_go: Vec<u32>,
    let_go_bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    /// Nobody, where the caller has left.
    caller: Option<u64>,
    of_sample: bool,
    parts: Vec<u8>,
}

/// What one who waits wants to hear of its waiting.
pub(crate) struct Patience<'a> {
    stop: &'a mut dyn FnMut() -> bool,
    asked: Instant,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(stop: &'a mut dyn FnMut() -> bool) -> Self {
        Self { stop, asked: Instant::now() }
    }

    /// Asks whether to stop, where that was not asked for a while.
    fn look_up(&mut self) -> Result<(), ShareError> {
        if self.asked.elapsed() < LOOK_UP {
            return Ok(());
        }
        let stop = (self.stop)();
        self.asked = Instant::now();
        if stop { Err(ShareError::interrupted()) } else { Ok(()) }
    }
}

impl Line {
    /// Connects to the server at `address`.
    pub(crate) fn connect(address: &Address, patience: &mut Patience<'_>) -> Result<Self, ShareError> {
        let wrong = |error| ShareError::system("no connection to the main process", error);
        let begun = Instant::now();
        let to = address.socket().map_err(wrong)?;
        let late = || ShareError::new(ShareErrorKind::Gone, "the main process does not answer");
        let socket = loop {
            match socket::connect(&to) {
                Ok(socket) => break socket,
                Err(Errno::CONNREFUSED) => return Err(ShareError::gone()),
                Err(Errno::AGAIN | Errno::INTR) if begun.elapsed() < GREETING => std::thread::sleep(KNOCK),
                Err(Errno::AGAIN | Errno::INTR) => return Err(late()),
                Err(error) => return Err(wrong(error)),
            }
            patience.look_up()?;
        };
        let other = socket::other(&socket)
            .map_err(|error| ShareError::system("whose the data source is cannot be found out", error))?;
        let own = socket::own_user();
        if !socket::is_same_user(other, own) {
            let detail = format!("the data source is of user {}, this process of user {own}", other.user);
            return Err(ShareError::new(ShareErrorKind::Refused, detail));
        }
        let life = Life::of_other(&socket, other.process);
        match socket::tell(&socket, &wire::greeting(&address.secret)) {
            // Where the server has ended the connection already, its reason can still be read.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(wrong(error)),
        }
        let mut buffer = vec![0; MOST];
        let mut reset = false;
        let (length, descriptor) = loop {
            match socket::hear_with(&socket, &mut buffer) {
                Ok(heard) => break heard,
                // Closed before our greeting was read: the reason is still to be read.
                Err(Errno::CONNRESET) if !reset => {
                    reset = true;
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(ShareError::gone()),
            }
            if life.is_over() {
                return Err(ShareError::gone());
            }
            if begun.elapsed() >= GREETING {
                return Err(late());
            }
            wait(&socket, &life, false, LOOK_UP)?;
            patience.look_up()?;
        };
        let (hello, descriptor) = match (Records::of(&buffer[..length]).answer(), descriptor) {
            (Some(Ok(Answer::Hello(hello))), Some(descriptor)) => (hello, descriptor),
            (Some(Ok(Answer::Refused(why))), _) => {
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
            life,
            window: Window::open(descriptor, hello.memory)?,
            under_way: hello.under_way as usize,
            let_go: usize::try_from(hello.let_go).unwrap_or(usize::MAX),
            process: std::process::id(),
            state: Mutex::default(),
            arrived: Condvar::new(),
            buffer: Mutex::new(buffer),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that connected.
    pub(crate) fn is_own(&self) -> bool {
        self.process == std::process::id()
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
        for (_, came) in state.arrived.remove(&caller).into_iter().flatten() {
            if let Ok(Place::Shared { slot, length, .. }) = came {
                self.add_let_go(&mut state, slot, length);
            }
        }
    }

    /// Asks for as many of `ids` as may be under way and says which tag each got: none where too many are under way.
    pub(crate) fn ask(&self, caller: u64, ids: &[SampleId]) -> Result<Sent<Vec<u32>>, ShareError> {
        let mut state = self.state();
        let count =
            ids.len().min(self.under_way.saturating_sub(state.samples)).min(MOST / 2 / wire::ASK_BYTES);
        if count == 0 {
            return Ok(Sent::TooMany);
        }
        let mut message =
            Vec::with_capacity(count * wire::ASK_BYTES + state.let_go.len() * wire::LET_GO_BYTES);
        let let_go = state.let_go.len().min(MOST_LET_GO);
        state.let_go[..let_go].iter().for_each(|slot| wire::let_go(&mut message, *slot));
        let mut tags = Vec::with_capacity(count);
        for &id in &ids[..count] {
            let tag = state.tag();
            wire::ask(&mut message, tag, id);
            tags.push(tag);
        }
        if !self.tell(&state, &message)? {
            return Ok(Sent::NoRoom);
        }
        state.let_go.drain(..let_go);
        state.let_go_bytes = 0;
        state.samples += count;
        for &tag in &tags {
            state.waiting.insert(tag, Waiting { caller: Some(caller), of_sample: true, parts: Vec::new() });
        }
        Ok(Sent::Went(tags))
    }

    /// Makes a call, if no more than may be are under way.
    pub(crate) fn call(&self, caller: u64, name: &str, payload: &[u8]) -> Result<Sent<()>, ShareError> {
        let mut state = self.state();
        if state.calls >= MOST_CALLS {
            return Ok(Sent::TooMany);
        }
        let tag = state.tag();
        let mut message = Vec::with_capacity(MOST_NAME + payload.len());
        wire::call(&mut message, tag, name, payload);
        if !self.tell(&state, &message)? {
            return Ok(Sent::NoRoom);
        }
        state.calls += 1;
        state.waiting.insert(tag, Waiting { caller: Some(caller), of_sample: false, parts: Vec::new() });
        Ok(Sent::Went(()))
    }

    /// Sends a message; whether the socket had room for it.
    fn tell(&self, state: &State, message: &[u8]) -> Result<bool, ShareError> {
        if let Some(gone) = &state.gone {
            return Err(gone.clone());
        }
        // Where the server is gone, what it said before is still to be heard: that it is gone is heard after it.
        Ok(socket::tell(&self.socket, message).is_ok())
    }

    /// What has come for `caller`.
    pub(crate) fn take(&self, caller: u64) -> Vec<Arrived> {
        self.state().arrived.remove(&caller).unwrap_or_default()
    }

    /// Waits until something may have come for `caller`, or, if it wants `to_send`, until something may be sent.
    pub(crate) fn wait(
        &self,
        caller: u64,
        to_send: bool,
        patience: &mut Patience<'_>,
    ) -> Result<(), ShareError> {
        patience.look_up()?;
        let mut state = self.state();
        if state.arrived.contains_key(&caller) {
            return Ok(());
        }
        if let Some(gone) = &state.gone {
            return Err(gone.clone());
        }
        if state.listening {
            let waited = self.arrived.wait_timeout(state, LOOK_UP);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return Ok(());
        }
        state.listening = true;
        drop(state);
        let heard = self.listen(to_send);
        let mut state = self.state();
        state.listening = false;
        if let Err(error) = &heard {
            state.gone.get_or_insert_with(|| error.clone());
        }
        drop(state);
        self.arrived.notify_all();
        // Who has something arrived takes that first, and hears of the end the next time.
        Ok(())
    }

    /// Hears what there is, and waits for something where there is nothing. An error ends the line.
    fn listen(&self, to_send: bool) -> Result<(), ShareError> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.hear(&mut buffer)? {
            return Ok(());
        }
        wait(&self.socket, &self.life, to_send, LOOK_UP)?;
        if !self.hear(&mut buffer)? && self.life.is_over() {
            return Err(ShareError::gone());
        }
        Ok(())
    }

    /// Whether anything was heard.
    fn hear(&self, buffer: &mut [u8]) -> Result<bool, ShareError> {
        for turn in 0..TURN {
            let length = match socket::hear(&self.socket, buffer) {
                Ok(0) => return Err(ShareError::gone()),
                Ok(length) => length,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(turn > 0),
                Err(_) => return Err(ShareError::gone()),
            };
            let malformed = |_| ShareError::malformed("the main process says what has no meaning");
            let message = buffer.get(..length).ok_or(Malformed).map_err(malformed)?;
            let mut state = self.state();
            let mut records = Records::of(message);
            while let Some(answer) = records.answer() {
                answer.and_then(|answer| self.on(&mut state, answer)).map_err(malformed)?;
            }
        }
        Ok(true)
    }

    fn on(&self, state: &mut State, answer: Answer<'_>) -> Result<(), Malformed> {
        let (tag, came) = match answer {
            Answer::Held { tag, slot, offset, length } => {
                if !self.window.holds(offset, length) {
                    return Err(Malformed);
                }
                (tag, Ok(Place::Shared { slot, offset: offset as usize, length: length as usize }))
            }
            Answer::Part { tag, total, at, bytes } => {
                let waiting = state.waiting.get_mut(&tag).ok_or(Malformed)?;
                let total = usize::try_from(total).map_err(|_| Malformed)?;
                let parts = &mut waiting.parts;
                if parts.len() as u64 != at || parts.len() + bytes.len() > total {
                    return Err(Malformed);
                }
                if at == 0 && parts.try_reserve_exact(total).is_err() {
                    return Err(Malformed);
                }
                parts.extend_from_slice(bytes);
                if parts.len() < total {
                    return Ok(());
                }
                (tag, Ok(Place::Own(std::mem::take(parts))))
            }
            Answer::Failed { tag, error } => (tag, Err(ShareError::sample(error))),
            Answer::Hello(_) | Answer::Refused(_) => return Err(Malformed),
        };
        let waiting = state.waiting.remove(&tag).ok_or(Malformed)?;
        if waiting.of_sample {
            state.samples -= 1;
        } else {
            state.calls -= 1;
        }
        match (waiting.caller, came) {
            (Some(caller), came) => state.arrived.entry(caller).or_default().push((tag, came)),
            (None, Ok(Place::Shared { slot, length, .. })) => self.add_let_go(state, slot, length),
            (None, _) => {}
        }
        Ok(())
    }

    /// The sample in `slot` is no longer read. Told with the next request, or when enough has come together.
    pub(crate) fn let_go(&self, slot: u32, length: usize) {
        // A forked child holds nothing, and the lock may be held by a thread that it does not have.
        if self.is_own() {
            self.add_let_go(&mut self.state(), slot, length);
        }
    }

    fn add_let_go(&self, state: &mut State, slot: u32, length: usize) {
        state.let_go.push(slot);
        state.let_go_bytes += length;
        if state.let_go_bytes < self.let_go && state.let_go.len() < MOST_LET_GO {
            return;
        }
        let mut message = Vec::with_capacity(MOST_LET_GO * wire::LET_GO_BYTES);
        let first = state.let_go.len().saturating_sub(MOST_LET_GO);
        state.let_go[first..].iter().for_each(|slot| wire::let_go(&mut message, *slot));
        // What does not go now goes later.
        if self.tell(state, &message).unwrap_or(false) {
            state.let_go.truncate(first);
            state.let_go_bytes = 0;
        }
    }
}

impl State {
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
fn wait(socket: &OwnedFd, life: &Life, to_send: bool, longest: Duration) -> Result<(), ShareError> {
    let what = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut watched = Vec::with_capacity(2);
    watched.push(PollFd::new(socket, what));
    if let Some(life) = life.descriptor() {
        watched.push(PollFd::from_borrowed_fd(life, PollFlags::IN));
    }
    match poll(&mut watched, Some(&socket::timeout(longest))) {
        // A signal: who waits looks up.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(ShareError::system("the socket cannot be watched", error)),
    }
}

/// A place in the queue of those who wait, left when dropped.
pub(crate) struct Caller {
    pub(crate) line: Arc<Line>,
    pub(crate) number: u64,
}

impl Caller {
    pub(crate) fn new(line: &Arc<Line>) -> Self {
        Self { line: Arc::clone(line), number: line.enter() }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.line.leave(self.number);
    }
}
