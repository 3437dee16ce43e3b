//! The report of a run, which `foreread load --report json` prints. Other tools read it, so fields
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

use foreread_layers::{Decisions, MeterReading};
use foreread_loader::{LookAhead, PassReport, ReadSource, RunReport, SampleCount};
use serde::Serialize;

pub use crate::merged::{Merged, MergedEpoch};

/// One rank's report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// This rank.
    pub rank: u32,
    /// How many ranks there are.
    pub world_size: u32,
    /// Samples in the training catalog.
    pub samples: u64,
    /// Their bytes.
    pub dataset_bytes: u64,
    /// The fewest origin bytes any policy can read for this run, over all ranks.
    pub floor_origin_bytes: u64,
    /// What the plan reads from the origin: this rank's, or that of all ranks where they work
    /// together.
    pub planned_origin_bytes: u64,
    /// Bytes that this rank has read from the origin.
    pub origin_bytes: u64,
    /// Requests that this rank has sent to the origin.
    pub origin_requests: u64,
    /// Uses that were left out because their sample could not be read.
    pub skipped: u64,
    /// Uses that got a neighbour's sample instead of their own.
    pub substituted: u64,
    /// Requests that were repeated.
    pub retried: u64,
    /// Requests that were sent a second time because the answer was late, and reads of the origin
    /// for samples that another rank was asked for and did not deliver in time.
    pub hedged: u64,
    /// What the run has found out and set by itself.
    pub adapted: Adapted,
    /// The disk tier; where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskReport>,
    /// What this rank and others have given each other; where ranks work together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersReport>,
    /// Samples that were read by their ids outside of any announced order; where samples are asked
    /// for by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<ReadsReport>,
    /// How long samples were waited for; where samples are asked for by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<AskedReport>,
    /// The passes that have begun, in order: 1,024 entries at most. Each pass has its own, until
    /// there are more. Then the first 256 passes keep theirs, and the last 256 at least; those
    /// between are summed up in one entry per phase, which has the key `passes`.
    pub epochs: Vec<EpochReport>,
    /// All ranks together; on rank 0, where ranks worked together and have come to their end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_ranks: Option<Merged>,
}

/// How long whoever asks for samples by their ids was at it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AskedReport {
    /// From the first time that somebody asked to the last that somebody had what was asked for,
    /// without the time before each announcement.
    pub seconds: f64,
    /// The part of it in which somebody waited.
    pub stall_seconds: f64,
}

impl AskedReport {
    pub(crate) fn of((whole, waited): (Duration, Duration)) -> Self {
        Self { seconds: whole.as_secs_f64(), stall_seconds: waited.as_secs_f64() }
    }
}

/// What a run has found out and set by itself, within what the user allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adapted {
    /// Requests that may be under way at the origin; left out where nothing limits them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_parallelism: Option<ParallelismReport>,
    /// How far reads run ahead of the trainer.
    pub look_ahead: LookAheadReport,
}

/// How many requests may be under way at once, and how that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParallelismReport {
    /// Now.
    pub now: u64,
    /// The least that it was.
    pub lowest: u64,
    /// The most that it was.
    pub highest: u64,
    /// How often it was changed.
    pub changes: u64,
    /// Why it is what it is: `fixed` (the user said so, or nothing has called for a change),
    /// `starting`, `growing`, `latency`, `draining`, `demand` or `throttled`.
    pub why: &'static str,
    /// The most requests that really were under way.
    pub peak: u64,
}

/// How far reads run ahead, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LookAheadReport {
    /// What the user allows, an epoch at most.
    pub allowed_bytes: u64,
    /// What is used of it now.
    pub now_bytes: u64,
    /// The least that was used.
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

/// What a run's disk tier holds and has done. Bytes are footprints: with what a sample takes beside
/// its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskReport {
    /// What it may hold; 0 where another process owns the directories.
    pub capacity_bytes: u64,
    /// What it holds of the run's datasets.
    pub held_bytes: u64,
    /// Samples written in this run.
    pub written: u64,
    /// Samples that were not stored because too much was on its way to the disk.
    pub skipped: u64,
    /// Samples that were not stored because the disk failed or was full.
    pub failed: u64,
    /// Samples that were dropped because what was read was not what had been written.
    pub corrupt: u64,
    /// What carries the reads out: `io_uring` or `threads`.
    pub reader: &'static str,
}

/// What a rank and the others have given each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeersReport {
    /// Samples that others got from this rank.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Samples that others were asked for.
    pub asked: u64,
    /// Samples that came.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Samples that were read from the origin because nothing was said of them in time.
    pub late: u64,
    /// Samples that were read from the origin because their rank fell silent or its connection
    /// ended.
    pub lost: u64,
    /// Connections of somebody who did not prove to be of this job.
    pub strangers: u64,
}

/// One pass of an epoch: training or validation; or the sum of [several](Report::epochs).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochReport {
    /// The epoch, from 0; of several, the first one.
    pub epoch: u64,
    /// How many passes are summed up here; left out where it is one.
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
    /// From the moment the first batch was asked for to the delivery of the last.
    pub seconds: f64,
    /// The part of it in which the trainer waited.
    pub stall_seconds: f64,
    /// How long the first batch was waited for.
    pub first_batch_seconds: f64,
    /// Where the delivered samples came from.
    pub reads: ReadsReport,
    /// SHA-256 over each sample's id (u64, little endian) and bytes, in delivery order; where it
    /// was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The delivered ids, in order; where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<u64>>,
}

pub(crate) fn is_one(passes: &u64) -> bool {
    *passes == 1
}

/// Delivered samples by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadsReport {
    /// Read from the origin.
    pub origin: CountReport,
    /// From the memory tier, or from memory that the look-ahead still held.
    pub memory: CountReport,
    /// From the disk tier; empty where there is none.
    pub disk: CountReport,
    /// From other ranks; empty where there are none.
    pub peer: CountReport,
}

/// A number of samples and of bytes; an empty object where the tier does not exist.
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

    /// Nothing is said where there is nothing.
    fn some(count: SampleCount) -> Self {
        if count == SampleCount::default() { Self::default() } else { Self::of(count) }
    }
}

impl ReadsReport {
    /// Counts a sample of so many bytes.
    pub(crate) fn add(&mut self, from: ReadSource, bytes: u64) {
        let count = match from {
            ReadSource::Origin => &mut self.origin,
            ReadSource::Memory => &mut self.memory,
            ReadSource::Disk => &mut self.disk,
            ReadSource::Peer => &mut self.peer,
        };
        *count.samples.get_or_insert_default() += 1;
        *count.bytes.get_or_insert_default() += bytes;
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
                peer: CountReport::some(pass.reads.from(ReadSource::Peer)),
            },
            digest: None,
            ids: None,
        }
    }
}

/// What a report says of the run as a whole.
pub(crate) struct RunTotals {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) samples: u64,
    pub(crate) dataset_bytes: u64,
    pub(crate) floor: u64,
    pub(crate) planned: u64,
}

impl Report {
    /// The number of entries in [`epochs`](Self::epochs), at most.
    pub const MAX_EPOCHS: usize = RunReport::MAX_PASSES;

    pub(crate) fn new(whole: &RunTotals, origin: &MeterReading, adapted: Adapted, run: &RunReport) -> Self {
        Self {
            rank: whole.rank,
            world_size: whole.world_size,
            samples: whole.samples,
            dataset_bytes: whole.dataset_bytes,
            floor_origin_bytes: whole.floor,
            planned_origin_bytes: whole.planned,
            origin_bytes: origin.bytes,
            origin_requests: origin.requests,
            skipped: run.skipped,
            substituted: run.substituted,
            retried: origin.retried,
            hedged: origin.hedged + run.hedged,
            adapted,
            disk: None,
            peers: None,
            direct: None,
            asked: None,
            epochs: run.passes.iter().map(EpochReport::of).collect(),
            all_ranks: None,
        }
    }
}
