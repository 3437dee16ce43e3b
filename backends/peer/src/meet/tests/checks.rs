//! Invariants of every simulated rendezvous.

use std::collections::BTreeSet;

use super::super::MeetErrorKind;
use super::super::group::RunEnd;
use super::super::messages::key;
use super::{Disturbance, End, World};

impl World {
    /// Whether the faults can explain this end of a process.
    fn is_explained(&self, end: &End) -> bool {
        let is_process = |fault: &Disturbance| {
            matches!(fault, Disturbance::RestartFirst | Disturbance::Replace { .. } | Disturbance::SecondRun)
        };
        let other_processes = self.faults.iter().any(is_process);
        let absence = self.faults.iter().any(|fault| !matches!(fault, Disturbance::Lose { .. }));
        match end {
            End::Killed => other_processes,
            End::Error(MeetErrorKind::Broken, line) => {
                other_processes
                    && line.contains(
                        " was started \
                 again",
                    )
            }
            End::Error(MeetErrorKind::Setting, line) => {
                other_processes && line.starts_with("two processes are rank")
            }
            End::Error(MeetErrorKind::Deadline, line) => absence && line.starts_with("rank"),
            End::Error(MeetErrorKind::Refused, line) => absence && line.contains(" gave up: rank"),
            End::Error(..) => false,
        }
    }

    /// The invariants of every run.
    pub(super) fn check(&self, seed: u64) {
        for (number, member) in self.members.iter().enumerate() {
            let rank = self.rank(number);
            let outcome = member.outcome.as_ref();
            let outcome = outcome.unwrap_or_else(|| panic!("seed {seed}: rank {rank} waits forever"));
            match outcome {
                Err(end) => assert!(self.is_explained(end), "seed {seed}: rank {rank}: {end:?}"),
                Ok(()) => {
                    let nonces: BTreeSet<_> = member.nonces.iter().map(ToString::to_string).collect();
                    assert_eq!(nonces.len(), 1, "seed {seed}: rank {rank} was in two runs");
                    let leader = self
                        .leaders
                        .iter()
                        .find(|leader| Some(&leader.nonce.to_string()) == nonces.first())
                        .unwrap();
                    assert_eq!(member.values, leader.values, "seed {seed}: rank {rank}");
                    self.check_catalogs(seed, number, leader);
                    self.check_left(seed, number, leader);
                }
            }
        }
        for (number, leader) in self.leaders.iter().enumerate() {
            let outcome = leader.outcome.as_ref();
            let outcome = outcome.unwrap_or_else(|| panic!("seed {seed}: leader {number} waits forever"));
            if let Err(end) = outcome {
                assert!(self.is_explained(end), "seed {seed}: leader {number}: {end:?}");
            }
        }
    }

    /// Limits on the cost of faults: without faults, with lost connections alone, and with short
    /// faults.
    pub(super) fn check_costs(&self, seed: u64, are_none: bool, are_losses: bool, are_short: bool) {
        if are_none || are_losses || are_short {
            let started = self.members.iter().all(|member| matches!(member.outcome, Some(Ok(()))));
            assert!(started, "seed {seed}: it may cost only time");
        }
        if are_none || are_losses {
            let reports = self.leaders[0].leader.store.parts(key::REPORT);
            assert!(reports.iter().skip(1).all(Option::is_some), "seed {seed}: a report is lost");
            assert_eq!(self.leaders[0].missing.as_deref(), Some(&[][..]), "seed {seed}: a rank is missing");
        }
        if are_none {
            assert!(self.members.iter().all(|member| member.acknowledged), "seed {seed}");
            assert!(self.members.iter().all(|member| member.left == Some(RunEnd::Together)), "seed {seed}");
            self.check_order(seed);
        }
    }
}
