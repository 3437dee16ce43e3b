//! The thesis's lower bound: no stalls, only computing and the barriers. Its file-system bytes are
//! the lower bound of bytes.
//!
//! It bounds runs with the batches as dealt. A policy that trains on other samples, or deals a
//! global batch differently, balances its batches differently and may end a little before it.

use crate::plan::{PolicyPlan, Setup};

pub(super) fn plan(setup: &Setup<'_>) -> PolicyPlan {
    PolicyPlan { bound: true, ..PolicyPlan::on_demand(setup) }
}
