//! Where a store reads samples: at their origin, on a disk of the node, or on another node.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use foreread_tier::{ErrorKind, ReadFuture, TierError};
use foreread_types::{SampleId, Tick};
use futures::future::BoxFuture;

use super::store_job::StoreJob;

/// Where a store reads the samples of a dataset.
pub trait SampleReader: fmt::Debug + Send + Sync + 'static {
    /// Starts to read a sample. Reads of a lower `order` go first.
    fn read(&self, id: SampleId, order: Tick) -> ReadFuture;

    /// Ends a burst of reads.
    fn submit(&self);

    /// The block of a sample, if one request reads several samples.
    fn block(&self, id: SampleId) -> Option<SampleBlock> {
        let _ = id;
        None
    }

    /// Starts to read samples of one block. Returns their reads, in the order of `ids`.
    fn read_block(&self, ids: Vec<SampleId>, order: Tick) -> BoxFuture<'static, Vec<ReadFuture>> {
        let reads = ids.into_iter().map(|id| self.read(id, order)).collect();
        Box::pin(std::future::ready(reads))
    }

    /// How many reads are of use at once, at present.
    fn parallelism(&self) -> usize;

    /// Whether a disk of this node may keep samples.
    fn has_disk(&self) -> bool {
        false
    }

    /// Reads a sample that a disk of this node has. After an error, it is read from its store.
    fn read_disk(&self, id: SampleId) -> ReadFuture {
        let _ = id;
        Box::pin(async { Err(TierError::new(ErrorKind::Absent, "disk")) })
    }

    /// Reads a sample that another node of the cluster keeps, for the use of a job at `due`. After
    /// an error, it is read from its store.
    fn read_node(&self, id: SampleId, job: StoreJob, due: Tick) -> ReadFuture {
        let _ = (id, job, due);
        Box::pin(async { Err(TierError::new(ErrorKind::Absent, "cluster")) })
    }

    /// Takes a sample that was read, for a disk of this node. Calls `kept` if the disk then has it,
    /// and drops it otherwise. Meanwhile requests for the sample are answered from memory.
    fn keep_on_disk(&self, id: SampleId, bytes: Bytes, kept: Box<dyn FnOnce() + Send>) {
        let _ = (id, bytes, kept);
    }
}

/// Consecutive samples that one request reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleBlock {
    /// Their numbers.
    pub samples: Range<u64>,
    /// The bytes of the request.
    pub bytes: u64,
    /// Whether it is decoded as a whole, however few of its samples are read.
    pub is_unit: bool,
}
