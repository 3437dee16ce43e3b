//! The announced orders of one job: which epoch a request belongs to, and its position in it.
//!
//! The rule knows the present epoch of a job and the one after it. Further ones wait here. A job
//! may read several datasets in turn (training and validation). Each is a job of its own for the
//! rule.

use std::collections::{BTreeMap, VecDeque};

use foreread_planner::{CacheJob, EpochUses, JobStart, NextUseCache, PlanError};
use foreread_types::{DatasetId, SampleKey, Tick};

use super::store_job::StoreRequest;

/// The pace of a job until it is measured.
const NS_PER_SAMPLE: u64 = 1_000_000;

/// Epochs of one dataset that are known. Jobs announce three.
const MOST_EPOCHS: usize = 16;

/// The orders of one job.
#[derive(Default)]
pub(super) struct JobOrders {
    datasets: BTreeMap<DatasetId, DatasetOrders>,
    /// Requests that wait for the first order. `None` if none is waited for.
    waiting: Option<Vec<StoreRequest>>,
}

/// The job's orders over one dataset.
struct DatasetOrders {
    job: CacheJob,
    /// The present epoch, the one after it, and further ones.
    epochs: VecDeque<Epoch>,
}

struct Epoch {
    first: Tick,
    length: u64,
    /// `None` if the rule has it.
    uses: Option<EpochUses>,
}

impl JobOrders {
    pub(super) fn new(is_ordered: bool) -> Self {
        Self { datasets: BTreeMap::new(), waiting: is_ordered.then(Vec::new) }
    }

    /// Keeps a request that has to wait for the first order, and returns any other.
    pub(super) fn wait(&mut self, request: StoreRequest) -> Option<StoreRequest> {
        match &mut self.waiting {
            Some(waiting) => {
                waiting.push(request);
                None
            }
            None => Some(request),
        }
    }

    /// Ends the wait for the first order, and returns the requests that have waited.
    pub(super) fn stop_waiting(&mut self) -> Vec<StoreRequest> {
        self.waiting.take().unwrap_or_default()
    }

    /// Adds the next epoch over a dataset, whose first use is at `first`.
    pub(super) fn announce(
        &mut self,
        cache: &mut NextUseCache,
        dataset: DatasetId,
        first: Tick,
        uses: EpochUses,
        now_ns: u64,
    ) -> Result<(), PlanError> {
        let mut epoch = Epoch { first, length: uses.positions(), uses: None };
        match self.datasets.get_mut(&dataset) {
            None => {
                let start = JobStart { now_ns, position: 0, ns_per_sample: NS_PER_SAMPLE };
                let job = cache.add_ordered_job(dataset, start, uses, None)?;
                self.datasets.insert(dataset, DatasetOrders { job, epochs: VecDeque::from([epoch]) });
            }
            // A job that announces for ever must not fill the memory.
            Some(orders) if orders.epochs.len() >= MOST_EPOCHS => {}
            Some(orders) => {
                if orders.epochs.len() == 1 {
                    cache.follow(orders.job, uses)?;
                } else {
                    epoch.uses = Some(uses);
                }
                orders.epochs.push_back(epoch);
            }
        }
        Ok(())
    }

    /// The rule's job of a request, and the position in its present epoch. `None` if no order has
    /// announced it.
    pub(super) fn position(
        &mut self,
        cache: &mut NextUseCache,
        key: SampleKey,
        due: Tick,
    ) -> Option<(CacheJob, u32)> {
        let orders = self.datasets.get_mut(&key.dataset)?;
        while let Some(next) = orders.epochs.get(1)
            && due >= next.first
        {
            orders.epochs.pop_front();
            let following = orders.epochs.get_mut(1).and_then(|epoch| epoch.uses.take());
            // The table is over this dataset: it was checked when the first one was added.
            let _ = cache.begin_ordered_epoch(orders.job, following);
        }
        let epoch = orders.epochs.front()?;
        let position = due.0.checked_sub(epoch.first.0).filter(|position| *position < epoch.length)?;
        Some((orders.job, position as u32))
    }

    /// Whether the job's orders over a dataset have uses of a sample to come. `None` without any.
    pub(super) fn will_use(&self, cache: &NextUseCache, key: SampleKey) -> Option<bool> {
        self.datasets.get(&key.dataset).map(|orders| cache.will_use(orders.job, key.id))
    }

    /// The job's datasets whose orders are known, with its pace in epochs per second.
    pub(super) fn paces(&self, cache: &NextUseCache) -> impl Iterator<Item = (DatasetId, f64)> {
        self.datasets.iter().filter_map(|(dataset, orders)| {
            let samples = cache.samples(*dataset).ok()?.max(1);
            Some((*dataset, cache.samples_per_second(orders.job)? / samples as f64))
        })
    }

    /// Ends the job for the rule.
    pub(super) fn end(&mut self, cache: &mut NextUseCache) {
        for orders in std::mem::take(&mut self.datasets).into_values() {
            cache.end_job(orders.job);
        }
    }
}
