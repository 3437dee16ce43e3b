//! The engine: brings every sample into memory before the trainer requests it, in the order given
//! by the seed.
//!
//! [`core`] decides, without I/O, runtime or clock. The driver carries out its decisions on tokio.
//! [`Loader`] is the trainer's handle. The engine knows tiers only by their traits, so any origin
//! and any cache will do.
//!
//! The engine never hangs and never returns wrong data. Every issued read gets a result, from the
//! tier or as an error in its name. The next batch is always admitted. A sample that a cache has
//! lost costs one read from the origin.

pub mod core;

mod account;
mod active_reads;
mod batch;
mod block_reads;
mod blocks;
mod cache_stores;
mod copies;
mod dataset;
mod direct;
mod driver;
mod error;
mod handover;
mod history;
mod instruments;
mod loader;
mod locality_deal;
mod locate;
mod look_ahead;
mod panics;
mod read_queue;
mod read_results;
mod ready;
mod report;
mod run_units;
mod unit_offers;

pub use crate::batch::{Batch, BatchSample};
pub use crate::blocks::BlockTable;
pub use crate::core::OnError;
pub use crate::dataset::Dataset;
pub use crate::direct::DirectReader;
pub use crate::error::{LoadError, LoadErrorKind};
pub use crate::history::{EpochStart, History, HistorySlot};
pub use crate::loader::{Batches, Loader, LoaderParts};
pub use crate::locality_deal::LocalityDeal;
pub use crate::look_ahead::LookAhead;
pub use crate::report::{BatchCounts, PassReport, ReadSource, RunReport, SampleCount, SourceCounts};
