//! The report of a run, as printed by `foreread load --report json`. Other tools read it, so fields
//! are added and never renamed.
//!
//! ```
//! use foreread::{Loader, Memory};
//! # let directory = tempfile::tempdir()?;
//! # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
//! # let path = directory.path().to_str().expect("a path of ASCII");
//! let loader = Loader::builder(path).epochs(2).memory(Memory::Bytes(1 << 20)).start()?;
//! assert_eq!(loader.batches().count(), 2);
//! let report = loader.close()?;
//! assert_eq!(report.epochs[1].reads.memory.samples, Some(3));
//! assert_eq!((report.origin_requests, report.origin_bytes), (3, report.floor_origin_bytes));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use foreread_layers::{Decisions, MeterReading, UnitCounts, Units};
use foreread_loader::{LookAhead, PassReport, RunReport, SampleCount};
use foreread_types::RankOf;
use serde::Serialize;

pub use foreread_loader::{EpochStart, History, HistorySlot, ReadSource};
pub use foreread_open::disk::DiskReport;
#[cfg(feature = "plot")]
pub use foreread_plot::PlotError;

pub use crate::merged::{Merged, MergedEpoch};

/// One rank's report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// Samples in the training catalog.
    pub samples: u64,
    /// Their bytes.
    pub dataset_bytes: u64,
    /// The lower bound: the fewest origin bytes that any policy can read for this run, over all
    /// ranks that are in step. 0 with an agent, which may have all samples already.
    pub floor_origin_bytes: u64,
    /// The bytes that the plan reads from the origin: for this rank, or in a group for all ranks.
    pub planned_origin_bytes: u64,
    /// Bytes that this rank has read from the origin.
    pub origin_bytes: u64,
    /// Requests that this rank has sent to the origin.
    pub origin_requests: u64,
    /// Uses without a sample, because it could not be read. Not [`DiskReport::skipped`], which
    /// counts stores.
    pub skipped: u64,
    /// Uses that got a neighbouring sample as a substitute.
    pub substituted: u64,
    /// Requests that were retried.
    pub retried: u64,
    /// Requests that were hedged because the answer was late. Includes reads of the origin for
    /// samples that another rank did not deliver in time.
    pub hedged: u64,
    /// Values that the run has adapted automatically.
    pub adapted: Adapted,
    /// The disk tier, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskReport>,
    /// The stored units that samples share, if some do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub units: Option<UnitsReport>,
    /// The samples exchanged with other ranks, if in a group. Those of a node's cache are counted
    /// by its first rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersReport>,
    /// The node's agent, or the cache of its ranks, if the run uses one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentReport>,
    /// Samples that were read by id outside of any announced order, if samples are requested by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<ReadsReport>,
    /// The wait time for samples, if samples are requested by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<WaitReport>,
    /// The passes that have begun, in order: 1,024 entries at most. Up to that number, each pass
    /// has its own entry. In longer runs, the first 256 passes and at least the last 256 keep
    /// theirs. The passes between are summed up in one entry per phase, which has the key `passes`.
    pub epochs: Vec<EpochReport>,
    /// The merged report of all ranks, on rank 0 of a group after all ranks have finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_ranks: Option<Merged>,
}

/// The samples of a run by the way they came. It uses the node's agent, or the cache that the ranks
/// of a node share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AgentReport {
    /// The bytes of memory that the agent has for samples, of all jobs together.
    pub capacity: u64,
    /// Samples from the agent.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples that this run read by itself, because the agent was absent, silent or unable.
    pub direct_samples: u64,
    /// Their bytes.
    pub direct_bytes: u64,
    /// The number of ranks that share it, if it is the cache of a node without an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<u32>,
}

/// How much of a dataset the node's agent has in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WarmDataset {
    /// Whether the agent is still reading samples for it. Otherwise all that fits is there.
    pub is_active: bool,
    /// The samples in memory or on disks.
    pub kept_samples: u64,
    /// The samples in the agent's memory.
    pub held_samples: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// The samples on the agent's disks. Some may be in its memory, too.
    pub disk_samples: u64,
    /// The bytes that they take there.
    pub disk_bytes: u64,
    /// All samples of the dataset.
    pub samples: u64,
}

/// The time of requests for samples by id.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WaitReport {
    /// From the first request to the last answer, without the time before each announcement.
    pub seconds: f64,
    /// The part of it in which a caller waited.
    pub stall_seconds: f64,
}

impl WaitReport {
    pub(crate) fn of((whole, waited): (Duration, Duration)) -> Self {
        Self { seconds: whole.as_secs_f64(), stall_seconds: waited.as_secs_f64() }
    }
}

/// Values that a run has adapted automatically, within the user's limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adapted {
    /// The limit of parallel requests to the origin. Left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_parallelism: Option<ParallelismReport>,
    /// How far reads run ahead of the trainer.
    pub look_ahead: LookAheadReport,
}

/// The limit of parallel requests, and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParallelismReport {
    /// The current limit.
    pub now: u64,
    /// The lowest limit.
    pub lowest: u64,
    /// The highest limit.
    pub highest: u64,
    /// The number of changes.
    pub changes: u64,
    /// The reason of the current value: `fixed` (set by the user, or never changed), `starting`,
    /// `growing`, `latency`, `draining`, `demand` or `throttled`.
    pub why: &'static str,
    /// The most requests that were in flight.
    pub peak: u64,
}

/// How far reads run ahead, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LookAheadReport {
    /// The user's limit, an epoch at most.
    pub allowed_bytes: u64,
    /// The part of it in use now.
    pub now_bytes: u64,
    /// The lowest part in use.
    pub lowest_bytes: u64,
}

impl Adapted {
    pub(crate) fn of(limit: Option<Decisions>, look_ahead: LookAhead) -> Self {
        Self {
            origin_parallelism: limit.map(|limit| ParallelismReport {
                now: limit.limit as u64,
                lowest: limit.lowest as u64,
                highest: limit.highest as u64,
                changes: limit.changes,
                why: limit.why.as_str(),
                peak: limit.peak_in_flight as u64,
            }),
            look_ahead: LookAheadReport {
                allowed_bytes: look_ahead.allowed,
                now_bytes: look_ahead.now,
                lowest_bytes: look_ahead.lowest,
            },
        }
    }
}

/// Stored units that samples share: compressed pages, chunks of many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UnitsReport {
    /// Units that were read and decoded, in this run or since its last jump.
    pub read: u64,
    /// Samples that came from memory, because an earlier read of their unit had brought them. They
    /// count as samples from the origin.
    pub kept: u64,
}

impl UnitsReport {
    pub(crate) fn of(units: &Units) -> Self {
        let UnitCounts { read, kept } = units.counts();
        Self { read, kept }
    }
}

/// The samples exchanged between a rank and the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeersReport {
    /// Samples that this rank served to others.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Samples that this rank requested from others.
    pub asked: u64,
    /// Samples that this rank received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Samples that were read from the origin because no answer came in time.
    pub late: u64,
    /// Samples that were read from the origin because their rank was silent or its connection
    /// ended.
    pub lost: u64,
    /// Connections that failed to authenticate as part of this job.
    pub strangers: u64,
}

/// One pass of an epoch, training or validation, or the sum of [several](Report::epochs).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochReport {
    /// The epoch, from 0. For several passes, the first one.
    pub epoch: u64,
    /// The number of passes in this entry. Left out if it is one.
    #[serde(skip_serializing_if = "is_one")]
    pub passes: u64,
    /// `train` or `validation`.
    pub phase: String,
    /// Samples delivered.
    pub samples: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// From the request for the first batch to the delivery of the last.
    pub seconds: f64,
    /// The part of it in which the trainer waited.
    pub stall_seconds: f64,
    /// The wait time for the first batch.
    pub first_batch_seconds: f64,
    /// The sources of the delivered samples.
    pub reads: ReadsReport,
    /// SHA-256 over each sample's id (u64, little endian) and bytes, in delivery order, if
    /// requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The delivered ids, in order, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<u64>>,
}

pub(crate) fn is_one(passes: &u64) -> bool {
    *passes == 1
}

/// Delivered samples by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadsReport {
    /// Read from the origin.
    pub origin: CountReport,
    /// From the memory tier, or from memory that the look-ahead still held.
    pub memory: CountReport,
    /// From the disk tier. Empty if there is none.
    pub disk: CountReport,
    /// From the node's agent. Includes samples that were read directly in its place, which
    /// [`AgentReport::direct_samples`] counts. Absent if there is none.
    #[serde(skip_serializing_if = "CountReport::is_empty")]
    pub agent: CountReport,
}

/// A number of samples and of bytes. An empty object if the tier does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountReport {
    /// Samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl CountReport {
    fn of(count: SampleCount) -> Self {
        Self { samples: Some(count.samples), bytes: Some(count.bytes) }
    }

    fn is_empty(&self) -> bool {
        self.samples.is_none()
    }

    /// Leaves out the numbers of a zero count.
    fn some(count: SampleCount) -> Self {
        if count == SampleCount::default() { Self::default() } else { Self::of(count) }
    }
}

impl ReadsReport {
    /// The same, where an agent was in the place of the origin.
    fn through_agent(self) -> Self {
        Self { agent: self.origin, origin: CountReport::of(SampleCount::default()), ..self }
    }

    /// Counts a sample of `bytes` bytes.
    pub(crate) fn add(&mut self, from: ReadSource, bytes: u64) {
        let count = match from {
            ReadSource::Origin => &mut self.origin,
            ReadSource::Memory => &mut self.memory,
            ReadSource::Disk => &mut self.disk,
        };
        *count.samples.get_or_insert_default() += 1;
        *count.bytes.get_or_insert_default() += bytes;
    }
}

impl Report {
    /// Adds the samples of an agent.
    pub(crate) fn with_agent(mut self, agent: Option<AgentReport>) -> Self {
        if agent.is_some() {
            self.epochs.iter_mut().for_each(|epoch| epoch.reads = epoch.reads.through_agent());
            self.direct = self.direct.map(ReadsReport::through_agent);
        }
        Self { agent, ..self }
    }
}

impl EpochReport {
    fn of(pass: &PassReport) -> Self {
        let total = pass.reads.total();
        Self {
            epoch: pass.epoch,
            passes: pass.passes,
            phase: pass.phase.to_string(),
            samples: total.samples,
            batches: pass.batches,
            bytes: total.bytes,
            seconds: pass.time.as_secs_f64(),
            stall_seconds: pass.stall.as_secs_f64(),
            first_batch_seconds: pass.first_batch.as_secs_f64(),
            reads: ReadsReport {
                origin: CountReport::of(pass.reads.from(ReadSource::Origin)),
                memory: CountReport::of(pass.reads.from(ReadSource::Memory)),
                disk: CountReport::some(pass.reads.from(ReadSource::Disk)),
                agent: CountReport::default(),
            },
            digest: None,
            ids: None,
        }
    }
}

/// The values of a report for the run as a whole.
pub(crate) struct RunTotals {
    pub(crate) rank: RankOf,
    pub(crate) samples: u64,
    pub(crate) dataset_bytes: u64,
    pub(crate) floor: u64,
    pub(crate) planned: u64,
}

impl Report {
    /// The most entries in [`epochs`](Self::epochs).
    pub const MAX_EPOCHS: usize = RunReport::MAX_PASSES;

    pub(crate) fn new(whole: &RunTotals, origin: &MeterReading, adapted: Adapted, run: &RunReport) -> Self {
        Self {
            rank: whole.rank.rank,
            world_size: whole.rank.ranks,
            samples: whole.samples,
            dataset_bytes: whole.dataset_bytes,
            floor_origin_bytes: whole.floor,
            planned_origin_bytes: whole.planned,
            origin_bytes: origin.bytes,
            origin_requests: origin.requests,
            skipped: run.skipped,
            substituted: run.substituted,
            retried: origin.retried,
            hedged: origin.hedged,
            adapted,
            disk: None,
            units: None,
            peers: None,
            agent: None,
            direct: None,
            asked: None,
            epochs: run.passes.iter().map(EpochReport::of).collect(),
            all_ranks: None,
        }
    }
}
