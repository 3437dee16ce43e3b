//! How fast another store answers, which requests it does not answer in time, and for how long it
//! gets none after it was slow.
//!
//! A store that answers steadily may take long for a request: a job requests its look-ahead at
//! once, and a network may need seconds for it. So a request is late only if the store sends less
//! than a quarter of the rate of storage here. It must also need long for all open requests, or
//! send very much less. And a store is slow only if all open requests would take much longer at the
//! present rate. A sample of a late request is read from storage.
//!
//! The price: a store whose storage is faster than this one's, and not known here, is waited for
//! until it is slow, or silent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request may take this long where storage here is faster, and twice as long as a read there.
const LATE: Duration = Duration::from_secs(1);

/// A store that sends less than this part of the rate of storage is late, as its inverse.
const LATE_PART: f64 = 4.0;

/// No request is late if all open ones take so many seconds at the present rate. The store must
/// send at least this part of the rate of storage, as its inverse.
const TOLERATED: f64 = 5.0;
const TOLERATED_PART: f64 = 64.0;

/// Late requests of one look bring storage work for this time at most.
const HEDGED_TIME: f64 = 0.5;

/// A request may take this long, and this many times as long as reads of the own storage take. All
/// open requests may take [`PATIENCE`] times as long. Otherwise all requests to that store end, and
/// samples are read from storage for some time. One request then tries whether the store is fast
/// again.
///
/// A store that waits for the same storage is not slow. So reads of the own storage that are under
/// way count with the time so far. Without any, its speed is not known.
const SLOW: Duration = Duration::from_secs(3);
const SLOWER: u32 = 4;
const UNKNOWN: Duration = Duration::from_secs(7);
const PATIENCE: f64 = 8.0;
const REST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(120));

/// How fast storage is here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoragePace {
    /// The time of a read. `None`: not known.
    pub(super) wait: Option<Duration>,
    /// Bytes per second of all reads together, for each of the other stores. `None`: not known.
    pub(super) rate: Option<u64>,
}

/// A request without an answer.
#[derive(Debug)]
struct OpenRequest {
    sent: Instant,
    bytes: u64,
    /// Dropped when the sample is to be read from storage.
    _end: oneshot::Sender<()>,
}

/// The requests to another store that have no answer.
#[derive(Debug, Default)]
pub(super) struct LinkPace {
    open: BTreeMap<u64, OpenRequest>,
    open_bytes: u64,
    next: u64,
    /// The bytes of all answers, and how many there were at earlier looks.
    answered: u64,
    looks: VecDeque<(Instant, u64)>,
    /// The time of the first late request since the store was fast enough, and the time at which a
    /// request was last found late.
    late: Option<(Instant, Instant)>,
    /// Until when no sample is requested. `None` if the store does not rest.
    rests: Option<Instant>,
    /// The last rest, and when its store answered again.
    last_rest: Option<(Duration, Instant)>,
}

impl LinkPace {
    /// Counts a request. Returns its number, and a channel that closes when the request is late.
    /// `None` if the other store rests, and this request is not the probe.
    pub(super) fn begin(&mut self, bytes: u64, now: Instant) -> Option<(u64, oneshot::Receiver<()>)> {
        if self.rests.is_some_and(|until| now < until || !self.open.is_empty()) {
            return None;
        }
        self.next += 1;
        let (end, ended) = oneshot::channel();
        self.open.insert(self.next, OpenRequest { sent: now, bytes, _end: end });
        self.open_bytes += bytes;
        Some((self.next, ended))
    }

    /// A request has ended.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(OpenRequest { bytes, .. }) = self.open.remove(&number) {
            self.open_bytes -= bytes;
        }
    }

    /// Ends all requests: the other store is not reached.
    pub(super) fn end_all(&mut self) {
        self.open.clear();
        (self.open_bytes, self.late) = (0, None);
    }

    /// A request was answered: the other store does not rest any more.
    pub(super) fn answered(&mut self, bytes: u64, now: Instant) {
        self.answered += bytes;
        if self.rests.take().is_some()
            && let Some((_, answered)) = &mut self.last_rest
        {
            *answered = now;
        }
    }

    /// The bytes per second of answers since the look that was `time` ago, or since the first.
    fn rate(&self, time: Duration, now: Instant) -> f64 {
        let is_before = |(then, _): &&(Instant, u64)| now.duration_since(*then) >= time;
        let since = self.looks.iter().rev().find(is_before).or(self.looks.front());
        let Some((then, before)) = since else { return 0.0 };
        (self.answered - before) as f64 / now.duration_since(*then).as_secs_f64().max(0.001)
    }

    /// Notes how much was answered so far. Returns whether a request may be late. Call it
    /// regularly.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        self.looks.push_back((now, self.answered));
        let first = self.open.values().next().map(|request| request.sent);
        let is_old = first.is_some_and(|sent| now.duration_since(sent) >= LATE);
        if !is_old && self.late.is_none() {
            // Only the last second counts once a request is late.
            while self.looks.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= LATE) {
                self.looks.pop_front();
            }
        }
        is_old || self.late.is_some()
    }

    /// Ends the late requests, and returns how many. After each [`look`](Self::look) that says so.
    pub(super) fn end_late(&mut self, storage: StoragePace, now: Instant) -> usize {
        let StoragePace { wait: Some(wait), rate: Some(rate) } = storage else { return 0 };
        let present = self.rate(LATE, now);
        if present * LATE_PART >= rate as f64 {
            self.late = None;
            return 0;
        }
        let is_tolerated = present * TOLERATED_PART >= rate as f64;
        if is_tolerated && present * TOLERATED >= self.open_bytes as f64 {
            self.late.take_if(|(_, last)| now.duration_since(*last) > 2 * LATE);
            return 0;
        }
        let (most, mut left) = (LATE.max(wait * 2), rate as f64 * HEDGED_TIME);
        let mut late = Vec::new();
        for (number, request) in &self.open {
            if now.duration_since(request.sent) < most || !late.is_empty() && left < request.bytes as f64 {
                break;
            }
            left -= request.bytes as f64;
            self.late = Some((self.late.map_or(request.sent, |(since, _)| since), now));
            late.push(*number);
        }
        late.iter().for_each(|number| self.end(*number));
        late.len()
    }

    /// Begins a rest and ends all requests if the store is slow. Returns the age of the oldest
    /// request, and the time of the rest. After each [`look`](Self::look) that says so.
    pub(super) fn rest(&mut self, storage: StoragePace, now: Instant) -> Option<(Duration, Duration)> {
        let most = SLOW + storage.wait.unwrap_or(UNKNOWN) * SLOWER;
        while self.looks.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= most) {
            self.looks.pop_front();
        }
        let oldest = self.open.values().next().map(|request| request.sent);
        let would_take = self.rate(most, now) * most.as_secs_f64() * PATIENCE;
        let is_old = |since: &Instant| now.duration_since(*since) >= most;
        let oldest = oldest.filter(|_| self.open_bytes as f64 > would_take).filter(is_old);
        let since = self.late.map(|(since, _)| since).filter(is_old).or(oldest)?;
        self.open.clear();
        (self.open_bytes, self.late) = (0, None);
        // It was slow again soon after it had rested, or has not answered since.
        let is_again = |(rest, answered): &(Duration, Instant)| {
            self.rests.is_some() || now.duration_since(*answered) < most + *rest * 2
        };
        let rest = self.last_rest.filter(is_again).map_or(REST.0, |(rest, _)| (rest * 2).min(REST.1));
        self.rests = Some(now + rest);
        self.last_rest = Some((rest, now));
        Some((now.duration_since(since), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LinkPace {
        /// Looks at the requests, and returns the rest that follows.
        fn rests(&mut self, storage: StoragePace, now: Instant) -> Option<(Duration, Duration)> {
            self.looked(storage, now).1
        }

        fn looked(&mut self, storage: StoragePace, now: Instant) -> (usize, Option<(Duration, Duration)>) {
            match self.look(now) {
                true => (self.end_late(storage, now), self.rest(storage, now)),
                false => (0, None),
            }
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const FAST: StoragePace = StoragePace { wait: Some(Duration::ZERO), rate: None };

    #[test]
    // semantics: CONTROL-11, RANK-21
    fn slow_node_gets_no_requests_for_a_time_that_doubles() {
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        let at = |seconds: u32| begun + seconds * SECOND;
        assert!(pace.begin(5, at(0)).is_some() && pace.begin(5, at(2)).is_some());
        assert_eq!(pace.rests(FAST, at(3) - SECOND / 1000), None);
        assert_eq!(pace.rests(FAST, at(3)), Some((3 * SECOND, 5 * SECOND)));
        // All requests have ended, so no other look makes the rest longer.
        assert_eq!(pace.rests(FAST, at(3)), None);
        assert!(pace.begin(5, at(8) - SECOND / 1000).is_none());
        // One request tries, and the node is still slow.
        assert!(pace.begin(5, at(8)).is_some() && pace.begin(5, at(8)).is_none());
        assert_eq!(pace.rests(FAST, at(11)), Some((3 * SECOND, 10 * SECOND)));
        let (number, _) = pace.begin(5, at(21)).unwrap();
        pace.answered(5, at(21));
        pace.end(number);
        assert!(pace.begin(5, at(21)).is_some() && pace.begin(5, at(21)).is_some());
        // It was fast for some time.
        let mut rests = Vec::new();
        let mut now = at(60);
        while rests.len() < 7 {
            let (_, rest) = pace.rests(FAST, now).unwrap();
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
        assert_eq!(pace.rests(StoragePace { wait: Some(2 * SECOND), rate: None }, begun + 10 * SECOND), None);
        assert_eq!(
            pace.rests(StoragePace { wait: Some(2 * SECOND), rate: None }, begun + 11 * SECOND),
            Some((11 * SECOND, 5 * SECOND))
        );
        // Without reads of its own, this store does not know.
        let mut pace = LinkPace::default();
        pace.begin(5, begun).unwrap();
        assert_eq!(pace.rests(StoragePace::default(), begun + 30 * SECOND), None);
        assert_eq!(pace.rests(StoragePace::default(), begun + 31 * SECOND), Some((31 * SECOND, 5 * SECOND)));
    }

    /// A gigabyte at once, which the network brings within ten seconds. Or a hundredth as fast.
    #[test]
    // semantics: CONTROL-11, RANK-18
    fn node_that_answers_at_the_rate_of_its_network_is_not_slow() {
        for (rate, is_slow) in [(100, false), (1, true)] {
            let (mut pace, begun) = (LinkPace::default(), Instant::now());
            let numbers: Vec<u64> = (0..1000).map(|_| pace.begin(1_000_000, begun).unwrap().0).collect();
            let (mut rests, mut sent) = (None, 0);
            for look in 0..40_usize {
                for number in &numbers[sent..(look * rate / 4).min(1000)] {
                    pace.answered(1_000_000, begun);
                    pace.end(*number);
                }
                sent = look * rate / 4;
                rests = rests.or(pace.rests(FAST, begun + look as u32 * SECOND / 4));
            }
            assert_eq!(rests.is_some(), is_slow, "{rate} MB/s");
        }
    }

    /// Storage brings 100 MB/s here. The other store sends that, a half of it, or nothing.
    #[test]
    // semantics: RANK-18
    fn late_requests_of_a_store_below_a_quarter_end_after_a_second() {
        let storage = StoragePace { wait: Some(SECOND / 50), rate: Some(100_000_000) };
        for (rate, is_late) in [(100, false), (50, false), (0, true)] {
            let (mut pace, begun) = (LinkPace::default(), Instant::now());
            let mut open: VecDeque<(u64, oneshot::Receiver<()>)> =
                (0..400).map(|_| pace.begin(1_000_000, begun).unwrap()).collect();
            let mut first = None;
            for look in 0..8_u32 {
                let now = begun + look * SECOND / 4;
                for _ in 0..(if look == 0 { 0 } else { rate / 4 }) {
                    pace.answered(1_000_000, now);
                    pace.end(open.pop_front().unwrap().0);
                }
                let (late, rest) = pace.looked(storage, now);
                assert_eq!(rest, None);
                if late > 0 && first.is_none() {
                    // The first requests, as many as storage reads in half a second.
                    assert_eq!((late, look), (50, 4), "{rate} MB/s");
                    use oneshot::error::TryRecvError::Closed;
                    let is_ended = |end: &mut oneshot::Receiver<()>| end.try_recv() == Err(Closed);
                    assert_eq!(open.iter_mut().map(|it| is_ended(&mut it.1)).filter(|it| *it).count(), 50);
                    first = Some(look);
                }
            }
            assert_eq!(first.is_some(), is_late, "{rate} MB/s");
        }
        // A store that was late, and answers its few open requests in time, does not rest.
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        pace.begin(1_000_000, begun).unwrap();
        assert_eq!(pace.looked(storage, begun + SECOND).0, 1);
        for look in 5..80_u32 {
            let now = begun + look * SECOND / 4;
            let (number, _) = pace.begin(1_000_000, now).unwrap();
            pace.answered(1_000_000, now);
            pace.end(number);
            assert_eq!(pace.looked(storage, now), (0, None));
        }
        // A store that stays late rests, for longer each time.
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        let (mut rests, mut looks) = (Vec::new(), 0);
        while rests.len() < 4 {
            let now = begun + looks * SECOND / 4;
            if let Some((number, _)) = pace.begin(1_000_000, now) {
                // One sample a second.
                if looks % 4 == 0 {
                    pace.answered(1_000_000, now);
                    pace.end(number);
                }
            }
            rests.extend(pace.rests(storage, now).map(|(_, rest)| rest.as_secs()));
            looks += 1;
        }
        assert_eq!(rests, [5, 10, 20, 40]);
        // The speed of storage is not known, or that of a read is as long as the wait.
        let (mut pace, begun) = (LinkPace::default(), Instant::now());
        pace.begin(5, begun).unwrap();
        assert_eq!(pace.end_late(FAST, begun + 9 * SECOND), 0);
        let slow = StoragePace { wait: Some(5 * SECOND), rate: Some(100) };
        assert_eq!(pace.end_late(slow, begun + 9 * SECOND), 0);
        assert_eq!(pace.end_late(slow, begun + 10 * SECOND), 1);
    }
}
