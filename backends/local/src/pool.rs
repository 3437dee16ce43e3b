//! A bounded pool of plain threads that answers reads.
//!
//! Files are read by blocking calls, and a runtime's threads must not block. Each sample is read on one thread from
//! open to close, and jobs are taken from one first-in-first-out queue. A read that is queued wakes no thread: the end of
//! the burst does, once, or the first poll of a read whose burst has no end yet.
//!
//! # How many threads
//!
//! A cold disk or a file server wants 16 to 32 reads under way; the page cache wants no more threads than cores. The
//! reader says before it waits (`reader.rs`), so the pool counts the two apart: threads that compute are as many as
//! the machine has cores, threads that wait are as many as the configuration allows. A thread that is about to wait
//! first hands its turn on: to an idle thread, else to a new one. No time limit is guessed and no watcher runs. Threads
//! are started when they are needed and end after some seconds of idleness. A reader that always waits for a device
//! ([`BlockingRead::ALWAYS_WAITS`]) has as many turns as threads, and its threads never hand one on.
//!
//! # Waking the consumer
//!
//! A wake-up costs more than a tenth of a cached read, so a thread that goes on with the next job need not wake the
//! consumer for each. Answers are put where their futures find them at once; the *wake-up* is deferred, and paid before the
//! thread does anything that may take long: before it waits for a device, before a large sample, before it goes idle,
//! and after `WAKE_EVERY` answers or `WAKE_BYTES` at the latest. What is deferred is paid in one go, so a task that polls many
//! of the futures is woken once. No answer ever waits behind a slow read: at most behind 4 MiB from the page cache, some
//! 500 us.
//!
//! # Measured
//!
//! `benches/`, files of 100 KB, two cores, CPU with the consumer's: from the page cache 18-20 us a sample and
//! 9.3-10 us of wall clock; a plain loop on one thread takes 14-15 us of either, 16 if it holds on to as many samples;
//! two such loops at once 7.2 us of wall clock. A wake-up for each answer costs up to 4 us more where the consumer has
//! a core to itself, and nothing where it has not. From a cold disk 177 us of wall clock with one thread, 151 with two,
//! 88 with 32 (the disk's limit).
//!
//! All of it holds only while the allocator keeps freed memory: glibc, as it starts, gives 100 KB freed on another
//! thread back to the kernel time and again, and that alone costs up to 18 us more.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, TierError};

use crate::jobs::{
    Burst, CLOSED, DeferredWakes, JobQueue, QueuedRead, ReadJob, ReadWorkers, WakeQueue, lock,
};

/// What a pool's threads do with a request.
pub(crate) trait BlockingRead: fmt::Debug + Send + Sync + 'static {
    /// The tier's name in messages, and its threads'.
    const NAME: &'static str;
    const THREAD: &'static str;

    /// Whether every read waits for a device. Then there is no turn to hand on: each thread takes the next read as soon
    /// as it is back, and `about_to_wait` need not be called.
    const ALWAYS_WAITS: bool;

    /// What messages call the thing that is asked for.
    fn describe(request: &ReadRequest) -> String;

    /// Reads one sample; calls `about_to_wait` before the first system call that may wait for a device or a server.
    fn read(&self, request: &ReadRequest, about_to_wait: impl FnOnce()) -> Result<Bytes, TierError>;
}

/// A sample of at least this many bytes is no company for one that waits to be announced.
const LARGE_READ: u64 = 1 << 20;

/// How long a thread without work stays.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads, or whatever `read` does of it; a panic in it (in the memory that [`Buffers`](foreread_tier::Buffers) hands
/// out, say) is the request's answer and not a read that never ends.
pub(crate) fn guarded<R: BlockingRead, T>(
    request: &ReadRequest,
    read: impl FnOnce() -> Result<T, TierError>,
) -> Result<T, TierError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let error = TierError::new(ErrorKind::Other, R::NAME).with_object(R::describe(request));
        Err(error.with_detail("the read panicked"))
    })
}

/// The threads of one tier. Dropping it answers what is queued with [`ErrorKind::Closed`] and tells the threads to
/// end; it does not wait for them, because a read from a dead file server may never return.
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
    /// Threads that compute at once: the cores, where threads compute.
    cores: usize,
    /// Threads at once.
    bound: usize,
    burst: Burst,
    wakes: Arc<WakeQueue>,
    state: Mutex<PoolState>,
    wake: Condvar,
}

/// Every thread is in one of three states: computing (it has a turn), waiting for a device, or idle.
#[derive(Default)]
struct PoolState {
    queue: JobQueue,
    threads: usize,
    computing: usize,
    idle: usize,
    /// Turns that were given to idle threads which have not woken up yet; counted in `computing` already.
    turns: usize,
    closed: bool,
}

enum Recruit {
    No,
    Wake,
    Start,
}

impl PoolState {
    /// Gives a turn to another thread if there is work for it and a core. The caller wakes or starts the thread.
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

    /// Puts threads to work on what was queued.
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
    /// Puts one more thread to work, if that is of use.
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
            // While there is one thread, it works the queue off; without any, nobody ever would.
            if state.threads > 0 { JobQueue::default() } else { std::mem::take(&mut state.queue) }
        };
        tracing::warn!(%error, "no thread for reading files could be started");
        queue.refuse::<R>(ErrorKind::Transient, "no thread could be started; raise `ulimit -u`");
    }

    /// A thread's life.
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

    /// One read.
    fn read(&self, request: &ReadRequest, about_to_wait: impl FnOnce()) -> Result<Bytes, TierError> {
        guarded::<R, _>(request, || self.reader.read(request, about_to_wait))
    }

    /// The next job, or `None` when the thread is to end. `waited` says that the thread gave its turn away.
    fn take(&self, waited: bool, deferred: &mut DeferredWakes) -> Option<Arc<ReadJob>> {
        let mut state = lock(&self.state);
        if waited {
            state.computing += 1;
        }
        loop {
            // Back from waiting while others have all the cores: theirs is the queue.
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
