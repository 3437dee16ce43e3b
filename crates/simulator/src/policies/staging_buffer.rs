//! The thesis's staging buffer: samples are staged ahead from the file system, and none is kept.

use crate::plan::{Origin, Plan, Setting, Sources};

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    let mut plan = Plan::on_demand(setting);
    plan.stage(setting, Sources { origin: Origin::Always, local: false, remote: false });
    plan
}
