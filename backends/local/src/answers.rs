//! Between those who ask for batches of reads and the threads that read: what is queued, and what is answered.
//!
//! Each batch has its own queue of answers, which the consumer takes over in one go. Putting an answer there and waking
//! the consumer are two things: a wake-up costs more than a tenth of a cached read, so threads *owe* it ([`Owed`]) and
//! pay when they know that nothing better comes at once.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use foreread_tier::{Completion, ErrorKind, ReadRequest, TierError};
use futures::Stream;

use crate::pool::Read;

/// Why reads that had not begun are answered with an error.
pub(crate) const CLOSED: &str = "the tier was closed";

/// How many answers may share one wake-up, and how many bytes: half a millisecond of copying.
const WAKE_EVERY: u32 = 64;
const WAKE_BYTES: u64 = 4 << 20;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics while it holds a lock; the state is whole even if something did.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Batches that wait, first in, first out.
#[derive(Default)]
pub(crate) struct Queue(VecDeque<Queued>);

/// The part of a batch that has not been taken; never empty while it is in the queue.
struct Queued {
    batch: Arc<Batch>,
    requests: std::vec::IntoIter<ReadRequest>,
}

impl Queue {
    /// Queues a batch; its answers come out of the stream.
    pub(crate) fn push(&mut self, requests: Vec<ReadRequest>) -> Answers {
        let left = requests.len();
        let batch = Arc::new(Batch::default());
        if left > 0 {
            self.0.push_back(Queued { batch: Arc::clone(&batch), requests: requests.into_iter() });
        }
        Answers { batch, ready: VecDeque::new(), left }
    }

    pub(crate) fn next(&mut self) -> Option<(Arc<Batch>, ReadRequest)> {
        let front = self.0.front_mut()?;
        let request = front.requests.next()?;
        let batch = Arc::clone(&front.batch);
        if front.requests.len() == 0 {
            self.0.pop_front();
        }
        Some((batch, request))
    }

    /// How many batches wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Answers all that is left with an error.
    pub(crate) fn refuse<R: Read>(self, kind: ErrorKind, why: &str) {
        for Queued { batch, requests } in self.0 {
            for request in requests {
                let error = TierError::new(kind, R::NAME).with_object(R::asked(&request)).with_detail(why);
                batch.put(Completion { tag: request.tag, result: Err(error) });
            }
            batch.wake();
        }
    }
}

/// The answers of one batch, between the threads that put them and the consumer that takes them.
#[derive(Default)]
pub(crate) struct Batch {
    /// Nobody will read the answers; what has not started need not.
    dropped: AtomicBool,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    done: VecDeque<Completion>,
    /// The consumer, if it found nothing and waits.
    consumer: Option<Waker>,
}

impl Batch {
    /// Whether nobody will read the answers.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Puts an answer where the consumer finds it when it looks.
    pub(crate) fn put(&self, completion: Completion) {
        lock(&self.slot).done.push_back(completion);
    }

    fn wake(&self) {
        let consumer = lock(&self.slot).consumer.take();
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }
}

/// The wake-ups that a thread owes to consumers.
#[derive(Default)]
pub(crate) struct Owed {
    to: Vec<Arc<Batch>>,
    answers: u32,
    bytes: u64,
}

impl Owed {
    pub(crate) fn is_any(&self) -> bool {
        !self.to.is_empty()
    }

    /// Whether nothing is owed to anybody else.
    pub(crate) fn is_to(&self, batch: &Arc<Batch>) -> bool {
        self.to.iter().all(|to| Arc::ptr_eq(to, batch))
    }

    /// Owes one for an answer of `bytes` that was put; pays all after [`WAKE_EVERY`] answers or [`WAKE_BYTES`].
    pub(crate) fn add(&mut self, batch: Arc<Batch>, bytes: u64) {
        if !self.to.iter().any(|to| Arc::ptr_eq(to, &batch)) {
            self.to.push(batch);
        }
        self.answers += 1;
        self.bytes += bytes;
        if self.answers >= WAKE_EVERY || self.bytes >= WAKE_BYTES {
            self.pay();
        }
    }

    pub(crate) fn pay(&mut self) {
        (self.answers, self.bytes) = (0, 0);
        for batch in self.to.drain(..) {
            batch.wake();
        }
    }
}

/// The answers to one batch, as a stream; dropping it cancels the reads that have not started.
pub(crate) struct Answers {
    batch: Arc<Batch>,
    /// Taken over from the threads in one go.
    ready: VecDeque<Completion>,
    /// Answers that have not been handed out yet.
    left: usize,
}

impl Stream for Answers {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Completion>> {
        let this = &mut *self;
        if this.left == 0 {
            return Poll::Ready(None);
        }
        if this.ready.is_empty() {
            let mut slot = lock(&this.batch.slot);
            std::mem::swap(&mut slot.done, &mut this.ready);
            if this.ready.is_empty() {
                match &mut slot.consumer {
                    Some(consumer) => consumer.clone_from(context.waker()),
                    empty => *empty = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
        }
        this.left -= 1;
        Poll::Ready(this.ready.pop_front())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.batch.dropped.store(true, Ordering::Relaxed);
    }
}
