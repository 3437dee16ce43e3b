//! The run of a rank in a group, and its end.
//!
//! A finished rank serves the others until they finish, too. Rank 0 reports that all have finished.
//! Without rank 0, each rank ends after a time without requests. Ranks send requests once per step,
//! so this timeout is two of the longest steps of this rank.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foreread_loader::LocalityDeal;
use foreread_peer::meet::{RunEnd, RunGroup};
use foreread_tier::{PeerService, lock};
use foreread_types::Rank;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::group_member::GroupMember;
use crate::merged::Merged;
use crate::report::PeersReport;

/// The timeout for rank 0 to confirm a report. Longer than its heartbeat timeout.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

/// The longest broken connection to rank 0 at a run's end. After it, rank 0 counts as lost.
const RANK0_LOST_AFTER: Duration = Duration::from_secs(3);

/// The least and the most time without requests after which a finished rank ends.
const IDLE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// A finished rank waits this long for others before it logs a warning. The user should know that
/// other ranks have not closed their loader.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// The longest wait for other ranks: a year.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The interval between checks for new requests.
const IDLE_POLL: Duration = Duration::from_secs(1);

/// A run that shares its caches over a [`RunGroup`].
#[derive(Debug)]
pub(super) struct JoinedGroup {
    group: Arc<RunGroup>,
    locality: Option<Arc<LocalityDeal>>,
    /// Serves samples to the stores of other nodes.
    _service: Option<Arc<dyn PeerService>>,
    steps: Mutex<StepTimes>,
}

/// The steps that this rank has completed.
#[derive(Debug, Default)]
struct StepTimes {
    /// The number of steps, and the time of the last one.
    last: Option<(u64, Instant)>,
    longest: Duration,
}

impl StepTimes {
    fn note(&mut self, steps: u64, now: Instant) {
        match self.last {
            Some((before, _)) if steps <= before => return,
            Some((_, then)) => self.longest = self.longest.max(now.duration_since(then)),
            // The first step includes the time to fill the caches.
            None => {}
        }
        self.last = Some((steps, now));
    }

    /// The timeout without requests, from the longest step.
    fn idle(&self) -> Duration {
        (2 * self.longest).clamp(IDLE_TIMEOUT.0, IDLE_TIMEOUT.1)
    }
}

impl JoinedGroup {
    pub(super) fn new(
        group: Arc<RunGroup>,
        locality: Option<Arc<LocalityDeal>>,
        service: Option<Arc<dyn PeerService>>,
    ) -> Self {
        Self { group, locality, _service: service, steps: Mutex::default() }
    }
}

impl GroupMember for JoinedGroup {
    fn locality(&self) -> Option<Arc<LocalityDeal>> {
        self.locality.clone()
    }

    fn progress(&self, steps: u64) -> u64 {
        lock(&self.steps).note(steps, Instant::now());
        self.group.progress(steps);
        self.group.lowest().map_or(steps, |lowest| steps.min(*lowest.borrow()))
    }

    fn exchanged(&self) -> PeersReport {
        let tally = self.group.counters().read();
        PeersReport {
            served: tally.served,
            served_bytes: tally.served_bytes,
            asked: tally.requested,
            received: tally.received,
            received_bytes: tally.received_bytes,
            late: tally.timed_out,
            lost: tally.disconnected,
            strangers: tally.unauthenticated,
        }
    }

    fn leave(&self, own: Merged, at_most: Duration) -> BoxFuture<'static, Option<Merged>> {
        // A caller's `Duration::MAX` means no bound, but a clock cannot represent the sum.
        let at_most = at_most.min(MAX_WAIT);
        let group = Arc::clone(&self.group);
        let silence = lock(&self.steps).idle();
        let others = Arc::clone(&self.group);
        let ended = async move {
            let until = Instant::now() + at_most;
            // The value has only numbers and strings, so this cannot fail.
            let report = serde_json::to_vec(&own).unwrap_or_default();
            let heard = tokio::select! {
                heard = group.report(report.into(), at_most.min(REPORT_TIMEOUT)) => heard,
                () = group.rank0_lost(RANK0_LOST_AFTER) => false,
            };
            if !heard {
                tracing::warn!("rank 0 does not answer; this rank ends after a time without requests");
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
                // Rank 0 has the report but cannot announce the end.
                () = abandoned(&group, silence) => RunEnd::Unheard,
            };
            match left {
                RunEnd::Together => {}
                RunEnd::Without(ranks) => {
                    tracing::warn!(?ranks, "ends although some ranks have not finished");
                }
                RunEnd::Unheard => tracing::warn!("ends without confirmation by rank 0"),
            }
            all
        };
        Box::pin(with_warning(ended, WARN_AFTER, async move {
            let reports = others.reports(Duration::ZERO).await;
            let ranks: Vec<usize> = (0..reports.len()).filter(|&rank| reports[rank].is_none()).collect();
            let served = if ranks.is_empty() { "other ranks".to_owned() } else { format!("ranks {ranks:?}") };
            tracing::warn!(
                "this rank's loader has ended and serves {served} until they end, for {} s at most; every \
                 rank must close its loaders, in the same order, before ranks wait for each other elsewhere",
                at_most.as_secs()
            );
        }))
    }
}

/// Runs `work`, and logs a warning if it takes longer than `untold`.
async fn with_warning<T>(
    work: impl Future<Output = T>,
    untold: Duration,
    say: impl Future<Output = ()>,
) -> T {
    let warned = async {
        tokio::time::sleep(untold).await;
        say.await;
        std::future::pending().await
    };
    tokio::select! {
        done = work => done,
        never = warned => never,
    }
}

/// Without rank 0 no rank announces the end. A rank serves others until no request has come for
/// `silence`.
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

/// Waits until rank 0 is lost and no request has come for `silence`.
async fn abandoned(group: &RunGroup, silence: Duration) {
    group.rank0_lost(RANK0_LOST_AFTER).await;
    idle(group, silence).await;
}

/// Merges all reports. Ranks without a report are not counted.
fn merged(reports: &[Option<Bytes>]) -> Merged {
    let mut all = Merged::default();
    for report in reports.iter().flatten() {
        match serde_json::from_slice::<Merged>(report) {
            Ok(report) => all.add(&report),
            Err(error) => tracing::warn!(%error, "a rank's report is invalid"),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn long_wait_for_other_ranks_is_logged_once() {
        for (seconds, times) in [(9, 0), (11, 1), (600, 1)] {
            let warned = AtomicU32::new(0);
            let work = tokio::time::sleep(Duration::from_secs(seconds));
            with_warning(work, WARN_AFTER, async { _ = warned.fetch_add(1, Ordering::Relaxed) }).await;
            assert_eq!(warned.into_inner(), times, "{seconds} s");
        }
    }

    #[test]
    // semantics: RANK-22
    fn idle_timeout_is_two_of_the_longest_steps_within_bounds() {
        let (mut steps, start) = (StepTimes::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(steps.idle(), 5 * second);
        // The caches take a hundred seconds to fill.
        for (number, at, idle) in [(1, 100, 5), (2, 102, 5), (2, 150, 5), (3, 151, 30), (4, 152, 30)] {
            steps.note(number, start + at * second);
            assert_eq!(steps.idle(), idle * second, "after step {number}");
        }
        let mut steps = StepTimes::default();
        (1..4).for_each(|number| steps.note(number, start + 7 * number as u32 * second));
        assert_eq!(steps.idle(), 14 * second);
    }
}
