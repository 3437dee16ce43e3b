//! The jobs of this store, and the orders that other stores may still need.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use foreread_store::StoreJob;
use foreread_store::attach::{Attach, AttachDataset, EpochOrder, ReadInBlocks};
use foreread_tier::lock;

use super::shared_dataset::SharedDataset;

/// The epochs of a job that owners may still need, per dataset.
const MOST_ORDERS: usize = 3;

/// A job of this store.
#[derive(Debug)]
pub(super) struct SharedJob {
    /// Other stores know it by this number.
    pub(super) number: u32,
    pub(super) job: StoreJob,
    pub(super) attach: Attach,
    /// `None` for a dataset that this store does not keep.
    pub(super) datasets: Vec<Option<Arc<SharedDataset>>>,
    orders: Mutex<VecDeque<Arc<EpochOrder>>>,
    /// Datasets with shards that are read in blocks at first, by their numbers.
    blocks: Mutex<BTreeMap<u32, ReadInBlocks>>,
}

impl SharedJob {
    pub(super) fn new(
        number: u32,
        job: StoreJob,
        attach: Attach,
        datasets: Vec<Option<Arc<SharedDataset>>>,
    ) -> Self {
        let (orders, blocks) = Default::default();
        Self { number, job, attach, datasets, orders, blocks }
    }

    /// The job for a store whose node has ranks of the same run. It has the identities of the
    /// datasets alone, without settings, which may be secrets.
    pub(super) fn attach_of_plan(&self) -> Attach {
        let dataset = |of: &AttachDataset| AttachDataset {
            identity: of.identity.clone(),
            samples: of.samples,
            ..AttachDataset::default()
        };
        let datasets = self.attach.datasets.iter().map(dataset).collect();
        Attach { datasets, ..self.attach.clone() }
    }

    pub(super) fn dataset(&self, number: u32) -> Option<&Arc<SharedDataset>> {
        self.datasets.get(number as usize)?.as_ref()
    }

    pub(super) fn read_in_blocks(&self, blocks: ReadInBlocks) {
        lock(&self.blocks).insert(blocks.dataset, blocks);
    }

    /// Datasets with shards that are read in blocks at first.
    pub(super) fn blocks(&self) -> Vec<ReadInBlocks> {
        lock(&self.blocks).values().copied().collect()
    }

    /// Keeps an order for owners that come later.
    pub(super) fn add(&self, order: EpochOrder) -> Arc<EpochOrder> {
        let order = Arc::new(order);
        let mut orders = lock(&self.orders);
        let is_same = |other: &Arc<EpochOrder>| other.dataset == order.dataset;
        if orders.iter().filter(|other| is_same(other)).count() >= MOST_ORDERS
            && let Some(oldest) = orders.iter().position(is_same)
        {
            orders.remove(oldest);
        }
        orders.push_back(Arc::clone(&order));
        order
    }

    pub(super) fn restart(&self) {
        lock(&self.orders).clear();
    }

    pub(super) fn orders(&self) -> Vec<Arc<EpochOrder>> {
        lock(&self.orders).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use foreread_types::Tick;

    use super::*;

    #[test]
    fn old_orders_of_a_dataset_are_forgotten() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let job = foreread_store::NodeStore::new(0, runtime.handle().clone()).add_job(false);
        let shared = SharedJob::new(0, job, Attach::default(), Vec::new());
        for first in 0..5 {
            for dataset in 0..2 {
                let per_position = NonZeroU32::MIN;
                shared.add(EpochOrder { dataset, first: Tick(first), per_position, samples: vec![1] });
            }
        }
        let firsts: Vec<(u32, u64)> = shared.orders().iter().map(|it| (it.dataset, it.first.0)).collect();
        assert_eq!(firsts, [(0, 2), (1, 2), (0, 3), (1, 3), (0, 4), (1, 4)]);
        shared.restart();
        assert!(shared.orders().is_empty());
    }
}
