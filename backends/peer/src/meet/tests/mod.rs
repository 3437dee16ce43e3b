//! Simulated rendezvous with faults drawn from a seed: the state machines of rank 0 and its
//! followers on one scheduler.
//!
//! Sockets are replaced by messages with a latency. Ranks connect, share two catalogs, agree,
//! start, report and leave. One of the catalogs is in a file that some ranks cannot open. Faults
//! are lost connections, one-way cuts, pauses and restarts of rank 0 before or after the start.
//! Others are left-over ranks of an earlier run, replaced members, and a second run at the same
//! address.
//!
//! Each run draws new cases. `FOREREAD_TEST_SEED` repeats a failure as the first case,
//! `FOREREAD_TRACE` prints the events, and `FOREREAD_SOAK` plays thousands of cases instead of a
//! sample.

mod catalogs;
mod checks;
mod connections;
mod leaving;
mod member;
mod rank0;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::Nonce;
use foreread_tier_testing::{Scheduler, TestRandom};
use foreread_types::Rank;
use tokio::time::Instant;

use super::follower::Follower;
use super::group::RunEnd;
use super::leader::{FollowerSession, Leader};
use super::members::RankSession;
use super::messages::{ComparedSettings, HEARTBEAT_TIMEOUT, Hello, MeetMessage, RankInfo, key};
use super::rank0::Rank0Steps;
use super::shared_catalog::RelayOffers;
use super::waiting::WaitDeadline;
use super::{MeetError, MeetErrorKind};

const DEADLINE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
/// All faults begin before.
const FAULTS_END: Duration = Duration::from_secs(60);
/// The longest cut, in seconds. A pause is shorter.
const MAX_CUT_SECONDS: u64 = 25;
/// A run lasts between half of this and this.
const RUN: Duration = Duration::from_secs(20);
/// How long a rank that is done waits for the others.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);
/// Everything has its outcome by then: faults last up to [`MAX_CUT_SECONDS`], each of five steps
/// has its deadline, and then all leave.
const END: Duration = Duration::from_secs(60 + 25 + 5 * 30 + 25 + 20 + 60 + 10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Leader(usize),
    Member(usize),
}

#[derive(Debug)]
enum Event {
    Tick(Who),
    Dial(usize),
    /// A message on a connection, to its leader (`up`) or to its member.
    Message {
        link: usize,
        up: bool,
        message: MeetMessage,
        bulk: Bytes,
    },
    /// The end of a connection as one side sees it.
    Closed {
        link: usize,
        up: bool,
    },
    Silent {
        link: usize,
        up: bool,
    },
    Check {
        leader: usize,
        session: RankSession,
    },
    /// A member has connected to its node's relay.
    Visit {
        visitor: usize,
        relay: usize,
    },
    /// A catalog from the relay, or the end of its connection.
    Passed {
        visitor: usize,
        passed: Option<(usize, Bytes)>,
    },
    /// The relay timed out.
    RelaySilent {
        visitor: usize,
    },
    /// A process is done.
    Leave(Who),
    /// It no longer waits for the others.
    Left(Who),
    Fault(Disturbance),
    Mend {
        rank: u32,
    },
    StartLeader,
    StartMember {
        rank: u32,
    },
}

#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Lose {
        rank: u32,
    },
    Cut {
        rank: u32,
        up: bool,
        seconds: u64,
    },
    Pause {
        rank: u32,
        millis: u64,
    },
    RestartFirst,
    Replace {
        rank: u32,
    },
    /// Another run with the same token and launcher variables begins.
    SecondRun,
}

/// A connection of a member to a leader.
struct MemberLink {
    leader: usize,
    member: usize,
    follower: Option<FollowerSession>,
    /// Whether the leader's and the member's ends are open.
    open: [bool; 2],
    /// When the last message of each direction arrives.
    last: [Duration; 2],
    /// Messages that a cut delays.
    held: [Vec<(MeetMessage, Bytes)>; 2],
    /// It broke: no side has closed it.
    is_lost: bool,
}

/// How a process ended without a start.
#[derive(Debug)]
enum End {
    Killed,
    Error(MeetErrorKind, String),
}

impl From<MeetError> for End {
    fn from(error: MeetError) -> Self {
        Self::Error(error.kind(), error.to_string())
    }
}

struct LeaderProcess {
    leader: Leader,
    steps: Rank0Steps,
    stage: u32,
    nonce: Nonce,
    values: Vec<Bytes>,
    outcome: Option<Result<(), End>>,
    is_alive: bool,
    ends: Option<Duration>,
    paused: Duration,
    /// Ranks and the numbers of the catalogs that were sent to them.
    sent: Vec<(usize, usize)>,
    /// Whether it is done, and no longer waits for others.
    leaves: (bool, bool),
    /// The run is over, without these ranks.
    missing: Option<Vec<Rank>>,
}

struct MemberProcess {
    follower: Follower,
    link: Option<usize>,
    is_welcome: bool,
    has_reported: bool,
    stage: u32,
    values: Vec<Bytes>,
    /// The nonces it has received, in order.
    nonces: Vec<Nonce>,
    outcome: Option<Result<(), End>>,
    is_alive: bool,
    paused: Duration,
    acknowledged: bool,
    /// Whether it opens the file of the second catalog itself.
    has_file: bool,
    /// Missing catalogs, and whether they come without a request. `None` before it knows.
    needed: Option<BTreeMap<usize, bool>>,
    catalogs: BTreeMap<usize, Bytes>,
    /// It waits for the relay of its node.
    at_relay: bool,
    offers: RelayOffers,
    /// The members that have connected to it as their relay, with the requested and received
    /// catalogs of each.
    visitors: BTreeMap<usize, [BTreeSet<usize>; 2]>,
    is_done: bool,
    /// It has sent this on its connection.
    has_left: bool,
    left: Option<RunEnd>,
}

struct World {
    scheduler: Scheduler<Event>,
    base: Instant,
    size: u32,
    leaders: Vec<LeaderProcess>,
    members: Vec<MemberProcess>,
    links: Vec<MemberLink>,
    /// By rank: the cut directions, to the leader first.
    cuts: BTreeMap<u32, [bool; 2]>,
    /// The faults so far.
    faults: Vec<Disturbance>,
    processes: u64,
    /// The longest run.
    run: Duration,
}

fn words() -> ComparedSettings {
    vec![("seed".to_owned(), "5".to_owned())]
}

fn step(number: u32) -> String {
    key::step(number, ["", "share", "exchange", "start"][number as usize])
}

fn quiet(now: Instant) -> WaitDeadline {
    WaitDeadline::new(DEADLINE, Box::new(|_| ()), now)
}

impl World {
    fn new(seed: u64, size: u32) -> Self {
        let mut world = Self {
            scheduler: Scheduler::new(seed),
            base: Instant::now(),
            size,
            leaders: Vec::new(),
            members: Vec::new(),
            links: Vec::new(),
            cuts: BTreeMap::new(),
            faults: Vec::new(),
            processes: 0,
            run: RUN,
        };
        let late = world.scheduler.between(Duration::ZERO, SECOND * 5);
        world.scheduler.after(late, Event::StartLeader);
        for rank in 1..size {
            let late = world.scheduler.between(Duration::ZERO, SECOND * 10);
            world.scheduler.after(late, Event::StartMember { rank });
        }
        world
    }

    fn now(&self) -> Instant {
        self.base + self.scheduler.now()
    }

    fn info(&mut self, rank: u32) -> RankInfo {
        self.processes += 1;
        let addresses = vec![format!("h{rank}:{}", 7000 + self.processes)];
        let (node, host) = (format!("n{}", rank / 2), format!("h{rank}"));
        RankInfo { rank, node, group: String::new(), host, pid: self.processes as u32, addresses }
    }

    fn start_leader(&mut self) {
        let info = self.info(0);
        let process = self.processes;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&process.to_le_bytes());
        let nonce = Nonce::new(nonce);
        let leader = Leader::new(info, self.size as usize, "1".to_owned(), process, nonce);
        let mut steps = Rank0Steps::new(quiet(self.now()), "here".to_owned());
        steps.begin(None, &leader, 0, self.now());
        self.leaders.push(LeaderProcess {
            leader,
            steps,
            stage: 0,
            nonce,
            values: Vec::new(),
            outcome: None,
            is_alive: true,
            ends: None,
            paused: Duration::ZERO,
            sent: Vec::new(),
            leaves: (false, false),
            missing: None,
        });
        self.scheduler.after(SECOND / 4, Event::Tick(Who::Leader(self.leaders.len() - 1)));
    }

    fn start_member(&mut self, rank: u32) {
        let info = self.info(rank);
        let hello = Hello::new(info, self.size, "1".to_owned(), 0, self.processes);
        self.members.push(MemberProcess {
            follower: Follower::new(hello, quiet(self.now()), "here".to_owned()),
            link: None,
            is_welcome: false,
            has_reported: false,
            stage: 1,
            values: Vec::new(),
            nonces: Vec::new(),
            outcome: None,
            is_alive: true,
            paused: Duration::ZERO,
            acknowledged: false,
            has_file: self.scheduler.happens(500),
            needed: None,
            catalogs: BTreeMap::new(),
            at_relay: false,
            offers: RelayOffers::default(),
            visitors: BTreeMap::new(),
            is_done: false,
            has_left: false,
            left: None,
        });
        let member = self.members.len() - 1;
        self.scheduler.after(Duration::ZERO, Event::Dial(member));
        self.scheduler.after(SECOND / 4, Event::Tick(Who::Member(member)));
    }

    fn rank(&self, member: usize) -> u32 {
        self.members[member].follower.hello.info.rank
    }

    fn is_cut(&self, rank: u32, up: bool) -> bool {
        self.cuts.get(&rank).is_some_and(|cut| cut[usize::from(!up)])
    }

    // Events.

    fn disturb(&mut self, fault: Disturbance) {
        self.faults.push(fault);
        let last = |world: &Self, rank| {
            let of_rank = |member: &usize| world.rank(*member) == rank && world.members[*member].is_alive;
            (0..world.members.len()).rfind(of_rank)
        };
        match fault {
            Disturbance::Lose { rank } => {
                let link = last(self, rank).and_then(|member| self.members[member].link);
                link.into_iter().for_each(|link| self.lose(link));
            }
            Disturbance::Cut { rank, up, seconds } => {
                self.cuts.entry(rank).or_default()[usize::from(!up)] = true;
                for link in 0..self.links.len() {
                    if self.rank(self.links[link].member) == rank && self.links[link].open.contains(&true) {
                        self.scheduler.after(HEARTBEAT_TIMEOUT, Event::Silent { link, up });
                    }
                }
                self.scheduler.after(SECOND * seconds as u32, Event::Mend { rank });
            }
            Disturbance::Pause { rank, millis } => {
                let until = self.scheduler.now() + Duration::from_millis(millis);
                match (rank, last(self, rank)) {
                    (0, _) => self.leaders.iter_mut().for_each(|leader| leader.paused = until),
                    (_, Some(member)) => self.members[member].paused = until,
                    (_, None) => {}
                }
            }
            Disturbance::RestartFirst => {
                if let Some(leader) = (0..self.leaders.len()).rfind(|leader| self.leaders[*leader].is_alive) {
                    self.leaders[leader].outcome = Some(Err(End::Killed));
                    self.end_leader(leader);
                    let late = self.scheduler.between(Duration::ZERO, SECOND * 10);
                    self.scheduler.after(late, Event::StartLeader);
                }
            }
            Disturbance::SecondRun => {
                self.scheduler.after(Duration::ZERO, Event::StartLeader);
                for rank in 1..self.size {
                    let late = self.scheduler.between(Duration::ZERO, SECOND * 3);
                    self.scheduler.after(late, Event::StartMember { rank });
                }
            }
            Disturbance::Replace { rank } => {
                if let Some(member) = last(self, rank) {
                    let process = &mut self.members[member];
                    process.is_alive = false;
                    process.outcome = Some(Err(End::Killed));
                    if let Some(link) = process.link.take() {
                        self.lose(link);
                    }
                    let late = self.scheduler.between(Duration::ZERO, SECOND * 10);
                    self.scheduler.after(late, Event::StartMember { rank });
                }
            }
        }
    }

    /// The process that an event concerns, if the event waits while it is paused.
    fn actor(&self, event: &Event) -> Option<Who> {
        match event {
            Event::Tick(who) | Event::Leave(who) | Event::Left(who) => Some(*who),
            Event::Dial(member) => Some(Who::Member(*member)),
            Event::Visit { relay, .. } => Some(Who::Member(*relay)),
            Event::Passed { visitor, .. } | Event::RelaySilent { visitor } => Some(Who::Member(*visitor)),
            Event::Check { leader, .. } => Some(Who::Leader(*leader)),
            Event::Message { link, up, .. } | Event::Closed { link, up } | Event::Silent { link, up } => {
                let MemberLink { leader, member, .. } = self.links[*link];
                Some(if *up { Who::Leader(leader) } else { Who::Member(member) })
            }
            _ => None,
        }
    }

    fn play(&mut self) {
        while let Some(event) = self.scheduler.next() {
            if self.scheduler.now() > END {
                return;
            }
            let paused = match self.actor(&event) {
                Some(Who::Leader(leader)) => self.leaders[leader].paused,
                Some(Who::Member(member)) => self.members[member].paused,
                None => Duration::ZERO,
            };
            if paused > self.scheduler.now() {
                self.scheduler.after(paused - self.scheduler.now(), event);
                continue;
            }
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::StartLeader => self.start_leader(),
            Event::StartMember { rank } => self.start_member(rank),
            Event::Fault(fault) => self.disturb(fault),
            Event::Dial(member) => self.dial(member),
            Event::Tick(Who::Leader(leader)) => {
                self.pump(leader, None);
                if self.leaders[leader].is_alive {
                    self.scheduler.after(SECOND / 4, Event::Tick(Who::Leader(leader)));
                }
            }
            Event::Tick(Who::Member(member)) => {
                if !self.members[member].is_alive {
                    return;
                }
                match self.members[member].follower.check_deadline(0, now) {
                    Err(error) => self.end_member(member, &error),
                    Ok(()) => _ = self.scheduler.after(SECOND / 4, Event::Tick(Who::Member(member))),
                }
            }
            Event::Message { link, up: true, message, bulk } => {
                if self.links[link].open[0] && self.leaders[self.links[link].leader].is_alive {
                    self.take(link, message, bulk);
                }
            }
            Event::Message { link, up: false, message, bulk } => {
                let member = self.links[link].member;
                if self.links[link].open[1] && self.members[member].link == Some(link) {
                    self.receive(member, message, bulk);
                }
            }
            Event::Closed { link, up } => self.closed(link, up),
            Event::Silent { link, up } => {
                if self.is_cut(self.rank(self.links[link].member), up) {
                    self.links[link].is_lost = true;
                    self.closed(link, up);
                }
            }
            Event::Check { leader, session } => {
                self.leaders[leader].leader.check_lost(session);
                self.pump(leader, None);
            }
            Event::Visit { visitor, relay } => self.visit(visitor, relay),
            Event::Passed { visitor, passed } => self.passed(visitor, passed),
            Event::RelaySilent { visitor } => self.relay_silent(visitor),
            Event::Leave(Who::Leader(leader)) => {
                self.leaders[leader].leaves.0 = true;
                self.leaders[leader].leader.part(0, key::DONE, Bytes::new()).unwrap();
                self.pump(leader, None);
            }
            Event::Left(Who::Leader(leader)) => {
                self.leaders[leader].leaves.1 = true;
                self.pump(leader, None);
            }
            Event::Leave(Who::Member(member)) => {
                self.members[member].is_done = true;
                self.report_last(member);
            }
            Event::Left(Who::Member(member)) => self.leave(member, RunEnd::Unheard),
            Event::Mend { rank } => {
                self.cuts.remove(&rank);
                for link in 0..self.links.len() {
                    if self.rank(self.links[link].member) != rank {
                        continue;
                    }
                    for up in [true, false] {
                        let side = usize::from(!up);
                        for (message, bulk) in std::mem::take(&mut self.links[link].held[side]) {
                            self.send(link, up, message, bulk);
                        }
                        // An end that was closed during the cut is detected now.
                        if !self.links[link].open[usize::from(up)] {
                            self.scheduler.after(SECOND / 10, Event::Closed { link, up });
                        }
                    }
                }
            }
        }
    }
}

/// One run with faults of these kinds, which last up to `longest` seconds. Returns the hash of the
/// trace.
fn play(seed: u64, kinds: u64, faults: u64, longest: u64) -> u128 {
    let mut world = World::new(seed, 5);
    for _ in 0..faults {
        let rank = world.scheduler.below(4) as u32 + 1;
        let fault = match world.scheduler.below(kinds) {
            0 => Disturbance::Lose { rank },
            1 => Disturbance::Cut {
                rank,
                up: world.scheduler.happens(500),
                seconds: world.scheduler.below(longest),
            },
            2 => Disturbance::Pause { rank: rank - 1, millis: world.scheduler.below(longest.min(20) * 1000) },
            3 => Disturbance::Replace { rank },
            4 => Disturbance::SecondRun,
            _ => Disturbance::RestartFirst,
        };
        let at = world.scheduler.between(Duration::ZERO, FAULTS_END);
        // Most of them during the rendezvous.
        let at = if world.scheduler.happens(700) { at / 4 } else { at };
        world.scheduler.after(at, Event::Fault(fault));
    }
    world.play();
    world.check(seed);
    world.check_costs(seed, faults == 0, kinds == 1, longest <= HEARTBEAT_TIMEOUT.as_secs());
    world.scheduler.digest()
}

/// The seeds of a test.
fn seeds() -> impl Iterator<Item = u64> {
    TestRandom::new().seeds(200, 20_000)
}

#[test]
// semantics: RANK-27
fn ranks_start_with_equal_values_or_name_the_cause() {
    seeds().for_each(|seed| _ = play(seed, 6, seed % 7, MAX_CUT_SECONDS));
}

#[test]
// semantics: RANK-27
fn lost_connections_cost_a_rendezvous_only_time() {
    seeds().for_each(|seed| _ = play(seed, 1, seed % 40, MAX_CUT_SECONDS));
}

#[test]
// semantics: RANK-27
fn ranks_without_faults_leave_together_with_a_catalog_a_node() {
    seeds().for_each(|seed| _ = play(seed, 1, 0, MAX_CUT_SECONDS));
}

/// Cuts and pauses that are shorter than the heartbeat timeout.
#[test]
// semantics: RANK-27
fn short_cuts_and_pauses_cost_a_rendezvous_only_time() {
    seeds().for_each(|seed| _ = play(seed, 3, 1 + seed % 2, HEARTBEAT_TIMEOUT.as_secs()));
}

#[test]
// semantics: RANK-27
fn one_seed_gives_one_trace() {
    let seeds: Vec<_> = seeds().take(20).collect();
    let digests = || seeds.iter().map(|seed| play(*seed, 6, 6, MAX_CUT_SECONDS)).collect::<Vec<_>>();
    let first = digests();
    assert_eq!(first, digests());
    assert_ne!(first[0], first[1]);
}

#[test]
// semantics: RANK-27
fn rank_of_an_earlier_run_is_refused_by_the_next_rank_0() {
    let mut world = World { run: SECOND * 80, ..World::new(1, 3) };
    world.scheduler.after(SECOND * 30, Event::Fault(Disturbance::RestartFirst));
    world.play();
    assert_eq!(world.leaders.len(), 2);
    assert!(world.members.iter().all(|member| matches!(member.outcome, Some(Ok(())))));
    let Some(Err(End::Error(_, line))) = &world.leaders[1].outcome else {
        panic!("the second rank 0 has a run")
    };
    assert!(line.contains("of an earlier run is alive"), "{line}");
}
