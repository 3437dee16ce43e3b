//! Samples that another rank is asked for together, until all are answered.

use std::sync::Arc;

use bytes::Bytes;
use foreread_tier::{Completion, ErrorKind, ReadRequest, TierError};
use foreread_types::{Rank, SampleKey, Tick};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::WireError;
use crate::asking::NAME;
use crate::frame::Ask;
use crate::remote::error_of;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing was said of it.
    Unseen,
    /// It is said to wait for its turn, or for the cable.
    Waiting,
    /// It is said to be being read from the origin; believed until then.
    AtOrigin {
        until: Instant,
    },
    Done,
}

impl State {
    /// Whether it is said to be on its way, and has not come.
    pub(crate) fn is_on_its_way(self) -> bool {
        matches!(self, Self::Waiting | Self::AtOrigin { .. })
    }
}

/// One sample that is asked for.
pub(crate) struct Slot {
    tag: u32,
    pub(crate) key: SampleKey,
    due: Tick,
    pub(crate) length: u32,
    path: Arc<str>,
    pub(crate) state: State,
}

/// Samples that are asked for in one frame: the place in `slots` is the tag on the wire. What is not answered when it is
/// dropped is answered then, so that no tag is ever left open.
pub(crate) struct Batch {
    rank: Rank,
    pub(crate) slots: Vec<Slot>,
    /// Of them, those that are not answered.
    pub(crate) left: usize,
    out: mpsc::UnboundedSender<Completion>,
}

impl Slot {
    /// Whether it is needed by `due`, and nothing better is known of it than that it may come.
    fn is_waited_for(&self, due: Tick, now: Instant) -> bool {
        let known = match self.state {
            State::Done => true,
            State::AtOrigin { until } => until > now,
            State::Unseen | State::Waiting => false,
        };
        self.due <= due && !known
    }
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
                    slots.push(Slot { tag, key, due, length, path, state: State::Unseen });
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

    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Answers a sample; `false` where it was answered.
    pub(crate) fn answer(&mut self, place: usize, result: Result<Bytes, TierError>) -> bool {
        let Some(slot) = self.slots.get_mut(place).filter(|slot| slot.state != State::Done) else {
            return false;
        };
        slot.state = State::Done;
        self.left -= 1;
        let result = result.map_err(|error| error.with_object(&*slot.path));
        let _ = self.out.send(Completion { tag: slot.tag, result }); // or nobody waits for it
        true
    }

    /// What of it is due by `due`, has not come, and is not known to be on its way from the origin: when it is due, its tag,
    /// its bytes.
    pub(crate) fn waited_for(&self, due: Tick, now: Instant) -> impl Iterator<Item = (Tick, u32, u64)> {
        let slots = (0..).zip(&self.slots).filter(move |(_, slot)| slot.is_waited_for(due, now));
        slots.map(|(tag, slot)| (slot.due, tag, u64::from(slot.length)))
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
