//! What a meeting is told before it begins.

use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::launcher::Launched;
use super::node::node_id;
use super::waiting::Progress;
use crate::{Address, Counters, Network, Settings as Bounds, System, Token};

/// How ranks meet.
#[allow(missing_debug_implementations, reason = "it holds a closure")]
pub struct Settings {
    pub(super) launched: Launched,
    pub(super) version: String,
    pub(super) loader: u16,
    pub(super) board: Arc<Board>,
    pub(super) network: Arc<dyn Network>,
    pub(super) token: Option<Token>,
    pub(super) listen: Vec<Address>,
    pub(super) deadline: Duration,
    pub(super) progress: Progress,
    pub(super) serving: Bounds,
    pub(super) counters: Arc<Counters>,
    pub(super) node: String,
    pub(super) interface: Option<String>,
}

impl Settings {
    /// The ranks that a launcher started, all of which have to be of one `version`. 300 s for all to come and for each step;
    /// the machine's own sockets; nothing is shown.
    pub fn new(launched: Launched, version: impl Into<String>) -> Self {
        Self {
            launched,
            version: version.into(),
            loader: 0,
            board: Arc::default(),
            network: Arc::new(System),
            token: None,
            listen: Vec::new(),
            deadline: Duration::from_secs(300),
            progress: Box::new(|_| ()),
            serving: Bounds::default(),
            counters: Arc::default(),
            node: node_id(),
            interface: None,
        }
    }

    /// The same for a process of this node.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_node(self, node: impl Into<String>) -> Self {
        Self { node: node.into(), ..self }
    }

    /// The same for the process's loader of this number, counted from 0 on every rank: the n-th of one rank meets the n-th of
    /// the others, beside earlier ones that still last. All of a process's loaders at one place share `board`.
    #[must_use]
    pub fn with_loader(self, loader: u16, board: Arc<Board>) -> Self {
        Self { loader, board, ..self }
    }

    /// The same with the user's token ([`given_token`](super::given_token)).
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> Self {
        Self { token, ..self }
    }

    /// The same over another network.
    #[must_use]
    pub fn with_network(self, network: Arc<dyn Network>) -> Self {
        Self { network, ..self }
    }

    /// The same for a rank that listens at these addresses alone.
    #[must_use]
    pub fn with_listen(self, listen: Vec<Address>) -> Self {
        Self { listen, ..self }
    }

    /// The same for a rank that other nodes reach by these network interfaces ([`INTERFACE`](super::INTERFACE)).
    #[must_use]
    pub fn with_interface(self, interface: Option<String>) -> Self {
        Self { interface, ..self }
    }

    /// The same with another deadline.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same, and once a second `progress` is told what is waited for.
    #[must_use]
    pub fn with_progress(self, progress: Progress) -> Self {
        Self { progress, ..self }
    }

    /// The same with other bounds for serving samples, counted in `counters`.
    #[must_use]
    pub fn with_serving(self, serving: Bounds, counters: Arc<Counters>) -> Self {
        Self { serving, counters, ..self }
    }
}
