//! LBANN's data store in dynamic mode: each worker keeps in memory what it reads first, without an initial stall.
//!
//! A worker's memory is filled in the order of its own accesses with the samples that no worker before it read; from
//! then on all are staged from the workers' memories. Refused where the dataset does not fit in them together.

use crate::first_use::first_uses;
use crate::plan::{Origin, Plan, Setting, Sources};
use crate::policies::{Refusal, memory, refuse_unless_it_fits};
use crate::threads::Threads;

pub(super) fn plan(setting: &Setting<'_>) -> Result<Plan, Refusal> {
    let class = memory(setting)?;
    refuse_unless_it_fits(setting, class)?;
    let mut plan = Plan::on_demand(setting);
    let count = setting.scenario.storage[class].threads;
    let mut threads: Vec<Threads> = (0..setting.workers()).map(|_| Threads::new(count, 0.0)).collect();
    for first in first_uses(&setting.workload.streams, setting.workload.sizes.len()) {
        let worker = first.worker as usize;
        // A worker that drew more than its memory holds leaves the rest to be read on demand.
        if plan.rooms.take(worker, class, setting.size(first.sample)) {
            let done = threads[worker].work(0.0, setting.prefetch_seconds(first.sample));
            plan.load(setting, first.sample, worker, class, done);
        }
    }
    plan.stage(setting, Sources { origin: Origin::Never, local: true, remote: true });
    Ok(plan)
}
