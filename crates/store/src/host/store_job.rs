//! A job of a store, its requests, and the convoys by which jobs take turns.

use std::fmt;

use bytes::Bytes;
use foreread_tier::TierError;
use foreread_types::{SampleKey, Tick};

/// The number of a job, unique in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreJob(pub(super) u64);

/// The convoy of a job that takes turns by itself.
pub(super) fn own_convoy(job: StoreJob) -> u64 {
    job.0 << 1
}

/// The convoy of an order that a job has announced first.
pub(super) fn order_convoy(job: StoreJob) -> u64 {
    job.0 << 1 | 1
}

/// Gets the result of a request.
pub type Answer = Box<dyn FnOnce(Result<Bytes, TierError>) + Send>;

/// A request of a job for a sample.
pub struct StoreRequest {
    /// The sample.
    pub key: SampleKey,
    /// The job's position at which it uses the sample.
    pub due: Tick,
    /// Called once, on any thread.
    pub answer: Answer,
}

impl fmt::Debug for StoreRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreRequest").field("key", &self.key).field("due", &self.due).finish_non_exhaustive()
    }
}
