//! The thesis's staging buffer: samples are staged ahead from the file system, and none is kept.

use crate::plan::{OriginAccess, PolicyPlan, Setup, Sources};

pub(super) fn plan(setup: &Setup<'_>) -> PolicyPlan {
    let mut plan = PolicyPlan::on_demand(setup);
    plan.stage(setup, Sources { origin: OriginAccess::Always, local: false, remote: false });
    plan
}
