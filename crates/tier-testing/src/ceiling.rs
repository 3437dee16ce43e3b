//! A store that refuses requests above a rate.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A ceiling on requests per second below one prefix: a token bucket with a burst. A refusal costs
/// the store nothing, so it takes no token.
#[derive(Debug)]
pub(crate) struct RateCeiling {
    prefix: String,
    burst: f64,
    retry_after: Option<Duration>,
    bucket: Mutex<TokenBucket>,
}

#[derive(Debug)]
struct TokenBucket {
    per_second: f64,
    tokens: f64,
    at: Option<Instant>,
}

impl RateCeiling {
    pub(crate) fn new(prefix: &str, per_second: f64, burst: f64, retry_after: Option<Duration>) -> Self {
        let bucket = Mutex::new(TokenBucket { per_second, tokens: burst, at: None });
        Self { prefix: prefix.to_owned(), burst, retry_after, bucket }
    }

    fn bucket(&self) -> MutexGuard<'_, TokenBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_of(&self, prefix: &str) -> bool {
        self.prefix == prefix
    }

    pub(crate) fn covers(&self, path: &str) -> bool {
        path.starts_with(&self.prefix)
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    pub(crate) fn set(&self, per_second: f64) {
        let mut bucket = self.bucket();
        bucket.fill(self.burst);
        bucket.per_second = per_second;
    }

    /// Whether a request is admitted now.
    pub(crate) fn admits(&self) -> bool {
        let mut bucket = self.bucket();
        bucket.fill(self.burst);
        let admitted = bucket.tokens >= 1.0;
        bucket.tokens -= if admitted { 1.0 } else { 0.0 };
        admitted
    }
}

impl TokenBucket {
    fn fill(&mut self, burst: f64) {
        let now = Instant::now();
        let passed = self.at.replace(now).map_or(Duration::ZERO, |at| now - at);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.per_second).min(burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ceiling_admits_a_burst_and_then_its_rate() {
        let ceiling = RateCeiling::new("a/", 100.0, 5.0, None);
        assert!(ceiling.covers("a/b") && !ceiling.covers("b/a"));
        let admitted = |of| (0..of).filter(|_| ceiling.admits()).count();
        assert_eq!(admitted(50), 5);
        tokio::time::advance(Duration::from_millis(30)).await;
        assert_eq!(admitted(50), 3);
        ceiling.set(1000.0);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(admitted(50), 5);
    }
}
