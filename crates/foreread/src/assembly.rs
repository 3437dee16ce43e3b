//! What runs over the same data share: opened datasets, caches, limits. Made once; one run after
//! another is started from it, and what one has left in the caches is there for the next.

use std::sync::Arc;

use foreread_layers::RetryPolicy;
use foreread_loader::{BlockTable, Dataset, DirectReader, LoaderParts, OnError, PeerGroup, ReadSource};
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_tier::{CacheTier, Tier};
use tokio::runtime::Handle;

use crate::origin::OpenDataset;

#[derive(Debug)]
pub(crate) struct Assembly {
    datasets: Vec<Dataset>,
    caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
    others: Option<PeerGroup>,
    look_ahead: u64,
    on_error: OnError,
    /// What the first run reads in blocks.
    blocks: Option<BlockTable>,
    /// Whether there has been a run.
    warm: bool,
}

impl Assembly {
    pub(crate) fn new(
        opened: Vec<OpenDataset>,
        caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
        others: Option<PeerGroup>,
        look_ahead: u64,
        on_error: OnError,
        blocks: BlockTable,
        retry: RetryPolicy,
    ) -> Self {
        let datasets = opened
            .into_iter()
            .map(|dataset| Dataset::new(dataset.catalog, dataset.origin as Arc<dyn Tier>).with_retry(retry));
        let (datasets, blocks) = (datasets.collect(), Some(blocks));
        Self { datasets, caches, others, look_ahead, on_error, blocks, warm: false }
    }

    /// Starts a run. The one before it has ended, or its reads compete with this one's.
    pub(crate) fn start(&mut self, run: Run, plan: LocalPlan, runtime: &Handle) -> foreread_loader::Loader {
        let mut datasets = self.datasets.clone();
        if let (Some(train), Some(blocks)) = (datasets.first_mut(), self.blocks.take()) {
            *train = train.clone().with_blocks(blocks);
        }
        let warm = std::mem::replace(&mut self.warm, true);
        let parts = LoaderParts {
            run,
            plan,
            datasets,
            caches: self.caches.clone(),
            look_ahead: self.look_ahead,
            on_error: self.on_error,
            others: self.others.clone(),
            warm,
        };
        foreread_loader::Loader::start(parts, runtime)
    }

    /// Reads outside of any run's order.
    pub(crate) fn direct(&self) -> DirectReader {
        DirectReader::new(self.datasets.clone(), self.caches.clone())
    }
}
