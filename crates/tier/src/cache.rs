//! Tiers that keep samples.

use async_trait::async_trait;
use foreread_types::{Footprint, SampleKey};

use crate::{Charge, Sample, Tier, TierError};

/// The answer of a lookup, without I/O.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The sample itself, without I/O or a copy.
    Ready(Sample),
    /// The sample is stored. Read it with [`Tier::read`].
    Stored,
    /// The sample is not stored.
    Absent,
}

/// A bounded tier that keeps samples until they are removed. It never evicts automatically: the
/// planner decides placement, and a cache must not overrule the plan.
#[async_trait]
pub trait CacheTier: Tier {
    /// The capacity that a sample takes, as counted by [`reserve`](Self::reserve).
    fn footprint(&self) -> Footprint;

    /// The memory that a read of a sample allocates at most. [`Footprint::EXACT`] for caches whose
    /// samples are in memory.
    fn read_memory(&self) -> Footprint;

    /// Whether stored samples stay in the memory in which they came. Other caches copy them.
    fn keeps_memory(&self) -> bool;

    /// Looks a sample up. Never blocks.
    fn lookup(&self, key: SampleKey) -> Lookup;

    /// Reserves capacity for `bytes` (a footprint). `None` if there is none. Dropping the charge
    /// releases it.
    fn reserve(&self, bytes: u64) -> Option<Charge>;

    /// Stores `sample` under `key` in reserved capacity. If the key is stored already, nothing
    /// changes and the capacity is released.
    ///
    /// # Errors
    /// If the sample could not be stored. The capacity is released.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the sample stored whole or not at all.
    async fn store(&self, room: Charge, key: SampleKey, sample: Sample) -> Result<(), TierError>;

    /// Removes these samples. Existing handles stay valid and keep their capacity until they are
    /// dropped.
    async fn remove(&self, keys: Vec<SampleKey>);
}
