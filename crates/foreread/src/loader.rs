//! The loader that programs use: from a URL and a few settings to batches.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use foreread_dataset::{Catalog, Format, IndexOptions, Progress};
use foreread_layers::{Limit, Meter};
use foreread_loader::{Batch, Batches, BlockTable, Dataset, LoadError, Parts};
use foreread_oracle::{Deal, Position, Run};
use foreread_planner::LocalPlan;
use foreread_tier::{Buffers, Context, RecycledBuffers, Tier};
use futures::Stream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::config::{Config, Disk, Memory, SamplerKind};
use crate::error::Result;
use crate::merged::Merged;
use crate::origin;
use crate::planned::Planned;
use crate::prepared::Prepared;
use crate::ranks::{self, Joint, Meeting};
use crate::registry::Registry;
use crate::report::{Adapted, Report, Whole};
use crate::runtime::Workers;
use crate::state::State;

/// How often a rank that leaves looks whether it is interrupted.
const GLANCE: Duration = Duration::from_millis(100);

/// Settings for a run; made by [`Loader::builder`].
///
/// Whatever is not set is as [`Config::default`] says.
#[derive(Debug)]
pub struct Builder {
    targets: Vec<String>,
    config: Config,
    registry: Registry,
    runtime: Option<Handle>,
    buffers: Arc<dyn Buffers>,
    resume: Option<State>,
    meeting: Option<Meeting>,
}

impl Builder {
    /// One more shard, beside the one that the builder was made with: both are of one dataset, whose place is the
    /// directory that holds all that are named.
    #[must_use]
    pub fn shard(mut self, shard: impl Into<String>) -> Self {
        self.targets.push(shard.into());
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
        self.config.disk.push(Disk { directory: directory.into(), bytes });
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

    /// The tokio runtime to work on; without this, a run makes one of its own. It needs time and I/O enabled.
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
    /// has come. Blocks the thread; not for async code.
    ///
    /// # Errors
    /// If the settings make no sense, a dataset cannot be opened, or the run cannot be planned.
    pub fn prepare_with(self, progress: impl FnMut(Progress) + Send + 'static) -> Result<Ready> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        let prepared = workers.wait(async move { self.prepared(&context, progress).await })?;
        Ok(Ready { prepared, workers })
    }

    /// [`prepare_with`](Self::prepare_with) without progress.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(self) -> Result<Ready> {
        self.prepare_with(|_| ())
    }

    /// Prepares and starts the run. Blocks the thread until reading has begun; not for async code.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    pub fn start(self) -> Result<Loader> {
        Ok(self.prepare()?.start())
    }

    /// Prepares and starts the run, for async code, on its runtime.
    ///
    /// # Errors
    /// As [`prepare_with`](Self::prepare_with).
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn start_async(self) -> Result<Loader> {
        let runtime = self.runtime.clone().or_else(|| Handle::try_current().ok());
        let workers = Workers::new(runtime)?;
        let context = self.context(workers.handle());
        let prepared = self.prepared(&context, |_| ()).await?;
        Ok(Ready { prepared, workers }.start())
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

    /// Lists the dataset into a catalog, without planning, and reading no more than shards' heads. Blocks the thread; not for async code.
    ///
    /// # Errors
    /// If it cannot be opened or listed, or nothing in it is a sample.
    pub fn index(
        self,
        options: IndexOptions,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Catalog> {
        let workers = Workers::new(self.runtime.clone())?;
        let context = self.context(workers.handle());
        workers.wait(async move {
            let shared = origin::Shared::new(&self.config, &context);
            origin::index(&self.targets, options, &self.registry, &context, &shared, progress).await
        })
    }
}

/// A run that is ready to start.
#[derive(Debug)]
pub struct Ready {
    prepared: Prepared,
    workers: Workers,
}

impl Ready {
    /// What it will do.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Starts reading ahead.
    pub fn start(self) -> Loader {
        let Self { prepared, workers } = self;
        let Prepared { planned, opened, caches, disk, shared, blocks, joint } = prepared;
        let Planned { config, run, plan, floor, .. } = planned;
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        // Training's; validation's is the same one, or waits for the same store.
        let limit = opened.first().and_then(|dataset| dataset.limit.clone());
        let datasets = opened
            .into_iter()
            .zip(std::iter::once(blocks).chain(std::iter::repeat_with(BlockTable::default)))
            .map(|(dataset, blocks)| Dataset {
                catalog: dataset.catalog,
                origin: dataset.origin as Arc<dyn Tier>,
                blocks,
            })
            .collect();
        for (level, (_, cache)) in plan.levels().iter().zip(&caches) {
            tracing::info!(
                tier = cache.name(),
                capacity = level.capacity,
                samples = level.samples,
                "a tier of the run"
            );
        }
        tracing::info!(
            samples = catalogs[0].len(),
            bytes = catalogs[0].total_bytes(),
            passes = run.passes().len(),
            look_ahead = config.look_ahead,
            retention = ?plan.retention(),
            floor,
            "starting"
        );
        let parts = Parts {
            run,
            plan,
            datasets,
            caches,
            look_ahead: config.look_ahead,
            on_error: config.on_error,
            others: joint.as_ref().map(Joint::others),
        };
        let inner = foreread_loader::Loader::start(parts, workers.handle());
        Loader {
            inner,
            catalogs,
            config,
            floor,
            origin: shared.meter,
            limit,
            disk,
            joint,
            left: AtomicBool::new(false),
            workers,
        }
    }
}

/// A run under way: batches in the order that the seed says, read ahead of time.
///
/// Plain threads iterate over [`batches`](Self::batches); async code uses the loader as a [`Stream`]. Dropping it ends
/// the run at once; [`close`](Self::close) waits for the disk tier first.
///
/// ```
/// use foreread::{Loader, Memory};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let mut loader = Loader::builder(path).batch_size(2).epochs(1).seed(7).memory(Memory::Bytes(1 << 20)).start()?;
/// let mut seen = Vec::new();
/// for batch in loader.batches() {
///     for (id, bytes) in batch?.iter() {
///         seen.push((id.0, bytes.clone()));
///     }
/// }
/// assert_eq!(seen.len(), 3);
/// assert_eq!(loader.report().origin_requests, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    inner: foreread_loader::Loader,
    catalogs: Vec<Catalog>,
    config: Config,
    floor: u64,
    origin: Meter,
    limit: Option<Limit>,
    disk: Option<crate::disk::Disk>,
    joint: Option<Joint>,
    /// Whether others have been told that this rank is done.
    left: AtomicBool,
    /// Last: the engine's task goes before the threads that it runs on.
    workers: Workers,
}

impl Loader {
    /// How long a rank that is done goes on answering others that are not, where nobody says otherwise; nothing without
    /// the feature `peer`.
    pub const FAREWELL: Duration = ranks::FAREWELL;

    /// Settings for a run over `target`: the URL or path of a dataset, of a catalog or of a shard; braces name several
    /// shards ([`expand`](foreread_dataset::expand)).
    pub fn builder(target: impl Into<String>) -> Builder {
        Builder {
            targets: vec![target.into()],
            config: Config::default(),
            registry: Registry::with_defaults(),
            runtime: None,
            buffers: Arc::new(RecycledBuffers::default()),
            resume: None,
            meeting: None,
        }
    }

    /// Batches in order, by waiting for each. Not from async code: it blocks the thread.
    pub fn batches(&mut self) -> Batches<'_> {
        self.inner.batches()
    }

    /// Waits at most `timeout` for the next batch: `None` when the time is up, `Some(None)` when the run is over.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Option<Result<Batch, LoadError>>> {
        self.inner.next_timeout(timeout)
    }

    /// What has been delivered and read so far.
    pub fn report(&self) -> Report {
        let whole = Whole {
            rank: self.config.rank,
            world_size: self.config.world_size,
            samples: self.catalogs[0].len(),
            dataset_bytes: self.catalogs[0].total_bytes(),
            floor: self.floor,
            planned: self.inner.plan().origin_bytes(),
        };
        let adapted = Adapted::of(self.limit.as_ref().map(Limit::decisions), self.inner.look_ahead());
        let disk = self.disk.as_ref().map(crate::disk::Disk::report);
        let peers = self.joint.as_ref().map(Joint::exchanged);
        Report { disk, peers, ..Report::new(&whole, &self.origin.read(), adapted, &self.inner.report()) }
    }

    /// Ends the run in order: waits until the disk tier has written what it was given, for five seconds at most, and
    /// says what has been delivered and read in all. Blocks the thread; not for async code, which has
    /// [`close_async`](Self::close_async).
    ///
    /// A rank that works together with others goes on answering them until they are done, for ten minutes at most,
    /// unless it has [left](Self::leave) before.
    ///
    /// Dropping a loader does not wait. If the process ends right after that, up to 32 MiB of the last samples are not
    /// on the disk, and the next run reads them from the origin; nothing else is lost.
    pub fn close(self) -> Report {
        if !self.left.load(Ordering::Relaxed) {
            self.leave(Self::FAREWELL);
        }
        if let Some(disk) = self.disk.clone() {
            // Fails only if the caller's runtime was shut down, and then nothing is written either.
            let _ = self.workers.wait(async move {
                disk.flush().await;
                Ok(())
            });
        }
        self.report()
    }

    /// [`close`](Self::close) for async code.
    ///
    /// # Cancel safety
    /// Dropping the future drops the loader.
    pub async fn close_async(self) -> Report {
        if !self.left.load(Ordering::Relaxed) {
            self.leave_async(Self::FAREWELL).await;
        }
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
        self.report()
    }

    /// Where the run stands: after the last batch that was taken.
    pub fn position(&self) -> Position {
        self.inner.position()
    }

    /// The same with what it takes to resume there later: see [`Builder::resume`].
    ///
    /// What has been taken counts as consumed: save after a step is complete. Where ranks work together, rank 0's state is
    /// that of the lowest step of which it knows that all have completed it, so that one file is enough; it learns of
    /// others' steps when they call this.
    pub fn state(&self) -> State {
        let position = match &self.joint {
            Some(joint) => after(self.inner.run(), joint.progress(self.steps())),
            None => self.position(),
        };
        State::new(&self.config, &self.catalogs, &position)
    }

    /// Steps that this rank has completed, over all passes.
    fn steps(&self) -> u64 {
        let Some((last, index)) = self.inner.last_taken() else { return 0 };
        let before = self.inner.run().passes().take(last).map(|pass| pass.batches);
        before.fold(0, u64::saturating_add) + index + 1
    }

    /// Says to rank 0 that this rank has completed the step of the batch that it took last; costs next to nothing, and
    /// nothing where ranks do not work together.
    pub fn step_done(&self) {
        if let Some(joint) = &self.joint {
            joint.progress(self.steps());
        }
    }

    /// Whether this rank works together with others.
    pub fn is_together(&self) -> bool {
        self.joint.is_some()
    }

    /// Says that this rank is done, and goes on answering the others until they are too, or for `at_most`; on rank 0,
    /// returns all their reports as one. Others do not wait: their run is over when rank 0 has what they report, which
    /// [`close`](Self::close) sees to. None where ranks do not work together, and on other ranks than 0. Blocks the
    /// thread; not for async code.
    pub fn leave(&self, at_most: Duration) -> Option<Merged> {
        let leaving = self.leaving(at_most)?;
        // Fails only if the caller's runtime was shut down, and then nobody answers any longer either.
        self.workers.wait(async move { Ok(leaving.await) }).ok().flatten()
    }

    /// The same for a program that may be interrupted: as soon as `interrupted` says so, it takes `haste` at most.
    pub fn leave_unless(
        &self,
        at_most: Duration,
        haste: Duration,
        interrupted: impl Fn() -> bool + Send + 'static,
    ) -> Option<Merged> {
        let (leaving, hurrying) = (self.leaving(at_most)?, self.leaving(haste)?);
        let interrupt = async move {
            while !interrupted() {
                tokio::time::sleep(GLANCE).await;
            }
        };
        let either = async move {
            tokio::select! {
                all = leaving => all,
                () = interrupt => hurrying.await,
            }
        };
        self.workers.wait(async move { Ok(either.await) }).ok().flatten()
    }

    /// [`leave`](Self::leave) for async code.
    ///
    /// # Cancel safety
    /// That this rank is done may have been said although nobody waits; it goes on answering as long as the loader lives.
    pub async fn leave_async(&self, at_most: Duration) -> Option<Merged> {
        let leaving = self.leaving(at_most)?;
        // On the run's own runtime, whatever drives the caller; ends with the caller.
        let mut task = JoinSet::new();
        task.spawn_on(leaving, self.workers.handle());
        task.join_next().await?.ok().flatten()
    }

    fn leaving(
        &self,
        at_most: Duration,
    ) -> Option<impl Future<Output = Option<Merged>> + Send + 'static + use<>> {
        let joint = self.joint.as_ref()?;
        self.left.store(true, Ordering::Relaxed);
        joint.progress(self.steps());
        Some(joint.leave(Merged::of(&self.report()), at_most))
    }

    /// Where samples are kept, and the floor.
    pub fn plan(&self) -> &LocalPlan {
        self.inner.plan()
    }

    /// The catalog that a batch's samples are of, training's or validation's: their names and labels.
    pub fn catalog(&self, batch: &Batch) -> &Catalog {
        &self.catalogs[batch.dataset().0 as usize]
    }

    /// The datasets' catalogs: training first, then validation where there is one.
    pub fn catalogs(&self) -> &[Catalog] {
        &self.catalogs
    }

    /// Staging memory in use now, in bytes: read ahead, or with the trainer and in no cache.
    pub fn staged_bytes(&self) -> u64 {
        self.inner.staged_bytes()
    }
}

/// The position after so many steps of a run.
fn after(run: &Run, steps: u64) -> Position {
    let (mut left, mut position) = (steps, run.start());
    for pass in run.passes() {
        let here = left.min(pass.batches);
        if here == 0 {
            break;
        }
        position = run.position_after(&pass, here);
        left -= here;
    }
    position
}

impl Stream for Loader {
    type Item = Result<Batch, LoadError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.inner).poll_next(context)
    }
}
