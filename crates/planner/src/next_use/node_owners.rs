//! Which node owns each sample of a dataset that several nodes share.

use std::fmt::Debug;

use foreread_types::SampleId;

/// Who owns a sample, as one node sees it. The owner reads it from storage and keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeOwner {
    /// This node.
    This,
    /// Another node.
    Other,
    /// No node: it is read where it is used, and stays in free room only.
    None,
}

/// The owners of a dataset's samples, as one node sees them. The answers of one value never change,
/// so owners that change are another value.
pub trait NodeOwners: Debug + Send + Sync {
    /// Who owns a sample. Called at each use of a sample, under the cache's lock.
    fn owner(&self, sample: SampleId) -> NodeOwner;

    /// The number of samples that this node owns.
    fn own_samples(&self) -> u64;

    /// The bytes that they occupy in this cache.
    fn own_bytes(&self) -> u64;
}
