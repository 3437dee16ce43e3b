//! Answers on their way to the server thread.
//!
//! The answering thread leases the sample, or copies it into shared memory. It wakes the server
//! thread only if that sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use foreread_tier::{TierError, lock};
use rustix::event::{EventfdFlags, eventfd};

use crate::StoreError;
use crate::leases::{Lease, Leases};

/// The result of a request.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// The sample is in shared memory.
    Leased(Lease),
    /// The sample goes through the socket.
    Whole(Bytes),
    /// The result of a call.
    Called(Bytes),
    /// A sample or a call has failed.
    Failed { error: TierError, of_sample: bool },
}

/// An answer and its request.
#[derive(Debug)]
pub(crate) struct PostedAnswer {
    pub(crate) connection: u64,
    pub(crate) tag: u32,
    pub(crate) answer: AnswerBody,
}

#[derive(Debug)]
pub(crate) struct AnswerQueue {
    posted: Mutex<Vec<PostedAnswer>>,
    wake_fd: OwnedFd,
    /// Whether the thread checks the queue before it sleeps again.
    awake: AtomicBool,
    stopping: AtomicBool,
    /// Connected workers.
    pub(crate) clients: AtomicU64,
    /// Long samples whose bytes went through the socket.
    pub(crate) over_the_socket: AtomicU64,
    pub(crate) leases: Leases,
}

impl AnswerQueue {
    pub(crate) fn new(leases: Leases) -> Result<Self, StoreError> {
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| StoreError::system("cannot create an event descriptor", error))?;
        Ok(Self {
            posted: Mutex::default(),
            wake_fd,
            awake: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            clients: AtomicU64::new(0),
            over_the_socket: AtomicU64::new(0),
            leases,
        })
    }

    /// The answer with a sample.
    pub(crate) fn answer(&self, bytes: Bytes) -> AnswerBody {
        match self.leases.lease(bytes) {
            Ok(lease) => AnswerBody::Leased(lease),
            Err(bytes) => AnswerBody::Whole(bytes),
        }
    }

    /// Passes an answer to the server thread.
    pub(crate) fn push(&self, connection: u64, tag: u32, answer: AnswerBody) {
        lock(&self.posted).push(PostedAnswer { connection, tag, answer });
        self.wake();
    }

    /// Takes all answers.
    pub(crate) fn take(&self, into: &mut Vec<PostedAnswer>) {
        std::mem::swap(&mut *lock(&self.posted), into);
    }

    /// Whether the thread may sleep because there is no answer. From here on it is woken for new
    /// ones.
    pub(crate) fn prepare_sleep(&self) -> bool {
        // Sequentially consistent with `wake`: either this sees the answer, or `wake` sees that the
        // thread sleeps.
        self.awake.store(false, Ordering::SeqCst);
        lock(&self.posted).is_empty() && !self.stopping.load(Ordering::SeqCst)
    }

    /// Called after a sleep. `was_woken`: whether `wake_fd` is readable.
    pub(crate) fn mark_awake(&self, was_woken: bool) {
        self.awake.store(true, Ordering::SeqCst);
        if was_woken {
            let mut count = [0; 8];
            // An empty counter is fine.
            let _ = rustix::io::read(&self.wake_fd, &mut count);
        }
    }

    fn wake(&self) {
        if !self.awake.swap(true, Ordering::SeqCst) {
            // Fails only if the counter is at its maximum, which wakes the thread anyway.
            let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// Becomes readable to wake the thread.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}
