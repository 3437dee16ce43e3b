//! The parts that runs over the same data share: opened datasets, caches, limits. Created once.
//! Runs start from it one after another, and each finds the caches of the previous one.

use std::sync::Arc;

use foreread_layers::{RetryPolicy, Units};
use foreread_loader::{BlockTable, Dataset, DirectReader, LoaderParts, LocalityDeal, OnError, ReadSource};
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_tier::{Buffers, CacheTier, Tier};
use tokio::runtime::Handle;

use foreread_open::origin::OpenDataset;

#[derive(Debug)]
pub(crate) struct Assembly {
    datasets: Vec<Dataset>,
    caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
    locality: Option<Arc<LocalityDeal>>,
    look_ahead: u64,
    on_error: OnError,
    /// The blocks that the first run reads, by dataset. Stored units are for all runs.
    blocks: Vec<BlockTable>,
    in_units: bool,
    /// Whether a run has started before.
    warm: bool,
    buffers: Arc<dyn Buffers>,
}

/// How the samples of all runs are read.
#[derive(Debug)]
pub(crate) struct ReadParts {
    pub(crate) retry: RetryPolicy,
    /// The stored units, if samples share some.
    pub(crate) units: Option<Units>,
    pub(crate) buffers: Arc<dyn Buffers>,
}

impl Assembly {
    pub(crate) fn new(
        opened: Vec<OpenDataset>,
        caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
        locality: Option<Arc<LocalityDeal>>,
        look_ahead: u64,
        on_error: OnError,
        blocks: Vec<BlockTable>,
        ReadParts { retry, units, buffers }: ReadParts,
    ) -> Self {
        let in_units = units.is_some();
        let datasets = opened.into_iter().map(|dataset| {
            let read = Dataset::new(dataset.catalog, dataset.origin as Arc<dyn Tier>).with_retry(retry);
            match &units {
                Some(units) => read.with_units(units.clone()),
                None => read,
            }
        });
        let datasets = datasets.collect();
        Self { datasets, caches, locality, look_ahead, on_error, blocks, in_units, warm: false, buffers }
    }

    /// The memory of samples.
    #[cfg(all(feature = "share", target_os = "linux"))]
    pub(crate) fn buffers(&self) -> Arc<dyn Buffers> {
        Arc::clone(&self.buffers)
    }

    /// Sets the blocks of the next run.
    pub(crate) fn set_blocks(&mut self, blocks: Vec<BlockTable>) {
        self.blocks = blocks;
    }

    /// Starts a run. The previous run should have ended, or its reads compete with this run's.
    pub(crate) fn start(&mut self, run: Run, plan: LocalPlan, runtime: &Handle) -> foreread_loader::Loader {
        let mut datasets = self.datasets.clone();
        let blocks = if self.in_units { self.blocks.clone() } else { std::mem::take(&mut self.blocks) };
        for (dataset, blocks) in datasets.iter_mut().zip(blocks) {
            *dataset = dataset.clone().with_blocks(blocks);
        }
        let warm = std::mem::replace(&mut self.warm, true);
        let parts = LoaderParts {
            run,
            plan,
            datasets,
            caches: self.caches.clone(),
            buffers: Arc::clone(&self.buffers),
            look_ahead: self.look_ahead,
            on_error: self.on_error,
            locality: self.locality.clone(),
            warm,
        };
        foreread_loader::Loader::start(parts, runtime)
    }

    /// A reader outside of any run's order.
    pub(crate) fn direct(&self) -> DirectReader {
        DirectReader::new(self.datasets.clone(), self.caches.clone())
    }
}
