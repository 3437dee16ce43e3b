//! The engine: brings every sample into memory before the trainer asks, in the order that the seed says.
//!
//! [`core`] decides, without I/O, runtime or clock; the driver carries out what it decides on tokio; [`Loader`] is what
//! the trainer holds. The engine knows tiers only by their traits, so any origin and any cache will do.
//!
//! Nothing here may hang or lie: every read that is issued is answered, by the tier or by an error in its name; the
//! batch that is needed next is always admitted; a cache that has lost a sample costs one read from the origin.

pub mod core;

mod account;
mod answers;
mod batch;
mod blocks;
mod cold_start;
mod copies;
mod dataset;
mod direct;
mod driver;
mod error;
mod handover;
mod hedges;
mod held;
mod instruments;
mod keeper;
mod loader;
mod locate;
mod origin_pace;
mod others;
mod pace;
mod patience;
mod queue;
mod reading;
mod report;
mod serving;

pub use crate::batch::{Batch, BatchSample};
pub use crate::blocks::BlockTable;
pub use crate::core::OnError;
pub use crate::dataset::Dataset;
pub use crate::direct::Direct;
pub use crate::error::{LoadError, LoadErrorKind};
pub use crate::loader::{Batches, Loader, Parts};
pub use crate::others::{LocalDeal, Others};
pub use crate::pace::LookAhead;
pub use crate::report::{Count, PassReport, Reads, RunReport, Source, Taking};
