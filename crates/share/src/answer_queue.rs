//! Answers on their way to the thread that sends them.
//!
//! Whoever answers puts the bytes into the shared memory himself, if there is room and nobody waits for room, and rings
//! for the thread only where it sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use foreread_tier::TierError;
use rustix::event::{EventfdFlags, eventfd};

use crate::ShareError;
use crate::memory::{SharedMemory, SharedSlot};

/// What became of a request.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// The sample is in the shared memory.
    Placed(SharedSlot),
    /// The sample is not: there was no room, or it is empty.
    Whole(Bytes),
    /// What a call gave.
    Called(Bytes),
    /// There is none, of what was a sample or a call.
    Failed { error: TierError, of_sample: bool },
}

/// An answer, and whose it is.
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
    /// Whether the thread looks at the queue before it sleeps again.
    awake: AtomicBool,
    stopping: AtomicBool,
    /// Samples that wait for room: nobody may take room before them.
    pub(crate) waiting: AtomicU64,
    /// Workers that are connected.
    pub(crate) clients: AtomicU64,
    /// Samples whose bytes went through the socket.
    pub(crate) over_the_socket: AtomicU64,
    pub(crate) memory: Arc<SharedMemory>,
}

impl AnswerQueue {
    pub(crate) fn new(memory: SharedMemory) -> Result<Self, ShareError> {
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| ShareError::system("no descriptor to wake a thread with", error))?;
        Ok(Self {
            posted: Mutex::default(),
            wake_fd,
            awake: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            clients: AtomicU64::new(0),
            over_the_socket: AtomicU64::new(0),
            memory: Arc::new(memory),
        })
    }

    /// Puts a sample into the shared memory, if there is room for it and nobody waits for room.
    pub(crate) fn place(&self, bytes: Bytes) -> AnswerBody {
        if bytes.is_empty() || self.waiting.load(Ordering::Relaxed) > 0 {
            return AnswerBody::Whole(bytes);
        }
        match self.memory.place(&bytes) {
            Some(slot) => AnswerBody::Placed(slot),
            None => AnswerBody::Whole(bytes),
        }
    }

    /// Hands an answer to the thread.
    pub(crate) fn push(&self, connection: u64, tag: u32, answer: AnswerBody) {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner).push(PostedAnswer {
            connection,
            tag,
            answer,
        });
        self.wake();
    }

    /// All that was posted.
    pub(crate) fn take(&self, into: &mut Vec<PostedAnswer>) {
        std::mem::swap(&mut *self.posted.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    /// Whether nothing is posted, now that the thread is about to sleep: from here on it is rung for.
    pub(crate) fn prepare_sleep(&self) -> bool {
        // In one order with `wake`, seen from all threads: either this sees what was posted, or `wake` sees that.
        self.awake.store(false, Ordering::SeqCst);
        self.posted.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            && !self.stopping.load(Ordering::SeqCst)
    }

    /// The thread is up, and looks at the queue before it sleeps again; `was_woken` says whether the wake_fd woke it.
    pub(crate) fn mark_awake(&self, was_woken: bool) {
        self.awake.store(true, Ordering::SeqCst);
        if was_woken {
            let mut count = [0; 8];
            // What was read already is no loss.
            let _ = rustix::io::read(&self.wake_fd, &mut count);
        }
    }

    fn wake(&self) {
        if !self.awake.swap(true, Ordering::SeqCst) {
            // Fails only where the wake_fd has rung without end already.
            let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// What becomes readable when it rings.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake_fd.as_fd()
    }

    /// Asks the thread to end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}
