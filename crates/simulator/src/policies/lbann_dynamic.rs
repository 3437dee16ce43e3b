//! LBANN's data store in dynamic mode: each worker keeps the samples that it reads first in memory,
//! without an initial stall.
//!
//! A worker fills its memory in the order of its own accesses with the samples that no worker read
//! before. Then all samples are staged from the workers' memories. Refused if the dataset does not
//! fit in all memories together.

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
        // If a worker draws more than its memory holds, the rest is read on demand.
        if plan.rooms.take(worker, class, setting.size(first.sample)) {
            let done = threads[worker].work(0.0, setting.prefetch_seconds(first.sample));
            plan.load(setting, first.sample, worker, class, done);
        }
    }
    plan.stage(setting, Sources { origin: Origin::Never, local: true, remote: true });
    Ok(plan)
}
