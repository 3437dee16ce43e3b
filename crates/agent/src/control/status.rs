//! What the control process shows: the cluster as if it were one agent, and its nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use foreread_host::status::{AgentStatus, DatasetStatus, DiskStatus, JobStatus, OriginStatus, own_jobs};
use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::node::Node;
use super::state::ControlState;

/// The status of the control process of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlStatus {
    /// The sums over all nodes, with the jobs of all. The process and the uptime are those of the
    /// control process.
    #[serde(flatten)]
    pub cluster: AgentStatus,
    /// Where agents connect.
    pub address: String,
    /// The nodes with agents.
    pub nodes: Vec<NodeStatus>,
    /// The last changes, the newest one last.
    pub changes: Vec<ControlChange>,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The name of the token that it has.
    pub user: String,
    /// Whether it is connected, and not silent.
    pub is_connected: bool,
    /// Seconds since its last message.
    pub silent_seconds: f64,
    /// Whether it takes no new jobs.
    pub is_draining: bool,
    /// Its jobs.
    pub jobs: u64,
    /// The bytes that samples may take in its memory.
    pub memory: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// Read from storage, bytes per second.
    pub bytes_per_second: f64,
    /// What it may read of stores with limits.
    pub leases: Vec<NodeLease>,
}

/// What an agent may read of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLease {
    /// The store.
    pub store: String,
    /// Bytes per second. Of an agent that is not heard, what is reserved for it.
    pub bytes_per_second: u64,
}

/// A change at run time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlChange {
    /// Seconds since 1970.
    pub time: f64,
    /// Who has made it.
    pub by: String,
    /// What was changed.
    pub change: String,
}

impl ControlState {
    /// The present status.
    pub(super) fn status(&self, address: &str) -> ControlStatus {
        let (mut cluster, nodes, policy) = self.with_cluster(|cluster, now| {
            (summed(cluster, now), node_statuses(cluster, now), cluster.policy().clone())
        });
        cluster.process = std::process::id();
        cluster.uptime_seconds = self.now().as_secs_f64();
        cluster.policy = policy.values(&self.file_name, self.mistake().as_deref());
        ControlStatus { cluster, address: address.to_owned(), nodes, changes: self.changes() }
    }
}

fn node_statuses(cluster: &Cluster, now: Duration) -> Vec<NodeStatus> {
    let status = |(name, node): (&String, &Node)| {
        let is_connected = node.is_heard(now);
        let leases = cluster.divisions().keys().map(|store| NodeLease {
            store: store.clone(),
            bytes_per_second: if is_connected { node.most(store) } else { node.reserved(store, now) },
        });
        let shown = &node.report.status;
        let rate = shown.stores.iter().fold(0.0, |sum, store| sum + store.bytes_per_second);
        NodeStatus {
            name: name.clone(),
            user: node.user.clone(),
            is_connected,
            silent_seconds: now.saturating_sub(node.heard).as_secs_f64(),
            // By its own account.
            is_draining: shown.control.as_ref().is_some_and(|control| control.is_draining),
            jobs: if is_connected { own_jobs(&shown.jobs).count() as u64 } else { 0 },
            memory: shown.memory,
            held_bytes: shown.held_bytes,
            bytes_per_second: if is_connected { rate } else { 0.0 },
            leases: leases.collect(),
        }
    };
    cluster.nodes().iter().map(status).collect()
}

/// The agents as one. Of those that are not heard only their totals count, which never fall.
fn summed(cluster: &Cluster, now: Duration) -> AgentStatus {
    let mut sum = AgentStatus::default();
    let (mut datasets, mut stores) = (BTreeMap::new(), BTreeMap::new());
    for (name, node) in cluster.nodes() {
        let totals = (!node.is_heard(now)).then(|| totals_of(&node.report.status));
        let shown = totals.as_ref().unwrap_or(&node.report.status);
        add(&mut sum.memory, shown.memory);
        add(&mut sum.held_bytes, shown.held_bytes);
        add(&mut sum.samples, shown.samples);
        add(&mut sum.reading, shown.reading);
        add(&mut sum.hits, shown.hits);
        add(&mut sum.joined, shown.joined);
        add(&mut sum.disk_reads, shown.disk_reads);
        // What came from other nodes counts there.
        add(&mut sum.reads, shown.reads);
        add(&mut sum.read_bytes, shown.read_bytes);
        add(&mut sum.failures, shown.failures);
        if let Some(disk) = &shown.disk {
            add_disk(sum.disk.get_or_insert_default(), disk);
        }
        sum.jobs.extend(own_jobs(&shown.jobs).map(|job| JobStatus { node: name.clone(), ..job.clone() }));
        shown.datasets.iter().for_each(|dataset| add_dataset(&mut datasets, dataset));
        shown.stores.iter().for_each(|store| add_store(&mut stores, store));
    }
    for (name, division) in cluster.divisions() {
        let store = stores.entry(name.clone()).or_insert_with(|| OriginStatus::named(name));
        store.limit = cluster.policy().find("limit", name);
        store.reserved = division.reserved;
    }
    (sum.datasets, sum.stores) = (datasets.into_values().collect(), stores.into_values().collect());
    sum
}

/// The counts since an agent's start, without its present state.
fn totals_of(status: &AgentStatus) -> AgentStatus {
    let disk = status.disk.as_ref().map(|disk| DiskStatus { capacity: 0, held_bytes: 0, ..disk.clone() });
    let datasets = status.datasets.iter().map(|dataset| DatasetStatus {
        held_samples: 0,
        held_bytes: 0,
        disk_samples: 0,
        disk_bytes: 0,
        jobs: 0,
        saved_by_gb: 0.0,
        ..dataset.clone()
    });
    let stores = status.stores.iter().map(|store| OriginStatus {
        reading: 0,
        queued: 0,
        bytes_per_second: 0.0,
        ..store.clone()
    });
    AgentStatus {
        disk,
        datasets: datasets.collect(),
        stores: stores.collect(),
        memory: 0,
        held_bytes: 0,
        samples: 0,
        reading: 0,
        jobs: Vec::new(),
        ..status.clone()
    }
}

/// Adds a number of an agent, which may be anything.
fn add(to: &mut u64, number: u64) {
    *to = to.saturating_add(number);
}

fn add_disk(to: &mut DiskStatus, disk: &DiskStatus) {
    add(&mut to.capacity, disk.capacity);
    add(&mut to.held_bytes, disk.held_bytes);
    add(&mut to.written_bytes, disk.written_bytes);
    add(&mut to.refused, disk.refused);
    add(&mut to.refused_bytes, disk.refused_bytes);
}

fn add_dataset(to: &mut BTreeMap<String, DatasetStatus>, dataset: &DatasetStatus) {
    let first = || DatasetStatus { url: dataset.url.clone(), ..DatasetStatus::default() };
    let sum = to.entry(dataset.url.clone()).or_insert_with(first);
    (sum.samples, sum.bytes) = (sum.samples.max(dataset.samples), sum.bytes.max(dataset.bytes));
    add(&mut sum.held_samples, dataset.held_samples);
    add(&mut sum.held_bytes, dataset.held_bytes);
    add(&mut sum.disk_samples, dataset.disk_samples);
    add(&mut sum.disk_bytes, dataset.disk_bytes);
    add(&mut sum.jobs, dataset.jobs);
    add(&mut sum.hits, dataset.hits);
    add(&mut sum.reads, dataset.reads);
    add(&mut sum.read_bytes, dataset.read_bytes);
    sum.saved_by_gb = sum.saved_by_gb.max(dataset.saved_by_gb);
}

fn add_store(to: &mut BTreeMap<String, OriginStatus>, store: &OriginStatus) {
    let sum = to.entry(store.name.clone()).or_insert_with(|| OriginStatus::named(&store.name));
    add(&mut sum.reading, store.reading);
    add(&mut sum.queued, store.queued);
    add(&mut sum.read_bytes, store.read_bytes);
    sum.bytes_per_second += store.bytes_per_second;
}
