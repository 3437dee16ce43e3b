//! What can be wrong with the inputs of a plan.
//!
//! The error is opaque: callers match on [`PlanError::kind`], and print the message, which names the field, the cause
//! and the remedy in one line. The texts may change; the kinds are the contract.

use foreread_oracle::OracleError;
use foreread_types::{DatasetId, Rank, StoreId};

/// A run, sizes or a cluster description that cannot be planned for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct PlanError(#[from] Reason);

/// What kind of thing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlanErrorKind {
    /// A field makes no sense by itself: an origin of 0 bytes a second, too many levels.
    Invalid,
    /// Two inputs do not belong together: a dataset of the run without sizes, or with another number of samples.
    Mismatch,
    /// A table with an entry for each sample does not fit this machine.
    TooLarge,
    /// The oracle could not give an order.
    Oracle,
}

impl PlanError {
    /// What kind of thing was wrong; match on this, not on the text.
    pub fn kind(&self) -> PlanErrorKind {
        match &self.0 {
            Reason::Zero { .. }
            | Reason::Curve { .. }
            | Reason::Threads { .. }
            | Reason::Levels { .. }
            | Reason::Stores { .. }
            | Reason::StoreTwice { .. }
            | Reason::BatchSize { .. } => PlanErrorKind::Invalid,
            Reason::NoSizes { .. }
            | Reason::Population { .. }
            | Reason::RankTable { .. }
            | Reason::NoStore { .. }
            | Reason::OtherStores { .. } => PlanErrorKind::Mismatch,
            Reason::Memory { .. } | Reason::Samples { .. } => PlanErrorKind::TooLarge,
            Reason::Oracle(_) => PlanErrorKind::Oracle,
        }
    }
}

impl From<OracleError> for PlanError {
    fn from(error: OracleError) -> Self {
        Self(Reason::Oracle(error))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reason {
    #[error("{field} is 0: nothing would ever be done; give what was measured, or leave the default")]
    Zero { field: &'static str },
    #[error("{field} {cause}: give (parallelism, bytes a second) from the lowest parallelism to the highest")]
    Curve { field: String, cause: &'static str },
    #[error("stores[{store}].levels[{level}].threads is 0: nothing would read it; give at least 1")]
    Threads { store: usize, level: usize },
    #[error("stores[{store}].levels has {found} entries: a store has at most {most}; merge the slowest")]
    Levels { store: usize, found: usize, most: usize },
    #[error("stores has {found} entries: a cluster has at most {most}; let the ranks of a node share one")]
    Stores { found: usize, most: usize },
    #[error("stores has two entries of id {id}: each store has its own number; correct one of them")]
    StoreTwice { id: StoreId },
    #[error("ranks has {found} entries and the run has {world_size} ranks: give each rank its store")]
    RankTable { found: usize, world_size: u32 },
    #[error(
        "ranks gives rank {rank} a store that is not there; stores has {found} entries: describe its store"
    )]
    NoStore { rank: Rank, found: usize },
    #[error("stores has {found} entries and the plan was made for {expected}: predict with the same stores")]
    OtherStores { found: usize, expected: usize },
    #[error(
        "phase {phase} has no batch size: dealing by ownership goes step by step; give the phase a batch size"
    )]
    BatchSize { phase: u32 },
    #[error(
        "{samples} samples in all datasets: tables of owners have at most {most}; use the feistel sampler and samples of one size, which need no table"
    )]
    Samples { samples: u64, most: u64 },
    #[error("sizes has {found} entries and the run reads dataset {dataset}: give the sizes of every dataset")]
    NoSizes { dataset: DatasetId, found: usize },
    #[error(
        "sizes[{dataset}] has {found} samples and the run's sampler draws from {expected}: give the sizes of the dataset that the run reads"
    )]
    Population { dataset: DatasetId, found: u64, expected: u64 },
    #[error(
        "dataset {dataset} has {samples} samples: a table for each does not fit in memory; split the dataset"
    )]
    Memory { dataset: DatasetId, samples: u64 },
    #[error(transparent)]
    Oracle(OracleError),
}
