//! The builder of a run: one method per setting, and the methods that start a run.
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
use foreread_oracle::Deal;
use foreread_tier::{ArenaBuffers, Buffers, OpenContext, OriginTier};
use foreread_types::RankOf;
use tokio::runtime::Handle;

use crate::agent_choice::AgentChoice;
use crate::config::{Config, Memory, SamplerKind};
use crate::group_member::GroupPreparation;
use crate::loader::{Loader, Ready};
use crate::order_group::order_group_seed;
use crate::prepared::Prepared;
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

    /// Samples per batch, on this rank.
    #[must_use]
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.config.batch_size = samples;
        self
    }

    /// The number of passes over the dataset, 1 to 1,000,000. No default: a run without it is an
    /// error.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.config.epochs = epochs;
        self
    }

    /// The seed of the order.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// The order of a group of jobs, in place of the seed's. Jobs with one group read in one order,
    /// so an agent reads each sample once for all of them.
    #[must_use]
    pub fn order_group(self, name: &str) -> Self {
        self.seed(order_group_seed(name))
    }

    /// The sampler of the order.
    #[must_use]
    pub fn sampler(mut self, sampler: SamplerKind) -> Self {
        self.config.sampler = sampler;
        self
    }

    /// Drops samples that do not divide evenly, instead of padding.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.config.drop_last = drop_last;
        self
    }

    /// This process's rank among all of the run. Default: the only rank.
    ///
    /// ```
    /// use foreread::{Deal, Loader, RankOf};
    /// let builder = Loader::builder("/data/train").rank(RankOf { rank: 3, ranks: 8 }).deal(Deal::Blocks);
    /// ```
    #[must_use]
    pub fn rank(mut self, rank: RankOf) -> Self {
        self.config.rank = rank;
        self
    }

    /// How ranks share an epoch. Default: [`Deal::Torch`].
    #[must_use]
    pub fn deal(mut self, deal: Deal) -> Self {
        self.config.deal = deal;
        self
    }

    /// Whether each sample of a global batch goes to the rank that caches it, as far as equal
    /// shares allow. Only groups of ranks use it. Default: false.
    #[must_use]
    pub fn locality(mut self, locality: bool) -> Self {
        self.config.locality = locality;
        self
    }

    /// This process's rank among the processes that share this node. Automatic memory is half of
    /// the free memory for all of them. Each has a part of the disk tier's directories. Default:
    /// from the launcher's environment. A process without a launcher has the node alone.
    #[must_use]
    pub fn on_node(mut self, rank: RankOf) -> Self {
        self.config.on_node = Some(rank);
        self
    }

    /// A second dataset, read in order after every epoch.
    #[must_use]
    pub fn validate(mut self, target: impl Into<String>) -> Self {
        self.config.validate = Some(target.into());
        self
    }

    /// The format of the datasets' objects, regardless of their names.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.config.format = Some(format);
        self
    }

    /// The size of the memory tier.
    #[must_use]
    pub fn memory(mut self, memory: Memory) -> Self {
        self.config.memory = memory;
        self
    }

    /// Adds a directory of the disk tier, with the most bytes of its cache. May be called several
    /// times.
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

    /// Plans only: directories of the disk tier are neither created nor changed. A run that starts
    /// all the same has no disk tier. Default: false.
    #[must_use]
    pub fn plan_only(mut self, plan_only: bool) -> Self {
        self.config.plan_only = plan_only;
        self
    }

    /// The job's name in the status and the policy of the node's agent.
    #[must_use]
    pub fn job_name(mut self, name: impl Into<String>) -> Self {
        self.config.job_name = Some(name.into());
        self
    }

    /// The agent of the node, whose cache replaces this run's memory and disks. Needs the feature
    /// `share`.
    #[must_use]
    pub fn agent(mut self, agent: AgentChoice) -> Self {
        self.config.agent = agent;
        self
    }

    /// Bytes of memory for samples while the agent, or the rank that hosts the memory of this node,
    /// is gone. Default: 0.
    #[must_use]
    pub fn memory_alone(mut self, bytes: u64) -> Self {
        self.config.memory_alone = bytes;
        self
    }

    /// How many bytes are prefetched.
    #[must_use]
    pub fn look_ahead(mut self, bytes: u64) -> Self {
        self.config.look_ahead = bytes;
        self
    }

    /// The reaction to a sample that cannot be read. Default: [`OnError::Fail`].
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.config.on_error = on_error;
        self
    }

    /// The most bytes per second from the origin. Default: no limit.
    #[must_use]
    pub fn origin_limit(mut self, bytes_per_second: u64) -> Self {
        self.config.origin_limit = Some(bytes_per_second);
        self
    }

    /// The most parallel reads from the origin, hedges included. Default: adapted during the run.
    #[must_use]
    pub fn origin_parallelism(mut self, reads: usize) -> Self {
        self.config.origin_parallelism = Some(reads);
        self
    }

    /// The measured speeds of origin and disks, for plans and for the first number of parallel
    /// reads. Default: none.
    #[must_use]
    pub fn calibration(mut self, calibration: Calibration) -> Self {
        self.config.calibration = Some(Arc::new(calibration));
        self
    }

    /// The trainer's computation time per batch, for predicted times only. Default: unknown.
    #[must_use]
    pub fn compute_per_batch(mut self, time: Duration) -> Self {
        self.config.compute = time;
        self
    }

    /// How failed reads from the origin are retried. Default: at most 8 attempts within 120 s of
    /// the first failure, with waits from 100 ms to 10 s.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.config.retry = policy;
        self
    }

    /// Retries a failed read from the origin until this time after its first failure, with any
    /// number of attempts. Set it above the longest outage that the run must survive. Replaces the
    /// patience and the number of attempts of [`retry`](Self::retry), and keeps its waits. A silent
    /// server of a network file system is waited for this long, too, instead of 20 minutes.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.config.patience = Some(patience);
        self
    }

    /// Restores files that the storage has moved to an archive, in the background and in the order
    /// of their first use. Without it their first reads wait for it.
    #[must_use]
    pub fn recall(mut self, recall: bool) -> Self {
        self.config.recall = recall;
        self
    }

    /// The timeout of reads from the origin, after which they are retried. `None`: none. Default:
    /// 30 s plus eight times the transfer time of its bytes at the recent throughput.
    #[must_use]
    pub fn deadline(mut self, policy: impl Into<Option<DeadlinePolicy>>) -> Self {
        self.config.deadline = policy.into();
        self
    }

    /// When a slow read from the origin is hedged. `None`: never. Default: after three times the
    /// 95th percentile of reads of its size, and at least 10 ms. At most 3 of 100 reads are hedged.
    #[must_use]
    pub fn hedge(mut self, policy: impl Into<Option<HedgePolicy>>) -> Self {
        self.config.hedge = policy.into();
        self
    }

    /// The backends for URLs.
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

    /// The allocator of memory for samples.
    #[must_use]
    pub fn buffers(mut self, buffers: Arc<dyn Buffers>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Resumes a run from its state ([`Loader::state`]). Another order or other data are an error.
    /// Batch size, number of ranks and number of epochs may differ.
    #[must_use]
    pub fn resume(mut self, state: State) -> Self {
        self.resume = Some(state);
        self
    }

    /// Joins a group with the other ranks of this rendezvous. If it has a host for caches, one node
    /// keeps each sample for all. Preparing waits for the other ranks. Rank and world size come
    /// from the settings.
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
