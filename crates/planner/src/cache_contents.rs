//! The samples that caches already hold when a run begins. Disks keep samples of earlier runs,
//! whatever the earlier plans were.
//!
//! A sample that lies in a store stays there. Moving it would cost more than a better place gains,
//! and caches avoid that it is read from the origin again. So these samples are placed first. If
//! several stores hold a sample, the first one counts. The table takes 4 bytes per sample of a
//! dataset with held samples.

use foreread_types::SampleKey;

use crate::level::LevelIndex;
use crate::owners::{NO_OWNER, PackedOwner, pack, unpack};

/// The store that holds each sample at the start.
///
/// ```
/// use foreread_planner::{CacheContents, LevelIndex};
/// use foreread_types::{DatasetId, SampleId, SampleKey};
/// let mut held = CacheContents::default();
/// held.add(SampleKey::new(DatasetId(0), SampleId(7)), 2, LevelIndex(1));
/// assert!(!held.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheContents {
    datasets: Vec<Vec<PackedOwner>>,
}

impl CacheContents {
    /// Records that a level of a store holds a sample. `store` is a position in
    /// [`Cluster::stores`](crate::Cluster::stores). An earlier record of the sample takes
    /// precedence.
    pub fn add(&mut self, key: SampleKey, store: usize, level: LevelIndex) {
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as usize);
        if dataset >= self.datasets.len() {
            self.datasets.resize_with(dataset + 1, Vec::new);
        }
        let table = &mut self.datasets[dataset];
        if id >= table.len() {
            table.resize(id + 1, NO_OWNER);
        }
        if table[id] == NO_OWNER {
            table[id] = pack(store, level);
        }
    }

    /// Whether no store holds a sample.
    pub fn is_empty(&self) -> bool {
        self.datasets.iter().all(Vec::is_empty)
    }

    /// The held samples of a dataset: ids with their stores and levels, ascending.
    pub(crate) fn of(&self, dataset: usize) -> impl Iterator<Item = (u64, usize, LevelIndex)> + '_ {
        let table = self.datasets.get(dataset).map_or(&[][..], Vec::as_slice);
        (0..).zip(table).filter_map(|(id, &packed)| unpack(packed).map(|(store, level)| (id, store, level)))
    }
}
