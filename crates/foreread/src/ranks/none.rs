//! Without the feature `peer` every rank is alone: the same names, and nothing that could be made of them.

use std::time::Duration;

use foreread_dataset::Progress;
use foreread_loader::Others;
use foreread_tier::Context;

use crate::config::Config;
use crate::error::Result;
use crate::merged::Merged;
use crate::on_node::OnNode;
use crate::prepared::Prepared;
use crate::registry::Registry;
use crate::report::PeersReport;
use crate::state::State;
use crate::target::Named;

pub(crate) const FAREWELL: Duration = Duration::ZERO;

/// Which of its node's ranks this is, where the launcher says just that; what has to be worked out takes the feature.
pub(crate) fn on_node(environment: &dyn Fn(&str) -> Option<String>) -> OnNode {
    let said = |names: &[&str]| names.iter().find_map(|name| environment(name)?.trim().parse::<u32>().ok());
    let rank = said(&["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK"]);
    let ranks =
        said(&["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"]);
    OnNode::told(rank, ranks)
}

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
