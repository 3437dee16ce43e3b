//! Reading by `io_uring`: one or two threads with many reads in flight.
//!
//! A thread takes requests from the tier's queue while its ring has space, and sleeps in the kernel
//! until some have completed. Then it first submits more requests, so that the device stays busy.
//! It checks the completed reads, stores their results and wakes each consumer once.
//!
//! # Batches of completions
//!
//! A device completes a read of 100 KB every 20 to 100 us. Waking this thread and the consumer for
//! each costs as much as checking it. With eight or more reads in flight the thread waits for a
//! quarter of them, and at most for [`BATCH_DELAY`]. A completed read is delayed by at most a
//! quarter of its time or that delay, and the device keeps three quarters of its queue. If none has
//! completed by then, the device is slow, and the thread waits for one alone. It never polls. A
//! device that never answers costs a sleeping thread.
//!
//! # Failures
//!
//! A ring that cannot be created is an error at opening. The thread itself repeats a read that the
//! kernel refuses in a ring or with `O_DIRECT`. It also opens segments that another process has
//! added. Completed reads wait meanwhile.
//!
//! When the tier is dropped, queued reads end as closed. No caller waits for the thread: it ends
//! when the kernel has completed its reads. On a dead device that is never.

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use foreread_tier::{ErrorKind, ReadFuture, ReadRequest};
use rustix::io::Errno;

use super::record_reader::{PendingRecords, PreparedRead, RecordReader};
use super::uring::{ReadRing, RingRead, RingWaker};
use crate::jobs::{self, Burst, CLOSED, DeferredWakes, JobQueue, QueuedRead, ReadWorkers, WakeQueue, lock};
use crate::pool::BlockingRead;

/// How long a completed read waits for others to share its wake-ups.
const BATCH_DELAY: Duration = Duration::from_millis(1);

/// The maximum depth of a ring, in reads.
const MAX_DEPTH: usize = 4096;

/// Two threads are used from this number of cores, or above this number of reads. One thread checks
/// some 5 GB/s. Fewer cores cannot spare more, and fewer reads do not get more from a device.
const TWO_THREAD_CORES: usize = 8;
const ONE_THREAD_READS: usize = 64;

/// The delay before the next system call after the kernel has refused one.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The rings of one tier. Dropping them ends queued reads with [`ErrorKind::Closed`] and does not
/// wait.
pub(super) struct RingReaders(Arc<RingShared>);

struct RingShared {
    reader: RecordReader,
    burst: Burst,
    wakes: Arc<WakeQueue>,
    state: Mutex<RingState>,
}

#[derive(Default)]
struct RingState {
    queue: JobQueue,
    closed: bool,
    /// By thread: its waker, and whether it sleeps with a free slot.
    threads: Vec<(RingWaker, bool)>,
}

impl RingReaders {
    /// Creates the rings for `parallelism` concurrent reads in all, and starts their threads.
    ///
    /// # Errors
    /// The kernel's, if it refuses a ring.
    pub(super) fn new(reader: RecordReader, parallelism: usize) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if cores < TWO_THREAD_CORES && parallelism <= ONE_THREAD_READS { 1 } else { 2 };
        let depth = parallelism.div_ceil(threads).clamp(1, MAX_DEPTH);
        let rings = Self(Arc::new(RingShared {
            reader,
            burst: Burst::default(),
            wakes: Arc::default(),
            state: Mutex::default(),
        }));
        for number in 0..threads {
            let shared = Arc::clone(&rings.0);
            let (say, made) = mpsc::channel();
            // A ring belongs to the thread that creates it.
            std::thread::Builder::new().name("foreread-ring".into()).spawn(move || {
                match ReadRing::new(depth) {
                    Ok(ring) => {
                        lock(&shared.state).threads.push((ring.waker(), false));
                        let _ = say.send(Ok(())); // the caller waits for it
                        let deferred = DeferredWakes::new(Arc::clone(&shared.wakes));
                        RingWorker { shared, number, ring, deferred }.run();
                    }
                    Err(error) => drop(say.send(Err(error))),
                }
            })?;
            made.recv().unwrap_or_else(|_| Err(io::Error::other("its thread has ended")))?;
        }
        Ok(rings)
    }

    /// Queues a read.
    pub(super) fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
        Box::pin(QueuedRead::new(request, &self.0))
    }

    /// Ends a burst and wakes one sleeping thread.
    pub(super) fn submit(&self) {
        self.0.submit();
    }
}

impl ReadWorkers for RingShared {
    fn burst(&self) -> &Burst {
        &self.burst
    }

    fn wakes(&self) -> &WakeQueue {
        &self.wakes
    }

    fn group(&self, jobs: Vec<Arc<jobs::ReadJob>>) -> Vec<Arc<jobs::ReadJob>> {
        self.reader.group(jobs)
    }

    fn begin(self: &Arc<Self>, jobs: Vec<Arc<jobs::ReadJob>>) {
        let queued = jobs.len();
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            return JobQueue::from(jobs).refuse::<RecordReader>(ErrorKind::Closed, CLOSED);
        }
        state.queue.extend(jobs);
        let sleepers = state.threads.iter_mut().filter(|(_, sleeps)| *sleeps).take(queued);
        let wakers: Vec<RingWaker> = sleepers
            .map(|(waker, sleeps)| {
                *sleeps = false;
                waker.clone()
            })
            .collect();
        drop(state);
        wakers.iter().for_each(RingWaker::wake);
    }
}

impl Drop for RingReaders {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        threads.iter().for_each(|(waker, _)| waker.wake());
        JobQueue::from(self.0.burst.take()).refuse::<RecordReader>(ErrorKind::Closed, CLOSED);
        queue.refuse::<RecordReader>(ErrorKind::Closed, CLOSED);
    }
}

struct RingWorker {
    shared: Arc<RingShared>,
    number: usize,
    ring: ReadRing<PendingRecords>,
    deferred: DeferredWakes,
}

impl RingWorker {
    /// The thread's main loop.
    fn run(mut self) {
        let mut jobs = Vec::new();
        let mut answered = Vec::new();
        let mut slow = false;
        let mut warned = false;
        while self.fill(&mut jobs) {
            self.deferred.wake_now();
            let company = self.ring.in_flight() / 4;
            let waited = match company > 1 && !slow {
                true => self.ring.wait_for(company, BATCH_DELAY),
                false => self.ring.wait(),
            };
            if let Err(error) = waited {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(%error, "the kernel takes no reads from a ring now; they are repeated");
                }
                std::thread::sleep(RETRY_DELAY);
            }
            self.ring.reap(&mut answered);
            slow = answered.is_empty();
            // The device first. If this fails, the next wait repeats it.
            if !slow && self.fill(&mut jobs) {
                let _ = self.ring.submit();
            }
            for (read, answer) in answered.drain(..) {
                self.complete(read, answer);
            }
        }
        self.deferred.wake_now();
    }

    /// Pushes queued reads while there is space. `false` when the thread has to end.
    fn fill(&mut self, jobs: &mut Vec<Arc<jobs::ReadJob>>) -> bool {
        while self.ring.free() > 0 {
            let mut state = lock(&self.shared.state);
            jobs.extend(std::iter::from_fn(|| state.queue.next()).take(self.ring.free()));
            if let Some((_, sleeps)) = state.threads.get_mut(self.number) {
                *sleeps = jobs.is_empty();
            }
            let closed = state.closed;
            drop(state);
            if jobs.is_empty() {
                return !closed || self.ring.in_flight() > 0;
            }
            for job in jobs.drain(..).filter(|job| !job.is_unwanted()) {
                let deferred = &mut self.deferred;
                let (first, others) =
                    self.shared.reader.prepare(&job, &mut |job, result| deferred.answer(job, result));
                for PreparedRead { records, file, buffer, offset } in first.into_iter().chain(others) {
                    let read = RingRead { file, buffer, offset, context: records };
                    push(&self.shared.reader, &mut self.ring, &mut self.deferred, read);
                }
            }
        }
        true
    }

    /// Continues or finishes a completed read.
    fn complete(&mut self, mut read: RingRead<PendingRecords>, answer: Result<usize, Errno>) {
        if read.context.are_unwanted() {
            return;
        }
        let done = match read.file.needs_more(&read.buffer, answer) {
            Ok(true) => return push(&self.shared.reader, &mut self.ring, &mut self.deferred, read),
            Ok(false) => Ok(()),
            // Refused in a ring or with `O_DIRECT`: this thread reads it.
            Err(Errno::AGAIN | Errno::INVAL | Errno::OPNOTSUPP) => {
                read.file.read(&mut read.buffer, read.offset)
            }
            Err(errno) => Err(errno),
        };
        finish(&self.shared.reader, &mut self.deferred, read, done);
    }
}

/// Pushes a read. Without a free slot it is executed at once.
fn push(
    reader: &RecordReader,
    ring: &mut ReadRing<PendingRecords>,
    deferred: &mut DeferredWakes,
    read: RingRead<PendingRecords>,
) {
    if let Err(mut read) = ring.push(read) {
        let done = read.file.read(&mut read.buffer, read.offset);
        finish(reader, deferred, read, done);
    }
}

/// Checks a finished read and sends its results.
fn finish(
    reader: &RecordReader,
    deferred: &mut DeferredWakes,
    read: RingRead<PendingRecords>,
    done: Result<(), Errno>,
) {
    let RingRead { file, buffer, offset, context: records } = read;
    file.drop_pages(offset, buffer.filled() as u64);
    reader.finish(&records, offset, buffer, done, &mut |job, result| deferred.answer(job, result));
}
