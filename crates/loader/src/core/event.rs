//! What the core is told and what it asks for.

use std::time::Duration;

use foreread_oracle::AccessStream;
use foreread_types::{SampleKey, Tick};

use super::OriginPace;
use crate::report::BatchCounts;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The stream of pass `pass` has been computed, as [`Action::Deal`] asked.
    Dealt {
        /// The pass's index in the run.
        pass: usize,
        /// What this rank reads in it.
        stream: AccessStream,
    },
    /// The stream that [`Action::Deal`] asked for cannot be computed: the run ends before this pass.
    DealFailed {
        /// The pass's index in the run.
        pass: usize,
    },
    /// A lookup found the sample in memory: it is at hand, and read_cost no staging memory.
    Found(Tick),
    /// A lookup says that the cache keeps it and wants to be read.
    Stored(Tick),
    /// A lookup found nothing.
    Absent(Tick),
    /// A read has delivered the sample.
    Arrived(Tick),
    /// A read has failed for good (its layers have tried again already). A cache may still have what it did not deliver.
    Failed(Tick),
    /// The same of a cache's read, and what the cache keeps is of no use: it is wrong, of another length, or gone.
    Invalid(Tick),
    /// The catalog does not say where the sample lies. No sample is bad: the run ends at this use, whatever the policy.
    Unlocated(Tick),
    /// Staging memory has been given back: the trainer let go, a cache took the sample over, or a read failed.
    Released {
        /// How many bytes.
        bytes: u64,
    },
    /// Reads may run so many bytes ahead from now on, at most what the configuration allows. What has been issued stays.
    LookAhead {
        /// How many bytes.
        bytes: u64,
    },
    /// The trainer asks for the next batch and it is not there.
    Waiting,
    /// The trainer has waited long for the next batch. May be told again and again.
    Late {
        /// How long it has waited, without the time in which this process stood still.
        waited: Duration,
        /// What reads of the origin take.
        origin: OriginPace,
    },
    /// A hedge ([`Action::Hedge`]) has delivered the sample.
    HedgeArrived(Tick),
    /// A hedge has failed.
    HedgeFailed(Tick),
    /// The same, because the catalog does not say where the sample lies: as [`Unlocated`](Self::Unlocated), if the owner does
    /// not deliver it.
    HedgeUnlocated(Tick),
    /// The trainer has taken the next batch.
    Taken,
    /// Everything that is known has been told; reads for which there is room may be issued. Kept apart from the other
    /// events so that reads leave in batches.
    Proceed,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Compute the stream of this pass and answer with [`Event::Dealt`] or [`Event::DealFailed`].
    Deal {
        /// The pass's index in the run.
        pass: usize,
    },
    /// Look the sample up in the cache at `level`; answer with `Found`, `Stored` or `Absent`. What reading it from there read_cost
    /// is counted from now on.
    Find {
        /// The use that it is wanted for.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// Which cache, counted from the fastest.
        level: usize,
    },
    /// Read it from the cache at `level`; answer with `Arrived`, `Failed` or `Invalid`.
    Fetch {
        /// The use that it is wanted for.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// Which cache, counted from the fastest.
        level: usize,
        /// What it is counted as: the bytes that the read allocates.
        read_cost: u64,
    },
    /// Ask the rank that owns it; answer with `Arrived` or `Failed`.
    RequestPeer {
        /// The use that it is wanted for.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// The position of the owner's store in the cluster.
        store: usize,
    },
    /// Read it from the origin; answer with `Arrived` or `Failed`.
    Read {
        /// The use that it is wanted for.
        tick: Tick,
        /// The sample.
        key: SampleKey,
    },
    /// Read it from the origin, too: its owner was asked and is slow. Answer with `HedgeArrived` or `HedgeFailed`. At most once
    /// per use.
    Hedge {
        /// The use that it is wanted for.
        tick: Tick,
        /// The sample.
        key: SampleKey,
    },
    /// The owner has delivered the sample: cancel the hedge. No answer.
    CancelHedge {
        /// The use that it was wanted for.
        tick: Tick,
    },
    /// The hedge has delivered the sample: cancel the request to its owner. It may be answered all the same.
    CancelPeerRequest {
        /// The sample.
        key: SampleKey,
        /// The position of the owner's store in the cluster.
        store: usize,
    },
    /// Put the sample that is at hand for `tick` into the cache at `level`, if there is room. No answer.
    Store {
        /// The use for which it was read.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// Which cache, counted from the fastest.
        level: usize,
    },
    /// Have the cache at `level` forget the sample. No answer.
    Remove {
        /// The sample.
        key: SampleKey,
        /// Which cache, counted from the fastest.
        level: usize,
    },
    /// The sample at hand for `from` also serves `to`.
    Share {
        /// The use that has it.
        from: Tick,
        /// The use that gets it.
        to: Tick,
    },
    /// The batch is complete: hand these samples to the trainer, in this order.
    Hand {
        /// The pass's index in the run.
        pass: usize,
        /// The batch's number in its pass.
        index: u64,
        /// The first of its uses; they follow each other.
        first: Tick,
        /// How many uses; those without a sample were skipped.
        ticks: u64,
        /// What it adds to the account when the trainer read_cost it.
        counts: BatchCounts,
    },
    /// The next batch cannot be completed, because the sample for this use cannot be read: the run ends here.
    Fail {
        /// The use whose read failed.
        tick: Tick,
        /// The sample.
        key: SampleKey,
    },
    /// The last batch has been handed out: the run's, or the last before a pass whose order cannot be computed.
    End,
}
