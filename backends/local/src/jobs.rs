//! Between those who ask for reads and the threads that read: what is queued, and what is answered.
//!
//! Each read is a [`ReadJob`], shared by the future that waits for it and the thread that carries it out. Putting an answer
//! there and waking the future's task are two things: a wake-up costs more than a tenth of a cached read, so threads *owe*
//! it ([`DeferredWakes`]) and wake_now when they know that nothing better comes at once.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, TierError};

use crate::pool::BlockingRead;

/// Why reads that had not begun are answered with an error.
pub(crate) const CLOSED: &str = "the tier was closed";

/// How many answers may share one wake-up, and how many bytes: half a millisecond of copying.
const WAKE_EVERY: usize = 64;
const WAKE_BYTES: u64 = 4 << 20;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while it holds a lock; the state is whole even if something did.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One read.
#[derive(Debug)]
pub(crate) struct ReadJob {
    request: Arc<ReadRequest>,
    /// Nobody will take the answer; what has not started need not.
    dropped: AtomicBool,
    answer: Mutex<JobAnswer>,
}

#[derive(Debug)]
enum JobAnswer {
    /// Not there; whom to wake.
    Waiting(Option<Waker>),
    Done(Result<Bytes, TierError>),
    Taken,
}

impl ReadJob {
    fn new(request: Arc<ReadRequest>) -> Arc<Self> {
        let (dropped, answer) = (AtomicBool::new(false), Mutex::new(JobAnswer::Waiting(None)));
        Arc::new(Self { request, dropped, answer })
    }

    pub(crate) fn request(&self) -> &ReadRequest {
        &self.request
    }

    /// Whether nobody will take the answer.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Puts the answer where the future finds it when it is polled; whom to wake.
    fn put(&self, result: Result<Bytes, TierError>) -> Option<Waker> {
        let mut answer = lock(&self.answer);
        match std::mem::replace(&mut *answer, JobAnswer::Done(result)) {
            JobAnswer::Waiting(waker) => waker,
            JobAnswer::Done(_) | JobAnswer::Taken => None,
        }
    }

    /// Answers it with an error.
    pub(crate) fn refuse<R: BlockingRead>(&self, kind: ErrorKind, why: &str) {
        let error = TierError::new(kind, R::NAME).with_object(R::describe(&self.request)).with_detail(why);
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

/// Reads that wait, first in, first out.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers all that is left with an error.
    pub(crate) fn refuse<R: BlockingRead>(self, kind: ErrorKind, why: &str) {
        self.0.iter().for_each(|job| job.refuse::<R>(kind, why));
    }
}

/// Wake-ups of answers that are there. The thread that owes them calls them one by one, and the task that the first of them
/// wakes calls the rest: it may run in that thread's place, and would find one answer at a time. So does whoever ends a burst,
/// or an answer would wait for a threshold although its task is awake.
#[derive(Debug, Default)]
pub(crate) struct WakeQueue(Mutex<VecDeque<Waker>>);

impl WakeQueue {
    /// Calls all.
    fn wake_all(&self) {
        loop {
            let Some(waker) = lock(&self.0).pop_front() else { return };
            waker.wake();
        }
    }
}

/// The wake-ups that a thread owes.
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

    /// Answers a job and owes its wake-up; pays all after [`WAKE_EVERY`] answers or [`WAKE_BYTES`].
    pub(crate) fn answer(&mut self, job: Arc<ReadJob>, result: Result<Bytes, TierError>) {
        if let Some(waker) = job.put(result) {
            lock(&self.wakes.0).push_back(waker);
        }
        self.answers += 1;
        self.bytes = self.bytes.saturating_add(job.request.len());
        if self.answers >= WAKE_EVERY || self.bytes >= WAKE_BYTES {
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

/// Reads that were asked for since the last burst ended, in the order of the calls: one by one they would compete with the
/// threads for the lock of their queue.
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

    /// All of them. A load of one number where there is none.
    pub(crate) fn take(&self) -> Vec<Arc<ReadJob>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut jobs = lock(&self.jobs);
        self.count.store(0, Ordering::Release);
        // The next burst may be as long: growing to that would copy it several times.
        let next = Vec::with_capacity(jobs.len());
        std::mem::replace(&mut jobs, next)
    }
}

/// Who carries reads out.
pub(crate) trait ReadWorkers: Send + Sync + 'static {
    /// What was asked for since the last burst ended.
    fn burst(&self) -> &Burst;

    /// What all threads owe.
    fn wakes(&self) -> &WakeQueue;

    /// Queues these, and puts threads to work on them.
    fn begin(self: &Arc<Self>, jobs: Vec<Arc<ReadJob>>);

    /// Ends a burst, and calls the wake-ups that are wakes. A load and a lock where there is nothing.
    fn submit(self: &Arc<Self>) {
        self.wakes().wake_all();
        let jobs = self.burst().take();
        if !jobs.is_empty() {
            self.begin(jobs);
        }
    }
}

/// A read as a future. Dropping it cancels what has not started.
pub(crate) struct QueuedRead<W> {
    job: Arc<ReadJob>,
    workers: Arc<W>,
    /// The first poll ends the burst.
    was_polled: bool,
}

impl<W: ReadWorkers> QueuedRead<W> {
    /// A read of the burst.
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
        self.job.dropped.store(true, Ordering::Relaxed);
    }
}
