//! foreread, with the samples to keep chosen by the servers of the file system: the remaining time
//! of all servers is even.
//!
//! Only for scenarios that give the servers' relative speeds. As the planner decides, the placement
//! is that of [`foreread`](super::foreread) unless a tenth is gained. The planner takes an epoch to
//! be as long as its slowest server. In the model each thread reads one sample after the other, so
//! a slow server costs less here than the planner predicts.

use crate::plan::{PolicyPlan, Setup};
use crate::planner_decisions::PlannerDecisions;
use crate::policies::foreread::carry_out;

pub(super) fn plan(setup: &Setup<'_>) -> Result<PolicyPlan, String> {
    if setup.scenario.pfs_servers.is_empty() {
        return Err("the scenario has no pfs.servers with their relative speeds".to_owned());
    }
    let planned = PlannerDecisions::by_server(setup).map_err(|error| error.to_string())?;
    Ok(carry_out(setup, &planned, &setup.workload.streams))
}
