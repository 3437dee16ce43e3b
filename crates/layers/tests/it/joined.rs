//! Joined reads of several tasks, and their attempts.
//!
//! All tasks that read the tier share a burst. A task that submits it begins the reads of the
//! others as well.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use foreread_layers::{Limit, MergePolicy, Stack};
use foreread_tier::{
    ErrorKind, Object, OriginTier, ReadFuture, ReadRequest, Span, Tier, TierError, TierProfile,
};
use foreread_tier_testing::{FailingTier, FakeOrigin, Fault, NEVER, ReadAll, When, until};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tokio::runtime::Handle;
use tokio::time::Instant;

const SHARD: u64 = 1_000_000;

fn range(origin: &FakeOrigin, id: u64, shard: u64, start: u64, length: u64) -> ReadRequest {
    let key = SampleKey::new(DatasetId(0), SampleId(id));
    let object: Object = origin.object(SampleId(shard));
    ReadRequest::new(key, object, Span::Range(start..start + length), Tick(id))
}

fn places(count: usize) -> Limit {
    Limit::new(std::num::NonZeroUsize::new(count).unwrap())
}

/// The first call of `read` takes until it is released, like a call of a descheduled thread.
#[derive(Debug)]
struct Slow {
    inner: FakeOrigin,
    is_first: AtomicBool,
    reads: AtomicU64,
    inside: Mutex<mpsc::Sender<()>>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl Tier for Slow {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> &TierProfile {
        self.inner.profile()
    }

    fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.is_first.swap(false, Ordering::SeqCst) {
            self.inside.lock().unwrap().send(()).unwrap();
            self.release.lock().unwrap().recv().unwrap();
        }
        self.inner.read(request)
    }

    fn submit(&self) {}
}

impl OriginTier for Slow {
    fn list(&self, prefix: &str, after: Option<&str>) -> BoxStream<'static, Result<Object, TierError>> {
        self.inner.list(prefix, after)
    }

    fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
        self.inner.stat(path)
    }

    fn place(&self) -> &str {
        self.inner.place()
    }

    fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<foreread_tier::LayoutsFuture> {
        None
    }
}

/// It waited for a slot that its separate read held, and no task polled that read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_submitted_by_another_task_is_answered() {
    let ((inside, is_inside), (released, release)) = (mpsc::channel(), mpsc::channel());
    let origin = FakeOrigin::uniform(3, SHARD);
    let slow = Arc::new(Slow {
        inner: origin.clone(),
        is_first: true.into(),
        reads: AtomicU64::new(0),
        inside: Mutex::new(inside),
        release: Mutex::new(release),
    });
    let limit = places(1);
    let stack = Stack::bare().with_merge(Some(MergePolicy::default())).with_limit(Some(limit.clone()));
    let tier = stack.wrap(Arc::clone(&slow) as Arc<dyn OriginTier>);
    let read = tier.read(Arc::new(range(&origin, 0, 0, 0, 1000)));
    let other = Arc::clone(&tier);
    let other = std::thread::spawn(move || other.submit());
    is_inside.recv().unwrap();
    let (task, its_task) = mpsc::channel();
    let runtime = Handle::current();
    let reader = std::thread::spawn(move || {
        task.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        runtime.block_on(async { tokio::time::timeout(NEVER, read).await })
    });
    let stat = Path::new("/proc").join(its_task.recv().unwrap()).join("stat");
    until("the reader waits", || std::fs::read_to_string(&stat).unwrap().contains(") S "));
    released.send(()).unwrap();
    let answer = reader.join().unwrap();
    let (taken, waiting) = (limit.taken(), limit.waiting());
    other.join().unwrap();
    let answer = answer.unwrap_or_else(|_| panic!("no answer; {taken} place taken, {waiting} waiting"));
    assert_eq!(answer.unwrap(), origin.expected(SampleId(0)).slice(..1000));
    assert_eq!(slow.reads.load(Ordering::SeqCst), 1, "one sample is one request");
}

async fn together(tier: Arc<dyn OriginTier>, origin: &FakeOrigin, tasks: u64, rounds: u64, reads: u64) {
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (tier, origin) = (Arc::clone(&tier), origin.clone());
            tokio::spawn(async move {
                for round in 0..rounds {
                    let batch = (0..reads).map(|at| range(&origin, at, (task + round) % 3, at * 10_000, 100));
                    let answers: Vec<_> = tier.read_all(batch.collect()).collect().await;
                    assert!(answers.len() as u64 == reads && answers.iter().all(|one| one.result.is_ok()));
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(NEVER, task).await.expect("it hangs").unwrap();
    }
}

/// Plain tasks that read at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
// semantics: FAIL-13
async fn joined_read_of_several_tasks_is_one_request() {
    let origin = FakeOrigin::uniform(3, SHARD);
    let counting = Arc::new(FailingTier::new(Arc::new(origin.clone())));
    // Too short to join anything.
    let policy = MergePolicy::default().with_bounds(1, 0.0);
    let stack = Stack::bare().with_merge(Some(policy));
    together(stack.wrap(Arc::clone(&counting) as Arc<dyn OriginTier>), &origin, 8, 200, 64).await;
    let (tally, meter) = (counting.counts().tally(), stack.meter.read());
    assert_eq!((tally.requests, tally.cancelled), (8 * 200 * 64, 0), "{meter:?}");
}

fn stack() -> Stack {
    Stack::new(1).with_merge(Some(MergePolicy::default().with_given(Duration::from_millis(20), 50_000_000)))
}

/// The time until a failing origin is an error, and the number of requests for each range.
async fn until_error(parts: u64, fault: Fault) -> (Duration, u64, String) {
    let origin = FakeOrigin::uniform(1, 1_000_000);
    let failing = FailingTier::new(Arc::new(origin.clone())).on(When::Always, fault);
    let stack = stack();
    let tier = stack.wrap(Arc::new(failing));
    let began = Instant::now();
    let answers: Vec<_> =
        tier.read_all((0..parts).map(|at| range(&origin, at, 0, at * 5000, 5000)).collect()).collect().await;
    let error = answers[0].result.as_ref().unwrap_err().to_string();
    assert!(answers.iter().all(|answer| answer.result.is_err()));
    (began.elapsed(), stack.meter.read().requests, error)
}

/// A joined read had three attempts and two minutes, and then each of its parts eight and two
/// minutes more.
#[tokio::test(start_paused = true)]
// semantics: FAIL-4
async fn joined_read_has_the_usual_attempts_and_patience() {
    let (_, requests, _) = until_error(2, Fault::Error(ErrorKind::Transient)).await;
    let (alone, ..) = until_error(1, Fault::Never).await;
    let (joined, _, error) = until_error(2, Fault::Never).await;
    assert!(requests <= 3 + 2 * 5, "{requests} requests: 3 of both, and 5 of each would be eight");
    assert!(joined <= alone + Duration::from_secs(31), "{joined:?} instead of {alone:?}: {error}");
}

/// It hung in two of ten runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_tasks_share_one_slot() {
    for _ in 0..3 {
        let origin = FakeOrigin::uniform(3, SHARD);
        let limit = places(1);
        let policy = MergePolicy::default().with_bounds(1, 0.0);
        let stack = Stack::bare().with_merge(Some(policy)).with_limit(Some(limit.clone()));
        together(stack.wrap(Arc::new(origin.clone())), &origin, 8, 100, 64).await;
        assert_eq!((limit.taken(), limit.waiting()), (0, 0));
    }
}
