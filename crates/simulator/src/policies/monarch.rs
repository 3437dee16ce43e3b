//! Monarch: each node copies a file to its own first tier with space at its first read (CCGrid
//! 2022).
//!
//! Reads are made on demand, from this node's copies or the file system. Background threads copy
//! files that were read from there, and read them once more. The first file that does not fit ends
//! copying permanently. Simplified: a sample is a file, and the framework above Monarch reads one
//! at a time, although it may read several in practice.

use crate::plan::{OriginAccess, PolicyPlan, ReadCaching, Setup, Sources};

pub(super) fn plan(setup: &Setup<'_>) -> PolicyPlan {
    PolicyPlan {
        caching: ReadCaching::FirstTouch,
        demand: Sources { origin: OriginAccess::Always, local: true, remote: false },
        ..PolicyPlan::on_demand(setup)
    }
}
