//! What can be wrong with the inputs of a plan.
//!
//! The error is opaque: callers match on [`PlanError::kind`], and print the message, which names the field, the cause
//! and the remedy in one line. The texts may change; the kinds are the contract.

use foreread_oracle::OracleError;
use foreread_types::DatasetId;

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
            Reason::OriginBandwidth | Reason::Levels { .. } => PlanErrorKind::Invalid,
            Reason::NoSizes { .. } | Reason::Population { .. } => PlanErrorKind::Mismatch,
            Reason::Memory { .. } => PlanErrorKind::TooLarge,
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
    #[error("origin.bytes_per_second is 0: nothing could be read; give the origin's bandwidth")]
    OriginBandwidth,
    #[error("store.levels has {found} entries: a store has at most {most}; merge the slowest")]
    Levels { found: usize, most: usize },
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
