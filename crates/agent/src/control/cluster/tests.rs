//! The cluster with simulated agents, a network that delays and loses, and a process that restarts.

use foreread_host::status::{AgentStatus, DatasetStatus, JobStatus};
use proptest::prelude::*;

use foreread_host::held_leases::HeldLeases;

use super::super::intervals::{REPORT_INTERVAL, SETTLED};
use super::super::messages::OriginDemand;
use super::super::tokens::DEFAULT_NAME;
use super::*;

const ORIGIN: &str = "s3://bucket";
const LIMIT: u64 = 200_000_000;
const STEP: Duration = Duration::from_millis(20);

/// An agent, as it behaves.
#[derive(Debug, Default)]
struct SimulatedAgent {
    user: &'static str,
    node: String,
    /// Its name at the control process.
    name: String,
    held: HeldLeases,
    connection: Option<u64>,
    heard: Duration,
    reported: Duration,
    dialled: Duration,
    sent: BTreeMap<u64, Duration>,
    number: u64,
    applied: u64,
    notes: Option<ClusterNotes>,
    /// The rate that its job wants. `Some(0)`: it has no job.
    wanted: Option<u64>,
    is_cut: bool,
}

#[derive(Debug)]
enum Message {
    Report(Box<Report>),
    Applied(u64),
    Grant(Box<Grant>),
    Notes(ClusterNotes),
}

/// An event of the simulation.
#[derive(Clone, Debug)]
enum Event {
    Cut(usize),
    Heal(usize),
    Want(usize, Option<u64>),
    Restart,
    Join,
}

struct Simulation {
    cluster: Cluster,
    agents: Vec<SimulatedAgent>,
    now: Duration,
    /// When each arrives, for which agent, over which connection.
    under_way: Vec<(Duration, usize, u64, Message)>,
    next_connection: u64,
    draw: u64,
}

fn policy(changes: &[&str]) -> Policy {
    let mut policy = Policy::new(CLUSTER_WORDS);
    for change in changes {
        policy.set_text(change, PolicySource::Set).unwrap();
    }
    policy
}

/// The policy after a restart.
fn policy_file() -> Policy {
    let mut policy = Policy::new(CLUSTER_WORDS);
    policy.set_text(&format!("limit@{ORIGIN}={LIMIT}"), PolicySource::File).unwrap();
    policy
}

impl Simulation {
    fn new(agents: usize, seed: u64) -> Self {
        let mut simulation = Self {
            cluster: Cluster::new(policy_file(), SETTLED),
            agents: Vec::new(),
            now: Duration::ZERO,
            under_way: Vec::new(),
            next_connection: 1,
            draw: seed,
        };
        (0..agents).for_each(|_| simulation.join(DEFAULT_NAME));
        simulation
    }

    fn join(&mut self, user: &'static str) {
        let node = format!("n{}", self.agents.len());
        self.agents.push(SimulatedAgent { user, node, ..SimulatedAgent::default() });
    }

    /// Up to 200 ms.
    fn latency(&mut self) -> Duration {
        self.draw = foreread_types::mix(self.draw);
        Duration::from_millis(self.draw % 200)
    }

    fn happen(&mut self, event: &Event) {
        let count = self.agents.len();
        match *event {
            Event::Cut(at) => self.agents[at % count].is_cut = true,
            Event::Heal(at) => self.agents[at % count].is_cut = false,
            Event::Want(at, wanted) => self.agents[at % count].wanted = wanted,
            // Leases of the last moment may be in no agent's notes.
            Event::Restart
                if self.agents.iter().all(|agent| agent.notes.as_ref() != Some(&self.cluster.notes)) => {}
            Event::Restart => {
                // The policy file is still there. Values that were set at run time are lost.
                self.cluster = Cluster::new(policy_file(), SETTLED);
                self.agents.iter_mut().for_each(|agent| agent.connection = None);
                self.under_way.clear();
                // An agent with the last notes connects first. Otherwise the other agents are
                // unknown.
                let version = |agent: &SimulatedAgent| agent.notes.as_ref().map(|notes| notes.version);
                let is_cut = |at: &usize| self.agents[*at].is_cut;
                let last = (0..count).max_by_key(|at| (version(&self.agents[*at]), !is_cut(at))).unwrap();
                (self.agents[last].is_cut, self.agents[last].dialled) = (false, Duration::ZERO);
                self.dial_or_report(last);
            }
            Event::Join if count < 9 => self.join(DEFAULT_NAME),
            Event::Join => {}
        }
    }

    fn send(&mut self, at: usize, connection: u64, message: Message) {
        // A cut network delivers nothing.
        if !self.agents[at].is_cut {
            let arrives = self.now + self.latency();
            // The messages of a connection stay in their order.
            let same = |(_, of, over, _): &&(Duration, usize, u64, Message)| *of == at && *over == connection;
            let last = self.under_way.iter().filter(same).map(|(arrives, ..)| *arrives).max();
            self.under_way.push((arrives.max(last.unwrap_or_default()), at, connection, message));
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        let mut arrived = Vec::new();
        let mut at = 0;
        while at < self.under_way.len() {
            if self.under_way[at].0 <= now { arrived.push(self.under_way.remove(at)) } else { at += 1 }
        }
        arrived.sort_by_key(|(arrives, ..)| *arrives);
        for (_, at, connection, message) in arrived {
            self.receive(at, connection, message);
        }
        for at in 0..self.agents.len() {
            self.dial_or_report(at);
        }
        for OutgoingGrant { connection, grant, with_notes, .. } in self.cluster.grants(now) {
            if let Some(at) = self.agents.iter().position(|agent| agent.connection == Some(connection)) {
                if with_notes {
                    let notes = self.cluster.notes().clone();
                    self.send(at, connection, Message::Notes(notes));
                }
                self.send(at, connection, Message::Grant(Box::new(grant)));
            }
        }
    }

    fn receive(&mut self, at: usize, connection: u64, message: Message) {
        let (agent, now) = (&mut self.agents[at], self.now);
        if agent.is_cut || agent.connection != Some(connection) {
            return;
        }
        let name = agent.name.clone();
        match message {
            Message::Report(report) => self.cluster.report(&name, connection, *report, now),
            Message::Applied(number) => {
                self.cluster.applied(&name, connection, number, now);
            }
            Message::Notes(notes) => agent.notes = Some(notes),
            Message::Grant(grant) => {
                agent.heard = now;
                agent.applied = grant.number;
                agent.held.take(&grant.leases, agent.sent[&grant.report]);
                self.send(at, connection, Message::Applied(grant.number));
            }
        }
    }

    fn dial_or_report(&mut self, at: usize) {
        let (agent, now) = (&mut self.agents[at], self.now);
        if let Some(connection) = agent.connection {
            if now - agent.heard > SILENT {
                agent.connection = None;
            } else if now - agent.reported >= REPORT_INTERVAL {
                agent.number += 1;
                agent.reported = now;
                agent.sent.insert(agent.number, now);
                let demand = OriginDemand {
                    store: ORIGIN.into(),
                    weight: 1,
                    wanted: agent.wanted,
                    ..OriginDemand::default()
                };
                let report = Report {
                    number: agent.number,
                    applied: agent.applied,
                    demands: if agent.wanted == Some(0) { Vec::new() } else { vec![demand] },
                    status: AgentStatus::default(),
                };
                self.send(at, connection, Message::Report(Box::new(report)));
            }
        } else if !agent.is_cut && now - agent.dialled > Duration::from_millis(300) {
            let connection = self.next_connection;
            self.next_connection += 1;
            (agent.dialled, agent.heard, agent.reported) = (now, now, now);
            (agent.connection, agent.number, agent.applied) = (Some(connection), 0, 0);
            agent.sent = BTreeMap::from([(0, now)]);
            let hello = Hello {
                versions: VERSIONS,
                node: agent.node.clone(),
                instance: agent.node.clone(),
                leases: agent.held.tell(now),
                notes: agent.notes.clone(),
                addresses: Vec::new(),
            };
            agent.name = self.cluster.hello(connection, agent.user, hello, now).unwrap();
        }
    }

    /// The rate that all agents together may read now.
    fn total(&self) -> u64 {
        self.agents.iter().map(|agent| agent.held.limit(ORIGIN, self.now).unwrap_or(0)).sum()
    }

    fn run(&mut self, seconds: u64) -> u64 {
        let mut most = 0;
        for _ in 0..seconds * 50 {
            self.step();
            most = most.max(self.total());
        }
        most
    }
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        3 => (0_usize..9).prop_map(Event::Cut),
        3 => (0_usize..9).prop_map(Event::Heal),
        3 => (0_usize..9, prop::option::of(0..LIMIT)).prop_map(|(at, wanted)| Event::Want(at, wanted)),
        1 => Just(Event::Restart),
        1 => Just(Event::Join),
    ];
    prop::collection::vec((0_u64..8_000, event), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is cut, restarted or added, and when: agents together never read more than the
    /// limit. After everything is well again, they have all of it.
    #[test]
    // semantics: CONTROL-2
    fn total_never_exceeds_the_limit(agents in 1_usize..6, seed in any::<u64>(), events in events()) {
        let mut simulation = Simulation::new(agents, seed);
        simulation.run(4);
        for (after, event) in &events {
            let until = simulation.now + Duration::from_millis(*after);
            while simulation.now < until {
                simulation.step();
                // On its way to its share, each has a two hundredth of it.
                let total = simulation.total();
                prop_assert!(total <= LIMIT / 100 * 102 + 20, "{total} at {:?}", simulation.now);
            }
            simulation.happen(event);
        }
        for agent in &mut simulation.agents {
            (agent.is_cut, agent.wanted) = (false, None);
        }
        simulation.run(20);
        prop_assert!(simulation.total() > LIMIT / 100 * 97, "{} of {LIMIT}", simulation.total());
        let shares: Vec<u64> =
            simulation.agents.iter().map(|agent| agent.held.limit(ORIGIN, simulation.now).unwrap()).collect();
        let fair = LIMIT / shares.len() as u64;
        prop_assert!(shares.iter().all(|share| share.abs_diff(fair) < fair / 20), "{shares:?}");
    }
}

#[test]
// semantics: CONTROL-3
fn absent_agents_have_a_part_reserved_until_forgotten() {
    let mut simulation = Simulation::new(8, 1);
    simulation.run(5);
    (0..4).for_each(|at| simulation.agents[at].is_cut = true);
    assert!(simulation.run(20) <= LIMIT / 100 * 102 + 8);
    let of = |simulation: &Simulation, at: usize| {
        simulation.agents[at].held.limit(ORIGIN, simulation.now).unwrap()
    };
    // Disconnected agents read an eighth each, and so do connected agents.
    assert!(
        (0..8).all(|at| of(&simulation, at).abs_diff(LIMIT / 8) < LIMIT / 800),
        "{:?}",
        simulation.agents
    );
    // Two of them are gone for good.
    let now = simulation.now;
    assert!(simulation.cluster.forget("n7", now).unwrap_err().to_string().contains("connected"));
    assert!(simulation.cluster.forget("n9", now).is_err());
    for node in ["n0", "n1"] {
        simulation.cluster.forget(node, now).unwrap();
    }
    simulation.run(3);
    assert!(of(&simulation, 7).abs_diff(LIMIT * 6 / 8 / 4) < LIMIT / 400, "{}", of(&simulation, 7));
}

#[test]
// semantics: CONTROL-4
fn restarted_process_knows_all_in_two_seconds() {
    let mut simulation = Simulation::new(6, 2);
    let mut changed = simulation.cluster.policy().clone();
    changed.set_text("drain@n2=true", PolicySource::Set).unwrap();
    simulation.cluster.set_policy(changed);
    simulation.run(5);
    let before = simulation.total();
    simulation.agents[5].is_cut = true;
    simulation.happen(&Event::Restart);
    let mut least = u64::MAX;
    for _ in 0..100 {
        simulation.step();
        least = least.min(simulation.total());
    }
    // No agent had less meanwhile, and the values that were set are in force. The absent agent is
    // not forgotten.
    assert!(least >= before / 100 * 99, "{least} of {before}");
    assert_eq!(simulation.cluster.policy().find("limit", ORIGIN), Some(LIMIT));
    assert_eq!(simulation.cluster.policy().find("drain", "n2"), Some(1));
    assert_eq!(simulation.cluster.nodes().len(), 6);
    assert!(simulation.run(20) <= LIMIT / 100 * 102 + 8);
    assert!(simulation.total() >= before / 100 * 99);
}

#[test]
// semantics: CONTROL-2
fn first_process_gives_nothing_for_two_seconds() {
    let mut simulation = Simulation::new(3, 4);
    // Agents dial after a third of a second. Until then, the process does not know their leases.
    assert!(simulation.run(2) < LIMIT / 50);
    simulation.run(2);
    assert!(simulation.total() > LIMIT / 100 * 97, "{}", simulation.total());
}

#[test]
// semantics: CONTROL-5
fn new_weight_of_a_user_is_in_force_within_two_seconds() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(0, seed);
        ["alice", "bob", "bob", "carol"].into_iter().for_each(|user| simulation.join(user));
        simulation.run(6);
        // A report may have been answered a moment ago.
        (0..seed * 2).for_each(|_| simulation.step());
        for weight in [4, 1] {
            let mut changed = simulation.cluster.policy().clone();
            changed.set_text(&format!("user-weight@alice={weight}"), PolicySource::Set).unwrap();
            simulation.cluster.set_policy(changed);
            assert!(simulation.run(2) <= LIMIT / 100 * 102 + 4);
            let part = LIMIT / (weight + 2);
            let expected = [weight * part, part / 2, part / 2, part];
            for (agent, expected) in simulation.agents.iter().zip(expected) {
                let rate = agent.held.limit(ORIGIN, simulation.now).unwrap();
                assert!(rate.abs_diff(expected) < LIMIT / 100, "seed {seed}: {rate} for {expected}");
            }
        }
    }
}

/// Grants for one agent that is connected, after a report.
fn grant_after(cluster: &mut Cluster, user: &str, node: &str, report: Report, now: Duration) -> Grant {
    let hello = Hello { versions: VERSIONS, node: node.into(), instance: node.into(), ..Hello::default() };
    let connection = 100 + now.as_millis() as u64;
    let name = cluster.hello(connection, user, hello, now).unwrap();
    cluster.grants(now);
    cluster.report(&name, connection, report, now);
    let grants = cluster.grants(now);
    grants.into_iter().find(|it| it.connection == connection).unwrap().grant
}

#[test]
// semantics: CONTROL-6
fn weights_pins_quotas_and_drains_reach_the_agents() {
    let changes =
        ["weight@alice/search-*=4", "pin@s3://b/base=true", "quota@s3://b/*=300MB", "drain@alice@n1=true"];
    let mut cluster = Cluster::new(policy(&changes), SETTLED);
    let report = |memory| Report {
        number: 1,
        status: AgentStatus {
            memory,
            jobs: vec![JobStatus { name: "search-1".into(), ..JobStatus::default() }],
            datasets: vec![DatasetStatus { url: "s3://b/base".into(), ..DatasetStatus::default() }],
            ..AgentStatus::default()
        },
        ..Report::default()
    };
    let grant = grant_after(&mut cluster, "alice", "n1", report(1000), Duration::from_secs(1));
    assert_eq!(grant.policy, ["cap@s3://b/base=300000000", "pin@s3://b/base=true", "weight@search-1=4"]);
    assert!(grant.is_draining);
    let grant = grant_after(&mut cluster, "bob", "n1", report(2000), Duration::from_secs(2));
    // The quota is divided by memory. The weight is another user's.
    assert_eq!(grant.policy, ["cap@s3://b/base=200000000", "pin@s3://b/base=true"]);
    assert!(!grant.is_draining);
}

#[test]
// semantics: CONTROL-1
fn names_are_unique_and_versions_compared() {
    let mut cluster = Cluster::new(policy(&[]), SETTLED);
    let now = Duration::from_secs(1);
    let hello = |instance: &str, node: &str| Hello {
        versions: VERSIONS,
        node: node.into(),
        instance: instance.into(),
        ..Hello::default()
    };
    assert_eq!(cluster.hello(1, "cluster", hello("a", "n1"), now).unwrap(), "n1");
    // Another one gets a number.
    assert_eq!(cluster.hello(2, "cluster", hello("b", "n1"), now).unwrap(), "n1-2");
    cluster.goodbye("n1-2", 2);
    assert_eq!(cluster.hello(3, "alice", hello("c", "n1"), now).unwrap(), "alice@n1");
    // The same agent again, and another one in place of a silent one.
    cluster.hello(4, "cluster", hello("a", "n1"), now).unwrap();
    cluster.hello(5, "cluster", hello("b", "n1"), now + SILENT * 2).unwrap();
    for name in ["", "a\nb", "a@b", "*", &"x".repeat(256)] {
        assert!(cluster.hello(6, "cluster", hello("d", name), now).is_err());
    }
    let later = Hello { versions: (7, 9), ..hello("e", "n3") };
    assert!(cluster.hello(7, "cluster", later, now).unwrap_err().contains("version"));
    // A connection that was replaced changes nothing.
    cluster.goodbye("n1", 1);
    assert_eq!(cluster.nodes().len(), 2);
    cluster.goodbye("n1", 5);
    assert_eq!(cluster.nodes().len(), 1);
}

/// A value came back with the notes of an agent that had missed its end.
#[test]
// semantics: CONTROL-4
fn value_taken_back_to_the_file_stays_so_after_a_restart() {
    let now = Duration::from_secs(1);
    let notes = |version, value: &str| ClusterNotes {
        version,
        set: vec![format!("limit@{ORIGIN}={value}")],
        ..ClusterNotes::default()
    };
    let (before, after) = (notes(5, "none"), notes(6, "file"));
    for order in [[&before, &after], [&after, &before]] {
        let mut cluster = Cluster::new(policy_file(), SETTLED);
        for (connection, notes) in (1..).zip(order) {
            let (node, notes) = (format!("n{connection}"), Some(notes.clone()));
            let hello = Hello { versions: VERSIONS, instance: node.clone(), node, notes, ..Hello::default() };
            cluster.hello(connection, "cluster", hello, now).unwrap();
        }
        assert_eq!(cluster.policy().find("limit", ORIGIN), Some(LIMIT));
    }
}
