//! The demand of the rest of a run: the uses of each sample and the bytes of each epoch.
//!
//! Placement needs the uses, the lower bound needs the epochs, and one walk over the run's passes
//! gives both.
//!
//! # The decision, and its price
//!
//! A pass that reads every sample of a dataset once is arithmetic: no order is computed, whatever
//! its length. So the usual run (one rank, shuffled epochs) costs some nanoseconds per epoch, for
//! any number of samples. A pass that leaves out only dropped samples is counted by these, but its
//! order is computed. All other passes are read sample by sample, exactly, with 8 bytes per sample.
//!
//! Counting stops after [`Demand::BUDGET`] positions of computed orders. Later passes are
//! estimated. A pass needs as much as the dataset's last counted epoch, or its share of the
//! dataset's bytes if none was counted. Then [`is_exact`](Demand::is_exact) is false.
//!
//! Passes over millions of samples of one size in an order without a table (`feistel`) are
//! estimated, too. Their bytes are known without counting, and the run has no other table.

use foreread_oracle::{Pass, Phase, Run};
use foreread_types::{DatasetId, SampleId, Sizes};

use crate::error::{PlanError, PlanReason};
use crate::wide::narrow;

/// Passes over larger datasets are estimated. Counting takes 8 bytes per sample, here 2 GiB.
const MAX_COUNTED_SAMPLES: u64 = 1 << 28;

/// As [`MAX_COUNTED_SAMPLES`], for samples of one size in orders that are computed. Counting takes
/// 32 MiB here, and some tenths of a second per epoch.
const MAX_COUNTED_COMPUTED: u64 = 1 << 22;

/// The ranks whose reads are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The run's own rank, as if it had no peers.
    Rank,
    /// All ranks together: every sample of the global order that is not dropped, padding included.
    Cluster,
}

/// The demand of an epoch, as the lower bound needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EpochDemand {
    /// Bytes of the distinct samples that it uses, over all its phases.
    pub distinct: u64,
    /// Of these, the bytes of samples that an earlier epoch of the run has used.
    pub seen: u64,
}

/// The uses of each sample of a dataset in the rest of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UseCounts {
    /// The same number for all samples.
    Same(u64),
    /// Sample `i` is used `every + extra[i]` times, or not at all if that is negative.
    Each {
        /// Passes that read the whole dataset, or all of it except dropped samples.
        every: u64,
        /// By sample: uses in other passes, minus the number of times it was dropped.
        extra: Vec<i32>,
    },
}

impl UseCounts {
    /// The uses of one sample.
    ///
    /// # Panics
    /// If the uses differ by sample and there is no such sample.
    pub fn of(&self, id: SampleId) -> u64 {
        match self {
            Self::Same(uses) => *uses,
            Self::Each { every, extra } => every.saturating_add_signed(extra[id.0 as usize].into()),
        }
    }
}

/// The counted demand of the rest of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub(crate) datasets: Vec<DatasetDemand>,
    epochs: Vec<EpochDemand>,
    exact: bool,
}

/// The demand of the rest of a run for one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatasetDemand {
    pub(crate) uses: UseCounts,
    /// Uses of all samples.
    pub(crate) reads: u128,
    /// Bytes of all uses.
    pub(crate) bytes: u128,
    /// Bytes of the distinct samples among them.
    pub(crate) distinct: u64,
}

impl Demand {
    /// The number of positions of computed orders that are read before the rest of the run is
    /// estimated. It suffices for 90 epochs of 1.28 million samples. These take 1 s to count for
    /// shuffled orders and 10 s for drawn ones.
    pub const BUDGET: u64 = 1 << 27;

    /// Counts the rest of `run`. `sizes` are indexed by [`DatasetId`].
    ///
    /// # Errors
    /// Sizes that are missing or of another dataset, tables that do not fit in memory, and the
    /// errors of the oracle.
    pub fn of(run: &Run, sizes: &[Sizes], scope: Scope) -> Result<Self, PlanError> {
        Self::within(run, sizes, scope, Self::BUDGET)
    }

    pub(crate) fn within(run: &Run, sizes: &[Sizes], scope: Scope, budget: u64) -> Result<Self, PlanError> {
        check(run, sizes)?;
        let phases = &run.schedule().phases;
        let mut counters: Vec<DatasetCounter<'_>> = sizes
            .iter()
            .enumerate()
            .map(|(dataset, sizes)| {
                let dataset = DatasetId(dataset as u32);
                let single_phase = phases.iter().filter(|phase| phase.dataset == dataset).count() == 1;
                DatasetCounter::new(dataset, sizes, single_phase)
            })
            .collect();
        let mut epochs = Vec::new();
        let (mut budget, mut exact) = (Some(budget), true);
        let mut passes = run.passes().peekable();
        while let Some(pass) = passes.next() {
            let phase = &phases[pass.phase as usize];
            let counter = &mut counters[pass.dataset.0 as usize];
            let part = PassReads::of(run, &pass, phase, scope);
            if part.is_whole(phase) {
                counter.count_whole();
            } else if is_estimated(phase, counter.sizes) {
                exact = false;
                counter.estimate(&part);
            } else if let Some(left) = budget.and_then(|left| left.checked_sub(part.cost(phase))) {
                budget = Some(left);
                counter.count(run, &pass, phase, &part)?;
            } else {
                budget = None;
                counter.estimate(&part);
            }
            if passes.peek().is_none_or(|next| next.epoch != pass.epoch) {
                let mut epoch = EpochDemand::default();
                for counter in &mut counters {
                    let of_dataset = counter.end_of_epoch();
                    epoch.distinct = epoch.distinct.saturating_add(of_dataset.distinct);
                    epoch.seen = epoch.seen.saturating_add(of_dataset.seen);
                }
                epochs.push(epoch);
            }
        }
        let datasets = counters.into_iter().map(DatasetCounter::finish).collect();
        Ok(Self { datasets, epochs, exact: exact && budget.is_some() })
    }

    /// The demand of each epoch, from the first (which may have been started) to the last.
    pub fn epochs(&self) -> &[EpochDemand] {
        &self.epochs
    }

    /// The uses of the samples of a dataset. `None` for a dataset without sizes.
    pub fn uses(&self, dataset: DatasetId) -> Option<&UseCounts> {
        self.datasets.get(dataset.0 as usize).map(|dataset| &dataset.uses)
    }

    /// Whether every pass was counted and none was estimated.
    pub fn is_exact(&self) -> bool {
        self.exact
    }
}

/// Whether a pass that is not whole is estimated without counting. Its order is drawn anew in each
/// epoch, so that no sample has more uses than another, but for chance.
fn is_estimated(phase: &Phase, sizes: &Sizes) -> bool {
    let sampler = &phase.sampler;
    let is_drawn = sampler.is_computed() && sampler.is_distinct() && !sampler.repeats();
    is_drawn && sizes.is_uniform() && sampler.population() > MAX_COUNTED_COMPUTED
}

/// Rejects sizes that are not those of the run's datasets.
pub(crate) fn check(run: &Run, sizes: &[Sizes]) -> Result<(), PlanReason> {
    for phase in &run.schedule().phases {
        let dataset = phase.dataset;
        let Some(sizes_of) = sizes.get(dataset.0 as usize) else {
            return Err(PlanReason::NoSizes { dataset, found: sizes.len() });
        };
        let (found, expected) = (sizes_of.len(), phase.sampler.population());
        if found != expected {
            return Err(PlanReason::Population { dataset, found, expected });
        }
    }
    Ok(())
}

/// The part of a pass's order that is read.
struct PassReads {
    /// Positions of the whole order.
    len: u64,
    /// Whether one of several ranks reads the pass alone.
    strided: bool,
    /// Without strides: the positions `from..to`, and from 0 to `padding`.
    from: u64,
    to: u64,
    padding: u64,
    reads: u64,
}

impl PassReads {
    fn of(run: &Run, pass: &Pass, phase: &Phase, scope: Scope) -> Self {
        let len = phase.sampler.len();
        let from = if pass.index == 0 { run.start().consumed } else { 0 };
        let strided = scope == Scope::Rank && run.world_size() > 1;
        let reads = if strided { pass.samples } else { pass.samples.saturating_mul(run.world_size().into()) };
        let own = reads.min(len - from);
        Self { len, strided, from, to: from + own, padding: (reads - own).min(len), reads }
    }

    /// The cost of counting, in positions. Of a computed order only the rank's own places are
    /// computed. A dataset whose tables would be too large takes the whole budget.
    fn cost(&self, phase: &Phase) -> u64 {
        if phase.sampler.population() > MAX_COUNTED_SAMPLES {
            u64::MAX
        } else if self.strided && phase.sampler.is_computed() {
            self.reads
        } else {
            self.len
        }
    }

    /// Whether every sample is read, once except for padding.
    fn is_whole(&self, phase: &Phase) -> bool {
        self.is_nearly_whole(phase) && self.to == self.len
    }

    /// Whether every sample is read once, except for a dropped tail.
    fn is_nearly_whole(&self, phase: &Phase) -> bool {
        !self.strided
            && self.from == 0
            && phase.sampler.is_distinct()
            && self.len == phase.sampler.population()
    }
}

/// The counts of one dataset during the walk over a run.
struct DatasetCounter<'a> {
    dataset: DatasetId,
    sizes: &'a Sizes,
    /// Whether a single phase reads the dataset.
    single_phase: bool,
    every: u64,
    /// Uses in estimated passes.
    estimated: u128,
    /// By sample, allocated at the first use. `last` is the last epoch (from 1) that used the
    /// sample, 0 for none.
    extra: Vec<i32>,
    last: Vec<u32>,
    reads: u128,
    bytes: u128,
    /// The epoch, from 1, and whether it had a whole pass.
    epoch: u32,
    whole_in_epoch: bool,
    /// Whether every sample was used before this epoch, and the bytes that were.
    all_before: bool,
    before: u64,
    seen: u64,
    now: EpochDemand,
    /// Distinct bytes of the last epoch that used any.
    counted: Option<u64>,
}

/// The number of ids that are read from an order at a time.
const CHUNK: usize = 4096;

impl<'a> DatasetCounter<'a> {
    fn new(dataset: DatasetId, sizes: &'a Sizes, single_phase: bool) -> Self {
        Self {
            dataset,
            sizes,
            single_phase,
            every: 0,
            estimated: 0,
            extra: Vec::new(),
            last: Vec::new(),
            reads: 0,
            bytes: 0,
            epoch: 1,
            whole_in_epoch: false,
            all_before: false,
            before: 0,
            seen: 0,
            now: EpochDemand::default(),
            counted: None,
        }
    }

    fn count_whole(&mut self) {
        let total = self.sizes.total();
        self.every += 1;
        self.reads += u128::from(self.sizes.len());
        self.bytes += u128::from(total);
        self.whole_in_epoch = true;
        self.now = EpochDemand { distinct: total, seen: self.before };
        self.seen = total;
    }

    fn count(&mut self, run: &Run, pass: &Pass, phase: &Phase, part: &PassReads) -> Result<(), PlanError> {
        if self.extra.is_empty() {
            let samples = self.sizes.len();
            self.extra = table(samples).ok_or(PlanReason::Memory { dataset: self.dataset, samples })?;
            self.last = table(samples).ok_or(PlanReason::Memory { dataset: self.dataset, samples })?;
        }
        let stream = run.stream(pass)?;
        let order = stream.order();
        if part.strided {
            chunks(0, part.reads, |from, out| stream.fill(from, out), |id| self.count_one(id));
            return Ok(());
        }
        if self.single_phase && part.is_nearly_whole(phase) {
            let mut dropped = Vec::new();
            chunks(part.to, part.len, |from, out| order.fill(from, 1, out), |id| dropped.push(id));
            self.count_all_but(&dropped);
            return Ok(());
        }
        chunks(part.from, part.to, |from, out| order.fill(from, 1, out), |id| self.count_one(id));
        chunks(0, part.padding, |from, out| order.fill(from, 1, out), |id| self.count_one(id));
        Ok(())
    }

    /// One use of one sample.
    fn count_one(&mut self, id: SampleId) {
        let bytes = self.sizes.bytes(id);
        self.reads += 1;
        self.bytes += u128::from(bytes);
        let index = id.0 as usize;
        self.extra[index] = self.extra[index].saturating_add(1);
        if self.whole_in_epoch {
            return;
        }
        let last = std::mem::replace(&mut self.last[index], self.epoch);
        if last == self.epoch {
            return;
        }
        self.now.distinct = self.now.distinct.saturating_add(bytes);
        if last > 0 || self.all_before {
            self.now.seen = self.now.seen.saturating_add(bytes);
        } else {
            self.seen = self.seen.saturating_add(bytes);
        }
    }

    /// One use of every sample except the dropped ones, in the only pass over the dataset in this
    /// epoch.
    fn count_all_but(&mut self, dropped: &[SampleId]) {
        let (mut bytes, mut unseen) = (0u64, 0u64);
        for id in dropped {
            let index = id.0 as usize;
            self.extra[index] = self.extra[index].saturating_sub(1);
            bytes = bytes.saturating_add(self.sizes.bytes(*id));
            if self.last[index] == 0 && !self.all_before {
                unseen = unseen.saturating_add(self.sizes.bytes(*id));
            }
        }
        let total = self.sizes.total();
        self.every += 1;
        self.reads += u128::from(self.sizes.len()) - dropped.len() as u128;
        self.bytes += u128::from(total.saturating_sub(bytes));
        let seen = self.before.saturating_sub(bytes - unseen);
        self.now = EpochDemand { distinct: total.saturating_sub(bytes), seen };
        if !self.all_before {
            let lasts: Vec<u32> = dropped.iter().map(|id| self.last[id.0 as usize]).collect();
            self.last.fill(self.epoch);
            for (id, last) in dropped.iter().zip(&lasts) {
                self.last[id.0 as usize] = *last;
            }
            self.seen = total.saturating_sub(unseen);
            // From here on every sample counts as seen.
            self.whole_in_epoch = lasts.iter().all(|&last| last > 0);
        }
    }

    /// Estimates a pass that is not counted.
    fn estimate(&mut self, part: &PassReads) {
        let total = self.sizes.total();
        let samples = self.sizes.len().max(1);
        let share = narrow(u128::from(total) * u128::from(part.reads) / u128::from(samples));
        self.estimated += u128::from(part.reads);
        self.reads += u128::from(part.reads);
        self.bytes += u128::from(share);
        let known = self.counted.unwrap_or(share);
        let distinct = self.now.distinct.saturating_add(known).min(total);
        // Seen samples and used samples are taken as independent.
        let seen = u128::from(distinct) * u128::from(self.before) / u128::from(total.max(1));
        let seen = narrow(seen);
        self.seen = self.seen.max(self.before.saturating_add(distinct - seen)).min(total);
        self.now = EpochDemand { distinct, seen };
    }

    fn end_of_epoch(&mut self) -> EpochDemand {
        let now = std::mem::take(&mut self.now);
        if now.distinct > 0 {
            self.counted = Some(now.distinct);
        }
        self.epoch = self.epoch.saturating_add(1);
        self.all_before |= std::mem::take(&mut self.whole_in_epoch);
        self.before = self.seen;
        now
    }

    fn finish(self) -> DatasetDemand {
        // The nearest integer number of uses per sample, over all estimated passes.
        let samples = u128::from(self.sizes.len().max(1));
        let every = self.every.saturating_add(narrow((self.estimated + samples / 2) / samples));
        let uses = if self.extra.is_empty() {
            UseCounts::Same(every)
        } else {
            UseCounts::Each { every, extra: self.extra }
        };
        DatasetDemand { uses, reads: self.reads, bytes: self.bytes, distinct: self.seen }
    }
}

/// Calls `each` with the ids at `from..to` of a source that fills slices.
pub(crate) fn chunks(
    from: u64,
    to: u64,
    fill: impl Fn(u64, &mut [SampleId]),
    mut each: impl FnMut(SampleId),
) {
    let mut ids = [SampleId(0); CHUNK];
    let mut at = from;
    while at < to {
        let ids = &mut ids[..(to - at).min(CHUNK as u64) as usize];
        fill(at, ids);
        ids.iter().for_each(|&id| each(id));
        at += ids.len() as u64;
    }
}

/// A table of zeros, or `None` if it does not fit in memory.
pub(crate) fn table<T: Clone + Default>(entries: u64) -> Option<Vec<T>> {
    let entries = usize::try_from(entries).ok()?;
    let mut table = Vec::new();
    table.try_reserve_exact(entries).ok()?;
    table.resize(entries, T::default());
    Some(table)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foreread_oracle::{Deal, Feistel, PhaseKind, Sampler, Schedule, Sequential, Shuffle, Weighted};
    use foreread_types::Rank;

    use super::*;
    use crate::lower_bound::floor;

    fn run(epochs: u64, sampler: impl Sampler + 'static, drop_last: bool, world_size: u32) -> Run {
        let kind = PhaseKind::Train;
        let batch_size = Some(64);
        let phase = Phase { kind, dataset: DatasetId(0), sampler: Arc::new(sampler), batch_size, drop_last };
        let schedule = Schedule::new(epochs, vec![phase]).unwrap();
        Run::new(Arc::new(schedule), Deal::Torch, world_size, Rank(0)).unwrap()
    }

    #[test]
    fn uncounted_passes_are_estimated_closely() {
        let samples = 10_000;
        let sizes = [Sizes::table(&(0..samples).map(|id| 50 + id % 101).collect::<Vec<_>>())];
        let weights = vec![1.0; samples as usize];
        let runs = [
            ("dropping", run(12, Shuffle::new(samples, 3).unwrap(), true, 1), 1),
            ("drawing", run(12, Weighted::new(&weights, samples, 3).unwrap(), false, 1), 8),
            ("sharing", run(48, Shuffle::new(samples, 3).unwrap(), false, 4), 15),
        ];
        for (name, run, percent) in runs {
            let exact = Demand::of(&run, &sizes, Scope::Rank).unwrap();
            let short = Demand::within(&run, &sizes, Scope::Rank, samples * 3 + samples / 2).unwrap();
            assert!(exact.is_exact() && !short.is_exact(), "{name}");
            assert_eq!(short.epochs().len(), exact.epochs().len());
            assert_eq!(short.epochs()[..3], exact.epochs()[..3]);
            for capacity in [0, 100_000, 500_000, 2_000_000] {
                let (found, expected) = (floor(short.epochs(), capacity), floor(exact.epochs(), capacity));
                let off = found.abs_diff(expected) * 100;
                assert!(off <= expected * percent, "{name}, {capacity}: {found}, exactly {expected}");
            }
            let bytes = |demand: &Demand| demand.datasets[0].bytes as f64;
            assert!((bytes(&short) / bytes(&exact) - 1.0).abs() < 0.01, "{name}");
            assert_eq!(short.datasets[0].reads, exact.datasets[0].reads, "{name}");
        }
    }

    #[test]
    fn uncounted_runs_need_no_table() {
        // 2^40 samples without a table of the order, the last of which is dropped.
        let samples = (1 << 40) + 1;
        let run = run(100, Feistel::new(samples, 0).unwrap(), true, 1);
        let demand = Demand::of(&run, &[Sizes::uniform(samples, 10)], Scope::Rank).unwrap();
        assert!(!demand.is_exact());
        assert_eq!(demand.uses(DatasetId(0)), Some(&UseCounts::Same(100)));
        let found = floor(demand.epochs(), 4 * samples) as f64;
        assert!((found / (10 * samples + 99 * 6 * samples) as f64 - 1.0).abs() < 1e-6, "{found}");
    }

    /// Guards against this fault: two ranks and resumed runs over a hundred million windows took
    /// seconds and 800 MB before the first batch.
    #[test]
    fn orders_without_a_table_are_not_counted() {
        let (samples, sizes) = (1 << 23, [Sizes::uniform(1 << 23, 10)]);
        let halves = run(3, Feistel::new(samples, 0).unwrap(), false, 2);
        let mut resumed = run(3, Feistel::new(samples, 0).unwrap(), false, 1).start();
        resumed.consumed = samples / 4;
        let rest = Run::resume(Arc::clone(halves.schedule()), Deal::Torch, 1, Rank(0), &resumed).unwrap();
        for (run, first, uses) in [(halves, samples / 2, 2), (rest, samples / 4 * 3, 3)] {
            let demand = Demand::of(&run, &sizes, Scope::Rank).unwrap();
            assert_eq!(demand.uses(DatasetId(0)), Some(&UseCounts::Same(uses)));
            assert_eq!(demand.epochs()[0], EpochDemand { distinct: 10 * first, seen: 0 });
            assert_eq!(demand.epochs().len(), 3);
        }
    }

    /// A rank of several reads the same part of a sequential order in each epoch. As an estimate,
    /// samples of other ranks were placed.
    #[test]
    fn orders_that_repeat_are_counted() {
        let sizes = [Sizes::uniform(1 << 23, 10)];
        let demand = Demand::of(&run(3, Sequential::new(1 << 23).unwrap(), false, 2), &sizes, Scope::Rank);
        let demand = demand.unwrap();
        assert!(demand.is_exact());
        let of = |id| demand.uses(DatasetId(0)).unwrap().of(SampleId(id));
        assert_eq!([of(0), of(1), of(2)], [3, 0, 3]);
    }

    #[test]
    fn million_epochs_are_arithmetic() {
        let run = run(1_000_000, Shuffle::new(1 << 40, 0).unwrap(), false, 1);
        let demand = Demand::of(&run, &[Sizes::uniform(1 << 40, 1)], Scope::Rank).unwrap();
        assert_eq!(demand.uses(DatasetId(0)), Some(&UseCounts::Same(1_000_000)));
        assert_eq!(floor(demand.epochs(), (1 << 40) - 1), (1 << 40) + 999_999);
    }
}
