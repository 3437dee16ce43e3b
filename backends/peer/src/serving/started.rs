//! Samples that were passed to the engine, until all are complete.

use foreread_types::SampleKey;

/// One sample of a chunk.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its position in the request.
    tag: u32,
    key: SampleKey,
    length: u64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The engine has not replied.
    Silent,
    /// The engine reads it from the origin.
    Reading,
    /// Complete, or no longer wanted.
    Done,
}

impl Slot {
    pub(super) fn new(tag: u32, key: SampleKey, length: u64) -> Self {
        Self { tag, key, length, state: State::Silent }
    }
}

/// Samples of one request that were started together. The position in `samples` is the tag of the
/// engine's replies.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) request: u64,
    slots: Vec<Slot>,
    left: usize,
}

impl Chunk {
    pub(super) fn new(request: u64, slots: Vec<Slot>) -> Self {
        Self { request, left: slots.len(), slots }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Bytes without a reply.
    pub(super) fn silent(&self) -> u64 {
        let silent = self.slots.iter().filter(|slot| slot.state == State::Silent);
        silent.fold(0, |sum, slot| sum.saturating_add(slot.length))
    }

    /// The sample at this position, if it is still wanted.
    pub(super) fn wanted(&self, place: u32) -> Option<SampleKey> {
        let slot = self.slots.get(place as usize).filter(|slot| slot.state != State::Done)?;
        Some(slot.key)
    }

    /// The position of the first open sample.
    pub(super) fn first_open(&self) -> Option<u32> {
        self.slots.iter().position(|slot| slot.state != State::Done).map(|place| place as u32)
    }

    /// The sample is no longer wanted. Returns how many bytes are no longer unacknowledged.
    pub(super) fn forget(&mut self, tag: u32) -> u64 {
        let place = self.slots.iter().position(|slot| slot.tag == tag);
        place.and_then(|place| self.said(place as u32, false)).map_or(0, |(.., freed)| freed)
    }

    /// Records a reply. Returns the sample's tag, its key, and how many bytes are no longer
    /// unacknowledged. `None` if it changes nothing.
    pub(super) fn said(&mut self, place: u32, reading: bool) -> Option<(u32, SampleKey, u64)> {
        let slot = self.slots.get_mut(place as usize)?;
        let state = if reading { State::Reading } else { State::Done };
        if slot.state == State::Done || slot.state == state {
            return None;
        }
        let freed = if slot.state == State::Silent { slot.length } else { 0 };
        slot.state = state;
        if state == State::Done {
            self.left -= 1;
        }
        Some((slot.tag, slot.key, freed))
    }
}
