//! The events of simulated ranks, and their invariants.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::frame::RequestedSample;
use foreread_connection::{WireError, WireErrorKind};
use foreread_tier::{ErrorKind, TierError};
use foreread_tier_testing::Scheduler;
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, Tick};

use super::ends::{AskingEnd, ServingEnd};
use super::pipe::Pipe;
use crate::client::{ClientMachine, RECONNECT_JITTER, SampleCaller};
use crate::peer_client::{BACKOFF, CONNECT_TIMEOUT};
use crate::serving::StoreReply;

mod dialing;
mod faults;
mod store;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The run of all ranks, and another at the same addresses.
const RUN: u64 = 7;
const OTHER_RUN: u64 = 8;

const BATCH: usize = 4;
const LOOK_AHEAD: usize = 8 * BATCH;

/// When faults begin, when all have ended, how long a breaker may stay open after that, and when
/// the simulation ends.
const FAULTS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(15));
const RECOVERED: Duration = Duration::from_secs(15 + 8 + 4);
const END: Duration = Duration::from_secs(40);

/// The breaker's rules: failures in a row, and its shortest and longest wait.
const BREAKER: (u32, Duration, Duration) = (3, Duration::from_millis(500), Duration::from_secs(8));

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) digest: u128,
    /// The longest wait of a trainer whose process ran.
    pub(super) stall: Duration,
    /// Reads of other ranks' samples after [`RECOVERED`].
    pub(super) off_plan: u64,
    pub(super) requested: u64,
    pub(super) failed: u64,
    pub(super) late: u64,
    /// Second connections to silent ranks.
    pub(super) resumed: u64,
    pub(super) broken: u64,
}

impl Outcome {
    pub(super) fn add(&mut self, other: &Self) {
        self.requested += other.requested;
        self.failed += other.failed;
        self.late += other.late;
        self.resumed += other.resumed;
        self.broken += other.broken;
    }
}

/// A process of a rank. A later one has another number.
type Process = (usize, u32);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// No bytes pass from the first to the second.
    Cut(usize, usize),
    Mend(usize, usize),
    Pause(usize, Duration),
    /// Each event takes this long.
    Slow(usize, Duration),
    Die(usize),
    /// A process of this run, or of another, begins.
    Start(usize, u64),
    /// The connections from the first to the second break, perhaps within a frame.
    Break(usize, usize),
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// The ends of a connection have work to do.
    ClientTask(u64),
    Serving(u64),
    /// A link's connection is requested, accepted, or timed out.
    Dial {
        to: usize,
    },
    Accept {
        from: Process,
        number: u64,
    },
    Connected {
        to: usize,
        number: u64,
        conn: u64,
    },
    TimedOut {
        to: usize,
        number: u64,
    },
    /// The trainer checks whether its batch is complete.
    Train,
    /// The origin has delivered an owned sample, or one for a use of another rank's sample.
    Owned {
        sample: u64,
    },
    Read {
        used: usize,
    },
    /// The disk has delivered a sample for a client.
    Disk {
        conn: u64,
        request: u64,
        tag: u32,
        sample: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Fault(Fault),
    /// Bytes of a connection have crossed the network.
    Arrive {
        conn: u64,
        pipe: usize,
    },
    Work(Process, Work),
}

/// The receiver of an owned sample.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Use(usize),
    Requester { conn: u64, request: u64, tag: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Ready,
    Requested,
    Reading,
}

enum LinkState {
    Idle,
    Dialing { number: u64 },
    Open { conn: u64 },
    Down { until: Duration },
}

/// Samples that arrived at a client, by their request and position in it.
type Answers = Rc<RefCell<Vec<(u64, u32, Result<Bytes, TierError>)>>>;

/// The caller of a sample.
struct Caller {
    request: u64,
    tag: u32,
    sample: RequestedSample,
    answers: Answers,
    dropped: Rc<RefCell<BTreeSet<(u64, u32)>>>,
}

impl SampleCaller for Caller {
    fn sample(&self) -> RequestedSample {
        self.sample
    }

    fn is_gone(&self) -> bool {
        self.dropped.borrow().contains(&(self.request, self.tag))
    }

    fn answer(self, result: Result<Bytes, TierError>) {
        self.answers.borrow_mut().push((self.request, self.tag, result));
    }
}

/// The link of one rank to another.
struct SimulatedLink {
    state: LinkState,
    machine: ClientMachine<Caller>,
    /// By request: the uses, and which are complete.
    batches: BTreeMap<u64, Vec<(usize, bool)>>,
    /// Requests that wait for the connection.
    pending: Vec<Vec<Caller>>,
    answers: Answers,
    requests: u64,
    failures: u32,
    /// The breaker: failures in a row, how often it opened, until when it is open, and its epoch.
    breaker: (u32, u32, Option<Duration>, u64),
    epochs: BTreeMap<u64, u64>,
    /// Samples of requests that are not wanted any more.
    dropped: Rc<RefCell<BTreeSet<(u64, u32)>>>,
}

struct Conn {
    requester: Process,
    owner: Process,
    pipes: [Pipe; 2],
    requesting: Option<AskingEnd>,
    serving: Option<ServingEnd>,
    /// The timers of the ends.
    timers: [Option<Duration>; 2],
}

impl Conn {
    /// Sets an end's timer, unless it fires by then already. Returns whether it did.
    fn sets_timer(&mut self, end: usize, next: Duration, now: Duration) -> bool {
        let sets = self.timers[end].is_none_or(|set| set <= now || next < set);
        if sets {
            self.timers[end] = Some(next);
        }
        sets
    }
}

struct Node {
    process: u32,
    alive: bool,
    run: u64,
    paused: Duration,
    cost: Duration,
    free_at: Duration,
    memory: BTreeSet<u64>,
    flights: BTreeMap<u64, Vec<Waiter>>,
    links: BTreeMap<usize, SimulatedLink>,
    /// The remaining budget for responses.
    budget: Rc<Cell<u64>>,
    order: Vec<u64>,
    uses: BTreeMap<usize, Use>,
    issued: usize,
    taken: usize,
    busy_until: Duration,
    /// Since when the trainer waits, and for how long this process ran meanwhile.
    waits: Option<Duration>,
    disturbed: bool,
    train_at: Option<Duration>,
}

pub(super) struct World {
    scheduler: Scheduler<Event>,
    nodes: Vec<Node>,
    conns: BTreeMap<u64, Conn>,
    cuts: BTreeSet<(usize, usize)>,
    samples: u64,
    delay: Duration,
    disk: bool,
    share: u64,
    budget: u64,
    numbers: u64,
    outcome: Outcome,
}

const LARGEST: u64 = 60_000;

fn length(sample: u64) -> u64 {
    match sample % 11 {
        0 => 0,
        1 => LARGEST,
        2 => 30_000,
        other => 500 * other,
    }
}

fn content(sample: u64) -> Bytes {
    (0..length(sample)).map(|at| (sample.wrapping_mul(31).wrapping_add(at)) as u8).collect()
}

fn key(sample: u64) -> SampleKey {
    SampleKey::new(DatasetId(0), SampleId(sample))
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut scheduler = Scheduler::new(seed);
        let ranks = 2 + scheduler.below(3) as usize;
        let samples = 40 + scheduler.below(100);
        let (share, budget) = (5000 + scheduler.below(60_000), 30_000 + scheduler.below(200_000));
        let (disk, delay) = (scheduler.happens(300), scheduler.between(MS / 10, 3 * MS));
        let nodes = (0..ranks).map(|rank| {
            let order = (0..20_000).map(|_| scheduler.below(samples)).collect();
            Node {
                process: 0,
                alive: true,
                run: RUN,
                paused: Duration::ZERO,
                cost: Duration::ZERO,
                free_at: Duration::ZERO,
                memory: BTreeSet::new(),
                flights: BTreeMap::new(),
                links: (0..ranks)
                    .filter(|other| *other != rank)
                    .map(|other| (other, SimulatedLink::new(other)))
                    .collect(),
                budget: Rc::new(Cell::new(budget)),
                order,
                uses: BTreeMap::new(),
                issued: 0,
                taken: 0,
                busy_until: Duration::ZERO,
                waits: None,
                disturbed: false,
                train_at: None,
            }
        });
        let nodes: Vec<Node> = nodes.collect();
        let (conns, cuts, outcome) = Default::default();
        let mut world =
            Self { scheduler, nodes, conns, cuts, samples, delay, disk, share, budget, numbers: 0, outcome };
        world.plan_faults();
        for rank in 0..ranks {
            world.work_soon(rank, Work::Train);
        }
        world
    }

    pub(super) fn run(mut self) -> Outcome {
        while self.scheduler.now() < END {
            let Some(event) = self.scheduler.next() else { break };
            match event {
                Event::Fault(fault) => self.fault(fault),
                Event::Arrive { conn, pipe } => self.arrive(conn, pipe),
                Event::Work(process, work) => self.dispatch(process, work),
            }
            self.check();
        }
        for node in &self.nodes {
            assert!(node.alive && node.taken > 50 * BATCH, "a trainer stands still");
        }
        self.outcome.digest = self.scheduler.digest();
        self.outcome
    }

    /// Invariants after every event.
    fn check(&self) {
        for conn in self.conns.values() {
            if let Some(serving) = &conn.serving {
                // Started samples have a share or are one sample. Completed origin reads have
                // another share, and are one more. Headers and acknowledgements come on top.
                let most = self.share.max(LARGEST) + self.share + LARGEST + 100 * 48;
                let held = serving.machine.held_bytes();
                assert!(held <= most, "{held} bytes on a connection, {most} at most");
            }
        }
        for node in &self.nodes {
            assert!(node.budget.get() <= self.budget);
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ---- time and faults ----

    fn process(&self, rank: usize) -> Process {
        (rank, self.nodes[rank].process)
    }

    fn is_there(&self, (rank, process): Process) -> bool {
        self.nodes[rank].alive && self.nodes[rank].process == process
    }

    fn work(&mut self, rank: usize, after: Duration, work: Work) {
        let process = self.process(rank);
        self.scheduler.after(after, Event::Work(process, work));
    }

    fn work_soon(&mut self, rank: usize, work: Work) {
        self.work(rank, Duration::ZERO, work);
    }

    /// Lets a process work when it is neither paused nor busy.
    fn dispatch(&mut self, process: Process, work: Work) {
        if !self.is_there(process) {
            return;
        }
        let (now, rank) = (self.scheduler.now(), process.0);
        let node = &mut self.nodes[rank];
        let ready = node.paused.max(node.free_at);
        if ready > now {
            self.scheduler.after(ready - now, Event::Work(process, work));
            return;
        }
        node.free_at = now + node.cost;
        match work {
            Work::ClientTask(conn) => self.run_requesting(conn),
            Work::Serving(conn) => self.run_serving(conn),
            Work::Dial { to } => self.dial(rank, to),
            Work::Accept { from, number } => self.accept(rank, from, number),
            Work::Connected { to, number, conn } => self.connected(rank, to, number, conn),
            Work::TimedOut { to, number } => self.timed_out(rank, to, number),
            Work::Train => self.train(rank),
            Work::Owned { sample } => self.owned(rank, sample),
            Work::Read { used } => self.read(rank, used),
            Work::Disk { conn, request, tag, sample } => {
                self.finish_read(conn, request, tag, Ok(content(sample)));
            }
        }
    }

    // ---- the network ----

    /// Sends written bytes of a connection.
    fn send(&mut self, id: u64, conn: &mut Conn) {
        for (number, pipe) in conn.pipes.iter_mut().enumerate() {
            if !pipe.written.is_empty() {
                pipe.flying.push_back(std::mem::take(&mut pipe.written));
                let delay = self.delay;
                self.scheduler.after(delay, Event::Arrive { conn: id, pipe: number });
            }
        }
    }

    fn arrive(&mut self, id: u64, number: usize) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (requester, owner) = (conn.requester, conn.owner);
        let (from, to) = if number == 0 { (requester, owner) } else { (owner, requester) };
        if self.is_cut(from.0, to.0) {
            self.scheduler.after(20 * MS, Event::Arrive { conn: id, pipe: number });
            return;
        }
        let Some(pipe) = self.conns.get_mut(&id).map(|conn| &mut conn.pipes[number]) else { return };
        if let Some(bytes) = pipe.flying.pop_front() {
            pipe.arrived.extend(bytes);
        }
        // The sender has room again.
        for process in [requester, owner] {
            let work = if process == requester { Work::ClientTask(id) } else { Work::Serving(id) };
            self.scheduler.after(Duration::ZERO, Event::Work(process, work));
        }
    }

    // ---- client ----

    fn run_requesting(&mut self, id: u64) {
        let now = self.scheduler.now();
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let (rank, to) = (conn.requester.0, conn.owner.0);
        let is_there = self.is_there(conn.requester);
        let link = self.nodes[rank].links.get_mut(&to).filter(|_| is_there);
        let open = link.filter(|link| matches!(link.state, LinkState::Open { conn } if conn == id));
        let Some((link, end)) = open.zip(conn.requesting.as_mut()) else {
            // Not open yet, or closed.
            if conn.serving.is_some() {
                self.conns.insert(id, conn);
            }
            return;
        };
        let result = end.run(&mut link.machine, &mut conn.pipes, now);
        let answers = std::mem::take(&mut *link.answers.borrow_mut());
        let useful = end.was_useful();
        self.send(id, &mut conn);
        match result {
            Ok(next) => {
                if let Some(next) = next.filter(|next| conn.sets_timer(0, *next, now)) {
                    self.work(rank, next - now, Work::ClientTask(id));
                }
                self.conns.insert(id, conn);
                self.answered(rank, to, answers);
            }
            Err(error) => {
                conn.requesting = None;
                self.conns.insert(id, conn);
                self.close(id, false);
                self.answered(rank, to, answers);
                self.ended(rank, to, useful, &error);
            }
        }
    }

    // ---- server ----

    fn run_serving(&mut self, id: u64) {
        let now = self.scheduler.now();
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let rank = conn.owner.0;
        if !self.is_there(conn.owner) {
            conn.serving = None;
        }
        let Some(end) = conn.serving.as_mut() else {
            if conn.requesting.is_some() {
                self.conns.insert(id, conn);
            }
            return;
        };
        let mut started = Vec::new();
        let budget = Rc::clone(&self.nodes[rank].budget);
        let result = end.run(&mut conn.pipes, &budget, now, &mut started);
        self.send(id, &mut conn);
        match result {
            Ok(next) => {
                if let Some(next) = next.filter(|next| conn.sets_timer(1, *next, now)) {
                    self.work(rank, next - now, Work::Serving(id));
                }
                self.conns.insert(id, conn);
                for (request, samples) in started {
                    for sample in samples {
                        self.serve(rank, id, request, sample.tag, sample.key.id.0);
                    }
                }
            }
            Err(_) => {
                conn.serving = None;
                self.conns.insert(id, conn);
                self.close(id, false);
            }
        }
    }
}

impl SimulatedLink {
    fn new(to: usize) -> Self {
        Self {
            state: LinkState::Idle,
            machine: ClientMachine::new(Rank(to as u32), RUN),
            batches: BTreeMap::new(),
            pending: Vec::new(),
            answers: Answers::default(),
            requests: 0,
            failures: 0,
            breaker: (0, 0, None, 0),
            epochs: BTreeMap::new(),
            dropped: Rc::default(),
        }
    }

    /// A sample of a request is complete. Returns whether it counts for the breaker.
    fn complete(&mut self, request: u64) -> bool {
        let counts = self.epochs.get(&request) == Some(&self.breaker.3);
        if self.batches[&request].iter().all(|(_, answered)| *answered) {
            self.batches.remove(&request);
            self.epochs.remove(&request);
        }
        counts
    }

    /// The breaker gets a success or failure.
    fn sign(&mut self, life: bool, now: Duration) {
        let (failures, openings, until, epoch) = &mut self.breaker;
        if life {
            if until.take().is_some() {
                *epoch += 1;
            }
            (*failures, *openings) = (0, 0);
            return;
        }
        *failures += 1;
        if *failures >= BREAKER.0 || until.is_some() {
            let wait = (BREAKER.1 * 2u32.pow((*openings).min(5))).min(BREAKER.2);
            (*failures, *until) = (0, Some(now + wait));
            *openings += 1;
            *epoch += 1;
        }
    }
}
