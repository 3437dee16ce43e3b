//! What a meeting is told before it begins.

use std::sync::Arc;
use std::time::Duration;

use super::board::Board;
use super::launcher::Launched;
use super::node::node_id;
use super::waiting::Progress;
use crate::{Address, Counters, Network, Settings as Bounds, System, Token};

/// How ranks meet. The fields of [`Settings::new`] may be set otherwise.
#[allow(missing_debug_implementations, reason = "it holds a closure")]
pub struct Settings {
    /// The ranks that a launcher started.
    pub launched: Launched,
    /// The program's version, which all of them have to have.
    pub version: String,
    /// Which of the process's loaders it is, counted from 0 on every rank: the n-th of one rank meets the n-th of the others,
    /// beside earlier ones that still last.
    pub loader: u16,
    /// All of a process's loaders at one place share it.
    pub board: Arc<Board>,
    /// The network.
    pub network: Arc<dyn Network>,
    /// The user's token ([`given_token`](super::given_token)).
    pub token: Option<Token>,
    /// Where the rank listens, at these addresses alone if there are any.
    pub listen: Vec<Address>,
    /// How long all may take to come, and each step.
    pub deadline: Duration,
    /// Told once a second what is waited for.
    pub progress: Progress,
    /// Bounds for serving samples.
    pub serving: Bounds,
    /// What is counted meanwhile and during the run.
    pub counters: Arc<Counters>,
    /// Which node the process is on: equal for ranks that can use each other's Unix sockets.
    pub node: String,
    /// The network interfaces by which other nodes reach it ([`INTERFACE`](super::INTERFACE)).
    pub interface: Option<String>,
}

impl Settings {
    /// The first loader of ranks of one `version`. 300 s for all to come and for each step; the machine's own sockets;
    /// nothing is shown.
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
}
