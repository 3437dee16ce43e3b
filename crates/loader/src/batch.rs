//! What the trainer gets.

use bytes::Bytes;
use foreread_oracle::PhaseKind;
use foreread_tier::Sample;
use foreread_types::{DatasetId, SampleId};

use crate::report::Taking;

/// The samples of one step, in the order that the seed says.
///
/// The samples' memory counts against the look-ahead (or the memory tier) until the batch and every slice of its bytes
/// are dropped.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) pass: usize,
    pub(crate) epoch: u64,
    pub(crate) phase: PhaseKind,
    pub(crate) dataset: DatasetId,
    pub(crate) index: u64,
    pub(crate) samples: Vec<(SampleId, Sample)>,
    pub(crate) taking: Taking,
}

impl Batch {
    /// The epoch that the batch belongs to, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Training or validation.
    pub fn phase(&self) -> PhaseKind {
        self.phase
    }

    /// Which of the run's datasets its samples are of.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// The batch's number within its pass, from 0.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many samples there are: the batch size, or fewer in a pass's last batch or where samples were skipped.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are none (every sample was skipped).
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The sum of the samples' lengths, in bytes.
    pub fn bytes(&self) -> u64 {
        self.samples.iter().map(|(_, sample)| sample.len() as u64).sum()
    }

    /// Each sample's id and bytes, in order. The bytes are shared, not copied.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SampleId, &Bytes)> {
        self.samples.iter().map(|(id, sample)| (*id, sample.data()))
    }
}
