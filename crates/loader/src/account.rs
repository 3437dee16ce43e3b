//! Builds the run's report: one entry per pass, updated as the trainer takes batches. The middle of
//! a long run is [summed up](RunReport::passes).

use std::time::Duration;

use foreread_oracle::Pass;

use crate::report::{BatchCounts, PassReport, RunReport, SourceCounts};

#[derive(Debug, Default)]
pub(crate) struct RunAccount {
    report: RunReport,
    /// When the trainer requested the first batch of the current pass.
    began: Duration,
}

impl RunAccount {
    pub(crate) fn report(&self) -> &RunReport {
        &self.report
    }

    /// Adds a batch of `pass`, requested at `requested` and delivered at `now`.
    pub(crate) fn take(&mut self, pass: &Pass, counts: &BatchCounts, requested: Duration, now: Duration) {
        let waited = now.saturating_sub(requested);
        if self.report.passes.last().is_none_or(|last| last.pass != pass.index) {
            self.began = requested;
            self.report.begin(PassReport {
                pass: pass.index,
                passes: 1,
                epoch: pass.epoch,
                phase: pass.kind,
                batches: 0,
                reads: SourceCounts::default(),
                time: Duration::ZERO,
                stall: Duration::ZERO,
                first_batch: waited,
            });
        }
        self.report.skipped += counts.skipped;
        self.report.substituted += counts.substituted;
        if let Some(entry) = self.report.passes.last_mut() {
            entry.batches += 1;
            entry.reads.merge(&counts.reads);
            entry.time = now.saturating_sub(self.began);
            entry.stall += waited;
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_oracle::PhaseKind;
    use foreread_types::{DatasetId, Tick};

    use super::*;
    use crate::report::ReadSource;

    fn pass(index: usize) -> Pass {
        let kind = if index.is_multiple_of(2) { PhaseKind::Train } else { PhaseKind::Validation };
        Pass {
            index,
            epoch: index as u64 / 2,
            phase: index as u32 % 2,
            kind,
            dataset: DatasetId(0),
            first_tick: Tick(0),
            samples: 3,
            batches: 3,
            batch_size: 1,
        }
    }

    /// Takes `passes` of three batches each. Returns the largest number of entries on the way.
    fn take(account: &mut RunAccount, passes: std::ops::Range<usize>) -> usize {
        let mut counts = BatchCounts::default();
        counts.reads.add(ReadSource::Origin, 10);
        let mut most = 0;
        for index in passes {
            for number in 0..3 {
                let requested = Duration::from_secs(10 * index as u64 + number);
                account.take(&pass(index), &counts, requested, requested + Duration::from_secs(1));
            }
            most = most.max(account.report().passes.len());
        }
        most
    }

    /// Checks that `report` sums up to `passes` passes.
    fn check(report: &RunReport, passes: u64) {
        let sum = |of: fn(&PassReport) -> u64| report.passes.iter().map(of).sum::<u64>();
        assert_eq!(sum(|pass| pass.passes), passes);
        assert_eq!(sum(|pass| pass.batches), 3 * passes);
        assert_eq!(sum(|pass| pass.reads.total().bytes), 30 * passes);
        assert_eq!(sum(|pass| pass.time.as_secs()), 3 * passes);
        assert_eq!(sum(|pass| pass.stall.as_secs()), 3 * passes);
        assert_eq!(sum(|pass| pass.first_batch.as_secs()), passes);
        assert!(report.passes.is_sorted_by_key(|pass| pass.pass) && report.passes.len() <= 1024);
    }

    /// A report of 61,100 epochs had as many entries, in each call.
    #[test]
    // semantics: CACHE-8
    fn report_of_a_long_run_is_bounded_and_sums_up() {
        let mut account = RunAccount::default();
        assert_eq!(take(&mut account, 0..1024), 1024);
        assert!(account.report().passes.iter().all(|pass| pass.passes == 1));
        assert_eq!(take(&mut account, 1024..122_200), 1024);
        let report = account.report();
        check(report, 122_200);
        let entries: Vec<(usize, u64)> = report.passes.iter().map(|pass| (pass.pass, pass.passes)).collect();
        let own = entries.len() - 258;
        assert!(own >= 256 && entries[..256].iter().copied().eq((0..256).map(|pass| (pass, 1))));
        assert_eq!((entries[256].0, entries[257].0), (256, 257), "training and validation");
        assert_eq!(entries[256].1 + entries[257].1, (122_200 - 256 - own) as u64);
        assert!(entries[258..].iter().copied().eq((122_200 - own..122_200).map(|pass| (pass, 1))));
    }

    #[test]
    fn report_of_many_short_runs_is_bounded() {
        let mut all = RunReport::default();
        for run in 0..3000 {
            let mut account = RunAccount::default();
            take(&mut account, run..run + 1 + run % 3);
            all = all.followed_by(account.report().clone());
            assert!(all.passes.len() <= 1024);
        }
        let (batches, passes) = all
            .passes
            .iter()
            .fold((0, 0), |(batches, passes), pass| (batches + pass.batches, passes + pass.passes));
        assert_eq!((batches, passes), (18_000, 6000));
    }
}
