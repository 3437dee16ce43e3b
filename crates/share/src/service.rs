//! The thread that serves all workers: hears what they want, has it read, tells them where it is.
//!
//! Each turn gives every worker a bounded share, so none waits for another's long list. Whoever waits for room waits in
//! turn among workers, each worker's samples in the order in which they came. Nobody waits for room that does not
//! come: a sample goes through the socket instead
//!
//! * when it would not fit even if all other workers let go of all they hold;
//! * when nobody has let go of anything for [`STUCK`];
//! * when it has waited for [`PATIENCE`] while smaller ones or others' came and went.
//!
//! The price of that way is a second copy of the bytes, not a wrong or missing sample.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::address::Secret;
use crate::admission::Admission;
use crate::asks::{Ask, Call, Reply, Samples};
use crate::connection::{Connection, Heard, MOST_UNDER_WAY, Outrageous, Waiting};
use crate::extents::rounded;
use crate::life::Life;
use crate::queue::{Answered, Posted, Queue};
use crate::{ShareError, socket, wire};

/// After this long without any room coming free, none is waited for.
const STUCK: Duration = Duration::from_millis(20);
/// The longest that a sample waits for room.
const PATIENCE: Duration = Duration::from_millis(250);
/// Workers that may be connected.
const MOST_CLIENTS: usize = 1024;
/// The part of the memory that a worker may keep for a while after it let go of it.
const LET_GO_PART: usize = 256;
/// Connections that are accepted in one turn, so that those who only connect delay nobody for long.
const ACCEPTED: usize = 64;
/// How often workers are polled of whose process there is no descriptor.
const POLL: Duration = Duration::from_secs(1);
/// How long no connection is taken when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
/// In the name of what is watched: the process and not its socket.
const LIFE: u64 = 1;

pub(crate) struct Service {
    samples: Arc<dyn Samples>,
    queue: Arc<Queue>,
    listener: OwnedFd,
    watch: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Who waits for room, in turn.
    turns: VecDeque<u64>,
    last_freed: Instant,
    deaf_until: Option<Instant>,
    buffer: Vec<u8>,
    admission: Admission,
    /// When the workers were last polled that only polling shows the end of.
    polled: Instant,
}

impl Service {
    /// Begins to watch `listener`.
    pub(crate) fn new(
        samples: Arc<dyn Samples>,
        queue: Arc<Queue>,
        listener: OwnedFd,
        secret: Secret,
    ) -> Result<Self, ShareError> {
        let wrong = |error| ShareError::system("sockets cannot be watched", error);
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(wrong)?;
        for (what, name) in [(rustix::fd::AsFd::as_fd(&listener), LISTENER), (queue.bell(), BELL)] {
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
            turns: VecDeque::new(),
            last_freed: Instant::now(),
            deaf_until: None,
            buffer: vec![0; wire::MOST],
            admission: Admission::new(secret),
            polled: Instant::now(),
        })
    }

    /// Serves until it is told to stop.
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

    /// Has read what was asked for, and tells what was found.
    fn turn(&mut self, posted: &mut Vec<Posted>) {
        self.start();
        self.queue.take(posted);
        for answer in posted.drain(..) {
            self.answer(answer);
        }
        self.make_room();
        self.tell();
    }

    fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        let ready = self.connections.values().any(Connection::may_start);
        let until = if !self.queue.may_sleep() || ready {
            Some(Duration::ZERO)
        } else {
            let room = self.next_end_of_patience().map(|at| at.saturating_duration_since(Instant::now()));
            let hearing = self.deaf_until.map(|at| at.saturating_duration_since(Instant::now()));
            let log = self.admission.next_log().map(|at| at.saturating_duration_since(Instant::now()));
            let poll = self.connections.values().any(|one| one.life.is_polled()).then_some(POLL);
            [room, hearing, log, poll].into_iter().flatten().min()
        };
        let timeout = until.map(socket::timeout);
        let slept = epoll::wait(&self.watch, rustix::buffer::spare_capacity(events), timeout.as_ref());
        if let Err(error) = slept
            && error != Errno::INTR
        {
            tracing::error!(%error, "workers are not served any more: their sockets cannot be watched");
            self.queue.stop();
        }
        self.queue.rise(events.iter().any(|event| event.data.u64() == BELL));
        if self.deaf_until.is_some_and(|until| until <= Instant::now()) {
            self.deaf_until = None;
            self.watch_listener(epoll::EventFlags::IN);
        }
        self.admission.log();
        if self.polled.elapsed() >= POLL {
            self.polled = Instant::now();
            self.remove_ended();
        }
    }

    /// Removes the workers whose end only polling shows.
    fn remove_ended(&mut self) {
        let ended =
            |(key, one): (&u64, &Connection)| (one.life.is_polled() && one.life.is_over()).then_some(*key);
        for key in self.connections.iter().filter_map(ended).collect::<Vec<_>>() {
            self.remove(key);
        }
    }

    fn watch_listener(&self, what: epoll::EventFlags) {
        let name = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.watch, &self.listener, name, what) {
            tracing::warn!(%error, "new workers cannot be waited for");
        }
    }

    fn on(&mut self, name: u64, flags: epoll::EventFlags) {
        match name {
            BELL => {}
            LISTENER => self.accept(),
            _ if name & LIFE != 0 => self.remove(name & !LIFE),
            _ if self.admission.has(name) => self.admit(name),
            _ => {
                // Room to write needs nothing here: every turn tells what there is to tell.
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.hear(name);
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            let socket = match socket::accept(&self.listener) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    self.admission.note_shortage(error);
                    self.deaf_until = Some(Instant::now() + PAUSE);
                    self.watch_listener(epoll::EventFlags::empty());
                    return;
                }
            };
            while self.admission.is_full() {
                // The one that waits longest may have sent its greeting by now.
                if let Some(first) = self.admission.first() {
                    self.admit(first);
                    self.admission.push_out(first, &self.watch);
                }
            }
            let key = self.next;
            self.next += 2;
            self.admission.enter(key, socket, &self.watch);
        }
    }

    /// Lets a worker in whose greeting has come, if it has the secret. One that has not gets the reason.
    fn admit(&mut self, key: u64) {
        let Some((socket, process)) = self.admission.greeted(key, &mut self.buffer, &self.watch) else {
            return;
        };
        if self.connections.len() >= MOST_CLIENTS {
            self.admission.refuse(&socket, &format!("{MOST_CLIENTS} workers are connected already"));
        } else if let Err(error) = self.connect(key, socket, process) {
            self.admission.note_refused(&error.to_string());
        }
    }

    /// Gives a worker the memory, and serves it from now on.
    fn connect(&mut self, key: u64, socket: OwnedFd, process: i32) -> Result<(), ShareError> {
        let wrong = |error| ShareError::system("its connection failed", error);
        let memory = &self.queue.memory;
        let hello = wire::Hello {
            memory: memory.length() as u64,
            under_way: MOST_UNDER_WAY as u32,
            let_go: (memory.length() / LET_GO_PART) as u64,
        };
        socket::tell_with(&socket, &wire::hello(hello), memory.file()).map_err(wrong)?;
        let life = Life::of_other(&socket, process);
        let connection = Connection::new(socket, life);
        let event = epoll::EventFlags::IN;
        epoll::add(&self.watch, &connection.socket, epoll::EventData::new_u64(key), event).map_err(wrong)?;
        if let Some(life) = connection.life.descriptor()
            && let Err(error) = epoll::add(&self.watch, life, epoll::EventData::new_u64(key | LIFE), event)
        {
            let _ = epoll::delete(&self.watch, &connection.socket);
            return Err(wrong(error));
        }
        self.connections.insert(key, connection);
        self.queue.clients.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a connection: its slots come back, and who reads for it learns that nobody waits.
    fn remove(&mut self, key: u64) {
        let Some(connection) = self.connections.remove(&key) else { return };
        connection.wanted.store(false, Ordering::Relaxed);
        // By name: a forked child may keep the sockets open, and with them the watching.
        let _ = epoll::delete(&self.watch, &connection.socket);
        if let Some(life) = connection.life.descriptor() {
            let _ = epoll::delete(&self.watch, life);
        }
        let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
        self.turns.retain(|turn| *turn != key);
        self.queue.waiting.fetch_sub(connection.waiting.len() as u64, Ordering::Relaxed);
        self.queue.clients.fetch_sub(1, Ordering::Relaxed);
        drop(connection);
        self.last_freed = Instant::now();
    }

    fn cut_off(&mut self, key: u64, why: Outrageous) {
        tracing::warn!(why = why.0, "a worker's connection is cut off");
        self.remove(key);
    }

    fn hear(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let mut freed = false;
        let heard = connection.hear(&mut self.buffer, &mut freed);
        if freed {
            self.last_freed = Instant::now();
        }
        match heard {
            Ok(Heard::Gone) => self.remove(key),
            Ok(Heard::All | Heard::More) => self.call(key),
            Err(why) => self.cut_off(key, why),
        }
    }

    fn call(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        for (tag, name, payload) in connection.calls() {
            let reply = Reply::new(&self.queue, (key, tag), &connection.wanted, false);
            self.samples.call(Call::new(name, payload, reply));
        }
    }

    /// Has samples read, some of every worker.
    fn start(&mut self) {
        for (&key, connection) in &mut self.connections {
            let started = connection.start();
            let reply = |tag| Reply::new(&self.queue, (key, tag), &connection.wanted, true);
            let asks: Vec<_> = started.into_iter().map(|(tag, id)| Ask::new(id, reply(tag))).collect();
            if !asks.is_empty() {
                self.samples.get(asks);
            }
        }
    }

    fn answer(&mut self, posted: Posted) {
        let Posted { connection: key, tag, answer } = posted;
        // A slot for a worker that is gone comes back here.
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let done = match answer {
            Answered::Placed(slot) => connection.give(tag, slot),
            Answered::Whole(bytes) if bytes.is_empty() => {
                connection.give_whole(tag, bytes);
                Ok(())
            }
            Answered::Whole(bytes) => {
                if connection.waiting.is_empty() {
                    self.turns.push_back(key);
                }
                connection.waiting.push_back(Waiting { tag, bytes, since: Instant::now() });
                self.queue.waiting.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Answered::Called(bytes) => {
                connection.reply(tag, bytes);
                Ok(())
            }
            Answered::Failed { error, of_sample } => connection.fail(tag, of_sample, &error),
        };
        if let Err(why) = done {
            self.cut_off(key, why);
        }
    }

    /// Gives those who wait their room, as far as it goes; and those for whom there will be none their bytes, until
    /// nothing moves any more.
    fn make_room(&mut self) {
        while !self.turns.is_empty() {
            self.fill_room();
            if !self.give_up_waiting() {
                return;
            }
        }
    }

    /// One sample of each in turn; the first that finds no room stops the others, or a large one would never find any.
    fn fill_room(&mut self) {
        while let Some(&key) = self.turns.front() {
            let Some(connection) = self.connections.get_mut(&key) else { return };
            let Some(first) = connection.waiting.front() else { return };
            let Some(slot) = self.queue.memory.place(&first.bytes) else { return };
            let tag = first.tag;
            connection.waiting.pop_front();
            self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
            self.turns.pop_front();
            if !connection.waiting.is_empty() {
                self.turns.push_back(key);
            }
            if let Err(why) = connection.give(tag, slot) {
                self.cut_off(key, why);
            }
        }
    }

    /// Sends through the socket what has waited in vain, or would. Whether anything was.
    fn give_up_waiting(&mut self) -> bool {
        let now = Instant::now();
        let stuck = now.saturating_duration_since(self.last_freed) >= STUCK;
        let total = self.queue.memory.length();
        let mut moved = false;
        for key in std::mem::take(&mut self.turns) {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            let others = total.saturating_sub(connection.held_bytes);
            while let Some(first) = connection.waiting.pop_front() {
                let hopeless = rounded(first.bytes.len()).is_none_or(|length| length > others);
                if !(hopeless || stuck || now.saturating_duration_since(first.since) >= PATIENCE) {
                    connection.waiting.push_front(first);
                    break;
                }
                connection.give_whole(first.tag, first.bytes);
                self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
                self.queue.over_the_socket.fetch_add(1, Ordering::Relaxed);
                moved = true;
            }
            if !connection.waiting.is_empty() {
                self.turns.push_back(key);
            }
        }
        moved
    }

    /// When somebody who waits for room has waited long enough.
    fn next_end_of_patience(&self) -> Option<Instant> {
        let first = |key| self.connections.get(key)?.waiting.front().map(|first| first.since + PATIENCE);
        let patience = self.turns.iter().filter_map(first).min()?;
        Some(patience.min(self.last_freed + STUCK))
    }

    /// Tells every worker what there is to tell.
    fn tell(&mut self) {
        let mut gone = Vec::new();
        for (&key, connection) in &mut self.connections {
            let more = match connection.tell() {
                Heard::All => false,
                Heard::More => true,
                Heard::Gone => {
                    gone.push(key);
                    continue;
                }
            };
            if more != connection.watched_for_room {
                connection.watched_for_room = more;
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

impl Drop for Service {
    /// Ends all connections, also those of workers that were not let in yet: by name, because a forked child may keep the
    /// sockets open. After a panic as well, so that no worker waits for a thread that is no more.
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
    use crate::memory::{Memory, Slot};

    const KIB: usize = 1 << 10;

    /// Keeps what it is asked.
    #[derive(Default)]
    struct Asked(Mutex<Vec<Ask>>);

    impl Samples for Asked {
        fn get(&self, asks: Vec<Ask>) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(asks);
        }

        fn call(&self, _: Call) {}
    }

    /// A service that is moved by hand, whose memory of 256 KiB is taken.
    struct Rig {
        service: Service,
        asked: Arc<Asked>,
        address: Address,
        taken: Vec<Slot>,
    }

    impl Rig {
        fn new() -> Self {
            let asked = Arc::new(Asked::default());
            let queue = Arc::new(Queue::new(Memory::new(256 << 10).unwrap()).unwrap());
            let address = Address::new().unwrap();
            let listener = socket::listen(&address.socket().unwrap()).unwrap();
            let taken = (0..16).map(|_| queue.memory.place(&[0; 16 * KIB]).unwrap()).collect();
            let samples: Arc<dyn Samples> = Arc::clone(&asked) as _;
            let service = Service::new(samples, queue, listener, address.secret).unwrap();
            Self { service, asked, address, taken }
        }

        /// A worker that asks for samples of so many KiB, which come.
        fn worker(&mut self, samples: &[usize]) -> (u64, OwnedFd) {
            let worker = socket::connect(&self.address.socket().unwrap()).unwrap();
            socket::tell(&worker, &wire::greeting(&self.address.secret)).unwrap();
            self.service.accept();
            let key = self.service.next - 2;
            self.service.admit(key);
            let mut message = Vec::new();
            (0..).zip(samples).for_each(|(tag, kib)| wire::ask(&mut message, tag, SampleId(*kib as u64)));
            if !message.is_empty() {
                socket::tell(&worker, &message).unwrap();
            }
            self.service.hear(key);
            self.service.start();
            for ask in self.asked.0.lock().unwrap().drain(..) {
                let length = ask.id().0 as usize * KIB;
                ask.answer(Ok(Bytes::from(vec![1; length])));
            }
            let mut posted = Vec::new();
            self.service.queue.take(&mut posted);
            posted.into_iter().for_each(|posted| self.service.answer(posted));
            (key, worker)
        }

        /// Has room come free, or not, this long ago, and everybody wait for so long already.
        fn pass(&mut self, since_freed: Duration, waited: Duration) {
            // From an hour ahead, so that the time which the test itself takes makes no difference.
            let ahead = Instant::now() + Duration::from_secs(3600);
            self.service.last_freed =
                if since_freed.is_zero() { ahead } else { Instant::now() - since_freed };
            for waiting in self.service.connections.values_mut().flat_map(|one| &mut one.waiting) {
                waiting.since = if waited.is_zero() { ahead } else { Instant::now() - waited };
            }
        }

        /// What each of the workers holds, in KiB, after so much room has come free.
        fn free(&mut self, kib: usize, of: &[u64]) -> Vec<usize> {
            self.taken.truncate(self.taken.len() - kib / 16);
            self.service.make_room();
            of.iter().map(|key| self.service.connections[key].held_bytes / KIB).collect()
        }

        fn through_the_socket(&self) -> u64 {
            self.service.queue.over_the_socket.load(Ordering::Relaxed)
        }

        fn waiting(&self) -> u64 {
            self.service.queue.waiting.load(Ordering::Relaxed)
        }
    }

    /// The socket stays open, as it does where the worker has forked: only its process shows that it ended.
    #[test]
    // semantics: WORKER-4
    fn killed_worker_is_noticed_without_a_process_descriptor() {
        let mut rig = Rig::new();
        let (key, _socket) = rig.worker(&[]);
        let mut process =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let number = rustix::process::Pid::from_child(&process);
        rig.service.connections.get_mut(&key).unwrap().life = Life::Number(number);
        rig.service.remove_ended();
        assert_eq!(rig.service.connections.len(), 1);
        process.kill().unwrap();
        process.wait().unwrap();
        let mut events = Vec::with_capacity(8);
        // The end of the wait is the poll's: nothing else comes.
        for _ in 0..1000 {
            rig.service.sleep(&mut events);
            events.clear();
            if rig.service.connections.is_empty() {
                return;
            }
        }
        panic!("its slots are never given back");
    }

    #[test]
    // semantics: WORKER-7
    fn silent_connections_keep_no_worker_out() {
        let mut rig = Rig::new();
        let connect = |rig: &mut Rig| {
            let socket = socket::connect(&rig.address.socket().unwrap()).unwrap();
            rig.service.accept();
            socket
        };
        let worker = connect(&mut rig);
        socket::tell(&worker, &wire::greeting(&rig.address.secret)).unwrap();
        let silent: Vec<_> = (0..300).map(|_| connect(&mut rig)).collect();
        // Pushed out of its place, it is let in, because its greeting was there; the silent ones were closed.
        assert_eq!(rig.service.connections.len(), 1);
        let closed = |socket: &OwnedFd| socket::hear(socket, &mut [0; 100]) == Ok(0);
        assert_eq!(
            silent.iter().filter(|socket| closed(socket)).count(),
            300 - crate::admission::MOST_UNPROVEN
        );
        rig.worker(&[]);
        assert_eq!(rig.service.connections.len(), 2);
    }

    #[test]
    fn room_goes_to_workers_in_turn_however_much_one_of_them_wants() {
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
    fn a_large_sample_is_not_passed_by_small_ones_for_ever() {
        let mut rig = Rig::new();
        let (large, _a) = rig.worker(&[64]);
        let (small, _b) = rig.worker(&[16; 3]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(48, &[large, small]), [0, 0]);
        assert_eq!(rig.free(16, &[large, small]), [64, 0]);
        assert_eq!(rig.free(32, &[large, small]), [64, 32]);
    }

    #[test]
    fn what_comes_while_others_wait_for_room_does_not_pass_them() {
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
    fn who_waits_is_sent_another_way_when_no_room_comes_free_or_too_little() {
        let short = Duration::from_millis(1);
        for (since_freed, waited, gone) in
            [(Duration::ZERO, Duration::ZERO, 0), (STUCK, short, 2), (Duration::ZERO, PATIENCE, 2)]
        {
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
    fn who_holds_so_much_that_no_other_can_make_room_does_not_wait() {
        let mut rig = Rig::new();
        rig.taken.truncate(6);
        let (one, _a) = rig.worker(&[160, 112, 80, 16]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        // All others together hold 96 KiB: the second never fits, and the third in the end.
        assert_eq!(rig.free(0, &[one]), [160]);
        assert_eq!((rig.through_the_socket(), rig.waiting()), (1, 2));
        assert_eq!(rig.free(96, &[one]), [256]);
        assert_eq!((rig.through_the_socket(), rig.waiting()), (1, 0));
    }

    #[test]
    fn who_leaves_while_it_waits_makes_way() {
        let mut rig = Rig::new();
        let (leaving, a) = rig.worker(&[64]);
        let (staying, _b) = rig.worker(&[16]);
        rig.pass(Duration::ZERO, Duration::ZERO);
        assert_eq!(rig.free(16, &[leaving, staying]), [0, 0]);
        drop(a);
        rig.service.hear(leaving);
        assert_eq!(rig.free(0, &[staying]), [16]);
        assert_eq!(rig.waiting(), 0);
    }
}
