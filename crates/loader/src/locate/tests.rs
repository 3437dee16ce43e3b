//! Look-ups in a catalog on a file server that hangs and fails, which other tests use as well.

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
    /// Look-ups so far, and the look-ups that hang now.
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
    assert!(join_all((0..20).map(|id| locator.locate_all(ids([id])))).await.iter().all(|one| one[0].is_ok()));
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
