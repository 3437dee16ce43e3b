//! The decisions of foreread's planner for a scenario: owners and second copies.
//!
//! The planner counts in whole bytes and whole bytes per second. Capacities are rounded down and
//! equal those of the simulator's caches, so every sample that the planner has placed fits. Rates
//! are rounded to the nearest. One worker is one rank with a store on its own node. A read has the
//! speed that the file system gives one worker while all read, without latency. So all bytes are
//! worth the same.

use foreread_oracle::Run;
use foreread_planner::{
    CacheStore, Cluster, ClusterPlan, Curve, Level, LevelIndex, Locality, Network, Origin, OriginServers,
    PlanError, Ranks, SecondCopy, ServerSpeed, Trainer, plan_cluster_and_copies,
};
use foreread_types::{Footprint, SampleId, SampleKey, StoreId};

use crate::copies::ClassSpace;
use crate::oracle_run::{DATASET, run};
use crate::plan::Setup;
use crate::scenario::{Scenario, StorageClass};
use crate::workload::{MB, Streams};

/// The planner's decisions and their inputs.
#[derive(Debug)]
pub(crate) struct PlannerDecisions {
    run: Run,
    cluster: Cluster,
    plan: ClusterPlan,
    second: Vec<SecondCopy>,
}

impl PlannerDecisions {
    pub(crate) fn new(setup: &Setup<'_>) -> Result<Self, PlanError> {
        Self::with_servers(setup, None)
    }

    /// The decisions that even the time of the file system's servers.
    pub(crate) fn by_server(setup: &Setup<'_>) -> Result<Self, PlanError> {
        Self::with_servers(setup, Some(servers(setup.scenario)))
    }

    fn with_servers(setup: &Setup<'_>, servers: Option<OriginServers>) -> Result<Self, PlanError> {
        let (run, sizes) = run(setup.workload)?;
        let cluster = Cluster { servers, ..cluster(setup.scenario)? };
        let (plan, second) = plan_cluster_and_copies(&run, &[sizes], &cluster)?;
        Ok(Self { run, cluster, plan, second })
    }

    /// The worker that owns a sample, and the class in which it keeps it.
    pub(crate) fn owner(&self, sample: u32) -> Option<(usize, usize)> {
        let owner = self.plan.owner(SampleKey::new(DATASET, SampleId(sample.into())))?;
        Some((owner.store, class(owner.level)))
    }

    /// Second copies of the dataset's `samples`: sample, worker, class.
    pub(crate) fn second(&self, samples: u32) -> impl Iterator<Item = (u32, usize, usize)> {
        let real = self.second.iter().filter(move |copy| copy.key.id.0 < samples.into());
        real.map(|copy| (copy.key.id.0 as u32, copy.store, class(copy.level)))
    }

    /// The streams of a workload with every global batch dealt by ownership. The length of shares
    /// stays the same.
    pub(crate) fn deal(&self, setup: &Setup<'_>) -> Result<Streams, PlanError> {
        let shape = setup.workload.streams.shape;
        let samples = u64::from(setup.scenario.samples);
        let mut ids: Vec<Vec<u32>> = vec![Vec::new(); setup.workers()];
        let mut batch = 0;
        for pass in self.run.passes() {
            let mut locality = Locality::new(&self.run, &pass, &self.cluster, self.plan.owners())?;
            for step in 0..locality.steps() {
                let ends: Vec<usize> = (ids.iter().enumerate())
                    .map(|(worker, ids)| ids.len() + shape.share(worker, batch).len())
                    .collect();
                for (rank, id) in locality.step(step).filter(|(_, id)| id.0 < samples) {
                    ids[rank.0 as usize].push(id.0 as u32);
                }
                // Padding of a batch may have been dealt to any worker, and not to the last ones.
                let over = |ids: &mut Vec<u32>, end: usize| ids.split_off(end.min(ids.len()));
                let mut spare: Vec<u32> =
                    ids.iter_mut().zip(&ends).flat_map(|(ids, &end)| over(ids, end)).collect();
                for (ids, end) in ids.iter_mut().zip(ends) {
                    ids.extend(spare.drain(..end - ids.len()));
                }
                batch += 1;
            }
        }
        Ok(Streams { ids, shape })
    }
}

/// The class of a level. The first class is the staging buffer, which is not a level.
fn class(level: LevelIndex) -> usize {
    usize::from(level.0) + 1
}

/// The planner's description of a scenario's machines.
fn cluster(scenario: &Scenario) -> Result<Cluster, PlanError> {
    let space = ClassSpace::new(scenario);
    let workers = scenario.workers as u32;
    let level = |(index, class): (usize, &StorageClass)| {
        Ok(Level {
            read: curve(&class.read)?,
            write: curve(&class.write)?,
            threads: class.threads as u32,
            ..Level::new(format!("class {index}"), space.capacity(index), Footprint::EXACT)
        })
    };
    let levels: Vec<Level> =
        scenario.storage.iter().enumerate().skip(1).map(level).collect::<Result<_, PlanError>>()?;
    let staging = &scenario.storage[0];
    Ok(Cluster {
        stores: (0..workers).map(|worker| CacheStore::new(StoreId(worker), levels.clone())).collect(),
        ranks: Ranks::PerStore(1),
        look_ahead: space.capacity(0),
        origin: Origin {
            latency_ns: 0,
            bytes_per_second: rate(busy(scenario)),
            client_bytes_per_second: rate(scenario.pfs_client),
            clients: curve(&scenario.pfs)?,
            ..Origin::default()
        },
        network: Network { bytes_per_second: rate(scenario.network), latency_ns: 0, ..Network::default() },
        trainer: Trainer {
            preprocess: rate(scenario.preprocess),
            compute: rate(scenario.compute),
            staging: curve(&staging.write)?,
            staging_threads: staging.threads as u32,
        },
        ..Cluster::default()
    })
}

/// The file system's servers, of which each gives a worker its part of the throughput while all
/// workers read.
fn servers(scenario: &Scenario) -> OriginServers {
    let count = scenario.pfs_servers.len();
    let part = busy(scenario) / count as f64;
    let speed = |&share: &f64| ServerSpeed { latency_ns: 0, bytes_per_second: rate(part * share) };
    let table = (0..scenario.samples).map(|sample| (sample as usize % count) as u16);
    OriginServers::new(scenario.pfs_servers.iter().map(speed).collect(), vec![table.collect()])
}

/// MB/s of one worker from the file system while all workers read.
fn busy(scenario: &Scenario) -> f64 {
    (scenario.pfs.at(scenario.workers) / scenario.workers as f64).min(scenario.pfs_client)
}

/// Bytes per second from MB/s, at least 1 as the planner requires.
fn rate(mb: f64) -> u64 {
    ((mb * MB).round() as u64).max(1)
}

fn curve(rates: &crate::Curve) -> Result<Curve, PlanError> {
    Curve::new(rates.points().iter().map(|&(at, mb)| (at, rate(mb))).collect())
}
