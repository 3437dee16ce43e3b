//! The builder of a run: settings that are more than a field of [`Config`] (whose rows make the
//! methods of the others), and the methods that start a run.
//!
//! Decision: a [`Config`] is the builder's starting point ([`Loader::builder_with`]) and not a
//! setter. As a setter it would replace all calls before it. The price: the configuration must
//! exist when the builder is created.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foreread_dataset::{Catalog, Format, IndexProgress};
use foreread_layers::{DeadlinePolicy, HedgePolicy, RetryPolicy};
use foreread_loader::OnError;
use foreread_open::calibration::Calibration;
use foreread_open::disk::Disk;
use foreread_open::error::Result;
use foreread_open::origin;
use foreread_open::origin_policy::OriginPolicy;
use foreread_open::registry::Registry;
use foreread_open::target::TargetSpec;
use foreread_oracle::{Deal, SamplerKind};
use foreread_tier::{ArenaBuffers, Buffers, OpenContext, OriginTier};
use foreread_types::RankOf;
use tokio::runtime::Handle;

use crate::agent_choice::AgentChoice;
use crate::config::{Config, Memory};
use crate::config_rows::config_rows;
use crate::group_member::GroupPreparation;
use crate::loader::Loader;
use crate::order_group::order_group_seed;
use crate::prepared::Prepared;
use crate::ready::Ready;
use crate::runtime::Workers;
use crate::source::Source;
use crate::state::State;

/// Settings for a run. Created by [`Loader::builder`] or [`Loader::builder_with`].
///
/// Settings have the values of [`Config::default`] until set. The number of [epochs](Self::epochs)
/// has no default.
///
/// ```
/// use std::time::Duration;
/// use foreread::{ErrorKind, Loader, Memory, OnError};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let memory = Memory::Bytes(1 << 20);
/// let builder = || Loader::builder(path).batch_size(2).memory(memory).on_error(OnError::Skip);
/// let patience = Duration::from_secs(3600);
/// let loader = builder().epochs(90).patience(patience).origin_parallelism(16).start()?;
/// assert_eq!(loader.report().samples, 3);
///
/// let error = builder().start().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Usage);
/// assert_eq!(error.to_string(), "epochs: not set: expected the number of epochs, at least 1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Builder {
    pub(crate) targets: TargetSpec,
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) runtime: Option<Handle>,
    buffers: Arc<dyn Buffers>,
    resume: Option<State>,
    meeting: Option<Box<dyn GroupPreparation>>,
}

/// Defines the methods that set one field of [`Config`].
macro_rules! setters {
    (@method $(#[$doc:meta])* $field:ident) => {};
    (@method $(#[$doc:meta])* $field:ident, |$given:ident: $from:ty| $value:expr) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $given: $from) -> Self {
            self.config.$field = $value;
            self
        }
    };
    ($(
        $(#[$doc:meta])*
        $vis:vis $field:ident: $type:ty = $default:expr $(, |$given:ident: $from:ty| $value:expr)?;
    )*) => {
        /// Settings that are one field of [`Config`].
        impl Builder {
            $(setters! { @method $(#[$doc])* $field $(, |$given: $from| $value)? })*
        }
    };
}

config_rows!(setters);

impl Loader {
    /// Settings for a run over `target`: the URL or path of a dataset, of a catalog or of a shard.
    /// Braces name several shards ([`expand`](foreread_dataset::expand)). Nothing is opened before
    /// the run is prepared or started, which reports invalid settings.
    pub fn builder(target: impl Into<String>) -> Builder {
        Builder::new(target.into(), Config::default())
    }

    /// [`builder`](Self::builder) with initial settings, which the builder's setters change one by
    /// one.
    pub fn builder_with(target: impl Into<String>, config: Config) -> Builder {
        Builder::new(target.into(), config)
    }
}

impl Builder {
    pub(crate) fn new(target: String, config: Config) -> Self {
        Self {
            targets: TargetSpec::by(target),
            config,
            registry: Registry::with_defaults(),
            runtime: None,
            buffers: Arc::new(ArenaBuffers::default()),
            resume: None,
            meeting: None,
        }
    }

    /// Adds a shard of the same dataset. The dataset's location is the directory that contains all
    /// named shards.
    #[must_use]
    pub fn shard(mut self, shard: impl Into<String>) -> Self {
        self.targets.names.push(shard.into());
        self
    }

    /// Reads the dataset of this catalog, in place of the target that the builder was created with.
    #[must_use]
    pub fn catalog(mut self, catalog: Catalog) -> Self {
        self.targets = TargetSpec { catalog: Some(catalog.clone()), ..TargetSpec::by(catalog.base_url()) };
        self
    }

    /// Sets one option of the training data's storage backend, by name. It takes precedence over
    /// the environment. Each dataset has its own options, so one process can read two buckets with
    /// two accounts:
    ///
    /// ```no_run
    /// # #[cfg(feature = "s3")] {
    /// use foreread::Loader;
    /// let ours = Loader::builder("s3://ours/train")
    ///     .storage_option("profile", "research")
    ///     .epochs(90)
    ///     .start()?;
    /// let theirs = Loader::builder("s3://theirs/train")
    ///     .storage_option("endpoint", "https://store.example.org:9000")
    ///     .storage_option("access_key_id", "guest")
    ///     .storage_option("secret_access_key", "read from a safe place")
    ///     .epochs(1)
    ///     .start()?;
    /// # }
    /// # Ok::<(), foreread::Error>(())
    /// ```
    ///
    /// | backend | names |
    /// |---|---|
    /// | `s3` | `endpoint`, `region`, `profile`, `access_key_id`, `secret_access_key`, `session_token`, `allow_http`, `skip_signature`, `request_payer`, `ca_bundle`, `virtual_hosted_style` |
    /// | `gcs`, `azure` | the names of `object_store`'s configuration keys, such as `service_account` and `account_key` |
    /// | `opendal` | OpenDAL's own, such as `username`, `password`, `token` and `host` |
    /// | `local` | none |
    ///
    /// An unknown name is an error when the dataset is opened. The error lists the known names.
    #[must_use]
    pub fn storage_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.storage_options.set(name, value);
        self
    }

    /// Sets one option of the [validation](Self::validate) data's storage backend. The training
    /// data's options do not apply to it. Its backend may not know them, and secrets must not go to
    /// another place.
    #[must_use]
    pub fn validate_storage_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.validate_storage_options.set(name, value);
        self
    }

    /// The order of a group of jobs, in place of the seed's. Jobs with one group read in one order,
    /// so an agent reads each sample once for all of them.
    #[must_use]
    pub fn order_group(self, name: &str) -> Self {
        self.seed(order_group_seed(name))
    }

    /// Adds a directory of the disk tier, with the most bytes of its cache. May be called several
    /// times. The size is per node: its ranks divide it. The directory is created if its parent
    /// exists.
    #[must_use]
    pub fn disk(mut self, directory: impl Into<PathBuf>, bytes: u64) -> Self {
        self.config.disk.push(Disk { directory: directory.into(), bytes, shared: false });
        self
    }

    /// Adds a directory with one cache for all users. Owners and modes of files are not checked:
    /// everyone with write access is trusted.
    #[must_use]
    pub fn shared_disk(mut self, directory: impl Into<PathBuf>, bytes: u64) -> Self {
        self.config.disk.push(Disk { directory: directory.into(), bytes, shared: true });
        self
    }

    /// The trainer's computation time per batch, for predicted times only. Default: unknown.
    #[must_use]
    pub fn compute_per_batch(mut self, time: Duration) -> Self {
        self.config.compute = time;
        self
    }

    /// The backends for URLs. Default: [`Registry::with_defaults`]. [`backend`](crate::backend) has
    /// an example with a custom one.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// The tokio runtime of the run, with time and I/O enabled. Without this setting, a run has its
    /// own engine thread.
    ///
    /// Blocking calls ([`prepare`](Self::prepare), [`Loader::batches`], [`Loader::close`] ...) are
    /// refused on this runtime's threads, including those of `spawn_blocking`. With a
    /// current-thread runtime they are refused everywhere. There the call would block the work that
    /// it waits for. A trainer that computes in this runtime's tasks delays reads.
    #[must_use]
    pub fn runtime(mut self, handle: Handle) -> Self {
        self.runtime = Some(handle);
        self
    }

    /// The allocator of memory for samples. Default: regions of the loader, whose memory is reused.
    #[must_use]
    pub fn buffers(mut self, buffers: Arc<dyn Buffers>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Reads into memory that other processes can map, for [`Loader::lend_batches`]. Forked
    /// children do not have it.
    #[cfg(all(feature = "share", target_os = "linux"))]
    #[must_use]
    pub fn lend_batches(self) -> Self {
        self.buffers.share();
        self
    }

    /// Resumes a run from its state ([`Loader::state`]). Another order or other data are an error.
    /// Batch size, number of ranks and number of epochs may differ. [`State`] has an example.
    #[must_use]
    pub fn resume(mut self, state: State) -> Self {
        self.resume = Some(state);
        self
    }

    /// Joins a group with the other ranks of this rendezvous ([`ranks`](crate::ranks)). If it has a
    /// host for caches, one node keeps each sample for all. Preparing waits for the other ranks.
    /// Rank and world size come from the settings.
    #[cfg(all(feature = "share", target_os = "linux"))]
    #[must_use]
    pub fn peers(mut self, meeting: crate::ranks::Meeting) -> Self {
        self.meeting = Some(Box::new(meeting));
        self
    }

    /// Opens the datasets, determines the order and plans, without reading any sample. `progress`
    /// reports the listing. Blocks the thread.
    ///
    /// # Errors
    /// If a setting is invalid, a dataset cannot be opened, or the run cannot be planned. Also if
    /// `progress` or a backend panics, or the thread belongs to the given [runtime](Self::runtime).
    pub fn prepare_with(self, progress: impl FnMut(IndexProgress) + Send + 'static) -> Result<Ready> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        let prepared = workers.wait(async move { self.prepared(&context, progress).await })?;
        Ok(Ready::new(prepared, workers))
    }

    /// [`prepare_with`](Self::prepare_with) without progress.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    pub fn prepare(self) -> Result<Ready> {
        self.prepare_with(|_| ())
    }

    /// Prepares and starts the run. Blocks the thread until reading has begun. Async code uses
    /// [`start_async`](Self::start_async).
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    pub fn start(self) -> Result<Loader> {
        Ok(self.prepare()?.start())
    }

    /// Prepares to serve samples by their ids. The caller decides on epochs, sampler and batch
    /// size, so these settings are ignored. Blocks the thread.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with) and [`Ready::source`].
    pub fn source(self) -> Result<Source> {
        // Two epochs, because a plan does not cache samples of a single epoch. Without an order, no
        // file is needed first, so none is restored.
        self.by_id().prepare()?.source()
    }

    /// [`start`](Self::start) for async code under any executor.
    ///
    /// # Errors
    /// As [`prepare_async`](Self::prepare_async).
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn start_async(self) -> Result<Loader> {
        Ok(self.prepare_async().await?.start())
    }

    /// [`source`](Self::source) for async code under any executor.
    ///
    /// # Errors
    /// As [`prepare_async`](Self::prepare_async) and [`Ready::source`].
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn source_async(self) -> Result<Source> {
        self.by_id().prepare_async().await?.source()
    }

    /// The settings of a source, whose order is announced later.
    fn by_id(mut self) -> Self {
        self.config.is_by_id = true;
        self.epochs(2).recall(false)
    }

    /// [`prepare`](Self::prepare) for async code under any executor.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with), but on any thread.
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn prepare_async(self) -> Result<Ready> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        let prepared = workers.run(async move { self.prepared(&context, |_| ()).await }).await?;
        Ok(Ready::new(prepared, workers))
    }

    async fn prepared(
        self,
        context: &OpenContext,
        progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<Prepared> {
        let Self { targets, config, registry, resume, .. } = self;
        let place = (context, self.runtime.is_none());
        let targets = TargetSpec { storage: config.storage_options.clone(), ..targets };
        match self.meeting {
            Some(meeting) => {
                let progress = Box::new(progress);
                meeting.prepare(&targets, config, &registry, place, resume, progress).await
            }
            None => Prepared::new(&targets, config, &registry, context, resume, progress).await,
        }
    }

    pub(crate) fn context(&self, runtime: &Handle) -> OpenContext {
        self.buffers.return_unused_on(runtime);
        OpenContext { buffers: Arc::clone(&self.buffers), runtime: runtime.clone(), seed: self.config.seed }
    }

    /// Opens the dataset without planning: its catalog, and its origin within the settings' limits.
    /// No read is merged or hedged, and nothing adapts to the store. For tools that measure an
    /// origin.
    ///
    /// # Errors
    /// If the dataset cannot be opened.
    pub async fn open_origin(
        self,
        context: &OpenContext,
        progress: impl FnMut(IndexProgress) + Send,
    ) -> Result<(Catalog, Arc<dyn OriginTier>)> {
        let shared = OriginPolicy::raw(&self.config.origin_settings(), context);
        let targets = TargetSpec { storage: self.config.storage_options.clone(), ..self.targets };
        let format = self.config.format;
        let opened = origin::open(&targets, format, &self.registry, context, &shared, progress).await?;
        Ok((opened.catalog, opened.origin))
    }
}
