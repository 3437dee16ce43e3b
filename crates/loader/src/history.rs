//! The history of a run: delivered bytes by source, and the trainer's stalls, over time.
//!
//! It is recorded when the trainer takes a batch, from the two clock readings of the report.
//! Decision: slots of equal length. If a run outgrows [`History::MAX_SLOTS`], neighbouring slots
//! are merged, and every slot is twice as long. There is no thread and no timer, the memory is
//! bounded, and sums stay exact. The price is the resolution, which is 1/256 to 1/512 of the run.
//!
//! A batch's bytes are spread over the time since the batch before it. So the rate of a trainer
//! that takes one batch per second is even, whatever the length of a slot.
//!
//! The cost per batch is about four integer divisions in a slot that exists. A batch that spans
//! several slots costs more. All batches of a run together cross at most 512 slots per doubling.

use std::time::Duration;

use foreread_oracle::Pass;

use crate::report::{BatchCounts, ReadSource};

/// A part of a run's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistorySlot {
    bytes: [u64; ReadSource::ALL.len()],
    stall_nanos: u64,
}

impl HistorySlot {
    /// The bytes that were delivered from `source`.
    pub fn bytes(&self, source: ReadSource) -> u64 {
        self.bytes[source as usize]
    }

    /// How long the trainer waited for batches.
    pub fn stall(&self) -> Duration {
        Duration::from_nanos(self.stall_nanos)
    }

    fn merge(&mut self, other: &Self) {
        self.bytes.iter_mut().zip(other.bytes).for_each(|(mine, theirs)| *mine += theirs);
        self.stall_nanos += other.stall_nanos;
    }
}

/// The request for the first batch of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: u64,
    /// The time since the start of the run.
    pub at: Duration,
}

/// The history of a run so far. Its time begins with the run's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// In nanoseconds.
    slot: u64,
    slots: Vec<HistorySlot>,
    /// The delivery of the last batch, in nanoseconds.
    end: u64,
    epochs: Vec<EpochStart>,
    /// Of the epochs that have begun, each `stride`-th has an entry in `epochs`.
    stride: u64,
    /// The number of epochs that have begun, and the last one.
    begun: (u64, Option<u64>),
}

impl Default for History {
    fn default() -> Self {
        Self {
            slot: Self::FIRST_SLOT.as_nanos() as u64,
            slots: Vec::new(),
            end: 0,
            epochs: Vec::new(),
            stride: 1,
            begun: (0, None),
        }
    }
}

impl History {
    /// The maximum number of slots.
    pub const MAX_SLOTS: usize = 512;

    /// The maximum number of entries in [`epochs`](Self::epochs).
    pub const MAX_EPOCHS: usize = 64;

    /// The length of slots in runs of up to five seconds.
    const FIRST_SLOT: Duration = Duration::from_millis(10);

    /// The length of each slot. The last one ends with the last batch.
    pub fn slot(&self) -> Duration {
        Duration::from_nanos(self.slot)
    }

    /// The slots in order, from the start of the run.
    pub fn slots(&self) -> &[HistorySlot] {
        &self.slots
    }

    /// The delivery of the last batch.
    pub fn end(&self) -> Duration {
        Duration::from_nanos(self.end)
    }

    /// The starts of epochs in order: of all epochs, or in long runs of each second, fourth and so
    /// on.
    pub fn epochs(&self) -> &[EpochStart] {
        &self.epochs
    }

    /// Adds a batch of `pass`, requested at `requested` and delivered at `now`.
    pub(crate) fn take(&mut self, pass: &Pass, counts: &BatchCounts, requested: Duration, now: Duration) {
        let (requested, now) = (nanos(requested), nanos(now).max(self.end));
        self.reach(now);
        if self.begun.1 != Some(pass.epoch) {
            self.begin(EpochStart { epoch: pass.epoch, at: Duration::from_nanos(requested) });
        }
        // The first batch counts from its request: the trainer may begin long after the run.
        let since = if self.end == 0 { requested } else { self.end };
        for source in ReadSource::ALL {
            let bytes = counts.reads.from(source).bytes;
            self.spread(since, now, bytes, |slot| &mut slot.bytes[source as usize]);
        }
        self.spread(requested, now, now.saturating_sub(requested), |slot| &mut slot.stall_nanos);
        self.end = now;
    }

    /// The history of this run and a later one.
    #[must_use]
    pub fn followed_by(mut self, later: &Self) -> Self {
        let offset = self.end;
        self.reach(offset + later.end);
        for (index, slot) in later.slots.iter().enumerate() {
            let from = index as u64 * later.slot;
            let (from, to) = (offset + from, offset + (from + later.slot).min(later.end));
            for source in ReadSource::ALL {
                self.spread(from, to, slot.bytes(source), |slot| &mut slot.bytes[source as usize]);
            }
            self.spread(from, to, slot.stall_nanos, |slot| &mut slot.stall_nanos);
        }
        for start in &later.epochs {
            self.begin(EpochStart { at: start.at + Duration::from_nanos(offset), ..*start });
        }
        self.end = offset + later.end;
        self
    }

    fn begin(&mut self, start: EpochStart) {
        if self.begun.0.is_multiple_of(self.stride) {
            if self.epochs.len() == Self::MAX_EPOCHS {
                self.stride *= 2;
                self.epochs = self.epochs.iter().step_by(2).copied().collect();
            }
            self.epochs.push(start);
        }
        self.begun = (self.begun.0 + 1, Some(start.epoch));
    }

    /// Makes slots so long that they reach `time`, and creates those until then.
    fn reach(&mut self, time: u64) {
        while time > self.slot * Self::MAX_SLOTS as u64 {
            self.slot *= 2;
            let pairs = self.slots.chunks(2).map(|pair| {
                let mut sum = pair[0];
                pair[1..].iter().for_each(|other| sum.merge(other));
                sum
            });
            self.slots = pairs.collect();
        }
        let needed = time.div_ceil(self.slot) as usize;
        if needed > self.slots.len() {
            self.slots.resize(needed, HistorySlot::default());
        }
    }

    /// Adds `amount` evenly over the time from `from` to `to`. The parts sum up to `amount`.
    fn spread(&mut self, from: u64, to: u64, amount: u64, part: impl Fn(&mut HistorySlot) -> &mut u64) {
        if amount == 0 {
            return;
        }
        // A moment counts to the slot that it ends.
        let last = to.saturating_sub(1) / self.slot;
        let first = (from / self.slot).min(last);
        let (mut added, whole) = (0, u128::from(to.saturating_sub(from)));
        for index in first..last {
            let until = u128::from((index + 1) * self.slot - from);
            let sum = (u128::from(amount) * until / whole) as u64;
            if let Some(slot) = self.slots.get_mut(index as usize) {
                *part(slot) += sum - added;
                added = sum;
            }
        }
        if self.slots.is_empty() {
            self.slots.push(HistorySlot::default());
        }
        let end = (last as usize).min(self.slots.len() - 1);
        *part(&mut self.slots[end]) += amount - added;
    }
}

/// Nanoseconds, enough for 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use foreread_oracle::PhaseKind;
    use foreread_types::{DatasetId, Tick};
    use proptest::prelude::*;

    use super::*;
    use crate::account::RunAccount;

    fn pass(epoch: u64) -> Pass {
        Pass {
            index: epoch as usize,
            epoch,
            phase: 0,
            kind: PhaseKind::Train,
            dataset: DatasetId(0),
            first_tick: Tick(0),
            samples: 3,
            batches: 3,
            batch_size: 1,
        }
    }

    fn counts(reads: &[(ReadSource, u64)]) -> BatchCounts {
        let mut counts = BatchCounts::default();
        reads.iter().for_each(|(source, bytes)| counts.reads.add(*source, *bytes));
        counts
    }

    fn sums(history: &History) -> ([u64; 3], Duration) {
        let bytes = ReadSource::ALL.map(|source| history.slots().iter().map(|slot| slot.bytes(source)).sum());
        (bytes, history.slots().iter().map(HistorySlot::stall).sum())
    }

    /// A batch of one epoch, with its source, bytes, computing time before it, and wait for it.
    type Step = (u64, usize, u64, u64, u64);

    /// Records the same batches in a history and in a report. Returns both.
    fn record(steps: &[Step]) -> (History, RunAccount) {
        let (mut history, mut account) = (History::default(), RunAccount::default());
        let (mut now, mut epoch) = (0, 0);
        for &(next, source, bytes, computing, waiting) in steps {
            epoch += next;
            let requested = now + computing;
            now = requested + waiting;
            let counts = counts(&[(ReadSource::ALL[source], bytes), (ReadSource::Memory, 7)]);
            let (requested, now) = (Duration::from_nanos(requested), Duration::from_nanos(now));
            history.take(&pass(epoch), &counts, requested, now);
            account.take(&pass(epoch), &counts, requested, now);
        }
        (history, account)
    }

    fn check_against_report(history: &History, account: &RunAccount) {
        let (bytes, stall) = sums(history);
        for source in ReadSource::ALL {
            let reported: u64 =
                account.report().passes.iter().map(|pass| pass.reads.from(source).bytes).sum();
            assert_eq!(bytes[source as usize], reported, "{source:?}");
        }
        assert_eq!(stall, account.report().passes.iter().map(|pass| pass.stall).sum());
        assert!(history.slots().len() <= History::MAX_SLOTS && history.epochs().len() <= History::MAX_EPOCHS);
        assert!(history.epochs().is_sorted_by_key(|start| start.at));
    }

    const NANOS: u64 = 60_000_000_000;

    proptest! {
        /// Also if the trainer jumps, which sums up two histories.
        #[test]
        // semantics: CACHE-18
        fn sums_of_the_history_equal_the_report(
            steps in prop::collection::vec((0..2u64, 0..3usize, 0..1u64 << 40, 0..NANOS, 0..NANOS), 1..200),
            cut in 0..200usize,
        ) {
            let (history, account) = record(&steps);
            check_against_report(&history, &account);
            let (earlier, later) = steps.split_at(cut.min(steps.len()));
            let joined = record(earlier).0.followed_by(&record(later).0);
            let (bytes, stall) = sums(&history);
            prop_assert_eq!(sums(&joined), (bytes, stall));
            prop_assert!(joined.slots().len() <= History::MAX_SLOTS);
            prop_assert_eq!(joined.end(), history.end());
        }
    }

    #[test]
    // semantics: CACHE-18
    fn history_of_a_long_run_is_bounded_and_halves_its_resolution() {
        let steps: Vec<Step> = (0..20_000).map(|_| (1, 0, 1000, 900_000_000, 100_000_000)).collect();
        let (history, account) = record(&steps);
        check_against_report(&history, &account);
        // 20,000 s in slots of 10 ms times a power of two.
        assert_eq!(history.slot(), Duration::from_millis(10 << 12));
        assert_eq!(history.slots().len(), 489);
        let epochs: Vec<u64> = history.epochs().iter().map(|start| start.epoch).collect();
        assert!((32..=64).contains(&epochs.len()), "{epochs:?}");
        assert!(epochs.windows(2).all(|pair| pair[1] - pair[0] == 512), "{epochs:?}");
        // The rate and the stalls are even over the run, as they were.
        for slot in &history.slots()[1..488] {
            assert!((39_900..=42_000).contains(&slot.bytes(ReadSource::Origin)), "{slot:?}");
            assert!((3.9..=4.2).contains(&slot.stall().as_secs_f64()), "{slot:?}");
        }
    }

    #[test]
    fn stall_is_recorded_when_it_happened() {
        let mut history = History::default();
        let at = Duration::from_millis;
        history.take(&pass(0), &counts(&[(ReadSource::Disk, 100)]), at(5), at(25));
        history.take(&pass(0), &counts(&[(ReadSource::Disk, 100)]), at(45), at(45));
        let stalls: Vec<u128> = history.slots().iter().map(|slot| slot.stall().as_millis()).collect();
        assert_eq!(stalls, [5, 10, 5, 0, 0]);
        let bytes: Vec<u64> = history.slots().iter().map(|slot| slot.bytes(ReadSource::Disk)).collect();
        assert_eq!(bytes, [25, 50, 25 + 25, 50, 25]);
        assert_eq!((history.end(), history.epochs()), (at(45), &[EpochStart { epoch: 0, at: at(5) }][..]));
    }

    #[test]
    fn batch_at_the_moment_of_the_start_is_recorded() {
        let mut history = History::default();
        history.take(&pass(0), &counts(&[(ReadSource::Disk, 3)]), Duration::ZERO, Duration::ZERO);
        assert_eq!(sums(&history), ([0, 0, 3], Duration::ZERO));
        assert_eq!(History::default().followed_by(&history), history);
    }
}
