//! The messages between the tier's threads: jobs for the packer and commands for the writers.
//!
//! Decision: the types of the messages are apart from the threads, so the state that threads share
//! can hold a sender without a dependency on them.

use std::sync::{Arc, OnceLock};

use foreread_tier::{Sample, TierError};
use foreread_types::SampleId;
use tokio::sync::oneshot;

use super::place::RecordPlace;
use super::record_block::{PendingRecord, RecordBlock, StoreReply};

/// The set and the sample.
pub(super) type DiskKey = (usize, SampleId);

/// The error of a queued sample. Empty while it is queued, and after success.
pub(super) type WriteOutcome = Arc<OnceLock<TierError>>;

/// A job of the packer. Jobs are executed in order.
#[derive(Debug)]
pub(super) enum PackJob {
    Store {
        key: DiskKey,
        directory: usize,
        sample: Sample,
        pending: PendingRecord,
    },
    /// Sends `done` the result of an earlier store of the same sample in `directory`.
    AwaitPrevious {
        directory: usize,
        outcome: WriteOutcome,
        done: StoreReply,
    },
    /// Removes samples, at their locations where these are known. `done` is dropped at the end.
    Remove {
        keys: Vec<(DiskKey, Option<RecordPlace>)>,
        done: Option<Arc<oneshot::Sender<()>>>,
    },
    /// Dropped when everything queued before is written.
    Flush(Arc<oneshot::Sender<()>>),
    End,
}

/// A command for a writer. Commands are executed in order.
#[derive(Debug)]
pub(super) enum WriteCommand {
    Write(RecordBlock),
    /// Marks records as dead. Missing locations are looked up at execution.
    Remove {
        set: usize,
        records: Vec<(SampleId, Option<RecordPlace>)>,
        done: Option<Arc<oneshot::Sender<()>>>,
    },
    /// Reports the result of an earlier store of the same sample.
    Report {
        outcome: WriteOutcome,
        done: StoreReply,
    },
    /// All earlier commands are done. Dropped at its turn, for a waiter on all directories.
    Flushed(Arc<oneshot::Sender<()>>),
}
