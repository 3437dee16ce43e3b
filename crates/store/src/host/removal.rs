//! The end of a dataset: its tables and its reader leave, and its number stays taken.

use std::sync::Arc;

use foreread_tier::{ErrorKind, ReadFuture, TierError, lock};
use foreread_types::{DatasetId, SampleId, SampleKey, Sizes, Tick};

use super::NodeStore;
use super::sample_reader::SampleReader;
use super::state::StoreState;

/// Reads nothing: of a dataset that was removed.
#[derive(Debug)]
struct NoReader;

impl SampleReader for NoReader {
    fn read(&self, _: SampleId, _: Tick) -> ReadFuture {
        Box::pin(async { Err(TierError::new(ErrorKind::Closed, "store")) })
    }

    fn submit(&self) {}

    fn parallelism(&self) -> usize {
        1
    }
}

impl NodeStore {
    /// Forgets a dataset with its tables, unless it has samples in memory or under way. Its number
    /// is not used again. No job may use it. `false` if it stays.
    pub fn remove_dataset(&self, dataset: DatasetId) -> bool {
        let mut state = lock(&self.0.state);
        let is_of = |key: &SampleKey| key.dataset == dataset;
        let is_busy =
            |state: &StoreState| state.flights.keys().any(is_of) || state.written_behind.keys().any(is_of);
        if state.cache.residents(dataset).0 > 0 || is_busy(&state) || !state.cache.clear_dataset(dataset) {
            return false;
        }
        state.failed_blocks.retain(|key| !is_of(key));
        let removed = state.datasets.get_mut(dataset.0 as usize).map(|there| {
            there.footprints = Sizes::table(&[]);
            std::mem::replace(&mut there.reader, Arc::new(NoReader))
        });
        drop(state);
        drop(removed);
        true
    }
}
