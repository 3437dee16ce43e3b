//! The thread that serves all workers: receives requests, passes them to the engine, sends answers.
//!
//! Each turn gives every worker a bounded share, so a long list of one worker does not delay the
//! others. Room in the shared memory is assigned in turn among workers, and in the order of arrival
//! within one worker. A sample goes through the socket instead
//!
//! * when it would not fit even if all other workers released everything,
//! * when no slot was released for [`RELEASE_TIMEOUT`],
//! * when it has waited for [`ROOM_TIMEOUT`].
//!
//! The price of the socket is a second copy of the bytes, never a wrong or missing sample.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::Secret;
use crate::admission::Admission;
use crate::answer_queue::{AnswerBody, AnswerQueue, PostedAnswer};
use crate::connection::{Connection, IoStatus, MAX_IN_FLIGHT, ProtocolViolation, QueuedSample};
use crate::extents::rounded;
use crate::peer_process::PeerProcess;
use crate::requests::{ReplyHandle, SampleProvider, SampleRequest, WorkerCall};
use crate::{ShareError, socket, wire};

/// If no slot is released for this long, samples stop waiting for room.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(20);
/// The longest that a sample waits for room.
const ROOM_TIMEOUT: Duration = Duration::from_millis(250);
/// The maximum number of connected workers.
const MAX_CLIENTS: usize = 1024;
/// A worker may defer releases of up to this fraction of the memory.
const UNRELEASED_PART: usize = 256;
/// Connections accepted per turn, so that a flood of connections does not delay workers.
const ACCEPTS_PER_TURN: usize = 64;
/// How often worker processes without a pidfd are polled.
const EXIT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long no connection is accepted when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// In the key of a watched descriptor: the pidfd instead of the socket.
const PROCESS: u64 = 1;

pub(crate) struct ServerLoop {
    samples: Arc<dyn SampleProvider>,
    queue: Arc<AnswerQueue>,
    listener: OwnedFd,
    watch: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Workers that wait for room, in turn.
    room_queue: VecDeque<u64>,
    last_release: Instant,
    accept_paused_until: Option<Instant>,
    buffer: Vec<u8>,
    admission: Admission,
    /// When worker processes without a pidfd were last polled.
    last_poll: Instant,
}

impl ServerLoop {
    /// Starts to watch `listener`.
    pub(crate) fn new(
        samples: Arc<dyn SampleProvider>,
        queue: Arc<AnswerQueue>,
        listener: OwnedFd,
        secret: Secret,
    ) -> Result<Self, ShareError> {
        let wrong = |error| ShareError::system("sockets cannot be watched", error);
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(wrong)?;
        for (what, name) in [(rustix::fd::AsFd::as_fd(&listener), LISTENER), (queue.wake_fd(), WAKE)] {
            epoll::add(&watch, what, epoll::EventData::new_u64(name), epoll::EventFlags::IN)
                .map_err(wrong)?;
        }
        Ok(Self {
            samples,
            queue,
            listener,
            watch,
            connections: BTreeMap::new(),
            next: 0,
            room_queue: VecDeque::new(),
            last_release: Instant::now(),
            accept_paused_until: None,
            buffer: vec![0; wire::MAX_MESSAGE],
            admission: Admission::new(secret),
            last_poll: Instant::now(),
        })
    }

    /// Serves until the queue is stopped.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        let mut posted = Vec::new();
        while !self.queue.is_stopping() {
            self.sleep(&mut events);
            for event in events.drain(..) {
                self.on(event.data.u64(), event.flags);
            }
            self.turn(&mut posted);
        }
    }

    /// Passes requests to the engine and sends answers.
    fn turn(&mut self, posted: &mut Vec<PostedAnswer>) {
        self.start();
        self.queue.take(posted);
        for answer in posted.drain(..) {
            self.answer(answer);
        }
        self.make_room();
        self.send();
    }

    fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        let ready = self.connections.values().any(Connection::has_requests);
        let until = if !self.queue.prepare_sleep() || ready {
            Some(Duration::ZERO)
        } else {
            let room = self.next_room_timeout().map(|at| at.saturating_duration_since(Instant::now()));
            let accepting = self.accept_paused_until.map(|at| at.saturating_duration_since(Instant::now()));
            let log = self.admission.next_log().map(|at| at.saturating_duration_since(Instant::now()));
            let poll = self
                .connections
                .values()
                .any(|one| one.process.needs_polling())
                .then_some(EXIT_POLL_INTERVAL);
            [room, accepting, log, poll].into_iter().flatten().min()
        };
        let timeout = until.map(socket::timeout);
        let slept = epoll::wait(&self.watch, rustix::buffer::spare_capacity(events), timeout.as_ref());
        if let Err(error) = slept
            && error != Errno::INTR
        {
            tracing::error!(%error, "workers are no longer served: their sockets cannot be watched");
            self.queue.stop();
        }
        self.queue.mark_awake(events.iter().any(|event| event.data.u64() == WAKE));
        if self.accept_paused_until.is_some_and(|until| until <= Instant::now()) {
            self.accept_paused_until = None;
            self.watch_listener(epoll::EventFlags::IN);
        }
        self.admission.log();
        if self.last_poll.elapsed() >= EXIT_POLL_INTERVAL {
            self.last_poll = Instant::now();
            self.remove_exited();
        }
    }

    /// Removes workers whose end only polling detects.
    fn remove_exited(&mut self) {
        let ended = |(key, one): (&u64, &Connection)| {
            (one.process.needs_polling() && one.process.has_exited()).then_some(*key)
        };
        for key in self.connections.iter().filter_map(ended).collect::<Vec<_>>() {
            self.remove(key);
        }
    }

    fn watch_listener(&self, what: epoll::EventFlags) {
        let name = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.watch, &self.listener, name, what) {
            tracing::warn!(%error, "new workers cannot connect");
        }
    }

    fn on(&mut self, name: u64, flags: epoll::EventFlags) {
        match name {
            WAKE => {}
            LISTENER => self.accept(),
            _ if name & PROCESS != 0 => self.remove(name & !PROCESS),
            _ if self.admission.has(name) => self.admit(name),
            _ => {
                // Writability needs no action: every turn sends.
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.receive(name);
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let socket = match socket::accept(&self.listener) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    self.admission.note_shortage(error);
                    self.accept_paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    self.watch_listener(epoll::EventFlags::empty());
                    return;
                }
            };
            while self.admission.is_full() {
                // The oldest connection may have sent its greeting by now.
                if let Some(first) = self.admission.oldest() {
                    self.admit(first);
                    self.admission.evict(first, &self.watch);
                }
            }
            let key = self.next;
            self.next += 2;
            self.admission.add(key, socket, &self.watch);
        }
    }

    /// Admits a connection whose greeting has arrived, or refuses it with a reason.
    fn admit(&mut self, key: u64) {
        let Some((socket, process)) = self.admission.authenticate(key, &mut self.buffer, &self.watch) else {
            return;
        };
        if self.connections.len() >= MAX_CLIENTS {
            self.admission.refuse(&socket, &format!("already {MAX_CLIENTS} workers are connected"));
        } else if let Err(error) = self.connect(key, socket, process) {
            self.admission.note_refused(&error.to_string());
        }
    }

    /// Sends the shared memory to a worker and starts to serve it.
    fn connect(&mut self, key: u64, socket: OwnedFd, process: i32) -> Result<(), ShareError> {
        let wrong = |error| ShareError::system("its connection failed", error);
        let memory = &self.queue.memory;
        let hello = wire::ServerHello {
            memory: memory.length() as u64,
            max_in_flight: MAX_IN_FLIGHT as u32,
            release_threshold: (memory.length() / UNRELEASED_PART) as u64,
        };
        socket::send_with_fd(&socket, &wire::hello(hello), memory.file()).map_err(wrong)?;
        let process = PeerProcess::of_peer(&socket, process);
        let connection = Connection::new(socket, process);
        let event = epoll::EventFlags::IN;
        epoll::add(&self.watch, &connection.socket, epoll::EventData::new_u64(key), event).map_err(wrong)?;
        if let Some(process) = connection.process.descriptor()
            && let Err(error) =
                epoll::add(&self.watch, process, epoll::EventData::new_u64(key | PROCESS), event)
        {
            let _ = epoll::delete(&self.watch, &connection.socket);
            return Err(wrong(error));
        }
        self.connections.insert(key, connection);
        self.queue.clients.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a connection. Its slots are released, and its open requests are marked as unwanted.
    fn remove(&mut self, key: u64) {
        let Some(connection) = self.connections.remove(&key) else { return };
        connection.wanted.store(false, Ordering::Relaxed);
        // Explicitly, because a forked child may keep the sockets and their watches alive.
        let _ = epoll::delete(&self.watch, &connection.socket);
        if let Some(process) = connection.process.descriptor() {
            let _ = epoll::delete(&self.watch, process);
        }
        let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
        self.room_queue.retain(|turn| *turn != key);
        self.queue.waiting.fetch_sub(connection.waiting.len() as u64, Ordering::Relaxed);
        self.queue.clients.fetch_sub(1, Ordering::Relaxed);
        drop(connection);
        self.last_release = Instant::now();
    }

    fn disconnect(&mut self, key: u64, why: ProtocolViolation) {
        tracing::warn!(why = why.0, "a worker was disconnected");
        self.remove(key);
    }

    fn receive(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let mut freed = false;
        let received = connection.receive(&mut self.buffer, &mut freed);
        if freed {
            self.last_release = Instant::now();
        }
        match received {
            Ok(IoStatus::Closed) => self.remove(key),
            Ok(IoStatus::Done | IoStatus::More) => self.call(key),
            Err(why) => self.disconnect(key, why),
        }
    }

    fn call(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        for (tag, name, payload) in connection.calls() {
            let reply = ReplyHandle::new(&self.queue, (key, tag), &connection.wanted, false);
            self.samples.call(WorkerCall::new(name, payload, reply));
        }
    }

    /// Passes requests of every worker to the engine.
    fn start(&mut self) {
        for (&key, connection) in &mut self.connections {
            let started = connection.take_requests();
            let reply = |tag| ReplyHandle::new(&self.queue, (key, tag), &connection.wanted, true);
            let sample_requests: Vec<_> =
                started.into_iter().map(|(tag, id)| SampleRequest::new(id, reply(tag))).collect();
            if !sample_requests.is_empty() {
                self.samples.get(sample_requests);
            }
        }
    }

    fn answer(&mut self, posted: PostedAnswer) {
        let PostedAnswer { connection: key, tag, answer } = posted;
        // A slot for a worker that has left is released here.
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let done = match answer {
            AnswerBody::Placed(slot) => connection.lease(tag, slot),
            AnswerBody::Whole(bytes) if bytes.is_empty() => {
                connection.send_in_parts(tag, bytes);
                Ok(())
            }
            AnswerBody::Whole(bytes) => {
                if connection.waiting.is_empty() {
                    self.room_queue.push_back(key);
                }
                connection.waiting.push_back(QueuedSample { tag, bytes, since: Instant::now() });
                self.queue.waiting.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            AnswerBody::Called(bytes) => {
                connection.reply(tag, bytes);
                Ok(())
            }
            AnswerBody::Failed { error, of_sample } => connection.fail(tag, of_sample, &error),
        };
        if let Err(why) = done {
            self.disconnect(key, why);
        }
    }

    /// Assigns free memory to waiting samples, and sends overdue ones through the socket, until
    /// neither makes progress.
    fn make_room(&mut self) {
        while !self.room_queue.is_empty() {
            self.assign_room();
            if !self.send_overdue() {
                return;
            }
        }
    }

    /// One sample per worker in turn. The first without room stops the others, or a large one would
    /// never find any.
    fn assign_room(&mut self) {
        while let Some(&key) = self.room_queue.front() {
            let Some(connection) = self.connections.get_mut(&key) else { return };
            let Some(first) = connection.waiting.front() else { return };
            let Some(slot) = self.queue.memory.place(&first.bytes) else { return };
            let tag = first.tag;
            connection.waiting.pop_front();
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            self.room_queue.pop_front();
            if !connection.waiting.is_empty() {
                self.room_queue.push_back(key);
            }
            if let Err(why) = connection.lease(tag, slot) {
                self.disconnect(key, why);
            }
        }
    }

    /// Sends samples through the socket whose wait is over or hopeless. Returns whether there were
    /// any.
    fn send_overdue(&mut self) -> bool {
        let now = Instant::now();
        let stuck = now.saturating_duration_since(self.last_release) >= RELEASE_TIMEOUT;
        let total = self.queue.memory.length();
        let mut moved = false;
        for key in std::mem::take(&mut self.room_queue) {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            let others = total.saturating_sub(connection.leased_bytes);
            while let Some(first) = connection.waiting.pop_front() {
                let hopeless = rounded(first.bytes.len()).is_none_or(|length| length > others);
                if !(hopeless || stuck || now.saturating_duration_since(first.since) >= ROOM_TIMEOUT) {
                    connection.waiting.push_front(first);
                    break;
                }
                connection.send_in_parts(first.tag, first.bytes);
                self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
                self.queue.over_the_socket.fetch_add(1, Ordering::Relaxed);
                moved = true;
            }
            if !connection.waiting.is_empty() {
                self.room_queue.push_back(key);
            }
        }
        moved
    }

    /// When the next waiting sample becomes overdue.
    fn next_room_timeout(&self) -> Option<Instant> {
        let first = |key| self.connections.get(key)?.waiting.front().map(|first| first.since + ROOM_TIMEOUT);
        let patience = self.room_queue.iter().filter_map(first).min()?;
        Some(patience.min(self.last_release + RELEASE_TIMEOUT))
    }

    /// Sends the queued answers of every worker.
    fn send(&mut self) {
        let mut gone = Vec::new();
        for (&key, connection) in &mut self.connections {
            let more = match connection.send() {
                IoStatus::Done => false,
                IoStatus::More => true,
                IoStatus::Closed => {
                    gone.push(key);
                    continue;
                }
            };
            if more != connection.watches_writable {
                connection.watches_writable = more;
                let events =
                    if more { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
                let name = epoll::EventData::new_u64(key);
                if epoll::modify(&self.watch, &connection.socket, name, events).is_err() {
                    gone.push(key);
                }
            }
        }
        for key in gone {
            self.remove(key);
        }
    }
}

impl Drop for ServerLoop {
    /// Shuts down all connections, also unauthenticated ones, explicitly because a forked child may
    /// keep the sockets open. Runs after a panic as well, so that no worker waits for ever.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        while socket::accept(&self.listener).is_ok() {}
        self.admission.close(&self.watch);
        for key in self.connections.keys().copied().collect::<Vec<_>>() {
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use bytes::Bytes;
    use foreread_types::SampleId;

    use super::*;
    use crate::address::Address;
    use crate::memory::{SharedMemory, SharedSlot};

    const KIB: usize = 1 << 10;

    /// Keeps its requests.
    #[derive(Default)]
    struct HoldingEngine(Mutex<Vec<SampleRequest>>);

    impl SampleProvider for HoldingEngine {
        fn get(&self, sample_requests: Vec<SampleRequest>) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(sample_requests);
        }

        fn call(&self, _: WorkerCall) {}
    }

    /// A server driven by hand, whose memory of 256 KiB is full.
    struct Rig {
        server: ServerLoop,
        requested: Arc<HoldingEngine>,
        address: Address,
        taken: Vec<SharedSlot>,
    }

    impl Rig {
        fn new() -> Self {
            let requested = Arc::new(HoldingEngine::default());
            let queue = Arc::new(AnswerQueue::new(SharedMemory::new(256 << 10).unwrap()).unwrap());
            let address = Address::new().unwrap();
            let listener = socket::listen(&address.socket().unwrap()).unwrap();
            let taken = (0..16).map(|_| queue.memory.place(&[0; 16 * KIB]).unwrap()).collect();
            let samples: Arc<dyn SampleProvider> = Arc::clone(&requested) as _;
            let server = ServerLoop::new(samples, queue, listener, address.secret).unwrap();
            Self { server, requested, address, taken }
        }

        /// A worker that requests samples of these sizes in KiB, which arrive.
        fn worker(&mut self, samples: &[usize]) -> (u64, OwnedFd) {
            let worker = socket::connect(&self.address.socket().unwrap()).unwrap();
            socket::send_message(&worker, &wire::greeting(&self.address.secret)).unwrap();
            self.server.accept();
            let key = self.server.next - 2;
            self.server.admit(key);
            let mut message = Vec::new();
            (0..)
                .zip(samples)
                .for_each(|(tag, kib)| wire::encode_request(&mut message, tag, SampleId(*kib as u64)));
            if !message.is_empty() {
                socket::send_message(&worker, &message).unwrap();
            }
            self.server.receive(key);
            self.server.start();
            for request in self.requested.0.lock().unwrap().drain(..) {
                let length = request.id().0 as usize * KIB;
                request.answer(Ok(Bytes::from(vec![1; length])));
            }
            let mut posted = Vec::new();
            self.server.queue.take(&mut posted);
            posted.into_iter().for_each(|posted| self.server.answer(posted));
            (key, worker)
        }

        /// Sets how long ago a slot was released and how long every sample has waited.
        fn pass(&mut self, since_freed: Duration, waited: Duration) {
            // An hour ahead, so that the duration of the test makes no difference.
            let ahead = Instant::now() + Duration::from_secs(3600);
            self.server.last_release =
                if since_freed.is_zero() { ahead } else { Instant::now() - since_freed };
            for waiting in self.server.connections.values_mut().flat_map(|one| &mut one.waiting) {
                waiting.since = if waited.is_zero() { ahead } else { Instant::now() - waited };
            }
        }

        /// Frees `kib` and returns what each worker holds, in KiB.
        fn free(&mut self, kib: usize, of: &[u64]) -> Vec<usize> {
            self.taken.truncate(self.taken.len() - kib / 16);
            self.server.make_room();
            of.iter().map(|key| self.server.connections[key].leased_bytes / KIB).collect()
        }

        fn through_the_socket(&self) -> u64 {
            self.server.queue.over_the_socket.load(Ordering::Relaxed)
        }

        fn waiting(&self) -> u64 {
            self.server.queue.waiting.load(Ordering::Relaxed)
        }
    }

    /// The socket stays open, as it does after a fork of the worker. Only its process shows the
    /// end.
    #[test]
    // semantics: WORKER-4
    fn killed_worker_is_detected_without_a_pidfd() {
        let mut rig = Rig::new();
        let (key, _socket) = rig.worker(&[]);
        let mut process =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let number = rustix::process::Pid::from_child(&process);
        rig.server.connections.get_mut(&key).unwrap().process = PeerProcess::Pid(number);
        rig.server.remove_exited();
        assert_eq!(rig.server.connections.len(), 1);
        process.kill().unwrap();
        process.wait().unwrap();
        let mut events = Vec::with_capacity(8);
        // Only the poll's timeout ends the sleep.
        for _ in 0..1000 {
            rig.server.sleep(&mut events);
            events.clear();
            if rig.server.connections.is_empty() {
                return;
            }
        }
        panic!("its slots are never given back");
    }

    #[test]
    // semantics: WORKER-7
    fn silent_connections_lock_out_no_worker() {
        let mut rig = Rig::new();
        let connect = |rig: &mut Rig| {
            let socket = socket::connect(&rig.address.socket().unwrap()).unwrap();
            rig.server.accept();
            socket
        };
        let worker = connect(&mut rig);
        socket::send_message(&worker, &wire::greeting(&rig.address.secret)).unwrap();
        let silent: Vec<_> = (0..300).map(|_| connect(&mut rig)).collect();
        // The evicted worker is admitted, because its greeting had arrived. The silent ones were
        // closed.
        assert_eq!(rig.server.connections.len(), 1);
        let closed = |socket: &OwnedFd| socket::receive_message(socket, &mut [0; 100]) == Ok(0);
        assert_eq!(
            silent.iter().filter(|socket| closed(socket)).count(),
            300 - crate::admission::MAX_PENDING
        );
        rig.worker(&[]);
        assert_eq!(rig.server.connections.len(), 2);
    }

    #[test]
    fn room_goes_to_workers_in_turn() {
        let mut rig = Rig::new();
        let (greedy, _a) = rig.worker(&[16; 10]);
        let (modest, _b) = rig.worker(&[16; 2]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(16, &[greedy, modest]), [16, 0]);
        assert_eq!(rig.free(16, &[greedy, modest]), [16, 16]);
        assert_eq!(rig.free(16, &[greedy, modest]), [32, 16]);
        assert_eq!(rig.free(16, &[greedy, modest]), [32, 32]);
        assert_eq!(rig.free(32, &[greedy, modest]), [64, 32]);
        assert_eq!((rig.through_the_socket(), rig.waiting()), (0, 6));
    }

    #[test]
    fn large_sample_is_not_overtaken_for_ever() {
        let mut rig = Rig::new();
        let (large, _a) = rig.worker(&[64]);
        let (small, _b) = rig.worker(&[16; 3]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(48, &[large, small]), [0, 0]);
        assert_eq!(rig.free(16, &[large, small]), [64, 0]);
        assert_eq!(rig.free(32, &[large, small]), [64, 32]);
    }

    #[test]
    fn late_sample_does_not_overtake_waiting_ones() {
        let mut rig = Rig::new();
        let (first, _a) = rig.worker(&[64]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(32, &[first]), [0]);
        let (late, _b) = rig.worker(&[16]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(0, &[first, late]), [0, 0]);
        assert_eq!(rig.free(32, &[first, late]), [64, 0]);
    }

    #[test]
    fn overdue_sample_goes_through_the_socket() {
        let short = Duration::from_millis(1);
        for (since_freed, waited, gone) in [
            (Duration::ZERO, Duration::ZERO, 0),
            (RELEASE_TIMEOUT, short, 2),
            (Duration::ZERO, ROOM_TIMEOUT, 2),
        ] {
            let mut rig = Rig::new();
            let (one, _a) = rig.worker(&[32]);
            let (other, _b) = rig.worker(&[16]);
            rig.pass(since_freed, waited);
            assert_eq!(rig.free(0, &[one, other]), [0, 0]);
            assert_eq!(
                (rig.through_the_socket(), rig.waiting()),
                (gone, 2 - gone),
                "{since_freed:?} {waited:?}"
            );
        }
    }

    #[test]
    fn hopeless_sample_does_not_wait_for_room() {
        let mut rig = Rig::new();
        rig.taken.truncate(6);
        let (one, _a) = rig.worker(&[160, 112, 80, 16]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        // The other workers hold 96 KiB together. So the second never fits, and the third does in
        // the end.
        assert_eq!(rig.free(0, &[one]), [160]);
        assert_eq!((rig.through_the_socket(), rig.waiting()), (1, 2));
        assert_eq!(rig.free(96, &[one]), [256]);
        assert_eq!((rig.through_the_socket(), rig.waiting()), (1, 0));
    }

    #[test]
    fn leaving_worker_makes_way() {
        let mut rig = Rig::new();
        let (leaving, a) = rig.worker(&[64]);
        let (staying, _b) = rig.worker(&[16]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(16, &[leaving, staying]), [0, 0]);
        drop(a);
        rig.server.receive(leaving);
        assert_eq!(rig.free(0, &[staying]), [16]);
        assert_eq!(rig.waiting(), 0);
    }
}
