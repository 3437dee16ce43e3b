//! A run under way with others, to its end.
//!
//! A rank that is done goes on answering those that are not. Rank 0 says when all are; without it
//! each rank goes by whether it is still asked for anything. Ranks ask once a step, so the longest
//! of the steps that this rank has made itself says how long silence may last.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foreread_loader::PeerGroup;
use foreread_peer::meet::{RunEnd, RunGroup};
use foreread_tier::Peers;
use foreread_types::Rank;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::joint::GroupMember;
use crate::merged::Merged;
use crate::report::PeersReport;

/// How long rank 0 may take to say that it has a report, before it counts as gone: longer than it
/// may be silent.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// How long the connection to rank 0 may be broken at a run's end, before it counts as gone.
const RANK0_LOST_AFTER: Duration = Duration::from_secs(3);

/// Who has not been asked for anything for so long is not needed any more: at least, and at most.
const IDLE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// How long a rank that is done waits for others without a word about it: who has closed where
/// others have not should know.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// No rank waits longer than this for others: a year.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// How often is looked whether anything was asked.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// A run that works together with others over a [`RunGroup`].
#[derive(Debug)]
pub(super) struct JoinedGroup {
    group: Arc<RunGroup>,
    others: PeerGroup,
    steps: Mutex<StepTimes>,
}

/// The steps that this rank has made.
#[derive(Debug, Default)]
struct StepTimes {
    /// How many, and when the last was done.
    last: Option<(u64, Instant)>,
    longest: Duration,
}

impl StepTimes {
    fn note(&mut self, steps: u64, now: Instant) {
        match self.last {
            Some((before, _)) if steps <= before => return,
            Some((_, then)) => self.longest = self.longest.max(now.duration_since(then)),
            // The first one has waited for the caches to fill.
            None => {}
        }
        self.last = Some((steps, now));
    }

    /// Who asks once in such a step has no more to ask after so much silence.
    fn idle(&self) -> Duration {
        (2 * self.longest).clamp(IDLE_TIMEOUT.0, IDLE_TIMEOUT.1)
    }
}

impl JoinedGroup {
    pub(super) fn new(group: Arc<RunGroup>, others: PeerGroup) -> Self {
        Self { group, others, steps: Mutex::default() }
    }
}

impl GroupMember for JoinedGroup {
    fn others(&self) -> PeerGroup {
        self.others.clone()
    }

    fn progress(&self, steps: u64) -> u64 {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).note(steps, Instant::now());
        self.group.progress(steps);
        self.group.lowest().map_or(steps, |lowest| steps.min(*lowest.borrow()))
    }

    fn exchanged(&self) -> PeersReport {
        let tally = self.group.counters().read();
        PeersReport {
            served: tally.served,
            served_bytes: tally.served_bytes,
            asked: tally.asked,
            received: tally.got,
            received_bytes: tally.got_bytes,
            late: tally.late,
            lost: tally.lost,
            strangers: tally.strangers,
        }
    }

    fn leave(&self, own: Merged, at_most: Duration) -> BoxFuture<'static, Option<Merged>> {
        // A caller's `Duration::MAX` means no bound; no clock can be asked for a time beyond its
        // end.
        let at_most = at_most.min(MAX_WAIT);
        let group = Arc::clone(&self.group);
        let silence = self.steps.lock().unwrap_or_else(PoisonError::into_inner).idle();
        let others = Arc::clone(&self.group);
        let ended = async move {
            let until = Instant::now() + at_most;
            // Numbers and strings alone: it cannot fail.
            let report = serde_json::to_vec(&own).unwrap_or_default();
            let heard = tokio::select! {
                heard = group.report(report.into(), at_most.min(REPORT_TIMEOUT)) => heard,
                () = group.rank0_lost(RANK0_LOST_AFTER) => false,
            };
            if !heard {
                tracing::warn!(
                    "rank 0 does not answer; this rank ends when nobody asks it for samples any more"
                );
                tokio::select! {
                    () = idle(&group, silence) => {}
                    () = tokio::time::sleep_until(until) => {}
                }
                return None;
            }
            let all = match group.rank() {
                Rank(0) => Some(merged(&group.reports(at_most).await)),
                _ => None,
            };
            let left = tokio::select! {
                left = group.leave(until.saturating_duration_since(Instant::now())) => left,
                // It has the report and will not say that all is over.
                () = abandoned(&group, silence) => RunEnd::Unheard,
            };
            match left {
                RunEnd::Together => {}
                RunEnd::Without(ranks) => {
                    tracing::warn!(?ranks, "ends without ranks that have not come to their end");
                }
                RunEnd::Unheard => tracing::warn!("ends without a word of rank 0"),
            }
            all
        };
        Box::pin(with_warning(ended, WARN_AFTER, async move {
            let reports = others.reports(Duration::ZERO).await;
            let ranks: Vec<usize> = (0..reports.len()).filter(|&rank| reports[rank].is_none()).collect();
            let whom = if ranks.is_empty() { "the others".to_owned() } else { format!("ranks {ranks:?}") };
            tracing::warn!(
                "this rank's loader has ended, and answers {whom} until theirs have, for {} s at most: every \
                 rank ends each \
                 of its loaders, all in the same order, and before they wait for each other elsewhere",
                at_most.as_secs()
            );
        }))
    }
}

/// `work`, and beside it what is said if that takes longer than `untold`.
async fn with_warning<T>(
    work: impl Future<Output = T>,
    untold: Duration,
    say: impl Future<Output = ()>,
) -> T {
    let said = async {
        tokio::time::sleep(untold).await;
        say.await;
        std::future::pending().await
    };
    tokio::select! {
        done = work => done,
        never = said => never,
    }
}

/// Without rank 0 nobody says when all are done: a rank answers until it has not been asked for as
/// long as `silence`.
async fn idle(group: &RunGroup, silence: Duration) {
    let served = || group.counters().read().served;
    let mut last = (served(), Instant::now());
    while last.1.elapsed() < silence {
        tokio::time::sleep(IDLE_POLL).await;
        let now = served();
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
}

/// Waits until rank 0 is gone and nobody asks this rank any more.
async fn abandoned(group: &RunGroup, silence: Duration) {
    group.rank0_lost(RANK0_LOST_AFTER).await;
    idle(group, silence).await;
}

/// All reports as one; ranks that sent none are not counted.
fn merged(reports: &[Option<Bytes>]) -> Merged {
    let mut all = Merged::default();
    for report in reports.iter().flatten() {
        match serde_json::from_slice::<Merged>(report) {
            Ok(report) => all.add(&report),
            Err(error) => tracing::warn!(%error, "a rank's report cannot be read"),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_long_for_the_others_says_so_once() {
        for (seconds, times) in [(9, 0), (11, 1), (600, 1)] {
            let said = AtomicU32::new(0);
            let work = tokio::time::sleep(Duration::from_secs(seconds));
            with_warning(work, WARN_AFTER, async { _ = said.fetch_add(1, Ordering::Relaxed) }).await;
            assert_eq!(said.into_inner(), times, "{seconds} s");
        }
    }

    #[test]
    fn silence_lasts_two_of_the_longest_steps_within_bounds() {
        let (mut steps, start) = (StepTimes::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(steps.idle(), 5 * second);
        // A hundred seconds until the caches are full.
        for (number, at, idle) in [(1, 100, 5), (2, 102, 5), (2, 150, 5), (3, 151, 30), (4, 152, 30)] {
            steps.note(number, start + at * second);
            assert_eq!(steps.idle(), idle * second, "after step {number}");
        }
        let mut steps = StepTimes::default();
        (1..4).for_each(|number| steps.note(number, start + 7 * number as u32 * second));
        assert_eq!(steps.idle(), 14 * second);
    }
}
