//! Without the feature `peer` every rank is alone: the same names, and nothing that could be made of them.

use std::time::Duration;

use foreread_dataset::Progress;
use foreread_loader::Others;
use foreread_tier::Context;

use crate::config::Config;
use crate::error::Result;
use crate::merged::Merged;
use crate::prepared::Prepared;
use crate::registry::Registry;
use crate::report::PeersReport;
use crate::state::State;
use crate::target::Named;

pub(crate) const FAREWELL: Duration = Duration::ZERO;

#[derive(Debug)]
pub(crate) enum Meeting {}

#[derive(Debug)]
pub(crate) enum Joint {}

impl Joint {
    pub(crate) fn others(&self) -> Others {
        match *self {}
    }

    pub(crate) fn progress(&self, _: u64) -> u64 {
        match *self {}
    }

    pub(crate) fn exchanged(&self) -> PeersReport {
        match *self {}
    }

    pub(crate) fn leave(&self, _: Merged, _: Duration) -> std::future::Ready<Option<Merged>> {
        match *self {}
    }
}

pub(crate) async fn prepare(
    _: &Named,
    _: Config,
    _: &Registry,
    _: &Context,
    _: Option<State>,
    meeting: Meeting,
    _: impl FnMut(Progress) + Send,
) -> Result<Prepared> {
    match meeting {}
}
