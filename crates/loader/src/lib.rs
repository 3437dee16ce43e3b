//! The engine: brings every sample into memory before the trainer asks, in the order that the seed says.
//!
//! [`core`] decides, without I/O, runtime or clock; the driver carries out what it decides on tokio; [`Loader`] is what
//! the trainer holds. The engine knows tiers only by their traits, so any origin and any cache will do.
//!
//! Nothing here may hang or lie: every read that is issued is answered, by the tier or by an error in its name; the
//! batch that is needed next is always admitted; a cache that has lost a sample costs one read from the origin.

pub mod core;

mod account;
mod active_reads;
mod batch;
mod block_reads;
mod blocks;
mod copies;
mod dataset;
mod direct;
mod driver;
mod error;
mod handover;
mod hedges;
mod instruments;
mod loader;
mod locate;
mod look_ahead;
mod origin_stats;
mod peer_group;
mod read_queue;
mod read_results;
mod ready;
mod report;
mod sample_server;
mod single_flight;
mod wait_timer;

pub use crate::batch::{Batch, BatchSample};
pub use crate::blocks::BlockTable;
pub use crate::core::OnError;
pub use crate::dataset::Dataset;
pub use crate::direct::Direct;
pub use crate::error::{LoadError, LoadErrorKind};
pub use crate::loader::{Batches, Loader, Parts};
pub use crate::look_ahead::LookAhead;
pub use crate::peer_group::{LocalDeal, Others};
pub use crate::report::{BatchCounts, Count, PassReport, RunReport, Source, SourceCounts};
