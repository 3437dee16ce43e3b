//! The queue between callers that read and the threads that execute reads.
//!
//! Each read is a [`ReadJob`], shared by its future and the thread that executes it. Storing an
//! answer and waking the future's task are separate steps. A wake-up costs more than a tenth of a
//! cached read, so threads defer it ([`DeferredWakes`]) until they have no more urgent work.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, TierError};

use crate::pool::BlockingRead;

/// The detail of reads that had not started.
pub(crate) const CLOSED: &str = "the tier was closed";

/// Limits of answers per wake-up, in number and bytes: half a millisecond of copying.
const MAX_DEFERRED_WAKES: usize = 64;
const MAX_DEFERRED_BYTES: u64 = 4 << 20;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code here panics while it holds a lock, and the state would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One read.
#[derive(Debug)]
pub(crate) struct ReadJob {
    request: Arc<ReadRequest>,
    /// The future was dropped. A read that has not started is skipped.
    dropped: AtomicBool,
    /// Reads that the same thread executes together with this one. They are in no queue.
    neighbours: OnceLock<Vec<Arc<ReadJob>>>,
    answer: Mutex<JobAnswer>,
    progress: ReadProgress,
}

/// The last step of a read that a thread executes. Only set in pools that watch for silent servers.
#[derive(Debug, Default)]
pub(crate) struct ReadProgress {
    /// When the kernel last answered, in milliseconds of the pool's clock.
    answered: AtomicU64,
    /// The current [`ReadStep`].
    step: AtomicU8,
}

/// The step that a read waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    Opening,
    Reading,
    Checking,
}

impl ReadProgress {
    /// Begins a step, because the kernel has answered the one before.
    pub(crate) fn begin(&self, step: ReadStep, now: Duration) {
        self.answered.store(now.as_millis() as u64, Ordering::Relaxed);
        self.step.store(step as u8, Ordering::Relaxed);
    }

    /// When the kernel last answered.
    pub(crate) fn answered(&self) -> Duration {
        Duration::from_millis(self.answered.load(Ordering::Relaxed))
    }

    pub(crate) fn step(&self) -> ReadStep {
        match self.step.load(Ordering::Relaxed) {
            0 => ReadStep::Opening,
            1 => ReadStep::Reading,
            _ => ReadStep::Checking,
        }
    }
}

#[derive(Debug)]
enum JobAnswer {
    /// Not answered yet, with the task to wake.
    Waiting(Option<Waker>),
    Done(Result<Bytes, TierError>),
    Taken,
}

impl ReadJob {
    pub(crate) fn new(request: Arc<ReadRequest>) -> Arc<Self> {
        let (dropped, answer) = (AtomicBool::new(false), Mutex::new(JobAnswer::Waiting(None)));
        let neighbours = OnceLock::new();
        Arc::new(Self { request, dropped, neighbours, answer, progress: ReadProgress::default() })
    }

    pub(crate) fn progress(&self) -> &ReadProgress {
        &self.progress
    }

    pub(crate) fn request(&self) -> &ReadRequest {
        &self.request
    }

    /// Whether the future was dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Makes `neighbours` a part of this read. It is called once, before the read is queued.
    pub(crate) fn set_neighbours(&self, neighbours: Vec<Arc<ReadJob>>) {
        let set = self.neighbours.set(neighbours);
        debug_assert!(set.is_ok(), "a read has been grouped before");
    }

    pub(crate) fn neighbours(&self) -> &[Arc<ReadJob>] {
        self.neighbours.get().map_or(&[], Vec::as_slice)
    }

    /// Whether the futures of this read and of its neighbours were dropped.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.is_dropped() && self.neighbours().iter().all(|job| job.is_dropped())
    }

    /// Cancels the read, as dropping its future does.
    pub(crate) fn cancel(&self) {
        self.dropped.store(true, Ordering::Relaxed);
    }

    /// Stores the answer for the future's next poll. Returns the waker. A later answer is dropped:
    /// that of a read which was given up, and whose thread the kernel has released since.
    fn put(&self, result: Result<Bytes, TierError>) -> Option<Waker> {
        let mut answer = lock(&self.answer);
        if !matches!(*answer, JobAnswer::Waiting(_)) {
            return None;
        }
        match std::mem::replace(&mut *answer, JobAnswer::Done(result)) {
            JobAnswer::Waiting(waker) => waker,
            JobAnswer::Done(_) | JobAnswer::Taken => None,
        }
    }

    /// Answers with an error, the neighbours too.
    pub(crate) fn refuse<R: BlockingRead>(&self, kind: ErrorKind, why: &str) {
        self.neighbours().iter().for_each(|job| job.refuse::<R>(kind, why));
        self.fail(TierError::new(kind, R::NAME).with_object(R::describe(&self.request)).with_detail(why));
    }

    /// Answers with `error` and wakes the future's task.
    pub(crate) fn fail(&self, error: TierError) {
        if let Some(waker) = self.put(Err(error)) {
            waker.wake();
        }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes, TierError>> {
        let mut answer = lock(&self.answer);
        match &mut *answer {
            JobAnswer::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            JobAnswer::Waiting(none) => *none = Some(cx.waker().clone()),
            JobAnswer::Done(_) | JobAnswer::Taken => {
                if let JobAnswer::Done(result) = std::mem::replace(&mut *answer, JobAnswer::Taken) {
                    return Poll::Ready(result);
                }
            }
        }
        Poll::Pending
    }
}

/// Waiting reads, first in, first out.
#[derive(Debug, Default)]
pub(crate) struct JobQueue(VecDeque<Arc<ReadJob>>);

impl From<Vec<Arc<ReadJob>>> for JobQueue {
    fn from(jobs: Vec<Arc<ReadJob>>) -> Self {
        Self(jobs.into())
    }
}

impl JobQueue {
    pub(crate) fn extend(&mut self, jobs: Vec<Arc<ReadJob>>) {
        self.0.extend(jobs);
    }

    pub(crate) fn next(&mut self) -> Option<Arc<ReadJob>> {
        self.0.pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Answers all remaining reads with an error.
    pub(crate) fn refuse<R: BlockingRead>(self, kind: ErrorKind, why: &str) {
        self.0.iter().for_each(|job| job.refuse::<R>(kind, why));
    }
}

/// Wake-ups of stored answers. The thread that has deferred them calls them one by one. The first
/// woken task calls the rest, because it may run in that thread's place and would otherwise find
/// one answer at a time. The end of a burst calls them too. Otherwise an answer would wait for a
/// threshold although its task is awake.
#[derive(Debug, Default)]
pub(crate) struct WakeQueue(Mutex<VecDeque<Waker>>);

impl WakeQueue {
    /// Calls all wake-ups.
    fn wake_all(&self) {
        loop {
            let Some(waker) = lock(&self.0).pop_front() else { return };
            waker.wake();
        }
    }
}

/// The wake-ups that one thread has deferred.
pub(crate) struct DeferredWakes {
    wakes: Arc<WakeQueue>,
    answers: usize,
    bytes: u64,
}

impl DeferredWakes {
    pub(crate) fn new(wakes: Arc<WakeQueue>) -> Self {
        Self { wakes, answers: 0, bytes: 0 }
    }

    pub(crate) fn has_any(&self) -> bool {
        self.answers > 0
    }

    /// Answers a job and defers its wake-up. Wakes all after [`MAX_DEFERRED_WAKES`] answers or
    /// [`MAX_DEFERRED_BYTES`].
    pub(crate) fn answer(&mut self, job: Arc<ReadJob>, result: Result<Bytes, TierError>) {
        if let Some(waker) = job.put(result) {
            lock(&self.wakes.0).push_back(waker);
        }
        self.answers += 1;
        self.bytes = self.bytes.saturating_add(job.request.len());
        if self.answers >= MAX_DEFERRED_WAKES || self.bytes >= MAX_DEFERRED_BYTES {
            self.wake_now();
        }
    }

    pub(crate) fn wake_now(&mut self) {
        if self.has_any() {
            (self.answers, self.bytes) = (0, 0);
            self.wakes.wake_all();
        }
    }
}

/// Reads that were requested since the last burst ended, in order. Queued one by one they would
/// compete with the threads for the queue's lock.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    count: AtomicUsize,
    jobs: Mutex<Vec<Arc<ReadJob>>>,
}

impl Burst {
    pub(crate) fn push(&self, job: Arc<ReadJob>) {
        let mut jobs = lock(&self.jobs);
        jobs.push(job);
        self.count.store(jobs.len(), Ordering::Release);
    }

    /// Takes all reads. Costs one load where there are none.
    pub(crate) fn take(&self) -> Vec<Arc<ReadJob>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut jobs = lock(&self.jobs);
        self.count.store(0, Ordering::Release);
        // The next burst may be as long. Growing the list would copy it several times.
        let next = Vec::with_capacity(jobs.len());
        std::mem::replace(&mut jobs, next)
    }
}

/// The threads that execute reads.
pub(crate) trait ReadWorkers: Send + Sync + 'static {
    /// Reads since the last burst ended.
    fn burst(&self) -> &Burst;

    /// The wake-ups that all threads have deferred.
    fn wakes(&self) -> &WakeQueue;

    /// Makes one read of reads that are cheaper together. Returns the reads to queue.
    fn group(&self, jobs: Vec<Arc<ReadJob>>) -> Vec<Arc<ReadJob>>;

    /// Queues the jobs and starts threads.
    fn begin(self: &Arc<Self>, jobs: Vec<Arc<ReadJob>>);

    /// Ends a burst and calls deferred wake-ups. Costs a load and a lock where there is nothing.
    fn submit(self: &Arc<Self>) {
        self.wakes().wake_all();
        let jobs = self.burst().take();
        if !jobs.is_empty() {
            self.begin(self.group(jobs));
        }
    }
}

/// The future of a read. Dropping it cancels a read that has not started.
pub(crate) struct QueuedRead<W> {
    job: Arc<ReadJob>,
    workers: Arc<W>,
    /// The first poll ends the burst.
    was_polled: bool,
}

impl<W: ReadWorkers> QueuedRead<W> {
    /// Adds a read to the burst.
    pub(crate) fn new(request: Arc<ReadRequest>, workers: &Arc<W>) -> Self {
        let job = ReadJob::new(request);
        workers.burst().push(Arc::clone(&job));
        Self { job, workers: Arc::clone(workers), was_polled: false }
    }
}

impl<W: ReadWorkers> Future for QueuedRead<W> {
    type Output = Result<Bytes, TierError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.was_polled, true) {
            self.workers.submit();
        }
        let answer = self.job.poll(cx);
        if answer.is_ready() {
            self.workers.wakes().wake_all();
        }
        answer
    }
}

impl<W> Drop for QueuedRead<W> {
    fn drop(&mut self) {
        self.job.cancel();
    }
}
