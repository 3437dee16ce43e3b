//! Samples that have arrived, until their batches are handed out.

use std::collections::VecDeque;

use foreread_tier::Sample;
use foreread_types::{SampleId, Tick};

/// Arrived samples by tick, starting at the first use that was not handed out. Each is stored with
/// its id, because a use may get another sample than its own
/// ([`OnError::Substitute`](crate::OnError::Substitute)).
#[derive(Debug, Default)]
pub(crate) struct ReadySamples {
    base: u64,
    samples: VecDeque<Option<(SampleId, Sample)>>,
}

impl ReadySamples {
    pub(crate) fn starting_at(base: Tick) -> Self {
        Self { base: base.0, samples: VecDeque::new() }
    }

    pub(crate) fn put(&mut self, tick: Tick, id: SampleId, sample: Sample) {
        let Some(index) = tick.0.checked_sub(self.base).map(|index| index as usize) else { return };
        if index >= self.samples.len() {
            self.samples.resize(index + 1, None);
        }
        self.samples[index] = Some((id, sample));
    }

    pub(crate) fn get(&self, tick: Tick) -> Option<&(SampleId, Sample)> {
        self.samples.get(tick.0.checked_sub(self.base)? as usize)?.as_ref()
    }

    /// Removes the first `ticks` uses. Uses without a sample are left out.
    pub(crate) fn take(&mut self, ticks: u64) -> Vec<(SampleId, Sample)> {
        self.base += ticks;
        let count = self.samples.len().min(ticks as usize);
        let mut taken = Vec::with_capacity(count);
        taken.extend(self.samples.drain(..count).flatten());
        taken
    }
}
