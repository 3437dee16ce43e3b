//! The server's requests to the engine: samples and calls, each with a handle for its reply.
//!
//! An [`SampleRequest`] is answered once, from any thread, at any time. If it is dropped, the
//! client gets an error and does not wait for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_tier::{ErrorKind, TierError};
use foreread_types::{SampleId, SampleKey, Tick};

use crate::answer_queue::{AnswerBody, AnswerQueue};

/// A connected client, unique for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// A client that is connected by other means than the server's, by a number above all of its
    /// own.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// The engine that a server uses.
pub trait SampleProvider: Send + Sync + 'static {
    /// Starts to read samples. It runs on the thread that serves all clients, so it must not block.
    /// It may answer samples in memory before it returns. A sample in shared memory is not copied.
    /// Copying another one of a megabyte takes about 0.1 ms.
    fn get(&self, sample_requests: Vec<SampleRequest>);

    /// Starts to answer a call. It must not block.
    fn call(&self, call: WorkerCall);

    /// A client has left. Its leases have ended, and its open requests are not wanted any more. It
    /// must not block.
    fn disconnected(&self, connection: ConnectionId) {
        let _ = connection;
    }
}

/// The reply to a client.
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
        // Nothing is copied for a client that has left.
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

/// A client's request for a sample.
#[derive(Debug)]
pub struct SampleRequest {
    key: SampleKey,
    due: Tick,
    reply: ReplyHandle,
}

impl SampleRequest {
    pub(crate) fn new(key: SampleKey, due: Tick, reply: ReplyHandle) -> Self {
        Self { key, due, reply }
    }

    /// The requested sample of the only dataset, or of the first one.
    pub fn id(&self) -> SampleId {
        self.key.id
    }

    /// The requested sample, with the client's number of its dataset.
    pub fn key(&self) -> SampleKey {
        self.key
    }

    /// The client's position at which it uses the sample.
    pub fn due(&self) -> Tick {
        self.due
    }

    /// The connection that requests it.
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.reply.connection)
    }

    /// Whether the client is still connected. If not, a read that has not started can be skipped.
    pub fn is_wanted(&self) -> bool {
        self.reply.wanted.load(Ordering::Relaxed)
    }

    /// Sends the sample or an error to the client. Bytes in shared memory are leased to it: this
    /// handle on them is dropped when the client has released them. Others are copied.
    pub fn answer(mut self, result: Result<Bytes, TierError>) {
        match result {
            Ok(bytes) => self.reply.give(|queue| queue.answer(bytes)),
            Err(error) => self.reply.fail(error),
        }
    }
}

/// A call from the layer above a client: a name and bytes, answered by bytes.
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

    /// The connection that calls.
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.reply.connection)
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
