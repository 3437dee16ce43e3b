//! Samples of one request frame, until all are complete.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadRequest, TierError};
use foreread_types::Rank;
use tokio::sync::oneshot;

use crate::WireError;
use crate::asking::NAME;
use crate::frame::Ask;
use crate::remote::error_of;

/// A requested sample. Its caller is gone if the other end of `answer` was dropped.
pub(crate) struct Slot {
    pub(crate) request: Arc<ReadRequest>,
    /// Until it is complete.
    pub(crate) answer: Option<oneshot::Sender<Result<Bytes, TierError>>>,
}

impl Slot {
    pub(crate) fn is_dropped(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// Samples of one request frame. The position in `samples` is the tag on the wire. Dropping it
/// fails the open samples, so that no read stays open.
pub(crate) struct Batch {
    rank: Rank,
    slots: Vec<Slot>,
    /// Samples that are not complete.
    left: usize,
}

impl Batch {
    pub(crate) fn new(rank: Rank, slots: Vec<Slot>) -> Self {
        Self { rank, left: slots.len(), slots }
    }

    /// Samples that are not complete.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Completes a sample, unless it is complete.
    pub(crate) fn answer(&mut self, place: usize, result: Result<Bytes, TierError>) {
        let Some(slot) = self.slots.get_mut(place) else { return };
        let Some(answer) = slot.answer.take() else { return };
        self.left -= 1;
        let _ = answer.send(result.map_err(|error| error.with_object(&*slot.request.object.path))); // or nobody waits
    }

    /// Takes out the samples whose caller is gone.
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

    /// Fails all open samples.
    pub(crate) fn fail(mut self, why: &WireError) {
        self.answer_all(&error_of(self.rank, why));
    }

    /// The samples as they are encoded on the wire.
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
