//! Opening datasets: from a user's target to a catalog and an origin with its layers.
//!
//! A target is a catalog, a directory, a bucket, some shards or a table ([`target`]). The registry
//! has the backend of its URL ([`Registry`]). The origin is listed, or its catalog found
//! ([`origin`]), and wrapped in the layers that the settings of the run determine
//! ([`origin_policy`]). Caches on disks are opened here, too ([`disk`]).
//!
//! Decision: runs, agents and the hosts of a node's cache open datasets by this crate, which knows
//! no order, plan or engine. The price is that the settings of a run are copied into
//! [`OriginSettings`](origin_policy::OriginSettings).
//!
//! This crate is a part of the library `foreread`, which re-exports the items that programs need.

pub mod calibration;
pub mod credentials;
pub mod disk;
pub mod error;
#[cfg(feature = "tables")]
mod inventory;
pub mod memory_group;
pub mod node_rank;
pub mod origin;
pub mod origin_policy;
pub mod registry;
pub mod size;
pub mod storage;
pub mod stored;
#[cfg(feature = "tables")]
pub mod tables;
pub mod target;
pub mod units;
#[cfg(feature = "tables")]
pub mod update;

pub use crate::error::{Error, ErrorKind, Result};
pub use crate::registry::Registry;
pub use crate::storage::StorageOptions;
