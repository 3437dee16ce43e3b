//! foreread: every sample has at most one owner until all have one; its owner reads it from the file system, once.
//!
//! Two plans are made and the faster one counts: the worker that reads a sample first owns it, so that nothing moves in
//! the first epoch; or the one that reads it most often, so that more is local later. Which samples are owned, where not
//! all can be, is [`crate::placement`]'s. Owners prefetch in the order of first use anywhere, with the threads of all
//! cache classes as one pool, because the model's time for a read does not depend on the class that it is written to.
//! What an owner is reading for its caches while it stages it goes to the staging buffer as well, without a second read.
//!
//! Everyone else stages from the owner, and waits for it if it must; only samples without an owner are read from the
//! file system again. Price: where the owner is late, a direct read would sometimes be quicker. The staging buffer's room
//! is always counted honestly, whatever the scenario says: the thesis's accounting is a fault of its own simulator.

use crate::placement::{Ownership, Placement};
use crate::plan::{Keeping, Origin, Plan, Setting, Sources, Staging};
use crate::policies::Threads;
use crate::scenario::Accounting;
use crate::workload::Streams;

pub(super) fn plans(setting: &Setting<'_>) -> Vec<Plan> {
    let streams = &setting.workload.streams;
    // A single worker owns everything either way.
    let both = if setting.workers() > 1 { &Ownership::BOTH[..] } else { &Ownership::BOTH[..1] };
    both.iter()
        .map(|&ownership| {
            let plan = Plan::on_demand(setting);
            let placement = Placement::new(setting, streams, ownership, plan.rooms.clone());
            carry_out(setting, plan, placement, streams)
        })
        .collect()
}

/// The plan that follows a placement of the samples which these streams read.
pub(super) fn carry_out(
    setting: &Setting<'_>,
    mut plan: Plan,
    placement: Placement,
    streams: &Streams,
) -> Plan {
    let second = placement.second_copies(setting, streams);
    let count: usize = setting.scenario.storage.iter().skip(1).map(|class| class.threads).sum();
    let mut pools: Vec<Threads> = (0..setting.workers()).map(|_| Threads::new(count)).collect();
    for owned in &placement.owned {
        let worker = owned.worker as usize;
        let done = pools[worker].work(setting.prefetch_seconds(owned.sample));
        plan.load(setting, owned.sample, worker, usize::from(owned.class), done);
    }
    let sources = Sources { origin: Origin::Unheld, local: true, remote: true };
    plan.demand = sources;
    plan.keeping = Keeping::Second(second.copies);
    plan.rooms = second.rooms;
    plan.staging =
        Some(Staging { sources, accounting: Accounting::Honest, growing: false, single_flight: true });
    plan
}
