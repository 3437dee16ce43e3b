//! Reads under way: their answers reach the driver as one stream.
//!
//! What an origin over a network sends is received, checked and copied by a task for each batch of reads, on whichever of
//! the runtime's threads is free, so that the task which decides does no work that grows with bytes. The price is a hop
//! between threads, well below a microsecond a sample where many come together. Samples of caches and of the kernel's page
//! cache come without it: their own threads have read them, and the hop would be a part of what they take.

use std::pin::Pin;
use std::task::{Context, Poll};

use foreread_tier::Tier;
use futures::stream::{ReadyChunks, SelectAll};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;

use crate::answers::{Answer, Answers};
use crate::driver::Outgoing;

/// How many answers of one tier are taken at once: a stream that is one of many costs an allocation each time it is asked.
const CHUNK: usize = 64;

/// The answers of all tiers, those of each in chunks of what is there.
pub(crate) type Reads = SelectAll<ReadyChunks<Reading>>;

/// Who works on answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The driver's own task.
    Here,
    /// A task of their own.
    Aside,
}

impl Where {
    pub(crate) fn of_origin(origin: &dyn Tier) -> Self {
        if origin.profile().kernel_cached { Self::Here } else { Self::Aside }
    }
}

/// The answers to one batch of reads. Dropping it ends the reads.
pub(crate) enum Reading {
    Here(Answers),
    Aside { answers: UnboundedReceiver<Answer>, _task: AbortOnDrop },
}

impl Reading {
    fn aside(mut reads: Answers) -> Self {
        // What waits in it is bounded: its bytes are charged to the look-ahead.
        let (sender, answers) = unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(answer) = reads.next().await {
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Self::Aside { answers, _task: AbortOnDrop(task.abort_handle()) }
    }
}

impl Stream for Reading {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        match &mut *self {
            Self::Here(answers) => answers.poll_next_unpin(context),
            Self::Aside { answers, .. } => answers.poll_recv(context),
        }
    }
}

/// Ends a task when dropped.
pub(crate) struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins reads. Within a runtime.
pub(crate) fn send(reads: &mut Reads, tier: &dyn Tier, outgoing: Outgoing, at: Where) {
    if !outgoing.requests.is_empty() {
        let answers = Answers::of(tier, outgoing.requests, outgoing.pending);
        let reading = match at {
            Where::Here => Reading::Here(answers),
            Where::Aside => Reading::aside(answers),
        };
        reads.push(reading.ready_chunks(CHUNK));
    }
}
