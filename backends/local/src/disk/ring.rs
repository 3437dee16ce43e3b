//! Reading by `io_uring`: one thread, or two, with many reads under way.
//!
//! A thread takes requests from the tier's queue for as long as its ring has room, and sleeps in the kernel until some
//! have been answered. Then it first hands over the next ones, so that the device has work, checks what came, puts the
//! answers where their consumers find them, and wakes each consumer once.
//!
//! # How many answers at once
//!
//! A device answers a read of 100 KB every 20 to 100 us, and waking this thread and then the consumer for each costs as
//! much as checking it. With eight reads or more under way the thread therefore waits for a quarter of them, but never
//! longer than [`COMPANY`]. So an answer is held behind others for a quarter of what it took itself, or for that long,
//! and the device keeps three quarters of its queue. If none has come by then, the device is slow, and the next answer
//! is waited for alone: there is no polling, and a device that never answers costs a sleeping thread.
//!
//! # What may go wrong
//!
//! A ring that cannot be made is an error when the tier is opened. A read that the kernel will not do in a ring, or not
//! directly, is repeated in the ordinary way by this thread, and so is the opening of a segment that another process has
//! begun: what is ready meanwhile waits for that one. When the tier is dropped, what had not begun is answered
//! as closed and nobody waits for the thread: it ends when the kernel has answered what it was given, which on a dead
//! device is never.

use std::io;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadFuture, ReadRequest, TierError};
use rustix::io::Errno;

use super::read::{Reader, Record, Started};
use super::uring::{Bell, Read, Ring};
use crate::jobs::{self, Burst, CLOSED, Due, Owed, Queue, Reading, Workers, lock};
use crate::pool::guarded;

/// How long an answer waits for others to share its wake-ups.
const COMPANY: Duration = Duration::from_millis(1);

/// The deepest that a ring is made, in reads.
const DEEPEST: usize = 4096;

/// From so many cores on, or above so many reads at once, there are two threads. One checks some 5 GB/s, which is more
/// than fewer cores have to spare and fewer reads get from a device.
const CORES_FOR_TWO: usize = 8;
const READS_FOR_ONE: usize = 64;

/// How long a thread leaves the kernel alone that takes nothing from it.
const RESPITE: Duration = Duration::from_millis(1);

/// The rings of one tier. Dropping them answers what is queued with [`ErrorKind::Closed`]; it does not wait.
pub(super) struct Rings(Arc<Shared>);

struct Shared {
    reader: Reader,
    burst: Burst,
    due: Arc<Due>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: Queue,
    closed: bool,
    /// By thread: its bell, and whether it sleeps with room for more.
    threads: Vec<(Bell, bool)>,
}

/// What goes with a read.
struct Job {
    job: Arc<jobs::Job>,
    record: Record,
}

impl Rings {
    /// Makes the rings, for `parallelism` reads at once in all, and starts their threads.
    ///
    /// # Errors
    /// What the kernel refuses them with.
    pub(super) fn new(reader: Reader, parallelism: usize) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if cores < CORES_FOR_TWO && parallelism <= READS_FOR_ONE { 1 } else { 2 };
        let depth = parallelism.div_ceil(threads).clamp(1, DEEPEST);
        let rings = Self(Arc::new(Shared {
            reader,
            burst: Burst::default(),
            due: Arc::default(),
            state: Mutex::default(),
        }));
        for number in 0..threads {
            let shared = Arc::clone(&rings.0);
            let (say, made) = mpsc::channel();
            // A ring belongs to the thread that makes it.
            std::thread::Builder::new().name("foreread-ring".into()).spawn(move || {
                match Ring::new(depth) {
                    Ok(ring) => {
                        lock(&shared.state).threads.push((ring.bell(), false));
                        let _ = say.send(Ok(())); // it is waited for
                        let owed = Owed::new(Arc::clone(&shared.due));
                        Worker { shared, number, ring, owed }.work();
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
        Box::pin(Reading::new(request, &self.0))
    }

    /// Ends a burst: wakes a thread that sleeps, once.
    pub(super) fn submit(&self) {
        self.0.submit();
    }
}

impl Workers for Shared {
    fn burst(&self) -> &Burst {
        &self.burst
    }

    fn due(&self) -> &Due {
        &self.due
    }

    fn begin(self: &Arc<Self>, jobs: Vec<Arc<jobs::Job>>) {
        let queued = jobs.len();
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            return Queue::from(jobs).refuse::<Reader>(ErrorKind::Closed, CLOSED);
        }
        state.queue.extend(jobs);
        let sleepers = state.threads.iter_mut().filter(|(_, sleeps)| *sleeps).take(queued);
        let bells: Vec<Bell> = sleepers
            .map(|(bell, sleeps)| {
                *sleeps = false;
                bell.clone()
            })
            .collect();
        drop(state);
        bells.iter().for_each(Bell::ring);
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        threads.iter().for_each(|(bell, _)| bell.ring());
        Queue::from(self.0.burst.take()).refuse::<Reader>(ErrorKind::Closed, CLOSED);
        queue.refuse::<Reader>(ErrorKind::Closed, CLOSED);
    }
}

struct Worker {
    shared: Arc<Shared>,
    number: usize,
    ring: Ring<Job>,
    owed: Owed,
}

impl Worker {
    /// The thread's life.
    fn work(mut self) {
        let mut jobs = Vec::new();
        let mut answered = Vec::new();
        let mut slow = false;
        let mut complained = false;
        while self.fill(&mut jobs) {
            self.owed.pay();
            let company = self.ring.under_way() / 4;
            let waited = match company > 1 && !slow {
                true => self.ring.gather(company, COMPANY),
                false => self.ring.wait(),
            };
            if let Err(error) = waited {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%error, "the kernel takes no reads from a ring now; they are repeated");
                }
                std::thread::sleep(RESPITE);
            }
            self.ring.reap(&mut answered);
            slow = answered.is_empty();
            // The device first; if this fails, the next wait does it.
            if !slow && self.fill(&mut jobs) {
                let _ = self.ring.hand_over();
            }
            for (read, answer) in answered.drain(..) {
                self.settle(read, answer);
            }
        }
        self.owed.pay();
    }

    /// Pushes what is queued, as far as there is room; false when the thread is to end.
    fn fill(&mut self, jobs: &mut Vec<Arc<jobs::Job>>) -> bool {
        while self.ring.free() > 0 {
            let mut state = lock(&self.shared.state);
            jobs.extend(std::iter::from_fn(|| state.queue.next()).take(self.ring.free()));
            if let Some((_, sleeps)) = state.threads.get_mut(self.number) {
                *sleeps = jobs.is_empty();
            }
            let closed = state.closed;
            drop(state);
            if jobs.is_empty() {
                return !closed || self.ring.under_way() > 0;
            }
            for job in jobs.drain(..).filter(|job| !job.is_dropped()) {
                let request = job.request();
                match guarded::<Reader, _>(request, || self.shared.reader.start(request)) {
                    Ok(Started { record, file, buffer, offset }) => {
                        let context = Job { job, record };
                        push(
                            &self.shared.reader,
                            &mut self.ring,
                            &mut self.owed,
                            Read { file, buffer, offset, context },
                        );
                    }
                    Err(error) => self.owed.answer(job, Err(error)),
                }
            }
        }
        true
    }

    /// Goes on with a read that was answered.
    fn settle(&mut self, mut read: Read<Job>, answer: Result<usize, Errno>) {
        if read.context.job.is_dropped() {
            return;
        }
        let done = match read.file.goes_on(&read.buffer, answer) {
            Ok(true) => return push(&self.shared.reader, &mut self.ring, &mut self.owed, read),
            Ok(false) => Ok(()),
            // Not in a ring, or not directly: a thread that waits can do it.
            Err(Errno::AGAIN | Errno::INVAL | Errno::OPNOTSUPP) => {
                read.file.read(&mut read.buffer, read.offset)
            }
            Err(errno) => Err(errno),
        };
        finish(&self.shared.reader, &mut self.owed, read, done);
    }
}

/// Pushes a read; one for which there is no room is done at once.
fn push(reader: &Reader, ring: &mut Ring<Job>, owed: &mut Owed, read: Read<Job>) {
    if let Err(mut read) = ring.push(read) {
        let done = read.file.read(&mut read.buffer, read.offset);
        finish(reader, owed, read, done);
    }
}

/// Checks a read that has come to its end, and answers it.
fn finish(reader: &Reader, owed: &mut Owed, read: Read<Job>, done: Result<(), Errno>) {
    let Read { file, buffer, offset, context: Job { job, record } } = read;
    file.drop_pages(offset, buffer.filled() as u64);
    let request = job.request();
    let result: Result<Bytes, TierError> =
        guarded::<Reader, _>(request, || reader.finish(request, &record, buffer, done));
    drop(record);
    owed.answer(job, result);
}
