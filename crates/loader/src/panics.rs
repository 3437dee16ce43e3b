//! Panics of the code that the engine calls (tiers, caches, catalogs, samplers), as errors.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use foreread_tier::{ErrorKind, TierError};
use futures::FutureExt;

/// Runs `work`. A panic becomes an error of the tier.
pub(crate) async fn catch_panic<T>(
    tier: &str,
    work: impl Future<Output = Result<T, TierError>>,
) -> Result<T, TierError> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| Err(panic_error(tier, &*panic)))
}

/// The error of a read in which a tier panicked.
pub(crate) fn panic_error(tier: &str, panic: &(dyn Any + Send)) -> TierError {
    TierError::new(ErrorKind::Closed, tier)
        .with_detail(format!("the tier panicked: {}", panic_message(panic)))
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(|text| &**text)).unwrap_or("without a message")
}
