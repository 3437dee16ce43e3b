//! What can be wrong with a question to the oracle.
//!
//! The error is opaque: callers match on [`OracleError::kind`] and print the message, which names the thing, the cause
//! and the remedy in one line. The texts may change; the kinds are the contract.

use foreread_types::{DatasetId, Fingerprint, Rank};

/// An argument, a schedule or a saved position that the oracle cannot work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct OracleError(#[from] Reason);

/// What kind of thing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument makes no sense by itself: a world size of 0, a negative weight, an unknown name.
    Invalid,
    /// A sample id, rank, phase or count lies outside what it indexes.
    OutOfRange,
    /// The sampler has no order for that epoch.
    NoSuchEpoch,
    /// The numbers do not fit this machine or 64 bits.
    TooLarge,
    /// A saved position belongs to another schedule.
    Mismatch,
    /// A sampler of the user's own failed or broke its contract.
    Custom,
}

impl OracleError {
    /// What kind of thing was wrong; match on this, not on the text.
    pub fn kind(&self) -> ErrorKind {
        match self.0 {
            Reason::WorldSize
            | Reason::BatchSize
            | Reason::Deal(_)
            | Reason::NoPhases
            | Reason::Weight { .. }
            | Reason::NoWeight
            | Reason::NothingToDraw { .. }
            | Reason::Lengths { .. }
            | Reason::NoOrders
            | Reason::Dealt { .. }
            | Reason::Populations { .. } => ErrorKind::Invalid,
            Reason::Rank { .. } | Reason::Id { .. } | Reason::Consumed { .. } | Reason::PhaseIndex { .. } => {
                ErrorKind::OutOfRange
            }
            Reason::Epoch { .. } | Reason::Epochs { .. } => ErrorKind::NoSuchEpoch,
            Reason::Samples { .. } | Reason::Memory { .. } | Reason::RunLength => ErrorKind::TooLarge,
            Reason::Schedule { .. } => ErrorKind::Mismatch,
            Reason::Custom(_) | Reason::OrderLength { .. } => ErrorKind::Custom,
        }
    }

    /// The error of a sampler that is not one of this crate's: `message` says what went wrong, in one line.
    pub fn custom(message: impl Into<String>) -> Self {
        Self(Reason::Custom(message.into()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Reason {
    #[error("world size 0: there must be at least one rank; give the number of training processes")]
    WorldSize,
    #[error(
        "batch size 0: a batch holds at least one sample; give a larger one, or none for one batch a pass"
    )]
    BatchSize,
    #[error("deal {0:?}: not a way to deal samples; use \"torch\" or \"blocks\"")]
    Deal(String),
    #[error("schedule without phases: nothing would be read; give at least a train phase")]
    NoPhases,
    #[error("weight {weight} of sample {id}: weights are finite and not negative; correct it")]
    Weight { id: u64, weight: String },
    #[error("all weights are zero: no sample could be drawn; give at least one a positive weight")]
    NoWeight,
    #[error("cannot draw {len} samples from an empty dataset; draw none, or give weights")]
    NothingToDraw { len: u64 },
    #[error(
        "explicit order of epoch {epoch} has {found} samples and epoch 0 has {expected}: all epochs are equally long; pad or cut it"
    )]
    Lengths { epoch: usize, found: u64, expected: u64 },
    #[error(
        "{found} samples were dealt to a rank that reads {share}: every rank reads equally many; correct the dealing"
    )]
    Dealt { found: u64, share: u64 },
    #[error("no explicit orders: there is no epoch to read; give one order for each epoch")]
    NoOrders,
    #[error(
        "dataset {dataset} has {found} samples in phase {phase} and {expected} before: samplers of one dataset draw from the same samples; correct one of them"
    )]
    Populations { dataset: DatasetId, phase: usize, found: u64, expected: u64 },
    #[error("rank {rank} of {world_size}: ranks are numbered from 0; give one below the world size")]
    Rank { rank: Rank, world_size: u32 },
    #[error(
        "sample {id} in {place}: the dataset has samples 0 to {population} exclusive; correct the order or the dataset"
    )]
    Id { id: u64, place: String, population: u64 },
    #[error(
        "position has consumed {consumed} of a pass of {len} samples: the saved state is damaged; start from another one"
    )]
    Consumed { consumed: u64, len: u64 },
    #[error(
        "position lies in phase {phase} and the schedule has {phases}: the saved state is damaged; start from another one"
    )]
    PhaseIndex { phase: u32, phases: usize },
    #[error(
        "epoch {epoch}: explicit orders were given for {epochs} epochs; give more orders or run fewer epochs"
    )]
    Epoch { epoch: u64, epochs: u64 },
    #[error(
        "phase {phase} knows its order for {known} epochs and the schedule has {epochs}: give more orders or run fewer epochs"
    )]
    Epochs { phase: usize, known: u64, epochs: u64 },
    #[error("{samples} samples: an order has at most 2^63; split the dataset")]
    Samples { samples: u64 },
    #[error(
        "order of {samples} samples: its table does not fit in memory; use the feistel sampler, which needs none"
    )]
    Memory { samples: u64 },
    #[error("run too long: its samples do not fit in 64 bits; run fewer epochs")]
    RunLength,
    #[error(
        "saved position belongs to schedule {found}, and this run's is {expected}: the phases, their datasets' sizes, samplers or seeds differ; run with those of the saved state, or without it"
    )]
    Schedule { found: Fingerprint, expected: Fingerprint },
    #[error("{0}")]
    Custom(String),
    #[error(
        "order of epoch {epoch} in phase {phase} has {found} samples and its sampler says {expected}: the sampler breaks its contract; correct it"
    )]
    OrderLength { phase: u32, epoch: u64, found: u64, expected: u64 },
}
