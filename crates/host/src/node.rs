//! The interface between a run and the store of its node.

use std::sync::Arc;

use foreread_connection::ControlConnection;
use foreread_open::Registry;
use foreread_open::disk::Disk;
use foreread_open::origin::OpenDataset;
use foreread_open::origin_policy::OriginSettings;
use foreread_peer::{PeerClient, PeerIdentity};
use foreread_planner::Owners;
use foreread_tier::OpenContext;
use foreread_types::DatasetIdentity;
use tokio::sync::mpsc;

/// The settings of a store: reads of storage, and disks.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// How storage is read. Policies can change the limits.
    pub origin: OriginSettings,
    /// The directories that keep samples, and their sizes.
    pub disk: Vec<Disk>,
}

/// The rank that hosts a store, as the store needs it.
#[derive(Clone, Debug)]
pub struct HostRank<'a> {
    /// The ranks that share the store, this one included.
    pub ranks: u32,
    /// How storage is read.
    pub settings: HostSettings,
    /// The backends of the program.
    pub registry: &'a Registry,
    /// The memory and the runtime of the rank.
    pub context: &'a OpenContext,
    /// Whether the runtime ends with the rank. A runtime that the program has given does not.
    pub has_own_runtime: bool,
    /// The bytes of memory for samples. 0 with an agent, which keeps them.
    pub memory: u64,
    /// The datasets that the rank reads from the node's agent. Empty without an agent.
    pub through_agent: Vec<OpenDataset>,
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
#[derive(Debug)]
pub struct StoreLinks {
    /// The names of the stores, in the order of the plan, and the connections to them. `None` for
    /// the own store.
    pub stores: Vec<(String, Option<Arc<PeerClient>>)>,
    /// The index of the own store.
    pub own: usize,
    /// The store that owns each sample, by the plan.
    pub owners: Owners,
    /// The datasets of the plan.
    pub datasets: Vec<DatasetIdentity>,
    /// The connections of the other stores for messages.
    pub incoming: Option<mpsc::Receiver<(PeerIdentity, ControlConnection)>>,
}
