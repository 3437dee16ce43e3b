//! Samples that are at hand besides memory: on a disk of this node, or on another node.
//!
//! A hit on such a sample saves no read of the origin. So it stays only in room that no other
//! sample needs.

use std::sync::Arc;

use foreread_types::{DatasetId, SampleId, SampleKey};

use super::NextUseCache;
use super::dataset_residents::DatasetResidents;
use super::node_owners::{NodeOwner, NodeOwners};

impl NextUseCache {
    /// Notes whether a disk of the node has a sample. A hit on such a sample saves no read of the
    /// origin, so it is the first victim. An unknown one changes nothing.
    pub fn set_on_disk(&mut self, key: SampleKey, is_on_disk: bool) {
        let (dataset, id) = (key.dataset.0 as usize, key.id.0 as u32);
        let is_known = self.samples(key.dataset).is_ok_and(|samples| key.id.0 < samples);
        if !is_known || self.datasets[dataset].is_on_disk(id) == is_on_disk {
            return;
        }
        let is_resident = self.datasets[dataset].is_resident(id);
        if is_resident {
            self.remove(dataset, id);
        }
        self.datasets[dataset].set_on_disk(id, is_on_disk);
        if is_resident {
            self.restore(key);
        }
    }

    /// Sets the owners of a dataset's samples. `None`: this node owns all. A sample that it does
    /// not own stays in room that no other needs, and is the first victim. It visits the residents
    /// and the samples on disks, and no others. An unknown dataset changes nothing.
    pub fn set_owners(&mut self, dataset: DatasetId, owners: Option<Arc<dyn NodeOwners>>) {
        let index = dataset.0 as usize;
        let Some(there) = self.datasets.get(index) else { return };
        let moved = there.moved_by(owners.as_deref());
        moved.iter().for_each(|id| self.remove(index, *id));
        self.datasets[index].set_owners(owners);
        for id in moved {
            self.restore(SampleKey::new(dataset, SampleId(u64::from(id))));
        }
    }

    /// The owner of a sample.
    pub fn owner(&self, key: SampleKey) -> NodeOwner {
        let dataset = self.datasets.get(key.dataset.0 as usize);
        dataset.map_or(NodeOwner::This, |dataset| dataset.owner(key.id.0 as u32))
    }

    /// The samples of a dataset that this node owns, and that are resident or on a disk of the
    /// node.
    pub fn kept(&self, dataset: DatasetId) -> u64 {
        self.datasets.get(dataset.0 as usize).map_or(0, DatasetResidents::kept)
    }

    /// The bytes of the samples of a dataset that this node owns.
    pub fn own_bytes(&self, dataset: DatasetId) -> u64 {
        self.datasets.get(dataset.0 as usize).map_or(0, DatasetResidents::own_bytes)
    }

    /// The samples of a dataset that this node owns.
    pub fn own_samples(&self, dataset: DatasetId) -> u64 {
        self.datasets.get(dataset.0 as usize).map_or(0, DatasetResidents::own_samples)
    }

    /// Whether a disk of the node has a sample.
    pub fn is_on_disk(&self, key: SampleKey) -> bool {
        let dataset = self.datasets.get(key.dataset.0 as usize);
        dataset.is_some_and(|dataset| dataset.is_on_disk(key.id.0 as u32))
    }
}
