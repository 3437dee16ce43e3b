//! The thesis's locality-aware loader: each worker loads its contiguous shard onto its disk before
//! the run.
//!
//! Staging uses all workers' disks, and the file system for samples that did not fit. The class is
//! the second after the staging buffer, or the only one.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};
use crate::policies::{Shards, disk, preload};

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    let class = disk(setup)?;
    let mut plan = PolicyPlan::on_demand(setup);
    preload(setup, &mut plan, class, Shards::Contiguous);
    plan.stage(setup, Sources { origin: OriginAccess::Always, local: true, remote: true });
    Ok(plan)
}
