//! LBANN's data store in dynamic mode: each worker keeps the samples that it reads first in memory,
//! without an initial stall.
//!
//! A worker fills its memory in its access order with the samples that no worker read before. Then
//! all samples are staged from the workers' memories. Refused if the dataset does not fit in all
//! memories together.

use crate::first_use::first_uses;
use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};
use crate::policies::{memory, refuse_unless_it_fits};
use crate::threads::Threads;

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    let class = memory(setup)?;
    refuse_unless_it_fits(setup, class)?;
    let mut plan = PolicyPlan::on_demand(setup);
    let count = setup.scenario.storage[class].threads;
    let mut threads: Vec<Threads> = (0..setup.workers()).map(|_| Threads::new(count, 0.0)).collect();
    for first in first_uses(&setup.workload.streams, setup.workload.sizes.len()) {
        let worker = first.worker as usize;
        // If a worker draws more than its memory holds, the rest is read on demand.
        if plan.space.take(worker, class, setup.size(first.sample)) {
            let done = threads[worker].work(0.0, setup.prefetch_seconds(first.sample));
            plan.load(setup, first.sample, worker, class, done);
        }
    }
    plan.stage(setup, Sources { origin: OriginAccess::Never, local: true, remote: true });
    Ok(plan)
}
