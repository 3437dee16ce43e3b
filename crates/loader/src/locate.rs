//! Looks up the locations of a dataset's samples.
//!
//! A catalog file has the names of files, and a file server may be slow, fail, or never answer.
//! Only reads of the origin need locations. Look-ups run on blocking threads, at most [`THREADS`]
//! per dataset for the whole engine. A look-up that hangs blocks one thread of its dataset. It
//! holds only the catalog: no origin, cache or budget.
//!
//! A look-up that fails by an I/O error is repeated by the run's retry policy. After that it is an
//! error of the catalog, which ends the run. The price is that the other look-ups of its batch wait
//! with it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::{Catalog, CatalogEntry, DatasetError, DatasetErrorKind};
use foreread_layers::RetryPolicy;
use foreread_tier::{ErrorKind, Object, Span, TierError};
use foreread_types::SampleId;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::panics::panic_message;

/// Threads that look up samples of one dataset, at most. More would not help against a server that
/// hangs.
pub(crate) const THREADS: usize = 4;

/// The shortest wait before a look-up is repeated, whatever the policy allows.
const MIN_RETRY_WAIT: Duration = Duration::from_millis(1);

/// Where a sample lies in the origin.
pub(crate) type Location = (Object, Span);

/// The location for a tier that knows samples by their keys: a cache. It needs no
/// look-up.
pub(crate) fn location_by_key(bytes: u64) -> Location {
    (Object { path: Arc::default(), size: bytes, version: None }, Span::Whole)
}

/// A source of catalog entries.
pub(crate) trait EntrySource: fmt::Debug + Send + Sync + 'static {
    /// Where a sample's bytes are.
    fn entry(&self, id: SampleId) -> Result<CatalogEntry, DatasetError>;

    /// Whether [`entry`](Self::entry) may block.
    fn may_block(&self) -> bool;
}

impl EntrySource for Catalog {
    fn entry(&self, id: SampleId) -> Result<CatalogEntry, DatasetError> {
        Self::entry(self, id)
    }

    fn may_block(&self) -> bool {
        self.reads_entries()
    }
}

/// Looks up the samples of one dataset. Clones share their threads.
#[derive(Clone, Debug)]
pub(crate) struct Locator {
    entries: Arc<dyn EntrySource>,
    threads: Arc<Semaphore>,
    retry: RetryPolicy,
}

impl Locator {
    pub(crate) fn new(entries: impl EntrySource) -> Self {
        let threads = Arc::new(Semaphore::new(THREADS));
        Self { entries: Arc::new(entries), threads, retry: RetryPolicy::default() }
    }

    /// Sets the policy that repeats failed look-ups.
    pub(crate) fn with_retry(self, retry: RetryPolicy) -> Self {
        Self { retry, ..self }
    }

    /// Whether a look-up reads a file.
    pub(crate) fn may_block(&self) -> bool {
        self.entries.may_block()
    }

    /// Looks up one sample on this thread, once.
    pub(crate) fn locate(&self, id: SampleId) -> Result<Location, TierError> {
        locate_entry(&*self.entries, id)
    }

    /// Looks up samples without blocking the thread, in their order.
    ///
    /// # Cancel safety
    /// A look-up that has begun keeps its thread until it ends, and nothing else.
    pub(crate) async fn locate_all(&self, ids: Vec<SampleId>) -> Vec<Result<Location, TierError>> {
        if !self.may_block() {
            return ids.into_iter().map(|id| self.locate(id)).collect();
        }
        let mut places = self.attempt(ids.clone()).await;
        let began = Instant::now();
        for failures in 1..self.retry.attempts.get() {
            let failed = || places.iter().enumerate().filter(|(_, place)| is_io(place)).map(|(at, _)| at);
            let wait = self.retry.longest_wait_after(failures).max(MIN_RETRY_WAIT);
            if failed().next().is_none() || began.elapsed().saturating_add(wait) > self.retry.patience {
                break;
            }
            let again: Vec<usize> = failed().collect();
            tracing::debug!(samples = again.len(), ?wait, "the catalog cannot be read, trying again");
            sleep(wait).await;
            let repeated = self.attempt(again.iter().map(|&at| ids[at]).collect()).await;
            for (at, place) in again.into_iter().zip(repeated) {
                places[at] = place;
            }
        }
        places
    }

    async fn attempt(&self, ids: Vec<SampleId>) -> Vec<Result<Location, TierError>> {
        let (entries, count) = (Arc::clone(&self.entries), ids.len());
        let look_up = move || ids.into_iter().map(|id| locate_entry(&*entries, id)).collect();
        match self.run(look_up).await {
            Ok(places) => places,
            Err(error) => vec![Err(error); count],
        }
    }

    /// Runs work that may block on one of the dataset's threads.
    pub(crate) async fn run<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, TierError> {
        // The semaphore is never closed.
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        let work = move || {
            // Held by the thread, because the caller may be dropped before it ends.
            let _thread = thread;
            work()
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| TierError::new(ErrorKind::Closed, "catalog").with_detail(error.to_string()))
    }
}

fn locate_entry(entries: &dyn EntrySource, id: SampleId) -> Result<Location, TierError> {
    match catch_unwind(AssertUnwindSafe(|| entries.entry(id))) {
        Ok(Ok(entry)) => Ok((entry.object, entry.span)),
        Ok(Err(error)) => Err(TierError::new(ErrorKind::Invalid, "catalog")
            .with_detail(error.to_string())
            .with_source(error)),
        Err(panic) => {
            let detail = format!("the catalog panicked: {}", panic_message(&*panic));
            Err(TierError::new(ErrorKind::Other, "catalog").with_detail(detail))
        }
    }
}

/// The catalog's error, if it caused a failed look-up.
pub(crate) fn catalog_error(error: &TierError) -> Option<&DatasetError> {
    std::error::Error::source(error)?.downcast_ref()
}

fn is_io(place: &Result<Location, TierError>) -> bool {
    let fault = place.as_ref().err().and_then(catalog_error);
    fault.is_some_and(|fault| fault.kind() == DatasetErrorKind::Io)
}

#[cfg(test)]
pub(crate) mod tests;
