//! The caller's executor: blocking and async calls end on every kind of thread, or are refused at
//! once.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use async_trait::async_trait;
use foreread::dataset::IndexOptions;
use foreread::{Batch, Builder, Error, ErrorKind, LoadErrorKind, Loader, Memory, Registry, Source};
use foreread_tier::{
    Backend, Object, OpenContext, OpenOptions, OriginTier, ReadFuture, ReadRequest, Tier, TierError,
    TierProfile,
};
use foreread_tier_testing::{FakeOrigin, NEVER};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::runtime::{Builder as Tokio, Handle, Runtime};

const SAMPLES: u64 = 60;
const BATCHES: usize = 10;

/// Runs `work` on a separate thread, so that a call that never returns fails the test.
#[track_caller]
pub fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Without a receiver the test has already failed.
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(NEVER) {
        Ok(done) => done,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it never ends"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("it panicked"),
    }
}

/// The kinds of tokio runtime. The first has the fewest possible threads.
fn runtimes() -> [Runtime; 3] {
    let several = |threads| Tokio::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    [several(1), several(4), Tokio::new_current_thread().enable_all().build().unwrap()]
}

/// A run over a store that needs tokio's timer for every answer.
fn builder() -> Builder {
    let origin = FakeOrigin::uniform(SAMPLES, 500).with_latency(Duration::from_micros(100));
    let fakes = crate::rig::Fakes::default().with("fake://train", Arc::new(origin));
    let builder = Loader::builder("fake://train").registry(fakes.registry());
    builder.batch_size(SAMPLES / BATCHES as u64).epochs(1).memory(Memory::Bytes(1 << 20))
}

/// The same with a disk tier in `directory`, which is flushed at the end.
fn cached(directory: &tempfile::TempDir) -> Builder {
    builder().memory(Memory::Bytes(0)).epochs(2).disk(directory.path().join("cache"), 1 << 20)
}

/// Takes all batches as a stream.
async fn train(loader: &mut Loader) -> usize {
    let mut batches = 0;
    while let Some(batch) = loader.next().await {
        let _: Batch = batch.unwrap();
        batches += 1;
    }
    batches
}

#[test]
// semantics: FAIL-18
fn close_in_a_spawned_task_ends() {
    for runtime in runtimes() {
        let written = ends(move || {
            let work = runtime.spawn(async {
                let directory = tempfile::tempdir().unwrap();
                let mut loader = cached(&directory).start_async().await.unwrap();
                assert_eq!(train(&mut loader).await, 2 * BATCHES);
                loader.close().unwrap().disk.unwrap().written
            });
            runtime.block_on(work).unwrap()
        });
        assert_eq!(written, SAMPLES);
    }
}

#[test]
// semantics: FAIL-18
fn start_on_a_runtimes_thread_ends() {
    for runtime in runtimes() {
        let batches = ends(move || {
            let work = runtime.spawn(async {
                assert_eq!(builder().index(IndexOptions::default(), |_| ()).unwrap().len(), SAMPLES);
                let loader = builder().start().unwrap();
                let batches = loader.batches().map(Result::unwrap).count();
                loader.leave(Duration::MAX).unwrap();
                loader.close().unwrap();
                batches
            });
            runtime.block_on(work).unwrap()
        });
        assert_eq!(batches, BATCHES);
    }
}

#[test]
// semantics: FAIL-18
fn source_on_a_runtimes_thread_ends() {
    for runtime in runtimes() {
        ends(move || {
            runtime.block_on(async {
                let source = builder().source().unwrap();
                for _ in 0..12 {
                    source.announce(vec![(0..10).collect()], false).unwrap();
                    take(&source, 10);
                }
                source.flush().unwrap();
            });
        });
    }
}

/// Requests the first samples and waits for them without a timeout. Takes all of `ids` by the async
/// calls.
async fn stream(source: &Source, ids: &[u64]) {
    source.announce_async(vec![(0..10).collect()], false).await.unwrap();
    let came: Vec<_> =
        source.request_async(ids).map(|(at, sample)| (at, sample.unwrap().len())).collect().await;
    let at: std::collections::BTreeSet<_> = came.iter().map(|(at, _)| *at).collect();
    assert_eq!((came.len(), at.len()), (ids.len(), ids.len()));
    assert!(came.iter().all(|(_, bytes)| *bytes == 500));
}

#[test]
// semantics: FAIL-18
fn async_source_ends_on_every_executor_and_on_the_given_runtime() {
    let ids: Vec<u64> = (0..20).rev().collect();
    for runtime in runtimes() {
        let ids = ids.clone();
        ends(move || {
            let given = builder().runtime(runtime.handle().clone());
            for builder in [builder(), given] {
                runtime.block_on(async {
                    let source = builder.source_async().await.unwrap();
                    stream(&source, &ids).await;
                    source.flush_async().await.unwrap();
                    // A stream that is dropped early does not affect the others.
                    assert!(source.request_async(&ids).next().await.is_some());
                    stream(&source, &ids).await;
                });
            }
        });
    }
    ends(move || smol::block_on(async { stream(&builder().source_async().await.unwrap(), &ids).await }));
}

fn take(source: &Source, samples: u64) {
    let mut requested = source.request(&(0..samples).collect::<Vec<_>>());
    assert!(requested.wait(Duration::MAX).is_some());
    assert_eq!(requested.size_hint(), (samples as usize - 1, Some(samples as usize - 1)));
    assert!(requested.by_ref().all(|(_, sample)| sample.unwrap().len() == 500));
    assert_eq!((requested.remaining(), requested.next().map(|(at, _)| at)), (0, None));
}

#[test]
// semantics: FAIL-18
fn async_calls_need_no_tokio_of_the_caller() {
    for asynchronous in [true, false] {
        let written = ends(move || {
            let directory = tempfile::tempdir().unwrap();
            smol::block_on(async {
                let work = smol::spawn({
                    let builder = cached(&directory);
                    async move {
                        let mut loader = builder.start_async().await.unwrap();
                        assert_eq!(train(&mut loader).await, 2 * BATCHES);
                        assert!(loader.leave_async(Duration::MAX).await.unwrap().is_none());
                        let report = if asynchronous { loader.close_async().await } else { loader.close() };
                        report.unwrap().disk.unwrap().written
                    }
                });
                work.await
            })
        });
        assert_eq!(written, SAMPLES);
    }
}

#[test]
fn batches_are_taken_under_any_executor() {
    let batches = ends(|| {
        smol::block_on(async {
            let loader = builder().start_async().await.unwrap();
            loader.batches().map(Result::unwrap).count()
        })
    });
    assert_eq!(batches, BATCHES);
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) {
    let error = result.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("would block the runtime"), "{error}");
}

#[test]
// semantics: FAIL-18
fn given_runtime_refuses_blocking_calls_on_its_threads() {
    for runtime in runtimes() {
        ends(move || {
            let work = runtime.spawn(async {
                let given = || builder().runtime(Handle::current());
                refused(given().prepare());
                refused(given().start());
                refused(given().source());
                refused(given().index(IndexOptions::default(), |_| ()));
                let mut loader = given().prepare_async().await.unwrap().start();
                let blocking = |error: foreread::LoadError| assert_eq!(error.kind(), LoadErrorKind::Blocking);
                blocking(loader.next_timeout(Duration::MAX).unwrap_err());
                let mut batches = loader.batches();
                blocking(batches.next().unwrap().unwrap_err());
                assert!(batches.next().is_none());
                // The run continues for calls that do not block.
                assert_eq!(train(&mut loader).await, BATCHES);
                loader.close_async().await.unwrap();
            });
            runtime.block_on(work).unwrap();
        });
    }
}

#[test]
// semantics: FAIL-18
fn given_runtime_refuses_a_close_that_waits_for_the_disk() {
    for runtime in runtimes() {
        ends(move || {
            let work = runtime.spawn(async {
                let directory = tempfile::tempdir().unwrap();
                let given = || cached(&directory).runtime(Handle::current());
                let mut loader = given().start_async().await.unwrap();
                assert_eq!(train(&mut loader).await, 2 * BATCHES);
                refused(loader.close());
            });
            runtime.block_on(work).unwrap();
        });
    }
}

#[test]
// semantics: FAIL-18
fn both_closes_report_a_runtime_that_was_shut_down() {
    for is_async in [true, false] {
        ends(move || {
            let [runtime, ..] = runtimes();
            let directory = tempfile::tempdir().unwrap();
            let loader = cached(&directory).runtime(runtime.handle().clone()).start().unwrap();
            runtime.shutdown_background();
            let closed = if is_async { smol::block_on(loader.close_async()) } else { loader.close() };
            assert_eq!(closed.unwrap_err().to_string(), "the runtime was shut down");
        });
    }
}

#[test]
// semantics: FAIL-18
fn given_runtime_refuses_a_source_that_waits() {
    ends(|| {
        let [_, runtime, _] = runtimes();
        let directory = tempfile::tempdir().unwrap();
        let source = cached(&directory).runtime(runtime.handle().clone()).source().unwrap();
        take(&source, 10);
        let there = source.clone();
        let work = runtime.spawn(async move {
            refused(there.announce(vec![vec![0]], false));
            refused(there.flush());
            let mut requested = there.request(&[3, 5]);
            for at in 0..2 {
                let (found, error) = requested.wait(Duration::MAX).unwrap();
                let error = error.unwrap_err().to_string();
                assert!(found == at && error.contains("leave out `runtime(..)`"), "{error}");
            }
            assert!(requested.wait(Duration::MAX).is_none());
        });
        runtime.block_on(work).unwrap();
        source.flush().unwrap();
    });
}

/// A faulty backend: the URL names the call that panics.
#[derive(Debug)]
struct Broken;

/// A store with one call that panics.
#[derive(Debug)]
struct BrokenStore {
    inner: FakeOrigin,
    at: String,
}

impl BrokenStore {
    fn at(&self, call: &str) {
        assert!(self.at != call, "{call} was not thought of");
    }
}

#[async_trait]
impl Backend for Broken {
    fn schemes(&self) -> &[&str] {
        &["broken"]
    }

    async fn open(
        &self,
        url: &str,
        _: &OpenOptions,
        _: &OpenContext,
    ) -> Result<Arc<dyn OriginTier>, TierError> {
        let at = url.trim_start_matches("broken://").to_owned();
        let store = BrokenStore { inner: FakeOrigin::uniform(SAMPLES, 500), at };
        store.at("open");
        Ok(Arc::new(store))
    }
}

impl Tier for BrokenStore {
    fn name(&self) -> &str {
        "broken"
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.at("read");
        let at = self.at.clone();
        let answer = self.inner.read(request);
        answer.inspect(move |_| assert!(at != "answer", "answer was not thought of")).boxed()
    }

    fn submit(&self) {
        self.inner.submit();
    }
}

impl OriginTier for BrokenStore {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.at("list");
        let at = self.at.clone();
        let listed = self.inner.list(prefix, after);
        listed.inspect(move |_| assert!(at != "page", "page was not thought of")).boxed()
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.inner.stat(path)
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

/// A run over a backend that panics in the call `at`.
pub fn broken(at: &str) -> Builder {
    let registry = Registry::empty().register(Broken);
    Loader::builder(format!("broken://{at}")).epochs(1).batch_size(6).registry(registry)
}

#[test]
// semantics: FAIL-19
fn panic_in_the_callers_code_is_reported() {
    let opened = smol::block_on(broken("open").start_async()).unwrap_err();
    let progress = builder().prepare_with(|_| panic!("no place to show it")).unwrap_err();
    let mut errors = vec![(opened, "open was not thought of"), (progress, "no place to show it")];
    for (at, words) in
        [("open", "open was not"), ("list", "list was not thought of"), ("page", "page was not thought of")]
    {
        errors.push((broken(at).start().unwrap_err(), words));
    }
    for (error, words) in errors {
        assert_eq!(error.kind(), ErrorKind::Panic, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Guards against this fault: a request for a sample by its id never ended.
#[test]
// semantics: FAIL-19
fn panicking_read_is_reported_as_a_panic() {
    for at in ["read", "answer"] {
        let words = format!("the tier panicked: {at} was not thought of");
        let error = ends(move || broken(at).start().unwrap().batches().next().unwrap().unwrap_err());
        assert!(error.to_string().contains(&words), "{error}");
        let requested = ends(move || {
            let source = broken(at).source().unwrap();
            let mut requested = source.request(&[3, 4]);
            [(); 2].map(|()| requested.wait(Duration::MAX).unwrap().1.unwrap_err().to_string())
        });
        assert!(requested.iter().all(|error| error.contains(&words)), "{requested:?}");
    }
}

#[test]
fn unusable_disk_directory_is_not_a_dataset_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let error = builder().disk(file.join("cache"), 1 << 20).start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disk, "{error}");
}
