//! The names of stores and clusters.

use std::sync::Arc;

use foreread_connection::{Identity, Token, Transport, WireProtection};
use foreread_types::mix;

/// The name of a store.
#[derive(Clone, Debug)]
pub struct StoreName {
    /// The name of its node.
    pub node: String,
    /// The name that no other store has.
    pub instance: String,
}

impl StoreName {
    /// A store that is called by its name alone.
    pub(crate) fn alone(instance: &str) -> Self {
        Self { node: instance.to_owned(), instance: instance.to_owned() }
    }

    /// The seed of the pauses of this store's connections to another one.
    pub(super) fn seed_to(&self, other: &Self) -> u64 {
        text_hash(&self.instance) ^ text_hash(&other.instance).rotate_left(1)
    }
}

/// Who this agent is for the others.
#[derive(Clone, Debug)]
pub struct ClusterMember {
    /// Proves that it belongs to the cluster.
    pub identity: Identity,
    /// The name of its store.
    pub own: StoreName,
    /// How samples between agents are protected. Equal on all of them.
    pub wire: WireProtection,
    /// The sockets of the machine, or a network of tests.
    pub network: Arc<dyn Transport>,
}

impl ClusterMember {
    /// The name of all agents of the token together.
    pub(super) fn cluster_name(&self) -> String {
        format!("cluster {}", Token::seal([&self.identity.token], b"name of the cluster"))
    }
}

/// A hash of a text that is equal on all nodes.
pub fn text_hash(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |hash, byte| mix(hash ^ u64::from(byte)))
}
