//! Threads that decode batches.
//!
//! Threads take samples one by one, of the oldest batch first. So the batch that the trainer needs
//! next is ready first, and a large image delays no other. Each writes its part of the
//! batch's memory.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::buffers::BatchBuffer;
use crate::decoder::Decoder;
use crate::draw::Draw;
use crate::error::DecodeError;

/// A sample to decode.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its bytes.
    pub bytes: Bytes,
    /// The inputs of its random numbers.
    pub draw: Draw,
}

/// A sample of a batch that could not be decoded.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its index in the batch.
    pub at: usize,
    /// The reason.
    pub error: DecodeError,
}

/// Memory that a batch is written to.
///
/// # Safety
/// `start` returns the address of as many writable bytes as `length` says. They stay valid until
/// the value is dropped, also when it is moved, and nothing else uses them.
pub unsafe trait Output: Send {
    /// The address of the first byte.
    fn start(&mut self) -> *mut u8;
    /// The number of bytes.
    fn length(&self) -> usize;
}

// SAFETY: the bytes are a mapping of its own, which moves with neither.
unsafe impl Output for BatchBuffer {
    fn start(&mut self) -> *mut u8 {
        self.bytes_mut().as_mut_ptr()
    }

    fn length(&self) -> usize {
        self.bytes().len()
    }
}

/// Threads that decode batches with one decoder. Dropping the pool ends them after their current
/// samples.
pub struct Pool<D: Decoder> {
    shared: Arc<Shared<D>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<D> {
    decoder: D,
    queue: Mutex<Queue>,
    /// A batch was added, or the pool ends.
    added: Condvar,
    /// Nanoseconds that threads have spent decoding.
    busy: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Queued>,
    ended: bool,
}

#[derive(Debug)]
struct Queued {
    batch: Arc<Work>,
    /// The first sample that no thread has taken.
    next: usize,
}

/// A batch that is decoded.
#[derive(Debug)]
struct Work {
    items: Vec<Item>,
    /// The address of the output. As an integer, because threads share it.
    start: usize,
    /// Bytes of each sample.
    each: usize,
    progress: Mutex<Progress>,
    /// All samples are done, or no thread works on the batch.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    done: usize,
    /// Samples that threads work on.
    active: usize,
    failures: Vec<Failure>,
}

/// A batch that is being decoded. Dropping it cancels that, and waits for the samples that threads
/// work on.
pub struct Pending<D: Decoder, O: Output> {
    pool: Arc<Shared<D>>,
    batch: Arc<Work>,
    output: Option<O>,
}

/// A decoded batch.
#[derive(Debug)]
pub struct DecodedBatch<O> {
    /// Its memory: the samples one after the other.
    pub output: O,
    /// Samples that could not be decoded, by index. The content of their parts is undefined.
    pub failures: Vec<Failure>,
}

impl<D: Decoder> fmt::Debug for Pool<D> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Pool").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl<D: Decoder, O: Output> fmt::Debug for Pending<D, O> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Pending").field("samples", &self.batch.items.len()).finish_non_exhaustive()
    }
}

/// The threads for one of `ranks` processes of this machine that decode at the same time: its part
/// of the cores. A process that is bound to its part already has all of them.
pub fn threads_of_rank(ranks: u32) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let all = online_processors().unwrap_or(cores);
    let ranks = (ranks as usize).max(1);
    if cores * ranks <= all { cores } else { (cores / ranks).max(1) }
}

/// The number of processors of the machine.
fn online_processors() -> Option<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let mut count = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        count += last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1;
    }
    Some(count)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds a lock panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Decoder> Pool<D> {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// If the system allows no more threads.
    pub fn new(decoder: D, threads: usize) -> io::Result<Self> {
        let (queue, busy) = (Mutex::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { decoder, queue, added: Condvar::new(), busy });
        let mut pool = Self { shared, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name("foreread-decode".to_owned());
            pool.threads.push(thread.spawn(move || work(&shared))?);
        }
        Ok(pool)
    }

    /// The decoder.
    pub fn decoder(&self) -> &D {
        &self.shared.decoder
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The time that threads have spent decoding, summed over all.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.busy.load(Ordering::Relaxed))
    }

    /// Begins to decode a batch into `output`, whose length is that of all decoded items.
    ///
    /// # Panics
    /// If the length is another.
    pub fn begin<O: Output>(&self, items: Vec<Item>, mut output: O) -> Pending<D, O> {
        let each = self.shared.decoder.output_bytes();
        assert_eq!(items.len().checked_mul(each), Some(output.length()), "memory for another batch");
        let start = output.start() as usize;
        let (progress, changed) = (Mutex::default(), Condvar::new());
        let batch = Arc::new(Work { items, start, each, progress, changed });
        if !batch.items.is_empty() {
            lock(&self.shared.queue).batches.push_back(Queued { batch: Arc::clone(&batch), next: 0 });
            self.shared.added.notify_all();
        }
        Pending { pool: Arc::clone(&self.shared), batch, output: Some(output) }
    }
}

impl<D: Decoder> Drop for Pool<D> {
    fn drop(&mut self) {
        lock(&self.shared.queue).ended = true;
        self.shared.added.notify_all();
        for thread in self.threads.drain(..) {
            // Its panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl<D: Decoder, O: Output> Pending<D, O> {
    /// Waits until the batch is decoded, at most `timeout`. Returns whether it is.
    pub fn wait(&self, timeout: Duration) -> bool {
        let progress = lock(&self.batch.progress);
        let all = self.batch.items.len();
        let waited = self.batch.changed.wait_timeout_while(progress, timeout, |now| now.done < all);
        waited.unwrap_or_else(PoisonError::into_inner).0.done == all
    }

    /// Waits for the batch and returns it. `None` if the pool has ended before.
    pub fn finish(mut self) -> Option<DecodedBatch<O>> {
        while !self.wait(Duration::from_millis(100)) {
            if lock(&self.pool.queue).ended && self.is_idle() {
                return None;
            }
        }
        let mut failures = std::mem::take(&mut lock(&self.batch.progress).failures);
        failures.sort_by_key(|failure| failure.at);
        Some(DecodedBatch { output: self.output.take()?, failures })
    }

    fn is_idle(&self) -> bool {
        lock(&self.batch.progress).active == 0
    }
}

impl<D: Decoder, O: Output> Drop for Pending<D, O> {
    fn drop(&mut self) {
        // From here on no thread takes a sample of it.
        lock(&self.pool.queue).batches.retain(|queued| !Arc::ptr_eq(&queued.batch, &self.batch));
        let progress = lock(&self.batch.progress);
        // Threads that still work on an image write to the output.
        drop(self.batch.changed.wait_while(progress, |now| now.active > 0));
    }
}

/// A thread: decodes samples until the pool ends.
fn work<D: Decoder>(shared: &Shared<D>) {
    let mut scratch = D::Scratch::default();
    while let Some((batch, at)) = shared.take() {
        let begun = Instant::now();
        let item = &batch.items[at];
        // SAFETY: `begin` has checked that the output has `each` bytes for each item. The `Pending`
        // that has the output waits in `drop` while a sample is active. It gives the output away
        // only when all samples are done. No other thread writes these bytes, because each index is
        // taken once.
        let output = unsafe {
            std::slice::from_raw_parts_mut((batch.start as *mut u8).add(at * batch.each), batch.each)
        };
        let decode = || shared.decoder.decode(&item.bytes, item.draw, &mut scratch, output);
        let result = catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
            Err(DecodeError::corrupt(format!("the decoder panicked: {}", text(&*panic))))
        });
        if result.is_err() {
            scratch = D::Scratch::default();
        }
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.busy.fetch_add(nanos, Ordering::Relaxed);
        let mut progress = lock(&batch.progress);
        progress.active -= 1;
        progress.done += 1;
        if let Err(error) = result {
            progress.failures.push(Failure { at, error });
        }
        if progress.done == batch.items.len() || progress.active == 0 {
            batch.changed.notify_all();
        }
    }
}

impl<D> Shared<D> {
    /// The next sample of the oldest batch. `None` when the pool ends.
    fn take(&self) -> Option<(Arc<Work>, usize)> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.ended {
                return None;
            }
            if let Some(first) = queue.batches.front_mut() {
                let (batch, at) = (Arc::clone(&first.batch), first.next);
                first.next += 1;
                if first.next == batch.items.len() {
                    queue.batches.pop_front();
                }
                lock(&batch.progress).active += 1;
                return Some((batch, at));
            }
            queue = self.added.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The text of a panic.
fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use foreread_tier_testing::until;

    use super::*;
    use crate::buffers::BatchBuffers;
    use crate::error::DecodeErrorKind;

    /// Writes the sample's first byte. Fails at 1, panics at 2, and waits for the gate at 3.
    #[derive(Clone, Debug, Default)]
    struct First(Arc<Mutex<()>>);

    impl Decoder for First {
        type Scratch = ();

        fn output_bytes(&self) -> usize {
            8
        }

        fn decode(&self, sample: &[u8], _: Draw, (): &mut (), output: &mut [u8]) -> Result<(), DecodeError> {
            match sample[0] {
                1 => return Err(DecodeError::new(DecodeErrorKind::Unsupported, "one")),
                2 => panic!("two"),
                3 => drop(lock(&self.0)),
                _ => {}
            }
            output.fill(sample[0]);
            Ok(())
        }
    }

    fn items(values: impl IntoIterator<Item = u8>) -> Vec<Item> {
        values.into_iter().map(|value| Item { bytes: vec![value].into(), draw: Draw::default() }).collect()
    }

    #[test]
    fn batches_are_decoded_in_their_order() {
        let (pool, buffers) = (Pool::new(First::default(), 3).unwrap(), BatchBuffers::default());
        let begin = |batch: u8| {
            let items = items((0..50).map(|at| 10 + (batch * 50 + at) % 200));
            pool.begin(items, buffers.take(400).unwrap())
        };
        let pending: Vec<_> = (0..4).map(begin).collect();
        for (batch, pending) in (0u8..).zip(pending) {
            let decoded = pending.finish().unwrap();
            assert!(decoded.failures.is_empty());
            for (at, output) in (0u8..).zip(decoded.output.bytes().chunks_exact(8)) {
                assert_eq!(output, [10 + (batch * 50 + at) % 200; 8]);
            }
        }
        assert!(pool.busy() > Duration::ZERO);
    }

    #[test]
    fn failures_and_panics_are_named_by_index() {
        let (pool, buffers) = (Pool::new(First::default(), 2).unwrap(), BatchBuffers::default());
        let decoded = pool.begin(items([9, 1, 8, 2, 7]), buffers.take(40).unwrap()).finish().unwrap();
        let failures: Vec<_> = decoded.failures.iter().map(|one| (one.at, one.error.to_string())).collect();
        assert_eq!(failures, [(1, "one".to_owned()), (3, "the decoder panicked: two".to_owned())]);
        let parts: Vec<_> = decoded.output.bytes().chunks_exact(8).map(|part| part[0]).collect();
        assert_eq!((parts[0], parts[2], parts[4]), (9, 8, 7));
    }

    #[test]
    fn dropped_batches_are_cancelled_and_empty_ones_are_done() {
        let first = First::default();
        let (pool, buffers) = (Pool::new(first.clone(), 2).unwrap(), BatchBuffers::default());
        let closed = lock(&first.0);
        let slow = pool.begin(items([3; 1000]), buffers.take(8000).unwrap());
        assert!(!slow.wait(Duration::ZERO));
        thread::scope(|threads| {
            threads.spawn(|| drop(slow));
            until("the batch is cancelled", || lock(&pool.shared.queue).batches.is_empty());
            drop(closed);
        });
        // Threads work on later batches.
        let decoded = pool.begin(items([5]), buffers.take(8).unwrap()).finish().unwrap();
        assert_eq!(decoded.output.bytes(), [5; 8]);
        assert!(pool.begin(Vec::new(), buffers.take(0).unwrap()).finish().unwrap().failures.is_empty());
    }

    #[test]
    fn batches_of_an_ended_pool_end() {
        let first = First::default();
        let (pool, buffers) = (Pool::new(first.clone(), 1).unwrap(), BatchBuffers::default());
        let closed = lock(&first.0);
        let pending = pool.begin(items([3; 50]), buffers.take(400).unwrap());
        thread::scope(|threads| {
            threads.spawn(|| drop(pool));
            until("the pool ends", || lock(&pending.pool.queue).ended);
            drop(closed);
        });
        assert!(pending.finish().is_none());
    }
}
