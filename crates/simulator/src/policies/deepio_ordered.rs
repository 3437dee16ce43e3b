//! DeepIO's ordered mode: the dataset is in the workers' memories, in contiguous buckets, before
//! the run begins.
//!
//! If it does not fit, each worker in turn takes as much as fits, and the rest is read from the
//! file system on demand. Staging uses the memories alone.

use crate::plan::{Origin, Plan, Setting, Sources};
use crate::policies::{Refusal, Shards, fits, memory, preload};

pub(super) fn plan(setting: &Setting<'_>) -> Result<Plan, Refusal> {
    let class = memory(setting)?;
    let mut plan = Plan::on_demand(setting);
    let shards = if fits(setting, class) { Shards::Contiguous } else { Shards::AsMuchAsFits };
    preload(setting, &mut plan, class, shards);
    plan.stage(setting, Sources { origin: Origin::Never, local: true, remote: true });
    Ok(plan)
}
