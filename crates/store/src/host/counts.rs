//! The counts of a store, and its present state.

use std::collections::BTreeMap;

use foreread_planner::SharedMiss;
use foreread_types::DatasetId;

use super::{OriginLimits, StoreJob, StoreMember, StoreState};

/// A gigabyte, in bytes.
const GIGABYTE: f64 = 1e9;

/// Samples and bytes since a store was made, or a job was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Requests that were answered from memory.
    pub hits: u64,
    /// Requests that joined the read of another request.
    pub joined: u64,
    /// Samples that were read from a disk of this node.
    pub disk_reads: u64,
    /// Samples that other nodes of the cluster had or have read.
    pub node_reads: u64,
    /// Samples that were read from their origins.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Requests for them. One for the samples of a block.
    pub requests: u64,
    /// Reads that failed.
    pub failures: u64,
}

/// The state of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStatus {
    /// The bytes that samples may take.
    pub capacity: u64,
    /// The bytes that samples take, with all overhead.
    pub held_bytes: u64,
    /// The number of samples in memory.
    pub samples: u64,
    /// Samples that are being read, or wait for that.
    pub reading: u64,
    /// The counts so far.
    pub counts: StoreCounts,
    /// The jobs.
    pub jobs: BTreeMap<StoreJob, JobState>,
    /// The datasets, by their numbers.
    pub datasets: Vec<DatasetState>,
    /// The origins that are read from.
    pub origins: Vec<OriginState>,
}

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobState {
    /// The counts so far. Reads are counted for the job for which they began.
    pub counts: StoreCounts,
    /// Samples that it has requested and not received.
    pub waiting: u64,
    /// Its share of an origin's time.
    pub weight: u32,
    /// The part of its uses that needs no read of its own, at best: by the paces of all jobs, their
    /// orders and the samples in memory. `None` if no order is known.
    pub expected_hit_share: Option<f64>,
}

/// The state of a dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetState {
    /// Its samples that no other node of the cluster keeps.
    pub own_samples: u64,
    /// Its samples in memory or on disks of the node.
    pub kept_samples: u64,
    /// Its samples in memory.
    pub held_samples: u64,
    /// The bytes that they take.
    pub held_bytes: u64,
    /// The counts so far.
    pub counts: StoreCounts,
    /// Bytes per second that would not be read from its origin with a gigabyte more of memory, by
    /// the paces of the jobs. 0 if no order is known.
    pub saved_by_gb: f64,
}

/// The state of an origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OriginState {
    /// Its name.
    pub name: String,
    /// Its limits.
    pub limits: OriginLimits,
    /// Reads under way.
    pub reading: u64,
    /// Reads that wait for their turn.
    pub queued: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
}

/// The use of an origin by a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginUse {
    /// The name of the origin.
    pub origin: String,
    /// The job.
    pub job: StoreJob,
    /// Its reads that wait for their turn.
    pub queued: u64,
    /// The bytes that were read for it.
    pub read_bytes: u64,
}

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
                // A job's present dataset is the last that it has begun. Its other datasets have
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
    /// The bytes that all of it takes there.
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
    /// Sets the expected hit shares of jobs, and the savings by more memory.
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
