//! Retries of operations that the layers do not see: pages of listings, and the first credentials.

use std::time::Duration;

use foreread_tier::{ErrorKind, TierError};
use tokio::time::{Instant, sleep};

/// The maximum number of attempts, and the time after which none begins.
pub(crate) const ATTEMPTS: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the result of the first attempt that succeeds or fails permanently. `wait` returns the
/// wait after the nth failure.
///
/// # Cancel safety
/// The same as that of an attempt.
pub(crate) async fn retry<T, F>(
    attempt: impl Fn() -> F,
    wait: impl Fn(u32, &TierError) -> Duration,
) -> Result<T, TierError>
where
    F: Future<Output = Result<T, TierError>>,
{
    let (began, mut failures) = (Instant::now(), 0);
    loop {
        let error = match attempt().await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        failures += 1;
        let wait = wait(failures, &error);
        if !matches!(error.kind(), ErrorKind::Transient | ErrorKind::Throttled)
            || failures == ATTEMPTS
            || began.elapsed() + wait > TIMEOUT
        {
            return Err(error);
        }
        tracing::debug!(%error, failures, ?wait, "retrying");
        sleep(wait).await;
    }
}
