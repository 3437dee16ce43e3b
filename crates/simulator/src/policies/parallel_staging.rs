//! Parallel staging: each worker fills its disk before the run and then trains on the samples that
//! it holds.
//!
//! A worker reads its contiguous shard from the file system. Then it reads the following samples
//! from other workers over the network until its disk is full. Its accesses are drawn uniformly
//! from the samples that it holds, so it does not train on the requested order. The class is the
//! second after the staging buffer, or the only one.

use crate::plan::{Origin, Plan, Setting, Sources};
use crate::policies::{Refusal, disk};
use crate::threads::Threads;
use crate::workload::Streams;

pub(super) fn plan(setting: &Setting<'_>) -> Result<Plan, Refusal> {
    let class = disk(setting)?;
    let mut plan = Plan::on_demand(setting);
    let mut held = Vec::with_capacity(setting.workers());
    for worker in 0..setting.workers() {
        let mut threads = Threads::new(setting.scenario.storage[class].threads, 0.0);
        let mut loaded = Vec::new();
        let shard = setting.shard(worker);
        let others = (shard.end..setting.scenario.samples).chain(0..shard.start);
        for sample in shard.clone().chain(others) {
            if !plan.rooms.take(worker, class, setting.size(sample)) {
                break;
            }
            if shard.contains(&sample) {
                threads.work(0.0, setting.prefetch_seconds(sample));
                plan.load(setting, sample, worker, class, 0.0);
            } else {
                let mb = setting.mb(sample);
                threads.work(0.0, setting.model.remote(mb, class) + setting.model.write(mb));
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
    let mut draws = setting.workload.draws();
    let streams = &setting.workload.streams;
    let drawn = streams.ids.iter().zip(&held);
    let ids = drawn.map(|(ids, held)| ids.iter().map(|_| held[draws.below(held.len())]).collect()).collect();
    plan.streams = Some(Streams { ids, shape: streams.shape });
    plan.stage(setting, Sources { origin: Origin::Never, local: true, remote: false });
    Ok(plan)
}
