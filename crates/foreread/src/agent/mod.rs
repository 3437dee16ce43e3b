//! The agent of the node: one cache for all jobs, and this process as one of its jobs.
//!
//! A job that finds an agent gets its samples there. It has no memory tier and no disk tier of its
//! own then, because those belong to the agent. Its order, look-ahead, state and error policy stay
//! here. So an agent that ends costs time and no sample.
//!
//! [`host`] is the other end: how an agent opens and reads the datasets of its jobs.

mod client;
pub mod disk;
pub mod host;
mod orders;

#[cfg(feature = "peer")]
pub(crate) use self::client::attach_to;
pub(crate) use self::client::{AgentLink, attach};
pub use foreread_tier::{ReplaceableThrough, is_private_directory, replaceable_through};
