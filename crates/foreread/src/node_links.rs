//! Where the samples of a run come from, besides its own caches: the agent of its node, or the
//! cache of its node's ranks, which may itself read from the agent.
//!
//! Decision: two traits, which the feature `share` implements. So a run without it has no branch of
//! its own. The price is a virtual call where a run starts, ends and reports.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use foreread_loader::LocalityDeal;
use foreread_open::disk::DiskReport;
use foreread_open::error::Result;
use foreread_open::origin_policy::OtherReads;
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_types::RankOf;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::report::{AgentReport, WarmDataset};

/// The bytes that a node has for samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRoom {
    /// In memory.
    pub(crate) memory: u64,
    /// On disks.
    pub(crate) disk: u64,
}

/// The time that the trainer has waited so far.
pub(crate) type StalledTime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A cache in another process, or in this one for others, as a job reads from it.
pub(crate) trait CacheClient: Debug + Send + Sync {
    /// Whether it served when the run began.
    fn is_attached(&self) -> bool;

    /// Whether samples may come from its memory, or have come from there.
    fn was_used(&self) -> bool;

    /// The bytes for samples.
    fn room(&self) -> NodeRoom;

    /// The number of ranks that share it, if it is the cache of a node without an agent.
    fn shared_by(&self) -> Option<u32>;

    /// The requests to storage that it has made for this run, and the bytes of their samples.
    fn reads(&self) -> (u64, u64);

    /// Sets the bytes of a block, if it reads the training data in blocks at first. A second call
    /// has no effect.
    fn set_blocks(&self, blocks: Option<u64>);

    /// Announces the order of a run, in place of an earlier one. With a plan of a group, the orders
    /// of all ranks, limited to the samples that this node keeps by the plan.
    fn announce(&self, run: &Run, of_group: Option<&LocalPlan>, locality: Option<Arc<LocalityDeal>>);

    /// Announces that there are no orders.
    fn announce_none(&self);

    /// Reports from now on how long the trainer has waited.
    fn watch(&self, stalled: StalledTime);

    /// Has the agent fill its memory with its part of the training data, if `begin` is set. `part`
    /// is its rank among the agents that share them. Returns how much of all of them is there.
    fn warm(&self, begin: bool, part: RankOf) -> Result<WarmDataset>;

    /// The samples by the way they came. `None` if it has not served.
    fn report(&self) -> Option<AgentReport>;
}

/// The cache of a node, on the rank that hosts it. Dropping it ends it.
pub(crate) trait HostedStore: Debug + Send + Sync {
    /// The reads of storage that no rank of the node counts.
    fn other_reads(&self) -> OtherReads;

    /// The counters of its disks. `None` without any.
    fn disk_report(&self) -> Option<DiskReport>;

    /// Waits until samples on their way to its disks are written, for a few seconds at most.
    fn flush(&self) -> BoxFuture<'static, ()>;
}

/// The connections of a run. None without an agent, on a rank that shares no cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeLinks {
    /// To the source of the samples, or their source once it serves.
    pub(crate) samples: Option<Arc<dyn CacheClient>>,
    /// Whether that is the cache of the node.
    pub(crate) is_cache: bool,
    /// To the agent, on the rank that reads from it for the cache of its node.
    pub(crate) relayed: Option<Arc<dyn CacheClient>>,
}

impl NodeLinks {
    /// The connection to the agent itself, if there is one and it serves.
    pub(crate) fn attached(&self) -> Option<&Arc<dyn CacheClient>> {
        self.relayed.as_ref().or(self.samples.as_ref()).filter(|agent| agent.is_attached())
    }

    /// Announces the order of a run, in place of an earlier one. The cache of a node keeps the
    /// samples of the plan, whatever the order.
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
        let stalled: StalledTime = Arc::new(stalled);
        for cache in self.samples.iter().chain(&self.relayed) {
            cache.watch(Arc::clone(&stalled));
        }
    }
}
