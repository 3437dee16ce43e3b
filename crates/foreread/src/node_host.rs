//! The cache that the ranks of a node share, without an agent.
//!
//! The first rank of a node hosts it, with the same code as an agent: [`NodeHost`] is implemented
//! by the agent's crate, which depends on this one. Programs pass it to `ranks::Meeting`.

use std::fmt::Debug;

#[cfg(any(feature = "peer", all(feature = "agent", target_os = "linux")))]
use std::sync::Arc;

#[cfg(feature = "peer")]
use foreread_peer::{ControlConnection, PeerIdentity, StorePeer};
#[cfg(feature = "peer")]
use foreread_planner::Owners;
use foreread_tier::OpenContext;
#[cfg(feature = "peer")]
use foreread_tier::PeerService;
use foreread_types::{DatasetIdentity, SampleId};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
#[cfg(feature = "peer")]
use tokio::sync::mpsc;

use crate::config::Config;
use crate::error::Result;
use crate::origin::OpenDataset;
use crate::registry::Registry;
use crate::report::DiskReport;

/// Starts the cache that the ranks of a node share.
pub trait NodeHost: Debug + Send + Sync {
    /// Starts it in this process.
    ///
    /// # Errors
    /// Why it cannot start. The ranks then have caches of their own.
    fn start(&self, rank: HostRank<'_>) -> Result<Box<dyn HostedStore>, String>;
}

/// The rank that hosts a cache, as the cache needs it.
#[derive(Clone, Copy, Debug)]
pub struct HostRank<'a> {
    /// The ranks that share the cache, this one included.
    pub ranks: u32,
    /// How storage is read.
    pub config: &'a Config,
    /// The backends of the program.
    pub registry: &'a Registry,
    /// The memory and the runtime of the rank.
    pub context: &'a OpenContext,
    /// Whether the runtime ends with the rank. One that the program has given does not.
    pub has_own_runtime: bool,
    /// The bytes of memory for samples. 0 with an agent, which keeps them.
    pub memory: u64,
    /// The datasets that the rank reads from the node's agent. `None` without an agent.
    pub through_agent: Option<&'a AgentDatasets>,
}

/// Datasets as a rank reads them from the agent of its node.
#[derive(Clone, Debug, Default)]
#[cfg_attr(
    not(all(feature = "agent", target_os = "linux")),
    expect(dead_code, reason = "no rank has an agent without the feature `agent`")
)]
pub struct AgentDatasets(pub(crate) Vec<OpenDataset>);

/// A cache that ranks share, as one of them reaches it.
#[cfg(feature = "peer")]
#[cfg_attr(
    not(all(feature = "agent", target_os = "linux")),
    expect(dead_code, reason = "no rank attaches without the feature `agent`")
)]
#[derive(Debug)]
pub(crate) struct SharedCache<'a> {
    /// The address.
    pub(crate) address: String,
    /// The cache itself, on the rank that hosts it.
    pub(crate) host: Option<&'a dyn HostedStore>,
    /// Its bytes for samples in memory, and those of memory and disks.
    pub(crate) room: NodeRoom,
    /// The ranks that share it. `None`: it relays what the node's agent keeps.
    pub(crate) ranks: Option<u32>,
}

/// The bytes that a node has for samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRoom {
    /// In memory.
    pub(crate) memory: u64,
    /// On disks.
    pub(crate) disk: u64,
}

/// A dataset of the ranks of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDataset {
    /// The identity of its bytes.
    pub identity: DatasetIdentity,
    /// Its location.
    pub url: String,
    /// The number of its samples.
    pub samples: u64,
    /// The sum of their lengths.
    pub bytes: u64,
}

/// The stores of all nodes of a run, as one of them sees them.
#[cfg(feature = "peer")]
#[derive(Debug)]
pub struct StoreLinks {
    /// The names of the stores, in the order of the plan, and the connections to them. `None` for
    /// the own store.
    pub stores: Vec<(String, Option<StorePeer>)>,
    /// The index of the own store.
    pub own: usize,
    /// The store that owns each sample, by the plan.
    pub owners: Owners,
    /// The datasets of the plan.
    pub datasets: Vec<DatasetIdentity>,
    /// The connections of the other stores for messages.
    pub incoming: Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>>,
}

/// The reads of storage that the cache of a node has made, and no rank of the node counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherReads {
    /// The requests for ranks of other nodes.
    pub requests: u64,
    /// The bytes of their samples.
    pub bytes: u64,
    /// Requests that were made again after an error, for any rank.
    pub retried: u64,
    /// Requests that were made again because the answer was late, for any rank.
    pub hedged: u64,
}

/// A running cache. Dropping it ends it.
pub trait HostedStore: Debug + Send + Sync {
    /// The address for the ranks of the node, with a secret. No other rank reaches that of one.
    fn address(&self) -> String;

    /// The host's own rank, as one of its ranks. It needs no address.
    #[cfg(all(feature = "agent", target_os = "linux"))]
    fn client(&self) -> Arc<foreread_store::LocalClient>;

    /// Opens its disks for the datasets of the ranks, before any of them attaches.
    ///
    /// # Errors
    /// If a directory cannot be used.
    fn open_disks(&self, datasets: Vec<NodeDataset>) -> BoxFuture<'static, Result<()>>;

    /// The ascending ids of a dataset's samples on its disks. Empty for an unknown identity.
    fn on_disk(&self, identity: &str) -> Vec<SampleId>;

    /// Links it with the stores of the other nodes. Returns what serves its samples to them, once
    /// they know the ranks that are attached here, or do not answer.
    #[cfg(feature = "peer")]
    fn link(&self, links: StoreLinks) -> BoxFuture<'static, Arc<dyn PeerService>>;

    /// The reads of storage that no rank of the node counts.
    fn other_reads(&self) -> OtherReads;

    /// The counters of its disks. `None` without any.
    fn disk_report(&self) -> Option<DiskReport>;

    /// Waits until samples on their way to its disks are written, for a few seconds at most.
    fn flush(&self) -> BoxFuture<'static, ()>;
}

/// The counters of the disks of a rank's cache. One that uses none of the rank's disks has kept
/// nothing there.
pub(crate) fn disk_report(host: &dyn HostedStore, config: &Config) -> Option<DiskReport> {
    host.disk_report().or_else(|| (!config.disk.is_empty()).then(DiskReport::default))
}
