//! The thesis's locality-aware loader: each worker loads its contiguous shard onto its disk before
//! the run.
//!
//! Staging uses all workers' disks, and the file system for samples that did not fit. The class is
//! the second after the staging buffer, or the only one.

use crate::plan::{Origin, Plan, Setting, Sources};
use crate::policies::{Refusal, Shards, disk, preload};

pub(super) fn plan(setting: &Setting<'_>) -> Result<Plan, Refusal> {
    let class = disk(setting)?;
    let mut plan = Plan::on_demand(setting);
    preload(setting, &mut plan, class, Shards::Contiguous);
    plan.stage(setting, Sources { origin: Origin::Always, local: true, remote: true });
    Ok(plan)
}
