//! The thread that serves all clients: receives requests, passes them to the engine, sends answers.
//!
//! Each turn gives every client a bounded share, so a long list of one client does not delay the
//! others.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::Address;
use crate::admission::Admission;
use crate::answer_queue::{AnswerBody, AnswerQueue, PostedAnswer};
use crate::connection::{Connection, IoStatus, ProtocolViolation};
use crate::peer_process::PeerProcess;
use crate::requests::{ConnectionId, ReplyHandle, SampleProvider, SampleRequest, WorkerCall};
use crate::retired::{RetiredClient, keep_until_unread};
use crate::{ServerSettings, StoreError, socket, wire};

/// The maximum number of connected clients.
const MAX_CLIENTS: usize = 1024;
/// A client may defer releases of up to this fraction of the leases' limit.
const UNRELEASED_PART: u64 = 256;
/// Connections accepted per turn, so that a flood of connections does not delay clients.
const ACCEPTS_PER_TURN: usize = 64;
/// How often clients without a pidfd are polled, and how late regions that have ended are unmapped.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
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
    accept_paused_until: Option<Instant>,
    buffer: Vec<u8>,
    admission: Admission,
    max_in_flight: usize,
    late_release_bytes: u64,
    /// Clients whose connection this end has closed, and which may still read samples.
    retired: Vec<RetiredClient>,
    /// When client processes without a pidfd were last polled.
    last_poll: Instant,
}

impl ServerLoop {
    /// Starts to watch `listener`.
    pub(crate) fn new(
        samples: Arc<dyn SampleProvider>,
        queue: Arc<AnswerQueue>,
        listener: OwnedFd,
        address: &Address,
        settings: ServerSettings,
    ) -> Result<Self, StoreError> {
        let wrong = |error| StoreError::system("sockets cannot be watched", error);
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
            accept_paused_until: None,
            buffer: vec![0; wire::MAX_MESSAGE],
            admission: Admission::new(address),
            max_in_flight: settings.max_in_flight.max(1),
            late_release_bytes: settings.late_release_bytes,
            retired: Vec::new(),
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
        self.send();
    }

    fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        let ready = self.connections.values().any(Connection::has_requests);
        let until = if !self.queue.prepare_sleep() || ready {
            Some(Duration::ZERO)
        } else {
            let accepting = self.accept_paused_until.map(|at| at.saturating_duration_since(Instant::now()));
            let log = self.admission.next_log().map(|at| at.saturating_duration_since(Instant::now()));
            let is_polled = |one: &Connection| one.process.needs_polling() || one.has_regions();
            let poll = (!self.retired.is_empty() || self.connections.values().any(is_polled))
                .then_some(POLL_INTERVAL);
            [accepting, log, poll].into_iter().flatten().min()
        };
        let timeout = until.map(socket::timeout);
        let slept = epoll::wait(&self.watch, rustix::buffer::spare_capacity(events), timeout.as_ref());
        if let Err(error) = slept
            && error != Errno::INTR
        {
            tracing::error!(%error, "clients are no longer served: their sockets cannot be watched");
            self.queue.stop();
        }
        self.queue.mark_awake(events.iter().any(|event| event.data.u64() == WAKE));
        if self.accept_paused_until.is_some_and(|until| until <= Instant::now()) {
            self.accept_paused_until = None;
            self.watch_listener(epoll::EventFlags::IN);
        }
        self.admission.log();
        if self.last_poll.elapsed() >= POLL_INTERVAL {
            self.last_poll = Instant::now();
            self.remove_exited();
            self.end_regions();
            self.retired.retain(RetiredClient::is_reading);
        }
    }

    /// Has clients unmap the regions that have ended.
    fn end_regions(&mut self) {
        let failed =
            |(key, one): (&u64, &mut Connection)| one.end_regions().err().map(|violation| (*key, violation));
        for (key, why) in self.connections.iter_mut().filter_map(failed).collect::<Vec<_>>() {
            self.disconnect(key, why);
        }
    }

    /// Removes clients whose end only polling detects.
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
            tracing::warn!(%error, "new clients cannot connect");
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
        let admitted = self.admission.authenticate(key, &mut self.buffer, &self.watch);
        let Some((socket, process, version)) = admitted else { return };
        if self.connections.len() >= MAX_CLIENTS {
            self.admission.refuse(&socket, &format!("already {MAX_CLIENTS} clients are connected"));
        } else if let Err(error) = self.connect(key, socket, process, version) {
            self.admission.note_refused(&error.to_string());
        }
    }

    /// Greets a client and starts to serve it.
    fn connect(&mut self, key: u64, socket: OwnedFd, process: i32, version: u16) -> Result<(), StoreError> {
        let wrong = |error| StoreError::system("its connection failed", error);
        let hello = wire::ServerHello {
            version,
            max_in_flight: self.max_in_flight as u32,
            release_threshold: self.late_release_bytes.min(self.queue.leases.limit() / UNRELEASED_PART),
        };
        socket::send_message(&socket, &wire::hello(hello)).map_err(wrong)?;
        let process = PeerProcess::of_peer(&socket, process);
        let connection = Connection::new(socket, process, self.max_in_flight);
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

    /// Ends a connection of a client that has closed it or has exited. Its leases end, and its open
    /// requests are marked as unwanted.
    fn remove(&mut self, key: u64) {
        self.end(key);
    }

    /// Ends a connection, and returns the samples that its client may still read.
    fn end(&mut self, key: u64) -> Option<RetiredClient> {
        let connection = self.connections.remove(&key)?;
        connection.wanted.store(false, Ordering::Relaxed);
        // Explicitly, because a forked child may keep the sockets and their watches alive.
        let _ = epoll::delete(&self.watch, &connection.socket);
        if let Some(process) = connection.process.descriptor() {
            let _ = epoll::delete(&self.watch, process);
        }
        // The client sees the end. Its own end is seen here.
        let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
        self.queue.clients.fetch_sub(1, Ordering::Relaxed);
        self.samples.disconnected(ConnectionId(key));
        Some(connection.retire())
    }

    /// Ends a connection whose client lives.
    fn retire(&mut self, key: u64) {
        let client = self.end(key);
        self.retired.extend(client.filter(RetiredClient::holds_samples));
    }

    fn disconnect(&mut self, key: u64, why: ProtocolViolation) {
        tracing::warn!(why = why.0, "a client was disconnected");
        self.retire(key);
    }

    fn receive(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        match connection.receive(&mut self.buffer) {
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

    /// Passes requests of every client to the engine.
    fn start(&mut self) {
        for (&key, connection) in &mut self.connections {
            let started = connection.take_requests();
            let reply = |tag| ReplyHandle::new(&self.queue, (key, tag), &connection.wanted, true);
            let sample_requests: Vec<_> =
                started.into_iter().map(|(tag, key, due)| SampleRequest::new(key, due, reply(tag))).collect();
            if !sample_requests.is_empty() {
                self.samples.get(sample_requests);
            }
        }
    }

    fn answer(&mut self, posted: PostedAnswer) {
        let PostedAnswer { connection: key, tag, answer } = posted;
        // A lease for a client that has left ends here.
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let done = match answer {
            AnswerBody::Leased(lease) => connection.lease(tag, lease),
            AnswerBody::Whole(bytes) => {
                if bytes.len() > wire::MAX_INLINE {
                    self.queue.over_the_socket.fetch_add(1, Ordering::Relaxed);
                }
                connection.send_whole(tag, bytes)
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

    /// Sends the queued answers of every client.
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
            self.retire(key);
        }
    }
}

impl Drop for ServerLoop {
    /// Shuts down all connections, also unauthenticated ones, explicitly because a forked child may
    /// keep the sockets open. Runs after a panic as well, so that no client waits for ever. Samples
    /// that clients hold stay.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        while socket::accept(&self.listener).is_ok() {}
        self.admission.close(&self.watch);
        for key in self.connections.keys().copied().collect::<Vec<_>>() {
            self.retire(key);
        }
        keep_until_unread(std::mem::take(&mut self.retired));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use foreread_tier::lock;

    use super::*;
    use crate::address::Address;
    use crate::leases::Leases;

    /// Keeps its requests.
    #[derive(Default)]
    struct HoldingEngine(Mutex<Vec<SampleRequest>>);

    impl SampleProvider for HoldingEngine {
        fn get(&self, sample_requests: Vec<SampleRequest>) {
            lock(&self.0).extend(sample_requests);
        }

        fn call(&self, _: WorkerCall) {}
    }

    /// A server driven by hand.
    struct Rig {
        server: ServerLoop,
        address: Address,
    }

    impl Rig {
        fn new() -> Self {
            let buffers = Arc::new(foreread_tier::ArenaBuffers::default());
            let queue = Arc::new(AnswerQueue::new(Leases::new(buffers, 256 << 10)).unwrap());
            let address = Address::new().unwrap();
            let listener = socket::listen(&address.socket().unwrap()).unwrap();
            let settings = ServerSettings::default();
            let server =
                ServerLoop::new(Arc::new(HoldingEngine::default()), queue, listener, &address, settings);
            Self { server: server.unwrap(), address }
        }

        /// A connected client.
        fn client(&mut self) -> (u64, OwnedFd) {
            let client = socket::connect(&self.address.socket().unwrap()).unwrap();
            socket::send_message(&client, &wire::greeting(&self.address.secret)).unwrap();
            self.server.accept();
            let key = self.server.next - 2;
            self.server.admit(key);
            (key, client)
        }
    }

    /// The socket stays open, as it does after a fork of the client. Only its process shows the
    /// end.
    #[test]
    // semantics: WORKER-4
    fn killed_worker_is_detected_without_a_pidfd() {
        let mut rig = Rig::new();
        let (key, _socket) = rig.client();
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
        rig.client();
        assert_eq!(rig.server.connections.len(), 2);
    }
}
