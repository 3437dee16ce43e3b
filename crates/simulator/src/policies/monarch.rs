//! Monarch: each node copies a file to its own first tier with room when it first reads it (CCGrid 2022).
//!
//! Reads are made on demand, from this node's copies or the file system. What is read from there is copied by background
//! threads, which read it once more; the first file that does not fit ends copying for good. Simplified: a sample is a
//! file, and the framework above Monarch reads one at a time, where it may really read several.

use crate::plan::{Keeping, Origin, Plan, Setting, Sources};

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    Plan {
        keeping: Keeping::FirstTouch,
        demand: Sources { origin: Origin::Always, local: true, remote: false },
        ..Plan::on_demand(setting)
    }
}
