//! All accesses of one rank.
//!
//! A run concatenates the passes of a schedule and counts this rank's samples through all of them
//! in ticks. Every count is arithmetic, because a sampler's epochs all have the same length. An
//! order is only computed when a pass is read or queried. So a resume costs one order at any
//! position, and a run of a million epochs costs nothing to describe.
//!
//! The two most recently used passes stay cached. For table orders this takes 4 bytes per sample,
//! or 8 with the inverse. This serves a reader that looks across an epoch boundary. Queries further
//! back or ahead compute orders again.

use std::sync::{Arc, Mutex, PoisonError};

use foreread_types::{DatasetId, Fingerprint, Rank, SampleKey, Tick};

use crate::error::{OracleError, OracleReason};
use crate::stream::check_rank;
use crate::{AccessStream, Deal, Dealing, Phase, PhaseKind, Position, Schedule};

/// The number of cached passes.
const CACHED: usize = 2;

/// One pass of one rank over a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The index in this run, counted from 0 at the run's start position.
    pub index: usize,
    /// The epoch, counted from 0 at the beginning of the schedule.
    pub epoch: u64,
    /// The phase of the schedule.
    pub phase: u32,
    /// The purpose of the phase.
    pub kind: PhaseKind,
    /// The dataset.
    pub dataset: DatasetId,
    /// The tick of the first sample.
    pub first_tick: Tick,
    /// The number of samples of this rank, with padding and without dropped samples.
    pub samples: u64,
    /// The number of batches of this rank, including a short last one.
    pub batches: u64,
    /// Samples in each batch except a short last one, at least 1. Without a batch size, the whole
    /// share.
    pub batch_size: u64,
}

/// The passes of one rank from a position to the end of a schedule.
///
/// Ticks count this rank's samples from 0 at the run's own start. After a resume they start from 0
/// again. Only the [`Position`] survives a restart.
#[derive(Clone, Debug)]
pub struct Run {
    schedule: Arc<Schedule>,
    fingerprint: Fingerprint,
    deal: Deal,
    world_size: u32,
    /// By phase.
    dealings: Arc<[Dealing]>,
    rank: Rank,
    /// The first pass, counted over all epochs, and the positions consumed of it.
    first: u64,
    consumed: u64,
    /// This rank's samples in the first pass.
    head: u64,
    /// This rank's samples in an epoch before each phase, and at the end the whole epoch.
    before: Arc<[u64]>,
    passes: usize,
    total: u64,
    cache: Arc<Mutex<Vec<(usize, AccessStream)>>>,
    /// The number of cached passes.
    cached: usize,
}

impl Run {
    /// The run of `rank` from the beginning.
    ///
    /// # Errors
    /// A world size of 0, or a rank that is not below it. A schedule that [`Schedule::new`] would
    /// reject, or more samples in total than 64 bits count.
    pub fn new(
        schedule: Arc<Schedule>,
        deal: Deal,
        world_size: u32,
        rank: Rank,
    ) -> Result<Self, OracleError> {
        let fingerprint = schedule.fingerprint();
        Self::build(schedule, fingerprint, deal, world_size, rank, 0, 0)
    }

    /// The run of `rank` from a saved position. The position may come from another world size, deal
    /// or batch size. The rest of the started pass is dealt as a whole pass is.
    ///
    /// A position at or after the schedule's end gives a run without passes.
    ///
    /// # Errors
    /// A position of another schedule, one outside its pass, and the errors of [`new`](Self::new).
    pub fn resume(
        schedule: Arc<Schedule>,
        deal: Deal,
        world_size: u32,
        rank: Rank,
        position: &Position,
    ) -> Result<Self, OracleError> {
        schedule.check()?;
        let expected = schedule.fingerprint();
        if position.schedule != expected {
            return Err(OracleReason::Schedule { found: position.schedule, expected }.into());
        }
        let phases = schedule.phases.len();
        let Some(phase) = schedule.phases.get(position.phase as usize) else {
            return Err(OracleReason::PhaseIndex { phase: position.phase, phases }.into());
        };
        let (consumed, len) = (position.consumed, phase.sampler.len());
        if consumed > len {
            return Err(OracleReason::Consumed { consumed, len }.into());
        }
        let first = position
            .epoch
            .checked_mul(phases as u64)
            .and_then(|first| first.checked_add(position.phase.into()));
        let first = first.ok_or(OracleReason::RunLength)?;
        // A completely consumed pass is over. An empty one is still to come.
        if consumed == len && len > 0 {
            let first = first.checked_add(1).ok_or(OracleReason::RunLength)?;
            return Self::build(schedule, expected, deal, world_size, rank, first, 0);
        }
        Self::build(schedule, expected, deal, world_size, rank, first, consumed)
    }

    fn build(
        schedule: Arc<Schedule>,
        fingerprint: Fingerprint,
        deal: Deal,
        world_size: u32,
        rank: Rank,
        first: u64,
        consumed: u64,
    ) -> Result<Self, OracleError> {
        schedule.check()?;
        let phases = schedule.phases.len() as u64;
        let mut before = vec![0u64];
        let mut epoch = 0u64;
        let mut dealings = Vec::new();
        for phase in &schedule.phases {
            let dealing = Dealing::new(deal, world_size, phase.batch_size, phase.drop_last)?;
            dealings.push(dealing);
            let share = dealing.share(phase.sampler.len(), 0);
            epoch = epoch.checked_add(share).ok_or(OracleReason::RunLength)?;
            before.push(epoch);
        }
        check_rank(rank, world_size)?;
        let end = schedule.epochs.checked_mul(phases).ok_or(OracleReason::RunLength)?;
        let passes = usize::try_from(end.saturating_sub(first)).map_err(|_| OracleReason::RunLength)?;
        // The whole schedule must be countable. Then so is every part of it, and the head, which is
        // shorter than its pass.
        schedule.epochs.checked_mul(epoch).ok_or(OracleReason::RunLength)?;
        let mut run = Self {
            schedule,
            fingerprint,
            deal,
            world_size,
            dealings: dealings.into(),
            rank,
            first,
            consumed,
            head: 0,
            before: before.into(),
            passes,
            total: 0,
            cache: Arc::default(),
            cached: CACHED,
        };
        if passes > 0 {
            run.head = run.pass_at(0).samples;
            run.total = run.first_tick(passes);
        }
        Ok(run)
    }

    /// The schedule that the run follows.
    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    /// The schedule's fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// How positions map to ranks.
    pub fn deal(&self) -> Deal {
        self.deal
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The rank that reads.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The position at which the run starts.
    pub fn start(&self) -> Position {
        self.position_at(self.first, self.consumed)
    }

    /// The same run with a cache of passes of its own, for a reader that looks at other passes: as
    /// many as an epoch has, and one more.
    #[must_use]
    pub fn separate(&self) -> Self {
        let cached = CACHED.max(self.schedule.phases.len() + 1);
        Self { cache: Arc::default(), cached, ..self.clone() }
    }

    /// The `index`-th pass of this run, or `None` after the last.
    pub fn pass(&self, index: usize) -> Option<Pass> {
        (index < self.passes).then(|| self.pass_at(index))
    }

    fn pass_at(&self, index: usize) -> Pass {
        let number = self.number(index);
        let phases = self.schedule.phases.len() as u64;
        let phase = self.phase(index);
        let (len, consumed) = (phase.sampler.len(), self.consumed_before(index));
        let dealing = self.dealings[(number % phases) as usize];
        let samples = dealing.share(len, consumed);
        Pass {
            index,
            epoch: number / phases,
            phase: (number % phases) as u32,
            kind: phase.kind,
            dataset: phase.dataset,
            first_tick: Tick(self.first_tick(index)),
            samples,
            batches: dealing.batches(len, consumed),
            batch_size: phase.batch_size.unwrap_or(samples).max(1),
        }
    }

    /// All passes in order. Computes no order.
    pub fn passes(&self) -> Passes<'_> {
        Passes { run: self, indices: 0..self.passes }
    }

    /// How a pass is dealt to the ranks.
    pub fn dealing(&self, pass: &Pass) -> Dealing {
        self.dealings[pass.phase as usize]
    }

    /// The pass of a tick, or `None` after the run's end.
    pub fn pass_of(&self, tick: Tick) -> Option<Pass> {
        if tick.0 >= self.total {
            return None;
        }
        if tick.0 < self.head {
            return self.pass(0);
        }
        // Ticks since the beginning of the first pass's epoch, as if it had been read from its
        // beginning.
        let phases = self.schedule.phases.len() as u64;
        let first_phase = (self.first % phases) as usize;
        let since = tick.0 - self.head + self.before[first_phase + 1];
        let epoch = self.before[phases as usize];
        let phase = self.before.partition_point(|&before| before <= since % epoch) as u64 - 1;
        self.pass((since / epoch * phases + phase - first_phase as u64) as usize)
    }

    /// The number of samples that this rank reads in the whole run: the number of ticks.
    pub fn samples(&self) -> u64 {
        self.total
    }

    /// The samples that this rank reads in a pass of this run. Computes the order of the pass
    /// unless it is cached.
    ///
    /// # Errors
    /// The errors of the sampler's [`order`](crate::Sampler::order), or a sampler that breaks its
    /// contract.
    pub fn stream(&self, pass: &Pass) -> Result<AccessStream, OracleError> {
        if let Some(stream) = self.cached(pass.index) {
            return Ok(stream);
        }
        let phase = self.phase(pass.index);
        let order = phase.order(pass.epoch)?;
        let (found, expected) = (order.len(), phase.sampler.len());
        if found != expected {
            return Err(
                OracleReason::OrderLength { phase: pass.phase, epoch: pass.epoch, found, expected }.into()
            );
        }
        let stream =
            AccessStream::new(order, self.dealing(pass), self.rank, self.consumed_before(pass.index))?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.truncate(self.cached - 1);
        cache.insert(0, (pass.index, stream.clone()));
        Ok(stream)
    }

    /// The position after every rank has delivered `batches` batches of a pass. After the last
    /// batch it is the beginning of the next pass.
    pub fn position_after(&self, pass: &Pass, batches: u64) -> Position {
        let number = self.number(pass.index);
        if batches >= pass.batches {
            return self.position_at(number + 1, 0);
        }
        // There are fewer batches than the pass has. So a batch size is set or none was delivered,
        // and this is below the order's length.
        let delivered = batches * pass.batch_size * u64::from(self.world_size);
        self.position_at(number, self.consumed_before(pass.index) + delivered)
    }

    /// The first tick after `after` at which this rank reads `key`. `None` if there is none.
    ///
    /// Searches the passes over the key's dataset from that of `after` on. It computes their orders
    /// and inverses until one of them reads the sample: none on average with one rank, W of them
    /// with W ranks. A pass whose order cannot be computed counts as one without the sample.
    /// [`stream`](Self::stream) returns the error.
    pub fn next_use(&self, key: SampleKey, after: Tick) -> Option<Tick> {
        self.next_use_within(key, Tick(after.0.checked_add(1)?), Tick(u64::MAX))
    }

    /// The first tick from `from` to `last`, both included, at which this rank reads `key`.
    /// Otherwise as [`next_use`](Self::next_use). Passes that begin after `last` are not computed.
    pub fn next_use_within(&self, key: SampleKey, from: Tick, last: Tick) -> Option<Tick> {
        let start = self.pass_of(from)?.index;
        let passes = (start..self.passes).map(|index| self.pass_at(index));
        let within = passes.take_while(|pass| pass.first_tick <= last);
        let mut used =
            within.filter(|pass| pass.dataset == key.dataset && pass.samples > 0).filter_map(|pass| {
                let stream = self.stream(&pass).ok()?;
                let index = stream.next_use(key.id, from.0.saturating_sub(pass.first_tick.0))?;
                Some(Tick(pass.first_tick.0 + index))
            });
        used.next().filter(|used| *used <= last)
    }

    /// Whether this rank reads every sample of each dataset exactly once per epoch, except dropped
    /// ones. This needs one rank, one phase per dataset, and samplers that read all samples without
    /// repeats.
    ///
    /// Then a cached sample must survive an epoch boundary to be of use. No policy beats a
    /// placement that never evicts. After a resume, the rest of the started epoch reads each sample
    /// at most once.
    pub fn is_once_per_epoch(&self) -> bool {
        let phases = &self.schedule.phases;
        self.world_size == 1
            && phases.iter().enumerate().all(|(index, phase)| {
                phase.sampler.is_distinct()
                    && phase.sampler.len() == phase.sampler.population()
                    && phases[..index].iter().all(|other| other.dataset != phase.dataset)
            })
    }

    fn cached(&self, index: usize) -> Option<AccessStream> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cache.iter().position(|&(cached, _)| cached == index)?;
        cache[..=at].rotate_right(1);
        Some(cache[0].1.clone())
    }

    /// The number of a pass, counted over all epochs.
    fn number(&self, index: usize) -> u64 {
        self.first + index as u64
    }

    fn phase(&self, index: usize) -> &Phase {
        let phases = &self.schedule.phases;
        &phases[(self.number(index) % phases.len() as u64) as usize]
    }

    fn consumed_before(&self, index: usize) -> u64 {
        if index == 0 { self.consumed } else { 0 }
    }

    /// The tick at which a pass starts. For index `passes`, the end.
    fn first_tick(&self, index: usize) -> u64 {
        if index == 0 {
            return 0;
        }
        let phases = self.schedule.phases.len() as u64;
        let ticks = |number: u64| {
            number / phases * self.before[phases as usize] + self.before[(number % phases) as usize]
        };
        self.head + (ticks(self.number(index)) - ticks(self.first + 1))
    }

    fn position_at(&self, number: u64, consumed: u64) -> Position {
        let phases = self.schedule.phases.len() as u64;
        Position {
            schedule: self.fingerprint,
            epoch: number / phases,
            phase: (number % phases) as u32,
            consumed,
        }
    }
}

/// The passes of a run, in order. Made by [`Run::passes`].
#[derive(Clone, Debug)]
pub struct Passes<'a> {
    run: &'a Run,
    indices: std::ops::Range<usize>,
}

impl Iterator for Passes<'_> {
    type Item = Pass;

    fn next(&mut self) -> Option<Pass> {
        self.indices.next().map(|index| self.run.pass_at(index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.indices.size_hint()
    }
}

impl ExactSizeIterator for Passes<'_> {}
