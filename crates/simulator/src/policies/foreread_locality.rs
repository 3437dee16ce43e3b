//! foreread with locality-aware dealing: which worker trains on which sample of a global batch follows ownership.
//!
//! The samples of every global batch stay the same, and so do the workers' shares of it in number. Of each batch a worker
//! first gets samples that it owns; what is left over fills the shares. The worker that reads a sample first, as
//! batches are dealt in blocks, is its owner, so that the first epoch stays as it is. Price: the order within a worker's
//! share is no longer the seed's alone.

use crate::plan::{Plan, Setting};
use crate::planned::Planned;
use crate::policies::Refusal;
use crate::policies::foreread::carry_out;

pub(super) fn plan(setting: &Setting<'_>) -> Result<Plan, Refusal> {
    let planned = Planned::new(setting).map_err(|error| error.to_string())?;
    let streams = planned.deal(setting).map_err(|error| error.to_string())?;
    let plan = carry_out(setting, &planned, &streams);
    Ok(Plan { streams: Some(streams), ..plan })
}
