//! foreread with locality-aware dealing: which worker trains on which sample of a global batch follows ownership.
//!
//! The samples of every global batch stay the same, and so do the workers' shares of it in number. Of each batch a worker
//! first gets samples that it owns, then ones that nobody owns, then others' where shares leave no choice. In the first
//! epoch samples are dealt in blocks, as always, and the first reader becomes the owner. Price: the order within a
//! worker's share is no longer the seed's alone.

use crate::placement::deal_by_ownership;
use crate::plan::{Plan, Setting};
use crate::policies::foreread::carry_out;

pub(super) fn plan(setting: &Setting<'_>) -> Plan {
    let plan = Plan::on_demand(setting);
    let (placement, streams) = deal_by_ownership(setting, plan.rooms.clone());
    let plan = carry_out(setting, plan, placement, &streams);
    Plan { streams: Some(streams), ..plan }
}
