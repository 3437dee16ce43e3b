//! Samples that another rank is asked for together, until all are answered.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{Completion, ErrorKind, ReadRequest, TierError};
use foreread_types::{Rank, SampleKey, Tick};
use tokio::sync::mpsc;

use crate::WireError;
use crate::asking::NAME;
use crate::frame::Ask;
use crate::remote::error_of;

/// One sample that is asked for.
struct Slot {
    tag: u32,
    key: SampleKey,
    due: Tick,
    length: u32,
    path: Arc<str>,
    done: bool,
}

/// Samples that are asked for in one frame: the place in `slots` is the tag on the wire. What is not answered when it is
/// dropped is answered then, so that no tag is ever left open.
pub(crate) struct Batch {
    rank: Rank,
    slots: Vec<Slot>,
    /// Of them, those that are not answered.
    left: usize,
    out: mpsc::UnboundedSender<Completion>,
}

impl Batch {
    pub(crate) fn new(
        rank: Rank,
        requests: impl Iterator<Item = ReadRequest>,
        out: &mpsc::UnboundedSender<Completion>,
    ) -> Self {
        let mut slots = Vec::with_capacity(requests.size_hint().0);
        for request in requests {
            let ReadRequest { tag, key, due, .. } = request;
            match u32::try_from(request.len()) {
                Ok(length) => {
                    let path = request.object.path;
                    slots.push(Slot { tag, key, due, length, path, done: false });
                }
                Err(_) => {
                    let error = TierError::new(ErrorKind::Unsupported, NAME)
                        .with_object(&*request.object.path)
                        .with_detail("a sample of 4 GiB or more does not go from rank to rank");
                    let _ = out.send(Completion { tag, result: Err(error) }); // or nobody waits for it
                }
            }
        }
        Self { rank, left: slots.len(), slots, out: out.clone() }
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
        let Some(slot) = self.slots.get_mut(place).filter(|slot| !slot.done) else { return };
        slot.done = true;
        self.left -= 1;
        let result = result.map_err(|error| error.with_object(&*slot.path));
        let _ = self.out.send(Completion { tag: slot.tag, result }); // or nobody waits for it
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
        let ask = |slot: &Slot| Ask { key: slot.key, due: slot.due, length: u64::from(slot.length) };
        self.slots.iter().map(ask)
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
