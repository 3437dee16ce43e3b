//! Stores samples in caches. A store that fails or is skipped costs a later read and nothing else.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use foreread_tier::{CacheTier, Charge, ErrorKind, Lifetime, Sample, TierError};
use foreread_types::SampleKey;
use futures::FutureExt;

use crate::panics::panic_message;

/// How long the memory of a sample is in use that will be stored in `cache`.
pub(crate) fn lifetime_in(cache: Option<&Arc<dyn CacheTier>>) -> Lifetime {
    match cache {
        Some(cache) if cache.keeps_memory() => Lifetime::Kept,
        _ => Lifetime::Passing,
    }
}

/// Stores a sample in a cache, using its reserved `room`.
pub(crate) async fn store_sample(cache: &dyn CacheTier, room: Charge, key: SampleKey, sample: Sample) {
    match cache.store(room, key, sample).await {
        Ok(()) => {}
        // Too much is on its way already. The next use will store it.
        Err(error) if error.kind() == ErrorKind::Full => count_skip(cache, key),
        Err(error) => log_store_error(cache, key, &error),
    }
}

/// Counts a store that was left out because the cache had no room or too much on its way.
pub(crate) fn count_skip(cache: &dyn CacheTier, key: SampleKey) {
    tracing::debug!(tier = cache.name(), %key, "a sample was not cached, because there was no room");
    metrics::counter!("foreread_store_skipped_total", "tier" => cache.name().to_owned()).increment(1);
}

/// The tier itself logs a warning once, not for each sample.
pub(crate) fn log_store_error(cache: &dyn CacheTier, key: SampleKey, error: &TierError) {
    tracing::debug!(tier = cache.name(), %key, %error, "a sample could not be cached");
}

/// Polls a cache's work once, which completes a store in memory. The rest runs as a task. A panic
/// of the cache is logged and does not reach the caller.
pub(crate) fn spawn_store(work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind().map(|done| {
        if let Err(panic) = done {
            tracing::error!("a cache panicked: {}", panic_message(&*panic));
        }
    }));
    if work.as_mut().now_or_never().is_none() {
        tokio::spawn(work);
    }
}
