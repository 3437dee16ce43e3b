//! What caches hold already when a run begins: disks remember earlier runs, whatever those had planned.
//!
//! A sample that lies in a store is left there: moving it would cost more than any better place gains, and reading it
//! from the origin again is what caches are there to avoid. So these are placed before all others. Where several stores
//! hold a sample, the first one counts. Four bytes a sample of a dataset of which anything is held.

use foreread_types::SampleKey;

use crate::cluster::LevelIndex;
use crate::owners::{NOBODY, Packed, pack, unpack};

/// Which store holds which sample at the start.
///
/// ```
/// use foreread_planner::{Held, LevelIndex};
/// use foreread_types::{DatasetId, SampleId, SampleKey};
/// let mut held = Held::default();
/// held.add(SampleKey::new(DatasetId(0), SampleId(7)), 2, LevelIndex(1));
/// assert!(!held.is_nothing());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    datasets: Vec<Vec<Packed>>,
}

impl Held {
    /// Says that a level of a store (by its position in [`Cluster::stores`](crate::Cluster::stores)) holds a sample; what
    /// was said of it before stands.
    pub fn add(&mut self, key: SampleKey, store: usize, level: LevelIndex) {
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as usize);
        if dataset >= self.datasets.len() {
            self.datasets.resize_with(dataset + 1, Vec::new);
        }
        let table = &mut self.datasets[dataset];
        if id >= table.len() {
            table.resize(id + 1, NOBODY);
        }
        if table[id] == NOBODY {
            table[id] = pack(store, level);
        }
    }

    /// Whether nobody holds anything.
    pub fn is_nothing(&self) -> bool {
        self.datasets.iter().all(Vec::is_empty)
    }

    /// What is held of a dataset: ids with their stores and levels, ascending.
    pub(crate) fn of(&self, dataset: usize) -> impl Iterator<Item = (u64, usize, LevelIndex)> + '_ {
        let table = self.datasets.get(dataset).map_or(&[][..], Vec::as_slice);
        (0..).zip(table).filter_map(|(id, &packed)| unpack(packed).map(|(store, level)| (id, store, level)))
    }
}
