//! Carries out the core's decisions. This is the only part of the engine that uses tiers, tasks and
//! time.
//!
//! One task per run decides. It computes no checksum, copies no sample and waits for no file:
//! [other tasks](crate::active_reads) and blocking threads do.
//!
//! In each turn the task collects all events (read results, the trainer's actions, computed
//! orders), passes them to the core, and lets it proceed once. So reads leave in batches, and a
//! busy trainer costs one wake-up per batch instead of one per sample. The order of the next epoch
//! is computed on a blocking thread.
//!
//! Dropping the task cancels the reads that have not started. Only stores that have begun complete.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use foreread_dataset::DatasetError;
use foreread_oracle::{AccessStream, OracleError, Run};
use foreread_planner::{LocalPlan, Retention};
use foreread_tier::{Budget, CacheTier, ErrorKind, Lookup, Sample, Tier, TierError};
use foreread_types::{DatasetId, SampleKey, Tick};
use futures::{FutureExt, StreamExt};
use tokio::task::JoinHandle;

use crate::active_reads::{ActiveReads, Executor};
use crate::batch::Batch;
use crate::block_reads::BlockReads;
use crate::cache_stores::{count_skip, spawn_store, store_sample};
use crate::copies::PendingCopies;
use crate::core::{Core, CoreAction, CoreEvent};
use crate::dataset::Dataset;
use crate::error::LoadError;
use crate::handover::Handover;
use crate::locality_deal::LocalityDeal;
use crate::locate::catalog_error;
use crate::panics::panic_message;
use crate::read_results::{PendingRead, ReadResult};
use crate::ready::ReadySamples;
use crate::report::BatchCounts;

/// Results that are collected before the core proceeds.
const RESULTS_PER_TURN: usize = 256;

/// Capacity that a turn's vectors retain.
const MAX_RETAINED: usize = 4096;

/// Errors of earlier batches that are remembered, at most.
const MAX_ERRORS: usize = 1024;

type DealTask = (usize, JoinHandle<Result<AccessStream, OracleError>>);

pub(crate) struct Driver {
    pub(crate) core: Core,
    pub(crate) run: Run,
    pub(crate) plan: LocalPlan,
    pub(crate) datasets: Arc<[Dataset]>,
    pub(crate) caches: Vec<Arc<dyn CacheTier>>,
    pub(crate) locality: Option<Arc<LocalityDeal>>,
    pub(crate) staging: Budget,
    pub(crate) handover: Arc<Handover>,
    pub(crate) ready: ReadySamples,
    /// Why samples could not be read, and at which use. Used for the error that ends the run.
    /// `None` where no sample ends it.
    pub(crate) errors: Option<HashMap<SampleKey, (Tick, TierError)>>,
    /// The first error of the catalog.
    pub(crate) catalog_error: Option<DatasetError>,
    /// Why the order of a pass could not be computed. Reported after all batches before it.
    pub(crate) order_error: Option<LoadError>,
    pub(crate) reads: ActiveReads,
    pub(crate) dealing: Option<DealTask>,
    pub(crate) block_reads: BlockReads,
    /// Copies of disk reads on their way into caches.
    pub(crate) copies: PendingCopies,
    pub(crate) retry_single: Vec<PendingRead>,
    /// The sample that ends the run, its epoch, and the error.
    pub(crate) failure: Option<(SampleKey, u64, TierError)>,
    pub(crate) ended: bool,
}

/// The actions and reads of one turn. Empty between turns. Its memory is reused.
pub(crate) struct Turn {
    actions: Vec<CoreAction>,
    pub(crate) origins: Vec<Vec<PendingRead>>,
    /// Reads of one block each.
    pub(crate) blocks: Vec<Vec<PendingRead>>,
    caches: Vec<Vec<PendingRead>>,
}

impl Turn {
    fn new(origins: usize, caches: usize) -> Self {
        let none = |tiers| std::iter::repeat_with(Vec::new).take(tiers).collect();
        let (origins, caches) = (none(origins), none(caches));
        Self { actions: Vec::new(), origins, blocks: Vec::new(), caches }
    }
}

/// Releases the memory of an unusually long turn.
fn shrink<T>(used: &mut Vec<T>) {
    used.shrink_to(MAX_RETAINED);
}

/// Ends the run when dropped, unless it has ended.
struct FinishOnDrop(Arc<Handover>);

impl Drop for FinishOnDrop {
    fn drop(&mut self) {
        self.0.finish(Err(LoadError::stopped()));
    }
}

impl Driver {
    /// Runs until the last batch was handed out, the run has failed, or the task is dropped. The
    /// handover is finished in every case.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let end = FinishOnDrop(Arc::clone(&self.handover));
        async move {
            if let Err(panic) = AssertUnwindSafe(self.drive()).catch_unwind().await {
                end.0.finish(Err(LoadError::panicked(&*panic)));
            }
        }
    }

    async fn drive(mut self) {
        let mut events = Vec::new();
        let mut turn = Turn::new(self.datasets.len(), self.caches.len());
        loop {
            self.gather(&mut events);
            self.turn(&mut events, &mut turn);
            if self.ended {
                break self.report_failure().await;
            }
            tokio::select! {
                biased;
                // First, or a constant stream of results would delay the next epoch's order.
                (pass, stream) = dealt(&mut self.dealing) => events.push(match stream {
                    Ok(stream) => CoreEvent::Dealt { pass, stream },
                    Err(error) => {
                        self.order_error = Some(error);
                        CoreEvent::DealFailed { pass }
                    }
                }),
                answer = self.reads.next(), if !self.reads.is_empty() => {
                    if let Some(answer) = answer {
                        self.on_result(answer, &mut events);
                    }
                }
                () = self.handover.changed() => {}
            }
        }
    }

    /// Collects everything that has happened so far.
    fn gather(&mut self, events: &mut Vec<CoreEvent>) {
        let trainer = self.handover.drain_events();
        if trainer.released > 0 {
            events.push(CoreEvent::Released { bytes: trainer.released });
        }
        events.extend((0..trainer.batches_taken).map(|_| CoreEvent::Taken));
        events.extend(trainer.look_ahead.map(|bytes| CoreEvent::LookAhead { bytes }));
        if trainer.waiting {
            events.push(CoreEvent::Waiting);
        }
        // A tier without its own tasks may owe wake-ups for completed reads.
        let origins = self.datasets.iter().map(|dataset| &*dataset.origin);
        origins.filter(|origin| Executor::of_origin(*origin) == Executor::Driver).for_each(Tier::submit);
        self.caches.iter().for_each(|cache| cache.submit());
        for _ in 0..RESULTS_PER_TURN {
            let Some(answer) = self.reads.next().now_or_never().flatten() else { break };
            self.on_result(answer, events);
        }
    }

    pub(crate) fn on_result(&mut self, answer: ReadResult, events: &mut Vec<CoreEvent>) {
        let ReadResult { tick, key, block, result, retry_charge } = answer;
        if let Some(block) = block {
            return self.on_block_result(block, (tick, key), result, events);
        }
        if let (Err(error), Some(charge)) = (&result, retry_charge) {
            tracing::debug!(%key, %error, "the checksum of a sample is wrong, reading it once more");
            return self.retry_single.push(self.pending(tick, key, charge));
        }
        match result {
            Ok(sample) => {
                // The error of a cache that did not deliver it is of no use any more.
                if let Some(errors) = self.errors.as_mut().filter(|errors| !errors.is_empty()) {
                    errors.remove(&key);
                }
                self.ready.put(tick, key.id, sample);
                events.push(CoreEvent::Arrived(tick));
            }
            Err(error) => self.failed(tick, key, error, events),
        }
    }

    pub(crate) fn failed(
        &mut self,
        tick: Tick,
        key: SampleKey,
        error: TierError,
        events: &mut Vec<CoreEvent>,
    ) {
        if let Some(fault) = catalog_error(&error) {
            self.catalog_error.get_or_insert_with(|| fault.clone());
            // It replaces the error of a cache.
            if let Some(errors) = &mut self.errors {
                errors.remove(&key);
            }
            return events.push(CoreEvent::Unlocated(tick));
        }
        let event = match error.kind() {
            kind if kind.is_loss() => CoreEvent::Invalid(tick),
            _ => CoreEvent::Failed(tick),
        };
        tracing::debug!(%key, %error, "a read failed");
        if let Some(errors) = &mut self.errors {
            errors.insert(key, (tick, error));
        }
        events.push(event);
    }

    /// Ends the run with the failed sample's name, which is read from a file.
    async fn report_failure(&mut self) {
        let Some((key, epoch, error)) = self.failure.take() else { return };
        let error = self.datasets[key.dataset.0 as usize].named(key, error).await;
        self.finish(Err(LoadError::sample(key, epoch, error)));
    }

    fn finish(&mut self, end: Result<(), LoadError>) {
        self.ended = true;
        self.handover.finish(end);
    }

    /// Passes `events` to the core and carries out its actions. Repeats while actions cause new
    /// events at once: look-ups may complete batches and make room. Then sends the reads.
    fn turn(&mut self, events: &mut Vec<CoreEvent>, turn: &mut Turn) {
        for pending in self.retry_single.drain(..) {
            turn.origins[pending.key.dataset.0 as usize].push(pending);
        }
        let mut actions = std::mem::take(&mut turn.actions);
        loop {
            for event in events.drain(..).chain([CoreEvent::Proceed]) {
                self.core.on(event, &mut actions);
            }
            for action in actions.drain(..) {
                self.act(action, turn, events);
            }
            if events.is_empty() || self.ended {
                break;
            }
        }
        shrink(&mut actions);
        turn.actions = actions;
        self.begin_blocks(turn);
        self.send(turn);
    }

    /// Sends a turn's reads.
    fn send(&mut self, turn: &mut Turn) {
        for (dataset, pending) in (0..).map(DatasetId).zip(self.datasets.iter()).zip(&mut turn.origins) {
            if !pending.is_empty() {
                self.reads.begin_of_origin(dataset, pending, Executor::of_origin(&*dataset.1.origin));
                shrink(pending);
            }
        }
        for pending in turn.blocks.drain(..) {
            let Some(first) = pending.first() else { continue };
            let dataset = &self.datasets[first.key.dataset.0 as usize];
            self.reads.begin_block(dataset, pending);
        }
        for (cache, pending) in self.caches.iter().zip(&mut turn.caches) {
            if !pending.is_empty() {
                self.reads.begin_by_key(&**cache, pending);
                shrink(pending);
            }
        }
    }

    /// Carries out one action. Events that it causes at once are added to `events`.
    fn act(&mut self, action: CoreAction, turn: &mut Turn, events: &mut Vec<CoreEvent>) {
        match action {
            CoreAction::Deal { pass } => self.deal(pass),
            CoreAction::Find { tick, key, level } => events.push(match self.find(key, level) {
                Lookup::Ready(sample) => {
                    self.ready.put(tick, key.id, sample);
                    CoreEvent::Found(tick)
                }
                Lookup::Stored => CoreEvent::Stored(tick),
                Lookup::Absent => CoreEvent::Absent(tick),
            }),
            CoreAction::Fetch { tick, key, level, read_cost } => {
                let pending = PendingRead::new(tick, key, self.bytes(key), self.staging.charge(read_cost));
                turn.caches[level].push(pending);
            }
            // An empty range needs no request.
            CoreAction::Read { tick, key } if self.bytes(key) == 0 && self.is_packed(key) => {
                self.ready.put(tick, key.id, Sample::uncharged(Bytes::new()));
                events.push(CoreEvent::Arrived(tick));
            }
            CoreAction::Read { tick, key } => self.read(tick, key, turn),
            CoreAction::Store { tick, key, level } => self.store(tick, key, level),
            CoreAction::Remove { key, level } => {
                self.copies.cancel(key, level);
                let cache = Arc::clone(&self.caches[level]);
                spawn_store(async move { cache.remove(vec![key]).await });
            }
            CoreAction::Share { from, to } => {
                if let Some((id, sample)) = self.ready.get(from).cloned() {
                    self.ready.put(to, id, sample);
                }
            }
            CoreAction::Hand { pass, index, first, ticks, counts } => {
                // A run that substitutes samples needs only the latest errors.
                if let Some(errors) = self.errors.as_mut().filter(|errors| errors.len() > MAX_ERRORS) {
                    errors.retain(|_, (tick, _)| *tick >= first);
                }
                // Other tiers may have delivered samples that units brought.
                if let Some(units) = self.datasets.iter().find_map(|dataset| dataset.units.as_ref()) {
                    units.delivered(Tick(first.0 + ticks));
                }
                self.hand(pass, index, ticks, counts);
            }
            CoreAction::Fail { tick, key } => {
                let epoch = self.run.pass_of(tick).map_or(0, |pass| pass.epoch);
                let error = self.errors.as_mut().and_then(|errors| errors.remove(&key));
                let fault = self.catalog_error.take();
                let error = match (error, fault) {
                    (Some((at, error)), fault) if at == tick || fault.is_none() => error,
                    (_, Some(fault)) => return self.finish(Err(LoadError::catalog(fault))),
                    (_, None) => TierError::new(ErrorKind::Other, "engine"),
                };
                self.failure = Some((key, epoch, error));
                self.ended = true;
            }
            CoreAction::End => {
                let end = self.order_error.take().map_or(Ok(()), Err);
                self.finish(end);
            }
        }
    }

    /// Looks for a sample in a cache, and among the copies on their way into it.
    fn find(&self, key: SampleKey, level: usize) -> Lookup {
        let cache = &self.caches[level];
        match cache.lookup(key) {
            // The second look-up finds a copy that was stored in between.
            Lookup::Absent => self.copies.get(key, level).map_or_else(|| cache.lookup(key), Lookup::Ready),
            found => found,
        }
    }

    /// The length of a sample.
    pub(crate) fn bytes(&self, key: SampleKey) -> u64 {
        self.datasets[key.dataset.0 as usize].catalog.sizes().bytes(key.id)
    }

    fn is_packed(&self, key: SampleKey) -> bool {
        self.datasets[key.dataset.0 as usize].catalog.format().is_packed()
    }

    fn deal(&mut self, index: usize) {
        let Some(pass) = self.run.pass(index) else { return };
        tracing::debug!(epoch = pass.epoch, phase = %pass.kind, batches = pass.batches, "dealing");
        let run = self.run.clone();
        let inverse = matches!(self.plan.retention(), Retention::Threshold { .. });
        let locality = self.locality.clone();
        let task = tokio::task::spawn_blocking(move || {
            let stream = match locality {
                Some(locality) => locality.stream(&run, &pass)?,
                None => run.stream(&pass)?,
            };
            if inverse {
                stream.uses(); // built here, because the driver's thread would build it otherwise
            }
            Ok(stream)
        });
        self.dealing = Some((index, task));
    }

    fn store(&mut self, tick: Tick, key: SampleKey, level: usize) {
        let Some((_, sample)) = self.ready.get(tick).cloned() else { return };
        if self.waits_for_disk(key)
            && self.has_place_for_disk(sample.len() as u64, self.block_reads.stores.limit())
        {
            // A copy, because the sample is charged to the look-ahead until its last handle goes.
            return self.store_of_unit(key, Bytes::copy_from_slice(&sample), drop);
        }
        let cache = Arc::clone(&self.caches[level]);
        let Some(room) = cache.reserve(cache.footprint().of(sample.len() as u64)) else {
            return count_skip(&*cache, key);
        };
        if sample.charged() > sample.len() as u64 {
            return self.copies.begin((level, cache), room, key, sample);
        }
        spawn_store(async move { store_sample(&*cache, room, key, sample).await });
    }

    fn hand(&mut self, pass: usize, index: u64, ticks: u64, counts: BatchCounts) {
        let samples = self.ready.take(ticks);
        let Some(of) = self.run.pass(pass) else { return };
        let (epoch, phase, dataset) = (of.epoch, of.kind, of.dataset);
        let catalog = self.datasets[dataset.0 as usize].catalog.clone();
        self.handover.push(Batch { pass, epoch, phase, dataset, catalog, index, samples, counts });
    }
}

/// Waits for the order that is being computed. Pending for ever while there is none.
async fn dealt(dealing: &mut Option<DealTask>) -> (usize, Result<AccessStream, LoadError>) {
    let Some((pass, task)) = dealing else { return std::future::pending().await };
    let (pass, done) = (*pass, task.await);
    *dealing = None;
    let stream = match done {
        Ok(stream) => stream.map_err(LoadError::order),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => {
                let text = format!("the sampler panicked: {}", panic_message(&*panic));
                Err(LoadError::order(OracleError::custom(text)))
            }
            Err(_) => Err(LoadError::stopped()),
        },
    };
    (pass, stream)
}
