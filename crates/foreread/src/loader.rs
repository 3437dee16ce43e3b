//! The loader that programs use: from a URL and a few settings to batches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use foreread_dataset::Catalog;
use foreread_layers::{Limit, Meter};
use foreread_loader::{Batch, LoadError, LoadErrorKind, RunReport};
use foreread_oracle::{Position, Run};
use foreread_planner::LocalPlan;
use futures::Stream;

use crate::assembly::Assembly;
use crate::builder::Builder;
use crate::config::Config;
use crate::error::Result;
use crate::joint::{FAREWELL, Joint};
use crate::memory::Grant;
use crate::merged::Merged;
use crate::planned::Planned;
use crate::prepared::Prepared;
use crate::report::{Adapted, Report, Whole};
use crate::runtime::Workers;
use crate::state::State;

/// How often a rank that leaves looks whether it is interrupted.
const GLANCE: Duration = Duration::from_millis(100);

/// How long a wait for the next batch lasts before it looks around again.
const NAP: Duration = Duration::from_millis(100);

/// A run that is ready to start.
#[derive(Debug)]
pub struct Ready {
    prepared: Prepared,
    workers: Workers,
}

impl Ready {
    pub(crate) fn new(prepared: Prepared, workers: Workers) -> Self {
        Self { prepared, workers }
    }

    pub(crate) fn parts(self) -> (Prepared, Workers) {
        (self.prepared, self.workers)
    }

    /// What it will do.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Starts reading ahead.
    pub fn start(self) -> Loader {
        let Self { prepared, workers } = self;
        let Prepared { planned, opened, caches, disk, shared, blocks, joint } = prepared;
        let Planned { config, run, plan, floor, memory, .. } = planned;
        let catalogs: Vec<Catalog> = opened.iter().map(|dataset| dataset.catalog.clone()).collect();
        // Training's; validation's is the same one, or waits for the same store.
        let limit = opened.first().and_then(|dataset| dataset.limit.clone());
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
        let others = joint.as_ref().map(|joint| joint.others());
        let Config { look_ahead, on_error, retry, .. } = config;
        let mut assembly = Assembly::new(opened, caches, others, look_ahead, on_error, blocks, retry);
        let inner = assembly.start(run, plan, workers.handle());
        Loader {
            inner,
            earlier: RunReport::default(),
            assembly,
            catalogs,
            config,
            floor,
            origin: shared.meter,
            limit,
            disk,
            joint,
            jumped: false,
            left: AtomicBool::new(false),
            _memory: memory,
            workers,
        }
    }
}

/// Where a run goes on: see [`Loader::jump`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jump {
    /// At the beginning of this epoch, counted from 0.
    Epoch(u64),
    /// Behind the last sample that was consumed when this was saved.
    State(State),
}

/// A run under way: batches in the order that the seed says, read ahead of time.
///
/// Plain threads iterate over it (`for batch in &loader`); async code uses the loader as a [`Stream`]. Dropping it ends
/// the run at once; [`close`](Self::close) waits for the disk tier first.
///
/// ```
/// use foreread::{Loader, Memory};
/// # let directory = tempfile::tempdir()?;
/// # for name in ["a", "b", "c"] { std::fs::write(directory.path().join(name), name)?; }
/// # let path = directory.path().to_str().expect("a path of ASCII");
/// let loader = Loader::builder(path).batch_size(2).epochs(1).seed(7).memory(Memory::Bytes(1 << 20)).start()?;
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
    inner: foreread_loader::Loader,
    /// What had been done before the last jump.
    earlier: RunReport,
    assembly: Assembly,
    catalogs: Vec<Catalog>,
    config: Config,
    floor: u64,
    origin: Meter,
    limit: Option<Limit>,
    disk: Option<crate::disk::Disk>,
    joint: Option<Box<dyn Joint>>,
    /// Whether it goes on elsewhere than where it began.
    jumped: bool,
    /// Whether others have been told that this rank is done.
    left: AtomicBool,
    /// Counted until the loader is dropped.
    _memory: Option<Grant>,
    /// Last: the engine's task goes before the threads that it runs on.
    workers: Workers,
}

impl Loader {
    /// How long a rank that is done goes on answering others that are not, where nobody says otherwise; nothing without
    /// the feature `peer`.
    pub const FAREWELL: Duration = FAREWELL;

    /// Settings for a run over `target`: the URL or path of a dataset, of a catalog or of a shard; braces name several
    /// shards ([`expand`](foreread_dataset::expand)).
    pub fn builder(target: impl Into<String>) -> Builder {
        Builder::new(target.into(), Config::default())
    }

    /// The same, which begins with these settings; the builder's setters change them one by one.
    pub fn builder_with(target: impl Into<String>, config: Config) -> Builder {
        Builder::new(target.into(), config)
    }

    /// Batches in order, by waiting for each, as `for batch in &loader` has them. Blocks the thread; async code uses the
    /// loader as a [`Stream`].
    pub fn batches(&self) -> Batches<'_> {
        Batches { loader: self, refused: false }
    }

    /// Waits at most `timeout` for the next batch; `None` when the run is over. Threads that wait at the same time get
    /// different batches.
    ///
    /// # Errors
    /// [`LoadErrorKind::Timeout`] when the time is up, and [`LoadErrorKind::Blocking`] at once on a thread of the given
    /// [runtime](Builder::runtime): the run goes on. Any other says why it has ended early, once.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Batch>, LoadError> {
        self.workers.may_block().map_err(|_| LoadError::blocking())?;
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
        let peers = self.joint.as_ref().map(|joint| joint.exchanged());
        let run = self.earlier.clone().followed_by(self.inner.report());
        Report { disk, peers, ..Report::new(&whole, &self.origin.read(), adapted, &run) }
    }

    /// Goes on at another place: the beginning of an epoch, or where a [`State`] of this run was saved. What has been read
    /// ahead is dropped, what the caches hold stays. An epoch behind the last leaves nothing to read.
    ///
    /// For trainers that leave an epoch before its end, or that decide anew where to go on. Ranks that work together
    /// all jump at the same step.
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
        // The old run ends when the new one takes its place; until then, its reads are a moment's.
        self.inner = self.assembly.start(run, plan, self.workers.handle());
        self.jumped = true;
        Ok(())
    }

    /// Ends the run in order: waits until the disk tier has written what it was given, for five seconds at most, and
    /// reports what has been delivered and read in all. Blocks the thread; async code has
    /// [`close_async`](Self::close_async).
    ///
    /// A rank that works together with others goes on answering them until they are done, for ten minutes at most,
    /// unless it has [left](Self::leave) before.
    ///
    /// Dropping a loader does not wait. If the process ends right after that, up to 32 MiB of the last samples are not
    /// on the disk, and the next run reads them from the origin; nothing else is lost.
    ///
    /// # Errors
    /// If the thread belongs to the given [runtime](Builder::runtime), or that runtime was shut down. The run has ended
    /// all the same, as if the loader had been dropped.
    pub fn close(self) -> Result<Report> {
        if !self.left.load(Ordering::Relaxed) {
            self.leave(Self::FAREWELL)?;
        }
        if let Some(disk) = self.disk.clone() {
            self.workers.wait(async move {
                disk.flush().await;
                Ok(())
            })?;
        }
        Ok(self.report())
    }

    /// [`close`](Self::close) for async code.
    ///
    /// # Cancel safety
    /// Dropping the future drops the loader.
    pub async fn close_async(self) -> Report {
        if !self.left.load(Ordering::Relaxed) {
            self.leave_async(Self::FAREWELL).await;
        }
        if let Some(disk) = self.disk.clone() {
            let flush = async move {
                disk.flush().await;
                Ok(())
            };
            // It fails only if the given runtime was shut down, and then nothing is written either.
            let _ = self.workers.run(flush).await;
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
            // Steps are counted from where all began; after a jump they say nothing.
            Some(joint) if !self.jumped => after(self.inner.run(), joint.progress(self.steps())),
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

    /// Says to rank 0 that this rank has completed the step of the batch that it took last; costs next to nothing, and
    /// nothing where ranks do not work together.
    pub fn step_done(&self) {
        if let Some(joint) = self.joint.as_ref().filter(|_| !self.jumped) {
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
    /// thread; async code has [`leave_async`](Self::leave_async).
    ///
    /// # Errors
    /// If the thread belongs to the given [runtime](Builder::runtime), or that runtime was shut down.
    pub fn leave(&self, at_most: Duration) -> Result<Option<Merged>> {
        if self.joint.is_some() {
            // Before the others are told anything.
            self.workers.may_block()?;
        }
        let Some(leaving) = self.leaving(at_most) else { return Ok(None) };
        self.workers.wait(async move { Ok(leaving.await) })
    }

    /// The same for a program that may be interrupted: as soon as `interrupted` says so, it takes `haste` at most.
    ///
    /// # Errors
    /// As [`leave`](Self::leave), and if `interrupted` panics.
    pub fn leave_unless(
        &self,
        at_most: Duration,
        haste: Duration,
        interrupted: impl Fn() -> bool + Send + 'static,
    ) -> Result<Option<Merged>> {
        if self.joint.is_some() {
            self.workers.may_block()?;
        }
        let (Some(leaving), Some(hurrying)) = (self.leaving(at_most), self.leaving(haste)) else {
            return Ok(None);
        };
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
        self.workers.wait(async move { Ok(either.await) })
    }

    /// [`leave`](Self::leave) for async code.
    ///
    /// # Cancel safety
    /// That this rank is done may have been said although nobody waits; it goes on answering as long as the loader lives.
    pub async fn leave_async(&self, at_most: Duration) -> Option<Merged> {
        let leaving = self.leaving(at_most)?;
        // It fails only if the given runtime was shut down, and then no rank is answered any longer either.
        self.workers.run(async move { Ok(leaving.await) }).await.ok().flatten()
    }

    fn leaving(
        &self,
        at_most: Duration,
    ) -> Option<impl Future<Output = Option<Merged>> + Send + 'static + use<>> {
        let joint = self.joint.as_ref()?;
        self.left.store(true, Ordering::Relaxed);
        self.step_done();
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

/// A run's batches for plain threads. See [`Loader::batches`].
///
/// Ends after the error that refuses a thread of the given [runtime](Builder::runtime); the run goes on.
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
            let next = self.loader.next_timeout(NAP);
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
