//! The status that the control process shows: the cluster as if it were one agent, and its nodes.

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
    /// The sums over all nodes, with the jobs of all. The control process is its process, with its
    /// uptime.
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
    /// Its leases for origins with limits.
    pub leases: Vec<NodeLease>,
}

/// The rate at which an agent may read from an origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeLease {
    /// The origin.
    pub store: String,
    /// Bytes per second. For an unreachable agent, the rate that is reserved for it.
    pub bytes_per_second: u64,
}

/// A change at run time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlChange {
    /// Seconds since 1970.
    pub time: f64,
    /// The user that has made it.
    pub by: String,
    /// The change as text.
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
        let leases = cluster.divisions().keys().map(|origin| NodeLease {
            store: origin.clone(),
            bytes_per_second: if is_connected { node.most(origin) } else { node.reserved(origin, now) },
        });
        let shown = &node.report.status;
        let rate = shown.stores.iter().fold(0.0, |sum, origin| sum + origin.bytes_per_second);
        NodeStatus {
            name: name.clone(),
            user: node.user.clone(),
            is_connected,
            silent_seconds: now.saturating_sub(node.heard).as_secs_f64(),
            // As the agent itself reports.
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

/// The agents as one. Of unreachable agents only the totals count, which never fall.
fn summed(cluster: &Cluster, now: Duration) -> AgentStatus {
    let mut sum = AgentStatus::default();
    let (mut datasets, mut origins) = (BTreeMap::new(), BTreeMap::new());
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
        // Samples from other nodes count there.
        add(&mut sum.reads, shown.reads);
        add(&mut sum.read_bytes, shown.read_bytes);
        add(&mut sum.failures, shown.failures);
        if let Some(disk) = &shown.disk {
            add_disk(sum.disk.get_or_insert_default(), disk);
        }
        sum.jobs.extend(own_jobs(&shown.jobs).map(|job| JobStatus { node: name.clone(), ..job.clone() }));
        shown.datasets.iter().for_each(|dataset| add_dataset(&mut datasets, dataset));
        shown.stores.iter().for_each(|origin| add_origin(&mut origins, origin));
    }
    for (name, division) in cluster.divisions() {
        let origin = origins.entry(name.clone()).or_insert_with(|| OriginStatus::named(name));
        origin.limit = cluster.policy().find("limit", name);
        origin.reserved = division.reserved;
    }
    (sum.datasets, sum.stores) = (datasets.into_values().collect(), origins.into_values().collect());
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
    let origins = status.stores.iter().map(|origin| OriginStatus {
        reading: 0,
        queued: 0,
        bytes_per_second: 0.0,
        ..origin.clone()
    });
    AgentStatus {
        disk,
        datasets: datasets.collect(),
        stores: origins.collect(),
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

fn add_origin(to: &mut BTreeMap<String, OriginStatus>, origin: &OriginStatus) {
    let sum = to.entry(origin.name.clone()).or_insert_with(|| OriginStatus::named(&origin.name));
    add(&mut sum.reading, origin.reading);
    add(&mut sum.queued, origin.queued);
    add(&mut sum.read_bytes, origin.read_bytes);
    sum.bytes_per_second += origin.bytes_per_second;
}
