//! LBANN's data store in preload mode: each worker loads its contiguous shard into memory before
//! the run.
//!
//! Then all samples are staged from the workers' memories. Refused if the dataset does not fit in
//! all memories together.

use crate::plan::{Origin, Plan, Setting, Sources};
use crate::policies::{Refusal, Shards, memory, preload, refuse_unless_it_fits};

pub(super) fn plan(setting: &Setting<'_>) -> Result<Plan, Refusal> {
    let class = memory(setting)?;
    refuse_unless_it_fits(setting, class)?;
    let mut plan = Plan::on_demand(setting);
    preload(setting, &mut plan, class, Shards::Contiguous);
    plan.stage(setting, Sources { origin: Origin::Never, local: true, remote: true });
    Ok(plan)
}
