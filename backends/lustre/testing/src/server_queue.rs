//! One server as a client sees it: slots, a queue in front of them, a latency, a link.
//!
//! Pure: the time is an argument, and the caller waits. A request that begins takes a slot. Its
//! bytes take their turn on the server's link and then the latency. A hung server keeps the
//! requests that would end, with their slots, so the queue grows as in a client of a dead server.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::counts::OstCounts;

/// A request, and the caller's data for it.
#[derive(Debug)]
pub(crate) struct QueuedRequest<T> {
    pub bytes: u64,
    /// Round trips in series. Two with a lock.
    pub round_trips: u32,
    pub work: T,
}

/// A request that ends at a time.
pub(crate) type Ending<T> = (Instant, QueuedRequest<T>);

#[derive(Debug)]
pub(crate) struct ServerQueue<T> {
    slots: usize,
    latency: Duration,
    bandwidth: Option<u64>,
    /// How many times slower than usual.
    slowness: f64,
    is_hung: bool,
    link_is_free_at: Option<Instant>,
    waiting: VecDeque<QueuedRequest<T>>,
    held: Vec<QueuedRequest<T>>,
    counts: OstCounts,
}

impl<T> ServerQueue<T> {
    pub fn new(slots: usize, latency: Duration, bandwidth: Option<u64>) -> Self {
        Self {
            slots: slots.max(1),
            latency,
            bandwidth,
            slowness: 1.0,
            is_hung: false,
            link_is_free_at: None,
            waiting: VecDeque::new(),
            held: Vec::new(),
            counts: OstCounts::default(),
        }
    }

    /// A request arrives. It begins now if a slot is free.
    pub fn arrive(&mut self, now: Instant, request: QueuedRequest<T>) -> Option<Ending<T>> {
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.bytes += request.bytes;
        counts.unanswered += 1;
        counts.max_unanswered = counts.max_unanswered.max(counts.unanswered);
        if counts.in_flight < self.slots {
            return Some(self.begin(now, request));
        }
        self.waiting.push_back(request);
        None
    }

    fn begin(&mut self, now: Instant, request: QueuedRequest<T>) -> Ending<T> {
        self.counts.in_flight += 1;
        self.counts.max_in_flight = self.counts.max_in_flight.max(self.counts.in_flight);
        let mut sent = now;
        if let Some(bandwidth) = self.bandwidth {
            sent = self.link_is_free_at.map_or(now, |free| free.max(now));
            sent += Duration::from_secs_f64(request.bytes as f64 / bandwidth as f64 * self.slowness);
            self.link_is_free_at = Some(sent);
        }
        (sent + self.latency.mul_f64(self.slowness) * request.round_trips, request)
    }

    /// The time of a request has come. It is answered, and the next one begins. A hung server keeps
    /// it.
    pub fn end(&mut self, now: Instant, request: QueuedRequest<T>) -> (Option<T>, Option<Ending<T>>) {
        if self.is_hung {
            self.held.push(request);
            return (None, None);
        }
        self.counts.in_flight -= 1;
        self.counts.unanswered -= 1;
        let next = self.waiting.pop_front().map(|next| self.begin(now, next));
        (Some(request.work), next)
    }

    pub fn hang(&mut self) {
        self.is_hung = true;
    }

    /// The server answers again. Kept requests end one latency from now.
    pub fn resume(&mut self, now: Instant) -> Vec<Ending<T>> {
        self.is_hung = false;
        let end = now + self.latency.mul_f64(self.slowness);
        self.held.drain(..).map(|request| (end, request)).collect()
    }

    /// Requests that begin from now on take `factor` times as long.
    pub fn slow(&mut self, factor: f64) {
        self.slowness = factor;
    }

    /// Everything that waits or is kept. Slots stay taken: the server is no longer used.
    pub fn close(&mut self) -> Vec<QueuedRequest<T>> {
        self.waiting.drain(..).chain(self.held.drain(..)).collect()
    }

    pub fn counts(&self) -> OstCounts {
        self.counts
    }

    pub fn reset_counts(&mut self) {
        let OstCounts { in_flight, unanswered, .. } = self.counts;
        self.counts = OstCounts {
            in_flight,
            max_in_flight: in_flight,
            unanswered,
            max_unanswered: unanswered,
            ..OstCounts::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn request(work: u32, bytes: u64) -> QueuedRequest<u32> {
        QueuedRequest { bytes, round_trips: 1, work }
    }

    #[test]
    fn request_without_a_slot_waits_its_turn() {
        let mut server = ServerQueue::new(2, 4 * MS, None);
        let start = Instant::now();
        let first = server.arrive(start, request(1, 0)).unwrap();
        assert_eq!(first.0, start + 4 * MS);
        assert!(server.arrive(start, request(2, 0)).is_some());
        assert!(server.arrive(start, request(3, 0)).is_none());
        assert!(server.arrive(start, request(4, 0)).is_none());
        let counts = server.counts();
        assert_eq!((counts.requests, counts.in_flight, counts.unanswered), (4, 2, 4));
        let (answered, next) = server.end(start + 4 * MS, first.1);
        let next = next.unwrap();
        assert_eq!((answered, next.0, next.1.work), (Some(1), start + 8 * MS, 3));
        assert_eq!(server.counts().max_in_flight, 2);
        server.reset_counts();
        let counts = server.counts();
        assert_eq!((counts.requests, counts.in_flight, counts.max_unanswered), (0, 2, 3));
    }

    #[test]
    fn link_sends_one_request_after_another() {
        let mut server = ServerQueue::new(8, 4 * MS, Some(1000));
        let start = Instant::now();
        assert_eq!(server.arrive(start, request(1, 10)).unwrap().0, start + 14 * MS);
        assert_eq!(server.arrive(start, request(2, 10)).unwrap().0, start + 24 * MS);
        assert_eq!(server.arrive(start + 100 * MS, request(3, 10)).unwrap().0, start + 114 * MS);
        server.slow(20.0);
        assert_eq!(server.arrive(start + 200 * MS, request(4, 10)).unwrap().0, start + 480 * MS);
    }

    #[test]
    fn lock_is_one_latency_more() {
        let mut server = ServerQueue::new(8, 4 * MS, None);
        let start = Instant::now();
        let locked = QueuedRequest { bytes: 0, round_trips: 2, work: 1 };
        assert_eq!(server.arrive(start, locked).unwrap().0, start + 8 * MS);
    }

    #[test]
    fn hung_server_keeps_requests_and_slots() {
        let mut server = ServerQueue::new(1, 4 * MS, None);
        let start = Instant::now();
        let first = server.arrive(start, request(1, 0)).unwrap();
        server.hang();
        assert!(server.arrive(start, request(2, 0)).is_none());
        let (answered, next) = server.end(start + 4 * MS, first.1);
        assert!(answered.is_none() && next.is_none());
        assert_eq!((server.counts().in_flight, server.counts().unanswered), (1, 2));
        let resumed = server.resume(start + 100 * MS);
        assert_eq!(resumed.len(), 1);
        assert_eq!((resumed[0].0, resumed[0].1.work), (start + 104 * MS, 1));
        let (answered, next) = server.end(start + 104 * MS, resumed.into_iter().next().unwrap().1);
        assert_eq!((answered, next.unwrap().1.work), (Some(1), 2));
    }

    #[test]
    fn closed_server_gives_up_what_it_has() {
        let mut server = ServerQueue::new(1, MS, None);
        let start = Instant::now();
        let first = server.arrive(start, request(1, 0)).unwrap();
        server.arrive(start, request(2, 0));
        server.hang();
        server.end(start + MS, first.1);
        let left: Vec<_> = server.close().into_iter().map(|request| request.work).collect();
        assert_eq!(left, [2, 1]);
    }
}
