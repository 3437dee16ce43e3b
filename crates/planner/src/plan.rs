//! The plan: everything above, put together into one value.

use std::sync::Arc;

use foreread_oracle::{Fingerprinter, Pass, Run};
use foreread_types::{Fingerprint, Sizes, StoreId};
use serde::Serialize;

use crate::cluster::{Cluster, Level, LevelIndex, MAX_LEVELS, Store};
use crate::demand::{Demand, Epoch, Scope};
use crate::error::{PlanError, Reason};
use crate::floor::Floor;
use crate::forecast::{narrow, share};
use crate::knapsack::{self, Filled};
use crate::placement::Placement;
use crate::retention::{self, Forecast, Retention};
use crate::slower;

/// Where samples live for what is left of a run, and what that costs. Equal inputs give equal plans; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    store: StoreId,
    placement: Placement,
    retention: Retention,
    floor: Floor,
    origin_bytes: u64,
    levels: Vec<LevelPlan>,
    datasets: Vec<DatasetPlan>,
    /// What is kept of each dataset in each level, and what each epoch needs: what predictions are made from.
    pub(crate) kept: Arc<[Vec<Filled>]>,
    pub(crate) epochs: Arc<[Epoch]>,
}

/// What one level will hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LevelPlan {
    /// Its name in the cluster description.
    pub name: String,
    /// Its room, in bytes.
    pub capacity: u64,
    /// Samples that are placed there: for [`Retention::Threshold`], all that may come and go.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The room that is taken, in bytes: for [`Retention::Threshold`], the most that is in use at a time, as forecast.
    pub footprint: u64,
    /// Whether nothing is placed there because a rank reads from it more slowly than from the origin.
    pub slower_than_origin: bool,
}

impl LevelPlan {
    pub(crate) fn new(level: &Level, filled: Filled, slower_than_origin: bool) -> Self {
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

/// What the rest of the run asks of one dataset, and what of it comes from the origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DatasetPlan {
    /// How many samples it has.
    pub samples: u64,
    /// Bytes of all its samples.
    pub bytes: u64,
    /// Uses of all its samples in what is left of the run.
    pub uses: u64,
    /// Bytes of all these uses: what would be read without any cache.
    pub used_bytes: u64,
    /// Bytes of the samples that are used at all: what has to be read with any cache.
    pub distinct_bytes: u64,
    /// Passes over it in a whole epoch.
    pub passes_per_epoch: u64,
    /// Samples that this rank reads in the run's last epoch, over all these passes: whole, unless a resume cut short an
    /// only one.
    pub uses_per_epoch: u64,
    /// Origin bytes that this plan reads of it, as predicted.
    pub origin_bytes: u64,
}

/// A plan without its tables: what reports print and machines read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The plan's fingerprint, as 32 hexadecimal digits.
    pub fingerprint: String,
    /// The store that the plan is for.
    pub store: u32,
    /// `keep` or `threshold`.
    pub retention: &'static str,
    /// The threshold's horizon in ticks; none where there is no threshold.
    pub horizon: Option<u64>,
    /// The origin bytes that no policy can save.
    pub floor_origin_bytes: u64,
    /// Whether the floor was counted, and not estimated.
    pub floor_is_exact: bool,
    /// The origin bytes that this plan reads, as predicted.
    pub origin_bytes: u64,
    /// By level.
    pub levels: Vec<LevelPlan>,
    /// By dataset.
    pub datasets: Vec<DatasetPlan>,
}

/// Decides where the samples of `run` live. `sizes` are indexed by [`DatasetId`](foreread_types::DatasetId); those of
/// datasets that the run does not read are left alone.
///
/// Plans for what is left of the run, with caches that are cold at its start, and for its rank alone: for the store that
/// the rank uses, as if it had that to itself and no peers. [`plan_cluster`](crate::plan_cluster) plans for all ranks.
///
/// Takes a fraction of a second for a million samples of different lengths where each is used once an epoch; otherwise
/// the run's orders are computed (see [`Demand`]).
///
/// # Errors
/// A cluster description that makes no sense, sizes that are missing or of another dataset, tables that do not fit in
/// memory, and whatever the oracle returns.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
/// use foreread_planner::{Cluster, Level, Store, plan};
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
/// let cluster = Cluster::single(Store::new(StoreId(0), vec![memory]));
/// let plan = plan(&run, &[Sizes::uniform(1000, 100)], &cluster)?;
/// assert_eq!(plan.floor(), 100_000 + 2 * 70_000);
/// assert_eq!(plan.origin_bytes(), plan.floor());
/// # Ok(())
/// # }
/// ```
pub fn plan(run: &Run, sizes: &[Sizes], cluster: &Cluster) -> Result<Plan, PlanError> {
    let Keeping { keep, store, demand, complete } = keeping(run, sizes, cluster)?;
    // Of a run that was not counted to its end nobody knows that every sample which is used again is kept.
    if (complete && demand.is_exact()) || run.is_once_per_epoch() {
        return Ok(keep);
    }
    let Some(level) = store.levels.first() else { return Ok(keep) };
    let forecast = retention::forecast(run, sizes, level.capacity, level.footprint)?;
    let threshold = threshold(keep.clone(), sizes, &demand, &forecast);
    // Both are priced; where they cost the same, nothing is rewritten.
    Ok(if threshold.origin_bytes < keep.origin_bytes { threshold } else { keep })
}

/// The same for a run that goes on in a way that is not known: what is placed stays ([`Retention::Keep`]), because a next use
/// that nobody knows of yet is not one that never comes.
///
/// # Errors
/// Those of [`plan`].
pub fn plan_to_keep(run: &Run, sizes: &[Sizes], cluster: &Cluster) -> Result<Plan, PlanError> {
    Ok(keeping(run, sizes, cluster)?.keep)
}

/// A plan that keeps, and what it was made from.
struct Keeping {
    keep: Plan,
    store: Store,
    demand: Demand,
    /// Whether every sample that is used again is kept.
    complete: bool,
}

fn keeping(run: &Run, sizes: &[Sizes], cluster: &Cluster) -> Result<Keeping, PlanError> {
    cluster.check(run.world_size())?;
    let missing = || Reason::NoStore { rank: run.rank(), found: 0 };
    let at = cluster.store_index(run.rank()).ok_or_else(missing)?;
    let described = cluster.stores.get(at).ok_or_else(missing)?;
    let demand = Demand::of(run, sizes, Scope::Rank)?;
    let floor = Floor::of_demand(&demand, described.capacity().saturating_add(cluster.look_ahead));
    let (used, slower) = match slower::without(cluster, run, sizes) {
        Some((cluster, slower)) => (cluster.stores.into_iter().nth(at), slower[at]),
        None => (None, [false; MAX_LEVELS]),
    };
    let store = used.as_ref().unwrap_or(described);
    let choice = knapsack::choose(sizes, &demand, store, &cluster.origin)?;
    let datasets = datasets(run, sizes, &demand);
    let origins = demand.datasets.iter().zip(&choice.saved);
    let origins = origins.map(|(demand, saved)| narrow(demand.bytes.saturating_sub(*saved)));
    let origins: Vec<u64> = origins.collect();
    let keep = Plan {
        store: store.id,
        placement: Placement::new(choice.tables),
        retention: Retention::Keep,
        floor,
        origin_bytes: 0,
        levels: levels(described, &choice.filled, slower),
        datasets,
        kept: choice.filled.into(),
        epochs: demand.epochs().into(),
    }
    .with_origins(&origins);
    let (store, complete) = (store.clone(), choice.complete);
    Ok(Keeping { keep, store, demand, complete })
}

/// The same plan with samples that come and go in the first level, and nothing in the others.
fn threshold(keep: Plan, sizes: &[Sizes], demand: &Demand, forecast: &Forecast) -> Plan {
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
    .with_origins(&origins)
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

    /// The origin bytes that no policy can save, with all levels and the look-ahead.
    pub fn floor(&self) -> u64 {
        self.floor.bytes
    }

    /// Whether the floor was counted; if not, the run was too long for that, and it is an estimate.
    pub fn floor_is_exact(&self) -> bool {
        self.floor.exact
    }

    /// The origin bytes that this plan reads, as predicted: for [`Retention::Keep`], the first use of every sample and
    /// all uses of what is not kept; for [`Retention::Threshold`], what the rule misses on (a part of) the stream,
    /// scaled up. What the look-ahead happens to hold at an epoch's boundary is not counted.
    pub fn origin_bytes(&self) -> u64 {
        self.origin_bytes
    }

    /// What each level will hold, the fastest first.
    pub fn levels(&self) -> &[LevelPlan] {
        &self.levels
    }

    /// What the run asks of each dataset, by [`DatasetId`](foreread_types::DatasetId).
    pub fn datasets(&self) -> &[DatasetPlan] {
        &self.datasets
    }

    /// Names everything that the plan decides and predicts; equal on all ranks, machines and releases with equal
    /// inputs.
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
            levels: self.levels.clone(),
            datasets: self.datasets.clone(),
        }
    }

    fn with_origins(mut self, origins: &[u64]) -> Self {
        self.origin_bytes = origins.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes));
        for (dataset, &bytes) in self.datasets.iter_mut().zip(origins) {
            dataset.origin_bytes = bytes;
        }
        self
    }
}

fn levels(store: &Store, filled: &[Vec<Filled>], slower: [bool; MAX_LEVELS]) -> Vec<LevelPlan> {
    let levels = store.levels.iter().enumerate();
    levels
        .map(|(index, level)| {
            let of_level = filled.iter().map(|levels| levels[index]);
            let all = of_level.fold(Filled::default(), Filled::and);
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
        datasets[phase.dataset.0 as usize].passes_per_epoch += 1;
    }
    for pass in whole_epoch(run) {
        datasets[pass.dataset.0 as usize].uses_per_epoch += pass.samples;
    }
    datasets
}

/// The passes of the last epoch, which no resume has cut short, unless it is the only one.
fn whole_epoch(run: &Run) -> impl Iterator<Item = Pass> + '_ {
    let passes = run.passes().len();
    (passes.saturating_sub(run.schedule().phases.len())..passes).filter_map(|index| run.pass(index))
}
