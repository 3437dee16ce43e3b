//! What a run will read and where it keeps it: settings and sizes in, order and plan out. No I/O.

use std::sync::Arc;

use foreread_memory::MemoryTier;
use foreread_oracle::{
    Feistel, OracleError, Phase, PhaseKind, Position, Run, Sampler, Schedule, Sequential, Shuffle, Torch,
};
use foreread_planner::{
    Cluster, EpochForecast, Floor, Level, LocalPlan, Plan, Scope, block_bytes, plan, predict,
};
use foreread_tier::CacheTier;
use foreread_types::{DatasetId, Rank, Sizes};
use serde::Serialize;

use crate::cluster;
use crate::config::{Config, Memory, SamplerKind};
use crate::error::Result;
use crate::memory::{Grant, Need};

/// A run without an end is planned for so many uses of samples and so many epochs at most, and for [`AHEAD_LEAST`] epochs
/// at least: what they keep, later ones would.
const AHEAD_USES: u64 = 1 << 24;
const AHEAD_EPOCHS: u64 = 100;
const AHEAD_LEAST: u64 = 4;

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
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Whether the kernel keeps what is read from the origin, so that automatic memory takes none.
    pub(crate) kernel_cached: bool,
    /// The room of the disk tier, in bytes of footprints.
    pub(crate) disk: u64,
    /// What the disk tier holds already, in bytes: the first epoch need not read it, so the floor is lower by that.
    pub(crate) warm: u64,
    /// Where the training data lie; none where they are only described.
    pub(crate) url: Option<String>,
    /// Whether they lie in shards.
    pub(crate) packed: bool,
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
    /// The memory that the run was granted; none where it is only imagined.
    pub(crate) memory: Option<Grant>,
    /// Whether the origin's speed is known.
    pub(crate) is_timed: bool,
    pub(crate) plan: LocalPlan,
    pub(crate) floor: u64,
    /// How much of a shard the first epoch reads at once; none where samples are read one by one.
    pub(crate) block_bytes: Option<u64>,
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
        let room = config.disk.iter().fold(0u64, |sum, disk| sum.saturating_add(disk.bytes));
        let place = Place { kernel_cached: false, disk: room, warm: 0, url: None, packed: false };
        let planned = Self::resumed(config, sizes, place, |_| Ok(None))?;
        Ok(Self { memory: None, ..planned })
    }

    /// The same for what is left of a run from the position that `start` finds in its schedule.
    pub(crate) fn resumed(
        config: Config,
        sizes: &[Sizes],
        place: Place,
        start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
    ) -> Result<Self> {
        let config = config.validated()?;
        let run = run(&config, sizes, start)?;
        let counted = counted(&config, sizes, &run)?;
        let memory = memory_of(&config, sizes, &place, config.on_node().ranks);
        let cluster = cluster::describe(&config, memory.tier(), &place, sizes.first());
        let is_timed = cluster::is_timed(&config, &place);
        let plan = plan(&counted, sizes, &cluster)?;
        let floor = floor(&counted, sizes, &cluster, &plan)?.saturating_sub(place.warm);
        // What the kernel has cached costs no request.
        let train = sizes.first().filter(|_| place.packed && !place.kernel_cached);
        let block_bytes = train.and_then(|train| block_bytes(&counted, train, &cluster, is_timed));
        let (sizes, plan, memory) = (sizes.to_vec(), LocalPlan::Alone(Arc::new(plan)), Some(memory));
        Ok(Self { config, run, counted, sizes, cluster, memory, is_timed, plan, floor, block_bytes })
    }

    /// The same for a rank that works together with the others: `whole` is the cluster of all, whose store at the
    /// position of the rank is its own, with the memory that this rank was granted.
    #[cfg(feature = "peer")]
    pub(crate) fn joint(
        config: Config,
        sizes: &[Sizes],
        place: &Place,
        (whole, memory): (Cluster, Grant),
        start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
    ) -> Result<Self> {
        let config = config.validated()?;
        let run = run(&config, sizes, start)?;
        let counted = counted(&config, sizes, &run)?;
        let plan = foreread_planner::plan_cluster(&counted, sizes, &whole)?;
        let (floor, is_timed) = (plan.floor(), cluster::is_timed(&config, place));
        let plan = LocalPlan::Together { plan: Arc::new(plan), store: config.rank as usize };
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
            block_bytes: None,
        })
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
    pub fn plan(&self) -> &LocalPlan {
        &self.plan
    }

    /// How many bytes of a shard the first epoch reads at once, where that is quicker than reading samples one by one.
    pub fn block_bytes(&self) -> Option<u64> {
        self.block_bytes
    }

    /// How long each epoch will take and what it will wait for, this rank's alone or, where ranks work together, that of
    /// all; `None` where nobody has said how
    /// fast the origin is (a calibration, or a limit).
    ///
    /// # Errors
    /// If the run cannot be planned.
    pub fn forecast(&self) -> Result<Option<Vec<EpochForecast>>> {
        if !self.is_timed {
            return Ok(None);
        }
        Ok(Some(match &self.plan {
            LocalPlan::Alone(plan) => predict(plan, &self.counted, &self.cluster)?,
            LocalPlan::Together { plan, .. } => plan.predict(&self.counted, &self.cluster)?,
        }))
    }

    /// What `more` bytes in each kind of cache would save, memory first, then disk, whether the run has such a cache
    /// or not; nothing is said of ranks that work together. Plans once for each.
    ///
    /// # Errors
    /// If the run cannot be planned.
    pub fn worth(&self, more: u64) -> Result<Vec<Worth>> {
        let LocalPlan::Alone(plan) = &self.plan else { return Ok(Vec::new()) };
        let now = self.forecast()?;
        let kinds = cluster::kinds(&self.config);
        kinds.into_iter().map(|kind| self.worth_of(plan, kind, more, now.as_deref())).collect()
    }

    fn worth_of(
        &self,
        before: &Plan,
        kind: Level,
        more: u64,
        now: Option<&[EpochForecast]>,
    ) -> Result<Worth> {
        let mut cluster = self.cluster.clone();
        let level = kind.name.clone();
        for store in &mut cluster.stores {
            let levels = &mut store.levels;
            if let Some(level) = levels.iter_mut().find(|level| level.name == kind.name) {
                level.capacity = level.capacity.saturating_add(more);
                continue;
            }
            // Memory is the faster one.
            let at = if kind.name == cluster::DISK { levels.len() } else { 0 };
            levels.insert(at, Level { capacity: more, ..kind.clone() });
        }
        let plan = plan(&self.counted, &self.sizes, &cluster)?;
        let total = |epochs: &[EpochForecast]| epochs.iter().map(EpochForecast::seconds).sum::<f64>();
        let seconds = match now {
            Some(now) => Some(total(now) - total(&predict(&plan, &self.counted, &cluster)?)),
            None => None,
        };
        let origin_bytes = before.origin_bytes().saturating_sub(plan.origin_bytes());
        Ok(Worth { level, more, origin_bytes, seconds })
    }

    /// The fewest origin bytes that any policy can read for this run, over all ranks together, if every rank has caches
    /// like this one's.
    pub fn floor(&self) -> u64 {
        self.floor
    }
}

/// What more room in one kind of cache would save over the rest of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worth {
    /// Which: `memory` or `disk`.
    pub level: String,
    /// How much more, in bytes.
    #[serde(skip)]
    pub more: u64,
    /// Bytes that need not be read from the origin.
    pub origin_bytes: u64,
    /// Seconds; `None` if the origin's speed is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// What the settings' rank reads, from the position that `start` finds in its schedule.
fn run(
    config: &Config,
    sizes: &[Sizes],
    start: impl FnOnce(&Schedule) -> Result<Option<Position>>,
) -> Result<Run> {
    let schedule = Arc::new(schedule(config, sizes)?);
    let (deal, world_size, rank) = (config.deal, config.world_size, Rank(config.rank));
    Ok(match start(&schedule)? {
        None => Run::new(schedule, deal, world_size, rank)?,
        Some(position) => Run::resume(schedule, deal, world_size, rank, &position)?,
    })
}

/// The part of a run that its plan is made for: all of it, or the next epochs of one without an end.
fn counted(config: &Config, sizes: &[Sizes], run: &Run) -> Result<Run> {
    if config.epochs < Config::MAX_EPOCHS {
        return Ok(run.clone());
    }
    let samples = sizes.iter().map(Sizes::len).fold(0, u64::saturating_add).max(1);
    let epochs = (AHEAD_USES / samples).clamp(AHEAD_LEAST, AHEAD_EPOCHS);
    let start = run.start();
    let until =
        Config { epochs: start.epoch.saturating_add(epochs).min(Config::MAX_EPOCHS), ..config.clone() };
    self::run(&until, sizes, |_| Ok(Some(start)))
}

/// The memory of a run over datasets of these sizes, on a node of so many `ranks`.
pub(crate) fn memory_of(config: &Config, sizes: &[Sizes], place: &Place, ranks: u32) -> Grant {
    let fixed = match config.memory {
        Memory::Bytes(bytes) => Some(bytes),
        // The kernel's cache is no help against a limit that the user has put on the origin.
        Memory::Auto if place.kernel_cached && config.origin_limit.is_none() => Some(0),
        Memory::Auto => None,
    };
    let footprint = MemoryTier::new(0).footprint();
    let data = sizes.iter().map(|sizes| footprint.most(sizes.len(), sizes.total()));
    let data = data.fold(0, u64::saturating_add);
    // No run reads further ahead than its data are long.
    config.machine.grant(ranks, Need { fixed, data, look_ahead: config.look_ahead.min(data) })
}

pub(crate) fn schedule(config: &Config, sizes: &[Sizes]) -> Result<Schedule> {
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

fn floor(run: &Run, sizes: &[Sizes], cluster: &Cluster, plan: &Plan) -> Result<u64> {
    if run.world_size() == 1 {
        return Ok(plan.floor());
    }
    let rank = cluster.capacity().saturating_add(cluster.look_ahead);
    let all = rank.saturating_mul(u64::from(run.world_size()));
    Ok(Floor::of(run, sizes, all, Scope::Cluster)?.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counting who reads what over a million epochs took seconds before the first batch.
    #[test]
    fn a_run_without_an_end_is_planned_as_its_next_epochs() {
        for world_size in [1, 3] {
            let mut config = Config { epochs: Config::MAX_EPOCHS, world_size, ..Config::default() };
            config.memory = Memory::Bytes(30_000);
            let sizes = [Sizes::uniform(1000, 100)];
            let endless = Planned::new(config.clone(), &sizes).unwrap();
            config.epochs = AHEAD_EPOCHS;
            let hundred = Planned::new(config, &sizes).unwrap();
            assert_eq!((endless.plan(), endless.floor()), (hundred.plan(), hundred.floor()));
            assert_eq!(endless.run().schedule().epochs, Config::MAX_EPOCHS);
        }
    }
}
