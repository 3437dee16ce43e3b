//! Samples that are at hand besides memory: on a disk of this node, or on another node.
//!
//! A hit on such a sample saves no read of the origin. So it stays only in room that no other
//! sample needs.

use foreread_types::{DatasetId, SampleKey};

use super::NextUseCache;
use super::dataset_residents::DatasetResidents;

impl NextUseCache {
    /// Notes whether a disk of the node has a sample. A hit on such a sample saves no read of the
    /// origin, so it is the first victim. An unknown one changes nothing.
    pub fn set_on_disk(&mut self, key: SampleKey, is_on_disk: bool) {
        self.note_copy(key, DatasetResidents::is_on_disk, DatasetResidents::set_on_disk, is_on_disk);
    }

    /// Notes whether another node of the cluster keeps a sample for this one. Such a sample stays
    /// in room that no other needs, and is the first victim. An unknown one changes nothing.
    pub fn set_elsewhere(&mut self, key: SampleKey, is_elsewhere: bool) {
        self.note_copy(key, DatasetResidents::is_elsewhere, DatasetResidents::set_elsewhere, is_elsewhere);
    }

    /// Whether another node of the cluster keeps a sample.
    pub fn is_elsewhere(&self, key: SampleKey) -> bool {
        let dataset = self.datasets.get(key.dataset.0 as usize);
        dataset.is_some_and(|dataset| dataset.is_elsewhere(key.id.0 as u32))
    }

    /// Changes whether there is another copy of a sample. Predicts its next use again if it is
    /// resident.
    fn note_copy(
        &mut self,
        key: SampleKey,
        is_set: fn(&DatasetResidents, u32) -> bool,
        set: fn(&mut DatasetResidents, u32, bool),
        value: bool,
    ) {
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as u32);
        let is_known = self.samples(key.dataset).is_ok_and(|samples| key.id.0 < samples);
        if !is_known || is_set(&self.datasets[dataset], id) == value {
            return;
        }
        let is_resident = self.datasets[dataset].is_resident(id);
        if is_resident {
            self.remove(dataset, id);
        }
        set(&mut self.datasets[dataset], id, value);
        if is_resident {
            self.restore(key);
        }
    }

    /// The samples of a dataset that are resident, or that a disk of the node has, of those that no
    /// other node keeps.
    pub fn kept(&self, dataset: DatasetId) -> u64 {
        self.datasets.get(dataset.0 as usize).map_or(0, DatasetResidents::kept)
    }

    /// The bytes of the samples of a dataset that no other node keeps.
    pub fn own_bytes(&self, dataset: DatasetId) -> u64 {
        let own = |there: &DatasetResidents| there.costs().sizes.total() - there.bytes_elsewhere;
        self.datasets.get(dataset.0 as usize).map_or(0, own)
    }

    /// The samples of a dataset that no other node keeps.
    pub fn own_samples(&self, dataset: DatasetId) -> u64 {
        self.datasets.get(dataset.0 as usize).map_or(0, DatasetResidents::own_samples)
    }

    /// Whether a disk of the node has a sample.
    pub fn is_on_disk(&self, key: SampleKey) -> bool {
        let dataset = self.datasets.get(key.dataset.0 as usize);
        dataset.is_some_and(|dataset| dataset.is_on_disk(key.id.0 as u32))
    }
}
