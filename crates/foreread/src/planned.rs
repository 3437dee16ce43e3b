//! Plans a run: settings and sizes in, order and plan out. No I/O.

use std::sync::Arc;
use std::time::Duration;

use foreread_loader::BlockTable;
use foreread_memory::MemoryTier;
use foreread_open::error::Result;
use foreread_open::stored::{StoredFactors, StoredSizes};
use foreread_open::units::{RoomForAll, UnitFacts, UnitPlan, unit_memory};
use foreread_oracle::{OracleError, Phase, PhaseKind, Position, Run, Sampler, SamplerKind, Schedule, Subset};
use foreread_planner::{
    Cluster, EpochForecast, Level, LevelPlan, LocalPlan, LowerBound, OriginServers, Plan, Scope, block_bytes,
    plan, plan_to_keep, predict,
};
use foreread_tier::CacheTier;
use foreread_types::{DatasetId, Rank, RankOf, SampleId, Sizes};
use serde::Serialize;

use crate::cluster;
#[cfg(all(feature = "share", target_os = "linux"))]
use crate::cluster_blocks::{ShardedData, TRAIN, plan_cluster};
use crate::config::{Config, Memory};
use crate::memory::{Grant, MemoryNeed};

/// An endless run is planned for at most this many uses and epochs, and for at least
/// [`ENDLESS_MIN_EPOCHS`] epochs.
const ENDLESS_MAX_USES: u64 = 1 << 24;
const ENDLESS_MAX_EPOCHS: u64 = 100;
const ENDLESS_MIN_EPOCHS: u64 = 4;

/// The sampler of a training pass.
///
/// # Errors
/// If the sampler cannot order so many samples.
pub fn sampler(kind: SamplerKind, samples: u64, seed: u64) -> Result<Arc<dyn Sampler>, OracleError> {
    kind.sampler(samples, seed)
}

/// The run's surroundings: page cache, disks, location of the data.
#[derive(Clone, Debug)]
pub(crate) struct RunEnvironment {
    /// Whether the kernel caches the origin, so that automatic memory is none.
    pub(crate) kernel_cached: bool,
    /// The capacity of the disk tier, in bytes of footprints.
    pub(crate) disk: u64,
    /// The bytes on the disk tier at the start, which lower the bound of bytes from the origin.
    pub(crate) warm: u64,
    /// Whether an agent keeps samples of the run.
    pub(crate) has_agent: bool,
    /// Whether this rank's samples come from an agent or the cache of its node. Those read stored
    /// units.
    pub(crate) is_client: bool,
    /// The URL of the training data. `None` if they are given by sizes only.
    pub(crate) url: Option<String>,
    /// Whether they are in shards.
    pub(crate) packed: bool,
    /// The stored lengths of samples, if some are decoded.
    pub(crate) stored: Option<StoredSizes>,
    /// The storage servers of samples, if their speeds are known.
    pub(crate) servers: Option<OriginServers>,
}

impl RunEnvironment {
    /// Whether blocks may be read: data in the page cache cost no requests, and blocks are read
    /// without decoding.
    fn may_have_blocks(&self) -> bool {
        self.packed && !self.kernel_cached && self.stored.is_none()
    }

    /// The stored units that samples share, if this rank reads some.
    pub(crate) fn units(&self) -> Option<UnitFacts> {
        self.stored.as_ref().and_then(|stored| stored.units).filter(|_| !self.is_client)
    }
}

/// One rank's run, planned.
#[derive(Debug)]
pub struct Planned {
    pub(crate) config: Config,
    pub(crate) run: Run,
    /// The part of it that the plan was made for.
    pub(crate) counted: Run,
    /// By dataset.
    pub(crate) sizes: Vec<Sizes>,
    pub(crate) cluster: Cluster,
    /// The memory granted to the run. `None` for a plan without a run.
    pub(crate) memory: Option<Grant>,
    /// Whether the origin's speed is known.
    pub(crate) is_timed: bool,
    pub(crate) plan: LocalPlan,
    pub(crate) floor: u64,
    /// The length of blocks that the first epoch reads from shards. `None` if it reads samples one
    /// by one.
    pub(crate) block_bytes: Option<u64>,
    /// These blocks, once the training data are open and their places are planned.
    pub(crate) first_blocks: Option<BlockTable>,
    /// Whether the training data may be read in blocks: shards outside of the page cache.
    pub(crate) may_have_blocks: bool,
    /// The stored units that samples share, if some do.
    pub(crate) units: Option<UnitPlan>,
    /// The stored bytes of delivered ones, if some samples are decoded.
    pub(crate) factors: Option<StoredFactors>,
}

impl Planned {
    /// Plans a run over datasets of these sizes: training first, then validation if there is a
    /// second. The disk tier counts as cold.
    ///
    /// Takes a fraction of a second for a million samples. Not for a runtime's thread.
    ///
    /// # Errors
    /// If the settings are invalid or contradict each other.
    pub fn new(config: Config, sizes: &[Sizes]) -> Result<Self> {
        Self::with_compute(config, sizes, Duration::ZERO)
    }

    /// [`new`](Self::new) for a trainer with this computation time per batch. Zero: unknown.
    ///
    /// # Errors
    /// As `new`.
    pub fn with_compute(config: Config, sizes: &[Sizes], compute: Duration) -> Result<Self> {
        let config = Config { compute, ..config };
        let room = config.disk.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.bytes));
        let place = RunEnvironment {
            kernel_cached: false,
            disk: room,
            warm: 0,
            has_agent: false,
            is_client: false,
            url: None,
            packed: false,
            stored: None,
            servers: None,
        };
        let planned = Self::resumed(config, sizes, place, |_| Ok(None))?;
        Ok(Self { memory: None, ..planned })
    }

    /// [`new`](Self::new) for the rest of a run, from the position that `start` finds in its
    /// schedule.
    pub(crate) fn resumed(
        config: Config,
        sizes: &[Sizes],
        place: RunEnvironment,
        start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
    ) -> Result<Self> {
        let config = config.validated()?;
        let run = run(&config, sizes, start)?;
        let counted = counted(&config, sizes, &run)?;
        let memory = memory_of(&config, sizes, &place, config.ranks_on_node());
        let mut cluster = cluster::describe(&config, memory.tier(), &place, sizes.first());
        let is_timed = cluster::is_timed(&config, &place);
        let mut plan = plan(&counted, sizes, &cluster)?;
        let (mut units, mut room) = (None, cluster.capacity().saturating_add(cluster.look_ahead));
        if let Some(facts) = place.units() {
            room = room.saturating_add(unit_memory(0, config.look_ahead));
            let held = held(plan.clone(), &config, sizes, &run, &cluster)?;
            let cached = held.is_some();
            plan = match held {
                Some(held) => held,
                None => {
                    let room = RoomForAll::new(sizes, [memory.tier(), place.disk]);
                    facts.check(memory.tier(), &room, place.url.as_deref())?;
                    cluster = cluster::describe(&config, 0, &place, sizes.first());
                    foreread_planner::plan(&counted, sizes, &cluster)?
                }
            };
            let kept = if cached { 0 } else { memory.tier() };
            units = Some(UnitPlan::new(facts, kept, config.look_ahead, cached));
        }
        let warm = place.stored.as_ref().map_or(place.warm, |stored| stored.factors.most(place.warm));
        let floor = match place.has_agent {
            false => floor(&counted, sizes, place.stored.as_ref(), room, &plan)?,
            // The agent may have all samples already, or read them for other jobs.
            true => 0,
        };
        let floor = floor.saturating_sub(warm);
        let may_have_blocks = place.may_have_blocks();
        let train = sizes.first().filter(|_| may_have_blocks);
        let block_bytes = train.and_then(|train| block_bytes(&counted, train, &cluster, is_timed));
        let (sizes, plan, memory) = (sizes.to_vec(), LocalPlan::Private(Arc::new(plan)), Some(memory));
        Ok(Self {
            config,
            run,
            counted,
            sizes,
            cluster,
            memory,
            is_timed,
            plan,
            floor,
            block_bytes,
            first_blocks: None,
            may_have_blocks,
            factors: factors(&place, units.as_ref()),
            units,
        })
    }

    /// Plans for a rank in a group. `whole` is the cluster of all ranks, whose caches read from
    /// each other, with the memory granted to this rank. `shards` are training data that may be
    /// read in blocks.
    #[cfg(all(feature = "share", target_os = "linux"))]
    pub(crate) fn for_cluster(
        config: Config,
        sizes: &[Sizes],
        place: &RunEnvironment,
        (whole, memory): (Cluster, Grant),
        shards: Option<ShardedData<'_>>,
        start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
    ) -> Result<Self> {
        let config = config.validated()?;
        let run = run(&config, sizes, start)?;
        let counted = counted(&config, sizes, &run)?;
        let (plan, blocks) = plan_cluster(&counted, sizes, &whole, shards)?;
        let is_timed = cluster::is_timed(&config, place);
        let store = whole.store_index(Rank(config.rank.rank)).unwrap_or_default();
        let floor = match &place.stored {
            // As above.
            _ if place.has_agent => 0,
            Some(stored) => stored.factors.fewest(plan.floor()),
            None => plan.floor(),
        };
        if let Some(bytes) = blocks.bytes {
            let (all, own) = (blocks.table.len(), blocks.table.owned(TRAIN, &plan, store).len());
            tracing::info!(bytes, all, own, "the ranks read shards in blocks in the first epoch");
        }
        let plan = LocalPlan::Cluster { plan: Arc::new(plan), store };
        let (sizes, memory) = (sizes.to_vec(), Some(memory));
        Ok(Self {
            config,
            run,
            counted,
            sizes,
            cluster: whole,
            memory,
            is_timed,
            plan,
            floor,
            block_bytes: blocks.bytes,
            first_blocks: None,
            may_have_blocks: shards.is_some_and(|shards| !shards.in_units),
            factors: factors(place, None),
            units: None,
        })
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The order in which this rank reads.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The caches of this rank, or of its node, and their content by the plan.
    pub fn levels(&self) -> &[LevelPlan] {
        self.plan.levels()
    }

    /// The bytes that the plan reads from the origin: for this rank alone or, in a group, for all
    /// ranks.
    pub fn origin_bytes(&self) -> u64 {
        self.plan.origin_bytes()
    }

    /// The planner's plan, whose interface is not that of this crate.
    #[doc(hidden)]
    pub fn local_plan(&self) -> &LocalPlan {
        &self.plan
    }

    /// The bytes between the samples of the blocks that the first epoch reads. `None` without
    /// blocks, or if no dataset was opened.
    pub fn block_waste_bytes(&self) -> Option<u64> {
        self.first_blocks.as_ref().map(BlockTable::waste)
    }

    /// The stored units that samples share, and how often they are read. `None` if none do.
    pub fn units(&self) -> Option<&UnitPlan> {
        self.units.as_ref()
    }

    /// The length of blocks that the first epoch reads from shards, if that is faster than single
    /// samples.
    pub fn block_bytes(&self) -> Option<u64> {
        self.block_bytes
    }

    /// The predicted time of each epoch and its limiting resource: for this rank alone or, in a
    /// group, for all ranks. `None` if the origin's speed is unknown (no calibration and no limit).
    ///
    /// # Errors
    /// If the run cannot be planned.
    pub fn forecast(&self) -> Result<Option<Vec<EpochForecast>>> {
        if !self.is_timed {
            return Ok(None);
        }
        let mut epochs = match &self.plan {
            LocalPlan::Private(plan) => predict(plan, &self.counted, &read(&self.cluster, self.units))?,
            LocalPlan::Cluster { plan, .. } => plan.predict(&self.counted, &self.cluster)?,
        };
        if let (Some(blocks), Some(first)) = (&self.first_blocks, epochs.first_mut()) {
            first.requests = blocks.requests(first.requests);
        }
        Ok(Some(epochs))
    }

    /// The savings of `more` bytes in each kind of cache, memory first, then disk, even if the run
    /// has no such cache. Empty in a group of ranks. Plans once per kind. [`plan`](crate::plan) has
    /// an example.
    ///
    /// # Errors
    /// If the run cannot be planned.
    pub fn capacity_gain(&self, more: u64) -> Result<Vec<CapacityGain>> {
        let LocalPlan::Private(plan) = &self.plan else { return Ok(Vec::new()) };
        let now = self.forecast()?;
        let kinds = cluster::kinds(&self.config);
        kinds.into_iter().map(|kind| self.gain_of(plan, kind, more, now.as_deref())).collect()
    }

    fn gain_of(
        &self,
        before: &Plan,
        kind: Level,
        more: u64,
        now: Option<&[EpochForecast]>,
    ) -> Result<CapacityGain> {
        let (mut cluster, level) = (self.cluster.clone(), kind.name.clone());
        add(&mut cluster, &kind, more);
        let mut plan = plan(&self.counted, &self.sizes, &cluster)?;
        let mut units = self.units;
        if let Some(now) = self.units.filter(|units| !units.cached) {
            // Memory that keeps the samples of units is a cache if all samples fit.
            let (mut all, memory) = (cluster.clone(), cluster::kinds(&self.config).swap_remove(0));
            add(&mut all, &memory, now.memory_bytes);
            let with_all = foreread_planner::plan(&self.counted, &self.sizes, &all)?;
            if with_all.is_for_all() {
                (plan, cluster, units) = (with_all, all, Some(UnitPlan { reads_per_epoch: 1.0, ..now }));
            } else if kind.name == memory.name {
                (plan, cluster) = (before.clone(), self.cluster.clone());
                let memory = now.memory_bytes.saturating_add(more);
                units = Some(now.with_memory(memory, self.config.look_ahead));
            }
        }
        let total = |epochs: &[EpochForecast]| epochs.iter().map(EpochForecast::seconds).sum::<f64>();
        let seconds = match now {
            Some(now) => Some(total(now) - total(&predict(&plan, &self.counted, &read(&cluster, units))?)),
            None => None,
        };
        let bytes = |plan: &Plan, units: Option<UnitPlan>| match units {
            Some(units) => (plan.origin_bytes() as f64 * units.reads_per_epoch) as u64,
            None => plan.origin_bytes(),
        };
        let origin_bytes = bytes(before, self.units).saturating_sub(bytes(&plan, units));
        Ok(CapacityGain { level, more, origin_bytes, seconds })
    }

    /// The lower bound of bytes from the origin for any policy, over all ranks, if all have caches
    /// like this one's.
    pub fn floor(&self) -> u64 {
        self.floor
    }
}

/// Adds `more` bytes to a kind of cache, even if there is no such cache.
fn add(cluster: &mut Cluster, kind: &Level, more: u64) {
    for store in &mut cluster.stores {
        let levels = &mut store.levels;
        if let Some(level) = levels.iter_mut().find(|level| level.name == kind.name) {
            level.capacity = level.capacity.saturating_add(more);
            continue;
        }
        // Memory is the faster level.
        let at = if kind.name == cluster::DISK { levels.len() } else { 0 };
        levels.insert(at, Level { capacity: more, ..kind.clone() });
    }
}

/// The cluster with the origin as its samples see it, where they share units.
pub(crate) fn read(cluster: &Cluster, units: Option<UnitPlan>) -> Cluster {
    let origin = units.map_or(cluster.origin.clone(), |units| units.origin(cluster.origin.clone()));
    Cluster { origin, ..cluster.clone() }
}

fn factors(place: &RunEnvironment, units: Option<&UnitPlan>) -> Option<StoredFactors> {
    let factors = place.stored.as_ref()?.factors;
    Some(units.map_or(factors, |units| factors.reading_units(units.reads_per_epoch)))
}

/// The savings of more capacity in one kind of cache over the rest of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CapacityGain {
    /// The kind: `memory` or `disk`.
    pub level: String,
    /// The additional bytes.
    #[serde(skip)]
    pub more: u64,
    /// Bytes that need not be read from the origin.
    pub origin_bytes: u64,
    /// Seconds. `None` if the origin's speed is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// The order of the settings' rank, from the position that `start` finds in its schedule.
fn run(
    config: &Config,
    sizes: &[Sizes],
    start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
) -> Result<Run> {
    let schedule = Arc::new(schedule(config, sizes)?);
    let (deal, RankOf { rank, ranks }) = (config.deal, config.rank);
    Ok(match start(&schedule)? {
        None => Run::new(schedule, deal, ranks, Rank(rank))?,
        Some(position) => Run::resume(schedule, deal, ranks, Rank(rank), &position)?,
    })
}

/// The part of a run that its plan is made for: all of it, or the next epochs of an endless run.
fn counted(config: &Config, sizes: &[Sizes], run: &Run) -> Result<Run> {
    if config.epochs < Config::MAX_EPOCHS {
        return Ok(run.clone());
    }
    let samples = read_by(config, sizes).map(|(samples, _)| samples).fold(0, u64::saturating_add).max(1);
    let epochs = (ENDLESS_MAX_USES / samples).clamp(ENDLESS_MIN_EPOCHS, ENDLESS_MAX_EPOCHS);
    let start = run.start();
    let until =
        Config { epochs: start.epoch.saturating_add(epochs).min(Config::MAX_EPOCHS), ..config.clone() };
    self::run(&until, sizes, |_| Ok(Some(start)))
}

/// The memory of a run over datasets of these sizes, on a node with `ranks` ranks.
pub(crate) fn memory_of(config: &Config, sizes: &[Sizes], place: &RunEnvironment, ranks: u32) -> Grant {
    let fixed = match config.memory {
        Memory::Bytes(bytes) => Some(bytes),
        // The page cache does not help if the user limits the origin.
        // A unit would be decoded again for each of its samples.
        Memory::Auto if place.kernel_cached && config.origin_limit.is_none() && place.units().is_none() => {
            Some(0)
        }
        Memory::Auto => None,
    };
    let footprint = MemoryTier::new(0).footprint();
    let data = read_by(config, sizes).map(|(samples, bytes)| footprint.most(samples, bytes));
    let data = data.fold(0, u64::saturating_add);
    // No run prefetches more than its data.
    config.machine.grant(ranks, MemoryNeed { fixed, data, look_ahead: config.look_ahead.min(data) })
}

/// The samples of each dataset that a pass reads, and their bytes.
fn read_by(config: &Config, sizes: &[Sizes]) -> impl Iterator<Item = (u64, u64)> {
    sizes.iter().enumerate().map(|(dataset, sizes)| match config.chosen(dataset) {
        None => (sizes.len(), sizes.total()),
        Some(ids) => {
            let bytes = ids.iter().map(|id| sizes.bytes(SampleId(*id)));
            (ids.len() as u64, bytes.fold(0, u64::saturating_add))
        }
    })
}

pub(crate) fn schedule(config: &Config, sizes: &[Sizes]) -> Result<Schedule> {
    let mut phases = Vec::new();
    for (dataset, sizes) in sizes.iter().enumerate() {
        let (kind, order) = match dataset {
            0 => (PhaseKind::Train, config.sampler),
            _ => (PhaseKind::Validation, SamplerKind::Sequential),
        };
        let sampler: Arc<dyn Sampler> = match config.chosen(dataset) {
            None => sampler(order, sizes.len(), config.seed)?,
            Some(ids) => {
                let inner = sampler(order, ids.len() as u64, config.seed)?;
                Arc::new(Subset::new(sizes.len(), Arc::clone(ids), inner)?)
            }
        };
        phases.push(Phase {
            kind,
            dataset: DatasetId(dataset as u32),
            sampler,
            batch_size: Some(config.batch_size),
            // Every validation sample counts, regardless of `drop_last` for training.
            drop_last: kind == PhaseKind::Train && config.drop_last,
        });
    }
    Ok(Schedule::new(config.epochs, phases)?)
}

/// The plan, if the caches hold all samples. A plan has no place for samples that the rest of the
/// run uses at most once. So a short run is planned as if more epochs followed.
fn held(plan: Plan, config: &Config, sizes: &[Sizes], run: &Run, cluster: &Cluster) -> Result<Option<Plan>> {
    if plan.is_for_all() {
        return Ok(Some(plan));
    }
    let start = run.start();
    let epochs = start.epoch.saturating_add(ENDLESS_MIN_EPOCHS);
    if config.epochs >= epochs {
        return Ok(None);
    }
    let longer = self::run(&Config { epochs, ..config.clone() }, sizes, |_| Ok(Some(start)))?;
    let all = plan_to_keep(&longer, sizes, cluster)?;
    Ok(all.is_for_all().then(|| plan.placed_as(&all)))
}

/// The lower bound, in stored bytes, with `room` bytes for samples on each rank.
fn floor(run: &Run, sizes: &[Sizes], stored: Option<&StoredSizes>, room: u64, plan: &Plan) -> Result<u64> {
    if run.world_size() == 1 && stored.is_none() {
        return Ok(plan.floor());
    }
    let all = room.saturating_mul(u64::from(run.world_size()));
    let (sizes, all) = match stored {
        Some(stored) => (&stored.stored[..], stored.factors.most(all)),
        None => (sizes, all),
    };
    let scope = if run.world_size() == 1 { Scope::Rank } else { Scope::Cluster };
    Ok(LowerBound::of(run, sizes, all, scope)?.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against this fault: planning for a million epochs took seconds before the first
    /// batch.
    #[test]
    fn endless_run_is_planned_as_its_next_epochs() {
        for ranks in [1, 3] {
            let rank = RankOf { rank: 0, ranks };
            let mut config = Config { epochs: Config::MAX_EPOCHS, rank, ..Config::default() };
            config.memory = Memory::Bytes(30_000);
            let sizes = [Sizes::uniform(1000, 100)];
            let endless = Planned::new(config.clone(), &sizes).unwrap();
            config.epochs = ENDLESS_MAX_EPOCHS;
            let hundred = Planned::new(config, &sizes).unwrap();
            assert_eq!((&endless.plan, endless.floor()), (&hundred.plan, hundred.floor()));
            assert_eq!(endless.run().schedule().epochs, Config::MAX_EPOCHS);
        }
    }
}
