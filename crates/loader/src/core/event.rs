//! The core's inputs (events) and outputs (actions).

use foreread_oracle::AccessStream;
use foreread_types::{SampleKey, Tick};

use crate::report::BatchCounts;

/// An input of the core.
#[derive(Debug)]
pub enum CoreEvent {
    /// The order of pass `pass` was computed, as requested by [`CoreAction::Deal`].
    Dealt {
        /// The pass's index in the run.
        pass: usize,
        /// The samples that this rank reads in it.
        stream: AccessStream,
    },
    /// The order requested by [`CoreAction::Deal`] cannot be computed. The run ends before this
    /// pass.
    DealFailed {
        /// The pass's index in the run.
        pass: usize,
    },
    /// A look-up found the sample in memory. It takes no staging memory.
    Found(Tick),
    /// A look-up found the sample in a cache that has to be read.
    Stored(Tick),
    /// A look-up found nothing.
    Absent(Tick),
    /// A read has delivered the sample.
    Arrived(Tick),
    /// A read has failed, after all retries. A cache may still have the sample.
    Failed(Tick),
    /// A cache's read has failed because the stored sample is corrupt, of another length, or gone.
    Invalid(Tick),
    /// The catalog cannot locate the sample. The sample is not at fault, so the run ends at this
    /// use under every policy.
    Unlocated(Tick),
    /// Staging memory was released: the trainer dropped a sample, a cache took it over, or a read
    /// failed.
    Released {
        /// How many bytes.
        bytes: u64,
    },
    /// The look-ahead from now on, at most the configured one. Issued uses are not affected.
    LookAhead {
        /// How many bytes.
        bytes: u64,
    },
    /// The trainer requests the next batch, which is not complete.
    Waiting,
    /// The trainer has taken the next batch.
    Taken,
    /// All events so far were passed. Reads with room may be issued. Separate from the other events
    /// so that reads leave in batches.
    Proceed,
}

/// An output of the core, to be carried out by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreAction {
    /// Compute the order of this pass. Answered by [`CoreEvent::Dealt`] or
    /// [`CoreEvent::DealFailed`].
    Deal {
        /// The pass's index in the run.
        pass: usize,
    },
    /// Look the sample up in the cache at `level`. Answered by `Found`, `Stored` or `Absent`. The
    /// cost of reading it there is charged from now on.
    Find {
        /// The use that needs it.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// The cache's index, counted from the fastest.
        level: usize,
    },
    /// Read the sample from the cache at `level`. Answered by `Arrived`, `Failed` or `Invalid`.
    Fetch {
        /// The use that needs it.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// The cache's index, counted from the fastest.
        level: usize,
        /// The bytes that the read allocates, which are charged.
        read_cost: u64,
    },
    /// Read the sample from the origin. Answered by `Arrived` or `Failed`.
    Read {
        /// The use that needs it.
        tick: Tick,
        /// The sample.
        key: SampleKey,
    },
    /// Store the sample of the use `tick` in the cache at `level`, if there is room. No answer.
    Store {
        /// The use for which it was read.
        tick: Tick,
        /// The sample.
        key: SampleKey,
        /// The cache's index, counted from the fastest.
        level: usize,
    },
    /// Remove the sample from the cache at `level`. No answer.
    Remove {
        /// The sample.
        key: SampleKey,
        /// The cache's index, counted from the fastest.
        level: usize,
    },
    /// The sample of the use `from` also serves `to`.
    Share {
        /// The use that has it.
        from: Tick,
        /// The use that gets it.
        to: Tick,
    },
    /// The batch is complete. Hand these samples to the trainer, in this order.
    Hand {
        /// The pass's index in the run.
        pass: usize,
        /// The batch's index in its pass.
        index: u64,
        /// The first of its consecutive uses.
        first: Tick,
        /// The number of uses. Those without a sample were skipped.
        ticks: u64,
        /// Its counts, added to the report when the trainer takes it.
        counts: BatchCounts,
    },
    /// The next batch cannot be completed, because the sample for this use cannot be read. The run
    /// ends here.
    Fail {
        /// The use whose read failed.
        tick: Tick,
        /// The sample.
        key: SampleKey,
    },
    /// The last batch was handed out: that of the run, or the last one before a pass without an
    /// order.
    End,
}
