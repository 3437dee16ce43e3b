//! Samples that another rank is asked for together, until all are answered.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, TierError};
use foreread_types::Rank;
use tokio::sync::oneshot;

use crate::WireError;
use crate::asking::NAME;
use crate::frame::Ask;
use crate::remote::error_of;

/// One sample that is asked for. Nobody waits for it where the other end of `answer` was dropped.
pub(crate) struct Slot {
    pub(crate) request: Arc<ReadRequest>,
    /// Until it is answered.
    pub(crate) answer: Option<oneshot::Sender<Result<Bytes, TierError>>>,
}

impl Slot {
    pub(crate) fn is_dropped(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// Samples that are asked for in one frame: the place in `slots` is the tag on the wire. What is not answered when it is
/// dropped is answered then, so that no read is ever left open.
pub(crate) struct Batch {
    rank: Rank,
    slots: Vec<Slot>,
    /// Of them, those that are not answered.
    left: usize,
}

impl Batch {
    pub(crate) fn new(rank: Rank, slots: Vec<Slot>) -> Self {
        Self { rank, left: slots.len(), slots }
    }

    /// Samples that are not answered.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Answers a sample, unless it was answered.
    pub(crate) fn answer(&mut self, place: usize, result: Result<Bytes, TierError>) {
        let Some(slot) = self.slots.get_mut(place) else { return };
        let Some(answer) = slot.answer.take() else { return };
        self.left -= 1;
        let _ = answer.send(result.map_err(|error| error.with_object(&*slot.request.object.path))); // or nobody waits
    }

    /// Takes out the samples that nobody waits for any longer.
    pub(crate) fn take_dropped(&mut self) -> Vec<u32> {
        let mut dropped = Vec::new();
        for (slot, tag) in self.slots.iter_mut().zip(0..) {
            if slot.is_dropped() {
                slot.answer = None;
                self.left -= 1;
                dropped.push(tag);
            }
        }
        dropped
    }

    fn answer_all(&mut self, error: &TierError) {
        for place in 0..self.slots.len() {
            self.answer(place, Err(error.clone()));
        }
    }

    /// Answers all that is open.
    pub(crate) fn fail(mut self, why: &WireError) {
        self.answer_all(&error_of(self.rank, why));
    }

    /// As it is asked on the wire.
    pub(crate) fn asks(&self) -> impl Iterator<Item = Ask> {
        let ask = |request: &ReadRequest| Ask { key: request.key, due: request.due, length: request.len() };
        self.slots.iter().map(move |slot| ask(&slot.request))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.left > 0 {
            let detail = format!("rank {} is no longer asked: this process ends", self.rank);
            self.answer_all(&TierError::new(ErrorKind::Closed, NAME).with_detail(detail));
        }
    }
}
