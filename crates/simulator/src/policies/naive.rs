//! The thesis's naive loader: every sample is read from the file system on demand, one at a time.

use crate::plan::{PolicyPlan, Setup};

pub(super) fn plan(setup: &Setup<'_>) -> PolicyPlan {
    PolicyPlan::on_demand(setup)
}
