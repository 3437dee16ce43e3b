//! How fast another agent answers, and for how long it gets no requests after it was slow.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A request to another agent may take this long, and this many times as long as reads of the own
/// stores take. Then all requests to that agent end, and samples are read from storage for some
/// time. One request then tries whether the agent is fast again.
const SLOW: Duration = Duration::from_secs(3);
const SLOWER: u32 = 4;
const REST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(120));

/// The requests to another agent that have no answer.
#[derive(Debug, Default)]
pub(super) struct LinkPace {
    /// When each was sent, by its number.
    open: BTreeMap<u64, Instant>,
    next: u64,
    /// Until when no sample is requested, and how long that is.
    rests: Option<(Instant, Duration)>,
}

impl LinkPace {
    /// Counts a request and returns its number. `None` if the other agent rests, and this is not
    /// the request that tries.
    pub(super) fn begin(&mut self, now: Instant) -> Option<u64> {
        if self.rests.is_some_and(|(until, _)| now < until || !self.open.is_empty()) {
            return None;
        }
        self.next += 1;
        self.open.insert(self.next, now);
        Some(self.next)
    }

    /// A request has ended.
    pub(super) fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// A request was answered: the other agent is not slow.
    pub(super) fn answered(&mut self) {
        self.rests = None;
    }

    /// Begins a rest and ends all requests, if one takes too long where reads of the own stores
    /// take `wait`. Returns the time of that one, and of the rest.
    pub(super) fn rest(&mut self, wait: Duration, now: Instant) -> Option<(Duration, Duration)> {
        let oldest = now.duration_since(*self.open.values().next()?);
        if oldest < SLOW + wait * SLOWER {
            return None;
        }
        self.open.clear();
        let rest = self.rests.map_or(REST.0, |(_, rest)| (rest * 2).min(REST.1));
        self.rests = Some((now + rest, rest));
        Some((oldest, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    // semantics: CONTROL-11
    fn slow_node_gets_no_requests_for_a_time_that_doubles() {
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        let at = |seconds: u32| begun + seconds * SECOND;
        assert!(pace.begin(at(0)).is_some() && pace.begin(at(2)).is_some());
        assert_eq!(pace.rest(Duration::ZERO, at(3) - SECOND / 1000), None);
        assert_eq!(pace.rest(Duration::ZERO, at(3)), Some((3 * SECOND, 5 * SECOND)));
        // All requests have ended, so no other look makes the rest longer.
        assert_eq!(pace.rest(Duration::ZERO, at(3)), None);
        assert_eq!(pace.begin(at(8) - SECOND / 1000), None);
        // One request tries, and the node is still slow.
        assert!(pace.begin(at(8)).is_some() && pace.begin(at(8)).is_none());
        assert_eq!(pace.rest(Duration::ZERO, at(11)), Some((3 * SECOND, 10 * SECOND)));
        let number = pace.begin(at(21)).unwrap();
        pace.answered();
        pace.end(number);
        assert!(pace.begin(at(21)).is_some() && pace.begin(at(21)).is_some());
        let mut rests = Vec::new();
        let mut now = at(24);
        while rests.len() < 7 {
            let (_, rest) = pace.rest(Duration::ZERO, now).unwrap();
            rests.push(rest.as_secs());
            assert!(pace.begin(now + rest).is_some());
            now += rest + SLOW;
        }
        assert_eq!(rests, [5, 10, 20, 40, 80, 120, 120]);
    }

    #[test]
    // semantics: CONTROL-11
    fn node_may_be_slow_where_the_own_stores_are() {
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        pace.begin(begun).unwrap();
        assert_eq!(pace.rest(2 * SECOND, begun + 10 * SECOND), None);
        assert_eq!(pace.rest(2 * SECOND, begun + 11 * SECOND), Some((11 * SECOND, 5 * SECOND)));
    }
}
