//! The owners of a dataset's samples at one roster, as the store of a node asks for them.
//!
//! # Decision and price
//!
//! Owners are computed for each sample that is asked for, and never stored per sample. So a roster
//! that changes costs a look at the buckets of [`HashedOwners`] and at the samples in memory,
//! whatever the length of the dataset. The price is a hash under the store's lock for each use, 10
//! ns. The sums of a dataset's buckets take 768 KiB, and one visit of all samples, once.

use std::sync::Arc;

use foreread_planner::{HashedOwners, OtherOwners};
use foreread_store::NodeStore;
use foreread_types::SampleId;

use super::roster::ClusterView;
use super::shared_dataset::SharedDataset;

/// The samples of each bucket of [`HashedOwners`], and the bytes that they take in a store.
#[derive(Debug)]
pub(super) struct BucketSizes(Box<[(u32, u64)]>);

impl BucketSizes {
    /// Those of a dataset. Visits all of its samples.
    pub(super) fn of(dataset: &SharedDataset) -> Self {
        let mut sums = vec![(0_u32, 0_u64); HashedOwners::BUCKETS].into_boxed_slice();
        for sample in (0..dataset.sizes.len()).map(SampleId) {
            let (samples, bytes) = &mut sums[HashedOwners::bucket(dataset.hash, dataset.unit(sample))];
            *samples += 1;
            *bytes += NodeStore::FOOTPRINT.of(dataset.sizes.bytes(sample));
        }
        Self(sums)
    }
}

/// The samples of a dataset that other nodes own, and keep.
#[derive(Debug)]
pub(super) struct OwnedElsewhere {
    owners: HashedOwners,
    dataset: Arc<SharedDataset>,
    /// By the index of a node, whether it is another one and keeps the dataset.
    keep: Vec<bool>,
    samples: u64,
    bytes: u64,
}

impl OwnedElsewhere {
    /// Those of a roster. `None` without other nodes.
    pub(super) fn new(view: &ClusterView, dataset: &Arc<SharedDataset>) -> Option<Self> {
        let keep: Vec<bool> =
            view.others().map(|name| name.is_some_and(|it| !dataset.is_refused(it))).collect();
        keep.contains(&true).then(|| Self::of(view.owners.clone(), keep, dataset))
    }

    fn of(owners: HashedOwners, keep: Vec<bool>, dataset: &Arc<SharedDataset>) -> Self {
        let mut there = Self { owners, dataset: Arc::clone(dataset), keep, samples: 0, bytes: 0 };
        let BucketSizes(sums) = dataset.bucket_sizes();
        let own = (0..).zip(sums).filter(|(bucket, _)| there.has(*bucket));
        let sum = own.fold((0, 0), |sum, (_, (samples, bytes))| (sum.0 + u64::from(*samples), sum.1 + bytes));
        (there.samples, there.bytes) = sum;
        there
    }

    fn has(&self, bucket: usize) -> bool {
        self.owners.of_bucket(bucket).and_then(|node| self.keep.get(node)).is_some_and(|keeps| *keeps)
    }
}

impl OtherOwners for OwnedElsewhere {
    fn own(&self, sample: SampleId) -> bool {
        self.has(HashedOwners::bucket(self.dataset.hash, self.dataset.unit(sample)))
    }

    fn samples(&self) -> u64 {
        self.samples
    }

    fn bytes(&self) -> u64 {
        self.bytes
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
        let owners = HashedOwners::new(&names.map(|name| OwnerNode { name, bytes: 1000 * name }));
        for keep in [vec![false, true, true], vec![true, false, false], vec![false; 3]] {
            let there = OwnedElsewhere::of(owners.clone(), keep.clone(), &dataset);
            let own = |id: &SampleId| keep[owners.of(dataset.hash, dataset.unit(*id)).unwrap()];
            let ids: Vec<SampleId> = (0..3000).map(SampleId).filter(own).collect();
            let bytes: u64 = ids.iter().map(|id| NodeStore::FOOTPRINT.of(dataset.sizes.bytes(*id))).sum();
            assert_eq!((there.samples(), there.bytes()), (ids.len() as u64, bytes));
            assert!((0..3000).map(SampleId).all(|id| there.own(id) == own(&id)));
            // Samples of one block have one owner.
            assert!((0..100).all(|id| there.own(SampleId(id)) == there.own(SampleId(id / 10 * 10))));
        }
    }
}
