//! Samples by id, for programs that decide the order themselves.
//!
//! A [`Loader`](crate::Loader) decides the order. Other code may decide it instead: a sampler in
//! Python, or a data loader whose workers read files. It [announces](Source::announce) the order to
//! a [`Source`] as far as it knows it. The source prefetches and caches by the announced order.
//! Samples that were not announced, or are requested out of order, are read directly. So a wrong
//! announcement costs time and never a sample.
//!
//! The caches outlive announcements: samples in memory serve the next order, too. The price of an
//! order that becomes known piece by piece: samples are cached first come, first kept.

mod ready_buffer;
mod requests;
#[cfg(all(feature = "share", target_os = "linux"))]
mod share;
mod source_state;
mod wait_time;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_dataset::Catalog;
use foreread_layers::{Limit, Meter, Units};
use foreread_loader::{BlockTable, DirectReader, LoadErrorKind, OnError, ReadSource, RunReport};
use foreread_open::error::{Error, Result, ended};
use foreread_open::stored::StoredFactors;
use foreread_oracle::{Deal, Explicit, Phase, PhaseKind, Run, Schedule};
use foreread_planner::{Cluster, LocalPlan, plan_to_keep};
use foreread_tier::{Budget, Buffers, CacheTier, HeapBuffers, Sample};
use foreread_types::{Rank, RankOf, SampleId, SampleKey, Tick};

use self::ready_buffer::ReadyBuffer;
pub use self::requests::{SampleRequests, SampleStream};
use self::source_state::{DATASET, EngineSlot, SourceState};
use self::wait_time::WaitTime;
use crate::assembly::{Assembly, ReadParts};
use crate::memory::Grant;
use crate::node_links::CacheClient;
use crate::planned::Planned;
use crate::prepared::Prepared;
use crate::ready::Ready;
use crate::report::{Adapted, ReadsReport, Report, RunTotals, UnitsReport, WaitReport};
use crate::runtime::Workers;

/// The bytes of a batch that the engine delivers, about.
const BATCH_BYTES: u64 = 1 << 20;

/// A batch has at most this part of the look-ahead.
const BATCH_PART: u64 = 16;

/// A batch has at most this many samples.
const MAX_BATCH_SAMPLES: u64 = 64;

/// The ready buffer has this part of the look-ahead. The rest is for reads.
const READY_PART: u64 = 2;

/// Direct reads of this process have at most this part of the look-ahead, and those of its
/// workers as much.
const DIRECT_PART: u64 = 2;

/// Samples that other processes hold take at most this part of the look-ahead.
#[cfg(all(feature = "share", target_os = "linux"))]
const HELD_PART: u64 = 4;

/// A sample that this many announcements in a row leave out is removed from memory.
const UNUSED_ANNOUNCEMENTS: u64 = 8;

/// Samples by id, prefetched by an announced order. Made by
/// [`Builder::source`](crate::Builder::source). Cheap to clone, for any number of threads.
///
/// ```
/// use foreread::Loader;
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let source = Loader::builder(path).source()?;
/// source.announce(vec![vec![2, 0, 1]], false)?;
/// for (position, sample) in source.request(&[2, 0]) {
///     assert_eq!(sample?[..], *[b"c", b"a"][position]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Async code, under any executor:
///
/// ```
/// use foreread::Loader;
/// use futures::StreamExt;
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// # smol::block_on(async {
/// let source = Loader::builder(path).source_async().await?;
/// source.announce_async(vec![vec![2, 0, 1]], false).await?;
/// let mut samples = source.request_async(&[2, 0]);
/// while let Some((position, sample)) = samples.next().await {
///     assert_eq!(sample?[..], *[b"c", b"a"][position]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    inner: Arc<SourceInner>,
}

#[derive(Debug)]
struct SourceInner {
    /// The whole catalog, whose numbers the engine uses.
    whole: Catalog,
    /// The catalog that the target names, whose numbers callers use. It may be a part.
    catalog: Catalog,
    cluster: Cluster,
    /// The stored bytes of delivered ones, if some samples are decoded.
    factors: Option<StoredFactors>,
    /// The stored units that samples share, if some do.
    units: Option<Units>,
    /// These units, once an order is announced. Every entry is read for them.
    unit_blocks: Mutex<Option<BlockTable>>,
    look_ahead: u64,
    kernel_cached: bool,
    /// Whether the settings limit reads of the origin.
    is_limited: bool,
    direct: DirectReader,
    /// The memory tiers, from which unused samples are removed.
    memory: Vec<Arc<dyn CacheTier>>,
    origin: Meter,
    limit: Option<Limit>,
    disk: Option<foreread_open::disk::OpenDisk>,
    /// The node's agent, if the samples come from there.
    agent: Option<Arc<dyn CacheClient>>,
    wait_time: Arc<WaitTime>,
    /// The bytes that direct reads of this process hold until their samples are taken, and copies
    /// for this process.
    direct_budget: Budget,
    /// Memory for samples.
    buffers: Arc<dyn Buffers>,
    /// Whether other processes read samples of this source.
    shared: AtomicBool,
    state: Mutex<SourceState>,
    /// Signals that samples have arrived, or that no caller waits for the engine.
    arrived: Condvar,
    /// Counted until the source is dropped.
    _granted: Option<Grant>,
    /// Last: the tasks on its threads are dropped first.
    workers: Workers,
}

impl Ready {
    /// Serves samples by id instead of running in the settings' order.
    ///
    /// # Errors
    /// A run with a validation set, or in a group of ranks: each rank's order is unknown to the
    /// others.
    pub fn source(self) -> Result<Source> {
        let (prepared, workers) = self.parts();
        let Prepared { planned, opened, named, caches, disk, shared, group, buffers, agents, .. } = prepared;
        let agent = agents.samples;
        let Planned { config, cluster, memory: granted, units, factors, .. } = planned;
        if opened.len() > 1 || group.is_some() {
            return Err(Error::usage(
                "samples by id come from one dataset and for one rank: leave out validation and rendezvous",
            ));
        }
        let limit = opened.first().and_then(|dataset| dataset.limit.clone());
        let (whole, catalog) = (opened[0].catalog.clone(), named[0].clone());
        let look_ahead = config.look_ahead;
        let kernel_cached = opened[0].origin.profile().kernel_cached;
        let memory =
            caches.iter().filter(|(from, _)| *from == ReadSource::Memory).map(|(_, cache)| Arc::clone(cache));
        let memory = memory.collect();
        // An unreadable sample is an error of that request only.
        let units = units.as_ref().map(|_| shared.units().clone());
        let reading =
            ReadParts { retry: config.retry_policy(), units: units.clone(), buffers: Arc::clone(&buffers) };
        let assembly = Assembly::new(opened, caches, None, look_ahead, OnError::Skip, Vec::new(), reading);
        let inner = SourceInner {
            whole,
            catalog,
            cluster,
            factors,
            units,
            unit_blocks: Mutex::default(),
            look_ahead,
            kernel_cached,
            is_limited: config.origin_limit.is_some() || config.origin_parallelism.is_some(),
            direct: assembly.direct(),
            memory,
            origin: shared.meter,
            limit,
            disk,
            agent,
            wait_time: Arc::default(),
            direct_budget: Budget::new(look_ahead / DIRECT_PART),
            buffers,
            shared: AtomicBool::new(false),
            state: Mutex::new(SourceState {
                assembly,
                ready: ReadyBuffer::new(look_ahead / READY_PART),
                run: None,
                plan: None,
                engine: EngineSlot::None,
                next: Tick(0),
                announced: 0,
                used: Vec::new(),
                earlier: RunReport::default(),
                direct: ReadsReport::default(),
            }),
            arrived: Condvar::new(),
            _granted: granted,
            workers,
        };
        Ok(Source { inner: Arc::new(inner) })
    }
}

impl Source {
    /// Announces the order of the following requests: epoch by epoch, each epoch's ids in order.
    /// Repeated and missing ids are allowed. It replaces the previous announcement. With
    /// `continues`, more epochs like the last one follow, which affects caching.
    ///
    /// Blocks the thread while planning (a fraction of a second for a million samples). Epochs of
    /// different lengths are prefetched as if they were one.
    ///
    /// # Errors
    /// If the dataset does not have an id, the settings cannot be planned, or the given
    /// [runtime](crate::Builder::runtime) was shut down. If this thread belongs to it.
    pub fn announce(&self, orders: Vec<Vec<u64>>, continues: bool) -> Result<()> {
        self.inner.workers.wait(self.clone().announced(orders, continues))
    }

    /// [`announce`](Self::announce) for async code, on any thread.
    ///
    /// # Errors
    /// As [`announce`](Self::announce), but on any thread.
    ///
    /// # Cancel safety
    /// After dropping the future, either announcement may hold.
    pub async fn announce_async(&self, orders: Vec<Vec<u64>>, continues: bool) -> Result<()> {
        self.inner.workers.run(self.clone().announced(orders, continues)).await
    }

    async fn announced(self, mut orders: Vec<Vec<u64>>, continues: bool) -> Result<()> {
        self.pause();
        orders.retain(|order| !order.is_empty());
        orders.iter_mut().for_each(|order| *order = self.inner.numbers(order));
        if orders.iter().any(|order| order.len() != orders[0].len()) {
            orders = vec![orders.concat()];
        }
        let unused = self.unused(&orders);
        if !unused.is_empty() {
            for cache in &self.inner.memory {
                cache.remove(unused.clone()).await;
            }
        }
        let runtime = self.inner.workers.handle().clone();
        runtime.spawn_blocking(move || self.start(orders, continues)).await.map_err(ended)?
    }

    /// Plans for `orders`, and starts prefetching.
    fn start(&self, orders: Vec<Vec<u64>>, continues: bool) -> Result<()> {
        let next = match orders.last().cloned() {
            None => None,
            Some(last) => {
                let sizes = [self.inner.whole.sizes()];
                let all: Vec<Vec<u64>> = orders.iter().cloned().chain(continues.then_some(last)).collect();
                let planned = plan_to_keep(&self.run(all.clone())?, &sizes, &self.inner.cluster)?;
                if self.inner.units.is_some() {
                    let blocks = self.inner.unit_blocks()?.placed(DATASET, &planned);
                    self.inner.lock().assembly.set_blocks(vec![blocks]);
                }
                let plan = LocalPlan::Private(Arc::new(planned));
                if let Some(agent) = &self.inner.agent {
                    agent.announce(&self.run(all)?, None, None);
                }
                Some((self.run(orders)?, plan, self.inner.workers.handle()))
            }
        };
        self.inner.lock().start(next);
        self.inner.arrived.notify_all();
        Ok(())
    }

    /// Ends an epoch: the time until the next request counts neither as time nor as waiting. While
    /// callers wait, the pause begins after the last of them. [`announce`](Self::announce) does the
    /// same.
    pub fn pause(&self) {
        self.inner.wait_time.pause();
    }

    /// Requests samples, as an iterator in the order of their arrival. Announced samples arrive
    /// when they are due. The others are read directly, at once. On a thread of the given
    /// [runtime](crate::Builder::runtime), each answer is an error.
    pub fn request(&self, ids: &[u64]) -> SampleRequests {
        SampleRequests::new(Arc::clone(&self.inner), &self.inner.numbers(ids))
    }

    /// [`request`](Self::request) for async code, as a stream, under any executor and on any
    /// thread. Each stream takes a thread of the runtime's blocking pool until it ends.
    ///
    /// # Cancel safety
    /// Dropping the stream cancels the samples that have not arrived.
    pub fn request_async(&self, ids: &[u64]) -> SampleStream {
        SampleStream::new(Arc::clone(&self.inner), &self.inner.numbers(ids))
    }

    /// The dataset's catalog. Where it is a part of another, samples have the numbers of the part.
    pub fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// How many bytes may be prefetched.
    pub fn look_ahead(&self) -> u64 {
        self.inner.look_ahead
    }

    /// Whether this machine's kernel caches the origin: a directory on a local file system.
    pub fn is_kernel_cached(&self) -> bool {
        self.inner.kernel_cached
    }

    /// Whether the kernel's page cache is the only cache: [the kernel caches the
    /// origin](Self::is_kernel_cached), and there is neither a memory tier, nor a disk tier, nor a
    /// limit of the origin.
    pub fn uses_page_cache_alone(&self) -> bool {
        let inner = &self.inner;
        inner.kernel_cached && inner.memory.is_empty() && inner.disk.is_none() && !inner.is_limited
    }

    /// The samples delivered and read so far. Direct reads are in `direct` and in no epoch.
    /// The time of all requests, and the waiting time in it, are in `asked`.
    pub fn report(&self) -> Report {
        let state = self.inner.lock();
        let (mut run, mut look_ahead) = (state.earlier.clone(), None);
        if let EngineSlot::Idle(engine) = &state.engine {
            run = run.followed_by(engine.report());
            look_ahead = Some(engine.look_ahead());
        }
        let look_ahead = look_ahead.unwrap_or(foreread_loader::LookAhead {
            allowed: self.inner.look_ahead,
            now: self.inner.look_ahead,
            lowest: self.inner.look_ahead,
        });
        let of_plan = |of: fn(&LocalPlan) -> u64, scaled: fn(&StoredFactors, u64) -> u64| {
            let bytes = state.plan.as_ref().map_or(0, of);
            self.inner.factors.as_ref().map_or(bytes, |factors| scaled(factors, bytes))
        };
        let whole = RunTotals {
            rank: RankOf::ALONE,
            samples: self.inner.catalog.len(),
            dataset_bytes: self.inner.catalog.total_bytes(),
            floor: of_plan(LocalPlan::floor, StoredFactors::fewest),
            planned: of_plan(LocalPlan::origin_bytes, StoredFactors::typical),
        };
        let adapted = Adapted::of(self.inner.limit.as_ref().map(Limit::decisions), look_ahead);
        let disk = self.inner.disk.as_ref().map(foreread_open::disk::OpenDisk::report);
        let direct = Some(state.direct);
        let asked = Some(WaitReport::of(self.inner.wait_time.read()));
        let units = self.inner.units.as_ref().map(UnitsReport::of);
        let mut origin = self.inner.origin.read();
        if let Some(agent) = self.inner.agent.as_ref().filter(|agent| agent.shared_by().is_some()) {
            // The cache of the node reads for its ranks.
            let (requests, bytes) = agent.reads();
            origin.requests += requests;
            origin.bytes += self.inner.factors.as_ref().map_or(bytes, |factors| factors.typical(bytes));
        }
        Report { disk, units, direct, asked, ..Report::new(&whole, &origin, adapted, &run) }
            .with_agent(self.inner.agent.as_ref().and_then(|agent| agent.report()))
    }

    /// Waits until the disk tier has written all samples it was given, for at most five seconds.
    /// Blocks the thread.
    ///
    /// # Errors
    /// With a disk tier, if the given [runtime](crate::Builder::runtime) was shut down, or this
    /// thread belongs to it.
    pub fn flush(&self) -> Result<()> {
        self.flushed().map_or(Ok(()), |flushed| self.inner.workers.wait(flushed))
    }

    /// [`flush`](Self::flush) for async code, on any thread.
    ///
    /// # Errors
    /// With a disk tier, if the given [runtime](crate::Builder::runtime) was shut down.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait. The disk tier continues to write.
    pub async fn flush_async(&self) -> Result<()> {
        let Some(flushed) = self.flushed() else { return Ok(()) };
        self.inner.workers.run(flushed).await
    }

    fn flushed(&self) -> Option<impl Future<Output = Result<()>> + Send + 'static + use<>> {
        let disk = self.inner.disk.clone()?;
        Some(async move {
            disk.flush(std::future::ready(())).await;
            Ok(())
        })
    }

    fn run(&self, orders: Vec<Vec<u64>>) -> Result<Run> {
        let sizes = self.inner.whole.sizes();
        let epochs = orders.len() as u64;
        let train = Phase {
            kind: PhaseKind::Train,
            dataset: DATASET,
            sampler: Arc::new(Explicit::new(sizes.len(), orders)?),
            batch_size: Some(
                (BATCH_BYTES.min(self.inner.look_ahead / BATCH_PART) / self.inner.mean())
                    .clamp(1, MAX_BATCH_SAMPLES),
            ),
            drop_last: false,
        };
        Ok(Run::new(Arc::new(Schedule::new(epochs, vec![train])?), Deal::Torch, 1, Rank(0))?)
    }

    /// Notes the announcement of `orders`, and returns the samples in memory that none has had for
    /// a while.
    fn unused(&self, orders: &[Vec<u64>]) -> Vec<SampleKey> {
        if self.inner.memory.is_empty() || orders.is_empty() {
            return Vec::new();
        }
        let mut state = self.inner.lock();
        let now = state.announced + 1;
        state.used.resize(self.inner.whole.len() as usize, 0);
        for &id in orders.iter().flatten() {
            if let Some(used) = state.used.get_mut(id as usize) {
                *used = now;
            }
        }
        // Each sample is returned once.
        let is_unused = |used: u64| used + UNUSED_ANNOUNCEMENTS == now && used > 0;
        let unused = (0..).zip(&state.used).filter(|(_, used)| is_unused(**used));
        unused.map(|(id, _)| SampleKey::new(DATASET, SampleId(id))).collect()
    }
}

impl SourceInner {
    /// Ignores poisoning: each change is a few assignments, which no panic interrupts.
    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's numbers of samples. A sample that does not exist gets a number without a
    /// sample.
    fn numbers(&self, ids: &[u64]) -> Vec<u64> {
        match self.catalog.numbers() {
            None => ids.to_vec(),
            Some(_) => ids.iter().map(|id| self.number(*id)).collect(),
        }
    }

    fn number(&self, id: u64) -> u64 {
        self.catalog.number(SampleId(id)).unwrap_or_else(|| id.max(self.whole.len()))
    }

    /// The stored units that samples share, as blocks.
    fn unit_blocks(&self) -> Result<BlockTable> {
        let mut blocks = self.unit_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blocks) = &*blocks {
            return Ok(blocks.clone());
        }
        Ok(blocks.insert(BlockTable::of_units(&self.whole)?).clone())
    }

    /// A sample for a caller in this process. Memory that other processes read is absent in forked
    /// children, and so is an agent's. A worker may be forked while its parent holds samples, so
    /// they are copied. The price is paid by sources that serve workers and this process at one
    /// time, and by those with an agent.
    fn for_own_process(&self, bytes: Bytes) -> Bytes {
        let is_shared = self.shared.load(Ordering::Relaxed) && self.buffers.shared_place(&bytes).is_some();
        if !is_shared && !self.agent.as_ref().is_some_and(|agent| agent.was_used()) {
            return bytes;
        }
        let Some(mut copy) = HeapBuffers.allocate(bytes.len(), 1) else { return bytes };
        copy.extend(&bytes);
        Sample::new(copy.freeze(), self.direct_budget.charge(bytes.len() as u64)).bytes()
    }

    /// The mean length of a sample in bytes, at least 1.
    fn mean(&self) -> u64 {
        (self.whole.total_bytes() / self.whole.len().max(1)).max(1)
    }

    /// Waits at most `timeout` for the engine's next batch, or for the caller that does so already.
    fn pull(&self, mut state: MutexGuard<'_, SourceState>, timeout: Duration) {
        let EngineSlot::Idle(_) = &state.engine else {
            let waited = self.arrived.wait_timeout(state, timeout);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return;
        };
        let EngineSlot::Idle(engine) = std::mem::replace(&mut state.engine, EngineSlot::Lent) else { return };
        let of = state.announced;
        drop(state);
        let next = engine.next_timeout(timeout);
        let mut state = self.lock();
        if state.announced != of {
            // Another order was announced meanwhile: the batch and its engine are dropped, outside
            // of the lock.
            drop(state);
            return;
        }
        match next {
            Ok(Some(batch)) => {
                if let Some(pass) = state.run.as_ref().and_then(|run| run.pass(batch.epoch() as usize)) {
                    let after = ((batch.index() + 1) * pass.batch_size).min(pass.samples);
                    state.next = Tick(pass.first_tick.0 + after);
                }
                for sample in batch.samples() {
                    state.ready.put(sample.id().0, sample.bytes());
                }
                state.engine = EngineSlot::Idle(engine);
            }
            Err(error) if error.kind() == LoadErrorKind::Timeout => state.engine = EngineSlot::Idle(engine),
            end => {
                if let Err(error) = end {
                    tracing::warn!(%error, "prefetching has ended; samples are read when they are requested");
                }
                state.earlier = std::mem::take(&mut state.earlier).followed_by(engine.report());
                state.engine = EngineSlot::None;
            }
        }
        drop(state);
        self.arrived.notify_all();
    }
}
