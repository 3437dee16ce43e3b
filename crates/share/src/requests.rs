//! The server's requests to the engine: samples and calls, each with a handle for its reply.
//!
//! An [`SampleRequest`] is answered once, from any thread, at any time. If it is dropped, the
//! worker gets an error and does not wait for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleId;

use crate::answer_queue::{AnswerBody, AnswerQueue};

/// The engine that a server uses.
pub trait SampleProvider: Send + Sync + 'static {
    /// Starts to read samples. It runs on the thread that serves all workers, so it must not block.
    /// It may answer samples in memory before it returns. Answering a sample of a megabyte takes
    /// about 0.1 ms, because it is copied.
    fn get(&self, sample_requests: Vec<SampleRequest>);

    /// Starts to answer a call. It must not block.
    fn call(&self, call: WorkerCall);
}

/// The reply to a worker.
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
        // Nothing is copied for a worker that has left.
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

/// A worker's request for a sample.
#[derive(Debug)]
pub struct SampleRequest {
    id: SampleId,
    reply: ReplyHandle,
}

impl SampleRequest {
    pub(crate) fn new(id: SampleId, reply: ReplyHandle) -> Self {
        Self { id, reply }
    }

    /// The requested sample.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// Whether the worker still waits. If not, a read that has not started can be skipped.
    pub fn is_wanted(&self) -> bool {
        self.reply.wanted.load(Ordering::Relaxed)
    }

    /// Sends the sample or an error to the worker. Copies the bytes to shared memory if there is
    /// room. Otherwise it keeps them until there is.
    pub fn answer(mut self, result: Result<Bytes, TierError>) {
        match result {
            Ok(bytes) => self.reply.give(|queue| queue.place(bytes)),
            Err(error) => self.reply.fail(error),
        }
    }
}

/// A call from the layer above a worker: a name and bytes, answered by bytes.
#[derive(Debug)]
pub struct WorkerCall {
    name: String,
    payload: Bytes,
    reply: ReplyHandle,
}

impl WorkerCall {
    pub(crate) fn new(name: String, payload: Bytes, reply: ReplyHandle) -> Self {
        Self { name, payload, reply }
    }

    /// The name of the call.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The argument of the call.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Sends the answer, of any length, through the socket.
    pub fn answer(mut self, result: Result<Bytes, TierError>) {
        match result {
            Ok(bytes) => self.reply.give(|_| AnswerBody::Called(bytes)),
            Err(error) => self.reply.fail(error),
        }
    }
}
