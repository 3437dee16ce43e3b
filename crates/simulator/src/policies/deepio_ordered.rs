//! DeepIO's ordered mode: the dataset is in the workers' memories, in contiguous buckets, before
//! the run begins.
//!
//! If it does not fit, each worker in turn takes as much as fits, and the rest is read from the
//! file system on demand. Staging uses the memories alone.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};
use crate::policies::{Shards, fits, memory, preload};

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    let class = memory(setup)?;
    let mut plan = PolicyPlan::on_demand(setup);
    let shards = if fits(setup, class) { Shards::Contiguous } else { Shards::AsMuchAsFits };
    preload(setup, &mut plan, class, shards);
    plan.stage(setup, Sources { origin: OriginAccess::Never, local: true, remote: true });
    Ok(plan)
}
