//! The trainer's handle on a run.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_oracle::{Position, Run};
use foreread_planner::LocalPlan;
use foreread_tier::{Budget, Buffers, CacheTier};
use foreread_types::Tick;
use futures::Stream;
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::active_reads::{AbortOnDrop, ActiveReads};
use crate::batch::Batch;
use crate::block_reads::BlockReads;
use crate::blocks::Blocks;
use crate::copies::PendingCopies;
use crate::core::{CacheLevel, Config, Core, OnError, USE_OVERHEAD};
use crate::dataset::Dataset;
use crate::driver::Driver;
use crate::error::{LoadError, LoadErrorKind};
use crate::handover::Handover;
use crate::history::History;
use crate::locality_deal::LocalityDeal;
use crate::look_ahead::LookAhead;
use crate::ready::ReadySamples;
use crate::report::{ReadSource, RunReport};
use crate::run_units::RunUnits;
use crate::unit_offers::OffersEnd;

/// The budget of blocks in flight is the look-ahead divided by this. Samples out of blocks on their
/// way into caches have as much.
const BLOCK_BUDGET_PART: u64 = 4;

/// The longest sleep of a blocking wait.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Everything that a run needs.
#[derive(Clone, Debug)]
pub struct LoaderParts {
    /// The samples that this rank reads, in order.
    pub run: Run,
    /// The plan: where samples are cached.
    pub plan: LocalPlan,
    /// The datasets, numbered as in the schedule.
    pub datasets: Vec<Dataset>,
    /// The caches, numbered as the plan's levels, with their names in the report. None where ranks
    /// share the stores of their nodes.
    pub caches: Vec<(ReadSource, Arc<dyn CacheTier>)>,
    /// Memory for copies of samples.
    pub buffers: Arc<dyn Buffers>,
    /// How far reads may run ahead of the trainer at most, in bytes. Less is used where the
    /// trainer's pace needs less.
    pub look_ahead: u64,
    /// The handling of unreadable samples.
    pub on_error: OnError,
    /// Deals each step's samples to ranks that have them. `None` for the arithmetic dealing.
    pub locality: Option<Arc<LocalityDeal>>,
    /// Whether the caches may hold samples of an earlier run with another plan.
    pub warm: bool,
}

/// A running run. Reading ahead begins at once. Dropping the loader ends the run.
///
/// Batches are taken by a plain thread ([`batches`](Self::batches),
/// [`next_timeout`](Self::next_timeout)) or by async code (the loader is a [`Stream`]).
///
/// # Cancel safety
/// Dropping a waiting future loses no batch.
#[derive(Debug)]
pub struct Loader {
    run: Run,
    plan: LocalPlan,
    handover: Arc<Handover>,
    staging: Budget,
    _driver: AbortOnDrop,
    /// Samples may wait for a busy disk as long as the loader lives.
    offers: OffersEnd,
}

impl Loader {
    /// Starts the run on `runtime`.
    ///
    /// The run and the plan must have been made from these datasets. Otherwise the run ends with
    /// [`LoadErrorKind::Stopped`].
    pub fn start(parts: LoaderParts, runtime: &Handle) -> Self {
        let LoaderParts { run, plan, mut datasets, caches, buffers, look_ahead, on_error, locality, warm } =
            parts;
        // Samples on their way into caches count with their tables, often more than their bytes.
        let stores = look_ahead / BLOCK_BUDGET_PART;
        let look_ahead = look_ahead.min(epoch(&run, &datasets));
        let handover = Arc::new(Handover::new(run.clone(), look_ahead));
        let budget = |limit, on_release: fn(&Handover, u64)| {
            // Weak, or queued batches would keep their own queue alive through their charges.
            let handover = Arc::downgrade(&handover);
            Budget::with_release(limit, move |bytes| {
                if let Some(handover) = handover.upgrade() {
                    on_release(&handover, bytes);
                }
            })
        };
        let staging = budget(look_ahead, Handover::release);
        if let Some(units) = datasets.iter().find_map(|dataset| dataset.units.as_ref()) {
            let catalogs = datasets.iter().map(|dataset| dataset.catalog.clone()).collect();
            units.begin_run(Arc::new(RunUnits::new(&run, plan.clone(), catalogs)));
        }
        let blocks =
            Blocks::new(datasets.iter_mut().map(|dataset| std::mem::take(&mut dataset.blocks)).collect());
        let block_budget = |limit| budget(limit, |handover, _| handover.wake_driver());
        let block_reads = BlockReads {
            blocks,
            budget: block_budget(look_ahead / BLOCK_BUDGET_PART),
            stores: block_budget(stores),
        };
        let levels =
            caches.iter().map(|(source, cache)| CacheLevel { source: *source, read: cache.read_memory() });
        let levels = levels.collect();
        let caches: Vec<Arc<dyn CacheTier>> = caches.into_iter().map(|(_, cache)| cache).collect();
        let sizes = datasets.iter().map(|dataset| dataset.catalog.sizes()).collect();
        let first = run.pass(0).map_or(Tick(0), |pass| pass.first_tick);
        let copies = PendingCopies::new(buffers);
        let offers = copies.offers_end();
        let driver = Driver {
            core: Core::new(Config { look_ahead, on_error, levels, warm }, run.clone(), plan.clone(), sizes),
            run: run.clone(),
            plan: plan.clone(),
            datasets: datasets.into(),
            caches,
            locality,
            staging: staging.clone(),
            handover: Arc::clone(&handover),
            ready: ReadySamples::starting_at(first),
            errors: (on_error != OnError::Skip).then(Default::default),
            catalog_error: None,
            order_error: None,
            reads: ActiveReads::default(),
            dealing: None,
            block_reads,
            copies,
            retry_single: Vec::new(),
            failure: None,
            ended: false,
        };
        let span = tracing::info_span!("foreread.run", rank = run.rank().0, world_size = run.world_size());
        let driver = AbortOnDrop(runtime.spawn(driver.run().instrument(span)).abort_handle());
        Self { run, plan, handover, staging, _driver: driver, offers }
    }

    /// An iterator over the batches in order. It blocks the thread, so it must not be used in async
    /// code.
    pub fn batches(&self) -> Batches<'_> {
        Batches { loader: self }
    }

    /// Waits at most `timeout` for the next batch. `None` when the run is over. After an error
    /// other than [`LoadErrorKind::Timeout`] the run is over. Threads that wait at the same time
    /// get different batches.
    ///
    /// # Errors
    /// [`LoadErrorKind::Timeout`] after the timeout, and once the error that ended the run.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Batch>, LoadError> {
        self.handover.next_timeout(timeout).ok_or_else(LoadError::timeout)?.transpose()
    }

    /// Waits at most `timeout` until [`next_timeout`](Self::next_timeout) would return at once.
    /// Whether it would. No batch is taken, but another thread may take it first.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.handover.wait_timeout(timeout)
    }

    /// The report so far, by pass.
    pub fn report(&self) -> RunReport {
        self.handover.report()
    }

    /// A function that tells how long the trainer has waited for batches so far. It does not keep
    /// the run alive.
    pub fn stalled(&self) -> impl Fn() -> Duration + Send + Sync + 'static + use<> {
        let handover = Arc::downgrade(&self.handover);
        let stall = |handover: Arc<Handover>| handover.report().passes.iter().map(|pass| pass.stall).sum();
        move || handover.upgrade().map_or(Duration::ZERO, stall)
    }

    /// The history so far: delivered bytes and stalls over time.
    pub fn history(&self) -> History {
        self.handover.history()
    }

    /// The pass of the last batch taken, by its index in the run, and the batch's index in it.
    pub fn last_taken(&self) -> Option<(usize, u64)> {
        self.handover.last_taken()
    }

    /// The position after the last batch taken. A later run resumes there.
    pub fn position(&self) -> Position {
        let last = self.handover.last_taken().and_then(|(pass, index)| Some((self.run.pass(pass)?, index)));
        match last {
            Some((pass, index)) => self.run.position_after(&pass, index + 1),
            None => self.run.start(),
        }
    }

    /// Waits until no sample of a stored unit waits for a busy disk, or the disk stores nothing.
    /// Then the samples that were given to the disk can be flushed.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn given_to_disk(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.offers.stored()
    }

    /// The samples that this rank reads, in order.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The plan: where samples are cached.
    pub fn plan(&self) -> &LocalPlan {
        &self.plan
    }

    /// The current look-ahead.
    pub fn look_ahead(&self) -> LookAhead {
        self.handover.look_ahead()
    }

    /// Staging memory in use, in bytes: read ahead, or held by the trainer and in no cache.
    pub fn staged_bytes(&self) -> u64 {
        self.staging.used()
    }
}

impl Stream for Loader {
    type Item = Result<Batch, LoadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.handover.poll_next(context)
    }
}

/// A run's batches for plain threads. See [`Loader::batches`].
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    loader: &'a Loader,
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.loader.next_timeout(MAX_SLEEP) {
                Err(error) if error.kind() == LoadErrorKind::Timeout => {}
                next => return next.transpose(),
            }
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

/// The bytes that one epoch takes of the look-ahead on this rank.
///
/// A longer look-ahead would reach samples of the next epoch before this epoch has used them. They
/// would be read twice, or in vain if the trainer stops.
fn epoch(run: &Run, datasets: &[Dataset]) -> u64 {
    let all = datasets.iter().map(|dataset| {
        dataset.catalog.total_bytes().saturating_add(dataset.catalog.len().saturating_mul(USE_OVERHEAD))
    });
    all.fold(0, u64::saturating_add).div_ceil(u64::from(run.world_size()))
}
