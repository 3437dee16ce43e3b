//! When an agent counts as silent, and when a job without one connects again.
//!
//! The functions here have no clock: the receiver calls them with the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an agent may give no sign of life while a request is open.
pub const SILENCE: Duration = Duration::from_millis(250);

/// The same in this process, in milliseconds.
static SILENCE_HERE: AtomicU64 = AtomicU64::new(SILENCE.as_millis() as u64);

/// Takes agents for silent after another time, in this process: on a busy machine, tests need an
/// agent that is late.
#[doc(hidden)]
pub fn silent_after(time: Duration) {
    SILENCE_HERE.store(time.as_millis() as u64, Ordering::Relaxed);
}

fn silence() -> Duration {
    Duration::from_millis(SILENCE_HERE.load(Ordering::Relaxed))
}

/// How long an agent is silent before it is pinged.
const PING_AFTER: Duration = Duration::from_millis(100);

/// The pauses before connecting again: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The pause after a refusal, which would come again.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// How long an agent may take to answer a connection, and may be silent while a job attaches.
const ATTACH_SILENCE: Duration = Duration::from_secs(2);

/// How long it may take to answer a call, for which it may have to open storage.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a call that began at `begun` has taken too long. `heard`: the agent's last message.
pub(crate) fn is_late(heard: Option<Instant>, begun: Instant, now: Instant) -> bool {
    let heard = heard.map_or(begun, |heard| heard.max(begun));
    now.duration_since(heard) > attach_silence() || now.duration_since(begun) > CALL_TIMEOUT
}

/// [`ATTACH_SILENCE`], unless an agent may be silent for longer in this process.
pub(crate) fn attach_silence() -> Duration {
    ATTACH_SILENCE.max(silence())
}

/// The result of a look at an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing is to be done.
    Quiet,
    /// The agent is to be pinged.
    Ping,
    /// The agent is silent: open requests are read directly.
    Silent,
    /// The silent agent answers again.
    Answers,
}

/// Whether an agent gives signs of life.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Since when it is silent.
    silent: Option<Instant>,
    pinged: Option<Instant>,
    /// Whether it seemed silent at the last look.
    is_suspected: bool,
}

impl Watch {
    /// Looks at an agent whose last message came at `heard`. Requests are open since `open_since`.
    pub(crate) fn look(&mut self, heard: Option<Instant>, open_since: Option<Instant>, now: Instant) -> Look {
        if let Some(since) = self.silent {
            if heard.is_some_and(|heard| heard > since) {
                self.silent = None;
                return Look::Answers;
            }
            return self.ping(now);
        }
        let Some(open_since) = open_since else { return Look::Quiet };
        let quiet = now.duration_since(heard.map_or(open_since, |heard| heard.max(open_since)));
        let is_silent =
            quiet >= silence() && self.pinged.is_some_and(|pinged| now.duration_since(pinged) <= quiet);
        // On a busy machine the receiver is late itself. Messages that have arrived meanwhile are
        // received first.
        let was_suspected = std::mem::replace(&mut self.is_suspected, is_silent);
        match is_silent {
            true if was_suspected => {
                self.silent = Some(now);
                Look::Silent
            }
            false if quiet >= PING_AFTER => self.ping(now),
            _ => Look::Quiet,
        }
    }

    fn ping(&mut self, now: Instant) -> Look {
        if self.pinged.is_some_and(|pinged| now.duration_since(pinged) < PING_AFTER) {
            return Look::Quiet;
        }
        self.pinged = Some(now);
        Look::Ping
    }
}

/// The pauses of a job that looks for an agent.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: RECONNECT.0 }
    }
}

impl Pauses {
    /// The pause before the next attempt, after an agent has served for this time. It is longer by
    /// the part `jitter`.
    pub(crate) fn next(&mut self, served: Option<Duration>, jitter: f64) -> Duration {
        if served.is_some_and(|served| served > RECONNECT.1) {
            self.next = RECONNECT.0;
        }
        let pause = self.next;
        self.next = (pause * 2).min(RECONNECT.1);
        pause + pause.mul_f64(jitter)
    }

    /// The agent has refused the job.
    pub(crate) fn refused(&mut self) {
        self.next = REFUSED_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Looks every 10 ms at an agent that answers pings after `latency`, until it is not quiet.
    /// Returns when that was, since the first look.
    fn silent_after(latency: Option<Duration>, looks: u32) -> Option<Duration> {
        let begun = Instant::now();
        let (mut watch, mut heard, mut answers) = (Watch::default(), None, Vec::new());
        for look in 0..looks {
            let now = begun + 10 * look * MS;
            heard = answers.iter().copied().filter(|at| *at <= now).max().max(heard);
            match watch.look(heard, Some(begun), now) {
                Look::Ping => answers.extend(latency.map(|latency| now + latency)),
                Look::Silent => return Some(now - begun),
                Look::Quiet | Look::Answers => {}
            }
        }
        None
    }

    #[test]
    // semantics: AGENT-6, RANK-39
    fn agent_without_a_sign_of_life_is_silent_after_250_ms() {
        // The second look that finds it silent decides.
        assert_eq!(silent_after(None, 1000), Some(260 * MS));
        // Its storage may take any time, as long as pings are answered.
        assert_eq!(silent_after(Some(100 * MS), 1000), None);
        assert_eq!(silent_after(Some(400 * MS), 1000), Some(260 * MS));
    }

    #[test]
    // semantics: AGENT-6
    fn silent_agent_that_answers_a_ping_is_used_again() {
        let begun = Instant::now();
        let at = |ms: u32| begun + ms * MS;
        let mut watch = Watch::default();
        assert_eq!(watch.look(None, None, at(0)), Look::Quiet, "without requests nothing is expected");
        assert_eq!(watch.look(None, None, at(5000)), Look::Quiet);
        let open = Some(at(5000));
        assert_eq!(watch.look(None, open, at(5099)), Look::Quiet);
        assert_eq!(watch.look(None, open, at(5100)), Look::Ping);
        assert_eq!(watch.look(None, open, at(5249)), Look::Ping);
        assert_eq!(watch.look(None, open, at(5250)), Look::Quiet, "messages may have arrived");
        assert_eq!(watch.look(None, open, at(5251)), Look::Silent);
        // The message came before the silence.
        assert_eq!(watch.look(Some(at(5240)), None, at(5300)), Look::Quiet);
        assert_eq!(watch.look(Some(at(5240)), None, at(5400)), Look::Ping);
        assert_eq!(watch.look(Some(at(5410)), None, at(5420)), Look::Answers);
        assert_eq!(watch.look(Some(at(5410)), Some(at(5415)), at(5500)), Look::Quiet);
    }

    #[test]
    // semantics: AGENT-6
    fn receiver_that_was_stopped_pings_before_it_gives_up() {
        let begun = Instant::now();
        let mut watch = Watch::default();
        // It was not running for ten seconds, so no ping was sent. Looks are 100 ms apart.
        let at = |look: u32| begun + (10_000 + 100 * look) * MS;
        assert_eq!(watch.look(None, Some(begun), at(0)), Look::Ping);
        assert_eq!(watch.look(None, Some(begun), at(1)), Look::Quiet);
        assert_eq!(watch.look(Some(at(1)), Some(begun), at(2)), Look::Ping);
        assert_eq!(watch.look(Some(at(1)), Some(begun), at(3)), Look::Ping);
        assert_eq!(watch.look(Some(at(1)), Some(begun), at(4)), Look::Quiet);
        assert_eq!(watch.look(Some(at(1)), Some(begun), at(5)), Look::Silent);
    }

    #[test]
    // semantics: AGENT-6
    fn call_is_late_after_two_seconds_of_silence_or_thirty() {
        let begun = Instant::now();
        let at = |ms: u32| begun + ms * MS;
        assert!(!is_late(None, begun, at(2000)) && is_late(None, begun, at(2001)));
        assert!(!is_late(Some(at(1500)), begun, at(3500)) && is_late(Some(at(1500)), begun, at(3501)));
        // A message of an earlier call is no answer to this one.
        assert!(is_late(Some(begun), at(1000), at(3001)) && !is_late(Some(begun), at(1000), at(3000)));
        assert!(
            !is_late(Some(at(29_999)), begun, at(30_000)) && is_late(Some(at(30_001)), begun, at(30_001))
        );
    }

    #[test]
    // semantics: AGENT-29
    fn job_looks_for_an_agent_after_half_a_second_to_ten() {
        let mut pauses = Pauses::default();
        let all = |pauses: &mut Pauses, count| -> Vec<u64> {
            (0..count).map(|_| pauses.next(None, 0.0).as_millis() as u64).collect()
        };
        assert_eq!(all(&mut pauses, 7), [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        // An agent that has served for some time is looked for soon.
        assert_eq!(pauses.next(Some(10_000 * MS), 0.0), 10_000 * MS);
        assert_eq!(pauses.next(Some(10_001 * MS), 0.5), 750 * MS);
        pauses.refused();
        assert_eq!(all(&mut pauses, 2), [60_000, 10_000]);
    }
}
