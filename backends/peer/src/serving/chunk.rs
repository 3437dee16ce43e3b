//! Samples that were passed to the store, until all are complete.

use foreread_types::SampleKey;

/// One sample of a chunk.
#[derive(Debug)]
pub(super) struct ChunkSample {
    /// Its position in the request.
    tag: u32,
    key: SampleKey,
    length: u64,
    state: ReplyState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyState {
    /// The store has not replied.
    None,
    /// The store reads it from the origin.
    Reading,
    /// Complete, or no longer wanted.
    Done,
}

impl ChunkSample {
    pub(super) fn new(tag: u32, key: SampleKey, length: u64) -> Self {
        Self { tag, key, length, state: ReplyState::None }
    }
}

/// Samples of one request that were started together. The position in `samples` is the tag of the
/// store's replies.
#[derive(Debug)]
pub(super) struct StoreChunk {
    pub(super) request: u64,
    samples: Vec<ChunkSample>,
    left: usize,
}

impl StoreChunk {
    pub(super) fn new(request: u64, samples: Vec<ChunkSample>) -> Self {
        Self { request, left: samples.len(), samples }
    }

    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Bytes without a reply.
    pub(super) fn unacked(&self) -> u64 {
        let unacked = self.samples.iter().filter(|sample| sample.state == ReplyState::None);
        unacked.fold(0, |sum, sample| sum.saturating_add(sample.length))
    }

    /// The sample at this position, if it is still wanted.
    pub(super) fn wanted(&self, position: u32) -> Option<SampleKey> {
        let sample = self.samples.get(position as usize).filter(|sample| sample.state != ReplyState::Done)?;
        Some(sample.key)
    }

    /// The position of the first open sample.
    pub(super) fn first_open(&self) -> Option<u32> {
        self.samples
            .iter()
            .position(|sample| sample.state != ReplyState::Done)
            .map(|position| position as u32)
    }

    /// The sample is no longer wanted. Returns how many bytes are no longer unacknowledged.
    pub(super) fn forget(&mut self, tag: u32) -> u64 {
        let position = self.samples.iter().position(|sample| sample.tag == tag);
        position.and_then(|position| self.record(position as u32, false)).map_or(0, |(.., freed)| freed)
    }

    /// Records a reply. Returns the sample's tag, its key, and how many bytes are no longer
    /// unacknowledged. `None` if it is complete.
    pub(super) fn record(&mut self, position: u32, reading: bool) -> Option<(u32, SampleKey, u64)> {
        let sample = self.samples.get_mut(position as usize)?;
        let state = if reading { ReplyState::Reading } else { ReplyState::Done };
        if sample.state == ReplyState::Done {
            return None;
        }
        let freed = if sample.state == ReplyState::None { sample.length } else { 0 };
        sample.state = state;
        if state == ReplyState::Done {
            self.left -= 1;
        }
        Some((sample.tag, sample.key, freed))
    }
}
