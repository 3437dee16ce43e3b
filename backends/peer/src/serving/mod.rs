//! The serving end of a connection between ranks, as a state machine.
//!
//! Input is events and the time. Output is a queue of frames, and samples that the store is to read
//! ([`ServerMachine::start`]). There is no clock, I/O, channel or hash order, so a simulation can
//! play any interleaving. [`PeerConnection`](driver::PeerConnection) owns the stream, the timer,
//! the budget and the store's replies. A connection's memory is bounded:
//!
//! * Samples requested from the store and responses that wait to be written have together at most
//!   [`ServerLimits::share`] bytes, or are one sample. Once the store reports that it reads a
//!   sample from the origin, the sample no longer counts. Slow origin reads therefore do not hold
//!   up cached samples.
//! * Waiting responses of all connections have at most [`ServerLimits::budget`] bytes, plus
//!   one response on each connection. A rank that does not read its responses holds its share and
//!   no more. A sample larger than the budget is sent when its connection has nothing else. Two
//!   ranks cannot deadlock, because each has room for one more response.
//! * Requests wait in a queue, ordered by their due time. With [`MAX_OPEN_SAMPLES`] open, the
//!   connection is not read, and the client gets backpressure.
//!
//! The client must be able to detect that this end is alive. While a request is open, a frame is
//! sent at least every [`HEARTBEAT_INTERVAL`]. Samples that wait here, in the queue or for the
//! network, are acknowledged after [`ACK_AFTER`]. Samples that the store reads from the origin are
//! acknowledged at once. Acknowledgements are sent before waiting responses. No new one is queued
//! while an earlier one waits, so a client that does not read makes no queue grow. A cancelled
//! response is not sent, unless its first bytes have left.

pub(crate) mod driver;
mod requests;
pub(crate) mod shared;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::frame::{
    FrameHeader, FrameKind, MAX_ERROR_BYTES, MAX_SAMPLES_PER_REQUEST, RequestedSample, decode_tags,
    encode_tags, status_of,
};
use foreread_connection::mac::PayloadTag;
use foreread_connection::output::FrameOutput;
use foreread_connection::{WireError, WireErrorKind};
use foreread_tier::{PeerRequest, TierError};
use foreread_types::{SampleKey, Tick};

use self::requests::OpenRequest;

#[cfg(doc)]
use self::shared::ServerLimits;

/// Heartbeat interval while a request is open.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);

/// A sample that waits here for this long is acknowledged.
pub const ACK_AFTER: Duration = Duration::from_millis(300);

/// Write timeout: a connection that accepts no byte for this long is closed.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Open samples per connection.
pub const MAX_OPEN_SAMPLES: usize = 64 << 10;

/// The most bytes, and samples, that are passed to the store in one call.
const MAX_CHUNK: (u64, usize) = (1 << 20, 64);

/// The checksum of a sample, and its tag on authenticated connections.
pub(crate) type SampleCheck = (u32, Option<PayloadTag>);

/// The store's reply to a sample.
pub(crate) enum StoreReply {
    /// It is being read from the origin.
    Reading,
    /// The result.
    Done(Result<(Bytes, SampleCheck), TierError>),
}

/// A frame that waits to be sent.
pub(crate) enum QueuedFrame<R> {
    Answer {
        /// Its part of the budget.
        _room: Option<R>,
        request: u64,
        tag: u32,
        /// Since when it waits. `None` once it was acknowledged.
        unacked_since: Option<Duration>,
    },
    /// Acknowledges samples.
    Acknowledgement,
    Heartbeat,
}

impl<R> QueuedFrame<R> {
    /// Whether it is a response to these samples of a request, in order. An empty list means all
    /// samples.
    fn is_of(&self, peer_requests: u64, tags: &[u32]) -> bool {
        match self {
            Self::Answer { request, tag, .. } => *request == peer_requests && names(tags, *tag),
            Self::Acknowledgement | Self::Heartbeat => false,
        }
    }
}

/// Whether a sorted list of tags contains this one. An empty list contains all.
fn names(tags: &[u32], tag: u32) -> bool {
    tags.is_empty() || tags.binary_search(&tag).is_ok()
}

/// The state of a connection. `R` is a part of the budget, released when it is dropped.
pub(crate) struct ServerMachine<R> {
    run: u64,
    /// The most bytes that the connection may hold.
    share: u64,
    /// Frames that wait to be sent.
    pub(crate) output: FrameOutput<QueuedFrame<R>>,
    requests: BTreeMap<u64, OpenRequest>,
    /// Open samples in `requests`.
    open: usize,
    /// Samples that wait to be started, ordered by due time, request and tag.
    queue: BinaryHeap<Reverse<(Tick, u64, u32)>>,
    /// Bytes that were started and not acknowledged by the store.
    unacked: u64,
    /// Samples that the store reads from the origin, to be acknowledged.
    origin_reads: Vec<(u64, u32)>,
    /// A response that waits for the budget.
    blocked_response: Option<(FrameHeader, Bytes, Option<PayloadTag>)>,
    /// When bytes were last sent, or the first request arrived after an idle time.
    sent: Duration,
    /// When to check for samples that have waited for long.
    check_at: Duration,
    /// Samples that were sent, their bytes, and samples that were refused, since the counters were
    /// updated.
    pub(crate) served: (u64, u64),
    pub(crate) refused: u64,
}

impl<R> ServerMachine<R> {
    /// A connection of the run with the tag `run` that may hold `share` bytes.
    pub(crate) fn new(run: u64, share: u64, output: FrameOutput<QueuedFrame<R>>) -> Self {
        Self {
            run,
            share,
            output,
            requests: BTreeMap::new(),
            open: 0,
            queue: BinaryHeap::new(),
            unacked: 0,
            origin_reads: Vec::new(),
            blocked_response: None,
            sent: Duration::ZERO,
            check_at: Duration::ZERO,
            served: (0, 0),
            refused: 0,
        }
    }

    /// Whether requests are read.
    pub(crate) fn takes_requests(&self) -> bool {
        self.open < MAX_OPEN_SAMPLES
    }

    /// Whether nothing is open and nothing waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.open == 0 && self.output.is_empty()
    }

    /// Checks that a client may send this frame.
    ///
    /// # Errors
    /// It violates the protocol. The connection must end.
    pub(crate) fn expect(&self, header: &FrameHeader) -> Result<(), WireError> {
        if matches!(header.kind, FrameKind::Request | FrameKind::Cancel) && header.job == self.run {
            return Ok(());
        }
        Err(WireError::malformed(format!("unexpected frame {:?} from a client", header.kind)))
    }

    /// A request or cancellation arrived undamaged.
    ///
    /// # Errors
    /// It violates the protocol. The connection must end.
    pub(crate) fn on_request(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        now: Duration,
    ) -> Result<(), WireError> {
        let request = header.request;
        if header.kind == FrameKind::Cancel {
            let mut tags: Vec<u32> = decode_tags(payload)?.collect();
            tags.sort_unstable();
            self.cancel(request, &tags);
            return Ok(());
        }
        let samples = RequestedSample::decode(payload)?;
        if self.requests.insert(request, OpenRequest::new(&samples, now)).is_some() {
            return Err(WireError::malformed(format!("request {request} was made twice")));
        }
        if self.open == 0 {
            self.sent = now;
        }
        self.open += samples.len();
        self.queue.extend((0..).zip(samples).map(|(tag, sample)| Reverse((sample.due, request, tag))));
        Ok(())
    }

    /// These samples are no longer wanted. An empty list means the whole request. Queued samples
    /// stay in the queue until their turn. The queue is compacted when most of it is cancelled, so
    /// that a client cannot make it grow.
    fn cancel(&mut self, request: u64, tags: &[u32]) {
        if let Some(known) = self.requests.get_mut(&request) {
            let all = if tags.is_empty() { known.tags() } else { 0..0 };
            for freed in tags.iter().copied().chain(all).filter_map(|tag| known.close(tag)) {
                self.open -= 1;
                self.unacked -= freed;
            }
            if known.left == 0 {
                self.requests.remove(&request);
            }
        }
        self.output.discard(|held| held.is_of(request, tags));
        let is_unwanted = |header: &FrameHeader| header.request == request && names(tags, header.tag);
        drop(self.blocked_response.take_if(|(header, ..)| is_unwanted(header)));
        if self.queue.len() > 2 * self.open + MAX_CHUNK.1 {
            let requests = &self.requests;
            self.queue.retain(|Reverse((_, request, tag))| {
                requests.get(request).is_some_and(|known| known.is_open(*tag))
            });
        }
    }

    /// The most urgent samples of one request, for the store, as many as the share allows.
    pub(crate) fn start(&mut self) -> Option<(u64, Vec<PeerRequest>)> {
        let waiting = self.output.waiting() as u64;
        let mut samples: Vec<PeerRequest> = Vec::new();
        let (mut request, mut bytes) = (0, 0u64);
        while let Some(&Reverse((due, of, tag))) = self.queue.peek() {
            let known = self.requests.get_mut(&of);
            let wanted = known.and_then(|known| known.wanted(tag).map(|wanted| (known, wanted)));
            let Some((known, (key, length))) = wanted else {
                self.queue.pop(); // cancelled
                continue;
            };
            let held = self.unacked.saturating_add(waiting).saturating_add(bytes);
            let fits = held == 0 || held.saturating_add(length) <= self.share;
            let same = samples.is_empty() || of == request;
            if !fits || !same || samples.len() == MAX_CHUNK.1 || bytes >= MAX_CHUNK.0 {
                break;
            }
            self.queue.pop();
            known.start(tag);
            request = of;
            bytes = bytes.saturating_add(length);
            samples.push(PeerRequest { tag, key, due });
        }
        self.unacked = self.unacked.saturating_add(bytes);
        (!samples.is_empty()).then_some((request, samples))
    }

    /// Whether replies of the store are taken.
    pub(crate) fn has_room(&self) -> bool {
        self.blocked_response.is_none() && (self.output.waiting() as u64) < self.share
    }

    /// A sample of a request, if it is still wanted.
    pub(crate) fn wanted(&self, request: u64, tag: u32) -> Option<SampleKey> {
        self.requests.get(&request)?.wanted(tag).map(|(key, _)| key)
    }

    /// Handles the store's reply to a sample.
    pub(crate) fn on_reply(&mut self, request: u64, tag: u32, reply: StoreReply, now: Duration) {
        let Some(known) = self.requests.get_mut(&request) else { return };
        let Some((key, _)) = known.wanted(tag) else { return };
        let StoreReply::Done(result) = reply else {
            self.unacked -= known.reads(tag).unwrap_or(0);
            self.origin_reads.push((request, tag));
            return;
        };
        self.unacked -= known.close(tag).unwrap_or(0);
        self.open -= 1;
        if known.left == 0 {
            self.requests.remove(&request);
        }
        self.answer(request, tag, key, result, now);
    }

    fn answer(
        &mut self,
        request: u64,
        tag: u32,
        key: SampleKey,
        result: Result<(Bytes, SampleCheck), TierError>,
        now: Duration,
    ) {
        let header =
            FrameHeader { sample: key.id.0, tag, ..FrameHeader::new(FrameKind::Answer, self.run, request) };
        match result {
            Ok((bytes, (crc32c, trailer))) => {
                self.served = (self.served.0 + 1, self.served.1 + bytes.len() as u64);
                let answer = (header.over_checked(&bytes, crc32c), bytes, trailer);
                match self.output.is_empty() {
                    true => self.push(answer, None, now),
                    false => self.blocked_response = Some(answer),
                }
            }
            Err(error) => {
                self.refused += 1;
                let text = Bytes::from(error_text(&error));
                let header = FrameHeader { status: status_of(error.kind()), ..header };
                self.push((header.over(&text), text, None), None, now);
            }
        }
    }

    fn push(&mut self, answer: (FrameHeader, Bytes, Option<PayloadTag>), room: Option<R>, now: Duration) {
        let (header, bytes, trailer) = answer;
        let FrameHeader { request, tag, .. } = header;
        let held = QueuedFrame::Answer { _room: room, request, tag, unacked_since: Some(now) };
        self.output.push(header, bytes, trailer, held);
    }

    /// Bytes of the response that waits for the budget.
    pub(crate) fn needs_room(&self) -> Option<u64> {
        self.blocked_response.as_ref().map(|(_, bytes, _)| bytes.len() as u64)
    }

    /// The waiting response may be sent. It needs no budget if it is the only one.
    pub(crate) fn give_room(&mut self, room: Option<R>, now: Duration) {
        if let Some(answer) = self.blocked_response.take() {
            self.push(answer, room, now);
        }
    }

    /// Whether acknowledgements are queued. They are always first.
    fn ack_is_queued(&mut self) -> bool {
        self.output.held().take(2).any(|held| matches!(held, QueuedFrame::Acknowledgement))
    }

    /// Acknowledges samples that the store reads from the origin, if they are still open.
    pub(crate) fn acknowledge_origin_reads(&mut self) {
        if self.origin_reads.is_empty() {
            return;
        }
        let wait = self.ack_is_queued();
        if wait && self.origin_reads.len() <= 2 * self.open + MAX_CHUNK.1 {
            return;
        }
        let requests = &self.requests;
        self.origin_reads
            .retain(|(request, tag)| requests.get(request).is_some_and(|known| known.is_open(*tag)));
        if !wait {
            let reading = std::mem::take(&mut self.origin_reads);
            self.acknowledge(reading);
        }
    }

    fn acknowledge(&mut self, mut samples: Vec<(u64, u32)>) {
        samples.sort_unstable();
        for of_one in samples.chunk_by(|one, other| one.0 == other.0) {
            for part in of_one.chunks(MAX_SAMPLES_PER_REQUEST) {
                let tags = encode_tags(&part.iter().map(|(_, tag)| *tag).collect::<Vec<_>>());
                let header = FrameHeader::new(FrameKind::Reading, self.run, part[0].0);
                self.output.push_front(header.over(&tags), tags, QueuedFrame::Acknowledgement);
            }
        }
    }

    /// Bytes were sent.
    pub(crate) fn on_write(&mut self, now: Duration) {
        self.sent = now;
    }

    /// Sends a heartbeat and acknowledgements when they are due. Returns when to call this again,
    /// if there is a timeout to check. Returns `now` if there are frames to write first.
    ///
    /// # Errors
    /// Write timeout. The connection must end.
    pub(crate) fn check_timeouts(&mut self, now: Duration) -> Result<Option<Duration>, WireError> {
        if self.is_idle() {
            return Ok(None);
        }
        if self.check_at <= now {
            self.check_at = now + HEARTBEAT_INTERVAL;
            self.acknowledge_waiting(now);
            return Ok(Some(now));
        }
        let blocked = !self.output.is_empty();
        if blocked && now.saturating_sub(self.sent) >= WRITE_TIMEOUT {
            let detail = format!("it has read nothing for {} s", WRITE_TIMEOUT.as_secs());
            return Err(WireError::new(WireErrorKind::Timeout, detail));
        }
        // A waiting response is a sign of life when it is sent.
        let due =
            if blocked { now.max(self.sent) + HEARTBEAT_INTERVAL } else { self.sent + HEARTBEAT_INTERVAL };
        if due > now {
            return Ok(Some(due));
        }
        let header = FrameHeader::new(FrameKind::Heartbeat, self.run, 0);
        self.output.push(header.over(&[]), Bytes::new(), None, QueuedFrame::Heartbeat);
        self.sent = now; // even if it waits: the kernel has sent earlier frames
        Ok(Some(now))
    }

    /// Acknowledges samples that have waited for long, in the queue or to be sent.
    fn acknowledge_waiting(&mut self, now: Duration) {
        if self.ack_is_queued() {
            return;
        }
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        for held in self.output.held() {
            if let QueuedFrame::Answer { request, tag, unacked_since, .. } = held
                && unacked_since.take_if(|since| now.saturating_sub(*since) >= ACK_AFTER).is_some()
            {
                waiting.push((*request, *tag));
            }
        }
        let waits = |request: &OpenRequest| {
            !request.is_acknowledged && now.saturating_sub(request.since) >= ACK_AFTER
        };
        if self.requests.values().any(waits) {
            for &Reverse((_, request, tag)) in &self.queue {
                let known = self.requests.get(&request);
                if known.is_some_and(|known| waits(known) && known.is_open(tag)) {
                    waiting.push((request, tag));
                }
            }
            self.requests
                .values_mut()
                .filter(|request| waits(request))
                .for_each(|known| known.is_acknowledged = true);
        }
        self.acknowledge_origin_reads();
        self.acknowledge(waiting);
    }
}

/// The error text for the client, truncated to the limit of a frame.
fn error_text(error: &TierError) -> String {
    let mut text = error.detail().unwrap_or_default().to_owned();
    let end = (0..=MAX_ERROR_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
impl<R> ServerMachine<R> {
    /// Bytes that are held: started and not acknowledged, or waiting to be sent.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.unacked + self.output.waiting() as u64 + self.needs_room().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::{DatasetId, SampleId};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A connection with a share of 250 bytes and one request at time 0, number 1, of `samples`
    /// samples of 100 bytes. The last one is due first.
    fn serving(samples: u64) -> ServerMachine<()> {
        let mut machine = ServerMachine::new(7, 250, FrameOutput::new(None));
        let sample = |id| RequestedSample {
            key: SampleKey::new(DatasetId(0), SampleId(id)),
            due: Tick(99 - id),
            length: 100,
        };
        let sample_requests = RequestedSample::encode((0..samples).map(sample));
        let header = FrameHeader::new(FrameKind::Request, 7, 1).over(&sample_requests);
        machine.expect(&header).unwrap();
        machine.on_request(&header, &sample_requests, Duration::ZERO).unwrap();
        machine
    }

    /// The samples that are passed to the store, by call.
    fn started(machine: &mut ServerMachine<()>) -> Vec<Vec<u64>> {
        let started = std::iter::from_fn(|| machine.start());
        started.map(|(_, samples)| samples.iter().map(|sample| sample.key.id.0).collect()).collect()
    }

    fn bytes() -> StoreReply {
        StoreReply::Done(Ok((Bytes::from_static(&[1; 100]), (0, None))))
    }

    #[test]
    fn store_gets_the_most_urgent_within_the_share() {
        let mut machine = serving(5);
        assert_eq!(started(&mut machine), [[4, 3]]);
        assert!(started(&mut machine).is_empty());
        // A sample that is being read frees its part of the share. A completed one waits in it.
        machine.on_reply(1, 4, StoreReply::Reading, MS);
        assert_eq!(started(&mut machine), [[2]]);
        machine.on_reply(1, 3, bytes(), MS);
        assert_eq!((started(&mut machine), machine.held_bytes()), (vec![], 248));
        // The second response waits for the budget. Until then, no more replies are taken.
        machine.on_reply(1, 2, bytes(), MS);
        assert_eq!((machine.needs_room(), machine.has_room()), (Some(100), false));
        machine.give_room(Some(()), MS);
        assert_eq!((machine.needs_room(), machine.output.waiting()), (None, 296));
    }

    #[test]
    fn cancelled_request_does_not_leave() {
        let mut machine = serving(4);
        started(&mut machine);
        machine.on_reply(1, 3, bytes(), MS);
        assert!(!machine.output.is_empty());
        let header = FrameHeader::new(FrameKind::Cancel, 7, 1);
        machine.on_request(&header, &[], MS).unwrap();
        assert!(machine.is_idle() && machine.held_bytes() == 0);
        assert_eq!((started(&mut machine), machine.wanted(1, 1)), (vec![], None));
    }

    #[test]
    fn heartbeats_leave_while_something_is_open() {
        let mut machine = serving(1);
        started(&mut machine);
        assert_eq!(machine.check_timeouts(Duration::ZERO).unwrap(), Some(Duration::ZERO));
        assert_eq!(machine.check_timeouts(Duration::ZERO).unwrap(), Some(HEARTBEAT_INTERVAL));
        assert!(machine.output.is_empty());
        machine.check_timeouts(HEARTBEAT_INTERVAL).unwrap();
        machine.check_timeouts(HEARTBEAT_INTERVAL).unwrap();
        assert!(
            machine.output.held().all(|held| matches!(held, QueuedFrame::Heartbeat))
                && !machine.output.is_empty()
        );
        // No byte is sent.
        machine.check_at = WRITE_TIMEOUT + 2 * HEARTBEAT_INTERVAL;
        assert_eq!(
            machine.check_timeouts(WRITE_TIMEOUT + HEARTBEAT_INTERVAL).unwrap_err().kind(),
            WireErrorKind::Timeout
        );
    }
}
