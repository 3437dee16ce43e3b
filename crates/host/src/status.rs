//! The status of an agent, as `foreread agent status` prints it.

use foreread_file_cache::FilesStatus;
use serde::{Deserialize, Serialize};

/// The status of an agent. Counts are totals since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// Its process.
    pub process: u32,
    /// Seconds since its start.
    pub uptime_seconds: f64,
    /// The bytes that samples may take in memory.
    pub memory: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// The number of samples in memory.
    pub samples: u64,
    /// Samples that are being read, or wait for that.
    pub reading: u64,
    /// The disks, if there are any.
    pub disk: Option<DiskStatus>,
    /// The copies of whole files, if programs that are not changed have used them.
    pub files: Option<FilesStatus>,
    /// Requests that were answered from memory.
    pub hits: u64,
    /// Requests that joined the read of another request.
    pub joined: u64,
    /// Samples that were read from the agent's disks.
    pub disk_reads: u64,
    /// Samples that came from other nodes of the cluster.
    pub node_reads: u64,
    /// Samples that were read from storage.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that failed.
    pub failures: u64,
    /// The connected jobs.
    pub jobs: Vec<JobStatus>,
    /// The datasets.
    pub datasets: Vec<DatasetStatus>,
    /// The origins that datasets are read from.
    pub stores: Vec<OriginStatus>,
    /// The policy in force.
    pub policy: Vec<PolicyValue>,
    /// The control process of the cluster, if the agent was given one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlLinkStatus>,
}

/// An agent's connection to the control process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlLinkStatus {
    /// Where it is.
    pub address: String,
    /// The name of this agent.
    pub node: String,
    /// Whether it is reached.
    pub is_connected: bool,
    /// Whether this agent takes no new jobs.
    pub is_draining: bool,
    /// The number of agents that share their caches, with this agent. 0: it shares with none.
    pub shares_with: u64,
    /// The reason if it is not reached.
    pub problem: Option<String>,
}

/// The disks of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// The bytes that samples may take.
    pub capacity: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// Bytes that were given to the disks.
    pub written_bytes: u64,
    /// Samples that were not written, because of the budget of writes per day.
    pub refused: u64,
    /// Their bytes.
    pub refused_bytes: u64,
    /// The reason if they cannot be used, so that they keep no samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A connected job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStatus {
    /// The program that it runs.
    pub name: String,
    /// Its node, in the status of a cluster. Also the node of another agent's job, if its samples
    /// are kept here.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Its process.
    pub process: u32,
    /// The bytes that it reads ahead.
    pub look_ahead: u64,
    /// Where its datasets are read from.
    pub datasets: Vec<String>,
    /// Its share of an origin's time, relative to other jobs.
    pub weight: u32,
    /// Samples that it has received from memory.
    pub hits: u64,
    /// Samples that it has received from the agent's disks.
    pub disk_reads: u64,
    /// Samples that it has received from other nodes of the cluster.
    pub node_reads: u64,
    /// Samples for which it joined the read of another job.
    pub joined: u64,
    /// Samples that were read for it.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads for it that failed.
    pub failures: u64,
    /// Samples that it has requested and not received.
    pub waiting: u64,
    /// Samples per second, over the last seconds.
    pub samples_per_second: f64,
    /// The part of its requests that should need no read of its own. It follows from the paces of
    /// all jobs and the size of the cache. `None` until the paces are known.
    pub expected_hit_share: Option<f64>,
    /// The part of the last seconds in which its trainer waited for samples.
    pub stalled_share: f64,
    /// The cause of its waiting: `storage`, `limit` (of its origin), `other jobs` or none.
    pub waits_for: Option<String>,
}

/// The jobs of an agent's own node.
pub fn own_jobs(jobs: &[JobStatus]) -> impl Iterator<Item = &JobStatus> {
    jobs.iter().filter(|job| job.node.is_empty())
}

/// A dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetStatus {
    /// Where it is read from.
    pub url: String,
    /// Its samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its samples in memory.
    pub held_samples: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// Its samples on disks. Some may be in memory, too.
    pub disk_samples: u64,
    /// The bytes that they take there.
    pub disk_bytes: u64,
    /// Connected jobs that read it.
    pub jobs: u64,
    /// Requests that were answered from memory or joined a read.
    pub hits: u64,
    /// Samples that were read from storage.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Bytes per second that would not be read from storage with a gigabyte more of memory. In the
    /// status of a cluster: of memory on the node where it saves most.
    pub saved_by_gb: f64,
}

/// An origin that datasets are read from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginStatus {
    /// Its name: the scheme and the bucket or server of its datasets' locations, or a directory.
    pub name: String,
    /// The most bytes per second. `None`: no limit.
    pub limit: Option<u64>,
    /// The most reads at once. `None`: as many as the origin answers fastest.
    pub parallelism: Option<u64>,
    /// Reads under way.
    pub reading: u64,
    /// Reads that wait for their turn.
    pub queued: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes per second, over the last seconds.
    pub bytes_per_second: f64,
    /// In the status of a cluster: the rate that unreachable nodes may read, in bytes per second.
    #[serde(skip_serializing_if = "is_zero")]
    pub reserved: u64,
}

impl OriginStatus {
    /// An origin with a name and no other facts.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A value of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyValue {
    /// Its key, as `foreread agent set` takes it.
    pub key: String,
    /// Its value as text.
    pub value: String,
    /// Where it comes from: `default`, `argument`, a file, or `set`.
    pub source: String,
}
