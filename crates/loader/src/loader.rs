//! A run that has been started, as the trainer sees it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foreread_oracle::{Position, Run};
use foreread_planner::LocalPlan;
use foreread_tier::{Budget, CacheTier, Serve, Tier};
use foreread_types::{Footprint, Tick};
use futures::Stream;
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::active_reads::{AbortOnDrop, ActiveReads};
use crate::batch::Batch;
use crate::blocks::Blocks;
use crate::copies::PendingCopies;
use crate::core::{CacheLevel, Config, Core, OnError, USE_OVERHEAD};
use crate::dataset::Dataset;
use crate::driver::Driver;
use crate::error::{LoadError, LoadErrorKind};
use crate::handover::Handover;
use crate::hedges::Hedges;
use crate::look_ahead::LookAhead;
use crate::peer_group::Others;
use crate::ready::ReadySamples;
use crate::report::{RunReport, Source};
use crate::sample_server::SampleServer;
use crate::single_flight::{SingleFlight, SingleFlightOrigin};
use crate::wait_timer::WaitTimer;

/// Blocks under way take this part of the look-ahead's bytes beside it, and as much is taken by what was copied out of them
/// and is on its way into caches.
const BLOCKS: u64 = 4;

/// How long a blocking wait sleeps at most before it looks around again.
const NAP: Duration = Duration::from_millis(100);

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What this rank reads, and when.
    pub run: Run,
    /// Where samples are kept.
    pub plan: LocalPlan,
    /// The datasets, as the schedule numbers them.
    pub datasets: Vec<Dataset>,
    /// The caches, as the plan numbers its levels, with their names in the report.
    pub caches: Vec<(Source, Arc<dyn CacheTier>)>,
    /// How far reads may run ahead of the trainer at most, in bytes; less is used where the trainer's pace needs less.
    pub look_ahead: u64,
    /// What happens when a sample cannot be read.
    pub on_error: OnError,
    /// The other ranks, where they work together; then the plan is theirs too.
    pub others: Option<Others>,
    /// Whether the caches may hold what an earlier run of this process has left there by another plan.
    pub warm: bool,
}

/// A run under way. Reading ahead begins when it is made; dropping it ends the run and everything it does.
///
/// Batches are taken by a plain thread ([`batches`](Self::batches), [`next_timeout`](Self::next_timeout)) or by async
/// code (the loader is a [`Stream`]).
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
    /// What others ask for is answered as long as this lives, beyond the last batch.
    _serving: Option<Arc<SampleServer>>,
}

impl Loader {
    /// Starts the run on `runtime`.
    ///
    /// The datasets and their sizes are those that the run and the plan were made from; with others, the run ends with
    /// [`LoadErrorKind::Stopped`](crate::LoadErrorKind::Stopped).
    pub fn start(parts: Parts, runtime: &Handle) -> Self {
        let Parts { run, plan, mut datasets, caches, look_ahead, on_error, others, warm } = parts;
        let look_ahead = look_ahead.min(epoch(&run, &datasets));
        let handover = Arc::new(Handover::new(run.clone(), look_ahead));
        let budget = |limit, on_release: fn(&Handover, u64)| {
            // Weak, or batches that nobody takes would keep their own queue alive through their charges.
            let handover = Arc::downgrade(&handover);
            Budget::with_release(limit, move |bytes| {
                if let Some(handover) = handover.upgrade() {
                    on_release(&handover, bytes);
                }
            })
        };
        let staging = budget(look_ahead, Handover::release);
        let block_budget = budget(look_ahead / BLOCKS, |handover, _| handover.wake_driver());
        let blocks =
            Blocks::new(datasets.iter_mut().map(|dataset| std::mem::take(&mut dataset.blocks)).collect());
        let levels = caches.iter().map(|(source, cache)| CacheLevel {
            source: *source,
            // What memory has is at hand, and nothing is read.
            read: if *source == Source::Memory { Footprint::EXACT } else { cache.footprint() },
        });
        let levels = levels.collect();
        let caches: Vec<Arc<dyn CacheTier>> = caches.into_iter().map(|(_, cache)| cache).collect();
        let sizes = datasets.iter().map(|dataset| dataset.catalog.sizes()).collect();
        let serving = others.as_ref().map(|others| serve(others, &plan, &mut datasets, &caches, runtime));
        let first = run.pass(0).map_or(Tick(0), |pass| pass.first_tick);
        let driver = Driver {
            core: Core::new(Config { look_ahead, on_error, levels, warm }, run.clone(), plan.clone(), sizes),
            run: run.clone(),
            plan: plan.clone(),
            datasets: datasets.into(),
            caches,
            others,
            staging: staging.clone(),
            handover: Arc::clone(&handover),
            ready: ReadySamples::starting_at(first),
            errors: (on_error != OnError::Skip).then(Default::default),
            catalog_error: None,
            order_error: None,
            reads: ActiveReads::default(),
            dealing: None,
            blocks,
            block_budget,
            unasked_budget: Budget::new(look_ahead / BLOCKS),
            copies: PendingCopies::default(),
            retry_single: Vec::new(),
            wait_timer: WaitTimer::default(),
            failure: None,
            hedges: Hedges::new(),
            ended: false,
        };
        let span = tracing::info_span!("foreread.run", rank = run.rank().0, world_size = run.world_size());
        let driver = AbortOnDrop(runtime.spawn(driver.run().instrument(span)).abort_handle());
        Self { run, plan, handover, staging, _driver: driver, _serving: serving }
    }

    /// Batches in order, by waiting for each. Not from async code: it blocks the thread.
    pub fn batches(&self) -> Batches<'_> {
        Batches { loader: self }
    }

    /// Waits at most `timeout` for the next batch; `None` when the run is over. After an error other than
    /// [`LoadErrorKind::Timeout`] the run is over. Threads that wait at the same time get different batches.
    ///
    /// # Errors
    /// [`LoadErrorKind::Timeout`] when the time is up, and why the run has ended early, once.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Batch>, LoadError> {
        self.handover.next_timeout(timeout).ok_or_else(LoadError::timeout)?.transpose()
    }

    /// What has been delivered so far, by pass.
    pub fn report(&self) -> RunReport {
        self.handover.report()
    }

    /// The pass of the last batch that was taken, by its index in the run, and the batch's number in it.
    pub fn last_taken(&self) -> Option<(usize, u64)> {
        self.handover.last_taken()
    }

    /// Where the run stands: after the last batch that was taken. A later run resumes there.
    pub fn position(&self) -> Position {
        let last = self.handover.last_taken().and_then(|(pass, index)| Some((self.run.pass(pass)?, index)));
        match last {
            Some((pass, index)) => self.run.position_after(&pass, index + 1),
            None => self.run.start(),
        }
    }

    /// What this rank reads, and when.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Where samples are kept.
    pub fn plan(&self) -> &LocalPlan {
        &self.plan
    }

    /// How far reads run ahead of the trainer now.
    pub fn look_ahead(&self) -> LookAhead {
        self.handover.look_ahead()
    }

    /// Staging memory in use now, in bytes: read ahead, or with the trainer and in no cache.
    pub fn staged_bytes(&self) -> u64 {
        self.staging.used()
    }
}

/// Begins to answer what others ask, and has the origins' owned samples read in one flight each.
fn serve(
    others: &Others,
    plan: &LocalPlan,
    datasets: &mut [Dataset],
    caches: &[Arc<dyn CacheTier>],
    runtime: &Handle,
) -> Arc<SampleServer> {
    let flights = Arc::new(SingleFlight::new(plan.clone(), datasets.to_vec(), caches.to_vec()));
    for dataset in datasets {
        let (flights, origin) = (Arc::clone(&flights), Arc::clone(&dataset.origin));
        dataset.origin = Arc::new(SingleFlightOrigin { flights, origin }) as Arc<dyn Tier>;
    }
    let serving = Arc::new(SampleServer::new(flights, runtime.clone(), others.budget));
    let source: Arc<dyn Serve> = serving.clone();
    others.peers.serve(Arc::downgrade(&source));
    serving
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
            match self.loader.next_timeout(NAP) {
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

/// What counts in the look-ahead of one epoch on this rank, in bytes.
///
/// Further ahead lie samples that are within reach already. Read for the later epoch too before the earlier one has used them, they
/// would be read twice where they are kept, and for nothing where nobody comes to the later epoch.
fn epoch(run: &Run, datasets: &[Dataset]) -> u64 {
    let all = datasets.iter().map(|dataset| {
        dataset.catalog.total_bytes().saturating_add(dataset.catalog.len().saturating_mul(USE_OVERHEAD))
    });
    all.fold(0, u64::saturating_add).div_ceil(u64::from(run.world_size()))
}
