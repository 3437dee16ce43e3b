//! No agent: the crate was built without the feature `agent`, or for another system than Linux.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use foreread_loader::LocalityDeal;
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_tier::OpenContext;

use crate::config::Config;
use crate::error::Result;
use crate::node_host::NodeRoom;
#[cfg(feature = "peer")]
use crate::node_host::SharedCache;
use crate::origin::OpenDataset;
use crate::report::{AgentReport, WarmDataset};
use crate::storage::StorageOptions;

/// The agent of a run. There is none.
#[derive(Clone, Debug)]
pub(crate) struct AgentLink(Infallible);

impl AgentLink {
    pub(crate) fn announce(&self, _: &Run, _: Option<&LocalPlan>, _: Option<Arc<LocalityDeal>>) {
        match self.0 {}
    }

    pub(crate) fn announce_none(&self) {
        match self.0 {}
    }

    pub(crate) fn with_blocks(self, _: Option<u64>) -> Self {
        match self.0 {}
    }

    #[cfg(feature = "peer")]
    pub(crate) fn read_in_blocks(&self) {
        match self.0 {}
    }

    #[cfg(feature = "peer")]
    pub(crate) fn host(&self) -> Option<&str> {
        match self.0 {}
    }

    pub(crate) fn room(&self) -> NodeRoom {
        match self.0 {}
    }

    #[cfg(feature = "peer")]
    pub(crate) fn replace_origins(&self, _: &mut [OpenDataset]) {
        match self.0 {}
    }

    pub(crate) fn reads(&self) -> (u64, u64) {
        match self.0 {}
    }

    pub(crate) fn shared_by(&self) -> Option<u32> {
        match self.0 {}
    }

    pub(crate) fn watch(&self, _: impl Fn() -> Duration) {
        match self.0 {}
    }

    pub(crate) fn warm(&self, _: bool, _: (u32, u32)) -> Result<WarmDataset> {
        match self.0 {}
    }

    pub(crate) fn report(&self) -> Option<AgentReport> {
        match self.0 {}
    }

    pub(crate) fn is_attached(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn was_used(&self) -> bool {
        match self.0 {}
    }
}

#[cfg(feature = "peer")]
pub(crate) async fn attach_to(
    _: SharedCache<'_>,
    _: &[OpenDataset],
    _: &Config,
    _: [&StorageOptions; 2],
    _: &OpenContext,
) -> Result<Option<AgentLink>> {
    Ok(None)
}

pub(crate) async fn attach(
    _: &mut [OpenDataset],
    _: &mut Config,
    _: [&StorageOptions; 2],
    _: bool,
    _: &OpenContext,
) -> Result<Option<AgentLink>> {
    Ok(None)
}
