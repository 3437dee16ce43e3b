//! Tiers that keep samples.

use async_trait::async_trait;
use foreread_types::{Footprint, SampleKey};

use crate::{Charge, Sample, Tier, TierError};

/// What a cache knows of a sample at once.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Here it is, without I/O or copying.
    Ready(Sample),
    /// It is kept; [`Tier::read`] it.
    Stored,
    /// It is not kept.
    Absent,
}

/// A tier of bounded room that keeps what it is given until it is told to remove it. It never evicts by itself:
/// placement is the planner's, and a plan that the cache may overrule is no plan.
#[async_trait]
pub trait CacheTier: Tier {
    /// What a sample of n bytes takes of the room that [`reserve`](Self::reserve) hands out; also the most that a read of it
    /// allocates.
    fn footprint(&self) -> Footprint;

    /// Whether it keeps a sample. Never blocks.
    fn lookup(&self, key: SampleKey) -> Lookup;

    /// Sets aside room for `bytes` (a footprint) or says that there is none. Dropping the charge gives it back.
    fn reserve(&self, bytes: u64) -> Option<Charge>;

    /// Keeps `sample` under `key` in room that was reserved for it. A key that is kept already stays as it is, and
    /// the room is given back.
    ///
    /// # Errors
    /// If the sample could not be kept; the room is given back.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the sample either kept whole or not at all.
    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError>;

    /// Forgets these samples. Handles that are out stay valid, and keep their room until they are dropped.
    async fn remove(&self, keys: Vec<SampleKey>);
}
