//! Errors of the planner.
//!
//! The error is opaque. Callers print the message, which names the field, the cause and the
//! remedy in one line. Texts may change.

use foreread_oracle::OracleError;
use foreread_types::{DatasetId, Rank, SampleId, StoreId};

/// An invalid run, sizes or cluster description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct PlanError(#[from] PlanReason);

impl From<OracleError> for PlanError {
    fn from(error: OracleError) -> Self {
        Self(PlanReason::Oracle(error))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanReason {
    #[error("{field} is 0: must be at least 1. Set the measured value, or leave the default")]
    Zero { field: &'static str },
    #[error("{field} {cause}: expected (parallelism, bytes/s) in ascending order of parallelism")]
    Curve { field: String, cause: &'static str },
    #[error("stores[{store}].levels[{level}].threads is 0: must be at least 1")]
    Threads { store: usize, level: usize },
    #[error("stores[{store}].levels has {found} entries: must be at most {most}. Merge the slowest")]
    Levels { store: usize, found: usize, most: usize },
    #[error("stores has {found} entries: must be at most {most}. Let the ranks of a node share a store")]
    Stores { found: usize, most: usize },
    #[error("stores has two entries of id {id}: ids must be unique")]
    StoreTwice { id: StoreId },
    #[error("ranks has {found} entries and the run has {world_size} ranks: set the store of each rank")]
    RankTable { found: usize, world_size: u32 },
    #[error("ranks gives rank {rank} an unknown store: stores has {found} entries")]
    NoStore { rank: Rank, found: usize },
    #[error("stores has {found} entries and the plan was made for {expected}: predict with the same stores")]
    OtherStores { found: usize, expected: usize },
    #[error("phase {phase} has no batch size: dealing by ownership needs one")]
    BatchSize { phase: u32 },
    #[error(
        "{samples} samples in all datasets: tables of owners have at most {most}. The feistel sampler \
         with samples of one size needs no table"
    )]
    Samples { samples: u64, most: u64 },
    #[error("sizes has {found} entries and the run reads dataset {dataset}: set the sizes of every dataset")]
    NoSizes { dataset: DatasetId, found: usize },
    #[error(
        "sizes[{dataset}] has {found} samples and the run's sampler draws from {expected}: the sizes \
         must be those of the run's dataset"
    )]
    Population { dataset: DatasetId, found: u64, expected: u64 },
    #[error("an order of dataset {dataset} has sample {sample}: must be below {samples}")]
    OrderSample { dataset: DatasetId, sample: SampleId, samples: u64 },
    #[error(
        "dataset {dataset} has {samples} samples: a table with an entry per sample does not fit in memory"
    )]
    Memory { dataset: DatasetId, samples: u64 },
    #[error(transparent)]
    Oracle(OracleError),
}
