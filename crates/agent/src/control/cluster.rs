//! The agents of a cluster, its policy, and the grants of each agent that follow from them.
//!
//! It does no I/O and has no clock: the server calls it with messages and the time, and sends the
//! grants that it returns. All of its state comes from the agents and the policy file. So a process
//! that replaces a killed one knows all of it when the agents have dialled again. Until then,
//! agents keep their leases, and get nothing new.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use foreread_host::held_leases::{LEASE, LeaseTerms, SILENT};
use foreread_host::policy::{CLUSTER_WORDS, Policy, PolicyError, PolicySource};

use super::division::{OriginDivision, divide, idle_rate};
use super::messages::{ClusterNotes, Grant, Hello, NodeNote, Report, VERSIONS, WarmPart};
use super::node::{Lease, Leases, Node};
use super::rosters::Rosters;

/// The most agents.
const MAX_NODES: usize = 10_000;

/// The most addresses of an agent.
const MAX_ADDRESSES: usize = 16;

/// The most bytes of a node's name, and of an agent's address.
const MAX_NAME: usize = 255;

/// Versions of notes below this one are believed.
const MAX_VERSION: u64 = 1 << 52;

/// A grant is sent at once if a lease changes by more than this part of it.
const NOTABLE_PART: u64 = 64;

/// A dataset that all agents are to fill their memory with, each with a part.
#[derive(Clone, Debug)]
struct WarmRequest {
    number: u64,
    target: String,
    /// The agents that take part, in the order of their parts: names and instances.
    nodes: Vec<(String, String)>,
}

/// Sums over agents.
#[derive(Debug, Default)]
struct Totals {
    /// The memory of all agents that know a dataset with a quota, by its location.
    memory: BTreeMap<String, u128>,
    /// The names of all jobs with weights, by user.
    jobs: BTreeMap<String, BTreeSet<String>>,
}

/// The fault in the name of a node, if there is one. Patterns match names, so a name has no `*`.
pub fn wrong_node_name(name: &str) -> Option<String> {
    let is_wrong = |character: char| character.is_control() || "@*".contains(character);
    let wrong = name.is_empty() || name.len() > MAX_NAME || name.contains(is_wrong);
    wrong.then(|| {
        let shown: String = name.escape_debug().take(MAX_NAME).collect();
        format!("'{shown}': expected 1 to {MAX_NAME} bytes without '@', '*' and control characters")
    })
}

/// A grant for an agent.
#[derive(Debug)]
pub(super) struct OutgoingGrant {
    pub(super) connection: u64,
    pub(super) grant: Grant,
    /// Whether the agent gets the notes, too.
    pub(super) with_notes: bool,
    /// The roster, if it has changed, as a message.
    pub(super) roster: Option<Bytes>,
}

/// The state of the control process.
#[derive(Debug)]
pub(super) struct Cluster {
    nodes: BTreeMap<String, Node>,
    policy: Policy,
    /// How long it waits for the agents of an earlier process, if none has its notes.
    settled: Duration,
    /// When the first agent has dialled.
    begun: Option<Duration>,
    /// Whether the agents of an earlier process are known.
    is_settled: bool,
    notes: ClusterNotes,
    /// The notes of an earlier process.
    earlier: ClusterNotes,
    /// The origins that agents read.
    divisions: BTreeMap<String, OriginDivision>,
    warm: Option<WarmRequest>,
    rosters: Rosters,
    /// Whether this process has been settled before.
    was_settled: bool,
}

impl Cluster {
    pub(super) fn new(policy: Policy, settled: Duration) -> Self {
        Self {
            nodes: BTreeMap::new(),
            policy,
            settled,
            begun: None,
            is_settled: false,
            notes: ClusterNotes::default(),
            earlier: ClusterNotes::default(),
            divisions: BTreeMap::new(),
            warm: None,
            rosters: Rosters::default(),
            was_settled: false,
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(super) fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes
    }

    /// How the limits of origins are divided, by origin.
    pub(super) fn divisions(&self) -> &BTreeMap<String, OriginDivision> {
        &self.divisions
    }

    /// Handles the hello of an agent. Returns the agent's name from now on.
    ///
    /// # Errors
    /// The reason of a refusal, for the agent's log.
    pub(super) fn hello(
        &mut self,
        connection: u64,
        user: &str,
        hello: Hello,
        now: Duration,
    ) -> Result<String, String> {
        let (first, last) = hello.versions;
        if first > VERSIONS.1 || last < VERSIONS.0 {
            return Err(format!(
                "this control process speaks version {} and the agent {first} to {last}",
                VERSIONS.1
            ));
        }
        if let Some(why) = wrong_node_name(&hello.node) {
            return Err(format!("the agent's name: {why}: set --node"));
        }
        let name = self.free_name(node_name(user, &hello.node), &hello.instance, now);
        if !self.nodes.contains_key(&name) && self.nodes.len() >= MAX_NODES {
            return Err(format!("there are {MAX_NODES} agents already"));
        }
        self.begun.get_or_insert(now);
        let known = self.notes.version.max(self.earlier.version);
        let earlier = hello.notes.filter(|notes| (known + 1..MAX_VERSION).contains(&notes.version));
        if let Some(notes) = earlier {
            self.remember(notes);
        }
        let node = self.nodes.entry(name.clone()).or_default();
        user.clone_into(&mut node.user);
        let addresses = hello.addresses.into_iter().filter(|address| address.len() <= MAX_NAME);
        node.addresses = addresses.take(MAX_ADDRESSES).collect();
        node.welcome(connection, &hello.instance, &hello.leases, now);
        Ok(name)
    }

    /// The name of an agent. It gets a number if another connected agent has the same name.
    fn free_name(&self, name: String, instance: &str, now: Duration) -> String {
        let is_free = |name: &str| {
            self.nodes.get(name).is_none_or(|node| node.instance == instance || !node.is_heard(now))
        };
        if is_free(&name) {
            return name;
        }
        let mut numbered = (2_u64..).map(|number| format!("{name}-{number}"));
        numbered.find(|name| is_free(name)).unwrap_or(name)
    }

    /// Applies the notes of an earlier process, which are newer than the known notes.
    fn remember(&mut self, notes: ClusterNotes) {
        let mut set = Policy::new(CLUSTER_WORDS);
        for change in &notes.set {
            if let Err(error) = set.set_text(change, PolicySource::Set) {
                tracing::warn!(%error, "a value of an earlier process is not in force");
            }
        }
        if !self.was_settled {
            // Values that were set since the restart win.
            let since = self.policy.texts(&PolicySource::Set);
            for change in since.iter().filter(|change| !self.earlier.set.contains(change)) {
                if let Err(error) = set.set_text(change, PolicySource::Set) {
                    tracing::warn!(%error, "a value is not in force");
                }
            }
            self.policy = self.policy.with(set, &PolicySource::Set);
        }
        for (name, note) in notes.nodes.iter().take(MAX_NODES) {
            let common = notes.fallbacks.iter().chain(&note.fallbacks);
            let lease =
                |(origin, rate): (&String, &u64)| (origin.clone(), Lease { rate: *rate, fallback: *rate });
            let unheard = || Node::unheard(common.map(lease).collect(), !note.has_ended);
            self.nodes.entry(name.clone()).or_insert_with(unheard);
        }
        // Notes that come late may have agents that are missing.
        self.is_settled = false;
        self.notes.version = self.notes.version.max(notes.version);
        self.earlier = notes;
    }

    /// The agent of a connection.
    fn node(&mut self, name: &str, connection: u64) -> Option<&mut Node> {
        self.nodes.get_mut(name).filter(|node| node.connection == Some(connection))
    }

    /// A report has arrived.
    pub(super) fn report(&mut self, name: &str, connection: u64, report: Report, now: Duration) {
        if let Some(node) = self.node(name, connection) {
            node.report(report, now);
        }
    }

    /// An agent has applied a grant. Returns whether others can have more now.
    pub(super) fn applied(&mut self, name: &str, connection: u64, number: u64, now: Duration) -> bool {
        self.node(name, connection).is_some_and(|node| node.applied(number, now))
    }

    /// Handles the end of an agent: nothing is reserved for it.
    pub(super) fn goodbye(&mut self, name: &str, connection: u64) {
        if self.node(name, connection).is_some() {
            self.nodes.remove(name);
        }
    }

    pub(super) fn disconnected(&mut self, name: &str, connection: u64) {
        if let Some(node) = self.node(name, connection) {
            node.connection = None;
        }
    }

    /// Forgets an agent that is gone.
    ///
    /// # Errors
    /// If it is not known, or connected.
    pub(super) fn forget(&mut self, name: &str, now: Duration) -> Result<(), PolicyError> {
        match self.nodes.get(name) {
            Some(node) if node.is_heard(now) => {
                Err(PolicyError::new(format!("{name} is connected: stop its agent first")))
            }
            Some(_) => {
                self.nodes.remove(name);
                Ok(())
            }
            None => Err(PolicyError::new(format!("no agent is called {name}"))),
        }
    }

    /// Replaces the policy.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Makes all connected agents fill their memory with a dataset, each with a part of it. No
    /// other request has the same `number`, not even one to an earlier process. Returns the number
    /// of agents.
    pub(super) fn warm(&mut self, target: &str, number: u64, now: Duration) -> usize {
        let heard = self.nodes.iter().filter(|(_, node)| node.is_heard(now) && !node.is_draining);
        let nodes: Vec<_> = heard.map(|(name, node)| (name.clone(), node.instance.clone())).collect();
        let count = nodes.len();
        self.warm = Some(WarmRequest { number, target: target.to_owned(), nodes });
        count
    }

    /// The notes that agents keep.
    pub(super) fn notes(&self) -> &ClusterNotes {
        &self.notes
    }

    /// The grants to send now.
    pub(super) fn grants(&mut self, now: Duration) -> Vec<OutgoingGrant> {
        self.settle(now);
        self.divide(now);
        self.renew_notes(now);
        if self.is_settled {
            self.rosters.renew(&self.nodes, &self.policy, now);
        }
        let (totals, first_limits) = (self.totals(), self.first_limits());
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().filter_map(|name| self.grant(name, &totals, &first_limits, now)).collect()
    }

    /// The sums that an agent's policy depends on, in addition to its own report.
    fn totals(&self) -> Totals {
        let (has_quotas, has_weights) =
            (!self.policy.names("quota").is_empty(), !self.policy.names("weight").is_empty());
        let mut totals = Totals::default();
        for node in self.nodes.values() {
            let status = &node.report.status;
            for dataset in status.datasets.iter().filter(|_| has_quotas) {
                *totals.memory.entry(dataset.url.clone()).or_default() += u128::from(status.memory);
            }
            let jobs = totals.jobs.entry(node.user.clone()).or_default();
            jobs.extend(status.jobs.iter().filter(|_| has_weights).map(|job| job.name.clone()));
        }
        totals
    }

    /// The limits of origins that an agent has not reported yet.
    fn first_limits(&self) -> Vec<String> {
        let agents = self.nodes.len();
        let names = self.policy.names("limit").into_iter();
        let limits = names.filter_map(|name| Some((name, self.policy.find("limit", name)?)));
        limits.map(|(name, limit)| format!("limit@{name}={}", idle_rate(limit, agents))).collect()
    }

    /// Decides when agents may get more than they have. Agents of an earlier process may have
    /// leases that this process does not know.
    fn settle(&mut self, now: Duration) {
        let Some(begun) = self.begun else { return };
        let are_known = self.nodes.values().all(|node| !node.is_unknown);
        let is_over = match self.earlier.version {
            0 => now >= begun + self.settled,
            _ => are_known || now >= begun + LEASE,
        };
        self.is_settled |= is_over;
        self.was_settled |= is_over;
    }

    /// Divides the limits of all origins that agents read.
    fn divide(&mut self, now: Duration) {
        let demands = self.nodes.values().flat_map(|node| &node.report.demands);
        let mut origins: BTreeSet<&str> = demands.map(|demand| &*demand.store).collect();
        let known = self.nodes.values().flat_map(|node| &node.report.status.stores);
        origins.extend(known.map(|origin| &*origin.name));
        // A limit of one origin holds before its first read.
        origins.extend(self.policy.names("limit").into_iter().filter(|name| !name.contains('*')));
        origins.extend(self.earlier.fallbacks.keys().map(|origin| &**origin));
        let limited =
            origins.into_iter().filter_map(|origin| Some((origin, self.policy.find("limit", origin)?)));
        let divisions = limited.map(|(origin, limit)| {
            let division = divide(origin, limit, &self.nodes, &self.policy, self.is_settled, now);
            (origin.to_owned(), division)
        });
        self.divisions = divisions.collect();
    }

    /// Updates the notes that another process would need.
    fn renew_notes(&mut self, now: Duration) {
        if !self.is_settled {
            return;
        }
        let common = |division: &OriginDivision| division.leases.values().map(|lease| lease.fallback).max();
        let fallbacks: BTreeMap<String, u64> = self
            .divisions
            .iter()
            .filter_map(|(origin, division)| Some((origin.clone(), common(division)?)))
            .collect();
        let of_node = |node: &Node| {
            let later = self.divisions.keys().map(|origin| (origin.clone(), node.most_later(origin)));
            let own = later.filter(|(origin, rate)| {
                !node.is_heard(now) || fallbacks.get(origin).is_some_and(|common| rate > common)
            });
            NodeNote { fallbacks: own.collect(), has_ended: node.have_ended(now) }
        };
        let nodes = self.nodes.iter().map(|(name, node)| (name.clone(), of_node(node))).collect();
        let set = self.policy.texts(&PolicySource::Set);
        let version = self.notes.version;
        let notes = ClusterNotes { version, fallbacks, nodes, set, seal: String::new() };
        if notes != self.notes {
            self.notes = ClusterNotes { version: version + 1, ..notes };
        }
    }

    /// The grant of an agent, if it has to be sent now.
    fn grant(
        &mut self,
        name: &str,
        totals: &Totals,
        first_limits: &[String],
        now: Duration,
    ) -> Option<OutgoingGrant> {
        let policy = self.policy_of(name, totals);
        let is_draining = self.policy.find("drain", name) == Some(1);
        let warm = self.warm_part(name);
        let node = self.nodes.get_mut(name)?;
        let connection = node.connection?;
        let leases: Leases = self
            .divisions
            .iter()
            .filter(|(origin, _)| node.knows(origin))
            .filter_map(|(origin, division)| Some((origin.clone(), *division.leases.get(name)?)))
            .collect();
        // Until the process has settled, agents keep the notes of the process before it.
        let has_notes = node.notes == self.notes.version || !self.is_settled;
        let is_new = leases.len() != node.last_origins()
            || leases
                .iter()
                .any(|(origin, lease)| node.last(origin).is_none_or(|last| is_notable(*lease, last)))
            || node.policy != policy
            || node.is_draining != is_draining
            || warm.as_ref().is_some_and(|part| part.number != node.warm);
        if !node.is_unanswered && !is_new || now.saturating_sub(node.heard) > SILENT {
            return None;
        }
        let terms = leases.iter().map(|(origin, lease)| LeaseTerms {
            store: origin.clone(),
            bytes_per_second: lease.rate,
            fallback: lease.fallback,
        });
        let leases_sent = terms.collect();
        let number = node.give(leases);
        node.policy.clone_from(&policy);
        node.is_draining = is_draining;
        if self.is_settled {
            node.notes = self.notes.version;
        }
        node.warm = warm.as_ref().map_or(node.warm, |part| part.number);
        let grant = Grant {
            number,
            report: node.report.number,
            leases: leases_sent,
            first_limits: first_limits.to_vec(),
            policy,
            is_draining,
            nodes: self.notes.nodes.len() as u64,
            node: name.to_owned(),
            warm: warm.into_iter().collect(),
        };
        let roster = if self.is_settled { self.rosters.next(node) } else { None };
        Some(OutgoingGrant { connection, grant, with_notes: !has_notes, roster })
    }

    /// The part of an agent in the last request to fill the memory.
    fn warm_part(&self, name: &str) -> Option<WarmPart> {
        let warm = self.warm.as_ref()?;
        let node = self.nodes.get(name)?;
        if !node.addresses.is_empty() && node.roster == 0 {
            // It does not know yet which samples this node owns.
            return None;
        }
        let instance = &node.instance;
        let part = warm.nodes.iter().position(|(node, of)| node == name && of == instance)? as u32;
        let (target, parts) = (warm.target.clone(), warm.nodes.len() as u32);
        Some(WarmPart { number: warm.number, target, part, parts })
    }

    /// The values of the cluster's policy for the jobs and datasets of an agent.
    fn policy_of(&self, name: &str, totals: &Totals) -> Vec<String> {
        let Some(node) = self.nodes.get(name) else { return Vec::new() };
        let mut values = BTreeSet::new();
        // Its user's jobs on other nodes may read through it.
        for job in totals.jobs.get(&node.user).into_iter().flatten() {
            let weight = self.policy.find("weight", &format!("{}/{job}", node.user));
            // A name would be a pattern for the agent.
            if let Some(weight) = weight.filter(|_| !job.contains('*')) {
                values.insert(format!("weight@{job}={weight}"));
            }
        }
        let datasets = node.report.status.datasets.iter();
        for dataset in datasets.filter(|dataset| !dataset.url.contains('*')) {
            if let Some(pin) = self.policy.find("pin", &dataset.url) {
                values.insert(format!("pin@{}={}", dataset.url, pin != 0));
            }
            if let Some(quota) = self.policy.find("quota", &dataset.url) {
                // Its part is in proportion to its memory among the agents that know the dataset.
                let all = totals.memory.get(&dataset.url).copied().unwrap_or(0).max(1);
                let part = u128::from(quota) * u128::from(node.report.status.memory) / all;
                values.insert(format!("cap@{}={}", dataset.url, part.min(u128::from(u64::MAX))));
            }
        }
        values.into_iter().collect()
    }
}

/// Whether a lease is worth a message of its own.
fn is_notable(lease: Lease, last: Lease) -> bool {
    let differs = |one: u64, other: u64| one.abs_diff(other) > other / NOTABLE_PART;
    differs(lease.rate, last.rate) || differs(lease.fallback, last.fallback)
}

/// The name of an agent: its node's name, with the user before it unless one token is for all.
fn node_name(user: &str, node: &str) -> String {
    if user == super::tokens::DEFAULT_NAME { node.to_owned() } else { format!("{user}@{node}") }
}

#[cfg(test)]
mod tests;
