//! The batch that the trainer gets.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use foreread_dataset::{Catalog, DatasetError};
use foreread_oracle::PhaseKind;
use foreread_tier::Sample;
use foreread_types::{DatasetId, SampleId};

use crate::report::BatchCounts;

/// The samples of one step, in the order given by the seed.
///
/// The samples' memory counts against the look-ahead (or the memory tier) until the batch and every
/// slice of its bytes are dropped.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) pass: usize,
    pub(crate) epoch: u64,
    pub(crate) phase: PhaseKind,
    pub(crate) dataset: DatasetId,
    pub(crate) catalog: Catalog,
    pub(crate) index: u64,
    pub(crate) samples: Vec<(SampleId, Sample)>,
    pub(crate) counts: BatchCounts,
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

    /// The dataset of its samples.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// The batch's number within its pass, from 0.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many samples there are. It is the batch size, or less in a pass's last batch or where
    /// samples were skipped.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether it has no samples, because all were skipped.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The sum of the samples' lengths, in bytes.
    pub fn bytes(&self) -> u64 {
        self.samples.iter().map(|(_, sample)| sample.len() as u64).sum()
    }

    /// Each sample's id and bytes, in order. [`samples`](Self::samples) has handles on the bytes
    /// that outlive the batch.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SampleId, &[u8])> {
        self.samples.iter().map(|(id, sample)| (*id, &**sample))
    }

    /// Each sample with its catalog entry, in order.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = BatchSample<'_>> {
        self.samples.iter().map(|(id, sample)| BatchSample { id: *id, data: sample, catalog: &self.catalog })
    }
}

/// One sample of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct BatchSample<'a> {
    id: SampleId,
    data: &'a Sample,
    catalog: &'a Catalog,
}

impl<'a> BatchSample<'a> {
    /// Its number in the catalog.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// All its bytes. For a WebDataset sample this is the whole extent, including the headers
    /// between its members.
    ///
    /// The bytes are shared, not copied. A clone or slice of them keeps the whole sample in memory.
    pub fn bytes(&self) -> Bytes {
        self.data.bytes()
    }

    /// Its key in the shard (WebDataset's `__key__`, a zip member's name). `None` for files and
    /// records.
    ///
    /// # Errors
    /// If the name cannot be read from the catalog's file, or is not UTF-8 ([`Catalog::key`]).
    pub fn key(&self) -> Result<Option<Cow<'a, str>>, DatasetError> {
        self.catalog.key(self.id)
    }

    /// Its label: the first directory of its path. `None` for a file at the top.
    pub fn label(&self) -> Option<&'a str> {
        self.catalog.label(self.id)
    }

    /// Its path, relative to the dataset. For a packed sample it is only informative
    /// ([`Catalog::path`]).
    ///
    /// # Errors
    /// Those of [`Catalog::entry`].
    pub fn path(&self) -> Result<Cow<'a, str>, DatasetError> {
        self.catalog.path(self.id)
    }

    /// The member of a WebDataset sample with the extension `name` (`jpg`, `cls`, in lower case).
    /// `None` if there is none.
    ///
    /// The bytes are shared, not copied. They keep the whole sample in memory.
    pub fn field(&self, name: &str) -> Option<Bytes> {
        self.slice(self.catalog.field(self.id, name)?)
    }

    /// All members of a WebDataset sample with their names, in their order. Empty for any other
    /// sample.
    pub fn fields(&self) -> Vec<(&'a str, Bytes)> {
        // Only an unknown id has no list of fields.
        let fields = self.catalog.fields(self.id).unwrap_or_default();
        fields.into_iter().filter_map(|field| Some((field.name, self.slice(field.range)?))).collect()
    }

    fn slice(&self, range: Range<u64>) -> Option<Bytes> {
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        (range.start <= range.end && range.end <= self.data.len()).then(|| self.data.bytes().slice(range))
    }
}
