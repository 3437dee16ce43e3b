//! Identifiers, one newtype each, so that a position is never taken for a sample.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// One training item of one dataset, numbered `0..N` in the catalog's order.
    SampleId(u64)
}
number! {
    /// One dataset of a run, numbered in the order in which the run names them (training first).
    DatasetId(u32)
}
number! {
    /// One training process, numbered `0..world_size`.
    Rank(u32)
}
number! {
    /// The caches of one process or node, which own samples in the planner's model.
    StoreId(u32)
}
number! {
    /// A position in one rank's access stream, counted over the whole run: the `t`-th sample that
    /// the rank reads.
    Tick(u64)
}

/// A rank and how many there are: among all of a run, or among those of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankOf {
    /// The rank, from 0.
    pub rank: u32,
    /// The number of ranks, at least 1.
    pub ranks: u32,
}

impl RankOf {
    /// The only rank.
    pub const ALONE: Self = Self { rank: 0, ranks: 1 };
}

/// One sample among all datasets of a run: the key of caches and peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleKey {
    /// The dataset that the sample belongs to.
    pub dataset: DatasetId,
    /// Its number there.
    pub id: SampleId,
}

impl SampleKey {
    /// The sample `id` of dataset `dataset`.
    pub const fn new(dataset: DatasetId, id: SampleId) -> Self {
        Self { dataset, id }
    }
}

impl fmt::Display for SampleKey {
    /// `sample 17`, or `sample 17 of dataset 1` for datasets other than the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dataset {
            DatasetId(0) => write!(f, "sample {}", self.id),
            dataset => write!(f, "sample {} of dataset {dataset}", self.id),
        }
    }
}
