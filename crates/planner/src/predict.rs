//! The predicted epochs of one rank's plan.

use foreread_oracle::Run;

use crate::cluster::Cluster;
use crate::error::{PlanError, PlanReason};
use crate::forecast::{Amount, EpochForecast, StoreWork, forecast, uses_by_epoch};
use crate::level::MAX_LEVELS;
use crate::plan::Plan;
use crate::retention::Retention;
use crate::wide::narrow;

/// Predicts every epoch of the rest of `run` under `plan`, for its rank alone.
///
/// `cluster` is the description that the plan was made with, or the same with measured speeds. The
/// placement does not change with them. Other ranks are assumed to do the same as this one:
/// `origin.clients` is evaluated for all of them, and everything else is this rank's.
///
/// Exact, apart from the bytes that [`Plan::origin_bytes`] leaves out, if each sample is used once
/// per epoch. Otherwise the first uses of samples are spread over epochs as in the plan's demand,
/// and hits evenly. Samples in the look-ahead at an epoch boundary are not counted.
///
/// # Errors
/// A cluster description that is invalid for the run.
///
/// ```
/// use std::sync::Arc;
/// use foreread_oracle::{Deal, Phase, PhaseKind, Run, Schedule, Shuffle};
/// use foreread_planner::{Cluster, Level, Origin, Resource, CacheStore, plan, predict};
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
/// // 100 MB at 10 MB/s, and a cache for 60 % of it.
/// let memory = Level::new("memory", 60_000_000, Footprint::EXACT);
/// let mut cluster = Cluster::single(CacheStore::new(StoreId(0), vec![memory]));
/// cluster.origin = Origin { client_bytes_per_second: 10_000_000, ..Origin::default() };
/// let plan = plan(&run, &[Sizes::uniform(1000, 100_000)], &cluster)?;
/// let epochs = predict(&plan, &run, &cluster)?;
/// assert_eq!(epochs.iter().map(|epoch| epoch.seconds()).collect::<Vec<_>>(), [10.0, 4.0, 4.0]);
/// assert!(epochs.iter().all(|epoch| epoch.limiting == Resource::OriginClient));
/// assert_eq!(epochs[1].requests.samples, 400);
/// # Ok(())
/// # }
/// ```
pub fn predict(plan: &Plan, run: &Run, cluster: &Cluster) -> Result<Vec<EpochForecast>, PlanError> {
    cluster.check(run.world_size())?;
    let at = cluster.store_index(run.rank()).ok_or(PlanReason::NoStore { rank: run.rank(), found: 0 })?;
    let mut epochs: Vec<EpochForecast> = Vec::new();
    let uses = plan.datasets().iter().map(|of| Amount { samples: of.uses, bytes: of.used_bytes });
    let uses: Vec<Amount> = uses.collect();
    for (index, (number, used)) in uses_by_epoch(run, &uses, 1).into_iter().enumerate() {
        let needs = plan.epochs.get(index).copied().unwrap_or_default();
        // Uses that are not the first of their sample. Those of kept samples are hits.
        let new = Amount { samples: 0, bytes: needs.distinct.saturating_sub(needs.seen) };
        let new = Amount { samples: used.share(new.bytes.into(), used.bytes.into()).samples, ..new };
        let again = used.minus(new);
        let mut work = StoreWork { ranks: 1, used, ..StoreWork::default() };
        let mut hits = Amount::default();
        for level in 0..MAX_LEVELS {
            let (kept, all) = kept(plan, level);
            let share = |of: Amount| of.shares(kept, all);
            work.near[level] = match plan.retention() {
                Retention::Keep => share(again),
                // The forecast of the rule, over the whole run.
                Retention::Threshold { .. } if level == 0 => {
                    let (origin, bytes) = totals(plan);
                    used.share(bytes.saturating_sub(origin), bytes)
                }
                Retention::Threshold { .. } => Amount::default(),
            };
            work.written[level] = match plan.retention() {
                Retention::Keep => share(new),
                Retention::Threshold { .. } if level == 0 => used.minus(work.near[level]),
                Retention::Threshold { .. } => Amount::default(),
            };
            work.read[level] = work.near[level];
            hits = hits.plus(work.near[level]);
        }
        work.origin = used.minus(hits);
        work.origin_own = work.origin;
        let times = plan.server_times.as_ref().filter(|_| plan.retention() == Retention::Keep);
        work.server_ns = times.map_or(0, |times| narrow(times.slowest(new.bytes, used)));
        epochs.push(forecast(cluster, number, &[(at, work)], run.world_size()));
    }
    Ok(epochs)
}

/// Samples and bytes that a level keeps, and that it could keep. Each is weighted by the passes
/// over its dataset per epoch.
fn kept(plan: &Plan, level: usize) -> ((u128, u128), (u128, u128)) {
    let (mut kept, mut all) = ((0, 0), (0, 0));
    for (dataset, levels) in plan.datasets().iter().zip(plan.kept.iter()) {
        let passes = u128::from(dataset.passes_per_epoch);
        let filled = levels.get(level).copied().unwrap_or_default();
        kept.0 += passes * u128::from(filled.samples);
        kept.1 += passes * filled.bytes;
        let bytes = u128::from(dataset.distinct_bytes);
        all.1 += passes * bytes;
        // The number of samples in proportion to the used bytes.
        let samples = u128::from(dataset.samples) * bytes;
        all.0 += passes * samples.checked_div(u128::from(dataset.bytes)).unwrap_or(0);
    }
    (kept, all)
}

fn totals(plan: &Plan) -> (u128, u128) {
    let bytes = plan.datasets().iter().map(|dataset| u128::from(dataset.used_bytes)).sum();
    (u128::from(plan.origin_bytes()), u128::from(narrow(bytes)))
}
