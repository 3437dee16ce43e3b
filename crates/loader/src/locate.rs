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

use crate::read_results::panic_message;

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
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::num::NonZeroU32;
    use std::sync::{Condvar, Mutex};

    use foreread_tier_testing::FakeOrigin;
    use futures::future::join_all;

    use super::*;

    /// Entries on a file server that can hang and fail.
    #[derive(Clone, Debug)]
    pub(crate) struct FakeServer(Arc<(FakeOrigin, Mutex<ServerFaults>, Condvar)>);

    #[derive(Debug, Default)]
    struct ServerFaults {
        /// Samples whose look-ups hang.
        stuck: Vec<u64>,
        /// How many further look-ups of a sample fail.
        failures: HashMap<u64, u32>,
        /// Look-ups so far, and look-ups that hang now.
        looked_up: u32,
        hanging: usize,
    }

    impl FakeServer {
        pub(crate) fn new(fake: FakeOrigin) -> Self {
            Self(Arc::new((fake, Mutex::default(), Condvar::new())))
        }

        /// Makes these look-ups hang until the server is released.
        pub(crate) fn hang(&self, ids: impl IntoIterator<Item = u64>) {
            self.0.1.lock().unwrap().stuck.extend(ids);
        }

        pub(crate) fn release(&self) {
            self.0.1.lock().unwrap().stuck.clear();
            self.0.2.notify_all();
        }

        pub(crate) fn hanging(&self) -> usize {
            self.0.1.lock().unwrap().hanging
        }

        fn fail(&self, id: u64, times: u32) {
            self.0.1.lock().unwrap().failures.insert(id, times);
        }

        /// The number of look-ups since the last call.
        fn looked_up(&self) -> u32 {
            std::mem::take(&mut self.0.1.lock().unwrap().looked_up)
        }
    }

    impl EntrySource for FakeServer {
        fn entry(&self, id: SampleId) -> Result<CatalogEntry, DatasetError> {
            let (fake, faults, released) = &*self.0;
            let mut now = faults.lock().unwrap();
            now.looked_up += 1;
            if let Some(times) = now.failures.get_mut(&id.0).filter(|times| **times > 0) {
                *times -= 1;
                // An I/O error, because there is no such file.
                return Catalog::open("/nowhere/at.foreread").map(|_| unreachable!());
            }
            now.hanging += 1;
            while now.stuck.contains(&id.0) {
                now = released.wait(now).unwrap();
            }
            now.hanging -= 1;
            Ok(CatalogEntry { object: fake.object(id), span: Span::Whole })
        }

        fn may_block(&self) -> bool {
            true
        }
    }

    fn ids(ids: impl IntoIterator<Item = u64>) -> Vec<SampleId> {
        ids.into_iter().map(SampleId).collect()
    }

    /// One `EIO` of a catalog on NFS ended the run at once.
    #[tokio::test(start_paused = true)]
    // semantics: SAMPLE-20
    async fn catalogs_io_error_is_repeated_for_the_sample_alone() {
        let server = FakeServer::new(FakeOrigin::uniform(10, 100));
        server.fail(3, 2);
        let places = Locator::new(server.clone()).locate_all(ids(0..10)).await;
        let paths: Vec<_> = places.into_iter().map(|place| place.unwrap().0.path).collect();
        let right: Vec<_> = (0..10).map(|id| server.0.0.object(SampleId(id)).path).collect();
        assert_eq!((paths, server.looked_up()), (right, 12));
    }

    #[tokio::test(start_paused = true)]
    // semantics: SAMPLE-20
    async fn catalog_failing_for_ever_ends_with_the_retry_policy() {
        let server = FakeServer::new(FakeOrigin::uniform(10, 100));
        server.fail(3, u32::MAX);
        let default = RetryPolicy::default();
        let patient = default.with_attempts(NonZeroU32::MAX).with_patience(Duration::from_secs(5));
        let waits = Duration::from_millis(100 + 200 + 400 + 800 + 1600);
        for (policy, attempts, waited) in [
            (default.with_attempts(NonZeroU32::MIN), 1, Duration::ZERO),
            (default.with_attempts(NonZeroU32::MIN.saturating_add(2)), 3, Duration::from_millis(300)),
            (patient, 6, waits),
        ] {
            let began = Instant::now();
            let places = Locator::new(server.clone()).with_retry(policy).locate_all(ids(2..5)).await;
            assert_eq!(places.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
            let error = places[1].as_ref().unwrap_err();
            assert_eq!(catalog_error(error).unwrap().kind(), DatasetErrorKind::Io);
            assert_eq!((server.looked_up(), began.elapsed()), (2 + attempts, waited));
        }
    }

    #[tokio::test]
    // semantics: FAIL-21
    async fn stuck_look_ups_take_four_threads_for_any_number_of_waiters() {
        let server = FakeServer::new(FakeOrigin::uniform(100, 100));
        server.hang(0..100);
        let locator = Locator::new(server.clone());
        // Dropped callers leave their threads to look-ups that hang.
        for _ in 0..3 {
            let waiting = join_all((0..20).map(|id| locator.locate_all(ids([id]))));
            let hang = async {
                while server.hanging() < THREADS {
                    tokio::task::yield_now().await
                }
            };
            tokio::select! {
                _ = waiting => panic!("the server hangs"),
                () = hang => {}
            }
        }
        assert_eq!((server.hanging(), server.looked_up()), (THREADS, THREADS as u32));
        server.release();
        assert!(
            join_all((0..20).map(|id| locator.locate_all(ids([id])))).await.iter().all(|one| one[0].is_ok())
        );
    }

    #[tokio::test]
    async fn panicking_catalog_fails_one_sample() {
        #[derive(Debug)]
        struct Panics(FakeOrigin);
        impl EntrySource for Panics {
            fn entry(&self, id: SampleId) -> Result<CatalogEntry, DatasetError> {
                assert!(id.0 != 1, "of a catalog");
                Ok(CatalogEntry { object: self.0.object(id), span: Span::Whole })
            }
            fn may_block(&self) -> bool {
                true
            }
        }
        let places = Locator::new(Panics(FakeOrigin::uniform(3, 1))).locate_all(ids(0..3)).await;
        assert!(places[0].is_ok() && places[2].is_ok());
        assert!(places[1].as_ref().unwrap_err().to_string().contains("of a catalog"));
    }
}
