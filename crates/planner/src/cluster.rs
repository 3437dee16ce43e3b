//! The description of stores, ranks and speeds that a plan is computed from.
//!
//! Descriptions are plain values that the caller fills in, equal on every rank. All figures are
//! integers in bytes, bytes per second and nanoseconds, so plans are equal bit by bit on every
//! machine. Unknown figures have a default that does not limit. A plan without figures still has
//! the right placement, and only its prediction is too optimistic.

use std::fmt;
use std::sync::Arc;

use foreread_types::{Footprint, Rank, StoreId};

use crate::cache_contents::CacheContents;
use crate::curve::Curve;
use crate::error::PlanReason;
use crate::origin::Origin;
use crate::servers::OriginServers;

/// The maximum number of levels of a store: as many as fit next to "nowhere" in two bits per
/// sample.
pub const MAX_LEVELS: usize = 3;

/// The maximum number of stores of a cluster.
const MAX_STORES: usize = u16::MAX as usize;

/// A level of a store, by its position in [`CacheStore::levels`]. 0 is the fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LevelIndex(pub u8);

impl fmt::Display for LevelIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One cache level of a store: its memory or its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The name in reports.
    pub name: String,
    /// The capacity in bytes.
    pub capacity: u64,
    /// The bytes that a sample takes.
    pub footprint: Footprint,
    /// The read throughput in bytes per second, by number of threads.
    pub read: Curve,
    /// The write throughput in bytes per second, by number of threads.
    pub write: Curve,
    /// The number of threads that read and write. Not 0.
    pub threads: u32,
}

impl Level {
    /// A level of unknown speed, which never limits.
    pub fn new(name: impl Into<String>, capacity: u64, footprint: Footprint) -> Self {
        let (read, write) = (Curve::unlimited(), Curve::unlimited());
        Self { name: name.into(), capacity, footprint, read, write, threads: 1 }
    }
}

/// The caches of one process or node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStore {
    /// The number in the cluster. No two stores share one.
    pub id: StoreId,
    /// The node. Stores of one node reach each other without the network.
    pub node: u32,
    /// The levels, fastest first: memory, then disk. At most [`MAX_LEVELS`]. A store without levels
    /// keeps nothing.
    pub levels: Vec<Level>,
}

impl CacheStore {
    /// A store on a separate node of the same number.
    pub fn new(id: StoreId, levels: Vec<Level>) -> Self {
        Self { id, node: id.0, levels }
    }

    /// The capacity of all levels in bytes. Saturates at `u64::MAX`.
    pub fn capacity(&self) -> u64 {
        self.levels.iter().fold(0, |sum, level| sum.saturating_add(level.capacity))
    }
}

/// The store of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Rank r uses `stores[r / n]`: n ranks per node, numbered node after node.
    PerStore(u32),
    /// Rank r uses `stores[table[r]]`.
    Table(Arc<[u32]>),
}

impl Default for Ranks {
    /// All ranks use the first store.
    fn default() -> Self {
        Self::PerStore(u32::MAX)
    }
}

/// The speed of the network between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Bytes per second that one node sends, and that it receives. Not 0.
    pub bytes_per_second: u64,
    /// Nanoseconds from a request to its first byte.
    pub latency_ns: u64,
    /// The number of requests that one rank has in flight. Not 0.
    pub in_flight: u32,
}

impl Default for Network {
    /// 10 Gbit/s, 100 us, 64 requests in flight.
    fn default() -> Self {
        Self { bytes_per_second: 1_250_000_000, latency_ns: 100_000, in_flight: 64 }
    }
}

/// The processing speed of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trainer {
    /// Bytes per second that it decodes and augments. Not 0.
    pub preprocess: u64,
    /// Bytes per second that it trains on. Not 0.
    pub compute: u64,
    /// The throughput into the staging buffer in bytes per second, by number of threads.
    pub staging: Curve,
    /// The number of threads that fill it. Not 0.
    pub staging_threads: u32,
}

impl Default for Trainer {
    /// A trainer that only waits for samples.
    fn default() -> Self {
        Self { preprocess: u64::MAX, compute: u64::MAX, staging: Curve::unlimited(), staging_threads: 1 }
    }
}

/// The description of the machines that a plan needs.
///
/// ```
/// use foreread_planner::{Cluster, Level, Ranks, CacheStore};
/// use foreread_types::{Footprint, Rank, StoreId};
/// // 8 ranks on two nodes, the second of which has no disk.
/// let memory = Level::new("memory", 64 << 30, Footprint::EXACT);
/// let disk = Level::new("disk", 1 << 40, Footprint::new(16, 4096));
/// let stores = vec![
///     CacheStore::new(StoreId(0), vec![memory.clone(), disk]),
///     CacheStore::new(StoreId(1), vec![memory]),
/// ];
/// let cluster = Cluster { stores, ranks: Ranks::PerStore(4), ..Cluster::default() };
/// assert_eq!(cluster.store_of(Rank(5)).map(|store| store.id), Some(StoreId(1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The caches.
    pub stores: Vec<CacheStore>,
    /// The store of each rank.
    pub ranks: Ranks,
    /// Bytes of samples that each rank reads ahead of its trainer, outside of every level. They
    /// count in the lower bound only: a sample in the look-ahead at an epoch boundary need not be
    /// read again.
    pub look_ahead: u64,
    /// The cost of reads from the origin.
    pub origin: Origin,
    /// The cost of reads from another node.
    pub network: Network,
    /// The processing speed of each rank.
    pub trainer: Trainer,
    /// The samples that the caches already hold. [`plan_cluster`](crate::plan_cluster) leaves them
    /// in place. A rule without tables and a plan of a single rank ignore them.
    pub held: CacheContents,
    /// The storage servers of samples, if they are known. Placements that stay then even the
    /// servers' remaining times, if that is predicted to gain a tenth. A rule without tables
    /// ignores them.
    pub servers: Option<OriginServers>,
}

impl Default for Cluster {
    /// One store without capacity.
    fn default() -> Self {
        Self {
            stores: vec![CacheStore::default()],
            ranks: Ranks::default(),
            look_ahead: 0,
            origin: Origin::default(),
            network: Network::default(),
            trainer: Trainer::default(),
            held: CacheContents::default(),
            servers: None,
        }
    }
}

impl Cluster {
    /// One store that all ranks use.
    pub fn single(store: CacheStore) -> Self {
        Self { stores: vec![store], ..Self::default() }
    }

    /// The store of a rank, or `None` if the description has none for it.
    pub fn store_of(&self, rank: Rank) -> Option<&CacheStore> {
        self.stores.get(self.store_index(rank)?)
    }

    /// The position of a rank's store in [`stores`](Self::stores). `None` if there is none.
    pub fn store_index(&self, rank: Rank) -> Option<usize> {
        Some(match &self.ranks {
            Ranks::PerStore(ranks) => rank.0.checked_div(*ranks)? as usize,
            Ranks::Table(table) => *table.get(rank.0 as usize)? as usize,
        })
    }

    /// The position of each rank's store. The description must have been checked.
    pub(crate) fn stores_of_ranks(&self, world_size: u32) -> Vec<u16> {
        (0..world_size).map(|rank| self.store_index(Rank(rank)).unwrap_or(0) as u16).collect()
    }

    /// The number of these ranks that use each store.
    pub(crate) fn ranks_of(&self, stores: &[u16]) -> Vec<u32> {
        let mut ranks = vec![0; self.stores.len()];
        stores.iter().for_each(|&store| ranks[usize::from(store)] += 1);
        ranks
    }

    /// The capacity of all levels of all stores in bytes. Saturates at `u64::MAX`.
    pub fn capacity(&self) -> u64 {
        self.stores.iter().fold(0, |sum, store| sum.saturating_add(store.capacity()))
    }

    /// Validates the description for a run of `world_size` ranks. Errors name the field. They are:
    /// a rank without a store, too many stores or levels, two stores with one number, a rate of 0,
    /// a curve without points.
    pub(crate) fn check(&self, world_size: u32) -> Result<(), PlanReason> {
        let found = self.stores.len();
        if found > MAX_STORES {
            return Err(PlanReason::Stores { found, most: MAX_STORES });
        }
        for (at, store) in self.stores.iter().enumerate() {
            store.check(at)?;
        }
        let mut ids: Vec<StoreId> = self.stores.iter().map(|store| store.id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlanReason::StoreTwice { id: pair[0] });
        }
        match &self.ranks {
            Ranks::PerStore(0) => return Err(PlanReason::Zero { field: "ranks.per_store" }),
            Ranks::Table(table) if table.len() as u64 != u64::from(world_size) => {
                return Err(PlanReason::RankTable { found: table.len(), world_size });
            }
            _ => {}
        }
        if let Some(rank) = (0..world_size).find(|&rank| self.store_of(Rank(rank)).is_none()) {
            return Err(PlanReason::NoStore { rank: Rank(rank), found });
        }
        self.origin.check()?;
        if let Some(servers) = &self.servers {
            servers.check()?;
        }
        let (network, trainer) = (&self.network, &self.trainer);
        for (field, value) in [
            ("network.bytes_per_second", network.bytes_per_second),
            ("network.in_flight", network.in_flight.into()),
            ("trainer.preprocess", trainer.preprocess),
            ("trainer.compute", trainer.compute),
            ("trainer.staging_threads", trainer.staging_threads.into()),
        ] {
            if value == 0 {
                return Err(PlanReason::Zero { field });
            }
        }
        trainer.staging.check("trainer.staging")
    }
}

impl CacheStore {
    fn check(&self, at: usize) -> Result<(), PlanReason> {
        let found = self.levels.len();
        if found > MAX_LEVELS {
            return Err(PlanReason::Levels { store: at, found, most: MAX_LEVELS });
        }
        for (index, level) in self.levels.iter().enumerate() {
            level.read.check(&format!("stores[{at}].levels[{index}].read"))?;
            level.write.check(&format!("stores[{at}].levels[{index}].write"))?;
            if level.threads == 0 {
                return Err(PlanReason::Threads { store: at, level: index });
            }
        }
        Ok(())
    }
}
