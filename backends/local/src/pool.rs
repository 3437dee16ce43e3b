//! A bounded pool of plain threads that executes reads.
//!
//! Files are read by blocking calls, and a runtime's threads must not block. One thread reads a
//! sample from open to close. Jobs come from one first-in-first-out queue. Queueing a read wakes no
//! thread. The end of the burst does so once, or the first poll of a read before that.
//!
//! # How many threads
//!
//! A cold disk or a file server needs 16 to 32 concurrent reads. The page cache needs at most one
//! thread per core. The reader notifies the pool before it blocks (`file_reader.rs`), so the pool
//! counts the two apart. As many threads compute as there are cores. As many threads block as the
//! configuration allows. A thread that is about to block first passes its turn to an idle thread,
//! or else to a new one. It has no guessed timeout and no watcher thread. Threads start on demand
//! and end after some idle seconds. A reader that always blocks ([`BlockingRead::ALWAYS_WAITS`])
//! has as many turns as threads, and never passes one on.
//!
//! Large files fill any link with fewer reads. More would share it, and the sample that is needed
//! first would come as late as the last one. So [`PoolBounds`] also bounds the bytes that are being
//! read. The price: a file system that needs more than 8 streams of such files is not filled,
//! unless the user gives a number of reads.
//!
//! # Waking the consumer
//!
//! A wake-up costs more than a tenth of a cached read, so a thread with further jobs need not wake
//! the consumer for each. Answers are stored at once, where their futures find them. The *wake-up*
//! is deferred until the thread does something slow. That is before it blocks, before a large
//! sample, before it goes idle, and at the latest after `MAX_DEFERRED_WAKES` answers or
//! `MAX_DEFERRED_BYTES`. Deferred wake-ups are called together, so a task that polls many futures
//! is woken once. No answer waits for a slow read, at most for 4 MiB from the page cache, some 500
//! us.
//!
//! # Measured
//!
//! `benches/`, files of 100 KB, two cores, CPU with the consumer's. From the page cache: 18-20 us
//! per sample, and 9.3-10 us of wall clock. A plain loop on one thread takes 14-15 us of either, or
//! 16 if it keeps as many samples. Two such loops at once take 7.2 us of wall clock. A wake-up per
//! answer costs up to 4 us more where the consumer has its own core, and nothing otherwise. From a
//! cold disk: 177 us of wall clock with one thread, 151 with two, 88 with 32 (the disk's limit).
//!
//! This holds only while the allocator keeps freed memory. By default glibc returns 100 KB that
//! another thread has freed to the kernel time and again. That alone costs up to 18 us more.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, TierError};

use crate::descriptors::KeptFile;
use crate::jobs::{
    Burst, CLOSED, DeferredWakes, JobQueue, QueuedRead, ReadJob, ReadStep, ReadWorkers, WakeQueue, lock,
};
use crate::server_watch::ServerWatch;

/// How a pool's threads execute a request.
pub(crate) trait BlockingRead: fmt::Debug + Send + Sync + 'static {
    /// The tier's name in messages, and the name of its threads.
    const NAME: &'static str;
    const THREAD: &'static str;

    /// Whether every read waits for a device. Then no turn is passed on: each thread takes the next
    /// read after its last, and `about_to_wait` need not be called.
    const ALWAYS_WAITS: bool;

    /// The requested object for messages.
    fn describe(request: &ReadRequest) -> String;

    /// Reads one sample. Calls [`ReadSteps::wait`] before each system call that may block. The
    /// samples of neighbours are read with it and given to [`ReadSteps::answer`].
    fn read(
        &self,
        job: &Arc<ReadJob>,
        steps: &mut impl ReadSteps,
    ) -> (Result<Bytes, TierError>, Option<OpenFile>);

    /// As [`ReadWorkers::group`]. Most storage gains nothing.
    fn group(&self, jobs: Vec<Arc<ReadJob>>) -> Vec<Arc<ReadJob>> {
        jobs
    }
}

/// Follows the steps of a read.
pub(crate) trait ReadSteps {
    /// The thread is about to make a system call that may block.
    fn wait(&mut self, step: ReadStep);

    /// Answers a neighbour of the read.
    fn answer(&mut self, neighbour: Arc<ReadJob>, result: Result<Bytes, TierError>);
}

/// The file of a read, which is closed after the answer: closing asks a file server, too.
pub(crate) enum OpenFile {
    Own(OwnedFd),
    Kept(Arc<KeptFile>),
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Kept(kept) => kept.file.as_fd(),
        }
    }
}

/// From this length on, a read is preceded by the deferred wake-ups.
const LARGE_READ: u64 = 1 << 20;

/// The lifetime of an idle thread.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls `read` and turns a panic (for example in [`Buffers`](foreread_tier::Buffers)) into the
/// request's error.
pub(crate) fn guarded<R: BlockingRead, T>(
    request: &ReadRequest,
    read: impl FnOnce() -> Result<T, TierError>,
) -> Result<T, TierError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(panicked::<R>(request)))
}

fn panicked<R: BlockingRead>(request: &ReadRequest) -> TierError {
    let error = TierError::new(ErrorKind::Other, R::NAME).with_object(R::describe(request));
    error.with_detail("the read panicked")
}

/// How much a pool reads at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolBounds {
    /// The most threads.
    pub(crate) reads: usize,
    /// The most bytes of more than [`FEWEST_READS`] reads.
    pub(crate) bytes: u64,
}

/// So many reads may begin, however large they are.
const FEWEST_READS: usize = 8;

/// The threads of one tier. Dropping it answers queued reads with [`ErrorKind::Closed`] and ends
/// the threads. It does not wait for them, because a read from a dead file server may never return.
pub(crate) struct ReadPool<R: BlockingRead>(Arc<PoolShared<R>>);

impl<R: BlockingRead> fmt::Debug for ReadPool<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0.state);
        f.debug_struct("ReadPool")
            .field("threads", &state.threads)
            .field("computing", &state.computing)
            .field("queued", &state.queue.len())
            .finish_non_exhaustive()
    }
}

struct PoolShared<R> {
    reader: R,
    /// The tier's name.
    name: &'static str,
    /// The limit of computing threads: the number of cores, for readers that compute.
    cores: usize,
    bounds: PoolBounds,
    burst: Burst,
    wakes: Arc<WakeQueue>,
    state: Mutex<PoolState>,
    wake: Condvar,
    /// Wakes the thread that watches for silent servers.
    watch: Condvar,
    /// The start of the pool's clock, for pools that watch.
    started: Option<Instant>,
}

/// Every thread is in one of three states: computing (it has a turn), blocked, or idle.
struct PoolState {
    queue: ReadQueue,
    threads: usize,
    computing: usize,
    /// Reads that have begun and not ended, and their bytes.
    reads: usize,
    bytes: u64,
    idle: usize,
    /// Turns of idle threads that have not woken up yet. They are already counted in `computing`.
    turns: usize,
    closed: bool,
    /// Whether a thread watches for silent servers.
    is_watched: bool,
}

/// The waiting reads.
enum ReadQueue {
    /// First in, first out.
    Fifo(JobQueue),
    /// In the order of need, bounded by server.
    Watched(Box<ServerWatch>),
}

/// A read that a thread executes. `number` is that of the watch.
struct TakenRead {
    job: Arc<ReadJob>,
    number: Option<u64>,
}

/// A read of a thread that has ended.
struct EndedRead {
    /// That of the watch.
    number: Option<u64>,
    bytes: u64,
}

impl ReadQueue {
    fn extend(&mut self, jobs: Vec<Arc<ReadJob>>) {
        match self {
            Self::Fifo(queue) => queue.extend(jobs),
            Self::Watched(watch) => jobs.into_iter().for_each(|job| watch.push(job)),
        }
    }

    fn next(&mut self, started: Option<Instant>) -> Option<TakenRead> {
        match self {
            Self::Fifo(queue) => queue.next().map(|job| TakenRead { job, number: None }),
            Self::Watched(watch) => {
                let (number, job) = watch.next(elapsed(started))?;
                Some(TakenRead { job, number: Some(number) })
            }
        }
    }

    /// Reads that have begun, and whose servers are silent.
    fn stalled(&self, started: Option<Instant>) -> usize {
        match self {
            Self::Fifo(_) => 0,
            Self::Watched(watch) => watch.stalled(elapsed(started)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Fifo(queue) => queue.len(),
            Self::Watched(watch) => watch.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all reads that have not started.
    fn take(&mut self) -> JobQueue {
        match self {
            Self::Fifo(queue) => std::mem::take(queue),
            Self::Watched(watch) => watch.take_all().into(),
        }
    }
}

fn elapsed(started: Option<Instant>) -> Duration {
    started.map_or(Duration::ZERO, |started| started.elapsed())
}

enum Recruit {
    No,
    Wake,
    Start,
}

impl PoolState {
    /// Gives a turn to another thread if there is a job and a free core. The caller wakes or starts
    /// the thread.
    fn recruit(&mut self, cores: usize, bounds: PoolBounds, started: Option<Instant>) -> Recruit {
        if self.queue.is_empty() || self.computing >= cores || !self.may_begin(bounds, started) {
            return Recruit::No;
        }
        if self.idle > 0 {
            self.idle -= 1;
            self.turns += 1;
            self.computing += 1;
            return Recruit::Wake;
        }
        if self.threads < bounds.reads {
            self.threads += 1;
            self.computing += 1;
            return Recruit::Start;
        }
        Recruit::No
    }

    /// Whether one more read may begin.
    fn may_begin(&self, bounds: PoolBounds, started: Option<Instant>) -> bool {
        let few = |stalled| self.reads < FEWEST_READS + stalled;
        self.bytes < bounds.bytes || few(0) || few(self.queue.stalled(started))
    }

    /// The next read, if one may begin.
    fn begin(&mut self, bounds: PoolBounds, started: Option<Instant>) -> Option<TakenRead> {
        let taken = self.may_begin(bounds, started).then(|| self.queue.next(started)).flatten()?;
        self.reads += 1;
        self.bytes += counted(taken.job.request());
        Some(taken)
    }
}

/// The bytes of a read that count against the bound. A length that no file has is refused later,
/// and several of them must not overflow the sum.
fn counted(request: &ReadRequest) -> u64 {
    request.len().min(1 << 40)
}

impl<R: BlockingRead> ReadPool<R> {
    /// A pool with these bounds for the tier `name`. With a `patience` it watches for silent
    /// servers.
    pub(crate) fn new(reader: R, name: &'static str, bounds: PoolBounds, patience: Option<Duration>) -> Self {
        let bound = bounds.reads.max(1);
        let bounds = PoolBounds { reads: bound, ..bounds };
        let cores = match R::ALWAYS_WAITS {
            true => bound,
            false => std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(bound),
        };
        let queue = match patience {
            None => ReadQueue::Fifo(JobQueue::default()),
            Some(patience) => ReadQueue::Watched(Box::new(ServerWatch::new(name, patience, bound))),
        };
        let [threads, computing, reads, idle, turns] = [0; 5];
        let (bytes, closed, is_watched) = (0, false, false);
        let state = PoolState { queue, threads, computing, reads, bytes, idle, turns, closed, is_watched };
        let (burst, wakes, state, wake, watch) =
            (Burst::default(), Arc::default(), Mutex::new(state), Condvar::new(), Condvar::new());
        let started = patience.map(|_| Instant::now());
        Self(Arc::new(PoolShared { reader, name, cores, bounds, burst, wakes, state, wake, watch, started }))
    }

    pub(crate) fn reader(&self) -> &R {
        &self.0.reader
    }

    /// Queues a read.
    pub(crate) fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        Box::pin(QueuedRead::new(request, &self.0))
    }

    /// Starts threads for the queued reads.
    pub(crate) fn submit(&self) {
        self.0.submit();
    }
}

impl<R: BlockingRead> ReadWorkers for PoolShared<R> {
    fn burst(&self) -> &Burst {
        &self.burst
    }

    fn wakes(&self) -> &WakeQueue {
        &self.wakes
    }

    fn group(&self, jobs: Vec<Arc<ReadJob>>) -> Vec<Arc<ReadJob>> {
        self.reader.group(jobs)
    }

    fn begin(self: &Arc<Self>, jobs: Vec<Arc<ReadJob>>) {
        let count = jobs.len();
        {
            let mut state = lock(&self.state);
            if state.closed {
                drop(state);
                return JobQueue::from(jobs).refuse::<R>(ErrorKind::Closed, CLOSED);
            }
            state.queue.extend(jobs);
            if self.started.is_some() && !state.is_watched {
                state.is_watched = self.start_watching();
            }
        }
        for _ in 0..count.min(self.cores) {
            self.help();
        }
    }
}

impl<R: BlockingRead> Drop for ReadPool<R> {
    fn drop(&mut self) {
        let queue = {
            let mut state = lock(&self.0.state);
            state.closed = true;
            state.queue.take()
        };
        self.0.wake.notify_all();
        self.0.watch.notify_all();
        JobQueue::from(self.0.burst.take()).refuse::<R>(ErrorKind::Closed, CLOSED);
        queue.refuse::<R>(ErrorKind::Closed, CLOSED);
    }
}

impl<R: BlockingRead> PoolShared<R> {
    /// Wakes or starts one more thread, if that is useful.
    fn help(self: &Arc<Self>) {
        let help = lock(&self.state).recruit(self.cores, self.bounds, self.started);
        match help {
            Recruit::No => {}
            Recruit::Wake => self.wake.notify_one(),
            Recruit::Start => self.start(),
        }
    }

    fn start(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(R::THREAD.into()).spawn(move || shared.work());
        let Err(error) = thread else { return };
        let queue = {
            let mut state = lock(&self.state);
            state.threads -= 1;
            state.computing -= 1;
            // A remaining thread empties the queue. Without any, it would wait for ever.
            if state.threads > 0 { JobQueue::default() } else { state.queue.take() }
        };
        tracing::warn!(%error, "no thread for reading files could be started");
        queue.refuse::<R>(ErrorKind::Transient, "no thread could be started; raise `ulimit -u`");
    }

    /// The thread's main loop.
    fn work(self: Arc<Self>) {
        let mut deferred = DeferredWakes::new(Arc::clone(&self.wakes));
        let (mut waited, mut ended) = (false, None);
        while let Some(TakenRead { job, number }) = self.take(waited, ended, &mut deferred) {
            (waited, ended) = (false, Some(EndedRead { number, bytes: counted(job.request()) }));
            if job.is_unwanted() {
                continue;
            }
            if R::ALWAYS_WAITS || job.request().len() >= LARGE_READ {
                deferred.wake_now();
            }
            let mut steps = PoolSteps { pool: &self, job: &job, deferred: &mut deferred, waited: false };
            let read = catch_unwind(AssertUnwindSafe(|| self.reader.read(&job, &mut steps)));
            waited = steps.waited;
            let (result, file) = read.unwrap_or_else(|_| {
                job.neighbours().iter().for_each(|other| other.fail(panicked::<R>(other.request())));
                (Err(panicked::<R>(job.request())), None)
            });
            self.follow(&job, ReadStep::Checking);
            let result = result.map_err(|error| error.with_tier(self.name));
            deferred.answer(Arc::clone(&job), result);
            if self.started.is_some() && waited {
                // Closing the file may block.
                deferred.wake_now();
            }
            drop(file);
        }
    }

    /// Records that the kernel has answered, and the next step that the read waits for.
    fn follow(&self, job: &ReadJob, step: ReadStep) {
        if self.started.is_some() {
            job.progress().begin(step, elapsed(self.started));
        }
    }

    /// The next job, or `None` when the thread has to end. `waited` means that the thread has given
    /// up its turn. `ended` is its last read.
    fn take(
        self: &Arc<Self>,
        waited: bool,
        ended: Option<EndedRead>,
        deferred: &mut DeferredWakes,
    ) -> Option<TakenRead> {
        let mut state = lock(&self.state);
        if waited {
            state.computing += 1;
        }
        if let Some(EndedRead { bytes, .. }) = ended {
            state.reads -= 1;
            state.bytes -= bytes;
        }
        let number = ended.and_then(|ended| ended.number);
        if let (Some(number), ReadQueue::Watched(watch)) = (number, &mut state.queue)
            && let Some(recovered) = watch.end(number, elapsed(self.started))
        {
            drop(state);
            tracing::warn!("{recovered}");
            state = lock(&self.state);
        }
        loop {
            // Other threads have all turns, so the next jobs are theirs.
            if state.computing <= self.cores
                && let Some(job) = state.begin(self.bounds, self.started)
            {
                return Some(job);
            }
            if deferred.has_any() {
                drop(state);
                deferred.wake_now();
                state = lock(&self.state);
                if state.computing <= self.cores && !state.queue.is_empty() {
                    continue;
                }
            }
            state.computing -= 1;
            state.idle += 1;
            while state.turns == 0 {
                if state.closed {
                    state.threads -= 1;
                    return None;
                }
                let (back, timeout) =
                    self.wake.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
                state = back;
                if timeout.timed_out() && state.turns == 0 {
                    state.idle -= 1;
                    state.threads -= 1;
                    return None;
                }
            }
            state.turns -= 1;
        }
    }

    /// Starts the thread that watches for silent servers. `false` if it could not be started: then
    /// the next burst tries again.
    fn start_watching(self: &Arc<Self>) -> bool {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("foreread-watch".into()).spawn(move || shared.watch());
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread could be started that watches for silent file servers");
        }
        thread.is_ok()
    }

    /// Reports and ends silent reads. Ends after some idle time, or with the pool.
    fn watch(self: Arc<Self>) {
        let mut state = lock(&self.state);
        let mut idle = Duration::ZERO;
        loop {
            let now = elapsed(self.started);
            let ReadQueue::Watched(watch) = &mut state.queue else { return };
            let interval = watch.interval();
            idle = if watch.is_idle() { idle + interval } else { Duration::ZERO };
            let report = watch.check(now);
            if state.closed || idle >= IDLE_TIMEOUT {
                state.is_watched = false;
                return;
            }
            if !report.expired.is_empty() || !report.warnings.is_empty() {
                drop(state);
                for warning in report.warnings {
                    tracing::warn!("{warning}");
                }
                for (job, error) in report.expired {
                    job.fail(error);
                }
                state = lock(&self.state);
            }
            // Reads of other servers begin, if the ones in flight are stalled.
            drop(state);
            self.help();
            state = lock(&self.state);
            if state.closed {
                continue;
            }
            (state, _) = self.watch.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The steps of a read on one of the pool's threads.
struct PoolSteps<'a, R> {
    pool: &'a Arc<PoolShared<R>>,
    job: &'a ReadJob,
    deferred: &'a mut DeferredWakes,
    /// The thread has given up its turn.
    waited: bool,
}

impl<R: BlockingRead> ReadSteps for PoolSteps<'_, R> {
    fn wait(&mut self, step: ReadStep) {
        self.pool.follow(self.job, step);
        if std::mem::replace(&mut self.waited, true) {
            return;
        }
        self.deferred.wake_now();
        lock(&self.pool.state).computing -= 1;
        self.pool.help();
    }

    fn answer(&mut self, neighbour: Arc<ReadJob>, result: Result<Bytes, TierError>) {
        let result = result.map_err(|error| error.with_tier(self.pool.name));
        self.deferred.answer(neighbour, result);
    }
}

#[cfg(test)]
mod tests;
