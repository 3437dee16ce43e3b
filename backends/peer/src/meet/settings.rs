//! The settings of a rendezvous.

use std::sync::Arc;
use std::time::Duration;

use foreread_connection::{Address, SystemTransport, Token, Transport};
use foreread_launcher::Launched;

use super::loader_directory::LoaderDirectory;
use super::node::node_id;
use super::waiting::WaitingCallback;
use crate::counters::PeerCounters;
use crate::serving::shared::ServerLimits;

/// The settings of a rendezvous. The fields of [`RendezvousSettings::new`] may be changed.
#[allow(missing_debug_implementations, reason = "it holds a closure")]
pub struct RendezvousSettings {
    /// The ranks that a launcher started.
    pub launched: Launched,
    /// The program's version. Equal on all ranks.
    pub version: String,
    /// The number of the process's loader, counted from 0 on every rank. The n-th loaders of all
    /// processes meet, while earlier ones may still run.
    pub loader: u16,
    /// Shared by all loaders of the process at one rendezvous address.
    pub board: Arc<LoaderDirectory>,
    /// The network.
    pub network: Arc<dyn Transport>,
    /// The user's token ([`given_token`](super::given_token)).
    pub token: Option<Token>,
    /// The addresses at which the rank listens. Empty: chosen automatically.
    pub listen: Vec<Address>,
    /// The deadline for all ranks to connect, and for each step.
    pub deadline: Duration,
    /// Called once a second with the progress of waiting.
    pub progress: WaitingCallback,
    /// Limits of serving samples.
    pub serving: ServerLimits,
    /// The counters of the rendezvous and the run.
    pub counters: Arc<PeerCounters>,
    /// The node's id, equal for processes that can use each other's Unix sockets.
    pub node: String,
    /// Ranks of a node with equal texts may share a store.
    pub group: String,
    /// The network interfaces by which other nodes reach this one
    /// ([`INTERFACE`](super::INTERFACE)).
    pub interface: Option<String>,
}

impl RendezvousSettings {
    /// The first loader of ranks of one `version`. 300 s for all ranks to connect and for each
    /// step, the machine's own sockets, no progress output.
    pub fn new(launched: Launched, version: impl Into<String>) -> Self {
        Self {
            launched,
            version: version.into(),
            loader: 0,
            board: Arc::default(),
            network: Arc::new(SystemTransport),
            token: None,
            listen: Vec::new(),
            deadline: Duration::from_secs(300),
            progress: Box::new(|_| ()),
            serving: ServerLimits::default(),
            counters: Arc::default(),
            node: node_id(),
            group: String::new(),
            interface: None,
        }
    }
}
