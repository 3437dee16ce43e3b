//! Fills the memory with a dataset ahead of its jobs, once however many ask.
//!
//! The samples are read in the order of the catalog, as for a job that will use all of them again.
//! Its weight is the lowest, so other jobs are not delayed. It takes free room and that of datasets
//! without jobs. Residents are skipped, so a later request continues where an earlier one ended. The
//! price: orders of its jobs are not known yet, so which part of a large dataset is kept is
//! arbitrary.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreread_store::{NodeStore, StoreJob, StoreRequest};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::datasets::KnownDataset;

/// Samples that are requested and not received at once.
const IN_FLIGHT: usize = 256;

/// So many samples in a row that found no room end it.
const FULL: usize = 64;

/// The datasets that are being warmed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warmings(Arc<Mutex<HashSet<DatasetId>>>);

impl Warmings {
    fn lock(&self) -> MutexGuard<'_, HashSet<DatasetId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any dataset is being warmed.
    pub(crate) fn is_active(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Begins to warm a dataset, unless it is being warmed or is in memory whole. Returns whether it
    /// is being warmed now.
    pub(crate) fn begin(&self, store: &NodeStore, runtime: &Handle, dataset: &KnownDataset) -> bool {
        if !self.lock().insert(dataset.id) {
            return true;
        }
        let ends = WarmingEnds { warmings: self.clone(), dataset: dataset.id };
        let missing =
            (0..dataset.samples).find(|id| !store.contains(SampleKey::new(dataset.id, SampleId(*id))));
        let Some(first) = missing else { return false };
        let (store, dataset) = (store.clone(), dataset.clone());
        runtime.spawn(async move {
            let job = store.add_job(true);
            let warming = WarmingJob { store, job, _ends: ends };
            tracing::info!(url = dataset.url, "fills the memory with a dataset");
            warming.run(&dataset, first).await;
        });
        true
    }
}

/// Ends a warming when it is dropped.
struct WarmingEnds {
    warmings: Warmings,
    dataset: DatasetId,
}

impl Drop for WarmingEnds {
    fn drop(&mut self) {
        self.warmings.lock().remove(&self.dataset);
    }
}

/// The agent as a job of its own store.
struct WarmingJob {
    store: NodeStore,
    job: StoreJob,
    _ends: WarmingEnds,
}

impl Drop for WarmingJob {
    fn drop(&mut self) {
        self.store.end_job(self.job);
    }
}

impl WarmingJob {
    async fn run(&self, dataset: &KnownDataset, first: u64) {
        let samples = dataset.samples;
        let (store, job, id) = (self.store.clone(), self.job, dataset.id);
        let announced = tokio::task::spawn_blocking(move || {
            // The second epoch says that all of them are used again.
            (0..2).try_for_each(|epoch| {
                store.announce(job, id, Tick(epoch * samples), (0..samples).map(SampleId))
            })
        });
        if !matches!(announced.await, Ok(Ok(()))) {
            return;
        }
        let (sender, mut received) = mpsc::unbounded_channel();
        let (mut next, mut in_flight, mut without_room) = (first, 0, 0);
        loop {
            let mut requests = Vec::new();
            while in_flight < IN_FLIGHT && next < samples {
                let key = SampleKey::new(id, SampleId(next));
                if !self.store.contains(key) {
                    let sender = sender.clone();
                    let answer = Box::new(move |_| {
                        // A closed channel: the warming has ended.
                        let _ = sender.send(key);
                    });
                    requests.push(StoreRequest { key, due: Tick(next), answer });
                    in_flight += 1;
                }
                next += 1;
            }
            self.store.request(self.job, requests);
            if in_flight == 0 {
                return;
            }
            let Some(key) = received.recv().await else { return };
            in_flight -= 1;
            without_room = if self.store.contains(key) { 0 } else { without_room + 1 };
            if without_room >= FULL {
                return;
            }
        }
    }
}
