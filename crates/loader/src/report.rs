//! The report of a run: the sources of its samples, its time, and the trainer's waits.

use std::time::Duration;

use foreread_oracle::PhaseKind;

/// Where a delivered sample came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadSource {
    /// Read from the origin for this use.
    Origin,
    /// The memory tier, or memory that an earlier use in the look-ahead still held.
    Memory,
    /// The disk tier.
    Disk,
}

impl ReadSource {
    /// All sources, in the order of the report.
    pub const ALL: [Self; 3] = [Self::Origin, Self::Memory, Self::Disk];

    /// The name in reports and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// A count of samples and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCount {
    /// Samples.
    pub samples: u64,
    /// Their lengths, summed.
    pub bytes: u64,
}

impl SampleCount {
    pub(crate) fn add(&mut self, samples: u64, bytes: u64) {
        self.samples += samples;
        self.bytes += bytes;
    }
}

/// Delivered samples by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts([SampleCount; 3]);

impl SourceCounts {
    /// The samples from `source`.
    pub fn from(&self, source: ReadSource) -> SampleCount {
        self.0[source as usize]
    }

    /// The sum over all sources.
    pub fn total(&self) -> SampleCount {
        let mut sum = SampleCount::default();
        self.0.iter().for_each(|count| sum.add(count.samples, count.bytes));
        sum
    }

    pub(crate) fn add(&mut self, source: ReadSource, bytes: u64) {
        self.0[source as usize].add(1, bytes);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.add(theirs.samples, theirs.bytes);
        }
    }
}

/// One batch's counts, added to the report when it is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Its samples, by source.
    pub reads: SourceCounts,
    /// Uses without a sample, because it could not be read.
    pub skipped: u64,
    /// Uses that got a neighbouring sample.
    pub substituted: u64,
}

/// One pass (a phase of an epoch), as far as the trainer has taken it, or the sum of
/// [several](RunReport::passes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// The pass's index in the run. For several, that of the first.
    pub pass: usize,
    /// How many passes are summed up: 1, except in the middle of a long run.
    pub passes: u64,
    /// Its epoch. For several, that of the first.
    pub epoch: u64,
    /// Training or validation.
    pub phase: PhaseKind,
    /// Batches taken.
    pub batches: u64,
    /// Samples delivered, by source.
    pub reads: SourceCounts,
    /// From the request of its first batch to the delivery of its last.
    pub time: Duration,
    /// The part of `time` in which the trainer waited for a batch.
    pub stall: Duration,
    /// The wait for its first batch.
    pub first_batch: Duration,
}

impl PassReport {
    /// Adds another pass of the same phase.
    fn add(&mut self, other: &Self) {
        self.passes += other.passes;
        self.batches += other.batches;
        self.reads.merge(&other.reads);
        self.time += other.time;
        self.stall += other.stall;
        self.first_batch += other.first_batch;
    }
}

/// The whole run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// The passes that have begun, in order, in at most 1,024 entries. Up to that number each pass
    /// has its own entry. Beyond it, the first 256 and at least the last 256 passes keep theirs.
    /// The others are summed up in one entry per phase.
    pub passes: Vec<PassReport>,
    /// Uses without a sample, because it could not be read.
    pub skipped: u64,
    /// Uses that got a neighbouring sample as a substitute.
    pub substituted: u64,
}

impl RunReport {
    /// The maximum number of entries in `passes`.
    pub const MAX_PASSES: usize = 1024;

    /// Passes at the start, and at least at the end, that are not summed up.
    const UNSUMMED: usize = 256;

    /// Adds the entry of a pass that has begun.
    pub(crate) fn begin(&mut self, pass: PassReport) {
        self.passes.push(pass);
        self.sum_up();
    }

    /// Sums up the passes in the middle if there are too many.
    fn sum_up(&mut self) {
        if self.passes.len() <= Self::MAX_PASSES {
            return;
        }
        let last = self.passes.split_off(self.passes.len() - Self::UNSUMMED);
        let mut sums: Vec<PassReport> = Vec::new();
        for pass in self.passes.split_off(Self::UNSUMMED) {
            match sums.iter_mut().find(|sum| sum.phase == pass.phase) {
                Some(sum) => sum.add(&pass),
                None => sums.push(pass),
            }
        }
        self.passes.extend(sums.into_iter().chain(last));
    }

    /// The report of this run and a later one.
    #[must_use]
    pub fn followed_by(mut self, later: Self) -> Self {
        self.passes.extend(later.passes);
        self.sum_up();
        self.skipped += later.skipped;
        self.substituted += later.substituted;
        self
    }
}
