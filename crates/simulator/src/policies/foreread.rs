//! foreread: every sample has at most one owner until all have one; its owner reads it from the file system, once.
//!
//! Who owns what, and where, is the planner's decision for this scenario ([`Planned`]): the worker that reads a sample
//! first owns it, so that nothing moves in the first epoch, and what room is left takes second copies.
//!
//! Owners prefetch in the order of first use anywhere, with the threads of all cache classes as one pool, because the
//! model's time for a read does not depend on the class that it is written to. What an owner is reading for its caches
//! while it stages it goes to the staging buffer as well, without a second read. A sample that is used once is not worth
//! keeping and has no owner; in the model, where every thread belongs to a class, the room that nothing else takes is then
//! good for reading it ahead.
//!
//! Everyone else stages from the owner, and waits for it if it must; only samples without an owner are read from the
//! file system again. Price: where the owner is late, a direct read would sometimes be quicker. Classes that are slower
//! than the file system stay empty, which is the planner's decision too. Where the network is slower than the file system,
//! owners are no help: then it is also tried what each worker can do for itself, which is [`nopfs`], with all of the file
//! system's bytes that that costs. The staging buffer's room
//! is always counted honestly, whatever the scenario says: the thesis's accounting is a fault of its own simulator. A
//! scenario with more classes than the planner has levels is refused.

use crate::copies::Rooms;
use crate::first_use::{FirstUse, first_uses};
use crate::plan::{Keeping, Origin, Plan, Setting, Sources, Staging};
use crate::planned::Planned;
use crate::policies::{Refusal, nopfs};
use crate::scenario::Accounting;
use crate::threads::Threads;
use crate::workload::Streams;

pub(super) fn plans(setting: &Setting<'_>) -> Result<Vec<Plan>, Refusal> {
    let planned = Planned::new(setting).map_err(|error| error.to_string())?;
    let mut plans = vec![carry_out(setting, &planned, &setting.workload.streams)];
    if network_is_slower(setting) {
        let mut plan = nopfs::plan(setting);
        if let Some(staging) = &mut plan.staging {
            staging.accounting = Accounting::Honest;
            staging.single_flight = true;
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Whether a worker is served sooner by the file system, which all read from, than by another worker.
fn network_is_slower(setting: &Setting<'_>) -> bool {
    setting.workers() > 1 && setting.scenario.network < 1.0 / setting.model.pfs_busy(1.0)
}

/// How many plans are tried.
pub(crate) fn tries(setting: &Setting<'_>) -> u64 {
    1 + u64::from(network_is_slower(setting))
}

/// A worker and its class.
type Place = (usize, usize);

/// What a run does that follows the planner's decisions and reads these streams.
pub(super) fn carry_out(setting: &Setting<'_>, planned: &Planned, streams: &Streams) -> Plan {
    let mut plan = Plan::on_demand(setting);
    let uses = first_uses(streams, setting.workload.sizes.len());
    let mut take = |sample: u32, (worker, class): Place| {
        let fits = plan.rooms.take(worker, class, setting.size(sample));
        debug_assert!(fits, "sample {sample} in class {class} of worker {worker}");
        fits
    };
    let owner = |first: &FirstUse| planned.owner(first.sample).filter(|&place| take(first.sample, place));
    let mut places: Vec<Option<Place>> = uses.iter().map(owner).collect();
    let mut second = vec![Vec::new(); setting.workers()];
    for (sample, worker, class) in planned.second(setting.scenario.samples) {
        if take(sample, (worker, class)) {
            second[worker].push((sample, class as u8));
        }
    }
    second.iter_mut().for_each(|copies| copies.sort_unstable());
    read_ahead(setting, &mut plan.rooms, &uses, &mut places);
    let count: usize = setting.scenario.storage.iter().skip(1).map(|class| class.threads).sum();
    let mut pools: Vec<Threads> = (0..setting.workers()).map(|_| Threads::new(count, 0.0)).collect();
    for (first, place) in uses.iter().zip(places) {
        let Some((worker, class)) = place else { continue };
        let done = pools[worker].work(0.0, setting.prefetch_seconds(first.sample));
        plan.load(setting, first.sample, worker, class, done);
    }
    let sources = Sources { origin: Origin::Unheld, local: true, remote: true };
    plan.demand = sources;
    plan.keeping = Keeping::Second(second);
    plan.staging =
        Some(Staging { sources, accounting: Accounting::Honest, growing: false, single_flight: true });
    plan
}

/// Gives what room is left to samples without a place, at their first readers. They are spread evenly over the order of
/// first use, or the prefetchers and the staging threads would work one after the other and not side by side.
fn read_ahead(setting: &Setting<'_>, rooms: &mut Rooms, uses: &[FirstUse], places: &mut [Option<Place>]) {
    // What would be read back more slowly than from the file system is not read ahead either.
    let pays = |class: usize| setting.model.local(1.0, class) <= setting.model.pfs_busy(1.0);
    let left: u128 = (0..setting.workers()).map(|worker| u128::from(rooms.left(worker, pays))).sum();
    let pairs = || uses.iter().zip(places.iter());
    let bytes = |first: &FirstUse| u128::from(setting.size(first.sample));
    let all: u128 = pairs().filter(|(_, place)| place.is_none()).map(|(first, _)| bytes(first)).sum();
    let room = left.min(all);
    let (mut walked, mut placed) = (0, 0);
    for (first, place) in uses.iter().zip(places).filter(|(_, place)| place.is_none()) {
        let (worker, bytes) = (first.worker as usize, bytes(first));
        walked += bytes;
        if (placed + bytes) * all <= walked * room
            && let Some(class) = rooms.take_any(worker, setting.size(first.sample), pays)
        {
            placed += bytes;
            *place = Some((worker, class));
        }
    }
}
