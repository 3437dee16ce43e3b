//! Reads the samples of a dataset, from their owners if these are other stores.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use foreread_store::{SampleBlock, SampleReader, StoreJob};
use foreread_tier::ReadFuture;
use foreread_types::{SampleId, Tick};
use futures::future::BoxFuture;

use super::ClusterCache;
use super::shared_dataset::SharedDataset;
use super::work::absent;

/// The reader of a dataset in a store that may be a part of a cluster's cache.
#[derive(Debug)]
pub struct ClusterReader {
    pub(crate) own: Arc<dyn SampleReader>,
    pub(crate) dataset: Arc<SharedDataset>,
    /// Not kept alive by the store that it has.
    pub(crate) cluster: Weak<ClusterCache>,
}

impl SampleReader for ClusterReader {
    fn read(&self, id: SampleId, order: Tick) -> ReadFuture {
        self.own.read(id, order)
    }

    fn submit(&self) {
        self.own.submit();
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.submit();
        }
    }

    fn block(&self, id: SampleId) -> Option<SampleBlock> {
        self.own.block(id)
    }

    fn read_block(&self, ids: Vec<SampleId>, order: Tick) -> BoxFuture<'static, Vec<ReadFuture>> {
        self.own.read_block(ids, order)
    }

    fn parallelism(&self) -> usize {
        self.own.parallelism()
    }

    fn has_disk(&self) -> bool {
        self.own.has_disk()
    }

    fn read_disk(&self, id: SampleId) -> ReadFuture {
        self.own.read_disk(id)
    }

    fn read_node(&self, id: SampleId, job: StoreJob, due: Tick) -> ReadFuture {
        let reading = self.cluster.upgrade().and_then(|cluster| cluster.read(&self.dataset, id, job, due));
        reading.unwrap_or_else(|| Box::pin(async { Err(absent()) }))
    }

    fn keep_on_disk(&self, id: SampleId, bytes: Bytes, kept: Box<dyn FnOnce() + Send>) {
        self.own.keep_on_disk(id, bytes, kept);
    }
}
