//! Parallel staging: each worker fills its disk before the run and then trains on the samples that
//! it holds.
//!
//! A worker reads its contiguous shard from the file system. Then it reads the following samples
//! from other workers over the network until its disk is full. Its accesses are drawn uniformly
//! from the samples that it holds, so it does not train on the requested order. The class is the
//! second after the staging buffer, or the only one.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};
use crate::policies::disk;
use crate::threads::Threads;
use crate::workload::Streams;

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    let class = disk(setup)?;
    let mut plan = PolicyPlan::on_demand(setup);
    let mut held = Vec::with_capacity(setup.workers());
    for worker in 0..setup.workers() {
        let mut threads = Threads::new(setup.scenario.storage[class].threads, 0.0);
        let mut loaded = Vec::new();
        let shard = setup.shard(worker);
        let others = (shard.end..setup.scenario.samples).chain(0..shard.start);
        for sample in shard.clone().chain(others) {
            if !plan.space.take(worker, class, setup.size(sample)) {
                break;
            }
            if shard.contains(&sample) {
                threads.work(0.0, setup.prefetch_seconds(sample));
                plan.load(setup, sample, worker, class, 0.0);
            } else {
                let mb = setup.mb(sample);
                threads.work(0.0, setup.model.remote(mb, class) + setup.model.write(mb));
                plan.copies.add(sample, worker, class, 0.0);
                plan.loaded.remote += 1;
            }
            loaded.push(sample);
        }
        if loaded.is_empty() {
            return Err(format!("no sample fits into the class of worker {worker}"));
        }
        plan.initial_stall = plan.initial_stall.max(threads.done());
        held.push(loaded);
    }
    plan.copies.all_from(plan.initial_stall);
    let mut draws = setup.workload.draws();
    let streams = &setup.workload.streams;
    let drawn = streams.ids.iter().zip(&held);
    let ids = drawn.map(|(ids, held)| ids.iter().map(|_| held[draws.below(held.len())]).collect()).collect();
    plan.streams = Some(Streams { ids, shape: streams.shape });
    plan.stage(setup, Sources { origin: OriginAccess::Never, local: true, remote: false });
    Ok(plan)
}
