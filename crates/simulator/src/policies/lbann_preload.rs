//! LBANN's data store in preload mode: each worker loads its contiguous shard into memory before
//! the run.
//!
//! Then all samples are staged from the workers' memories. Refused if the dataset does not fit in
//! all memories together.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};
use crate::policies::{Shards, memory, preload, refuse_unless_it_fits};

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    let class = memory(setup)?;
    refuse_unless_it_fits(setup, class)?;
    let mut plan = PolicyPlan::on_demand(setup);
    preload(setup, &mut plan, class, Shards::Contiguous);
    plan.stage(setup, Sources { origin: OriginAccess::Never, local: true, remote: true });
    Ok(plan)
}
