//! A dataset whose samples have owners.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_planner::HashedOwners;
use foreread_store::NodeStore;
use foreread_tier::lock;
use foreread_types::{DatasetId, SampleId, Sizes};

use super::names::text_hash;

/// A dataset of this agent.
#[derive(Debug)]
pub struct SharedDataset {
    /// Set once the store knows it.
    id: OnceLock<DatasetId>,
    /// A hash of its identity, and one of identity and location. Equal on all nodes.
    pub(super) identity: u64,
    pub(super) hash: u64,
    /// Consecutive samples that are read together, and so have one owner.
    blocks: Vec<Range<u64>>,
    /// How long its storage waits for servers that are silent, if it does.
    pub(super) patience: Option<Duration>,
    /// Whether it is read from the agent of the node.
    pub(super) is_relayed: bool,
    pub(super) sizes: Sizes,
    pub(super) catalog: Catalog,
    /// Made for the first roster with other nodes.
    buckets: OnceLock<BucketSizes>,
    /// The nodes that do not keep it.
    refused: Mutex<BTreeSet<String>>,
}

impl SharedDataset {
    /// A dataset with ascending `blocks` of samples, each with one owner.
    pub(crate) fn new(identity: &str, url: &str, catalog: Catalog, blocks: Vec<Range<u64>>) -> Self {
        let sizes = catalog.sizes();
        let identity = text_hash(identity);
        let hash = identity ^ text_hash(url).rotate_left(1);
        let (id, buckets, refused) = Default::default();
        Self {
            id,
            identity,
            hash,
            blocks,
            patience: None,
            is_relayed: false,
            sizes,
            catalog,
            buckets,
            refused,
        }
    }

    /// Sets the time that its storage waits for silent servers, and whether an agent is its
    /// storage.
    pub(crate) fn with_storage(self, patience: Option<Duration>, is_relayed: bool) -> Self {
        Self { patience, is_relayed, ..self }
    }

    pub(crate) fn set_id(&self, id: DatasetId) {
        // It is set once.
        let _ = self.id.set(id);
    }

    pub(super) fn id(&self) -> Option<DatasetId> {
        self.id.get().copied()
    }

    /// The unit that has an owner: the sample, or the block around it by its first one.
    pub(super) fn unit(&self, sample: SampleId) -> u64 {
        let at = self.blocks.partition_point(|block| block.end <= sample.0);
        self.blocks.get(at).filter(|block| block.contains(&sample.0)).map_or(sample.0, |block| block.start)
    }

    /// The sums of the buckets of owners. Visits all samples the first time.
    pub(super) fn bucket_sizes(&self) -> &BucketSizes {
        self.buckets.get_or_init(|| BucketSizes::of(self))
    }

    /// Notes whether a node does not keep it. Returns whether that is new.
    pub(super) fn set_refused(&self, node: &str, is_refused: bool) -> bool {
        let mut refused = lock(&self.refused);
        if is_refused { refused.insert(node.to_owned()) } else { refused.remove(node) }
    }

    pub(super) fn is_refused(&self, node: &str) -> bool {
        let refused = lock(&self.refused);
        !refused.is_empty() && refused.contains(node)
    }
}

/// The samples of each bucket of [`HashedOwners`], and the bytes that they take in a store.
#[derive(Debug)]
pub(super) struct BucketSizes(pub(super) Box<[(u32, u64)]>);

impl BucketSizes {
    /// Those of a dataset. Visits all of its samples.
    fn of(dataset: &SharedDataset) -> Self {
        let mut sums = vec![(0_u32, 0_u64); HashedOwners::BUCKETS].into_boxed_slice();
        for sample in (0..dataset.sizes.len()).map(SampleId) {
            let (samples, bytes) = &mut sums[HashedOwners::bucket(dataset.hash, dataset.unit(sample))];
            *samples += 1;
            *bytes += NodeStore::FOOTPRINT.of(dataset.sizes.bytes(sample));
        }
        Self(sums)
    }
}
