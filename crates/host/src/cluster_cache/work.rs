//! Work on many samples, and reads that another store does not answer.

use foreread_tier::{ErrorKind, TierError};

/// The most samples that are visited on a runtime's thread.
const FEW_SAMPLES: u64 = 1 << 14;

/// Does work that visits so many samples, not on a runtime's thread if they are many. `None` if it
/// has panicked.
pub(super) async fn over_samples<T: Send + 'static>(
    samples: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match samples {
        ..=FEW_SAMPLES => Some(work()),
        _ => tokio::task::spawn_blocking(work).await.ok(),
    }
}

pub(super) fn absent() -> TierError {
    TierError::new(ErrorKind::Absent, "cluster").with_detail("its owner is not reached")
}
