//! What the server asks the engine for: samples and calls, each with its own way back.
//!
//! An [`Ask`] is answered once, from any thread, at any time. One that is dropped is answered too: with an error, so
//! that no worker waits for what will not come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleId;

use crate::answer_queue::{AnswerBody, AnswerQueue};

/// What a server serves from: the engine of the main process.
pub trait Samples: Send + Sync + 'static {
    /// Starts reading these samples. It is called on the thread that serves all workers, so it must not wait; it may
    /// answer what is at hand before it returns. A sample of a megabyte takes about 0.1 ms to answer (it is copied).
    fn get(&self, asks: Vec<Ask>);

    /// Starts to answer a call of the layer above. It must not wait either.
    fn call(&self, call: Call);
}

/// The way back to a worker.
#[derive(Debug)]
pub(crate) struct ReplyHandle {
    queue: Weak<AnswerQueue>,
    connection: u64,
    tag: u32,
    wanted: Arc<AtomicBool>,
    of_sample: bool,
    answered: bool,
}

impl ReplyHandle {
    pub(crate) fn new(
        queue: &Arc<AnswerQueue>,
        (connection, tag): (u64, u32),
        wanted: &Arc<AtomicBool>,
        of_sample: bool,
    ) -> Self {
        let (queue, wanted) = (Arc::downgrade(queue), Arc::clone(wanted));
        Self { queue, connection, tag, wanted, of_sample, answered: false }
    }

    fn give(&mut self, answer: impl FnOnce(&AnswerQueue) -> AnswerBody) {
        self.answered = true;
        // Where nobody waits any more, nothing is copied.
        if self.wanted.load(Ordering::Relaxed)
            && let Some(queue) = self.queue.upgrade()
        {
            let answer = answer(&queue);
            queue.push(self.connection, self.tag, answer);
        }
    }

    fn fail(&mut self, error: TierError) {
        let of_sample = self.of_sample;
        self.give(|_| AnswerBody::Failed { error, of_sample });
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        if !self.answered {
            let error = TierError::new(ErrorKind::Other, "share")
                .with_detail("the engine dropped the request unanswered");
            self.fail(error);
        }
    }
}

/// A sample that a worker wants.
#[derive(Debug)]
pub struct Ask {
    id: SampleId,
    reply: ReplyHandle,
}

impl Ask {
    pub(crate) fn new(id: SampleId, reply: ReplyHandle) -> Self {
        Self { id, reply }
    }

    /// Which sample.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// Whether the worker still waits: false once it is gone. What has not been started then need not be.
    pub fn is_wanted(&self) -> bool {
        self.reply.wanted.load(Ordering::Relaxed)
    }

    /// Gives the worker its sample, or says why there is none. Copies the bytes to shared memory if there is room, and
    /// keeps them until there is, if not.
    pub fn answer(mut self, result: Result<Bytes, TierError>) {
        match result {
            Ok(bytes) => self.reply.give(|queue| queue.place(bytes)),
            Err(error) => self.reply.fail(error),
        }
    }
}

/// A question that a worker's upper layer asks the main process's: a name and bytes, answered by bytes.
#[derive(Debug)]
pub struct Call {
    name: String,
    payload: Bytes,
    reply: ReplyHandle,
}

impl Call {
    pub(crate) fn new(name: String, payload: Bytes, reply: ReplyHandle) -> Self {
        Self { name, payload, reply }
    }

    /// What is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is called with.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Gives the worker its answer, through the socket, whatever its length.
    pub fn answer(mut self, result: Result<Bytes, TierError>) {
        match result {
            Ok(bytes) => self.reply.give(|_| AnswerBody::Called(bytes)),
            Err(error) => self.reply.fail(error),
        }
    }
}
