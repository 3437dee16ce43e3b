//! How fast another store answers, and for how long it gets no requests after it was slow.
//!
//! A store that answers steadily may take long for a request: a job requests its look-ahead at
//! once, and a network may need seconds for it. So a store is slow only if a request is old and all
//! open ones would take much longer at the present rate.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// A request to another store may take this long, and this many times as long as reads of the own
/// storage take. All open requests may take [`PATIENCE`] times as long. Otherwise all requests to
/// that store end, and samples are read from storage for some time. One request then tries whether
/// the store is fast again.
///
/// A store that waits for the same storage is not slow. So reads of the own storage that are under
/// way count with the time so far. Without any, its speed is not known.
const SLOW: Duration = Duration::from_secs(3);
const SLOWER: u32 = 4;
const UNKNOWN: Duration = Duration::from_secs(7);
const PATIENCE: f64 = 8.0;
const REST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(120));

/// The requests to another store that have no answer.
#[derive(Debug, Default)]
pub(super) struct LinkPace {
    /// When each was sent and its bytes, by its number.
    open: BTreeMap<u64, (Instant, u64)>,
    open_bytes: u64,
    next: u64,
    /// The bytes of all answers, and how many there were at earlier looks.
    answered: u64,
    looks: VecDeque<(Instant, u64)>,
    /// Until when no sample is requested, and how long that is.
    rests: Option<(Instant, Duration)>,
}

impl LinkPace {
    /// Counts a request and returns its number. `None` if the other store rests, and this is not
    /// the request that tries.
    pub(super) fn begin(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        if self.rests.is_some_and(|(until, _)| now < until || !self.open.is_empty()) {
            return None;
        }
        self.next += 1;
        self.open.insert(self.next, (now, bytes));
        self.open_bytes += bytes;
        Some(self.next)
    }

    /// A request has ended.
    pub(super) fn end(&mut self, number: u64) {
        if let Some((_, bytes)) = self.open.remove(&number) {
            self.open_bytes -= bytes;
        }
    }

    /// A request was answered: the other store does not rest any more.
    pub(super) fn answered(&mut self, bytes: u64) {
        self.answered += bytes;
        self.rests = None;
    }

    /// Begins a rest and ends all requests if the store is slow, where reads of the own storage
    /// take `wait`. Returns the age of the oldest request, and the time of the rest.
    pub(super) fn rest(&mut self, wait: Option<Duration>, now: Instant) -> Option<(Duration, Duration)> {
        let most = SLOW + wait.unwrap_or(UNKNOWN) * SLOWER;
        self.looks.push_back((now, self.answered));
        while self.looks.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= most) {
            self.looks.pop_front();
        }
        let (begun, _) = self.open.values().next()?;
        let oldest = now.duration_since(*begun);
        let (then, before) = *self.looks.front()?;
        let rate = (self.answered - before) as f64 / now.duration_since(then).as_secs_f64().max(0.001);
        if oldest < most || self.open_bytes as f64 <= rate * most.as_secs_f64() * PATIENCE {
            return None;
        }
        self.open.clear();
        self.open_bytes = 0;
        let rest = self.rests.map_or(REST.0, |(_, rest)| (rest * 2).min(REST.1));
        self.rests = Some((now + rest, rest));
        Some((oldest, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FAST: Option<Duration> = Some(Duration::ZERO);

    #[test]
    // semantics: CONTROL-11
    fn slow_node_gets_no_requests_for_a_time_that_doubles() {
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        let at = |seconds: u32| begun + seconds * SECOND;
        assert!(pace.begin(5, at(0)).is_some() && pace.begin(5, at(2)).is_some());
        assert_eq!(pace.rest(FAST, at(3) - SECOND / 1000), None);
        assert_eq!(pace.rest(FAST, at(3)), Some((3 * SECOND, 5 * SECOND)));
        // All requests have ended, so no other look makes the rest longer.
        assert_eq!(pace.rest(FAST, at(3)), None);
        assert_eq!(pace.begin(5, at(8) - SECOND / 1000), None);
        // One request tries, and the node is still slow.
        assert!(pace.begin(5, at(8)).is_some() && pace.begin(5, at(8)).is_none());
        assert_eq!(pace.rest(FAST, at(11)), Some((3 * SECOND, 10 * SECOND)));
        let number = pace.begin(5, at(21)).unwrap();
        pace.answered(5);
        pace.end(number);
        assert!(pace.begin(5, at(21)).is_some() && pace.begin(5, at(21)).is_some());
        let mut rests = Vec::new();
        let mut now = at(24);
        while rests.len() < 7 {
            let (_, rest) = pace.rest(FAST, now).unwrap();
            rests.push(rest.as_secs());
            assert!(pace.begin(5, now + rest).is_some());
            now += rest + SLOW;
        }
        assert_eq!(rests, [5, 10, 20, 40, 80, 120, 120]);
    }

    #[test]
    // semantics: CONTROL-11
    fn node_may_be_slow_where_the_own_stores_are() {
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        pace.begin(5, begun).unwrap();
        assert_eq!(pace.rest(Some(2 * SECOND), begun + 10 * SECOND), None);
        assert_eq!(pace.rest(Some(2 * SECOND), begun + 11 * SECOND), Some((11 * SECOND, 5 * SECOND)));
        // Without reads of its own, this store does not know.
        let mut pace = LinkPace::default();
        pace.begin(5, begun).unwrap();
        assert_eq!(pace.rest(None, begun + 30 * SECOND), None);
        assert_eq!(pace.rest(None, begun + 31 * SECOND), Some((31 * SECOND, 5 * SECOND)));
    }

    /// A gigabyte at once, which the network brings within ten seconds. Or a hundredth as fast.
    #[test]
    // semantics: CONTROL-11, RANK-18
    fn node_that_answers_at_the_rate_of_its_network_is_not_slow() {
        for (rate, is_slow) in [(100, false), (1, true)] {
            let (mut pace, begun) = (LinkPace::default(), Instant::now());
            let numbers: Vec<u64> = (0..1000).map(|_| pace.begin(1_000_000, begun).unwrap()).collect();
            let (mut rests, mut sent) = (None, 0);
            for look in 0..40_usize {
                for number in &numbers[sent..(look * rate / 4).min(1000)] {
                    pace.answered(1_000_000);
                    pace.end(*number);
                }
                sent = look * rate / 4;
                rests = rests.or(pace.rest(FAST, begun + look as u32 * SECOND / 4));
            }
            assert_eq!(rests.is_some(), is_slow, "{rate} MB/s");
        }
    }
}
