//! What an agent does, as `foreread agent status` prints it.

use serde::{Deserialize, Serialize};

/// The status of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// Its process.
    pub process: u32,
    /// The bytes that samples may take in memory.
    pub memory: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// The number of samples in memory.
    pub samples: u64,
    /// Samples that are being read.
    pub reading: u64,
    /// Requests that were answered from memory, since the start.
    pub hits: u64,
    /// Requests that joined the read of another request.
    pub joined: u64,
    /// Samples that were read from storage.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that failed.
    pub failures: u64,
    /// The connected jobs.
    pub jobs: Vec<JobStatus>,
    /// The datasets since the start.
    pub datasets: Vec<DatasetStatus>,
}

/// A connected job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStatus {
    /// Its name.
    pub name: String,
    /// Its process.
    pub process: u32,
    /// The bytes that it reads ahead.
    pub look_ahead: u64,
    /// Where its datasets are read from.
    pub datasets: Vec<String>,
}

/// A dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetStatus {
    /// Where it is read from.
    pub url: String,
    /// Its samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}
