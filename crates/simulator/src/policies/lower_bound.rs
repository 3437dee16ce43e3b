//! The thesis's lower bound: no stall ever, only computing and the barriers. Its file-system bytes are the floor.
//!
//! It is the bound of the batches as they are dealt. A policy that trains on other samples, or deals a global batch
//! otherwise, balances its batches otherwise and may end a little before it.

use crate::plan::{Plan, Setting};

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    Plan { bound: true, ..Plan::on_demand(setting) }
}
