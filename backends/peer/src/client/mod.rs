//! The requesting end of a connection between ranks, as a state machine.
//!
//! Input is events and the time. Output is actions: frames to send, samples to complete, and when
//! to check the timeouts next. There is no clock, I/O, channel or hash order, so a simulation can
//! play any interleaving. [`ClientTask`](driver::ClientTask) owns the stream, the timer and the
//! channels.
//!
//! # When a request fails
//!
//! | event | after | what fails |
//! |---|---|---|
//! | no byte arrives while a request is open | [`HEARTBEAT_TIMEOUT`], [`CONFIRM_DELAY`] | the connection |
//! | bytes arrive, and a sample is not acknowledged | [`ACK_TIMEOUT`] | that sample |
//! | an acknowledged sample does not arrive | [`RESPONSE_TIMEOUT`] after its request, or after the last time that its owner announced that it still reads it | that sample |
//!
//! When a connection that has delivered bytes falls silent, all open requests are sent again on a
//! second connection ([`ClientMachine::resume`]). It is opened after a jitter of at most
//! [`RECONNECT_JITTER`], so that the clients of a paused rank do not return together. If the second
//! connection cannot be opened, or falls silent before it delivers a byte, all open requests fail.
//! A dead rank is therefore detected after [`HEARTBEAT_TIMEOUT`] + [`CONFIRM_DELAY`] +
//! [`RECONNECT_JITTER`], the time to connect
//! ([`CONNECT_TIMEOUT`](crate::peer_client::CONNECT_TIMEOUT)), and [`HEARTBEAT_TIMEOUT`] +
//! [`CONFIRM_DELAY`] again: 2.5 s. A trainer does not wait for that: its store drops late reads,
//! and reads the samples from the origin.
//!
//! The server sends a heartbeat every 100 ms. A client process that was itself stopped finds the
//! bytes of the meantime when it resumes. This is why silence is checked twice. While a long sample
//! arrives, no acknowledgement can be sent. A sample that waits after it is not timed out for that,
//! up to [`RESPONSE_TIMEOUT`].

pub(crate) mod driver;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use foreread_connection::frame::{
    FrameHeader, FrameKind, MAX_ERROR_BYTES, RequestedSample, decode_tags, encode_tags, kind_of,
};
use foreread_connection::{WireError, WireErrorKind};
use foreread_tier::{ErrorKind, TierError};
use foreread_types::{Rank, SampleKey};

use crate::tier_error::NAME;

/// Heartbeat timeout: a rank that sends no byte for this long, while a request is open, counts as
/// dead.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(600);

/// How much later silence is checked again before it counts.
pub const CONFIRM_DELAY: Duration = Duration::from_millis(50);

/// The longest wait before the second connection to a silent rank.
pub const RECONNECT_JITTER: Duration = Duration::from_millis(200);

/// How long a sample may stay unacknowledged.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an acknowledged sample may take, unless its owner announces again that it reads it.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Input of the state machine.
#[derive(Debug)]
pub enum ClientEvent {
    /// A new request.
    Request {
        /// Its number, larger than all earlier ones.
        request: u64,
        /// The samples. The position is the tag on the wire.
        sample_requests: Vec<RequestedSample>,
    },
    /// Samples of a request are no longer wanted.
    Cancel {
        /// The request's number.
        request: u64,
        /// Their positions in it.
        tags: Vec<u32>,
    },
    /// Bytes arrived.
    BytesArrived,
    /// A sample arrived ([`ExpectedPayload::Sample`]). An error is the reason why it is unusable.
    Sample {
        /// Its frame.
        header: FrameHeader,
        /// Its bytes.
        result: Result<Bytes, TierError>,
    },
    /// The payload of a short frame arrived undamaged ([`ExpectedPayload::Small`]).
    Small {
        /// The frame.
        header: FrameHeader,
        /// The payload.
        bytes: Bytes,
    },
}

/// Output of the state machine.
#[derive(Debug)]
pub enum ClientAction {
    /// Send this frame.
    Send(FrameHeader, Bytes),
    /// Complete a sample of a request.
    Answer {
        /// The request's number.
        request: u64,
        /// The sample's position in it.
        tag: u32,
        /// The sample or its error.
        result: Result<Bytes, TierError>,
    },
}

type Actions = Vec<ClientAction>;

/// The payload that follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPayload {
    /// A sample.
    Sample(SampleKey),
    /// Tags, or the text of an error.
    Small,
    /// A payload to skip.
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Not acknowledged.
    Unacknowledged,
    /// Acknowledged: the server reads it, or it waits to be sent.
    Acknowledged,
    Done,
}

#[derive(Debug)]
struct PendingSample {
    sample: RequestedSample,
    status: Status,
    /// When it was requested, or last announced as being read.
    announced: Duration,
}

#[derive(Debug)]
struct PendingRequest {
    sample_requests: Vec<PendingSample>,
    left: usize,
}

impl PendingRequest {
    fn open(&self) -> impl Iterator<Item = (u32, &PendingSample)> {
        (0..).zip(&self.sample_requests).filter(|(_, pending)| pending.status != Status::Done)
    }

    fn open_mut(&mut self, tag: u32) -> Option<&mut PendingSample> {
        self.sample_requests.get_mut(tag as usize).filter(|pending| pending.status != Status::Done)
    }

    /// Closes a sample. `false` if it is not open.
    fn close(&mut self, tag: u32) -> bool {
        let was_open = self.open_mut(tag).map(|pending| pending.status = Status::Done).is_some();
        self.left -= usize::from(was_open);
        was_open
    }
}

/// Open requests of one rank to another. Outlives connections.
#[derive(Debug)]
pub struct ClientMachine {
    rank: Rank,
    run: u64,
    requests: BTreeMap<u64, PendingRequest>,
    /// Open samples in `requests`.
    open: usize,
    /// Samples that timed out since the counters were updated.
    timed_out: u64,
    /// When bytes last arrived, or the first request was sent after an idle time.
    last_byte: Duration,
    /// Silence was detected once. It counts from this time.
    silent_until: Option<Duration>,
    /// Acknowledgement deadlines of requests.
    ack_deadlines: VecDeque<(Duration, u64)>,
    /// Times at which samples of requests may be overdue.
    response_deadlines: VecDeque<(Duration, u64)>,
}

impl ClientMachine {
    /// Requests samples of the run with the tag `run` from `rank`.
    pub fn new(rank: Rank, run: u64) -> Self {
        let (requests, ack_deadlines, response_deadlines) = Default::default();
        Self {
            rank,
            run,
            requests,
            open: 0,
            timed_out: 0,
            last_byte: Duration::ZERO,
            silent_until: None,
            ack_deadlines,
            response_deadlines,
        }
    }

    /// Samples that are requested and not complete.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Samples that timed out since the last call.
    pub fn take_timed_out(&mut self) -> u64 {
        std::mem::take(&mut self.timed_out)
    }

    /// Whether this sample of a request is open.
    pub fn is_open(&self, request: u64, tag: u32) -> bool {
        let slot = self.requests.get(&request).and_then(|request| request.sample_requests.get(tag as usize));
        slot.is_some_and(|pending| pending.status != Status::Done)
    }

    /// Handles `event` and appends to `actions`.
    ///
    /// # Errors
    /// The other end violated the protocol. The connection must end.
    pub fn on(&mut self, event: ClientEvent, now: Duration, actions: &mut Actions) -> Result<(), WireError> {
        match event {
            ClientEvent::Request { request, sample_requests } => {
                self.send_request(request, sample_requests, now, actions)
            }
            ClientEvent::Cancel { request, tags } => self.cancel_samples(request, &tags, actions),
            ClientEvent::BytesArrived => (self.last_byte, self.silent_until) = (now, None),
            ClientEvent::Sample { header, result } => {
                self.answer(header.request, header.tag, result, actions)
            }
            ClientEvent::Small { header, bytes } => return self.small(&header, &bytes, now, actions),
        }
        Ok(())
    }

    fn send(&self, kind: FrameKind, request: u64, payload: Bytes, actions: &mut Actions) {
        actions.push(ClientAction::Send(FrameHeader::new(kind, self.run, request).over(&payload), payload));
    }

    fn send_request(
        &mut self,
        request: u64,
        sample_requests: Vec<RequestedSample>,
        now: Duration,
        actions: &mut Actions,
    ) {
        self.send(
            FrameKind::Request,
            request,
            RequestedSample::encode(sample_requests.iter().copied()),
            actions,
        );
        if self.open == 0 {
            (self.last_byte, self.silent_until) = (now, None);
        }
        self.open += sample_requests.len();
        self.ack_deadlines.push_back((now + ACK_TIMEOUT, request));
        self.response_deadlines.push_back((now + RESPONSE_TIMEOUT, request));
        let left = sample_requests.len();
        let pending = |sample| PendingSample { sample, status: Status::Unacknowledged, announced: now };
        let sample_requests = sample_requests.into_iter().map(pending).collect();
        self.requests.insert(request, PendingRequest { sample_requests, left });
    }

    /// A second connection is open: sends all open requests again.
    pub fn resume(&mut self, now: Duration, actions: &mut Actions) {
        (self.last_byte, self.silent_until) = (now, None);
        self.ack_deadlines.clear();
        for (&number, request) in &mut self.requests {
            let sample_requests = request.sample_requests.iter().map(|pending| pending.sample);
            let payload = RequestedSample::encode(sample_requests);
            actions.push(ClientAction::Send(
                FrameHeader::new(FrameKind::Request, self.run, number).over(&payload),
                payload,
            ));
            let done = (0..).zip(&mut request.sample_requests).filter_map(|(tag, pending)| {
                if pending.status == Status::Done {
                    return Some(tag);
                }
                pending.status = Status::Unacknowledged;
                None
            });
            let done: Vec<u32> = done.collect();
            if !done.is_empty() {
                let payload = encode_tags(&done);
                let header = FrameHeader::new(FrameKind::Cancel, self.run, number);
                actions.push(ClientAction::Send(header.over(&payload), payload));
            }
            self.ack_deadlines.push_back((now + ACK_TIMEOUT, number));
        }
    }

    /// No caller waits for these samples of a request any longer.
    fn cancel_samples(&mut self, request: u64, tags: &[u32], actions: &mut Actions) {
        let Some(known) = self.requests.get_mut(&request) else { return };
        let mut dropped: Vec<u32> = tags.iter().copied().filter(|tag| known.close(*tag)).collect();
        self.open -= dropped.len();
        if known.left == 0 {
            self.requests.remove(&request);
            dropped.clear(); // all of it
        } else if dropped.is_empty() {
            return;
        }
        self.cancel(request, &dropped, actions);
    }

    /// Sends a cancellation.
    fn cancel(&self, request: u64, tags: &[u32], actions: &mut Actions) {
        self.send(FrameKind::Cancel, request, encode_tags(tags), actions);
    }

    /// The payload that follows a header.
    ///
    /// # Errors
    /// The frame violates the protocol. The connection must end.
    pub fn expect(
        &mut self,
        header: &FrameHeader,
        actions: &mut Actions,
    ) -> Result<ExpectedPayload, WireError> {
        if header.job != self.run {
            return Err(WireError::malformed("a frame of another run"));
        }
        match header.kind {
            FrameKind::Heartbeat => Ok(ExpectedPayload::Skipped),
            FrameKind::Reading => Ok(ExpectedPayload::Small),
            FrameKind::Answer => {
                let length = header.length;
                if header.status != 0 && length as usize > MAX_ERROR_BYTES {
                    return Err(WireError::malformed(format!("an error in {length} bytes")));
                }
                let known = self.requests.get(&header.request);
                let slot = known.and_then(|request| request.sample_requests.get(header.tag as usize));
                let Some(PendingSample { sample, .. }) = slot.filter(|slot| slot.status != Status::Done)
                else {
                    return Ok(ExpectedPayload::Skipped);
                };
                if sample.key.id.0 != header.sample {
                    let detail = format!("sample {} as the answer to {}", header.sample, sample.key);
                    return Err(WireError::malformed(detail));
                }
                if header.status != 0 {
                    return Ok(ExpectedPayload::Small);
                }
                if u64::from(length) == sample.length {
                    return Ok(ExpectedPayload::Sample(sample.key));
                }
                let detail = format!("{length} bytes instead of {}", sample.length);
                let error = TierError::new(ErrorKind::Changed, NAME).with_detail(detail);
                self.answer(header.request, header.tag, Err(error), actions);
                Ok(ExpectedPayload::Skipped)
            }
            FrameKind::Request | FrameKind::Cancel | FrameKind::Control => {
                Err(WireError::malformed(format!("unexpected frame {:?} from a server", header.kind)))
            }
        }
    }

    fn small(
        &mut self,
        header: &FrameHeader,
        bytes: &[u8],
        now: Duration,
        actions: &mut Actions,
    ) -> Result<(), WireError> {
        if let Some(kind) = kind_of(header.status).filter(|_| header.kind == FrameKind::Answer) {
            let text = String::from_utf8_lossy(bytes);
            let colon = if text.is_empty() { "" } else { ": " };
            let detail = format!("rank {}{colon}{text}", self.rank);
            let error = TierError::new(kind, NAME).with_detail(detail);
            self.answer(header.request, header.tag, Err(error), actions);
            return Ok(());
        }
        let Some(request) = self.requests.get_mut(&header.request) else { return Ok(()) };
        for tag in decode_tags(bytes)? {
            if let Some(pending) = request.open_mut(tag) {
                (pending.status, pending.announced) = (Status::Acknowledged, now);
            }
        }
        self.response_deadlines.push_back((now + RESPONSE_TIMEOUT, header.request));
        Ok(())
    }

    fn answer(&mut self, request: u64, tag: u32, result: Result<Bytes, TierError>, actions: &mut Actions) {
        let Some(known) = self.requests.get_mut(&request) else { return };
        if !known.close(tag) {
            return;
        }
        self.open -= 1;
        if known.left == 0 {
            self.requests.remove(&request);
        }
        actions.push(ClientAction::Answer { request, tag, result });
    }

    /// Times out samples. Returns when to call this again, if any sample is open. `busy`: a payload
    /// is arriving.
    ///
    /// # Errors
    /// Heartbeat timeout. The connection must end, and [`resume`](Self::resume) may be tried.
    pub fn check_timeouts(
        &mut self,
        now: Duration,
        busy: bool,
        actions: &mut Actions,
    ) -> Result<Option<Duration>, WireError> {
        while let Some(&(until, number)) = self.response_deadlines.front() {
            let Some(request) = self.requests.get(&number) else {
                self.response_deadlines.pop_front();
                continue;
            };
            if now < until {
                break;
            }
            self.response_deadlines.pop_front();
            let overdue = request.open().filter(|(_, pending)| pending.announced + RESPONSE_TIMEOUT <= now);
            let tags: Vec<u32> = overdue.map(|(tag, _)| tag).collect();
            let why = format!("it did not arrive within {} s", RESPONSE_TIMEOUT.as_secs());
            self.time_out(number, &tags, &why, actions);
        }
        if self.open == 0 {
            self.ack_deadlines.clear();
            self.response_deadlines.clear();
            return Ok(None);
        }
        let mut next = self.last_byte + HEARTBEAT_TIMEOUT;
        if next <= now {
            // Counts from now, because this process may have been paused itself.
            next = *self.silent_until.get_or_insert(now + CONFIRM_DELAY);
            if next <= now {
                let silence = now.saturating_sub(self.last_byte).as_secs_f64();
                let detail = format!("no data for {silence:.1} s");
                return Err(WireError::new(WireErrorKind::Timeout, detail));
            }
        }
        while let Some(&(until, number)) = self.ack_deadlines.front() {
            let Some(request) = self.requests.get(&number) else {
                self.ack_deadlines.pop_front();
                continue;
            };
            if until > now {
                next = next.min(until);
                break;
            }
            if busy {
                next = next.min(now + CONFIRM_DELAY);
                break;
            }
            self.ack_deadlines.pop_front();
            let unacknowledged =
                request.open().filter(|(_, pending)| pending.status == Status::Unacknowledged);
            let ack_deadlines: Vec<u32> = unacknowledged.map(|(tag, _)| tag).collect();
            let why = format!("it was not acknowledged within {} s", ACK_TIMEOUT.as_secs());
            self.time_out(number, &ack_deadlines, &why, actions);
        }
        if let Some((until, _)) = self.response_deadlines.front() {
            next = next.min(*until);
        }
        Ok((self.open > 0).then_some(next))
    }

    fn time_out(&mut self, request: u64, tags: &[u32], why: &str, actions: &mut Actions) {
        let error =
            TierError::new(ErrorKind::Transient, NAME).with_detail(format!("rank {}: {why}", self.rank));
        let open: Vec<u32> = tags.iter().copied().filter(|tag| self.is_open(request, *tag)).collect();
        for tag in &open {
            self.answer(request, *tag, Err(error.clone()), actions);
        }
        if !open.is_empty() {
            self.timed_out += open.len() as u64;
            self.cancel(request, &open, actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use foreread_types::{DatasetId, SampleId, Tick};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn key(id: u64) -> SampleKey {
        SampleKey::new(DatasetId(0), SampleId(id))
    }

    /// A machine that has requested `samples` samples of 10 bytes at time 0, as request 1.
    fn requesting(samples: u64) -> ClientMachine {
        let mut machine = ClientMachine::new(Rank(3), 7);
        let sample_requests =
            (0..samples).map(|id| RequestedSample { key: key(id), due: Tick(id), length: 10 }).collect();
        let mut actions = Vec::new();
        machine
            .on(ClientEvent::Request { request: 1, sample_requests }, Duration::ZERO, &mut actions)
            .unwrap();
        assert!(matches!(actions[..], [ClientAction::Send(FrameHeader { kind: FrameKind::Request, .. }, _)]));
        machine
    }

    /// The actions as text: kinds of frames with their tags, and completed samples.
    fn shown(actions: &[ClientAction]) -> Vec<String> {
        let shown = actions.iter().map(|action| match action {
            ClientAction::Send(header, payload) if header.kind == FrameKind::Cancel => {
                format!("Cancel {:?}", decode_tags(payload).unwrap().collect::<Vec<_>>())
            }
            ClientAction::Send(header, _) => format!("{:?}", header.kind),
            ClientAction::Answer { tag, result, .. } => format!("{tag} {}", result.is_ok()),
        });
        shown.collect()
    }

    fn sample(machine: &mut ClientMachine, tag: u32, now: Duration) -> Vec<String> {
        let header = FrameHeader { tag, ..FrameHeader::new(FrameKind::Answer, 7, 1) };
        let (mut actions, result) = (Vec::new(), Ok(Bytes::from_static(&[0; 10])));
        machine.on(ClientEvent::Sample { header, result }, now, &mut actions).unwrap();
        shown(&actions)
    }

    #[test]
    // semantics: RANK-17, RANK-19
    fn silent_connection_ends_after_650_ms() {
        let mut machine = requesting(1);
        machine.on(ClientEvent::BytesArrived, 100 * MS, &mut Vec::new()).unwrap();
        let mut check = |at| machine.check_timeouts(at * MS, false, &mut Vec::new());
        assert_eq!(check(699).unwrap(), Some(700 * MS));
        assert_eq!(check(700).unwrap(), Some(750 * MS));
        assert_eq!(check(749).unwrap(), Some(750 * MS));
        assert_eq!(check(750).unwrap_err().kind(), WireErrorKind::Timeout);
    }

    #[test]
    fn silence_is_checked_twice() {
        let mut machine = requesting(2);
        let mut look = |at| machine.check_timeouts(at * MS, false, &mut Vec::new());
        assert_eq!(look(1).unwrap(), Some(HEARTBEAT_TIMEOUT));
        // This process was paused. Bytes that arrived meanwhile are read first.
        assert_eq!(look(700).unwrap(), Some(750 * MS));
        assert_eq!(look(750).unwrap_err().kind(), WireErrorKind::Timeout);
    }

    #[test]
    fn second_connection_gets_the_open_requests() {
        let mut machine = requesting(3);
        assert_eq!(sample(&mut machine, 1, 5 * MS), ["1 true"]);
        let mut actions = Vec::new();
        machine.resume(800 * MS, &mut actions);
        assert_eq!(shown(&actions), ["Request", "Cancel [1]"]);
        assert_eq!(sample(&mut machine, 1, 900 * MS), [""; 0], "answered on the first connection");
        assert_eq!(sample(&mut machine, 0, 900 * MS), ["0 true"]);
        // Unacknowledged samples get a new second. The 30 seconds count from the first request.
        machine.on(ClientEvent::BytesArrived, 1700 * MS, &mut Vec::new()).unwrap();
        let mut actions = Vec::new();
        machine.check_timeouts(1700 * MS, false, &mut actions).unwrap();
        assert_eq!(shown(&actions), [""; 0]);
        machine.on(ClientEvent::BytesArrived, RESPONSE_TIMEOUT, &mut Vec::new()).unwrap();
        assert_eq!(machine.check_timeouts(RESPONSE_TIMEOUT, true, &mut actions).unwrap(), None);
        assert_eq!(shown(&actions), ["2 false", "Cancel [2]"]);
    }

    /// An owner that waits for a silent file server announces its reads again. Only these wait.
    #[test]
    // semantics: HPC-4
    fn announced_sample_is_waited_for() {
        let mut machine = requesting(3);
        let reading = |machine: &mut ClientMachine, tags: &[u32], at: u32| {
            let header = FrameHeader::new(FrameKind::Reading, 7, 1);
            let small = ClientEvent::Small { header, bytes: encode_tags(tags) };
            machine.on(ClientEvent::BytesArrived, at * MS, &mut Vec::new()).unwrap();
            machine.on(small, at * MS, &mut Vec::new()).unwrap();
            let mut actions = Vec::new();
            machine.check_timeouts(at * MS, true, &mut actions).unwrap();
            shown(&actions)
        };
        assert_eq!(reading(&mut machine, &[0, 1, 2], 10), [""; 0]);
        assert_eq!(reading(&mut machine, &[1, 2], 20_000), [""; 0]);
        assert_eq!(reading(&mut machine, &[2], 40_000), ["0 false", "Cancel [0]"]);
        assert_eq!(reading(&mut machine, &[2], 60_000), ["1 false", "Cancel [1]"]);
        assert_eq!(reading(&mut machine, &[], 89_999), [""; 0]);
        assert_eq!(reading(&mut machine, &[], 90_000), ["2 false", "Cancel [2]"]);
        assert_eq!(machine.open(), 0);
    }

    #[test]
    fn dropped_samples_are_cancelled() {
        let mut machine = requesting(3);
        let mut actions = Vec::new();
        let mut cancel = |tags: &[u32]| {
            let event = ClientEvent::Cancel { request: 1, tags: tags.to_vec() };
            machine.on(event, MS, &mut actions).unwrap();
            machine.open()
        };
        assert_eq!([cancel(&[2]), cancel(&[2, 9]), cancel(&[0, 1])], [2, 2, 0]);
        assert_eq!(shown(&actions), ["Cancel [2]", "Cancel []"], "an empty list is all that is left");
        assert_eq!(machine.take_timed_out(), 0);
    }
}
