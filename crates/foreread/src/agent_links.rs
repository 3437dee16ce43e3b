//! Where the samples of a run come from, besides its own caches: the agent of its node, or the
//! cache of its node's ranks, which may itself read from the agent.

use std::sync::Arc;
use std::time::Duration;

use foreread_loader::LocalityDeal;
use foreread_oracle::Run;
use foreread_planner::LocalPlan;

use crate::agent::AgentLink;

/// The connections of a run. None without an agent, on a rank that shares no cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentLinks {
    /// To what the samples come from, or will come from once it serves.
    pub(crate) samples: Option<AgentLink>,
    /// Whether that is the cache of the node.
    pub(crate) is_cache: bool,
    /// To the agent, on the rank that reads from it for the cache of its node.
    pub(crate) relayed: Option<AgentLink>,
}

impl AgentLinks {
    /// The connection to the agent itself, if there is one and it serves.
    pub(crate) fn attached(&self) -> Option<&AgentLink> {
        self.relayed.as_ref().or(self.samples.as_ref()).filter(|agent| agent.is_attached())
    }

    /// Announces the order of a run, in place of an earlier one. The cache of a node keeps what the
    /// plan says, whatever the order.
    pub(crate) fn announce(&self, run: &Run, plan: &LocalPlan, locality: Option<&Arc<LocalityDeal>>) {
        match &self.samples {
            Some(cache) if self.is_cache => cache.announce_none(),
            Some(agent) => agent.announce(run, None, locality.cloned()),
            None => {}
        }
        if let Some(agent) = &self.relayed {
            agent.announce(run, Some(plan), locality.cloned());
        }
    }

    /// Reports from now on how long the trainer has waited.
    pub(crate) fn watch(&self, stalled: impl Fn() -> Duration + Send + Sync + 'static) {
        let stalled = Arc::new(stalled);
        for agent in self.samples.iter().chain(&self.relayed) {
            let stalled = Arc::clone(&stalled);
            agent.watch(move || stalled());
        }
    }
}
