//! Errors of the oracle.
//!
//! The error is opaque. Callers print the message, which names the value, the cause and the
//! remedy in one line. Texts may change.

use foreread_types::{DatasetId, Fingerprint, Rank};

/// An invalid argument, schedule or saved position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct OracleError(#[from] OracleReason);

impl OracleError {
    /// An error of a custom sampler. `message` describes the failure in one line.
    pub fn custom(message: impl Into<String>) -> Self {
        Self(OracleReason::Custom(message.into()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OracleReason {
    #[error("world size 0: must be at least 1, the number of training processes")]
    WorldSize,
    #[error("batch size 0: must be at least 1, or none for one batch per pass")]
    BatchSize,
    #[error("invalid deal {0:?}: expected \"torch\" or \"blocks\"")]
    Deal(String),
    #[error("schedule without phases: expected at least a train phase")]
    NoPhases,
    #[error("weight {weight} of sample {id}: must be finite and not negative")]
    Weight { id: u64, weight: String },
    #[error("all weights are zero: at least one weight must be positive")]
    NoWeight,
    #[error("{found} weights: PyTorch draws from at most 2^24, and the shuffle sampler from any number")]
    TorchWeights { found: u64 },
    #[error("the sum of the weights is not a finite number: divide all of them by their largest")]
    WeightSum,
    #[error("cannot draw {len} samples from an empty dataset")]
    NothingToDraw { len: u64 },
    #[error("explicit order of epoch {epoch} has {found} samples, expected {expected} as in epoch 0")]
    Lengths { epoch: usize, found: u64, expected: u64 },
    #[error("{found} samples were dealt to a rank that reads {share}: every rank must read the same number")]
    Dealt { found: u64, share: u64 },
    #[error("{expected} samples are chosen and their sampler is over {found}: must be the same number")]
    Subset { found: u64, expected: u64 },
    #[error("no explicit orders: expected one order per epoch")]
    NoOrders,
    #[error(
        "dataset {dataset} has {found} samples in phase {phase} and {expected} before: samplers of one \
         dataset must have the same number of samples"
    )]
    Populations { dataset: DatasetId, phase: usize, found: u64, expected: u64 },
    #[error("rank {rank} of {world_size}: must be below the world size")]
    Rank { rank: Rank, world_size: u32 },
    #[error("sample {id} in {place}: the dataset has samples 0 to {population} exclusive")]
    Id { id: u64, place: String, population: u64 },
    #[error("position has consumed {consumed} of a pass of {len} samples: the saved state is damaged")]
    Consumed { consumed: u64, len: u64 },
    #[error("position lies in phase {phase} and the schedule has {phases}: the saved state is damaged")]
    PhaseIndex { phase: u32, phases: usize },
    #[error(
        "epoch {epoch}: explicit orders were given for {epochs} epochs. Give more orders or run fewer epochs"
    )]
    Epoch { epoch: u64, epochs: u64 },
    #[error(
        "phase {phase} knows its order for {known} epochs and the schedule has {epochs}: \
         give more orders or run fewer epochs"
    )]
    Epochs { phase: usize, known: u64, epochs: u64 },
    #[error("{samples} samples: an order has at most 2^63")]
    Samples { samples: u64 },
    #[error(
        "order of {samples} samples: its table does not fit in memory. The feistel sampler needs no table"
    )]
    Memory { samples: u64 },
    #[error("run too long: its samples do not fit in 64 bits. Run fewer epochs")]
    RunLength,
    #[error(
        "saved position belongs to schedule {found}, this run has {expected}: the phases, their \
         datasets' sizes, samplers or seeds differ. Use those of the saved state, or start without it"
    )]
    Schedule { found: Fingerprint, expected: Fingerprint },
    #[error("{0}")]
    Custom(String),
    #[error(
        "order of epoch {epoch} in phase {phase} has {found} samples, its sampler's `len` is {expected}: \
         the sampler breaks its contract"
    )]
    OrderLength { phase: u32, epoch: u64, found: u64, expected: u64 },
}
