//! Simulates everything around the core (origin, caches, trainer, dealing) in a random order, and
//! checks it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;

use foreread_loader::core::{CacheLevel, Config, Core, CoreAction, CoreEvent};
use foreread_loader::{BatchCounts, ReadSource};
use foreread_oracle::Run;
use foreread_planner::{LocalPlan, Retention};
use foreread_types::{Footprint, SampleKey, Tick, mix};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use crate::accounting::{ByteCharge, ByteCounts, FakeCache, HeldSample, LookupResult};
use crate::model::Model;
use crate::scenario::{Scenario, content};

mod checks;
mod invalid_events;

pub type Checked<T = ()> = Result<T, TestCaseError>;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunEnd {
    Complete,
    Failed,
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunOutcome {
    pub end: RunEnd,
    pub threshold: bool,
}

/// An action that the core waits for.
#[derive(Debug)]
enum PendingRequest {
    Deal { pass: usize },
    Find { tick: Tick, key: SampleKey, level: usize },
    Fetch { tick: Tick, key: SampleKey, level: usize, charge: ByteCharge },
    Read { tick: Tick, key: SampleKey, charge: ByteCharge },
}

impl PendingRequest {
    /// The use of the request, and whether it is a look-up.
    fn about(&self) -> Option<(Tick, bool)> {
        match self {
            Self::Deal { .. } => None,
            Self::Find { tick, .. } => Some((*tick, true)),
            Self::Fetch { tick, .. } | Self::Read { tick, .. } => Some((*tick, false)),
        }
    }
}

/// Actions of the trainer that were not reported to the core yet.
#[derive(Debug, Default)]
struct UnreportedEvents {
    taken: u64,
    requested: bool,
}

pub struct World<'a> {
    scenario: &'a Scenario,
    run: Run,
    pub plan: LocalPlan,
    model: Model,
    core: Core,
    accounting: Rc<ByteCounts>,
    stores: Vec<FakeCache>,
    requests: Vec<PendingRequest>,
    /// Bytes of open look-ups, which the core counts and no charge holds.
    finding: u64,
    dealt: usize,
    /// By use: the arrived sample and its source.
    held: BTreeMap<u64, (Rc<HeldSample>, ReadSource)>,
    queue: VecDeque<Vec<Rc<HeldSample>>>,
    trainer: VecDeque<Vec<Rc<HeldSample>>>,
    waiting: bool,
    unreported: UnreportedEvents,
    /// Whether the core knows that the trainer waits.
    requested: bool,
    handed: usize,
    end: Option<RunEnd>,
    /// By sample: reads from the origin, and copies made in a cache.
    pub read: HashMap<SampleKey, u64>,
    pub stored: HashMap<SampleKey, u64>,
    /// The number of removals from caches.
    pub removed: u64,
    /// Bytes of an earlier run in the caches.
    warm: u64,
    /// Samples that a cache found, and had lost when they were read.
    lost: HashSet<SampleKey>,
    /// The latest use of each sample that caused an action.
    latest: HashMap<SampleKey, u64>,
    state: u64,
}

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario) -> Self {
        let run = scenario.run();
        let plan = scenario.plan(&run);
        let accounting = Rc::new(ByteCounts::default());
        let levels = scenario.caches.iter().map(|cache| match cache.ready {
            true => CacheLevel { source: ReadSource::Memory, read: Footprint::EXACT },
            false => CacheLevel { source: ReadSource::Disk, read: cache.footprint },
        });
        let config = Config {
            look_ahead: scenario.look_ahead,
            on_error: scenario.on_error,
            levels: levels.collect(),
            warm: scenario.warm,
        };
        Self {
            model: Model::new(scenario, &run),
            core: Core::new(config, run.clone(), plan.clone(), scenario.sizes()),
            stores: (0..)
                .zip(&scenario.caches)
                .map(|(level, &cache)| FakeCache::new(level, cache, &accounting))
                .collect(),
            scenario,
            run,
            plan,
            accounting,
            requests: Vec::new(),
            finding: 0,
            dealt: 0,
            held: BTreeMap::new(),
            queue: VecDeque::new(),
            trainer: VecDeque::new(),
            waiting: false,
            unreported: UnreportedEvents::default(),
            requested: false,
            handed: 0,
            end: None,
            read: HashMap::new(),
            stored: HashMap::new(),
            removed: 0,
            warm: 0,
            lost: HashSet::new(),
            latest: HashMap::new(),
            state: scenario.seed,
        }
    }

    /// Fills caches with samples of an earlier run: the samples that have to be read, or all.
    fn warm_up(&mut self) {
        let keys: BTreeSet<SampleKey> = self.model.uses.iter().copied().collect();
        for level in
            (0..self.stores.len()).filter(|&level| self.scenario.warm || !self.scenario.caches[level].ready)
        {
            for &key in keys.iter().filter(|&&key| !self.scenario.is_bad(key)) {
                let (bytes, charge) = (self.scenario.bytes(key), ByteCharge::staging(&self.accounting, 0));
                if self.chance(self.scenario.faults.warm)
                    && self.stores[level].store(&HeldSample::read(key, charge), bytes, false, true)
                {
                    self.warm += bytes;
                }
            }
        }
    }

    /// Simulates the run to its end, or to the step at which it is dropped.
    pub fn play(&mut self) -> Checked<RunOutcome> {
        self.warm_up();
        let most = 10_000 + 200 * self.model.uses.len() as u32;
        let mut step = 0;
        while self.end.is_none() && self.scenario.stop != Some(step) {
            self.step()?;
            step += 1;
            prop_assert!(step < most, "no end after {step} steps");
        }
        let end = *self.end.get_or_insert(RunEnd::Stopped);
        if end == RunEnd::Complete {
            self.check_origin()?;
        }
        self.drop_everything()?;
        Ok(RunOutcome { end, threshold: self.plan.retention() != Retention::Keep })
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.state = mix(self.state);
        self.state % below.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.draw(100) < percent
    }

    fn step(&mut self) -> Checked {
        let faults = self.scenario.faults;
        if self.chance(faults.invalid_events) {
            self.invalid_event()?;
        }
        if self.chance(faults.lost) && !self.stores.is_empty() {
            let (level, which) = (self.draw(self.stores.len() as u64), self.draw(1 << 20));
            self.stores[level as usize].lose(which);
        }
        match self.draw(20) {
            0..10 if !self.requests.is_empty() => {
                let at = self.draw(self.requests.len() as u64) as usize;
                self.answer(at)
            }
            0..13 => self.proceed(),
            13..15 => self.report_trainer(),
            15..19 => {
                self.train();
                Ok(())
            }
            _ => {
                self.stores.iter_mut().for_each(FakeCache::publish);
                // Sometimes more than is allowed, which then counts as the limit.
                let bytes = self.draw(self.scenario.look_ahead.saturating_mul(2).saturating_add(1));
                self.pass(CoreEvent::LookAhead { bytes })
            }
        }
    }

    // ---- events ----

    fn pass(&mut self, event: CoreEvent) -> Checked {
        let mut actions = Vec::new();
        self.core.on(event, &mut actions);
        for action in actions {
            self.act(action)?;
        }
        self.check()
    }

    fn proceed(&mut self) -> Checked {
        let before = self.core.charged();
        self.pass(CoreEvent::Proceed)?;
        let (now, bound) = (self.core.charged(), self.scenario.look_ahead.max(self.model.largest(2)));
        prop_assert!(
            now <= before || self.requested || now <= bound,
            "{now} bytes of {bound} for a trainer that is busy"
        );
        let is_reported = !self.unreported.requested && self.unreported.taken == 0;
        let hangs = self.waiting
            && is_reported
            && self.queue.is_empty()
            && self.requests.is_empty()
            && self.end.is_none();
        prop_assert!(!hangs, "the trainer waits for the core and the core for nothing: {:?}", self.core);
        Ok(())
    }

    fn report_trainer(&mut self) -> Checked {
        let bytes = self.accounting.unreported.take();
        self.pass(CoreEvent::Released { bytes })?;
        let UnreportedEvents { taken, requested } = std::mem::take(&mut self.unreported);
        for _ in 0..taken {
            self.requested = false;
            self.pass(CoreEvent::Taken)?;
        }
        if requested {
            self.requested = true;
            self.pass(CoreEvent::Waiting)?;
        }
        Ok(())
    }

    fn answer(&mut self, at: usize) -> Checked {
        match self.requests.swap_remove(at) {
            PendingRequest::Deal { pass } if self.scenario.faults.undealt == Some(pass) => {
                self.pass(CoreEvent::DealFailed { pass })
            }
            PendingRequest::Deal { pass } => {
                let stream = self.run.stream(&self.run.pass(pass).unwrap()).unwrap();
                self.pass(CoreEvent::Dealt { pass, stream })
            }
            PendingRequest::Find { tick, key, level } => {
                self.finding -= self.look_up_cost(key, level);
                match self.stores[level].lookup(key) {
                    LookupResult::Ready(sample) => {
                        self.put(tick, sample, level)?;
                        self.pass(CoreEvent::Found(tick))
                    }
                    LookupResult::Stored => self.pass(CoreEvent::Stored(tick)),
                    LookupResult::Nothing => self.pass(CoreEvent::Absent(tick)),
                }
            }
            PendingRequest::Fetch { tick, key, level, charge } => {
                let hiccup = self.chance(self.scenario.faults.hiccup);
                if self.stores[level].is_readable(key) && !hiccup {
                    self.put(tick, HeldSample::read(key, charge), level)?;
                    return self.pass(CoreEvent::Arrived(tick));
                }
                drop(charge);
                if hiccup {
                    let event = CoreEvent::Failed(tick);
                    return self.pass(event);
                }
                self.lost.insert(key);
                self.pass(CoreEvent::Invalid(tick))
            }
            PendingRequest::Read { tick, charge, key } if self.scenario.is_bad(key) => {
                drop(charge);
                let event = CoreEvent::Failed(tick);
                self.pass(event)
            }
            PendingRequest::Read { tick, charge, key } => {
                self.hold(tick, HeldSample::read(key, charge), ReadSource::Origin)?;
                self.pass(CoreEvent::Arrived(tick))
            }
        }
    }

    fn put(&mut self, tick: Tick, sample: Rc<HeldSample>, level: usize) -> Checked {
        let source = if self.scenario.caches[level].ready { ReadSource::Memory } else { ReadSource::Disk };
        self.hold(tick, sample, source)
    }

    fn hold(&mut self, tick: Tick, sample: Rc<HeldSample>, source: ReadSource) -> Checked {
        let before = self.held.insert(tick.0, (sample, source));
        prop_assert!(before.is_none(), "{tick} got two samples");
        Ok(())
    }

    // ---- the trainer ----

    fn train(&mut self) {
        if self.chance(30) {
            self.trainer.pop_front();
        } else if let Some(batch) = self.queue.pop_front() {
            (self.waiting, self.unreported.requested) = (false, false);
            self.unreported.taken += 1;
            self.trainer.push_back(batch);
            while self.trainer.len() > self.scenario.hold {
                self.trainer.pop_front();
            }
        } else if !self.waiting && self.end.is_none() {
            (self.waiting, self.unreported.requested) = (true, true);
        }
    }

    // ---- actions ----

    /// The level that the plan assigns to a sample.
    fn place(&self, key: SampleKey) -> Option<usize> {
        match self.plan.retention() {
            Retention::Keep => self.plan.level(key).map(|level| usize::from(level.0)),
            _ => (!self.stores.is_empty()).then_some(0),
        }
    }

    /// Whether the plan keeps a sample after its use at `tick`.
    fn stays(&self, tick: u64) -> bool {
        match self.plan.retention() {
            Retention::Threshold { horizon } => {
                self.model.gaps[tick as usize].is_some_and(|gap| gap <= horizon)
            }
            _ => true,
        }
    }

    fn act(&mut self, action: CoreAction) -> Checked {
        prop_assert!(self.end.is_none(), "{action:?} after the end");
        let keeps = self.plan.retention() == Retention::Keep;
        let faults = self.scenario.faults;
        match action {
            CoreAction::Deal { pass } => {
                let open = self.requests.iter().any(|request| matches!(request, PendingRequest::Deal { .. }));
                prop_assert!(!open && pass == self.dealt && self.run.pass(pass).is_some(), "deal {pass}");
                self.dealt += 1;
                self.requests.push(PendingRequest::Deal { pass });
            }
            CoreAction::Find { tick, key, level } => {
                prop_assert_eq!(self.model.uses[tick.0 as usize], key);
                prop_assert!(self.may_have(key, level), "{key} is looked up at {level}");
                self.finding += self.look_up_cost(key, level);
                self.latest.insert(key, tick.0);
                self.requests.push(PendingRequest::Find { tick, key, level });
            }
            CoreAction::Fetch { tick, key, level, read_cost } => {
                prop_assert_eq!(read_cost, self.scenario.takes(key, level));
                prop_assert_eq!(self.model.uses[tick.0 as usize], key);
                prop_assert!(
                    self.stores[level].holds(key) || !faults.spare_the_caches(),
                    "{key} is not at {level}"
                );
                let charge = ByteCharge::staging(&self.accounting, read_cost);
                self.requests.push(PendingRequest::Fetch { tick, key, level, charge });
            }
            CoreAction::Read { tick, key } => {
                prop_assert_eq!(self.model.uses[tick.0 as usize], key);
                *self.read.entry(key).or_default() += 1;
                let charge = ByteCharge::staging(&self.accounting, self.scenario.bytes(key));
                self.requests.push(PendingRequest::Read { tick, key, charge });
            }
            CoreAction::Store { tick, key, level } => {
                prop_assert_eq!(self.place(key), Some(level));
                prop_assert!(self.stays(tick.0), "{key} is stored at {tick}, and its next use is far away");
                let sample = self.held.get(&tick.0).map(|(sample, _)| Rc::clone(sample));
                let Some(sample) = sample.filter(|sample| sample.key == key) else {
                    return Err(TestCaseError::fail(format!(
                        "{key} has not arrived at {tick} and cannot be stored"
                    )));
                };
                *self.stored.entry(key).or_default() += 1;
                let broken = self.chance(faults.broken);
                if self.chance(faults.refused) {
                    return Ok(());
                }
                let twice = self.stores[level].holds(key);
                let fits =
                    self.stores[level].store(&sample, self.scenario.bytes(key), broken, !faults.slow_writes);
                prop_assert!(!(faults.spare_the_caches() && twice), "{key} is stored twice");
                prop_assert!(!(keeps && faults.spare_the_caches()) || fits, "{key} has a place and no room");
            }
            CoreAction::Remove { key, level } => {
                prop_assert!(self.may_have(key, level), "{key} is removed from {level}");
                prop_assert!(
                    self.place(key) != Some(level)
                        || self.lost.contains(&key)
                        || !self.stays(self.latest[&key]),
                    "{key} is removed, and its next use is near"
                );
                self.removed += 1;
                self.stores[level].remove(key);
            }
            CoreAction::Share { from, to } => {
                let Some((sample, _)) = self.held.get(&from.0) else {
                    return Err(TestCaseError::fail(format!("nothing at {from} to share with {to}")));
                };
                let sample = Rc::clone(sample);
                self.latest.insert(sample.key, to.0);
                self.hold(to, sample, ReadSource::Memory)?;
            }
            CoreAction::Hand { pass, index, first, ticks, counts } => {
                self.hand((pass, index, first.0, ticks), counts)?
            }
            CoreAction::Fail { tick, key } => {
                prop_assert_eq!(Some((tick.0, key)), self.model.fail);
                prop_assert_eq!(self.handed, self.model.batches.len(), "batches before the failure");
                self.end = Some(RunEnd::Failed);
            }
            CoreAction::End => {
                prop_assert_eq!(None, self.model.fail, "the end instead of a failure");
                prop_assert_eq!(self.handed, self.model.batches.len(), "batches at the end");
                self.end = Some(RunEnd::Complete);
            }
        }
        Ok(())
    }

    /// The charge of a sample that is looked up at a level: the maximum over this level and the
    /// following ones.
    fn look_up_cost(&self, key: SampleKey, level: usize) -> u64 {
        let place = self.place(key);
        let others = (0..self.stores.len()).filter(|&other| Some(other) != place);
        let order = place.into_iter().chain(others.filter(|&other| self.may_have(key, other)));
        let left = order.skip_while(|&other| other != level);
        left.map(|level| self.scenario.takes(key, level)).max().unwrap_or(0)
    }

    /// Whether a sample may be in a cache: in its own, or in one with samples of earlier runs.
    fn may_have(&self, key: SampleKey, level: usize) -> bool {
        self.place(key) == Some(level) || self.scenario.warm || !self.scenario.caches[level].ready
    }

    fn hand(&mut self, (pass, index, first, ticks): (usize, u64, u64, u64), counts: BatchCounts) -> Checked {
        let Some(expected) = self.model.batches.get(self.handed) else {
            return Err(TestCaseError::fail(format!("batch {index} of pass {pass} is one too many")));
        };
        self.handed += 1;
        let wanted = (expected.pass, expected.index, expected.first, expected.keys.len() as u64);
        prop_assert_eq!((pass, index, first, ticks), wanted);
        prop_assert_eq!((counts.skipped, counts.substituted), (expected.skipped, expected.substituted));
        let (mut batch, mut reads) = (Vec::new(), HashMap::<ReadSource, (u64, u64)>::new());
        for (tick, &key) in (first..).zip(&expected.delivered) {
            let found = self.held.remove(&tick);
            prop_assert_eq!(found.as_ref().map(|(sample, _)| sample.key), key, "at {}", tick);
            if let Some((sample, source)) = found {
                prop_assert_eq!(sample.content, content(sample.key));
                let read = reads.entry(source).or_default();
                *read = (read.0 + 1, read.1 + self.scenario.bytes(sample.key));
                batch.push(sample);
            }
        }
        for source in ReadSource::ALL {
            let count = counts.reads.from(source);
            let counted = reads.get(&source).copied().unwrap_or_default();
            prop_assert_eq!((count.samples, count.bytes), counted, "from {}", source.as_str());
        }
        self.queue.push_back(batch);
        Ok(())
    }
}
