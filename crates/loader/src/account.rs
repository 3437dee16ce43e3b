//! Keeps the run's account: one entry a pass, filled as the trainer takes batches.

use std::time::Duration;

use foreread_oracle::Pass;

use crate::report::{PassReport, Reads, RunReport, Taking};

#[derive(Debug, Default)]
pub(crate) struct Account {
    report: RunReport,
    /// When the first batch of the pass that is being taken was asked for.
    began: Duration,
}

impl Account {
    pub(crate) fn report(&self) -> &RunReport {
        &self.report
    }

    /// Books a batch of `pass`, asked for at `asked` and delivered at `now`.
    pub(crate) fn take(&mut self, pass: &Pass, taking: &Taking, asked: Duration, now: Duration) {
        let waited = now.saturating_sub(asked);
        if self.report.passes.last().is_none_or(|last| last.pass != pass.index) {
            self.began = asked;
            self.report.passes.push(PassReport {
                pass: pass.index,
                epoch: pass.epoch,
                phase: pass.kind,
                batches: 0,
                reads: Reads::default(),
                time: Duration::ZERO,
                stall: Duration::ZERO,
                first_batch: waited,
            });
        }
        self.report.skipped += taking.skipped;
        self.report.substituted += taking.substituted;
        self.report.hedged += taking.hedged;
        if let Some(entry) = self.report.passes.last_mut() {
            entry.batches += 1;
            entry.reads.merge(&taking.reads);
            entry.time = now.saturating_sub(self.began);
            entry.stall += waited;
        }
    }
}
