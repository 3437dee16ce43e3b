//! The thesis's lower bound: no stall ever, only computing and the barriers. Its file-system bytes are the floor.

use crate::plan::{Plan, Setting};

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    Plan { bound: true, ..Plan::on_demand(setting) }
}
