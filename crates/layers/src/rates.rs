//! The lines of a limit: who waits, by what ceiling, and who may go next.
//!
//! Every origin has a line and a [`Rate`] of its own; a prefix of it that turns out to have its own ceiling gets
//! both as well ([`Suspects`] finds it). A request is held up by its own line's rate alone; of those that may go, the
//! earliest due goes first, whichever line it is in. There are as many lines as origins, and [`OWN`] prefixes at most:
//! what is found beyond these is slowed with its origin.

use std::sync::Arc;
use std::time::Duration;

use foreread_tier::Object;
use tokio::time::Instant;

use crate::gate::{Entry, Line, Turn, Waiter};
use crate::rate::{Rate, Verdict};
use crate::suspects::{LASTS, Suspects, Ticket};

/// Prefixes with a rate of their own.
const OWN: usize = 32;
/// The parts of an object's directory that make its prefix.
const PARTS: usize = 2;

/// What a request is counted under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    /// The first parts of the directory that an object lies in; objects without one are counted together.
    pub(crate) fn of(object: &Object) -> Self {
        Self::of_path(&object.path)
    }

    /// FNV-1a: equal on every machine, and two prefixes with one mark would only share a rate.
    pub(crate) fn of_path(path: &str) -> Self {
        let directory = path.rfind('/').map_or(0, |end| end);
        let mut parts = 0;
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in path.as_bytes()[..directory].iter().copied() {
            parts += usize::from(byte == b'/');
            if parts == PARTS {
                break;
            }
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(hash)
    }
}

/// What a request under way is counted under, and what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) mark: Mark,
    pub(crate) ticket: Option<Ticket>,
}

/// Requests under one ceiling.
#[derive(Debug)]
struct Group {
    origin: usize,
    /// `None`: all of the origin's that have no group of their own.
    prefix: Option<Mark>,
    rate: Rate,
    line: Line,
}

impl Group {
    /// Whether its requests wait for a rate.
    fn is_slowed(&self) -> bool {
        self.prefix.is_some() || self.rate.clear().is_some()
    }
}

/// All lines of a limit.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    began: Option<Instant>,
    groups: Vec<Group>,
    /// By origin.
    suspects: Vec<Suspects>,
    joined: u64,
    /// When a store complained last.
    complained: Option<Duration>,
}

impl Rates {
    /// A line for one more origin.
    pub(crate) fn add_origin(&mut self) -> usize {
        let origin = self.suspects.len();
        self.suspects.push(Suspects::default());
        self.groups.push(Group { origin, prefix: None, rate: Rate::new(), line: Line::default() });
        origin
    }

    fn at(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.began.get_or_insert(now))
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.groups.iter().map(|group| group.line.len()).sum()
    }

    /// The lowest of all rates, in requests a second.
    pub(crate) fn lowest(&self) -> Option<f64> {
        self.groups.iter().filter_map(|group| group.rate.per_second()).min_by(f64::total_cmp)
    }

    fn find(&self, origin: usize, mark: Mark) -> usize {
        let mut base = 0;
        for (at, group) in self.groups.iter().enumerate().filter(|(_, group)| group.origin == origin) {
            match group.prefix {
                Some(prefix) if prefix == mark => return at,
                Some(_) => {}
                None => base = at,
            }
        }
        base
    }

    /// Whether requests may leave as they come: nobody waits, no store has complained for as long as a suspicion lasts, and
    /// none has been given a rate.
    pub(crate) fn is_free(&mut self, now: Option<Instant>) -> bool {
        if let (Some(last), Some(now)) = (self.complained, now)
            && (self.at(now).saturating_sub(last) < LASTS || self.groups.iter().any(Group::is_slowed))
        {
            return false;
        }
        self.complained = None;
        self.waiting() == 0
    }

    /// So many requests of an origin leave now, which they may while all [is free](Self::is_free); a limit that knows no time counts none.
    pub(crate) fn left(&mut self, now: Option<Instant>, origin: usize, requests: usize) {
        if let Some(now) = now {
            let (now, base) = (self.at(now), self.find(origin, Mark::default()));
            self.groups[base].rate.left(now, requests);
        }
    }

    pub(crate) fn join(&mut self, origin: usize, mark: Mark, entry: Entry) {
        let at = self.find(origin, mark);
        let number = self.joined;
        self.joined += 1;
        self.groups[at].line.push(Entry { number, mark, ..entry });
    }

    /// The next who may go now, and what its request is counted under.
    pub(crate) fn pop(&mut self, now: Option<Instant>) -> Option<(Arc<Waiter>, Turn)> {
        let now = now.map(|now| self.at(now));
        let may = |group: &Group| group.rate.clear().is_none_or(|clear| now.is_none_or(|now| clear <= now));
        let heads = self.groups.iter_mut().filter(|group| may(group));
        let first =
            heads.filter(|group| group.line.len() > 0).max_by(|a, b| a.line.peek().cmp(&b.line.peek()))?;
        let Entry { waiter, place, mark, .. } = first.line.pop()?;
        let suspects = &mut self.suspects[first.origin];
        let marked = now.map(|now| {
            first.rate.left(now, 1);
            let ticket = first.prefix.is_none().then(|| suspects.left(mark));
            Marked { mark, ticket }
        });
        Some((waiter, Turn { place, marked }))
    }

    /// When the next who is held up by a rate may go, and who it is.
    pub(crate) fn next(&self) -> Option<(Instant, Arc<Waiter>)> {
        let began = self.began?;
        let held = self.groups.iter().filter_map(|group| Some((group.rate.clear()?, group.line.peek()?)));
        let (clear, entry) = held.min_by_key(|(clear, _)| *clear)?;
        Some((began + clear, Arc::clone(&entry.waiter)))
    }

    pub(crate) fn leave(&mut self, waiter: &Arc<Waiter>) {
        self.groups.iter_mut().for_each(|group| group.line.leave(waiter));
    }

    /// A request has been answered. Whether a rate was changed for it.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        started: Instant,
        origin: usize,
        (mark, ticket): (Option<Mark>, Option<Ticket>),
        verdict: Verdict,
    ) -> bool {
        let (now, started) = (self.at(now), self.at(started));
        if verdict == Verdict::Refused {
            self.complained = Some(now);
        }
        let at = self.find(origin, mark.unwrap_or_default());
        let group = &mut self.groups[at];
        if let (None, Some(mark)) = (group.prefix, mark) {
            self.suspects[origin].answered(now, mark, ticket, verdict);
        }
        let cut = group.rate.answered(now, started, verdict);
        let own = self.groups[at].prefix.is_none() && verdict == Verdict::Refused && self.split(now, origin);
        cut || own
    }

    /// A request was refused that was not counted when it [left](Self::left), at `started`. Whether a rate was changed for it.
    pub(crate) fn refused_beside(
        &mut self,
        now: Instant,
        started: Instant,
        origin: usize,
        mark: Mark,
    ) -> bool {
        let (began, at) = (self.at(started), self.find(origin, mark));
        self.groups[at].rate.left_beside(began);
        self.answered(now, started, origin, (Some(mark), None), Verdict::Refused)
    }

    /// Gives a prefix that alone is refused a line of its own; the rate of the others rises from where it was.
    fn split(&mut self, now: Duration, origin: usize) -> bool {
        if self.groups.iter().filter(|group| group.prefix.is_some()).count() >= OWN {
            return false;
        }
        let Some(guilty) = self.suspects[origin].convict() else { return false };
        let rate = Rate::learnt(now, guilty.seconds, guilty.requests, guilty.refused);
        let mark = guilty.prefix;
        let base = self.find(origin, mark);
        let line = self.groups[base].line.split_off(mark);
        self.groups[base].rate.rise_again(now);
        tracing::debug!(rate = rate.per_second(), "a prefix has a rate of its own");
        self.groups.push(Group { origin, prefix: Some(mark), rate, line });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All requests of a run once went the long way after its first refusal.
    #[test]
    fn one_refusal_is_forgotten_after_a_while() {
        let (mut rates, began) = (Rates::default(), Instant::now());
        let origin = rates.add_origin();
        assert!(rates.is_free(Some(began)));
        rates.answered(began, began, origin, (None, None), Verdict::Refused);
        assert!(!rates.is_free(Some(began)) && !rates.is_free(Some(began + LASTS / 2)));
        rates.answered(began + LASTS / 2, began, origin, (None, None), Verdict::Admitted);
        assert!(rates.is_free(Some(began + LASTS)));
    }

    #[test]
    fn store_that_keeps_refusing_is_not_forgotten() {
        let (mut rates, began) = (Rates::default(), Instant::now());
        let origin = rates.add_origin();
        let at = |number: u32| began + Duration::from_millis(10) * number;
        for number in 0..1000 {
            rates.left(Some(at(number)), origin, 1);
            rates.answered(at(number), at(number), origin, (None, None), Verdict::Refused);
        }
        assert!(!rates.is_free(Some(at(1000) + 2 * LASTS)), "it has been given a rate");
    }
}
