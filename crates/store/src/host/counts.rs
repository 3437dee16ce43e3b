//! The counts of a store, and its present state.

use std::collections::BTreeMap;

use super::origin_queue::OriginLimits;
use super::store_job::StoreJob;

/// Samples and bytes since a store was made, or a job was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Requests that were answered from memory.
    pub hits: u64,
    /// Requests that joined the read of another request.
    pub joined: u64,
    /// Samples that were read from a disk of this node.
    pub disk_reads: u64,
    /// Samples that other nodes of the cluster had or have read.
    pub node_reads: u64,
    /// Samples that were read from their origins.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Requests for them. One for the samples of a block.
    pub requests: u64,
    /// Reads that failed.
    pub failures: u64,
}

/// The state of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStatus {
    /// The bytes that samples may take.
    pub capacity: u64,
    /// The bytes that samples take, with all overhead.
    pub held_bytes: u64,
    /// The number of samples in memory.
    pub samples: u64,
    /// Samples that are being read, or wait for that.
    pub reading: u64,
    /// The counts so far.
    pub counts: StoreCounts,
    /// The jobs.
    pub jobs: BTreeMap<StoreJob, JobState>,
    /// The datasets, by their numbers.
    pub datasets: Vec<DatasetState>,
    /// The origins that are read from.
    pub origins: Vec<OriginState>,
}

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobState {
    /// The counts so far. Reads are counted for the job for which they began.
    pub counts: StoreCounts,
    /// Samples that it has requested and not received.
    pub waiting: u64,
    /// Its share of an origin's time.
    pub weight: u32,
    /// The part of its uses that needs no read of its own, at best: by the paces of all jobs, their
    /// orders and the samples in memory. `None` if no order is known.
    pub expected_hit_share: Option<f64>,
}

/// The state of a dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetState {
    /// Its samples that no other node of the cluster keeps.
    pub own_samples: u64,
    /// Its samples in memory or on disks of the node.
    pub kept_samples: u64,
    /// Its samples in memory.
    pub held_samples: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// The counts so far.
    pub counts: StoreCounts,
    /// Bytes per second that would not be read from its origin with a gigabyte more of memory, by
    /// the paces of the jobs. 0 if no order is known.
    pub saved_by_gb: f64,
}

/// The state of an origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OriginState {
    /// Its name.
    pub name: String,
    /// Its limits.
    pub limits: OriginLimits,
    /// Reads under way.
    pub reading: u64,
    /// Reads that wait for their turn.
    pub queued: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
}

/// The use of an origin by a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginUse {
    /// The name of the origin.
    pub origin: String,
    /// The job.
    pub job: StoreJob,
    /// Its reads that wait for their turn.
    pub queued: u64,
    /// The bytes that were read for it.
    pub read_bytes: u64,
}
