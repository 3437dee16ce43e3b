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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, TierError};

use crate::jobs::{
    Burst, CLOSED, DeferredWakes, JobQueue, QueuedRead, ReadJob, ReadWorkers, WakeQueue, lock,
};

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

    /// Reads one sample. Calls `about_to_wait` before the first system call that may block.
    fn read(&self, request: &ReadRequest, about_to_wait: impl FnOnce()) -> Result<Bytes, TierError>;
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
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let error = TierError::new(ErrorKind::Other, R::NAME).with_object(R::describe(request));
        Err(error.with_detail("the read panicked"))
    })
}

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
    /// The limit of computing threads: the number of cores, for readers that compute.
    cores: usize,
    /// The limit of threads.
    bound: usize,
    burst: Burst,
    wakes: Arc<WakeQueue>,
    state: Mutex<PoolState>,
    wake: Condvar,
}

/// Every thread is in one of three states: computing (it has a turn), blocked, or idle.
#[derive(Default)]
struct PoolState {
    queue: JobQueue,
    threads: usize,
    computing: usize,
    idle: usize,
    /// Turns of idle threads that have not woken up yet. They are already counted in `computing`.
    turns: usize,
    closed: bool,
}

enum Recruit {
    No,
    Wake,
    Start,
}

impl PoolState {
    /// Gives a turn to another thread if there is a job and a free core. The caller wakes or starts
    /// the thread.
    fn recruit(&mut self, cores: usize, bound: usize) -> Recruit {
        if self.queue.is_empty() || self.computing >= cores {
            return Recruit::No;
        }
        if self.idle > 0 {
            self.idle -= 1;
            self.turns += 1;
            self.computing += 1;
            return Recruit::Wake;
        }
        if self.threads < bound {
            self.threads += 1;
            self.computing += 1;
            return Recruit::Start;
        }
        Recruit::No
    }
}

impl<R: BlockingRead> ReadPool<R> {
    pub(crate) fn new(reader: R, bound: usize) -> Self {
        let bound = bound.max(1);
        let cores = match R::ALWAYS_WAITS {
            true => bound,
            false => std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(bound),
        };
        let (burst, wakes) = (Burst::default(), Arc::default());
        let (state, wake) = (Mutex::default(), Condvar::new());
        Self(Arc::new(PoolShared { reader, cores, bound, burst, wakes, state, wake }))
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

    fn begin(self: &Arc<Self>, jobs: Vec<Arc<ReadJob>>) {
        let count = jobs.len();
        {
            let mut state = lock(&self.state);
            if state.closed {
                drop(state);
                return JobQueue::from(jobs).refuse::<R>(ErrorKind::Closed, CLOSED);
            }
            state.queue.extend(jobs);
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
            std::mem::take(&mut state.queue)
        };
        self.0.wake.notify_all();
        JobQueue::from(self.0.burst.take()).refuse::<R>(ErrorKind::Closed, CLOSED);
        queue.refuse::<R>(ErrorKind::Closed, CLOSED);
    }
}

impl<R: BlockingRead> PoolShared<R> {
    /// Wakes or starts one more thread, if that is useful.
    fn help(self: &Arc<Self>) {
        let help = lock(&self.state).recruit(self.cores, self.bound);
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
            if state.threads > 0 { JobQueue::default() } else { std::mem::take(&mut state.queue) }
        };
        tracing::warn!(%error, "no thread for reading files could be started");
        queue.refuse::<R>(ErrorKind::Transient, "no thread could be started; raise `ulimit -u`");
    }

    /// The thread's main loop.
    fn work(self: Arc<Self>) {
        let mut deferred = DeferredWakes::new(Arc::clone(&self.wakes));
        let mut waited = false;
        while let Some(job) = self.take(waited, &mut deferred) {
            waited = false;
            if job.is_dropped() {
                continue;
            }
            let request = job.request();
            if R::ALWAYS_WAITS || request.len() >= LARGE_READ {
                deferred.wake_now();
            }
            let result = self.read(request, || {
                deferred.wake_now();
                waited = true;
                lock(&self.state).computing -= 1;
                self.help();
            });
            deferred.answer(job, result);
        }
    }

    /// Executes one read.
    fn read(&self, request: &ReadRequest, about_to_wait: impl FnOnce()) -> Result<Bytes, TierError> {
        guarded::<R, _>(request, || self.reader.read(request, about_to_wait))
    }

    /// The next job, or `None` when the thread has to end. `waited` means that the thread has given
    /// up its turn.
    fn take(&self, waited: bool, deferred: &mut DeferredWakes) -> Option<Arc<ReadJob>> {
        let mut state = lock(&self.state);
        if waited {
            state.computing += 1;
        }
        loop {
            // Other threads have all turns, so the next jobs are theirs.
            if state.computing <= self.cores
                && let Some(job) = state.queue.next()
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
}
