//! foreread: a data loader for machine-learning training that knows the future.
//!
//! A seed determines the order in which a run reads its samples, so the order is known before the
//! run starts. foreread computes it, decides from it where every sample is cached, and has each
//! sample in memory before the trainer needs it.
//!
//! * [`Loader`] runs a training: `Loader::builder(url)`, a few settings, `start()`, batches.
//! * [`Source`] serves samples by id to code that decides the order itself.
//! * [`Config`] holds all settings. The crate `foreread-settings` reads them from arguments,
//!   environment and files.
//! * [`Registry`] maps URLs to storage backends. Built-in backends are features of this crate.
//!   Custom backends are registered at run time.
//! * [`plan`] predicts a run: order, placement, lower bound. The crate `foreread-estimate` has the
//!   report of it.
//!
//! # Features
//!
//! Directories (plain paths and `file://`) are always supported. By default no feature is on.
//!
//! | feature | what it adds |
//! |---|---|
//! | `s3` | buckets: `s3://` |
//! | `gcs`, `azure` | `gs://`; `az://` and its other names |
//! | `plot` | the plot of a run, as SVG |
//! | `share` | one cache a node, on Linux: for ranks that meet, jobs of an agent, worker processes |
//! | `tables` | datasets that a CSV, JSON, Parquet or Arrow file lists |
//! | `lustre` | directories on Lustre: which server has which sample |
//! | `hpc` | `lustre` and `share` |
//! | `cloud` | `s3` and `share` |
//! | `opendal` | WebDAV, WebHDFS, web servers, OSS, COS and others |
//! | `opendal-hdfs`, `opendal-sftp` | `hdfs://`; `sftp://` |

mod agent_choice;
#[cfg(all(feature = "share", target_os = "linux"))]
mod agent_client;
#[cfg(all(feature = "share", target_os = "linux"))]
mod announced_orders;
mod assembly;
mod builder;
mod cluster;
mod cluster_blocks;
mod cluster_forecast;
mod config;
mod config_rows;
mod group_member;
mod indexing;
#[cfg(all(feature = "share", target_os = "linux"))]
mod lender;
mod loader;
mod machine;
mod memory;
mod merged;
mod node_links;
mod order_group;
mod planned;
#[cfg(feature = "plot")]
mod plot;
mod prepared;
#[cfg(all(feature = "share", target_os = "linux"))]
pub mod ranks;
mod ready;
mod released;
pub mod report;
mod runtime;
mod server_speeds;
mod source;
mod state;
mod text;

pub use foreread_dataset::{Catalog, Format};
pub use foreread_loader::{Batch, BatchSample, LoadError, LoadErrorKind, OnError};
pub use foreread_open::disk::Disk;
pub use foreread_open::{calibration, size};
pub use foreread_oracle::Deal;
pub use foreread_types::{Interface, RankOf, SampleId};

pub use foreread_open::error::{Error, ErrorKind, Result};
pub use foreread_open::registry::Registry;
pub use foreread_open::storage::StorageOptions;

pub use crate::agent_choice::{AGENT_VARIABLE, AgentChoice, default_socket};
pub use crate::builder::Builder;
pub use crate::config::{Config, Memory, SamplerKind};
pub use crate::loader::{Batches, Jump, Loader};
pub use crate::memory::free_memory;
pub use crate::order_group::order_group_seed;
pub use crate::ready::Ready;
pub use crate::source::{SampleRequests, SampleStream, Source};
pub use crate::state::{State, StateLock};
#[doc(hidden)]
pub use crate::text::read as read_text;

/// Datasets: listing them into catalogs.
///
/// ```
/// # let directory = std::env::temp_dir().join(format!("foreread-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # std::fs::write(directory.join("a.jpg"), "abc")?;
/// # let target = directory.to_str().unwrap();
/// use foreread::dataset::IndexOptions;
/// use foreread::Loader;
///
/// let catalog = Loader::builder(target).index(IndexOptions::default(), |_| ())?;
/// assert_eq!(catalog.len(), 1);
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod dataset {
    pub use foreread_dataset::{
        ArrayType, CATALOG_NAME, DatasetError, DatasetErrorKind, FormatOptions, Grouping, Growth,
        IndexOptions, IndexProgress, SampleChecksum, SampleValue, ServerShare, ServerShares, SplitOptions,
        forget_listing,
    };
    pub use foreread_types::DatasetId;
}

/// Datasets that a table lists.
///
/// ```
/// # let directory = std::env::temp_dir().join(format!("foreread-table-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// # std::fs::write(directory.join("a.jpg"), "abc")?;
/// # std::fs::write(directory.join("train.csv"), "file,class\na.jpg,cat\n")?;
/// # let target = directory.to_str().unwrap();
/// use foreread::dataset::IndexOptions;
/// use foreread::table::{TableOptions, TableSource};
/// use foreread::Loader;
///
/// let mut options = TableOptions::default(); options.label = Some("class".into()); let table =
/// TableSource::At(format!("{target}/train.csv")); let catalog =
/// Loader::builder(target).index_table(table, options, IndexOptions::default(), |_| ())?;
/// assert_eq!(catalog.label(foreread::SampleId(0)), Some("cat"));
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tables")]
pub mod table {
    pub use foreread_open::update::requested_table;
    pub use foreread_tables::{
        Comparison, Filter, FilterValue, SampleTable, TableKind, TableOptions, matching,
    };

    pub use foreread_open::tables::TableSource;
}

/// Retries, timeouts and hedges of reads from the origin.
///
/// ```
/// use foreread::policy::RetryPolicy;
/// let builder = foreread::Loader::builder("s3://bucket/train").retry(RetryPolicy::default());
/// ```
pub mod policy {
    pub use foreread_layers::{DeadlinePolicy, HedgePolicy, RetryPolicy};
}

/// Plans of runs: the content of each cache, the lower bound of bytes from the origin, and
/// predicted times.
///
/// The planner itself is the crate `foreread-planner`, whose types are not part of this interface.
///
/// ```
/// use foreread::Config;
/// use foreread::plan::{Planned, Sizes};
///
/// let mut config = Config::default();
/// config.epochs = 10;
/// config.memory = "1GiB".parse()?;
/// let planned = Planned::new(config, &[Sizes::uniform(1000, 1 << 20)])?;
/// assert!(planned.floor() >= 1000 << 20 && planned.origin_bytes() >= planned.floor());
/// let [memory] = planned.levels() else { unreachable!("one kind of cache is set") };
/// assert_eq!((&*memory.name, memory.capacity), ("memory", 1 << 30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod plan {
    pub use foreread_planner::{Amount, EpochForecast, LevelPlan, Resource, ServerGain};
    pub use foreread_types::Sizes;

    pub use crate::cluster_forecast::{BlockForecast, ClusterForecast};
    pub use crate::planned::{CapacityGain, Planned};
    pub use crate::prepared::{NodeCacheSize, Prepared};
    pub use foreread_open::units::UnitPlan;
}

/// The order in which samples are read.
///
/// ```
/// use foreread::SamplerKind;
/// use foreread::order::sampler;
///
/// let order = sampler(SamplerKind::Shuffle, 1000, 7)?.order(0)?;
/// # Ok::<(), foreread::order::OracleError>(())
/// ```
pub mod order {
    pub use foreread_oracle::{
        AccessStream, Dealing, OracleError, Order, Pass, Phase, PhaseKind, Position, Run, Sampler,
    };
    pub use foreread_types::{Rank, Tick};

    pub use crate::planned::sampler;
}

/// The parts of a custom storage backend, for [`Registry::register`]. `crates/tier-testing` has the
/// tests that it must pass. With the feature `s3`, `ObjectStoreOrigin` wraps any `object_store`.
///
/// ```
/// use foreread::backend::{Span, TierProfile};
/// let profile = TierProfile::new(64).with_listing_in_order(true);
/// assert_eq!(profile.parallelism, 64);
/// ```
pub mod backend {
    #[cfg(feature = "s3")]
    pub use foreread_s3::{ObjectStoreOrigin, object_store};
    pub use foreread_tier::{
        Backend, Buffers, ErrorKind, HeapBuffers, LayoutsFuture, ListRange, Object, ObjectLayout,
        OpenContext, OpenOptions, OriginTier, ReadFuture, ReadRequest, Span, StorageServer, Tier, TierError,
        TierProfile, Version, check_path,
    };
}

/// The caches on disks of all runs that have used a directory.
///
/// ```
/// let entries = foreread::cache::list(std::path::Path::new("/no/such/directory"));
/// assert!(entries.is_err());
/// ```
pub mod cache {
    pub use foreread_local::disk::{CacheEntry, CleanRule, RemovedCache, clean, list};
    pub use foreread_local::{ChangeTimes, PageCacheCounts, PageCacheReader};
}

/// One [`Source`] for several processes of a machine, or one [`Loader`].
///
/// ```
/// use foreread::share::{Client, ServerSettings};
/// use foreread::{Loader, SampleId};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let source = Loader::builder(path).source()?;
/// let server = source.share(ServerSettings::default())?;
///
/// // In a worker process:
/// let client = Client::connect(&server.address())?;
/// for sample in client.get(&[SampleId(2)]) {
///     assert_eq!(sample?.as_ref(), b"c");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(all(feature = "share", target_os = "linux"))]
pub mod share {
    pub use crate::lender::{BatchLender, LentBatch};
    pub use foreread_store::{Client, Server, ServerSettings, SharedBytes, StoreError, StoreErrorKind};
}

/// The examples of the guide, compiled. The file is a symbolic link, so that the published package
/// contains it.
#[cfg(doctest)]
#[doc = include_str!("guide.md")]
struct Guide;
