//! The cache that the ranks of a node share, without an agent.
//!
//! The first rank of a node hosts it, with the same code as an agent: [`NodeHost`] is implemented
//! by the agent's crate, which depends on this one. Programs pass it to `ranks::Meeting`.

use std::fmt::Debug;

use crate::config::Config;

/// Starts the cache that the ranks of a node share.
pub trait NodeHost: Debug + Send + Sync {
    /// Starts it in this process. It reads by `config`.
    ///
    /// # Errors
    /// Why it cannot start. The ranks then have caches of their own.
    fn start(&self, config: &Config) -> Result<Box<dyn HostedStore>, String>;
}

/// A running cache. Dropping it ends it.
pub trait HostedStore: Debug + Send + Sync {
    /// The address for the ranks of the node, with a secret.
    fn address(&self) -> String;

    /// Sets the most bytes that samples take in memory.
    fn set_memory(&self, bytes: u64);
}
