//! The engine's decisions, without I/O, runtime or clock: events in, actions out.
//!
//! The core follows one rank's access stream with three marks. *Taken* batches are the trainer's,
//! *handed* ones are complete and wait for the trainer, and *issued* uses are being looked up or
//! read. It issues uses ahead of the trainer within the look-ahead, in bytes, across batches and
//! epochs. It hands out batches in order. All inputs are arguments, so a test can drive it through
//! any interleaving, ten thousand runs in seconds.
//!
//! # Budget
//!
//! Staging memory is charged when a read is issued. It is released by [`CoreEvent::Released`], when
//! a cache takes the sample over or the trainer drops it. A use is issued when
//!
//! 1. it fits the look-ahead, or
//! 2. it belongs to the batch that the trainer takes next, and only that batch and the last one are
//!    charged, or
//! 3. it belongs to the batch that the trainer waits for. Then it is issued whatever the trainer
//!    still holds, because a full buffer must never wait for a waiting trainer.
//!
//! So staging memory stays within max(look-ahead, two largest batches) for a trainer that holds one
//! batch at a time. A disk reads whole blocks, so a use is charged the bytes that its read
//! allocates, from its look-up on. The price: a look-ahead that is too small stalls the trainer
//! instead of failing. [`CoreEvent::LookAhead`] sets the part of the look-ahead that is in use.
//!
//! # Placement and retention
//!
//! A sample with a place is looked up there first. After a miss it is read from the origin and
//! stored, so the first use fills the cache. Disks are queried for every sample, because they may
//! hold samples of earlier runs. Nothing is evicted under [`Retention::Keep`]. Under
//! [`Retention::Threshold`] a sample stays in the fastest cache if its next use is at most
//! `horizon` ticks away. Of several issued uses the last one decides. The core keeps no table of
//! cached samples. It queries the cache, so a lost sample costs one read and nothing else.
//!
//! Ranks that share their caches have none of their own. Their samples lie in the stores of the
//! nodes, which the engine reads like an origin.

mod event;
mod upcoming;
mod window;

use std::collections::{BTreeSet, VecDeque};

use foreread_oracle::Run;
use foreread_planner::{LocalPlan, Retention};
use foreread_types::{Footprint, SampleKey, Sizes, Tick};

pub use self::event::{CoreAction, CoreEvent};
use self::upcoming::{NextUse, UpcomingUses};
use self::window::{UseState, UseWindow, nearest};
use crate::report::{BatchCounts, ReadSource};

/// The charge of a use in addition to its bytes, so that a stream of empty samples is bounded too.
pub(crate) const USE_OVERHEAD: u64 = 512;

/// New reads wait until this fraction of the look-ahead is free, so that they leave in batches.
pub(crate) const BATCHING_FRACTION: u64 = 16;

/// The handling of unreadable samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run ends with an error, after the batches before it.
    #[default]
    Fail,
    /// Its batch is delivered without it.
    Skip,
    /// The nearest sample of the same batch (the earlier of two) takes its place, so that batches
    /// keep their size. A batch without any readable sample ends the run.
    Substitute,
}

/// One of the caches, as the core sees it.
#[derive(Clone, Copy, Debug)]
pub struct CacheLevel {
    /// Its name in the report.
    pub source: ReadSource,
    /// The staging memory that a read from it takes.
    pub read: Footprint,
}

/// The configuration of the core.
#[derive(Clone, Debug)]
pub struct Config {
    /// How far reads may run ahead of the trainer at most, in bytes.
    pub look_ahead: u64,
    /// The handling of unreadable samples.
    pub on_error: OnError,
    /// The caches, from the fastest.
    pub levels: Vec<CacheLevel>,
    /// Whether all caches, not only disks, may hold samples of another plan.
    pub warm: bool,
}

/// One batch from its first issued use until it is taken.
#[derive(Debug)]
struct IssuedBatch {
    pass: usize,
    index: u64,
    first: Tick,
    ticks: u64,
    bytes: u64,
    /// The maximum charge of its uses at once.
    charged: u64,
    /// Unsettled uses, and uses settled without a sample.
    waiting: u64,
    bad: u64,
    /// Whether its last use has been issued.
    closed: bool,
    counts: BatchCounts,
}

/// The engine's state machine for one rank and one run.
#[derive(Debug)]
pub struct Core {
    config: Config,
    /// Whether every cache's reads allocate exactly the sample's length.
    reads_are_exact: bool,
    plan: LocalPlan,
    /// Under [`Retention::Threshold`]: the maximum distance of the next use of a sample that stays.
    horizon: Option<u64>,
    sizes: Vec<Sizes>,
    upcoming: UpcomingUses,
    window: UseWindow,
    /// Batches that were issued (the last perhaps partly) and not taken. The first `handed` were
    /// handed out.
    batches: VecDeque<IssuedBatch>,
    handed: usize,
    /// The look-ahead in use, in bytes.
    look_ahead: u64,
    /// Staging memory in use, in bytes.
    charged: u64,
    /// Bytes and overhead of uses issued and not taken.
    span: u64,
    /// The bytes that may still be charged for the batch that the trainer took last.
    last_taken: u64,
    /// Uses settled without a sample because the catalog could not locate it. The run ends at the
    /// first.
    unlocated: BTreeSet<Tick>,
    trainer_waits: bool,
    ended: bool,
}

impl Core {
    /// The core of `run` under `plan`, with the plan's `sizes` by dataset.
    pub fn new(config: Config, run: Run, plan: LocalPlan, sizes: Vec<Sizes>) -> Self {
        let first = run.pass(0).map_or(Tick(0), |pass| pass.first_tick);
        let horizon = match plan.retention() {
            Retention::Threshold { horizon } => Some(horizon),
            _ => None,
        };
        Self {
            look_ahead: config.look_ahead,
            reads_are_exact: config.levels.iter().all(|level| level.read == Footprint::EXACT),
            config,
            plan,
            horizon,
            sizes,
            upcoming: UpcomingUses::new(run),
            window: UseWindow::starting_at(first),
            batches: VecDeque::new(),
            handed: 0,
            charged: 0,
            span: 0,
            last_taken: 0,
            unlocated: BTreeSet::new(),
            trainer_waits: false,
            ended: false,
        }
    }

    /// Staging memory in use, in bytes.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// The last issued use of the batch that the trainer takes next, while that batch is
    /// incomplete.
    pub(crate) fn needed_until(&self) -> Option<Tick> {
        let batch = self.batches.front().filter(|_| self.handed == 0)?;
        Some(Tick(batch.first.0 + batch.ticks - 1))
    }

    /// Handles `event` and appends the resulting actions to `actions`.
    ///
    /// Unexpected events (late, repeated, about unknown uses) are ignored. Actions must be carried
    /// out in order. Their results may be passed after all of them.
    pub fn on(&mut self, event: CoreEvent, actions: &mut Vec<CoreAction>) {
        if self.ended && !matches!(event, CoreEvent::Released { .. }) {
            return;
        }
        match event {
            CoreEvent::Dealt { pass, stream } => self.upcoming.dealt(pass, stream),
            CoreEvent::DealFailed { pass } => self.upcoming.deal_failed(pass),
            CoreEvent::Found(tick) => self.found(tick, actions),
            CoreEvent::Stored(tick) => self.stored(tick, actions),
            CoreEvent::Absent(tick) => self.absent(tick, actions),
            CoreEvent::Arrived(tick) => self.arrived(tick, actions),
            CoreEvent::Failed(tick) => self.failed(tick, false, actions),
            CoreEvent::Invalid(tick) => self.failed(tick, true, actions),
            CoreEvent::Unlocated(tick) => {
                self.note_unlocated(tick);
                self.failed(tick, false, actions);
            }
            CoreEvent::Released { bytes } => self.charged = self.charged.saturating_sub(bytes),
            CoreEvent::LookAhead { bytes } => self.look_ahead = bytes.min(self.config.look_ahead),
            CoreEvent::Waiting => self.trainer_waits = true,
            CoreEvent::Taken => self.taken(),
            CoreEvent::Proceed => self.proceed(actions),
        }
    }

    // ---- results ----

    fn found(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get_mut(tick) else { return };
        if let UseState::LookingUp { level } = slot.state {
            self.recharge(tick, 0);
            self.cache_delivered(tick, level, actions);
        }
    }

    fn stored(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get_mut(tick) else { return };
        if let UseState::LookingUp { level } = slot.state {
            slot.state = UseState::Fetching { level };
            let (key, read_cost) = (slot.key, self.config.levels[level].read.of(slot.bytes));
            self.recharge(tick, read_cost);
            actions.push(CoreAction::Fetch { tick, key, level, read_cost });
        }
    }

    fn absent(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get(tick) else { return };
        if let UseState::LookingUp { level } = slot.state {
            self.look_up(tick, slot.key, Some(level), actions);
        }
    }

    fn arrived(&mut self, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get(tick) else { return };
        match slot.state {
            UseState::Reading => self.settle(tick, UseState::Ready(ReadSource::Origin), false, actions),
            UseState::Fetching { level } => self.cache_delivered(tick, level, actions),
            _ => {}
        }
    }

    fn failed(&mut self, tick: Tick, lost: bool, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get_mut(tick) else { return };
        match slot.state {
            // A failing cache costs a read, never the sample. The failed read releases its staging
            // memory, and this read is charged on its own.
            UseState::Fetching { level } => {
                if lost {
                    // Otherwise it would fail again at every use.
                    actions.push(CoreAction::Remove { key: slot.key, level });
                }
                (slot.state, slot.charged) = (UseState::Reading, slot.bytes);
                self.charged += slot.bytes;
                actions.push(CoreAction::Read { tick, key: slot.key });
            }
            UseState::Reading => self.settle(tick, UseState::Failed, false, actions),
            _ => {}
        }
    }

    /// Records that the catalog could not locate the sample of a read of the origin. Any other
    /// failed read is followed by a read of the origin, which may succeed.
    fn note_unlocated(&mut self, tick: Tick) {
        if self.window.get(tick).is_some_and(|slot| slot.state == UseState::Reading) {
            self.unlocated.insert(tick);
        }
    }

    /// The cache at `level` has delivered the sample. A sample with another place moves there.
    fn cache_delivered(&mut self, tick: Tick, level: usize, actions: &mut Vec<CoreAction>) {
        let Some(key) = self.window.get(tick).map(|slot| slot.key) else { return };
        let at_home = self.place(key).is_none_or(|place| place == level);
        self.settle(tick, UseState::Ready(self.config.levels[level].source), at_home, actions);
        if !at_home {
            actions.push(CoreAction::Remove { key, level });
        }
    }

    /// Looks for the sample in the next candidate cache, or reads it from the origin.
    fn look_up(&mut self, tick: Tick, key: SampleKey, after: Option<usize>, actions: &mut Vec<CoreAction>) {
        let (state, action) = match self.candidate(key, after) {
            Some(level) => (UseState::LookingUp { level }, CoreAction::Find { tick, key, level }),
            None => (UseState::Reading, CoreAction::Read { tick, key }),
        };
        let Some(slot) = self.window.get_mut(tick) else { return };
        slot.state = state;
        let (bytes, charged) = (slot.bytes, slot.charged);
        let read_cost = match state {
            UseState::LookingUp { .. } => self.read_cost(key, bytes, after),
            _ => bytes,
        };
        if read_cost != charged {
            self.recharge(tick, read_cost);
        }
        actions.push(action);
    }

    /// Changes the use's charge to `read_cost` bytes.
    fn recharge(&mut self, tick: Tick, read_cost: u64) {
        let Some(slot) = self.window.get_mut(tick) else { return };
        self.charged = (self.charged + read_cost).saturating_sub(slot.charged);
        slot.charged = read_cost;
    }

    /// The maximum cost of reading a sample, over the candidate caches after `after`.
    #[inline]
    fn read_cost(&self, key: SampleKey, bytes: u64, mut after: Option<usize>) -> u64 {
        // Without a cache that rounds up, all costs are equal, so a run in memory pays nothing
        // here.
        if self.reads_are_exact {
            return bytes;
        }
        let mut most = bytes;
        while let Some(level) = self.candidate(key, after) {
            most = most.max(self.config.levels[level].read.of(bytes));
            after = Some(level);
        }
        most
    }

    /// The next candidate cache for a sample: its place, then caches that an earlier plan may have
    /// filled. Those are the disks, or all caches in a `warm` process.
    fn candidate(&self, key: SampleKey, after: Option<usize>) -> Option<usize> {
        let place = self.place(key);
        let filled = |from: usize| {
            let levels = self.config.levels.iter().enumerate().skip(from);
            let remembers = |source| self.config.warm || source == ReadSource::Disk;
            let mut filled = levels.filter(|(level, of)| remembers(of.source) && place != Some(*level));
            filled.next().map(|(level, _)| level)
        };
        match after {
            None => place.or_else(|| filled(0)),
            Some(level) if place == Some(level) => filled(0),
            Some(level) => filled(level + 1),
        }
    }

    /// Settles `tick` and all uses that follow it. `kept`: whether a cache keeps the sample.
    fn settle(&mut self, tick: Tick, state: UseState, kept: bool, actions: &mut Vec<CoreAction>) {
        let (mut tick, mut state) = (tick, state);
        loop {
            let Some(slot) = self.window.get_mut(tick) else { return };
            (slot.state, slot.kept) = (state, kept);
            let (key, bytes, follower) = (slot.key, slot.bytes, slot.follower.take());
            let at = self.batches.partition_point(|batch| batch.first <= tick);
            if let Some(batch) = at.checked_sub(1).and_then(|at| self.batches.get_mut(at)) {
                batch.waiting -= 1;
                match state {
                    UseState::Ready(source) => batch.counts.reads.add(source, bytes),
                    _ => batch.bad += 1,
                }
            }
            let ready = matches!(state, UseState::Ready(_));
            let Some(next) = follower else {
                // The last issued use decides for all before it.
                if ready {
                    self.retain(tick, key, kept, actions);
                }
                return;
            };
            if ready {
                actions.push(CoreAction::Share { from: tick, to: next });
                state = UseState::Ready(ReadSource::Memory);
            }
            tick = next;
        }
    }

    /// Decides whether a sample stays in a cache. `kept`: whether one keeps it now.
    fn retain(&mut self, tick: Tick, key: SampleKey, kept: bool, actions: &mut Vec<CoreAction>) {
        let Some(level) = self.place(key) else { return };
        let stays = self.horizon.is_none_or(|horizon| self.upcoming.next_use(key, tick, horizon).is_some());
        match (stays, kept) {
            (true, true) => {}
            (true, false) => actions.push(CoreAction::Store { tick, key, level }),
            // Also if no cache keeps it, because a copy may be on its way.
            (false, _) => actions.push(CoreAction::Remove { key, level }),
        }
        if let Some(slot) = self.window.get_mut(tick) {
            slot.kept = stays;
        }
    }

    /// The cache for a sample, if any: its place, or the fastest cache under a threshold. A level
    /// without a cache counts as none.
    fn place(&self, key: SampleKey) -> Option<usize> {
        let level = match self.horizon {
            None => usize::from(self.plan.level(key)?.0),
            Some(_) => 0,
        };
        (level < self.config.levels.len()).then_some(level)
    }

    // ---- the trainer ----

    fn taken(&mut self) {
        if self.handed == 0 {
            return;
        }
        let Some(batch) = self.batches.pop_front() else { return };
        self.handed -= 1;
        self.trainer_waits = false;
        self.last_taken = batch.charged;
        self.span = self.span.saturating_sub(batch.bytes + batch.ticks * USE_OVERHEAD);
    }

    // ---- issuing ----

    fn proceed(&mut self, actions: &mut Vec<CoreAction>) {
        self.hand(actions);
        self.issue(actions);
        // Uses that were shared at once may have completed a batch.
        self.hand(actions);
        if self.ended {
            return;
        }
        if let Some(pass) = self.upcoming.next_to_deal(self.horizon.unwrap_or(0)) {
            actions.push(CoreAction::Deal { pass });
        }
        if self.handed == self.batches.len() && self.upcoming.is_exhausted() {
            self.ended = true;
            actions.push(CoreAction::End);
        }
    }

    /// Hands out complete batches in order.
    fn hand(&mut self, actions: &mut Vec<CoreAction>) {
        while let Some(batch) = self.batches.get(self.handed) {
            if self.ended || !batch.closed || batch.waiting > 0 {
                return;
            }
            let (first, ticks) = (batch.first, batch.ticks);
            if let Err(bad) = self.apply_policy(first, ticks, actions) {
                self.ended = true;
                if let Some(slot) = self.window.get(bad) {
                    actions.push(CoreAction::Fail { tick: bad, key: slot.key });
                }
                return;
            }
            for _ in 0..ticks {
                self.window.pop();
            }
            if let Some(batch) = self.batches.get(self.handed) {
                let IssuedBatch { pass, index, counts, .. } = *batch;
                actions.push(CoreAction::Hand { pass, index, first, ticks, counts });
            }
            self.handed += 1;
        }
    }

    /// Applies the error policy to the failed uses of a complete batch. Returns the use that ends
    /// the run as an error.
    fn apply_policy(&mut self, first: Tick, ticks: u64, actions: &mut Vec<CoreAction>) -> Result<(), Tick> {
        let Some(batch) = self.batches.get_mut(self.handed).filter(|batch| batch.bad > 0) else {
            return Ok(());
        };
        let is_bad = |tick: &Tick| self.window.get(*tick).is_some_and(|slot| slot.state == UseState::Failed);
        let (bad, good): (Vec<Tick>, Vec<Tick>) = (first.0..first.0 + ticks).map(Tick).partition(is_bad);
        let Some(&first_bad) = bad.first() else { return Ok(()) };
        if let Some(tick) = bad.iter().find(|tick| self.unlocated.contains(tick)) {
            return Err(*tick);
        }
        match self.config.on_error {
            OnError::Fail => return Err(first_bad),
            OnError::Skip => batch.counts.skipped += bad.len() as u64,
            OnError::Substitute => {
                for tick in bad {
                    let from = nearest(&good, tick).ok_or(first_bad)?;
                    let bytes = self.window.get(from).map_or(0, |slot| slot.bytes);
                    actions.push(CoreAction::Share { from, to: tick });
                    batch.counts.substituted += 1;
                    batch.counts.reads.add(ReadSource::Memory, bytes);
                }
            }
        }
        Ok(())
    }

    /// Issues uses while there is room.
    fn issue(&mut self, actions: &mut Vec<CoreAction>) {
        let free = self.look_ahead.saturating_sub(self.charged.max(self.span));
        let mut ahead = free >= self.look_ahead / BATCHING_FRACTION;
        while !self.ended && self.upcoming.covers(self.horizon.unwrap_or(0)) {
            let Some(next) = self.upcoming.peek() else { return };
            let bytes = self.sizes[next.key.dataset.0 as usize].bytes(next.key.id);
            let read_cost = self.read_cost(next.key, bytes, None);
            let fits = self.charged.saturating_add(read_cost) <= self.look_ahead
                && self.span.saturating_add(bytes) <= self.look_ahead;
            ahead &= fits;
            if !ahead && !self.must_issue(&next) {
                return;
            }
            self.upcoming.advance();
            self.issue_one(&next, bytes, read_cost, actions);
        }
    }

    /// Whether a use is issued although it exceeds the look-ahead (rules 2 and 3 of the module's
    /// head).
    fn must_issue(&self, next: &NextUse) -> bool {
        let admitted = match self.batches.front() {
            None => 0,
            Some(batch) if (batch.pass, batch.index) == (next.pass, next.batch) => batch.charged,
            Some(_) => return false,
        };
        self.trainer_waits || self.charged <= self.last_taken + admitted
    }

    fn issue_one(&mut self, next: &NextUse, bytes: u64, read_cost: u64, actions: &mut Vec<CoreAction>) {
        let (tick, key) = (self.window.end(), next.key);
        match self.batches.back_mut() {
            Some(batch) if (batch.pass, batch.index) == (next.pass, next.batch) => {
                batch.ticks += 1;
                batch.bytes += bytes;
                batch.charged += read_cost;
                batch.waiting += 1;
                batch.closed = next.closes;
            }
            _ => self.batches.push_back(IssuedBatch {
                pass: next.pass,
                index: next.batch,
                first: tick,
                ticks: 1,
                bytes,
                charged: read_cost,
                waiting: 1,
                bad: 0,
                closed: next.closes,
                counts: BatchCounts::default(),
            }),
        }
        self.span += bytes + USE_OVERHEAD;
        let earlier = self.window.push(key, bytes, UseState::Following);
        if let Some(earlier) = earlier {
            self.follow(earlier, tick, actions);
            return;
        }
        self.look_up(tick, key, None, actions);
    }

    /// Gives the use at `tick` the sample of an earlier use, now or later.
    fn follow(&mut self, earlier: Tick, tick: Tick, actions: &mut Vec<CoreAction>) {
        let Some(slot) = self.window.get_mut(earlier) else { return };
        let kept = slot.kept;
        match slot.state {
            UseState::Ready(_) => {
                actions.push(CoreAction::Share { from: earlier, to: tick });
                self.settle(tick, UseState::Ready(ReadSource::Memory), kept, actions);
            }
            UseState::Failed => self.settle(tick, UseState::Failed, false, actions),
            state => {
                debug_assert!(!state.is_settled());
                slot.follower = Some(tick);
            }
        }
    }
}
