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
//! # Quick start
//!
//! This reads a directory twice, in the order of seed 7. The second epoch comes from memory.
//!
//! ```
//! use foreread::{Loader, Memory};
//! # let directory = tempfile::tempdir()?;
//! # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
//! # let path = directory.path().to_str().expect("a path of ASCII");
//! let builder = Loader::builder(path).batch_size(2).epochs(2).seed(7);
//! let loader = builder.memory(Memory::Bytes(1 << 30)).start()?;
//! let mut bytes = 0;
//! for batch in &loader {
//!     bytes += batch?.samples().map(|sample| sample.bytes().len()).sum::<usize>();
//! }
//! let report = loader.close()?;
//! assert_eq!((bytes, report.origin_requests), (6, 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | task | start at |
//! |---|---|
//! | read a dataset in a seeded order | [`Loader`]. All settings: [`Builder`] |
//! | choose another order, or compute one without reading | [`SamplerKind`], [`order`] |
//! | read a bucket, with credentials | the feature `s3`, [`Builder::storage_option`] |
//! | read on several ranks, with one cache | [`ranks`](ranks/index.html), by the feature `share` |
//! | save a run and resume it | [`State`], [`Builder::resume`] |
//! | move to another epoch during a run | [`Loader::jump`] |
//! | find the savings of a cache before a run | [`plan`] |
//! | find the waits and reads of a run | [`report`] |
//! | read samples by id | [`Source`] |
//! | serve worker processes | [`share`](share/index.html), by the feature `share` |
//! | save the list of a dataset's samples | [`dataset`], [`Catalog`] |
//! | read another kind of storage | [`backend`], [`Registry`] |
//! | react to a failure | [`Error::kind`], [`LoadError::kind`], [`OnError`] |
//! | use async code | [`Builder::start_async`]. A [`Loader`] is a `Stream` |
//!
//! Sizes are in bytes. Epochs, ranks and samples are counted from 0.
//!
//! # Platform
//!
//! Linux only, and Rust 1.95 or newer. Paths and keys of samples are UTF-8.
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
//! | `share` | one cache a node: for the ranks of a job, jobs of an agent, worker processes |
//! | `tables` | datasets that a CSV, JSON, Parquet or Arrow file lists |
//! | `lustre` | directories on Lustre: which server has which sample |
//! | `hpc` | `lustre` and `share` |
//! | `cloud` | `s3` and `share` |
//! | `opendal` | WebDAV, WebHDFS, web servers, the Hugging Face Hub, OSS, COS |
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
pub use foreread_oracle::{Deal, SamplerKind, UnknownSampler};
pub use foreread_types::{Interface, RankOf, SampleId};

pub use foreread_open::error::{Error, ErrorKind, Result};
pub use foreread_open::registry::Registry;
pub use foreread_open::storage::StorageOptions;

pub use crate::agent_choice::{AGENT_VARIABLE, AgentChoice, default_socket};
pub use crate::builder::Builder;
pub use crate::config::{Config, Memory};
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
/// A [`Catalog`] has the path, size and version of each sample. A run over a saved catalog lists
/// nothing: give its path as the target, or the value to [`Builder::catalog`].
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

/// Datasets that a table lists: one sample per row, with labels from a column.
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
/// let mut options = TableOptions::default();
/// options.label = Some("class".into());
/// let table = TableSource::At(format!("{target}/train.csv"));
/// let builder = Loader::builder(target);
/// let catalog = builder.index_table(table, options, IndexOptions::default(), |_| ())?;
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

/// Retries, timeouts and hedges of reads from the origin, for [`Builder::retry`],
/// [`Builder::deadline`] and [`Builder::hedge`]. The origin is the storage of the dataset.
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
/// [`Builder::prepare`] plans a run over a dataset. [`Planned::new`](plan::Planned::new) needs only
/// sizes:
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
///
/// The savings of a larger cache, here 1 GiB more than 100 MiB:
///
/// ```
/// use foreread::Config;
/// use foreread::plan::{Planned, Sizes};
///
/// let mut config = Config::default();
/// (config.epochs, config.memory) = (10, "100MiB".parse()?);
/// let planned = Planned::new(config, &[Sizes::uniform(1000, 1 << 20)])?;
/// for gain in planned.capacity_gain(1 << 30)? {
///     println!("1 GiB more of {}: {} bytes less from storage", gain.level, gain.origin_bytes);
///     // With 1.1 GiB each sample is read once. With 100 MiB most are read in every epoch.
///     assert!(gain.origin_bytes > 5 * (1000 << 20));
///     // Seconds need a calibration of the storage, or a limit.
///     assert_eq!(gain.seconds, None);
/// }
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

/// The order in which samples are read. It depends on the sampler, the number of samples, the seed
/// and the epoch alone.
///
/// ```
/// use foreread::SamplerKind;
/// use foreread::order::sampler;
///
/// // The order of epoch 0 of a run over 1000 samples with seed 7.
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

/// The parts of a custom storage backend, for [`Registry::register`].
///
/// A [`Backend`](backend::Backend) opens a URL of its schemes as an
/// [`OriginTier`](backend::OriginTier), which lists objects. Its supertrait [`Tier`](backend::Tier)
/// reads them. The crate `foreread-tier-testing` has the tests that a backend must pass:
/// `conformance::origin`. With the feature `s3`, `ObjectStoreOrigin` wraps any `object_store`.
///
/// This backend reads objects from a map. Its crate depends on `async-trait`, `bytes` and `futures`
/// as well:
///
/// ```
/// use std::collections::BTreeMap;
/// use std::future::ready;
/// use std::sync::Arc;
///
/// use bytes::Bytes;
/// use foreread::backend::{
///     Backend, Buffers, ErrorKind, LayoutsFuture, ListRange, Object, OpenContext, OpenOptions,
///     OriginTier, ReadFuture, ReadRequest, Tier, TierError, TierProfile, check_path,
/// };
/// use foreread::{Loader, Registry};
/// use futures::future::{BoxFuture, FutureExt};
/// use futures::stream::{self, BoxStream, StreamExt};
///
/// #[derive(Debug)]
/// struct MapBackend(BTreeMap<String, Bytes>);
///
/// #[async_trait::async_trait]
/// impl Backend for MapBackend {
///     fn schemes(&self) -> &[&str] {
///         &["map"]
///     }
///
///     async fn open(
///         &self,
///         _url: &str,
///         _options: &OpenOptions,
///         context: &OpenContext,
///     ) -> Result<Arc<dyn OriginTier>, TierError> {
///         let buffers = Arc::clone(&context.buffers);
///         Ok(Arc::new(MapOrigin { objects: self.0.clone(), buffers }))
///     }
/// }
///
/// #[derive(Debug)]
/// struct MapOrigin {
///     objects: BTreeMap<String, Bytes>,
///     buffers: Arc<dyn Buffers>,
/// }
///
/// impl MapOrigin {
///     fn find(&self, path: &str) -> Result<(Object, &Bytes), TierError> {
///         check_path(path).map_err(|why| TierError::invalid("map", path, why))?;
///         let missing = || TierError::new(ErrorKind::NotFound, "map").with_object(path);
///         let bytes = self.objects.get(path).ok_or_else(missing)?;
///         Ok((Object { path: path.into(), size: bytes.len() as u64, version: None }, bytes))
///     }
///
///     fn bytes(&self, request: &ReadRequest) -> Result<Bytes, TierError> {
///         let path = &*request.object.path;
///         let (found, bytes) = self.find(path)?;
///         // An object of another size or version than the catalog's is never delivered.
///         if found != request.object {
///             return Err(TierError::changed("map", path, format!("it has {} bytes", found.size)));
///         }
///         let range = request.range().map_err(|why| TierError::invalid("map", path, why))?;
///         // Memory of the run's allocator, and a copy: a slice would keep the whole object.
///         let part = &bytes[range.start as usize..range.end as usize];
///         let failed = || TierError::new(ErrorKind::Other, "map").with_object(path);
///         let buffer = self.buffers.allocate_for(request.lifetime, part.len(), 1);
///         let mut buffer = buffer.ok_or_else(failed)?;
///         buffer.extend(part);
///         Ok(buffer.freeze())
///     }
/// }
///
/// impl Tier for MapOrigin {
///     fn name(&self) -> &str {
///         "map"
///     }
///
///     fn profile(&self) -> &TierProfile {
///         // 16 is the useful number of parallel reads.
///         const { &TierProfile::new(16).with_listing_in_order(true) }
///     }
///
///     fn read(&self, request: Arc<ReadRequest>) -> ReadFuture {
///         ready(self.bytes(&request)).boxed()
///     }
///
///     fn submit(&self) {}
/// }
///
/// impl OriginTier for MapOrigin {
///     fn list(
///         &self,
///         prefix: &str,
///         after: Option<&str>,
///     ) -> BoxStream<'static, Result<Object, TierError>> {
///         let range = ListRange::new(prefix, after);
///         let paths = self.objects.keys().filter(|path| range.includes(path));
///         let found = paths.map(|path| Ok(self.find(path)?.0));
///         stream::iter(found.collect::<Vec<_>>()).boxed()
///     }
///
///     fn stat(&self, path: &str) -> BoxFuture<'static, Result<Object, TierError>> {
///         ready(self.find(path).map(|(object, _)| object)).boxed()
///     }
///
///     /// Identifies the data for disk caches. A real backend returns another text for other data.
///     fn place(&self) -> &str {
///         "map://"
///     }
///
///     fn layouts(&self, _paths: Vec<Arc<str>>) -> Option<LayoutsFuture> {
///         None
///     }
/// }
///
/// let objects = ["cat/1", "cat/2", "dog/1"].map(|path| (path.into(), Bytes::from(path)));
/// let registry = Registry::with_defaults().register(MapBackend(objects.into()));
/// let loader = Loader::builder("map://").registry(registry).epochs(1).start()?;
/// let mut found = Vec::new();
/// for batch in &loader {
///     found.extend(batch?.samples().map(|sample| sample.bytes()));
/// }
/// found.sort();
/// assert_eq!(found, ["cat/1", "cat/2", "dog/1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
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

/// The caches on disks of all runs that have used a directory: [`list`](cache::list) them, and
/// [`clean`](cache::clean) old ones. [`PageCacheReader`](cache::PageCacheReader) reads files
/// through the kernel's cache.
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
