//! The plan of one rank: placement, retention and lower bound in one value.

use std::borrow::Cow;
use std::sync::Arc;

use foreread_oracle::{Fingerprinter, Pass, Run};
use foreread_types::{DatasetId, Fingerprint, SampleKey, Sizes, StoreId};
use serde::Serialize;

use crate::cluster::{CacheStore, Cluster};
use crate::demand::{Demand, EpochDemand, Scope};
use crate::error::{PlanError, PlanReason};
use crate::knapsack::{self, LevelFill};
use crate::level::{Level, LevelIndex, MAX_LEVELS};
use crate::lower_bound::LowerBound;
use crate::placement::Placement;
use crate::predict::predict;
use crate::retention::{self, Retention, ThresholdForecast};
use crate::server_times::{ServerGain, ServerTimes};
use crate::servers::OriginServers;
use crate::slow_levels;
use crate::wide::{narrow, share};

/// The location of samples for the rest of a run, and the cost. Equal inputs give equal plans.
/// Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    store: StoreId,
    placement: Placement,
    retention: Retention,
    floor: LowerBound,
    origin_bytes: u64,
    levels: Vec<LevelPlan>,
    datasets: Vec<DatasetPlan>,
    /// The kept samples of each dataset in each level, and the demand of each epoch. Predictions
    /// are made from these.
    pub(crate) kept: Arc<[Vec<LevelFill>]>,
    pub(crate) epochs: Arc<[EpochDemand]>,
    /// The time of each storage server, if servers are known.
    pub(crate) server_times: Option<Arc<ServerTimes>>,
    server_gain: Option<ServerGain>,
}

/// The planned content of one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LevelPlan {
    /// The name in the cluster description.
    pub name: String,
    /// The capacity in bytes.
    pub capacity: u64,
    /// Samples that are placed there. For [`Retention::Threshold`], all that may come and go.
    pub samples: u64,
    /// The bytes of these samples.
    pub bytes: u64,
    /// The used space in bytes. For [`Retention::Threshold`], the forecast maximum.
    pub footprint: u64,
    /// Whether the level stays empty because a rank reads from it more slowly than from the origin.
    pub slower_than_origin: bool,
}

impl LevelPlan {
    pub(crate) fn new(level: &Level, filled: LevelFill, slower_than_origin: bool) -> Self {
        Self {
            name: level.name.clone(),
            capacity: level.capacity,
            samples: filled.samples,
            bytes: narrow(filled.bytes),
            footprint: filled.footprint,
            slower_than_origin,
        }
    }
}

/// The demand of the rest of the run for one dataset, and its origin bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DatasetPlan {
    /// The number of samples.
    pub samples: u64,
    /// The samples that passes over it may read: fewer, if they read chosen ones.
    #[serde(skip)]
    pub readable: u64,
    /// Bytes of all its samples.
    pub bytes: u64,
    /// Uses of all its samples in the rest of the run.
    pub uses: u64,
    /// Bytes of all these uses: the reads without any cache.
    pub used_bytes: u64,
    /// Bytes of the samples that are used at least once: the reads with unlimited caches.
    pub distinct_bytes: u64,
    /// Passes over it in a whole epoch.
    pub passes_per_epoch: u64,
    /// Samples that this rank reads in the run's last epoch, over all these passes. The epoch is
    /// whole, unless it is the only one and a resume shortened it.
    pub uses_per_epoch: u64,
    /// The predicted origin bytes of this plan for the dataset.
    pub origin_bytes: u64,
}

/// A plan without its tables, for reports and machine-readable output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The plan's fingerprint, as 32 hexadecimal digits.
    pub fingerprint: String,
    /// The store that the plan is for.
    pub store: u32,
    /// `keep` or `threshold`.
    pub retention: &'static str,
    /// The horizon of the threshold in ticks. `None` without a threshold.
    pub horizon: Option<u64>,
    /// The lower bound of origin bytes for any policy.
    pub floor_origin_bytes: u64,
    /// Whether the lower bound was counted and not estimated.
    pub floor_is_exact: bool,
    /// The predicted origin bytes of this plan.
    pub origin_bytes: u64,
    /// The gain of a placement by storage server. `None` if it ignores them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_gain: Option<ServerGain>,
    /// By level.
    pub levels: Vec<LevelPlan>,
    /// By dataset.
    pub datasets: Vec<DatasetPlan>,
}

/// Plans the location of the samples of `run`. `sizes` are indexed by
/// [`DatasetId`](foreread_types::DatasetId). Those of datasets that the run does not read are
/// ignored.
///
/// The plan covers the rest of the run, with caches that are cold at its start. It is for the run's
/// rank alone, as if that rank had its store for itself and no peers.
/// [`plan_cluster`](crate::plan_cluster) plans for all ranks.
///
/// Takes a fraction of a second for a million samples of different lengths that are each used once
/// per epoch. Otherwise the run's orders are computed (see [`Demand`]).
///
/// # Errors
/// An invalid cluster description, sizes that are missing or of another dataset, tables that do not
/// fit in memory, and the errors of the oracle.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
/// use foreread_planner::{Cluster, Level, CacheStore, plan};
/// use foreread_types::{DatasetId, Footprint, Rank, Sizes, StoreId};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let train = Phase {
///     kind: PhaseKind::Train,
///     dataset: DatasetId(0),
///     sampler: Arc::new(Shuffle::new(1000, 42)?),
///     batch_size: Some(50),
///     drop_last: false,
/// };
/// let run = Run::new(Arc::new(Schedule::new(3, vec![train])?), Deal::Torch, 1, Rank(0))?;
/// let memory = Level::new("memory", 30_000, Footprint::EXACT);
/// let cluster = Cluster::single(CacheStore::new(StoreId(0), vec![memory]));
/// let plan = plan(&run, &[Sizes::uniform(1000, 100)], &cluster)?;
/// assert_eq!(plan.floor(), 100_000 + 2 * 70_000);
/// assert_eq!(plan.origin_bytes(), plan.floor());
/// # Ok(())
/// # }
/// ```
pub fn plan(run: &Run, sizes: &[Sizes], cluster: &Cluster) -> Result<Plan, PlanError> {
    let planner = RankPlanner::new(run, sizes, cluster)?;
    let (keep, complete) = planner.keep(None)?;
    // In a run that was not counted to its end, some samples that are used again may not be kept.
    let stays = (complete && planner.demand.is_exact()) || run.is_once_per_epoch();
    if let Some(level) = planner.store.levels.first().filter(|_| !stays) {
        let forecast = retention::forecast(run, sizes, level.capacity, level.footprint)?;
        let threshold = threshold(keep.clone(), sizes, &planner.demand, &forecast);
        // Both are compared by cost. At equal cost the plan without rewrites is chosen.
        if threshold.origin_bytes < keep.origin_bytes {
            return Ok(threshold);
        }
    }
    planner.by_server(keep, complete)
}

/// As [`plan`], for a run with an unknown continuation. Placed samples stay ([`Retention::Keep`]),
/// because an unknown next use may still come.
///
/// # Errors
/// Those of [`plan`].
pub fn plan_to_keep(run: &Run, sizes: &[Sizes], cluster: &Cluster) -> Result<Plan, PlanError> {
    let planner = RankPlanner::new(run, sizes, cluster)?;
    let (keep, complete) = planner.keep(None)?;
    planner.by_server(keep, complete)
}

/// Makes plans without eviction for one rank.
struct RankPlanner<'a> {
    run: &'a Run,
    sizes: &'a [Sizes],
    cluster: &'a Cluster,
    /// The rank's store as described, and without the levels that stay empty.
    described: &'a CacheStore,
    store: Cow<'a, CacheStore>,
    slower: [bool; MAX_LEVELS],
    demand: Demand,
    floor: LowerBound,
}

impl<'a> RankPlanner<'a> {
    fn new(run: &'a Run, sizes: &'a [Sizes], cluster: &'a Cluster) -> Result<Self, PlanError> {
        cluster.check(run.world_size())?;
        let missing = || PlanReason::NoStore { rank: run.rank(), found: 0 };
        let at = cluster.store_index(run.rank()).ok_or_else(missing)?;
        let described = cluster.stores.get(at).ok_or_else(missing)?;
        let demand = Demand::of(run, sizes, Scope::Rank)?;
        let floor = LowerBound::of_demand(&demand, described.capacity().saturating_add(cluster.look_ahead));
        let (used, slower) = match slow_levels::without_slow_levels(cluster, run, sizes) {
            Some((cluster, slower)) => (cluster.stores.into_iter().nth(at), slower[at]),
            None => (None, [false; MAX_LEVELS]),
        };
        let store = used.map_or(Cow::Borrowed(described), Cow::Owned);
        Ok(Self { run, sizes, cluster, described, store, slower, demand, floor })
    }

    /// The plan, by storage server if `servers` are given, and whether it keeps every sample that
    /// is used again.
    fn keep(&self, servers: Option<&OriginServers>) -> Result<(Plan, bool), PlanError> {
        let Self { run, sizes, cluster, demand, .. } = self;
        let choice = knapsack::choose(sizes, demand, &self.store, &cluster.origin, servers)?;
        let origins = demand.datasets.iter().zip(&choice.saved);
        let origins = origins.map(|(demand, saved)| narrow(demand.bytes.saturating_sub(*saved)));
        let origins: Vec<u64> = origins.collect();
        let placement = Placement::new(choice.tables);
        let server_times = cluster.servers.as_ref().map(|servers| {
            let is_kept =
                |dataset: usize, id| placement.level(SampleKey::new(DatasetId(dataset as u32), id)).is_some();
            Arc::new(ServerTimes::of(servers, sizes, demand, is_kept))
        });
        let keep = Plan {
            store: self.store.id,
            placement,
            retention: Retention::Keep,
            floor: self.floor,
            origin_bytes: 0,
            levels: levels(self.described, &choice.filled, self.slower),
            datasets: datasets(run, sizes, demand),
            kept: choice.filled.into(),
            epochs: demand.epochs().into(),
            server_times,
            server_gain: None,
        };
        Ok((keep.with_origin_bytes(&origins), choice.complete))
    }

    /// The plan by storage server if it gains a tenth over the plan `keep` that ignores them.
    fn by_server(&self, keep: Plan, complete: bool) -> Result<Plan, PlanError> {
        let Some(servers) = self.cluster.servers.as_ref().filter(|_| !complete) else { return Ok(keep) };
        let (even, _) = self.keep(Some(servers))?;
        let [forecast, ignoring] = [&even, &keep].map(|plan| predict(plan, self.run, self.cluster));
        Ok(match ServerGain::of(&forecast?, &ignoring?) {
            Some(gain) => Plan { server_gain: Some(gain), ..even },
            None => keep,
        })
    }
}

/// The same plan with samples that come and go in the first level, and empty other levels.
fn threshold(keep: Plan, sizes: &[Sizes], demand: &Demand, forecast: &ThresholdForecast) -> Plan {
    let origins: Vec<u64> = demand
        .datasets
        .iter()
        .map(|demand| {
            let hits = share(demand.bytes, forecast.hit_bytes, forecast.bytes);
            narrow(demand.bytes - hits).max(demand.distinct)
        })
        .collect();
    let samples: Vec<u64> = sizes.iter().map(Sizes::len).collect();
    let levels = keep.levels.iter().enumerate().map(|(index, level)| {
        let first = index == 0;
        let of = |sum: fn(&DatasetPlan) -> u64| {
            let used = keep.datasets.iter().filter(|dataset| first && dataset.uses > 0);
            used.fold(0u64, |all, dataset| all.saturating_add(sum(dataset)))
        };
        LevelPlan {
            samples: of(|dataset| dataset.samples),
            bytes: of(|dataset| dataset.bytes),
            footprint: if first { forecast.occupancy.min(level.capacity) } else { 0 },
            ..level.clone()
        }
    });
    Plan {
        placement: Placement::everything(&samples, LevelIndex(0)),
        retention: Retention::Threshold { horizon: forecast.horizon },
        levels: levels.collect(),
        ..keep
    }
    .with_origin_bytes(&origins)
}

impl Plan {
    /// The store that the plan is for.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// Which level keeps which sample.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether kept samples stay.
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// The lower bound of origin bytes for any policy, with all levels and the look-ahead.
    pub fn floor(&self) -> u64 {
        self.floor.bytes
    }

    /// Whether the lower bound was counted. If not, the run was too long to count and it is an
    /// estimate.
    pub fn floor_is_exact(&self) -> bool {
        self.floor.exact
    }

    /// The predicted origin bytes of this plan. For [`Retention::Keep`], the first use of every
    /// sample and all uses of samples that are not kept. For [`Retention::Threshold`], the misses
    /// of the rule on (a part of) the stream, scaled up. Samples in the look-ahead at an epoch
    /// boundary are not counted.
    pub fn origin_bytes(&self) -> u64 {
        self.origin_bytes
    }

    /// The gain of a placement by storage server. `None` if the placement ignores servers: they are
    /// unknown, samples come and go, or less than a tenth would be gained.
    pub fn server_gain(&self) -> Option<ServerGain> {
        self.server_gain
    }

    /// The planned content of each level, the fastest first.
    pub fn levels(&self) -> &[LevelPlan] {
        &self.levels
    }

    /// The demand for each dataset, by [`DatasetId`](foreread_types::DatasetId).
    pub fn datasets(&self) -> &[DatasetPlan] {
        &self.datasets
    }

    /// The fingerprint of all decisions and predictions of the plan. Equal on all ranks, machines
    /// and releases with equal inputs.
    pub fn fingerprint(&self) -> Fingerprint {
        let horizon = match self.retention {
            Retention::Keep => [0, 0],
            Retention::Threshold { horizon } => [1, horizon],
        };
        let mut print = Fingerprinter::new("plan 1").number(self.store.0.into()).numbers(horizon.into_iter());
        print = self.placement.describe(print);
        print = print.number(self.floor.bytes).number(self.floor.exact.into()).number(self.origin_bytes);
        print = print.number(self.levels.len() as u64);
        for LevelPlan { name, capacity, samples, bytes, footprint, .. } in &self.levels {
            print = print.text(name).numbers([*capacity, *samples, *bytes, *footprint].into_iter());
        }
        print = print.number(self.datasets.len() as u64);
        for dataset in &self.datasets {
            print = print.numbers(
                [
                    dataset.samples,
                    dataset.bytes,
                    dataset.uses,
                    dataset.used_bytes,
                    dataset.distinct_bytes,
                    dataset.passes_per_epoch,
                    dataset.uses_per_epoch,
                    dataset.origin_bytes,
                ]
                .into_iter(),
            );
        }
        print.finish()
    }

    /// The same demand with the samples that `other` keeps: a plan of the same caches for a longer
    /// run, which keeps all of them. Then origin bytes are those of first uses.
    #[must_use]
    pub fn placed_as(self, other: &Self) -> Self {
        let origins: Vec<u64> = self.datasets.iter().map(|dataset| dataset.distinct_bytes).collect();
        let (placement, levels) = (other.placement.clone(), other.levels.clone());
        let plan =
            Self { placement, levels, retention: other.retention, kept: Arc::clone(&other.kept), ..self };
        plan.with_origin_bytes(&origins)
    }

    /// Whether every sample that passes may read has a place, and stays there.
    pub fn is_for_all(&self) -> bool {
        let sum = |of: fn(&DatasetPlan) -> u64| self.datasets.iter().map(of).fold(0, u64::saturating_add);
        let placed = self.levels.iter().map(|level| level.samples).fold(0, u64::saturating_add);
        self.retention == Retention::Keep && placed >= sum(|dataset| dataset.readable)
    }

    /// The plan without its tables.
    pub fn summary(&self) -> Summary {
        let (retention, horizon) = match self.retention {
            Retention::Keep => ("keep", None),
            Retention::Threshold { horizon } => ("threshold", Some(horizon)),
        };
        Summary {
            fingerprint: self.fingerprint().to_string(),
            store: self.store.0,
            retention,
            horizon,
            floor_origin_bytes: self.floor.bytes,
            floor_is_exact: self.floor.exact,
            origin_bytes: self.origin_bytes,
            server_gain: self.server_gain,
            levels: self.levels.clone(),
            datasets: self.datasets.clone(),
        }
    }

    fn with_origin_bytes(mut self, origins: &[u64]) -> Self {
        self.origin_bytes = origins.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes));
        for (dataset, &bytes) in self.datasets.iter_mut().zip(origins) {
            dataset.origin_bytes = bytes;
        }
        self
    }
}

fn levels(store: &CacheStore, filled: &[Vec<LevelFill>], slower: [bool; MAX_LEVELS]) -> Vec<LevelPlan> {
    let levels = store.levels.iter().enumerate();
    levels
        .map(|(index, level)| {
            let of_level = filled.iter().map(|levels| levels[index]);
            let all = of_level.fold(LevelFill::default(), LevelFill::and);
            LevelPlan::new(level, all, slower[index])
        })
        .collect()
}

fn datasets(run: &Run, sizes: &[Sizes], demand: &Demand) -> Vec<DatasetPlan> {
    let phases = &run.schedule().phases;
    let mut datasets: Vec<_> = sizes
        .iter()
        .zip(&demand.datasets)
        .map(|(sizes, demand)| DatasetPlan {
            samples: sizes.len(),
            readable: 0,
            bytes: sizes.total(),
            uses: narrow(demand.reads),
            used_bytes: narrow(demand.bytes),
            distinct_bytes: demand.distinct,
            passes_per_epoch: 0,
            uses_per_epoch: 0,
            origin_bytes: 0,
        })
        .collect();
    for phase in phases {
        let dataset = &mut datasets[phase.dataset.0 as usize];
        dataset.passes_per_epoch += 1;
        dataset.readable = dataset.readable.saturating_add(phase.sampler.readable()).min(dataset.samples);
    }
    for pass in last_epoch(run) {
        datasets[pass.dataset.0 as usize].uses_per_epoch += pass.samples;
    }
    datasets
}

/// The passes of the last epoch. No resume has shortened it, unless it is the only one.
fn last_epoch(run: &Run) -> impl Iterator<Item = Pass> + '_ {
    let passes = run.passes().len();
    (passes.saturating_sub(run.schedule().phases.len())..passes).filter_map(|index| run.pass(index))
}
