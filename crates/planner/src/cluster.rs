//! What there is to keep samples in, and what reading them from the origin costs.
//!
//! These are descriptions: plain values that whoever starts a run fills in, and that are equal on every rank. One store
//! for now. It widens without breaking: [`Cluster::store`] becomes the first of a list of stores, each with its
//! [`StoreId`], its own levels and the ranks that share it, and [`Placement`](crate::Placement) then answers with a
//! store beside the level.

use std::fmt;

use foreread_types::{Footprint, StoreId};

/// The most levels that a store may have: what fits beside "nowhere" in two bits a sample.
pub const MAX_LEVELS: usize = 3;

/// A level of a store, by its position in [`Store::levels`]; 0 is the fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LevelIndex(pub u8);

impl fmt::Display for LevelIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What one read from the origin costs: a latency for the request and a time for its bytes.
///
/// The seconds that keeping a sample saves, for each byte that keeping it takes, are
/// `(latency + size / bandwidth) / footprint` a use. Only ratios between samples matter here, so rough figures do: the
/// larger the product of latency and bandwidth is against the sizes, the more smaller samples are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginCost {
    /// Nanoseconds from a request to its first byte.
    pub latency_ns: u64,
    /// Bytes a second of one read, once it flows; not 0.
    pub bytes_per_second: u64,
}

impl OriginCost {
    /// Nanoseconds that one read of `bytes` bytes takes, rounded down; saturates at `u64::MAX`.
    ///
    /// ```
    /// use foreread_planner::OriginCost;
    /// assert_eq!(OriginCost { latency_ns: 500, bytes_per_second: 2_000_000_000 }.nanoseconds(4000), 2500);
    /// ```
    ///
    /// # Panics
    /// If `bytes_per_second` is 0.
    pub fn nanoseconds(&self, bytes: u64) -> u64 {
        let transfer = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        u64::try_from(transfer).unwrap_or(u64::MAX).saturating_add(self.latency_ns)
    }
}

impl Default for OriginCost {
    /// 1 ms and 200 MB/s: between a parallel file system in one building and an object store in one region.
    fn default() -> Self {
        Self { latency_ns: 1_000_000, bytes_per_second: 200_000_000 }
    }
}

/// One kind of room in a store: its memory, its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// What reports call it; names nothing else.
    pub name: String,
    /// Bytes of room.
    pub capacity: u64,
    /// What a sample takes of that room.
    pub footprint: Footprint,
}

/// One process's or node's caches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Its number in the cluster.
    pub id: StoreId,
    /// Fastest first; memory, then disk. At most [`MAX_LEVELS`], and none is a store that keeps nothing.
    pub levels: Vec<Level>,
}

impl Store {
    /// Bytes of room in all levels; saturates at `u64::MAX`.
    pub fn capacity(&self) -> u64 {
        self.levels.iter().fold(0, |sum, level| sum.saturating_add(level.capacity))
    }
}

/// Everything that a plan needs to know about the machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The caches; one store for now.
    pub store: Store,
    /// Bytes of samples that are read ahead of the trainer and lie outside every level. They count in the floor only:
    /// what is in them at an epoch's boundary need not be read again.
    pub look_ahead: u64,
    /// What reads from the origin cost.
    pub origin: OriginCost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_rounded_down_and_saturate() {
        assert_eq!(OriginCost { latency_ns: 1, bytes_per_second: 3 }.nanoseconds(1), 333_333_334);
        assert_eq!(OriginCost { latency_ns: u64::MAX, bytes_per_second: 1 }.nanoseconds(u64::MAX), u64::MAX);
        assert_eq!(OriginCost::default().nanoseconds(200), 1_001_000);
    }
}
