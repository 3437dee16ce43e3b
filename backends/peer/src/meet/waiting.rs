//! The ranks that a rank waits for: shown while it waits, and part of the error if it times out.

use std::fmt;
use std::time::Duration;

use foreread_types::{Interface, Rank, setting};
use tokio::time::Instant;

use super::members::RECONNECT_TIMEOUT;
use super::messages::ranks;

/// How many ranks are named before the others are counted.
pub(super) const MAX_NAMED_RANKS: usize = 8;

/// How often waiting is shown.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How long a rank that disconnected before the start may take to reconnect.
pub(super) const RETURN_TIMEOUT: Duration = Duration::from_secs(30);

/// The waiting time after which the hint is shown, and a warning is due.
const HINT_DELAY: Duration = Duration::from_secs(10);

/// Remedies for ranks that do not come for an unknown reason: they have another token, or make no
/// such loader.
pub(super) fn absent_rank_hint() -> String {
    let (rank, world_size) = (setting("rank").to("0"), setting("world-size").to("1"));
    let alone = match Interface::current() {
        Interface::Library => "give it no rendezvous".to_owned(),
        _ => setting("peers").to("off").to_string(),
    };
    format!(
        "check that all ranks have the same FOREREAD_TOKEN, or none has one; if only some ranks make this \
         loader, set {rank} and {world_size} there, or {alone}; an earlier loader may still have to be closed"
    )
}

/// Checks a condition twice before it counts. When a paused process resumes, all its timers fire at
/// once, before it has read the messages that arrived meanwhile.
#[derive(Debug, Default)]
pub(super) struct TwoStepCheck(Option<Instant>);

impl TwoStepCheck {
    /// Whether the condition `so` held at an earlier check, and still holds.
    pub(super) fn check(&mut self, so: bool, now: Instant) -> bool {
        if !so {
            self.0 = None;
            return false;
        }
        now.duration_since(*self.0.get_or_insert(now)) >= RECONNECT_TIMEOUT
    }
}

/// The ranks that a rank waits for. Displays as `waiting for ranks 2, 5 and 7 others (12 s of 300
/// s)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RendezvousProgress {
    /// The first missing ranks.
    pub missing: Vec<Rank>,
    /// How many more are missing.
    pub more: usize,
    /// Progress of another rank, or where rank 0 is searched for.
    pub on: Option<String>,
    /// The waiting time so far.
    pub waited: Duration,
    /// The deadline.
    pub deadline: Duration,
    /// Whether a user should be warned: after ten seconds, and then each time the waiting time has
    /// tripled. Ranks rarely start at the same time, and a rank may be missing for hours.
    pub is_overdue: bool,
}

impl fmt::Display for RendezvousProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, deadline) = (self.waited.as_secs(), self.deadline.as_secs());
        write!(f, "waiting for {} ({waited} s of {deadline} s)", ranks(&self.missing, self.more))?;
        match &self.on {
            Some(on) => write!(f, ": {on}"),
            None => Ok(()),
        }
    }
}

/// Called with the progress of waiting.
pub type WaitingCallback = Box<dyn FnMut(&RendezvousProgress) + Send + Sync>;

/// A deadline that restarts on progress, and shows the cause of waiting.
pub(super) struct WaitDeadline {
    began: Instant,
    deadline: Duration,
    shown: Instant,
    /// To be shown at the next check.
    is_due: bool,
    /// The waiting time at which the next warning is due.
    warning: Duration,
    progress: WaitingCallback,
}

impl fmt::Debug for WaitDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitDeadline").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl WaitDeadline {
    pub(super) fn new(deadline: Duration, progress: WaitingCallback, now: Instant) -> Self {
        Self { began: now, deadline, shown: now, is_due: false, warning: HINT_DELAY, progress }
    }

    /// Restarts the deadline: a new step, or progress.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.began, self.warning) = (now, HINT_DELAY);
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.deadline.saturating_sub(now.duration_since(self.began))
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= self.deadline
    }

    /// As [`show`](Self::show), for ranks that have not connected yet, for an unknown reason.
    pub(super) fn show_absent(&mut self, missing: &[Rank], more: usize, on: Option<String>, now: Instant) {
        let hint = (now.duration_since(self.began) >= HINT_DELAY).then(absent_rank_hint);
        let on: Vec<_> = on.into_iter().chain(hint).collect();
        self.show(missing, more, (!on.is_empty()).then(|| on.join("; ")), now);
    }

    /// When to check again: at the deadline, or to show something.
    pub(super) fn next(&self) -> Instant {
        (self.began + self.deadline).min(if self.is_due {
            self.shown
        } else {
            self.shown + PROGRESS_INTERVAL
        })
    }

    /// Shows the cause of waiting at the next check, independent of the interval.
    pub(super) fn show_now(&mut self) {
        self.is_due = true;
    }

    /// Shows the cause of waiting, at most once per interval.
    pub(super) fn show(&mut self, missing: &[Rank], more: usize, on: Option<String>, now: Instant) {
        if now.duration_since(self.shown) < PROGRESS_INTERVAL && !self.is_due {
            return;
        }
        (self.shown, self.is_due) = (now, false);
        let (missing, waited) = (missing.to_vec(), now.duration_since(self.began));
        let is_overdue = waited >= self.warning;
        if is_overdue {
            self.warning = waited * 3;
        }
        let waiting = RendezvousProgress { missing, more, on, waited, deadline: self.deadline, is_overdue };
        (self.progress)(&waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_displays_as_one_line() {
        let mut waiting = RendezvousProgress {
            missing: vec![Rank(2), Rank(5)],
            more: 7,
            on: None,
            waited: Duration::from_millis(12_700),
            deadline: Duration::from_secs(300),
            is_overdue: true,
        };
        assert_eq!(waiting.to_string(), "waiting for ranks 2, 5 and 7 others (12 s of 300 s)");
        waiting.on = Some("rank 0 lists s3://bucket".to_owned());
        assert!(waiting.to_string().ends_with("(12 s of 300 s): rank 0 lists s3://bucket"));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_shown_once_a_second_and_ends() {
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let show = move |waiting: &RendezvousProgress| drop(sender.send(waiting.to_string()));
        let mut wait = WaitDeadline::new(Duration::from_millis(2500), Box::new(show), Instant::now());
        while !wait.is_expired(Instant::now()) {
            tokio::time::sleep_until(wait.next()).await;
            wait.show(&[Rank(1)], 0, None, Instant::now());
        }
        drop(wait);
        let mut lines = Vec::new();
        while let Some(line) = received.recv().await {
            lines.push(line);
        }
        assert_eq!(lines, ["waiting for rank 1 (1 s of 2 s)", "waiting for rank 1 (2 s of 2 s)"]);
    }

    #[tokio::test(start_paused = true)]
    async fn warnings_of_a_long_wait_are_rare() {
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let show = move |waiting: &RendezvousProgress| {
            if waiting.is_overdue {
                sender.send((waiting.waited.as_secs(), waiting.to_string())).unwrap();
            }
        };
        let mut wait = WaitDeadline::new(Duration::from_secs(300), Box::new(show), Instant::now());
        while !wait.is_expired(Instant::now()) {
            tokio::time::sleep_until(wait.next()).await;
            wait.show_absent(&[Rank(1)], 0, None, Instant::now());
        }
        drop(wait);
        let mut warnings = Vec::new();
        while let Some((seconds, line)) = received.recv().await {
            assert!(line.contains("rank 1") && line.contains("if only some ranks"), "{line}");
            warnings.push(seconds);
        }
        assert_eq!(warnings, [10, 30, 90, 270]);
    }

    #[tokio::test(start_paused = true)]
    async fn long_wait_shows_the_remedies_for_absent_ranks() {
        let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
        let show = move |waiting: &RendezvousProgress| drop(sender.send(waiting.to_string()));
        let mut wait = WaitDeadline::new(Duration::from_secs(300), Box::new(show), Instant::now());
        for on in [None, Some("at node1:7000".to_owned())] {
            tokio::time::sleep(Duration::from_secs(6)).await;
            wait.show_absent(&[Rank(1)], 0, on, Instant::now());
        }
        assert_eq!(received.recv().await.unwrap(), "waiting for rank 1 (6 s of 300 s)");
        let line = received.recv().await.unwrap();
        assert_eq!(
            line,
            format!("waiting for rank 1 (12 s of 300 s): at node1:7000; {}", absent_rank_hint())
        );
    }
}
