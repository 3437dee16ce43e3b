//! The owners of samples: the store that reads a sample from storage and keeps it for all.
//!
//! Stores that come and go have owners by a hash, weighted by their memory ([`HashedOwners`]). The
//! stores of one job have the owners of its plan. So their shares are exact, and every byte that is
//! read is one of the plan.
//!
//! # Decision and price
//!
//! Owners are computed at each use of a sample, and never stored per sample. So a roster
//! that changes costs a look at the buckets of [`HashedOwners`] and at the samples in memory,
//! whatever the length of the dataset. The price is a hash under the store's lock for each use, 10
//! ns. The sums of a dataset's buckets take 768 KiB, and one visit of all samples, once.

use std::sync::Arc;

use foreread_planner::{HashedOwners, NodeOwner, NodeOwners, Owners};
use foreread_store::NodeStore;
use foreread_types::{DatasetId, SampleId, SampleKey};

use super::shared_dataset::{BucketSizes, SharedDataset};

/// The owners among the stores of a roster. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) enum SampleOwners {
    /// By a hash.
    Hashed(HashedOwners),
    /// By a plan. Its datasets have these identities. The stores have the order of the roster.
    Planned(Owners, Arc<[u64]>),
}

impl Default for SampleOwners {
    fn default() -> Self {
        Self::Hashed(HashedOwners::default())
    }
}

impl SampleOwners {
    /// The index of the store that owns a sample. `None`: no store keeps it.
    pub(super) fn of(&self, dataset: &SharedDataset, sample: SampleId) -> Option<usize> {
        match self {
            Self::Hashed(owners) => owners.of(dataset.hash, dataset.unit(sample)),
            Self::Planned(owners, datasets) => {
                let number = datasets.iter().position(|identity| *identity == dataset.identity)?;
                let owner = owners.of(SampleKey::new(DatasetId(number as u32), sample));
                owner.map(|owner| owner.store)
            }
        }
    }
}

/// The owners of a dataset's samples, as this store sees them.
#[derive(Debug)]
pub(super) struct DatasetOwners {
    owners: SampleOwners,
    dataset: Arc<SharedDataset>,
    /// By the index of a store. A store that refuses the dataset keeps nothing for this one.
    stores: Vec<NodeOwner>,
    /// The samples that this store owns, and their bytes.
    own: (u64, u64),
}

impl DatasetOwners {
    /// Those among these stores, each by the name of its node, `None` for this one. `None` if this
    /// store owns all samples.
    pub(super) fn new<'a>(
        owners: &SampleOwners,
        others: impl Iterator<Item = Option<&'a str>>,
        dataset: &Arc<SharedDataset>,
    ) -> Option<Self> {
        let owner = |other: Option<&str>| match other {
            Some(other) if !dataset.is_refused(other) => NodeOwner::Other,
            _ => NodeOwner::This,
        };
        let stores: Vec<NodeOwner> = others.map(owner).collect();
        let is_needed = match owners {
            SampleOwners::Hashed(_) => stores.contains(&NodeOwner::Other),
            // A plan may leave samples without an owner.
            SampleOwners::Planned(..) => true,
        };
        is_needed.then(|| Self::of(owners.clone(), stores, dataset))
    }

    fn of(owners: SampleOwners, stores: Vec<NodeOwner>, dataset: &Arc<SharedDataset>) -> Self {
        let mut there = Self { owners, dataset: Arc::clone(dataset), stores, own: (0, 0) };
        let sum = |sum: (u64, u64), (samples, bytes): (u64, u64)| (sum.0 + samples, sum.1 + bytes);
        there.own = match &there.owners {
            SampleOwners::Hashed(owners) => {
                let BucketSizes(sums) = dataset.bucket_sizes();
                let is_own = |bucket| there.of_store(owners.of_bucket(bucket)) == NodeOwner::This;
                let own = (0..).zip(sums).filter(|(bucket, _)| is_own(*bucket));
                own.map(|(_, (samples, bytes))| (u64::from(*samples), *bytes)).fold((0, 0), sum)
            }
            SampleOwners::Planned(..) => {
                let own = (0..dataset.sizes.len()).map(SampleId);
                let own = own.filter(|sample| there.owner(*sample) == NodeOwner::This);
                own.map(|id| (1, NodeStore::FOOTPRINT.of(dataset.sizes.bytes(id)))).fold((0, 0), sum)
            }
        };
        there
    }

    fn of_store(&self, store: Option<usize>) -> NodeOwner {
        store.and_then(|store| self.stores.get(store)).copied().unwrap_or(NodeOwner::None)
    }
}

impl NodeOwners for DatasetOwners {
    fn owner(&self, sample: SampleId) -> NodeOwner {
        self.of_store(self.owners.of(&self.dataset, sample))
    }

    fn own_samples(&self) -> u64 {
        self.own.0
    }

    fn own_bytes(&self) -> u64 {
        self.own.1
    }
}

#[cfg(test)]
mod tests {
    use foreread_dataset::Catalog;
    use foreread_planner::OwnerNode;
    use foreread_tier::Object;

    use super::*;

    /// Objects of different lengths, the first hundred of which are read together in tens.
    fn dataset() -> Arc<SharedDataset> {
        let object = |at: u64| Object { path: format!("{at:05}").into(), size: at * 7 % 500, version: None };
        let catalog = Catalog::from_objects("s3://x", (0..3000).map(object)).unwrap();
        let blocks = (0..10).map(|block| block * 10..block * 10 + 10).collect();
        Arc::new(SharedDataset::new("identity", "s3://x", catalog, blocks))
    }

    #[test]
    // semantics: CONTROL-11
    fn sums_of_buckets_are_those_of_the_samples() {
        let (dataset, names) = (dataset(), [3, 8, 5]);
        let hashed = HashedOwners::new(&names.map(|name| OwnerNode { name, bytes: 1000 * name }));
        let owners = SampleOwners::Hashed(hashed.clone());
        for own in [[true, false, false], [false, true, true], [true; 3]] {
            let stores = own.map(|own| if own { NodeOwner::This } else { NodeOwner::Other });
            let there = DatasetOwners::of(owners.clone(), stores.to_vec(), &dataset);
            let is_own = |id: &SampleId| own[hashed.of(dataset.hash, dataset.unit(*id)).unwrap()];
            let ids: Vec<SampleId> = (0..3000).map(SampleId).filter(is_own).collect();
            let bytes: u64 = ids.iter().map(|id| NodeStore::FOOTPRINT.of(dataset.sizes.bytes(*id))).sum();
            assert_eq!((there.own_samples(), there.own_bytes()), (ids.len() as u64, bytes));
            let owned = |id: SampleId| there.owner(id) == NodeOwner::This;
            assert!((0..3000).map(SampleId).all(|id| owned(id) == is_own(&id)));
            // Samples of one block have one owner.
            assert!((0..100).all(|id| owned(SampleId(id)) == owned(SampleId(id / 10 * 10))));
        }
    }
}
