//! The engine of a source, its announced order, and the samples that have arrived.

use bytes::Bytes;
use foreread_loader::RunReport;
use foreread_oracle::Run;
use foreread_planner::LocalPlan;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use super::ready_buffer::ReadyBuffer;
use crate::assembly::Assembly;
use crate::report::ReadsReport;

/// The only dataset of a source.
pub(super) const DATASET: DatasetId = DatasetId(0);

#[derive(Debug)]
pub(super) struct SourceState {
    pub(super) assembly: Assembly,
    pub(super) ready: ReadyBuffer,
    pub(super) run: Option<Run>,
    pub(super) plan: Option<LocalPlan>,
    pub(super) engine: EngineSlot,
    /// The first use that the engine has not delivered yet.
    pub(super) next: Tick,
    /// Announcements so far. The next one makes the engine's deliveries useless.
    pub(super) announced: u64,
    /// The last announcement that had a sample, by id. 0 for none.
    pub(super) used: Vec<u64>,
    /// The reports of earlier engines.
    pub(super) earlier: RunReport,
    pub(super) direct: ReadsReport,
}

#[derive(Debug)]
pub(super) enum EngineSlot {
    /// No order is announced, or all of it was delivered.
    None,
    Idle(Box<foreread_loader::Loader>),
    /// A caller waits for the engine's next batch, and will put it back.
    Lent,
}

/// The availability of a sample.
pub(super) enum Availability {
    Ready(Bytes),
    /// The engine delivers it soon.
    Soon,
    /// It needs a direct read.
    Unannounced,
}

impl SourceState {
    /// Replaces the announced order.
    pub(super) fn start(&mut self, next: Option<(Run, LocalPlan, &tokio::runtime::Handle)>) {
        self.announced += 1;
        self.next = Tick(0);
        self.ready.clear();
        if let EngineSlot::Idle(engine) = std::mem::replace(&mut self.engine, EngineSlot::None) {
            self.earlier = std::mem::take(&mut self.earlier).followed_by(engine.report());
        }
        (self.run, self.plan) = (None, None);
        if let Some((run, plan, runtime)) = next {
            let engine = self.assembly.start(run.clone(), plan.clone(), runtime);
            self.engine = EngineSlot::Idle(Box::new(engine));
            (self.run, self.plan) = (Some(run), Some(plan));
        }
    }

    /// The position at which a sample is used in the present epoch, as announced. A sample without
    /// one is used now.
    pub(super) fn due(&self, key: SampleKey) -> Tick {
        let announced = self.run.as_ref().and_then(|run| {
            let pass = run.pass_of(self.next)?;
            run.next_use_within(key, self.next, Tick((pass.first_tick.0 + pass.samples).saturating_sub(1)))
        });
        announced.unwrap_or(self.next)
    }

    /// The current availability of a sample.
    pub(super) fn availability(&mut self, id: u64, mean: u64) -> Availability {
        if let Some(bytes) = self.ready.take(id) {
            return Availability::Ready(bytes);
        }
        let Some(run) = self.run.as_ref().filter(|_| !matches!(self.engine, EngineSlot::None)) else {
            return Availability::Unannounced;
        };
        // A sample is too far away if the ready buffer cannot hold all samples before it. Orders of
        // later passes are not computed: that would take seconds, under the lock that all callers
        // need.
        let last = Tick(self.next.0.saturating_add(self.ready.limit() / mean));
        match run.next_use_within(SampleKey::new(DATASET, SampleId(id)), self.next, last) {
            Some(_) => Availability::Soon,
            None => Availability::Unannounced,
        }
    }
}
