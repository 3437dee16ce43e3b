//! foreread with locality-aware dealing: ownership decides which worker trains on which sample of a
//! global batch.
//!
//! The samples of every global batch stay the same, and so does the length of the workers' shares.
//! From each batch a worker first gets samples that it owns. The rest fills the shares. With
//! dealing in blocks, the worker that reads a sample first is its owner, so the first epoch stays
//! the same. The price: the order within a worker's share no longer follows from the seed alone.

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
