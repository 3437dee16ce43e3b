//! The status of a store, computed from its tables.
//!
//! The expected hit shares take long. So [`OrderPaces`] are collected under the store's lock, and
//! the shares follow from them without it.

use std::collections::BTreeMap;

use foreread_planner::SharedMiss;
use foreread_types::DatasetId;

use super::counts::{DatasetState, JobState, OriginState, OriginUse, StoreStatus};
use super::state::{StoreMember, StoreState};
use super::store_job::StoreJob;

/// A gigabyte, in bytes.
const GIGABYTE: f64 = 1e9;

/// Samples of a dataset with room in memory that are still being read.
#[derive(Clone, Copy, Debug, Default)]
struct ArrivingSamples {
    residents: u64,
    /// Those of them that no disk of the node has.
    not_on_disk: u64,
}

impl StoreState {
    pub(super) fn origin_uses(&self) -> Vec<OriginUse> {
        let uses = self.origins.iter().flat_map(|origin| {
            origin.uses().into_iter().map(|(job, (queued, read_bytes))| OriginUse {
                origin: origin.name.clone(),
                job,
                queued,
                read_bytes,
            })
        });
        uses.collect()
    }

    pub(super) fn status(&self) -> StoreStatus {
        StoreStatus {
            capacity: self.capacity,
            held_bytes: self.cache.held_bytes(),
            samples: self.samples.len() as u64,
            reading: self.flights.len() as u64,
            counts: self.counts,
            jobs: self.job_states(),
            datasets: self.dataset_states(),
            origins: self.origin_states(),
        }
    }

    fn dataset_states(&self) -> Vec<DatasetState> {
        // A sample has its room from its request on, and is there when its read has ended.
        let mut arriving = vec![ArrivingSamples::default(); self.datasets.len()];
        for (key, flight) in &self.flights {
            if let Some(of) = arriving.get_mut(key.dataset.0 as usize)
                && self.cache.contains(*key)
            {
                of.residents += 1;
                of.not_on_disk += u64::from(!flight.is_on_disk);
            }
        }
        let states = (0..).zip(&self.datasets).zip(arriving).map(|((number, dataset), arriving)| {
            let (residents, held_bytes) = self.cache.residents(DatasetId(number));
            let held_samples = residents.saturating_sub(arriving.residents);
            let kept = self.cache.kept(DatasetId(number));
            let kept_samples = kept.saturating_sub(arriving.not_on_disk);
            let own_samples = self.cache.own_samples(DatasetId(number));
            let (counts, saved_by_gb) = (dataset.counts, 0.0);
            DatasetState { own_samples, kept_samples, held_samples, held_bytes, counts, saved_by_gb }
        });
        states.collect()
    }

    fn origin_states(&self) -> Vec<OriginState> {
        let states = self.origins.iter().enumerate().map(|(index, origin)| {
            let here = self.datasets.iter().filter(|dataset| dataset.origin == index);
            OriginState {
                name: origin.name.clone(),
                limits: origin.limits,
                reading: origin.reading() as u64,
                queued: origin.queue.len() as u64,
                read_bytes: here.map(|dataset| dataset.counts.read_bytes).sum(),
            }
        });
        states.collect()
    }

    fn job_states(&self) -> BTreeMap<StoreJob, JobState> {
        let states = self.jobs.iter().map(|(job, member)| {
            let StoreMember { counts, waiting, weight, .. } = member;
            let (counts, waiting, weight) = (*counts, *waiting, weight.get());
            (*job, JobState { counts, waiting, weight, expected_hit_share: None })
        });
        states.collect()
    }

    /// The inputs of the expected hit shares.
    pub(super) fn order_paces(&self) -> OrderPaces {
        let mut orders = OrderPaces::default();
        for (job, member) in &self.jobs {
            for (dataset, pace) in member.orders.paces(&self.cache) {
                let held = self.held_share(dataset);
                let of = orders.datasets.entry(dataset).or_default();
                of.held = held;
                of.bytes = self.footprint(dataset);
                let order = of.orders.entry(member.convoy).or_default();
                (order.fastest, order.jobs) = (order.fastest.max(pace), order.jobs + 1.0);
                // A job's present dataset is the last dataset that it has begun. Its others have
                // ended.
                orders.jobs.insert(*job, (dataset, member.convoy));
            }
        }
        orders
    }

    /// The memory that the samples of a dataset take which this node keeps.
    fn footprint(&self, dataset: DatasetId) -> u64 {
        self.cache.own_bytes(dataset)
    }

    /// The part of them that is in memory.
    fn held_share(&self, dataset: DatasetId) -> f64 {
        let all = self.footprint(dataset);
        let (_, held) = self.cache.residents(dataset);
        if all == 0 { 1.0 } else { (held as f64 / all as f64).min(1.0) }
    }
}

/// The paces of the jobs' orders. The shares that follow from them take a while to compute, and are
/// computed without the store's lock.
#[derive(Debug, Default)]
pub(super) struct OrderPaces {
    datasets: BTreeMap<DatasetId, DatasetPaces>,
    /// The present dataset of each job, and its convoy.
    jobs: BTreeMap<StoreJob, (DatasetId, u64)>,
}

#[derive(Debug, Default)]
struct DatasetPaces {
    /// The part that is in memory.
    held: f64,
    /// The bytes of all of it there.
    bytes: u64,
    /// By convoy.
    orders: BTreeMap<u64, OrderPace>,
}

/// The fastest pace of an order, and the number of its jobs.
#[derive(Debug, Default)]
struct OrderPace {
    fastest: f64,
    jobs: f64,
}

impl DatasetPaces {
    /// The part of the uses that misses, with so much more of the dataset in memory.
    fn miss(&self, more: f64) -> f64 {
        let paces: Vec<f64> = self.orders.values().map(|order| order.fastest).collect();
        SharedMiss::of(&paces, self.held + more).miss
    }

    /// Bytes per second that a gigabyte more would save.
    fn saved_by_gb(&self) -> f64 {
        let (bytes, pace) = (self.bytes.max(1) as f64, self.orders.values().map(|order| order.fastest));
        (self.miss(0.0) - self.miss(GIGABYTE / bytes)).max(0.0) * pace.sum::<f64>() * bytes
    }
}

impl OrderPaces {
    /// Sets the expected hit shares of jobs, and the savings of more memory.
    pub(super) fn expect(&self, status: &mut StoreStatus) {
        let misses: BTreeMap<DatasetId, f64> =
            self.datasets.iter().map(|(dataset, of)| (*dataset, of.miss(0.0))).collect();
        for (job, (dataset, convoy)) in &self.jobs {
            let jobs = self.datasets[dataset].orders[convoy].jobs;
            if let Some(state) = status.jobs.get_mut(job) {
                state.expected_hit_share = Some(1.0 - misses[dataset] / jobs);
            }
        }
        for (dataset, of) in &self.datasets {
            if let Some(state) = status.datasets.get_mut(dataset.0 as usize) {
                state.saved_by_gb = of.saved_by_gb();
            }
        }
    }
}
