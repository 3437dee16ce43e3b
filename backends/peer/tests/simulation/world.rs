//! What happens to simulated ranks, and what must hold.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_tier_testing::Scheduler;
use foreread_types::{DatasetId, Rank, SampleId, SampleKey, Tick};

use super::ends::{AskingEnd, ServingEnd};
use super::pipe::Pipe;
use crate::asking::{self, JITTER};
use crate::frame::Ask;
use crate::remote::{BACKOFF, CONNECT};
use crate::serving::{self, Said};
use crate::{WireError, WireErrorKind};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The run that all ranks are in, and another at the same addresses.
const RUN: u64 = 7;
const OTHER_RUN: u64 = 8;

const BATCH: usize = 4;
const LOOK_AHEAD: usize = 8 * BATCH;

/// When faults begin, when all have ended, how long a breaker may stay open after that, and when the simulation ends.
const FAULTS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(15));
const RECOVERED: Duration = Duration::from_secs(15 + 8 + 4);
const END: Duration = Duration::from_secs(40);

/// The breaker's rules: failures in a row, and its shortest and longest wait.
const BREAKER: (u32, Duration, Duration) = (3, Duration::from_millis(500), Duration::from_secs(8));

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) digest: u128,
    /// The longest wait of a trainer whose process ran.
    pub(super) stall: Duration,
    /// Reads of others' samples after [`RECOVERED`].
    pub(super) off_plan: u64,
    pub(super) asked: u64,
    pub(super) failed: u64,
    pub(super) hedged: u64,
    /// Second connections to ranks that fell silent.
    pub(super) resumed: u64,
    pub(super) broken: u64,
}

impl Outcome {
    pub(super) fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.failed += other.failed;
        self.hedged += other.hedged;
        self.resumed += other.resumed;
        self.broken += other.broken;
    }
}

/// A process at a rank's place. A later one has another number.
type Process = (usize, u32);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing passes from the first to the second.
    Cut(usize, usize),
    Mend(usize, usize),
    Pause(usize, Duration),
    /// Each event takes so long.
    Slow(usize, Duration),
    Die(usize),
    /// A process of this run, or of another, begins.
    Start(usize, u64),
    /// The connections from the first to the second break, perhaps within a frame.
    Break(usize, usize),
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// The ends of a connection have something to do.
    Asking(u64),
    Serving(u64),
    /// A connection of a link is asked for, taken, or not taken in time.
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
    /// The trainer looks whether its batch is there.
    Train,
    /// The origin has delivered an owned sample, or one for a use of another's.
    Owned {
        sample: u64,
    },
    Read {
        used: usize,
    },
    /// The disk has delivered a sample for an asker.
    Disk {
        conn: u64,
        chunk: u64,
        place: u32,
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

/// Who waits for an owned sample.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Use(usize),
    Asker { conn: u64, chunk: u64, place: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Ready,
    Asked { hedged: bool },
    Reading,
}

enum LinkState {
    Idle,
    Dialing { number: u64 },
    Open { conn: u64 },
    Down { until: Duration },
}

/// How one rank asks another.
struct Link {
    state: LinkState,
    machine: asking::Machine,
    /// By request: the uses, and which were answered.
    batches: BTreeMap<u64, Vec<(usize, bool)>>,
    /// Requests that wait for the connection.
    pending: Vec<(u64, Vec<Ask>)>,
    requests: u64,
    failures: u32,
    /// The breaker: failures in a row, how often it opened, until when it is open, and its epoch.
    breaker: (u32, u32, Option<Duration>, u64),
    epochs: BTreeMap<u64, u64>,
}

struct Conn {
    asker: Process,
    owner: Process,
    pipes: [Pipe; 2],
    asking: Option<AskingEnd>,
    serving: Option<ServingEnd>,
    /// When the ends look again.
    timers: [Option<Duration>; 2],
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
    links: BTreeMap<usize, Link>,
    /// What is left of the budget for answers.
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
                    .map(|other| (other, Link::new(other)))
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

    fn plan_faults(&mut self) {
        let ranks = self.nodes.len() as u64;
        for _ in 0..1 + self.scheduler.below(6) {
            let at = self.scheduler.between(FAULTS.0, FAULTS.1 - 4 * SECOND);
            let lasts = self.scheduler.between(50 * MS, 4 * SECOND).min(FAULTS.1 - at);
            let one = self.scheduler.below(ranks) as usize;
            let other = (one + 1 + self.scheduler.below(ranks - 1) as usize) % ranks as usize;
            let (begin, end) = match self.scheduler.below(6) {
                0 => (Fault::Cut(one, other), Some(Fault::Mend(one, other))),
                1 => (Fault::Pause(one, lasts), None),
                2 => (
                    Fault::Slow(one, self.scheduler.between(MS / 10, 2 * MS)),
                    Some(Fault::Slow(one, Duration::ZERO)),
                ),
                3 => (Fault::Die(one), Some(Fault::Start(one, RUN))),
                4 => {
                    // Another run takes the address for a while.
                    self.scheduler.after(at, Event::Fault(Fault::Die(one)));
                    (Fault::Start(one, OTHER_RUN), Some(Fault::Start(one, RUN)))
                }
                _ => (Fault::Break(one, other), None),
            };
            self.scheduler.after(at, Event::Fault(begin));
            if let Some(end) = end {
                self.scheduler.after(at + lasts, Event::Fault(end));
            }
        }
        // Whatever came together, ranks of this run are there in the end.
        for rank in 0..ranks as usize {
            self.scheduler.after(FAULTS.1, Event::Fault(Fault::Start(rank, RUN)));
        }
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

    /// What holds after every event.
    fn check(&self) {
        for conn in self.conns.values() {
            if let Some(serving) = &conn.serving {
                // The share of those that were started, that of answers that came from the origin, one answer more, and
                // headers and words.
                let most = 2 * self.share + LARGEST + 100 * 48;
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

    /// Lets a process do something when it is neither paused nor busy.
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
            Work::Asking(conn) => self.run_asking(conn),
            Work::Serving(conn) => self.run_serving(conn),
            Work::Dial { to } => self.dial(rank, to),
            Work::Accept { from, number } => self.accept(rank, from, number),
            Work::Connected { to, number, conn } => self.connected(rank, to, number, conn),
            Work::TimedOut { to, number } => self.timed_out(rank, to, number),
            Work::Train => self.train(rank),
            Work::Owned { sample } => self.owned(rank, sample),
            Work::Read { used } => self.read(rank, used),
            Work::Disk { conn, chunk, place, sample } => {
                self.said(conn, chunk, place, Ok(content(sample)));
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(one, other) => drop(self.cuts.insert((one, other))),
            Fault::Mend(one, other) => drop(self.cuts.remove(&(one, other))),
            Fault::Pause(rank, time) => {
                let until = self.scheduler.now() + time;
                let node = &mut self.nodes[rank];
                (node.paused, node.disturbed) = (node.paused.max(until), true);
            }
            Fault::Slow(rank, cost) => {
                let node = &mut self.nodes[rank];
                (node.cost, node.disturbed) = (cost, true);
            }
            Fault::Die(rank) => self.end_process(rank),
            Fault::Start(rank, run) => {
                let node = &self.nodes[rank];
                if node.alive && node.run == run {
                    return;
                }
                self.end_process(rank);
                let ranks = self.nodes.len();
                let budget = Rc::new(Cell::new(self.budget));
                let node = &mut self.nodes[rank];
                (node.alive, node.run, node.budget) = (true, run, budget);
                node.links = (0..ranks).filter(|to| *to != rank).map(|to| (to, Link::new(to))).collect();
                // Another run's trainer is none of ours.
                if run == RUN {
                    self.work_soon(rank, Work::Train);
                }
            }
            Fault::Break(one, other) => {
                let of = |conn: &Conn| conn.asker.0 == one && conn.owner.0 == other;
                let conns: Vec<u64> =
                    self.conns.iter().filter(|(_, conn)| of(conn)).map(|(number, _)| *number).collect();
                for conn in conns {
                    self.outcome.broken += 1;
                    let keep = self.scheduler.below(2) == 0;
                    self.close(conn, keep);
                }
            }
        }
    }

    fn end_process(&mut self, rank: usize) {
        let process = self.process(rank);
        let of = |conn: &Conn| conn.asker == process || conn.owner == process;
        let conns: Vec<u64> = self.conns.iter().filter(|(_, conn)| of(conn)).map(|(id, _)| *id).collect();
        for conn in conns {
            self.close(conn, true);
        }
        let node = &mut self.nodes[rank];
        node.process += 1;
        (node.alive, node.cost, node.free_at) = (false, Duration::ZERO, Duration::ZERO);
        (node.paused, node.waits, node.train_at) = (Duration::ZERO, None, None);
        node.memory.clear();
        node.flights.clear();
        node.links.clear();
        // A process that begins resumes at the batch that was taken last.
        node.uses.clear();
        node.issued = node.taken;
    }

    /// Closes both directions; what is under way is lost, perhaps but for a part of it.
    fn close(&mut self, id: u64, keep: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        for pipe in &mut conn.pipes {
            if keep && let Some(first) = pipe.flying.pop_front() {
                let half = first.len() / 2;
                pipe.arrived.extend(&first[..half]);
            }
            pipe.flying.clear();
            pipe.written.clear();
            pipe.closed = true;
        }
        let (asker, owner) = (conn.asker, conn.owner);
        let delay = self.delay;
        self.scheduler.after(delay, Event::Work(asker, Work::Asking(id)));
        self.scheduler.after(delay, Event::Work(owner, Work::Serving(id)));
    }

    // ---- the network ----

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Sends what was written on a connection.
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
        let (asker, owner) = (conn.asker, conn.owner);
        let (from, to) = if number == 0 { (asker, owner) } else { (owner, asker) };
        if self.is_cut(from.0, to.0) {
            self.scheduler.after(20 * MS, Event::Arrive { conn: id, pipe: number });
            return;
        }
        let Some(pipe) = self.conns.get_mut(&id).map(|conn| &mut conn.pipes[number]) else { return };
        if let Some(bytes) = pipe.flying.pop_front() {
            pipe.arrived.extend(bytes);
        }
        // The sender has room again.
        for process in [asker, owner] {
            let work = if process == asker { Work::Asking(id) } else { Work::Serving(id) };
            self.scheduler.after(Duration::ZERO, Event::Work(process, work));
        }
    }

    fn dial(&mut self, rank: usize, to: usize) {
        let number = self.number();
        let from = self.process(rank);
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        link.state = LinkState::Dialing { number };
        self.work(rank, CONNECT, Work::TimedOut { to, number });
        if self.is_cut(rank, to) || self.is_cut(to, rank) {
            return; // retransmissions come too late
        }
        let delay = self.delay;
        if self.nodes[to].alive {
            let process = self.process(to);
            self.scheduler.after(delay, Event::Work(process, Work::Accept { from, number }));
        } else {
            self.work(rank, 2 * delay, Work::TimedOut { to, number });
        }
    }

    fn accept(&mut self, rank: usize, from: Process, number: u64) {
        if !self.is_there(from) {
            return;
        }
        let id = self.number();
        let serving = ServingEnd::new(self.nodes[rank].run, self.share);
        let conn = Conn {
            asker: from,
            owner: self.process(rank),
            pipes: Default::default(),
            asking: None,
            serving: Some(serving),
            timers: [None, None],
        };
        self.conns.insert(id, conn);
        let delay = self.delay;
        self.scheduler.after(delay, Event::Work(from, Work::Connected { to: rank, number, conn: id }));
    }

    fn connected(&mut self, rank: usize, to: usize, number: u64, id: u64) {
        let now = self.scheduler.now();
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        if !matches!(link.state, LinkState::Dialing { number: dialing } if dialing == number) {
            return self.close(id, false);
        }
        link.state = LinkState::Open { conn: id };
        let mut end = AskingEnd::new();
        let (mut actions, mut answers) = (Vec::new(), Vec::new());
        link.machine.resume(now, &mut actions);
        for (request, asks) in std::mem::take(&mut link.pending) {
            let made = link.machine.on(asking::Event::Ask { request, asks }, now, &mut actions);
            assert!(made.is_ok());
        }
        end.act(&link.machine, &mut actions, &mut answers);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.asking = Some(end);
        }
        self.work_soon(rank, Work::Asking(id));
    }

    fn timed_out(&mut self, rank: usize, to: usize, number: u64) {
        let Some(link) = self.nodes[rank].links.get(&to) else { return };
        if matches!(link.state, LinkState::Dialing { number: dialing } if dialing == number) {
            self.lose(rank, to, false, &WireError::new(WireErrorKind::Late, "no answer"));
        }
    }

    // ---- asking ----

    fn run_asking(&mut self, id: u64) {
        let now = self.scheduler.now();
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let (rank, to) = (conn.asker.0, conn.owner.0);
        let mut answers = Vec::new();
        let is_there = self.is_there(conn.asker);
        let link = self.nodes[rank].links.get_mut(&to).filter(|_| is_there);
        let open = link.filter(|link| matches!(link.state, LinkState::Open { conn } if conn == id));
        let Some((link, end)) = open.zip(conn.asking.as_mut()) else {
            // Not open yet, or closed.
            if conn.serving.is_some() {
                self.conns.insert(id, conn);
            }
            return;
        };
        let result = end.run(&mut link.machine, &mut conn.pipes, now, &mut answers);
        let useful = end.was_useful();
        self.send(id, &mut conn);
        match result {
            Ok(next) => {
                if let Some(next) =
                    next.filter(|next| conn.timers[0].is_none_or(|set| set <= now || *next < set))
                {
                    conn.timers[0] = Some(next);
                    self.work(rank, next - now, Work::Asking(id));
                }
                self.conns.insert(id, conn);
                self.answered(rank, to, answers);
            }
            Err(error) => {
                conn.asking = None;
                self.conns.insert(id, conn);
                self.close(id, false);
                self.answered(rank, to, answers);
                self.ended(rank, to, useful, &error);
            }
        }
    }

    /// A connection ended at the asker.
    fn ended(&mut self, rank: usize, to: usize, useful: bool, error: &WireError) {
        if useful && error.kind() == WireErrorKind::Late {
            self.outcome.resumed += 1;
            let number = self.number();
            let jitter = self.scheduler.between(Duration::ZERO, JITTER);
            if let Some(link) = self.nodes[rank].links.get_mut(&to) {
                link.state = LinkState::Dialing { number };
            }
            return self.work(rank, jitter, Work::Dial { to });
        }
        self.lose(rank, to, useful, error);
    }

    /// Everything that a rank was asked fails.
    fn lose(&mut self, rank: usize, to: usize, useful: bool, why: &WireError) {
        let now = self.scheduler.now();
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        link.failures = if useful { 1 } else { link.failures + 1 };
        let wait = (BACKOFF.0 * 2u32.pow(link.failures.min(5) - 1)).min(BACKOFF.1);
        link.state = LinkState::Down { until: now + wait };
        link.machine = asking::Machine::new(Rank(to as u32), RUN);
        link.pending.clear();
        let error = crate::remote::error_of(Rank(to as u32), why);
        let mut answers = Vec::new();
        for (&request, uses) in &link.batches {
            let open = (0..).zip(uses).filter(|(_, (_, answered))| !answered);
            answers.extend(open.map(|(tag, _)| (request, tag, Err(error.clone()))));
        }
        self.answered(rank, to, answers);
    }

    fn answered(&mut self, rank: usize, to: usize, answers: Vec<(u64, u32, Result<Bytes, TierError>)>) {
        let now = self.scheduler.now();
        for (request, tag, result) in answers {
            let node = &mut self.nodes[rank];
            let Some(link) = node.links.get_mut(&to) else { return };
            let known = link.batches.get_mut(&request).and_then(|uses| uses.get_mut(tag as usize));
            let Some((used, answered)) = known else { panic!("an answer to nothing") };
            let used = *used;
            assert!(!std::mem::replace(answered, true), "answered twice");
            if let Ok(bytes) = &result {
                assert_eq!(*bytes, content(node.order[used]), "wrong bytes");
            }
            let ours = link.epochs.get(&request) == Some(&link.breaker.3);
            if link.batches[&request].iter().all(|(_, answered)| *answered) {
                link.batches.remove(&request);
                link.epochs.remove(&request);
            }
            if ours {
                link.sign(result.is_ok() || result.as_ref().is_err_and(|error| !error.is_retryable()), now);
            }
            let was = node.uses.get(&used).copied();
            self.scheduler.note(format_args!(
                "{rank}: use {used}: {:?}",
                result.as_ref().map(Bytes::len).map_err(TierError::kind)
            ));
            match (was, result.is_ok()) {
                (Some(Use::Asked { .. }), true) => {
                    self.nodes[rank].uses.insert(used, Use::Ready);
                    self.work_soon(rank, Work::Train);
                }
                (Some(Use::Asked { hedged }), false) => {
                    self.outcome.failed += 1;
                    self.nodes[rank].uses.insert(used, Use::Reading);
                    if !hedged {
                        self.read_from_origin(rank, used);
                    }
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, rank: usize, to: usize, uses: Vec<usize>) {
        let now = self.scheduler.now();
        let asked = uses.len() as u64;
        let node = &mut self.nodes[rank];
        let Some(link) = node.links.get_mut(&to) else { return };
        let (mut passed, mut refused) = (uses, Vec::new());
        match link.breaker.2 {
            Some(until) if now < until => std::mem::swap(&mut passed, &mut refused),
            Some(_) => {
                // One is a probe; nothing else passes until it is answered.
                refused = passed.split_off(1);
                link.breaker.2 = Some(Duration::MAX);
                link.breaker.3 += 1;
            }
            None => {}
        }
        let down = matches!(link.state, LinkState::Down { until } if now < until);
        let mut dials = false;
        if !passed.is_empty() {
            self.outcome.asked += asked;
            link.requests += 1;
            let request = link.requests;
            let ask = |used: &usize| {
                let sample = node.order[*used];
                Ask { key: key(sample), due: Tick(*used as u64), length: length(sample) }
            };
            let asks: Vec<Ask> = passed.iter().map(ask).collect();
            link.epochs.insert(request, link.breaker.3);
            link.batches.insert(request, passed.iter().map(|used| (*used, false)).collect());
            match link.state {
                LinkState::Open { conn } => {
                    let (mut actions, mut answers) = (Vec::new(), Vec::new());
                    let made = link.machine.on(asking::Event::Ask { request, asks }, now, &mut actions);
                    assert!(made.is_ok());
                    if let Some(end) = self.conns.get_mut(&conn).and_then(|conn| conn.asking.as_mut()) {
                        end.act(&link.machine, &mut actions, &mut answers);
                    }
                    self.work_soon(rank, Work::Asking(conn));
                }
                LinkState::Dialing { .. } => link.pending.push((request, asks)),
                LinkState::Down { .. } if down => {
                    let error = TierError::new(ErrorKind::Transient, "peer");
                    let tags = 0..passed.len() as u32;
                    let answers = tags.map(|tag| (request, tag, Err(error.clone()))).collect();
                    self.answered(rank, to, answers);
                }
                LinkState::Idle | LinkState::Down { .. } => {
                    link.pending.push((request, asks));
                    dials = true;
                }
            }
        }
        if dials {
            self.dial(rank, to);
        }
        for used in refused {
            self.nodes[rank].uses.insert(used, Use::Reading);
            self.read_from_origin(rank, used);
        }
    }

    // ---- serving ----

    fn run_serving(&mut self, id: u64) {
        let now = self.scheduler.now();
        let Some(mut conn) = self.conns.remove(&id) else { return };
        let rank = conn.owner.0;
        if !self.is_there(conn.owner) {
            conn.serving = None;
        }
        let Some(end) = conn.serving.as_mut() else {
            if conn.asking.is_some() {
                self.conns.insert(id, conn);
            }
            return;
        };
        let mut actions = Vec::new();
        let budget = Rc::clone(&self.nodes[rank].budget);
        let result = end.run(&mut conn.pipes, &budget, now, &mut actions);
        self.send(id, &mut conn);
        match result {
            Ok(next) => {
                if let Some(next) =
                    next.filter(|next| conn.timers[1].is_none_or(|set| set <= now || *next < set))
                {
                    conn.timers[1] = Some(next);
                    self.work(rank, next - now, Work::Serving(id));
                }
                self.conns.insert(id, conn);
                for action in actions {
                    if let serving::Action::Start { chunk, asked } = action {
                        for asked in asked {
                            self.serve(rank, id, chunk, asked.tag, asked.key.id.0);
                        }
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

    /// The engine is asked for a sample.
    fn serve(&mut self, rank: usize, conn: u64, chunk: u64, place: u32, sample: u64) {
        let owner = (sample % self.nodes.len() as u64) as usize;
        if owner != rank {
            let error = TierError::new(ErrorKind::Absent, "engine");
            return self.said(conn, chunk, place, Err(error));
        }
        if !self.nodes[rank].memory.contains(&sample) {
            self.tell(conn, chunk, place, Said::Reading);
            return self.fly(rank, sample, Waiter::Asker { conn, chunk, place });
        }
        if self.disk {
            let time = self.scheduler.between(MS, 40 * MS);
            return self.work(rank, time, Work::Disk { conn, chunk, place, sample });
        }
        self.said(conn, chunk, place, Ok(content(sample)));
    }

    fn said(&mut self, conn: u64, chunk: u64, place: u32, result: Result<Bytes, TierError>) {
        let result = result.map(|bytes| {
            let check = (crc32c::crc32c(&bytes), None);
            (bytes, check)
        });
        self.tell(conn, chunk, place, Said::Done(result));
    }

    /// Passes the engine's word on. An engine waits with it while there is no room.
    fn tell(&mut self, id: u64, chunk: u64, place: u32, said: Said) {
        let now = self.scheduler.now();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (rank, owner) = (conn.owner.0, conn.owner);
        let Some(end) = &mut conn.serving else { return };
        let sample = end.machine.wanted(chunk, place);
        if let (Said::Done(Ok(_)), false, Some(sample)) = (&said, end.machine.has_room(), sample) {
            let work = Work::Disk { conn: id, chunk, place, sample: sample.id.0 };
            self.scheduler.after(MS, Event::Work(owner, work));
            return self.work_soon(rank, Work::Serving(id));
        }
        end.machine.said(chunk, place, said, now);
        self.work_soon(rank, Work::Serving(id));
    }

    // ---- the origin ----

    /// An owned sample is read once, whoever wants it.
    fn fly(&mut self, rank: usize, sample: u64, waiter: Waiter) {
        let waiters = self.nodes[rank].flights.entry(sample).or_default();
        waiters.push(waiter);
        if waiters.len() == 1 {
            let time = self.scheduler.between(5 * MS, 60 * MS);
            self.work(rank, time, Work::Owned { sample });
        }
    }

    fn owned(&mut self, rank: usize, sample: u64) {
        self.nodes[rank].memory.insert(sample);
        for waiter in self.nodes[rank].flights.remove(&sample).unwrap_or_default() {
            match waiter {
                Waiter::Use(used) => {
                    self.nodes[rank].uses.insert(used, Use::Ready);
                    self.work_soon(rank, Work::Train);
                }
                Waiter::Asker { conn, chunk, place } => self.said(conn, chunk, place, Ok(content(sample))),
            }
        }
    }

    /// A sample of another's is read for a use of one's own.
    fn read_from_origin(&mut self, rank: usize, used: usize) {
        let now = self.scheduler.now();
        if now > RECOVERED {
            self.outcome.off_plan += 1;
        }
        self.scheduler.note(format_args!("{rank}: use {used} from the origin"));
        let time = self.scheduler.between(5 * MS, 60 * MS);
        self.work(rank, time, Work::Read { used });
    }

    fn read(&mut self, rank: usize, used: usize) {
        let now = self.scheduler.now();
        let node = &mut self.nodes[rank];
        let Some(state) = node.uses.get_mut(&used).filter(|state| **state != Use::Ready) else { return };
        let was = std::mem::replace(state, Use::Ready);
        self.work_soon(rank, Work::Train);
        // The hedge won.
        if matches!(was, Use::Asked { .. }) {
            let sample = self.nodes[rank].order[used];
            let to = (sample % self.nodes.len() as u64) as usize;
            let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
            if let LinkState::Open { conn } = link.state {
                let (mut actions, mut answers) = (Vec::new(), Vec::new());
                let forgotten =
                    link.machine.on(asking::Event::Forget { key: key(sample) }, now, &mut actions);
                assert!(forgotten.is_ok());
                if let Some(end) = self.conns.get_mut(&conn).and_then(|conn| conn.asking.as_mut()) {
                    end.act(&link.machine, &mut actions, &mut answers);
                }
                self.work_soon(rank, Work::Asking(conn));
                self.answered(rank, to, answers);
            }
        }
    }

    // ---- the trainer ----

    fn train(&mut self, rank: usize) {
        let now = self.scheduler.now();
        if self.nodes[rank].run != RUN || now < self.nodes[rank].busy_until {
            return;
        }
        self.issue(rank);
        let node = &mut self.nodes[rank];
        let batch = node.taken..node.taken + BATCH;
        if batch.clone().all(|used| node.uses.get(&used) == Some(&Use::Ready)) {
            let waited = node.waits.take().map_or(Duration::ZERO, |since| now - since);
            if !std::mem::take(&mut node.disturbed) && node.cost.is_zero() {
                self.outcome.stall = self.outcome.stall.max(waited);
            }
            for used in batch {
                node.uses.remove(&used);
            }
            node.taken += BATCH;
            let time = self.scheduler.between(10 * MS, 80 * MS);
            self.nodes[rank].busy_until = now + time;
            self.work(rank, time, Work::Train);
            return;
        }
        let since = *node.waits.get_or_insert(now);
        if now - since >= SECOND {
            let late = |used: &usize| node.uses.get(used) == Some(&Use::Asked { hedged: false });
            for used in batch.filter(late).collect::<Vec<_>>() {
                self.outcome.hedged += 1;
                self.nodes[rank].uses.insert(used, Use::Asked { hedged: true });
                self.read_from_origin(rank, used);
            }
        }
        let node = &mut self.nodes[rank];
        if node.train_at.is_none_or(|at| at <= now) {
            node.train_at = Some(now + 100 * MS);
            self.work(rank, 100 * MS, Work::Train);
        }
    }

    fn issue(&mut self, rank: usize) {
        let ranks = self.nodes.len() as u64;
        let mut asks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        while self.nodes[rank].issued < self.nodes[rank].taken + LOOK_AHEAD {
            let used = self.nodes[rank].issued;
            self.nodes[rank].issued += 1;
            let sample = self.nodes[rank].order[used];
            debug_assert!(sample < self.samples);
            let owner = (sample % ranks) as usize;
            if owner != rank {
                self.nodes[rank].uses.insert(used, Use::Asked { hedged: false });
                asks.entry(owner).or_default().push(used);
            } else if self.nodes[rank].memory.contains(&sample) {
                self.nodes[rank].uses.insert(used, Use::Ready);
            } else {
                self.nodes[rank].uses.insert(used, Use::Reading);
                self.fly(rank, sample, Waiter::Use(used));
            }
        }
        for (owner, uses) in asks {
            self.ask(rank, owner, uses);
        }
    }
}

impl Link {
    fn new(to: usize) -> Self {
        Self {
            state: LinkState::Idle,
            machine: asking::Machine::new(Rank(to as u32), RUN),
            batches: BTreeMap::new(),
            pending: Vec::new(),
            requests: 0,
            failures: 0,
            breaker: (0, 0, None, 0),
            epochs: BTreeMap::new(),
        }
    }

    /// The breaker sees whether somebody answered.
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
