//! foreread with locality-aware dealing: ownership decides which worker trains on which sample of a
//! global batch.
//!
//! The samples of every global batch stay the same, and so does the length of the workers' shares.
//! From each batch a worker first gets samples that it owns. The rest fills the shares. With
//! dealing in blocks, the worker that reads a sample first is its owner, so the first epoch stays
//! the same. The price: the order within a worker's share no longer follows from the seed alone.

use crate::plan::{PolicyPlan, Setup};
use crate::planner_decisions::PlannerDecisions;
use crate::policies::foreread::carry_out;

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    let planned = PlannerDecisions::new(setup).map_err(|error| error.to_string())?;
    let streams = planned.deal(setup).map_err(|error| error.to_string())?;
    let plan = carry_out(setup, &planned, &streams);
    Ok(PolicyPlan { streams: Some(streams), ..plan })
}
