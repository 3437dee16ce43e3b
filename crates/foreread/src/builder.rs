//! Settings for a run, one call each, and the ways to begin it.

use std::path::PathBuf;
use std::sync::Arc;

use foreread_dataset::{Catalog, Format, IndexOptions, Progress};
use foreread_oracle::Deal;
use foreread_tier::{Buffers, Context, RecycledBuffers};
use tokio::runtime::Handle;

use crate::config::{Config, Disk, Memory, SamplerKind};
use crate::error::Result;
use crate::loader::{Loader, Ready};
use crate::origin;
use crate::prepared::Prepared;
use crate::ranks::{self, Meeting};
use crate::registry::Registry;
use crate::runtime::Workers;
use crate::source::Source;
use crate::state::State;
use crate::target::Named;

/// Settings for a run; made by [`Loader::builder`].
///
/// Whatever is not set is as [`Config::default`] says.
#[derive(Debug)]
pub struct Builder {
    targets: Named,
    config: Config,
    registry: Registry,
    runtime: Option<Handle>,
    buffers: Arc<dyn Buffers>,
    resume: Option<State>,
    meeting: Option<Meeting>,
}

impl Builder {
    pub(crate) fn new(target: String) -> Self {
        Self {
            targets: Named::by(target),
            config: Config::default(),
            registry: Registry::with_defaults(),
            runtime: None,
            buffers: Arc::new(RecycledBuffers::default()),
            resume: None,
            meeting: None,
        }
    }

    /// One more shard, beside the one that the builder was made with: both are of one dataset, whose place is the
    /// directory that holds all that are named.
    #[must_use]
    pub fn shard(mut self, shard: impl Into<String>) -> Self {
        self.targets.names.push(shard.into());
        self
    }

    /// The dataset that this catalog is of, wherever the builder was told to look for one.
    #[must_use]
    pub fn catalog(mut self, catalog: Catalog) -> Self {
        self.targets = Named { names: vec![catalog.base_url().to_owned()], catalog: Some(catalog) };
        self
    }

    /// Replaces all settings at once.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Samples a batch, on this rank.
    #[must_use]
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.config.batch_size = samples;
        self
    }

    /// How often the dataset is read.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.config.epochs = epochs;
        self
    }

    /// What the order is drawn from.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// How the order is drawn.
    #[must_use]
    pub fn sampler(mut self, sampler: SamplerKind) -> Self {
        self.config.sampler = sampler;
        self
    }

    /// Drop what does not divide evenly, instead of padding.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.config.drop_last = drop_last;
        self
    }

    /// This process among `world_size` of them, and how an epoch is dealt to them.
    #[must_use]
    pub fn rank(mut self, rank: u32, world_size: u32, deal: Deal) -> Self {
        (self.config.rank, self.config.world_size, self.config.deal) = (rank, world_size, deal);
        self
    }

    /// How many processes of this node share its memory, and which of them this is, from 0: automatic memory is half of
    /// what is free for all of them, and each has a part of the disk tier's directories. Unset: what the launcher says
    /// in the environment; a process without a launcher has the node for itself.
    #[must_use]
    pub fn on_node(mut self, rank: u32, ranks: u32) -> Self {
        (self.config.node_rank, self.config.node_ranks) = (Some(rank), Some(ranks));
        self
    }

    /// A second dataset, read in order after every epoch.
    #[must_use]
    pub fn validate(mut self, target: impl Into<String>) -> Self {
        self.config.validate = Some(target.into());
        self
    }

    /// How samples lie in the datasets' objects, whatever these are called.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.config.format = Some(format);
        self
    }

    /// The memory tier.
    #[must_use]
    pub fn memory(mut self, memory: Memory) -> Self {
        self.config.memory = memory;
        self
    }

    /// A directory of the disk tier, with the bytes that it may take there; may be called several times.
    #[must_use]
    pub fn disk(mut self, directory: impl Into<PathBuf>, bytes: u64) -> Self {
        self.config.disk.push(Disk { directory: directory.into(), bytes, shared: false });
        self
    }

    /// The same with one cache in it for all users. Owners and modes of files are not checked: all who can write there
    /// are trusted.
    #[must_use]
    pub fn shared_disk(mut self, directory: impl Into<PathBuf>, bytes: u64) -> Self {
        self.config.disk.push(Disk { directory: directory.into(), bytes, shared: true });
        self
    }

    /// How far reads may run ahead of the trainer, in bytes.
    #[must_use]
    pub fn look_ahead(mut self, bytes: u64) -> Self {
        self.config.look_ahead = bytes;
        self
    }

    /// The backends that URLs are opened with.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// The tokio runtime to work on; without this, a run has an engine thread of its own. It needs time and I/O enabled.
    ///
    /// Calls that block ([`prepare`](Self::prepare), [`Loader::batches`], [`Loader::close`] ...) are refused on this
    /// runtime's own threads, `spawn_blocking`'s among them, and everywhere if it is a current-thread one: there the call
    /// would block what it waits for. A trainer that computes in this runtime's tasks holds up reads.
    #[must_use]
    pub fn runtime(mut self, handle: Handle) -> Self {
        self.runtime = Some(handle);
        self
    }

    /// Where memory for samples comes from.
    #[must_use]
    pub fn buffers(mut self, buffers: Arc<dyn Buffers>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Goes on where a run was when it gave this state ([`Loader::state`]). Refused for another order or other data;
    /// batch size, number of ranks and of epochs may be others.
    #[must_use]
    pub fn resume(mut self, state: State) -> Self {
        self.resume = Some(state);
        self
    }

    /// Works together with the other ranks that come to this meeting: every sample is kept by one of them for all. Preparing
    /// waits for them. Rank and world size are the settings' own.
    #[cfg(feature = "peer")]
    #[must_use]
    pub fn together(mut self, meeting: Meeting) -> Self {
        self.meeting = Some(meeting);
        self
    }

    /// Opens the datasets, draws the order and plans, without reading any sample; `progress` is told how far listing
    /// has come. Blocks the thread.
    ///
    /// # Errors
    /// If the settings make no sense, a dataset cannot be opened, the run cannot be planned, `progress` or a backend
    /// panics, or the thread belongs to the given [runtime](Self::runtime).
    pub fn prepare_with(self, progress: impl FnMut(Progress) + Send + 'static) -> Result<Ready> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        let prepared = workers.wait(async move { self.prepared(&context, progress).await })?;
        Ok(Ready::new(prepared, workers))
    }

    /// [`prepare_with`](Self::prepare_with) without progress.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(self) -> Result<Ready> {
        self.prepare_with(|_| ())
    }

    /// Prepares and starts the run. Blocks the thread until reading has begun; async code
    /// has [`start_async`](Self::start_async).
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    pub fn start(self) -> Result<Loader> {
        Ok(self.prepare()?.start())
    }

    /// Prepares to serve samples by their ids. Epochs, sampler and batch size are the business of whoever asks. Blocks
    /// the thread.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with) and [`Ready::source`].
    pub fn source(self) -> Result<Source> {
        self.prepare()?.source()
    }

    /// Prepares and starts the run, for async code under any executor.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn start_async(self) -> Result<Loader> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        let prepared = workers.run(async move { self.prepared(&context, |_| ()).await }).await?;
        Ok(Ready::new(prepared, workers).start())
    }

    async fn prepared(self, context: &Context, progress: impl FnMut(Progress) + Send) -> Result<Prepared> {
        let Self { targets, config, registry, resume, .. } = self;
        match self.meeting {
            Some(meeting) => {
                ranks::prepare(&targets, config, &registry, context, resume, meeting, progress).await
            }
            None => Prepared::new(&targets, config, &registry, context, resume, progress).await,
        }
    }

    fn context(&self, runtime: &Handle) -> Context {
        Context { buffers: Arc::clone(&self.buffers), runtime: runtime.clone(), seed: self.config.seed }
    }

    /// Lists the dataset into a catalog, without planning, and reading no more than shards' heads. Blocks the
    /// thread.
    ///
    /// # Errors
    /// If it cannot be opened or listed, nothing in it is a sample, `progress` or a backend panics, or the thread belongs
    /// to the given [runtime](Self::runtime).
    pub fn index(
        self,
        options: IndexOptions,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Catalog> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        workers.wait(async move {
            let shared = origin::Shared::new(&self.config, &context);
            origin::index(&self.targets.names, options, &self.registry, &context, &shared, progress).await
        })
    }
}
