//! The loader: from a URL and a few settings to batches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_layers::{Limit, Meter, Units};
use foreread_loader::{Batch, History, LoadError, LoadErrorKind, RunReport};
use foreread_open::error::Result;
use foreread_open::stored::StoredFactors;
use foreread_oracle::{Position, Run};
use foreread_planner::{LevelPlan, LocalPlan};
use futures::Stream;
use tokio::task::JoinSet;

use crate::assembly::Assembly;
use crate::config::Config;
use crate::group_member::{FAREWELL, GroupMember, INTERRUPTED_FAREWELL, unless};
use crate::memory::Grant;
use crate::merged::Merged;
use crate::node_links::{HostedStore, NodeLinks};
use crate::report::{Adapted, DiskReport, Report, RunTotals, UnitsReport};
use crate::runtime::Workers;
use crate::state::State;

/// The length of one wait for the next batch.
const BATCH_POLL: Duration = Duration::from_millis(100);

/// The target of [`Loader::jump`].
///
/// ```
/// use foreread::{Jump, Loader};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let mut loader = Loader::builder(path).batch_size(2).epochs(5).start()?;
/// loader.jump(&Jump::Epoch(3))?;
/// let batch = loader.batches().next().expect("two epochs are left")?;
/// assert_eq!(batch.epoch(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jump {
    /// The beginning of this epoch, counted from 0.
    Epoch(u64),
    /// After the last sample that was consumed when the state was saved.
    State(State),
}

/// A running loader: prefetched batches in the seed's order.
///
/// Plain threads iterate over it (`for batch in &loader`). Async code uses the loader as a
/// [`Stream`]. Dropping it ends the run at once. [`close`](Self::close) waits for the disk tier
/// first.
///
/// ```
/// use foreread::{Loader, Memory};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let builder = Loader::builder(path).batch_size(2).epochs(1).seed(7);
/// let loader = builder.memory(Memory::Bytes(1 << 20)).start()?;
/// let mut seen = Vec::new();
/// for batch in &loader {
///     for sample in batch?.samples() {
///         seen.push((sample.id(), sample.bytes()));
///     }
/// }
/// assert_eq!(seen.len(), 3);
/// assert_eq!(loader.report().origin_requests, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    pub(crate) inner: foreread_loader::Loader,
    /// The report until the last jump.
    pub(crate) earlier: RunReport,
    /// The history until the last jump.
    pub(crate) earlier_history: History,
    pub(crate) assembly: Assembly,
    pub(crate) catalogs: Vec<Catalog>,
    pub(crate) config: Config,
    pub(crate) floor: u64,
    /// The stored bytes of delivered ones, if some samples are decoded.
    pub(crate) factors: Option<StoredFactors>,
    /// The stored units that samples share, if some do.
    pub(crate) units: Option<Units>,
    pub(crate) origin: Meter,
    pub(crate) limit: Option<Limit>,
    pub(crate) disk: Option<foreread_open::disk::OpenDisk>,
    pub(crate) group: Option<Box<dyn GroupMember>>,
    /// The node's agent, and the cache of its ranks.
    pub(crate) agents: NodeLinks,
    /// The cache of this node's ranks, on the rank that hosts it.
    pub(crate) node_host: Option<Arc<dyn HostedStore>>,
    /// Whether the run has jumped.
    pub(crate) jumped: bool,
    /// Whether the group knows that this rank is done.
    pub(crate) left: AtomicBool,
    /// Counted until the loader is dropped.
    pub(crate) _memory: Option<Grant>,
    /// Files that are restored from an archive, until the loader is dropped.
    pub(crate) _recalls: JoinSet<()>,
    /// Last: the engine's task is dropped before its threads.
    pub(crate) workers: Workers,
}

impl Loader {
    /// The default time for which a finished rank serves the others.
    pub const FAREWELL: Duration = FAREWELL;

    /// The same for a rank that was interrupted.
    pub const INTERRUPTED_FAREWELL: Duration = INTERRUPTED_FAREWELL;

    /// Batches in order, like `for batch in &loader`. Blocks the thread. Async code uses the loader
    /// as a [`Stream`].
    pub fn batches(&self) -> Batches<'_> {
        Batches { loader: self, refused: false }
    }

    /// Waits at most `timeout` for the next batch. `None` when the run is over. Threads that wait
    /// at the same time get different batches.
    ///
    /// # Errors
    /// [`LoadErrorKind::Timeout`] after the timeout, and [`LoadErrorKind::Blocking`] at once on a
    /// thread of the given [runtime](crate::Builder::runtime). The run continues after both. Any
    /// other error ends the run and is returned once.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Batch>, LoadError> {
        self.workers.may_block().map_err(|_| LoadError::blocking())?;
        self.inner.next_timeout(timeout)
    }

    /// Waits at most `timeout` until [`next_timeout`](Self::next_timeout) would return at once.
    /// Returns whether it would. No batch is taken, but another thread may take it first. So a
    /// caller can look for a signal before it takes a batch.
    ///
    /// # Errors
    /// [`LoadErrorKind::Blocking`] on a thread of the given [runtime](crate::Builder::runtime).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, LoadError> {
        self.workers.may_block().map_err(|_| LoadError::blocking())?;
        Ok(self.inner.wait_timeout(timeout))
    }

    /// The report so far: [`report`](crate::report) explains its numbers.
    pub fn report(&self) -> Report {
        let whole = RunTotals {
            rank: self.config.rank,
            samples: self.catalogs[0].len(),
            dataset_bytes: self.catalogs[0].total_bytes(),
            floor: self.floor,
            planned: match self.factors {
                Some(factors) => factors.typical(self.inner.plan().origin_bytes()),
                None => self.inner.plan().origin_bytes(),
            },
        };
        let adapted = Adapted::of(self.limit.as_ref().map(Limit::decisions), self.inner.look_ahead());
        let of_host = || self.disk_report_of_host();
        let disk = self.disk.as_ref().map(foreread_open::disk::OpenDisk::report).or_else(of_host);
        let peers = self.group.as_ref().map(|group| group.exchanged());
        let run = self.earlier.clone().followed_by(self.inner.report());
        let units = self.units.as_ref().map(UnitsReport::of);
        let mut origin = self.origin.read();
        if let Some(agent) = self.agents.samples.as_ref().filter(|agent| agent.shared_by().is_some()) {
            // The cache of the node reads for its ranks, and for other nodes.
            let other = self.node_host.as_ref().map(|host| host.other_reads()).unwrap_or_default();
            let (requests, bytes) = agent.reads();
            let bytes = bytes + other.bytes;
            origin.bytes += self.factors.map_or(bytes, |factors| factors.typical(bytes));
            origin.requests += requests + other.requests + other.retried + other.hedged;
            (origin.retried, origin.hedged) = (origin.retried + other.retried, origin.hedged + other.hedged);
        }
        Report { disk, units, peers, ..Report::new(&whole, &origin, adapted, &run) }
            .with_agent(self.agents.samples.as_ref().and_then(|cache| cache.report()))
    }

    /// The history so far: delivered bytes by source, and stalls, over time, in at most 512 slots.
    /// The feature `plot` draws it: `Report::plot`.
    pub fn history(&self) -> History {
        self.earlier_history.clone().followed_by(&self.inner.history())
    }

    /// Continues at another position: the beginning of an epoch, or a saved [`State`] of this run.
    /// Prefetched samples are dropped, cached samples stay. After the last epoch no batch is left.
    ///
    /// For trainers that leave an epoch early or choose a new position. All ranks of a group jump
    /// at the same step.
    ///
    /// # Errors
    /// A state of another run.
    pub fn jump(&mut self, to: &Jump) -> Result<()> {
        let old = self.inner.run();
        let schedule = Arc::clone(old.schedule());
        let position = match to {
            Jump::Epoch(epoch) => {
                Position { schedule: old.fingerprint(), epoch: *epoch, phase: 0, consumed: 0 }
            }
            Jump::State(state) => state.position(&self.config, &self.catalogs, &schedule)?,
        };
        let run = Run::resume(schedule, old.deal(), old.world_size(), old.rank(), &position)?;
        let plan = self.inner.plan().clone();
        self.earlier = std::mem::take(&mut self.earlier).followed_by(self.inner.report());
        self.earlier_history = self.history();
        let locality = self.group.as_ref().and_then(|group| group.locality());
        self.agents.announce(&run, &plan, locality.as_ref());
        // The old run ends when the new one replaces it, a moment later.
        self.inner = self.assembly.start(run, plan, self.workers.handle());
        self.agents.watch(self.inner.stalled());
        self.jumped = true;
        Ok(())
    }

    /// Ends the run: waits at most five seconds for the disk tier's writes, and returns the final
    /// report. Blocks the thread. Async code has [`close_async`](Self::close_async).
    ///
    /// In a group, this rank serves the others until they are done, for at most ten minutes, unless
    /// it has [left](Self::leave) before.
    ///
    /// Dropping a loader does not wait. If the process ends right after that, up to 32 MiB of the
    /// last samples are not on the disk. The next run reads them from the origin. No other data are
    /// lost.
    ///
    /// # Errors
    /// If the given [runtime](crate::Builder::runtime) was shut down. If this thread belongs to it,
    /// and there are writes or other ranks to wait for. The run has ended like that of a dropped
    /// loader.
    pub fn close(self) -> Result<Report> {
        if !self.left.load(Ordering::Relaxed) {
            self.leave(Self::FAREWELL)?;
        }
        if let Some(flush) = self.flush() {
            self.workers.wait(flush)?;
        }
        Ok(self.report())
    }

    /// [`close`](Self::close) for async code, on any thread.
    ///
    /// # Errors
    /// If the given [runtime](crate::Builder::runtime) was shut down. The run has ended like that
    /// of a dropped loader.
    ///
    /// # Cancel safety
    /// Dropping the future drops the loader.
    pub async fn close_async(self) -> Result<Report> {
        if !self.left.load(Ordering::Relaxed) {
            self.leave_async(Self::FAREWELL).await?;
        }
        if let Some(flush) = self.flush() {
            self.workers.run(flush).await?;
        }
        Ok(self.report())
    }

    /// The counters of the disks of its node's cache, on the rank that hosts it. A cache that uses
    /// none of the rank's disks has kept nothing there.
    fn disk_report_of_host(&self) -> Option<DiskReport> {
        let host = self.node_host.as_ref()?;
        host.disk_report().or_else(|| (!self.config.disk.is_empty()).then(DiskReport::default))
    }

    /// The writes to disks at the end: of this rank, or of its node's ranks if it hosts their
    /// cache.
    fn flush(&self) -> Option<impl Future<Output = Result<()>> + Send + 'static + use<>> {
        let own = self.disk.clone().map(|disk| (disk, self.inner.given_to_disk()));
        let of_node = self.node_host.as_ref().map(|host| host.flush());
        (own.is_some() || of_node.is_some()).then_some(async move {
            if let Some((disk, given)) = own {
                disk.flush(given).await;
            }
            if let Some(written) = of_node {
                written.await;
            }
            Ok(())
        })
    }

    /// The position after the last batch that was taken.
    pub fn position(&self) -> Position {
        self.inner.position()
    }

    /// The [position](Self::position) in a form that [`Builder::resume`](crate::Builder::resume)
    /// takes. [`State`] has an example.
    ///
    /// Taken batches count as consumed, so save after a step is complete. In a group, rank 0's
    /// state is that of the lowest step that it knows all ranks to have completed, so one file is
    /// enough. Each rank reports its steps by calling this.
    pub fn state(&self) -> State {
        let position = match &self.group {
            // Steps count from the common start, so they mean nothing after a jump.
            Some(group) if !self.jumped => after(self.inner.run(), group.progress(self.steps())),
            _ => self.position(),
        };
        State::new(&self.config, &self.catalogs, &position)
    }

    /// Steps that this rank has completed, over all passes.
    fn steps(&self) -> u64 {
        let Some((last, index)) = self.inner.last_taken() else { return 0 };
        let before = self.inner.run().passes().take(last).map(|pass| pass.batches);
        before.fold(0, u64::saturating_add) + index + 1
    }

    /// Reports to rank 0 that the step of the last batch is complete. Costs almost nothing, and
    /// nothing outside of a group.
    pub fn step_done(&self) {
        if let Some(group) = self.group.as_ref().filter(|_| !self.jumped) {
            group.progress(self.steps());
        }
    }

    /// Whether this rank is in a group.
    pub fn is_together(&self) -> bool {
        self.group.is_some()
    }

    /// Reports that this rank is done, and serves the others until they are done, for at most
    /// `at_most`. Returns the sum of all reports on rank 0, and `None` on other ranks and outside
    /// of a group. The other ranks' runs are over when rank 0 has their reports, for which
    /// [`close`](Self::close) waits. Blocks the thread. Async code has
    /// [`leave_async`](Self::leave_async).
    ///
    /// # Errors
    /// In a group, if the given [runtime](crate::Builder::runtime) was shut down, or this thread
    /// belongs to it.
    pub fn leave(&self, at_most: Duration) -> Result<Option<Merged>> {
        if self.group.is_some() {
            // Before any message to the group.
            self.workers.may_block()?;
        }
        let Some(leaving) = self.leaving(at_most) else { return Ok(None) };
        self.workers.wait(async move { Ok(leaving.await) })
    }

    /// [`leave`](Self::leave) for a program that may be interrupted: after `interrupted`, it takes
    /// at most [`INTERRUPTED_FAREWELL`](Self::INTERRUPTED_FAREWELL).
    ///
    /// # Errors
    /// As [`leave`](Self::leave), and if `interrupted` panics.
    pub fn leave_unless(
        &self,
        at_most: Duration,
        interrupted: impl Fn() -> bool + Send + 'static,
    ) -> Result<Option<Merged>> {
        if self.group.is_some() {
            self.workers.may_block()?;
        }
        let hurrying = self.leaving(Self::INTERRUPTED_FAREWELL);
        let (Some(leaving), Some(hurrying)) = (self.leaving(at_most), hurrying) else { return Ok(None) };
        self.workers.wait(async move { Ok(unless(interrupted, leaving, hurrying).await) })
    }

    /// [`leave`](Self::leave) for async code, on any thread.
    ///
    /// # Errors
    /// In a group, if the given [runtime](crate::Builder::runtime) was shut down.
    ///
    /// # Cancel safety
    /// The group may know that this rank is done. The rank serves the others while the loader
    /// lives.
    pub async fn leave_async(&self, at_most: Duration) -> Result<Option<Merged>> {
        let Some(leaving) = self.leaving(at_most) else { return Ok(None) };
        self.workers.run(async move { Ok(leaving.await) }).await
    }

    fn leaving(
        &self,
        at_most: Duration,
    ) -> Option<impl Future<Output = Option<Merged>> + Send + 'static + use<>> {
        let group = self.group.as_ref()?;
        self.left.store(true, Ordering::Relaxed);
        self.step_done();
        Some(group.leave(Merged::of(&self.report()), at_most))
    }

    /// The caches of this rank, or of its node, and their content by the plan.
    pub fn levels(&self) -> &[LevelPlan] {
        self.inner.plan().levels()
    }

    /// The planner's plan, whose interface is not that of this crate.
    #[doc(hidden)]
    pub fn local_plan(&self) -> &LocalPlan {
        self.inner.plan()
    }

    /// The catalog of a batch's samples, with their names and labels. It is the whole one, where
    /// the dataset is a part of a catalog.
    pub fn catalog(&self, batch: &Batch) -> Catalog {
        self.catalogs[batch.dataset().0 as usize].with_gone()
    }

    /// The datasets' catalogs: training first, then validation if there is one.
    pub fn catalogs(&self) -> &[Catalog] {
        &self.catalogs
    }

    /// The bytes of samples that are prefetched, or held by the trainer, and in no cache.
    pub fn staged_bytes(&self) -> u64 {
        self.inner.staged_bytes()
    }
}

/// A run's batches for plain threads. See [`Loader::batches`].
///
/// Ends after the error that refuses a thread of the given [runtime](crate::Builder::runtime). The
/// run continues.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    loader: &'a Loader,
    refused: bool,
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.refused {
            return None;
        }
        loop {
            let next = self.loader.next_timeout(BATCH_POLL);
            match next.as_ref().map_err(LoadError::kind) {
                Err(LoadErrorKind::Timeout) => continue,
                Err(LoadErrorKind::Blocking) => self.refused = true,
                _ => {}
            }
            return next.transpose();
        }
    }
}

impl<'a> IntoIterator for &'a Loader {
    type Item = Result<Batch, LoadError>;
    type IntoIter = Batches<'a>;

    fn into_iter(self) -> Batches<'a> {
        self.batches()
    }
}

/// The position after this many steps of a run.
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
