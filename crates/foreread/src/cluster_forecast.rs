//! The forecast of a cluster in which all ranks have caches like this rank's, before machines are
//! booked.
//!
//! A rank in a group has its group's plan instead, made from the real caches of each rank.

use foreread_dataset::Catalog;
use foreread_open::error::Result;
use foreread_open::units::UnitPlan;
use foreread_oracle::Pass;
use foreread_planner::{
    Amount, CacheStore, Cluster, ClusterPlan, EpochForecast, Level, Locality, Ranks, ServerGain,
};
use foreread_types::{SampleKey, Sizes, StoreId};
use serde::Serialize;

use crate::cluster;
use crate::cluster_blocks::{ClusterBlocks, ShardedData, TRAIN, plan_cluster};
use crate::planned::{Planned, read};

/// The forecast of a run whose ranks share their caches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterForecast {
    /// Bytes that all ranks together read from the origin over the run.
    pub origin_bytes: u64,
    /// The lower bound: the fewest bytes that any policy can read.
    pub floor_origin_bytes: u64,
    /// Uses of all samples by all ranks.
    pub uses: u64,
    /// The uses that the rank's own caches are expected to serve.
    pub local_uses: u64,
    /// Whether samples go to the ranks that cache them
    /// ([`Config::locality`](crate::Config::locality)).
    pub by_locality: bool,
    /// The bandwidth between nodes that the times assume. It is not measured.
    pub assumed_network_bytes_per_second: u64,
    /// The gain of a placement by storage server. `None` if it ignores them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_gain: Option<ServerGain>,
    /// The blocks that the first epoch reads from shards, if it does.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockForecast>,
    /// The time of each epoch, if the origin's speed is known.
    #[serde(skip)]
    pub epochs: Option<Vec<EpochForecast>>,
}

/// The reads of all ranks in a first epoch in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockForecast {
    /// The longest block.
    pub block_bytes: u64,
    /// The number of blocks, each read once by the rank that owns it.
    pub blocks: u64,
    /// Bytes in blocks that belong to no sample.
    pub block_waste_bytes: u64,
    /// The requests of that epoch: blocks, and samples in no block.
    pub block_epoch_requests: u64,
}

impl Planned {
    /// Plans for all ranks together. `None` for a single rank. `train` is the catalog of the
    /// training data, if there is one. Takes seconds for tens of millions of samples.
    ///
    /// # Errors
    /// If the run cannot be planned.
    pub fn cluster_forecast(&self, train: Option<&Catalog>) -> Result<Option<ClusterForecast>> {
        let ranks = self.run.world_size();
        let Some(own) = self.cluster.stores.first().filter(|_| ranks > 1) else { return Ok(None) };
        let levels = self.levels_together(&own.levels);
        let store = |rank| CacheStore::new(StoreId(rank), levels.clone());
        let cluster = Cluster {
            stores: (0..ranks).map(store).collect(),
            ranks: Ranks::PerStore(1),
            ..self.cluster.clone()
        };
        let shards = train.filter(|_| self.may_have_blocks || self.units.is_some());
        let shards = shards.map(|catalog| ShardedData {
            catalog,
            measured: self.is_timed,
            in_units: self.units.is_some(),
        });
        let (plan, blocks) = plan_cluster(&self.counted, &self.sizes, &cluster, shards)?;
        // If the caches of all ranks hold all samples, each unit is read once.
        let once = |units: UnitPlan| UnitPlan { reads_per_epoch: 1.0, ..units };
        let units = if plan.is_in_blocks() { self.units.map(once) } else { self.units };
        let as_read = read(&cluster, units);
        let mut epochs = self.is_timed.then(|| plan.predict(&self.counted, &as_read)).transpose()?;
        if let Some(first) = epochs.as_mut().and_then(|epochs| epochs.first_mut()) {
            first.requests = blocks.table.requests(first.requests);
        }
        let local_uses = match self.config.locality {
            true => self.dealt_by_locality(&plan, &cluster)?,
            false => plan.stores().iter().fold(0, |all: u64, store| all.saturating_add(store.local.samples)),
        };
        Ok(Some(ClusterForecast {
            origin_bytes: plan.origin_bytes(),
            floor_origin_bytes: plan.floor(),
            uses: plan.uses().samples,
            local_uses,
            by_locality: self.config.locality,
            assumed_network_bytes_per_second: cluster.network.bytes_per_second,
            server_gain: plan.server_gain(),
            blocks: self.block_forecast(&blocks),
            epochs,
        }))
    }

    /// The caches of a rank among all. Memory that keeps the samples of stored units is a cache if
    /// all ranks together can hold the data.
    fn levels_together(&self, own: &[Level]) -> Vec<Level> {
        let mut levels = own.to_vec();
        let Some(units) = self.units.filter(|units| units.memory_bytes > 0) else { return levels };
        let memory = Level { capacity: units.memory_bytes, ..cluster::kinds(&self.config).swap_remove(0) };
        let each = levels.iter().chain([&memory]).map(|level| level.capacity).fold(0, u64::saturating_add);
        let data = self.sizes.iter().map(Sizes::total).fold(0, u64::saturating_add);
        if each.saturating_mul(u64::from(self.run.world_size())) >= data {
            levels.insert(0, memory);
        }
        levels
    }

    fn block_forecast(&self, ClusterBlocks { table, bytes }: &ClusterBlocks) -> Option<BlockForecast> {
        let train = self.sizes.get(TRAIN.0 as usize)?;
        let samples = Amount { samples: train.len(), bytes: train.total() };
        Some(BlockForecast {
            block_bytes: (*bytes)?,
            blocks: table.len() as u64,
            block_waste_bytes: table.waste(),
            block_epoch_requests: table.requests(samples).samples,
        })
    }

    /// The uses that dealing by locality gives to the ranks that cache the samples. The last epoch
    /// counts for each epoch, because all orders are alike. Uses that a second copy serves are not
    /// counted.
    fn dealt_by_locality(&self, plan: &ClusterPlan, cluster: &Cluster) -> Result<u64> {
        let passes: Vec<Pass> = self.counted.passes().collect();
        let last = passes.last().map(|pass| pass.epoch);
        let mut local = 0u64;
        for pass in passes.iter().filter(|pass| Some(pass.epoch) == last) {
            let mut of_pass = 0u64;
            let mut locality = Locality::new(&self.counted, pass, cluster, plan.owners())?;
            for step in 0..locality.steps() {
                for (rank, id) in locality.step(step) {
                    // Each rank has its own store.
                    let owner = plan.owner(SampleKey::new(pass.dataset, id));
                    of_pass += u64::from(owner.is_some_and(|owner| owner.store == rank.0 as usize));
                }
            }
            let epochs = passes.iter().filter(|other| other.phase == pass.phase).count() as u64;
            local = local.saturating_add(of_pass.saturating_mul(epochs));
        }
        Ok(local)
    }
}
