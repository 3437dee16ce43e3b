//! What a run will read and where it keeps it: settings and sizes in, order and plan out. No I/O.

use std::sync::Arc;

use foreread_memory::MemoryTier;
use foreread_oracle::{
    Feistel, OracleError, Phase, PhaseKind, Position, Run, Sampler, Schedule, Sequential, Shuffle, Torch,
};
use foreread_planner::{Cluster, Floor, Level, Origin, Plan, Scope, Store, plan};
use foreread_tier::{CacheTier, Tier};
use foreread_types::{DatasetId, Rank, Sizes, StoreId};

use crate::config::{Config, Memory, SamplerKind};
use crate::error::Result;
use crate::memory;

/// The sampler of a training pass.
///
/// # Errors
/// If the sampler cannot order so many samples.
pub fn sampler(kind: SamplerKind, samples: u64, seed: u64) -> Result<Arc<dyn Sampler>, OracleError> {
    Ok(match kind {
        SamplerKind::Shuffle => Arc::new(Shuffle::new(samples, seed)?),
        SamplerKind::Torch => Arc::new(Torch::new(samples, seed)?),
        SamplerKind::Feistel => Arc::new(Feistel::new(samples, seed)?),
        SamplerKind::Sequential => Arc::new(Sequential::new(samples)?),
    })
}

/// What was found where the run is to take place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Whether the kernel keeps what is read from the origin, so that automatic memory takes none.
    pub(crate) kernel_cached: bool,
    /// The room of the disk tier, in bytes of footprints.
    pub(crate) disk: u64,
    /// What the disk tier holds already, in bytes: the first epoch need not read it, so the floor is lower by that.
    pub(crate) warm: u64,
}

/// One rank's run, planned.
#[derive(Debug)]
pub struct Planned {
    pub(crate) config: Config,
    pub(crate) run: Run,
    pub(crate) cluster: Cluster,
    pub(crate) plan: Arc<Plan>,
    pub(crate) floor: u64,
}

impl Planned {
    /// Plans a run over datasets of these sizes: training first, then validation where there is a second. The disk tier
    /// counts as cold.
    ///
    /// Takes a fraction of a second for a million samples; not for a runtime's thread.
    ///
    /// # Errors
    /// If the settings make no sense or contradict each other.
    pub fn new(config: Config, sizes: &[Sizes]) -> Result<Self> {
        let room = config.disk.iter().map(|disk| disk.bytes).sum();
        Self::resumed(config, sizes, Place { kernel_cached: false, disk: room, warm: 0 }, |_| Ok(None))
    }

    /// The same for what is left of a run from the position that `start` finds in its schedule.
    pub(crate) fn resumed(
        config: Config,
        sizes: &[Sizes],
        place: Place,
        start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
    ) -> Result<Self> {
        let config = config.validated()?;
        let schedule = Arc::new(schedule(&config, sizes)?);
        let (deal, world_size, rank) = (config.deal, config.world_size, Rank(config.rank));
        let run = match start(&schedule)? {
            None => Run::new(schedule, deal, world_size, rank)?,
            Some(position) => Run::resume(schedule, deal, world_size, rank, &position)?,
        };
        let memory = match config.memory {
            Memory::Bytes(bytes) => bytes,
            // The kernel's cache is no help against a limit that the user has put on the origin.
            Memory::Auto if place.kernel_cached && config.origin_limit.is_none() => 0,
            Memory::Auto => memory::automatic(config.look_ahead),
        };
        let cluster = cluster(&config, memory, place.disk);
        let plan = plan(&run, sizes, &cluster)?;
        let floor = floor(&run, sizes, &cluster, &plan)?.saturating_sub(place.warm);
        Ok(Self { config, run, cluster, plan: Arc::new(plan), floor })
    }

    /// What the run was asked to do.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What this rank reads, and when.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The caches of this rank and the origin, as the plan saw them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Where samples are kept.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The fewest origin bytes that any policy can read for this run, over all ranks together, if every rank has caches
    /// like this one's.
    pub fn floor(&self) -> u64 {
        self.floor
    }
}

fn schedule(config: &Config, sizes: &[Sizes]) -> Result<Schedule> {
    let mut phases = Vec::new();
    for (dataset, sizes) in sizes.iter().enumerate() {
        let (kind, order) = match dataset {
            0 => (PhaseKind::Train, config.sampler),
            _ => (PhaseKind::Validation, SamplerKind::Sequential),
        };
        phases.push(Phase {
            kind,
            dataset: DatasetId(dataset as u32),
            sampler: sampler(order, sizes.len(), config.seed)?,
            batch_size: Some(config.batch_size),
            // Every validation sample counts, whatever training drops.
            drop_last: kind == PhaseKind::Train && config.drop_last,
        });
    }
    Ok(Schedule::new(config.epochs, phases)?)
}

fn cluster(config: &Config, memory: u64, disk: u64) -> Cluster {
    let tier = MemoryTier::new(0);
    let mut levels = vec![Level::new(tier.name(), memory, tier.footprint())];
    #[cfg(feature = "local")]
    levels.push(Level::new("disk", disk, foreread_local::DiskTier::FOOTPRINT));
    levels.retain(|level| level.capacity > 0);
    let mut origin = Origin::default();
    if let Some(limit) = config.origin_limit {
        origin.bytes_per_second = limit;
    }
    let store = Store::new(StoreId(config.rank), levels);
    Cluster { look_ahead: config.look_ahead, origin, ..Cluster::single(store) }
}

fn floor(run: &Run, sizes: &[Sizes], cluster: &Cluster, plan: &Plan) -> Result<u64> {
    if run.world_size() == 1 {
        return Ok(plan.floor());
    }
    let rank = cluster.capacity().saturating_add(cluster.look_ahead);
    let all = rank.saturating_mul(u64::from(run.world_size()));
    Ok(Floor::of(run, sizes, all, Scope::Cluster)?.bytes)
}
