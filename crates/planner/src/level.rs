//! A level of a store: one kind of memory with its capacity and speed.

use std::fmt;

use foreread_types::Footprint;

use crate::curve::Curve;

/// The maximum number of levels of a store: with "nowhere", they fit in two bits per sample.
pub const MAX_LEVELS: usize = 3;

/// A level of a store, by its position in [`CacheStore::levels`](crate::CacheStore::levels). 0 is
/// the fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LevelIndex(pub u8);

impl fmt::Display for LevelIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One cache level of a store: its memory or its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name in reports.
    pub name: String,
    /// The capacity in bytes.
    pub capacity: u64,
    /// The bytes that a sample takes.
    pub footprint: Footprint,
    /// The read throughput in bytes per second, by number of threads.
    pub read: Curve,
    /// The write throughput in bytes per second, by number of threads.
    pub write: Curve,
    /// The number of threads that read and write. Not 0.
    pub threads: u32,
}

impl Level {
    /// A level of unknown speed, which never limits.
    pub fn new(name: impl Into<String>, capacity: u64, footprint: Footprint) -> Self {
        let (read, write) = (Curve::unlimited(), Curve::unlimited());
        Self { name: name.into(), capacity, footprint, read, write, threads: 1 }
    }
}
