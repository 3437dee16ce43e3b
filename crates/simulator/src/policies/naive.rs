//! The thesis's naive loader: every sample is read from the file system on demand, one at a time.

use crate::plan::{Plan, Setting};

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    Plan::on_demand(setting)
}
