//! foreread: a data loader for machine-learning training that knows the future.
//!
//! The order in which a run reads its samples is drawn from a seed, so it is known before the run starts. foreread
//! computes it, decides from it where every sample is kept, and has each in memory before the trainer asks.
//!
//! * [`Loader`] is the whole thing: `Loader::builder(url)`, a few settings, `start()`, batches.
//! * [`Config`] and [`Knobs`] hold the settings, with where each came from (argument, environment, file, default).
//! * [`Registry`] says which backend opens which URL. The built-in ones are features of this crate; your own is
//!   registered at run time.
//! * [`Ready::prepared`] tells what a run would do without doing it: order, placement, floor.
//!
//! # Features
//!
//! Directories (plain paths and `file://`) are always there. There are no default features.
//!
//! | feature | what it adds |
//! |---|---|
//! | `s3` | buckets: `s3://` |
//! | `gcs`, `azure` | `gs://`; `az://` and its other names |
//! | `peer` | ranks that work together and share their caches |
//! | `share` | one source for several processes of a machine |
//! | `hpc` | `peer` |
//! | `cloud` | `s3` and `peer` |
//! | `opendal` | WebDAV, WebHDFS, web servers, OSS, COS and others |
//! | `opendal-huggingface`, `opendal-hdfs`, `opendal-sftp` | `hf://`; `hdfs://`; `sftp://` |
//!
//! The crates behind it are re-exported under their names ([`oracle`], [`planner`], [`dataset`], [`tier`], [`layers`]).

mod assembly;
mod builder;
mod calibration;
mod cluster;
mod config;
mod disk;
mod error;
mod joint;
mod knobs;
mod loader;
mod machine;
mod memory;
mod merged;
mod on_node;
mod origin;
mod outlook;
mod planned;
mod prepared;
#[cfg(feature = "peer")]
mod ranks;
mod registry;
mod report;
mod runtime;
mod size;
mod source;
mod state;
mod storage;
mod target;
mod text;
mod together;

pub use foreread_dataset as dataset;
pub use foreread_layers as layers;
pub use foreread_local::{ChangeTimes, disk as disk_cache};
pub use foreread_oracle as oracle;
#[cfg(feature = "peer")]
pub use foreread_peer as peer;
pub use foreread_planner as planner;
#[cfg(all(feature = "share", target_os = "linux"))]
pub use foreread_share as share;
pub use foreread_tier as tier;
pub use foreread_types as types;

pub use foreread_dataset::{Catalog, Format, IndexOptions, Progress, forget_listing};
pub use foreread_layers::{DeadlinePolicy, HedgePolicy, RetryPolicy};
pub use foreread_loader::{Batch, BatchSample, BlockTable, LoadError, LoadErrorKind, OnError};
pub use foreread_oracle::{Deal, Position};

pub use crate::builder::Builder;
pub use crate::calibration::{
    CalibrateOptions, Calibration, DiskSpeed, LargeReads, MemorySpeed, OriginSpeed, Point,
    Progress as Calibrating, Stage, calibrate,
};
pub use crate::config::{Config, Disk, MOST_EPOCHS, Memory, SamplerKind};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::knobs::{COMMAND_KNOBS, KNOBS, Knob, Knobs, Provenance};
pub use crate::loader::{Batches, Jump, Loader, Ready};
pub use crate::merged::{Merged, MergedEpoch};
pub use crate::outlook::{Outlook, keeps};
pub use crate::planned::{Planned, Worth, sampler};
pub use crate::prepared::Prepared;
#[cfg(feature = "peer")]
pub use crate::ranks::{Meeting, Meetings};
pub use crate::registry::Registry;
pub use crate::report::{
    Adapted, CountReport, DiskReport, EpochReport, LookAheadReport, ParallelismReport, PeersReport,
    ReadsReport, Report,
};
pub use crate::size::{ByteRate, ByteSize, ParseSizeError};
pub use crate::source::{Asked, Source};
pub use crate::state::State;
pub use crate::storage::StorageOptions;
pub use crate::text::read as read_text;
pub use crate::together::Together;

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
