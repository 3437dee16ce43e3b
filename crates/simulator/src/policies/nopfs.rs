//! NoPFS: each worker caches the samples that it reads most often (Dryden et al., SC21).
//!
//! A worker sorts the samples that it will read by its number of reads, in descending order, with
//! ties by id. It fills its classes with this list by their capacities. Each class's part is
//! prefetched from the file system in the order of first access. Staging uses the worker's own
//! copies and the file system. Other workers' copies serve requests that are not staged in time.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};
use crate::threads::Threads;

pub(super) fn plan(setup: &Setup<'_>) -> PolicyPlan {
    let mut plan = PolicyPlan::on_demand(setup);
    let samples = setup.workload.sizes.len();
    let mut uses = vec![0u32; samples];
    let mut first = vec![u32::MAX; samples];
    for (worker, stream) in setup.workload.streams.ids.iter().enumerate() {
        for (position, &sample) in stream.iter().enumerate() {
            uses[sample as usize] += 1;
            first[sample as usize] = first[sample as usize].min(position as u32);
        }
        let mut ranked: Vec<u32> = (0..samples as u32).filter(|&sample| uses[sample as usize] > 0).collect();
        ranked.sort_by_key(|&sample| std::cmp::Reverse(uses[sample as usize]));
        let mut ranked = ranked.into_iter().peekable();
        for class in 1..setup.scenario.storage.len() {
            let mut part = Vec::new();
            while let Some(sample) =
                ranked.next_if(|&sample| plan.space.take(worker, class, setup.size(sample)))
            {
                part.push(sample);
            }
            part.sort_by_key(|&sample| first[sample as usize]);
            let mut threads = Threads::new(setup.scenario.storage[class].threads, 0.0);
            for sample in part {
                let done = threads.work(0.0, setup.prefetch_seconds(sample));
                plan.load(setup, sample, worker, class, done);
            }
        }
        for &sample in stream {
            uses[sample as usize] = 0;
            first[sample as usize] = u32::MAX;
        }
    }
    plan.stage(setup, Sources { origin: OriginAccess::Always, local: true, remote: false });
    plan
}
