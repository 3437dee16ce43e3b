//! The name of another rank as a tier, and the error of its samples when a connection fails.

use foreread_connection::WireError;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::Rank;

/// The tier's name.
pub(crate) const NAME: &str = "peer";

/// The error of a sample when its connection fails.
pub(crate) fn error_of(rank: Rank, why: &WireError) -> TierError {
    TierError::new(ErrorKind::Transient, NAME).with_detail(format!("rank {rank}: {why}"))
}
