//! foreread: every sample has at most one owner until all have one. The owner reads it from the
//! file system once.
//!
//! The planner decides on owners and places for this scenario ([`PlannerDecisions`]). The worker
//! that reads a sample first owns it, so no sample moves in the first epoch. The remaining space
//! takes second copies.
//!
//! Owners prefetch in the order of first use by any worker. The threads of all cache classes form
//! one pool, because the model's read time does not depend on the class written to. An owner that
//! stages a sample while it reads it for its caches writes it to the staging buffer without a
//! second read. A sample that is used once is not worth keeping and has no owner. In the model
//! every thread belongs to a class, so the remaining space is used to read such samples ahead.
//!
//! All other workers stage from the owner, and wait for it if necessary. Only samples without an
//! owner are read from the file system again. The price: if the owner is late, a direct read would
//! sometimes be faster. Classes that are slower than the file system stay empty, as the planner
//! decides.
//!
//! If the network is slower than the file system, owners do not help. Then a second plan is tried
//! in which each worker reads for itself, which is [`nopfs`], at its cost in file-system bytes. The
//! staging buffer always uses the honest accounting, because the thesis's accounting is a fault of
//! its simulator. A scenario with more classes than the planner has levels is refused.

use crate::copies::ClassSpace;
use crate::first_use::{FirstUse, first_uses};
use crate::plan::{OriginAccess, PolicyPlan, ReadCaching, Setup, Sources, Staging};
use crate::planner_decisions::PlannerDecisions;
use crate::policies::nopfs;
use crate::scenario::Accounting;
use crate::threads::Threads;
use crate::workload::Streams;

pub(super) fn plans(setup: &Setup<'_>) -> Result<Vec<PolicyPlan>, String> {
    let planned = PlannerDecisions::new(setup).map_err(|error| error.to_string())?;
    let mut plans = vec![carry_out(setup, &planned, &setup.workload.streams)];
    if network_is_slower(setup) {
        let mut plan = nopfs::plan(setup);
        if let Some(staging) = &mut plan.staging {
            staging.accounting = Accounting::Honest;
            staging.single_flight = true;
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Whether the file system serves a worker faster than another worker does, while all workers read
/// from it.
fn network_is_slower(setup: &Setup<'_>) -> bool {
    setup.workers() > 1 && setup.scenario.network < 1.0 / setup.model.pfs_busy(1.0)
}

/// The number of plans that are tried.
pub(crate) fn tries(setup: &Setup<'_>) -> u64 {
    1 + u64::from(network_is_slower(setup))
}

/// A worker and its class.
type WorkerClass = (usize, usize);

/// The plan of a run that follows the planner's decisions and reads these streams.
pub(super) fn carry_out(setup: &Setup<'_>, planned: &PlannerDecisions, streams: &Streams) -> PolicyPlan {
    let mut plan = PolicyPlan::on_demand(setup);
    let uses = first_uses(streams, setup.workload.sizes.len());
    let mut take = |sample: u32, (worker, class): WorkerClass| {
        let fits = plan.space.take(worker, class, setup.size(sample));
        debug_assert!(fits, "sample {sample} in class {class} of worker {worker}");
        fits
    };
    let owner = |first: &FirstUse| planned.owner(first.sample).filter(|&place| take(first.sample, place));
    let mut places: Vec<Option<WorkerClass>> = uses.iter().map(owner).collect();
    let mut second = vec![Vec::new(); setup.workers()];
    for (sample, worker, class) in planned.second(setup.scenario.samples) {
        if take(sample, (worker, class)) {
            second[worker].push((sample, class as u8));
        }
    }
    second.iter_mut().for_each(|copies| copies.sort_unstable());
    read_ahead(setup, &mut plan.space, &uses, &mut places);
    let count: usize = setup.scenario.storage.iter().skip(1).map(|class| class.threads).sum();
    let mut pools: Vec<Threads> = (0..setup.workers()).map(|_| Threads::new(count, 0.0)).collect();
    for (first, place) in uses.iter().zip(places) {
        let Some((worker, class)) = place else { continue };
        let done = pools[worker].work(0.0, setup.prefetch_seconds(first.sample));
        plan.load(setup, first.sample, worker, class, done);
    }
    let sources = Sources { origin: OriginAccess::Unheld, local: true, remote: true };
    plan.demand = sources;
    plan.caching = ReadCaching::Second(second);
    plan.staging =
        Some(Staging { sources, accounting: Accounting::Honest, growing: false, single_flight: true });
    plan
}

/// Gives the remaining space to samples without a place, at their first readers. They are spread
/// evenly over the order of first use. Otherwise the prefetchers and the staging threads would work
/// one after the other and not in parallel.
fn read_ahead(
    setup: &Setup<'_>,
    space: &mut ClassSpace,
    uses: &[FirstUse],
    places: &mut [Option<WorkerClass>],
) {
    // A sample that is read back more slowly than from the file system is not read ahead.
    let pays = |class: usize| setup.model.local(1.0, class) <= setup.model.pfs_busy(1.0);
    let left: u128 = (0..setup.workers()).map(|worker| u128::from(space.left(worker, pays))).sum();
    let pairs = || uses.iter().zip(places.iter());
    let bytes = |first: &FirstUse| u128::from(setup.size(first.sample));
    let all: u128 = pairs().filter(|(_, place)| place.is_none()).map(|(first, _)| bytes(first)).sum();
    let room = left.min(all);
    let (mut walked, mut placed) = (0, 0);
    for (first, place) in uses.iter().zip(places).filter(|(_, place)| place.is_none()) {
        let (worker, bytes) = (first.worker as usize, bytes(first));
        walked += bytes;
        if (placed + bytes) * all <= walked * room
            && let Some(class) = space.take_any(worker, setup.size(first.sample), pays)
        {
            placed += bytes;
            *place = Some((worker, class));
        }
    }
}
