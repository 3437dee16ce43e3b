//! Fills the memory with a dataset ahead of its jobs, once however many ask.
//!
//! The samples are read in the order of the catalog. The weight of these reads is the lowest, so
//! other jobs are hardly delayed. They take free room, and that of datasets without jobs. Residents
//! are skipped, so a later request continues where an earlier one ended. Samples that another node
//! of the cluster keeps are skipped, too. The price: the orders of later jobs are not known yet, so
//! it is arbitrary which part of a large dataset is kept.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use foreread_store::attach::{WarmAnswer, WarmRequest};
use foreread_store::{ConnectionId, NodeStore, StoreJob, StoreRequest};
use foreread_tier::{TierError, lock};
use foreread_types::{DatasetId, SampleId, Tick};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::disk::HostDisk;

use crate::datasets::KnownDataset;
use crate::host_state::HostState;

/// Samples that are requested and not received at once.
const IN_FLIGHT: usize = 256;

/// So many samples are looked at before other tasks have a turn.
const YIELD_AFTER: u64 = 4096;

/// So many samples in a row that found no room end it.
const FULL: usize = 64;

/// The datasets that are being warmed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warmings(Arc<Mutex<HashSet<DatasetId>>>);

impl Warmings {
    /// Whether any dataset is being warmed.
    pub(crate) fn is_active(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Whether a dataset is being warmed.
    pub(crate) fn contains(&self, dataset: DatasetId) -> bool {
        lock(&self.0).contains(&dataset)
    }

    /// Begins to warm some samples of a dataset, unless it is being warmed.
    pub(crate) fn begin(
        &self,
        store: &NodeStore,
        runtime: &Handle,
        dataset: &KnownDataset,
        samples: Range<u64>,
        disk: Option<Arc<HostDisk>>,
    ) {
        if !lock(&self.0).insert(dataset.id) {
            return;
        }
        let ends = WarmingEnds { warmings: self.clone(), dataset: dataset.id };
        let (store, dataset) = (store.clone(), dataset.clone());
        runtime.spawn(async move {
            let job = store.add_filling_job();
            let warming = WarmingJob { store, job, disk, _ends: ends };
            tracing::info!(url = dataset.url, "fills the memory with a dataset");
            warming.run(&dataset, samples).await;
        });
    }
}

/// The samples of one of several equal parts of a dataset, and all of them for no parts.
pub(crate) fn samples_of_part(samples: u64, (part, parts): (u32, u32)) -> Range<u64> {
    let at = |part: u32| {
        let before = u128::from(samples) * u128::from(part.min(parts)) / u128::from(parts.max(1));
        before as u64
    };
    if parts == 0 { 0..samples } else { at(part)..at(part.saturating_add(1)) }
}

impl HostState {
    /// Fills the memory with a dataset of a job, if the request says so, and answers how much is
    /// there.
    pub(crate) fn warm(
        self: &Arc<Self>,
        connection: ConnectionId,
        request: WarmRequest,
    ) -> Result<WarmAnswer, TierError> {
        let dataset = self.dataset(connection, request.dataset)?;
        let mut there = self.store.totals().datasets[dataset.id.0 as usize].clone();
        let elsewhere = dataset.kept_elsewhere(&self.store);
        there.held_samples += elsewhere.held_samples;
        there.held_bytes += elsewhere.held_bytes;
        there.kept_samples += elsewhere.held_samples + elsewhere.disk_samples;
        if request.begin && there.kept_samples < there.own_samples {
            let is_shared = there.own_samples < dataset.samples;
            // In a cluster, each node has a part already.
            let part = if is_shared { (0, 1) } else { request.part };
            let samples = samples_of_part(dataset.samples, part);
            self.warmings.begin(&self.store, &self.runtime, &dataset, samples, self.disk().cloned());
        }
        // A warming ends a moment after its last sample is there.
        let is_active = there.kept_samples < there.own_samples && self.warmings.contains(dataset.id);
        let disk = self.disk().zip(dataset.on_disk).map_or((0, 0), |(disk, number)| disk.held(number));
        Ok(WarmAnswer {
            is_active,
            kept_samples: there.kept_samples,
            // Second copies are not part of the samples to fill.
            held_samples: there.held_samples.min(there.own_samples),
            held_bytes: there.held_bytes,
            disk_samples: disk.0 + elsewhere.disk_samples,
            disk_bytes: disk.1 + elsewhere.disk_bytes,
            samples: there.own_samples,
        })
    }
}

/// Ends a warming when it is dropped.
struct WarmingEnds {
    warmings: Warmings,
    dataset: DatasetId,
}

impl Drop for WarmingEnds {
    fn drop(&mut self) {
        lock(&self.warmings.0).remove(&self.dataset);
    }
}

/// The agent as a job of its own store.
struct WarmingJob {
    store: NodeStore,
    job: StoreJob,
    disk: Option<Arc<HostDisk>>,
    _ends: WarmingEnds,
}

impl Drop for WarmingJob {
    fn drop(&mut self) {
        self.store.end_job(self.job);
    }
}

impl WarmingJob {
    async fn run(&self, dataset: &KnownDataset, samples: Range<u64>) {
        let (sender, mut received) = mpsc::unbounded_channel();
        let (mut next, mut in_flight, mut without_room) = (samples.start, 0, 0);
        loop {
            while in_flight < IN_FLIGHT && next < samples.end && without_room < FULL {
                let key = dataset.key(SampleId(next));
                next += 1;
                if self.store.has(key) || !self.store.owns(key) {
                    // A large dataset must not take a thread from reads for long.
                    if next.is_multiple_of(YIELD_AFTER) {
                        tokio::task::yield_now().await;
                    }
                    continue;
                }
                let sender = sender.clone();
                let answer = Box::new(move |_| {
                    // A closed channel: the warming has ended.
                    let _ = sender.send(());
                });
                self.store.request(self.job, vec![StoreRequest { key, due: Tick(next), answer }]);
                in_flight += 1;
                // Its room was found, or not, at the request.
                let has_room =
                    self.store.contains(key) || self.disk.as_ref().is_some_and(|disk| disk.has_room());
                without_room = if has_room { 0 } else { without_room + 1 };
            }
            if in_flight == 0 || received.recv().await.is_none() {
                return;
            }
            in_flight -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_whole() {
        let of = |part| samples_of_part(10, part);
        assert_eq!((of((0, 0)), of((0, 1))), (0..10, 0..10));
        assert_eq!([0, 1, 2].map(|part| of((part, 3))), [0..3, 3..6, 6..10]);
        // A request of another program may be anything.
        assert_eq!(of((7, 3)), 10..10);
        assert_eq!(samples_of_part(u64::MAX, (u32::MAX - 1, u32::MAX)).end, u64::MAX);
    }
}
