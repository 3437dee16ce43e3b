//! The requesting end of a connection between ranks, as a state machine.
//!
//! Input is events and the time. Output is a queue of frames, answers to callers, and when to check
//! the timeouts next. There is no clock, I/O, channel or hash order, so a simulation can play any
//! interleaving. [`ClientTask`](driver::ClientTask) owns the stream, the timer and the channels.
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
use foreread_connection::output::FrameOutput;
use foreread_connection::{WireError, WireErrorKind};
use foreread_tier::{ErrorKind, TierError};
use foreread_types::{Rank, SampleKey};

use crate::counters::PeerCounts;
use crate::tier_error::{NAME, error_of};

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

/// The caller of a sample.
pub(crate) trait SampleCaller {
    /// The sample.
    fn sample(&self) -> RequestedSample;

    /// Whether it no longer waits.
    fn is_gone(&self) -> bool;

    /// Completes the sample.
    fn answer(self, result: Result<Bytes, TierError>);
}

/// The payload that follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedPayload {
    /// A sample.
    Sample(SampleKey),
    /// Tags, or the text of an error.
    Small,
    /// A payload to skip.
    Skipped,
}

struct OpenSample<C> {
    sample: RequestedSample,
    /// `None` once it is complete.
    caller: Option<C>,
    /// The server reads it, or it waits to be sent.
    is_acknowledged: bool,
    /// When it was requested, or last announced as being read.
    announced: Duration,
}

/// The samples of a request. The position is the tag on the wire.
struct OpenRequest<C> {
    samples: Vec<OpenSample<C>>,
    left: usize,
}

impl<C> OpenRequest<C> {
    /// The tags of open samples for which `is_wanted` holds.
    fn tags(&self, is_wanted: impl Fn(&OpenSample<C>, &C) -> bool) -> Vec<u32> {
        let is_wanted = |open: &OpenSample<C>| open.caller.as_ref().is_some_and(|of| is_wanted(open, of));
        (0..).zip(&self.samples).filter(|(_, open)| is_wanted(open)).map(|(tag, _)| tag).collect()
    }
}

/// Open requests of one rank to another, and their callers. Outlives connections.
pub(crate) struct ClientMachine<C> {
    rank: Rank,
    run: u64,
    /// Frames that wait to be sent.
    pub(crate) output: FrameOutput,
    requests: BTreeMap<u64, OpenRequest<C>>,
    /// The number of the next request.
    next: u64,
    /// Open samples in `requests`.
    open: usize,
    /// Counts that are not in the counters yet.
    pub(crate) counted: PeerCounts,
    /// When bytes last arrived, or the first request was sent after an idle time.
    last_byte: Duration,
    /// Silence was detected once. It counts from this time.
    silent_until: Option<Duration>,
    /// Acknowledgement deadlines of requests.
    ack_deadlines: VecDeque<(Duration, u64)>,
    /// Times at which samples of requests may be overdue.
    response_deadlines: VecDeque<(Duration, u64)>,
}

impl<C: SampleCaller> ClientMachine<C> {
    /// Requests samples of the run with the tag `run` from `rank`.
    pub(crate) fn new(rank: Rank, run: u64) -> Self {
        let (requests, counted, ack_deadlines, response_deadlines) = Default::default();
        Self {
            rank,
            run,
            output: FrameOutput::new(None),
            requests,
            next: 0,
            open: 0,
            counted,
            last_byte: Duration::ZERO,
            silent_until: None,
            ack_deadlines,
            response_deadlines,
        }
    }

    /// Samples that are requested and not complete.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// The caller of the sample that a frame answers, if the sample is open.
    pub(crate) fn caller(&self, header: &FrameHeader) -> Option<&C> {
        self.requests.get(&header.request)?.samples.get(header.tag as usize)?.caller.as_ref()
    }

    fn send(&mut self, kind: FrameKind, request: u64, payload: Bytes) {
        let header = FrameHeader::new(kind, self.run, request).over(&payload);
        self.output.push(header, payload, None, ());
    }

    /// Requests samples.
    pub(crate) fn request(&mut self, callers: Vec<C>, now: Duration) {
        let request = self.next;
        self.next += 1;
        self.send(FrameKind::Request, request, RequestedSample::encode(callers.iter().map(C::sample)));
        if self.open == 0 {
            (self.last_byte, self.silent_until) = (now, None);
        }
        let left = callers.len();
        self.open += left;
        self.counted.requested += left as u64;
        self.ack_deadlines.push_back((now + ACK_TIMEOUT, request));
        self.response_deadlines.push_back((now + RESPONSE_TIMEOUT, request));
        let open = |caller: C| OpenSample {
            sample: caller.sample(),
            caller: Some(caller),
            is_acknowledged: false,
            announced: now,
        };
        let samples = callers.into_iter().map(open).collect();
        self.requests.insert(request, OpenRequest { samples, left });
        self.cancel_gone(request);
    }

    /// A second connection is open: sends all open requests again, through its output.
    pub(crate) fn resume(&mut self, output: FrameOutput, now: Duration) {
        (self.output, self.last_byte, self.silent_until) = (output, now, None);
        self.ack_deadlines.clear();
        for (&number, request) in &mut self.requests {
            let sample_requests = RequestedSample::encode(request.samples.iter().map(|open| open.sample));
            request.samples.iter_mut().for_each(|open| open.is_acknowledged = false);
            let done = (0..).zip(&request.samples).filter(|(_, open)| open.caller.is_none());
            let done: Vec<u32> = done.map(|(tag, _)| tag).collect();
            let cancel = (!done.is_empty()).then(|| (FrameKind::Cancel, encode_tags(&done)));
            for (kind, payload) in [(FrameKind::Request, sample_requests)].into_iter().chain(cancel) {
                let header = FrameHeader::new(kind, self.run, number).over(&payload);
                self.output.push(header, payload, None, ());
            }
            self.ack_deadlines.push_back((now + ACK_TIMEOUT, number));
        }
    }

    /// Cancels the samples whose callers are gone.
    pub(crate) fn sweep(&mut self) {
        let requests: Vec<u64> = self.requests.keys().copied().collect();
        requests.into_iter().for_each(|request| self.cancel_gone(request));
    }

    fn cancel_gone(&mut self, number: u64) {
        let Some(request) = self.requests.get_mut(&number) else { return };
        let mut gone = request.tags(|_, caller| caller.is_gone());
        if gone.is_empty() {
            return;
        }
        gone.iter().for_each(|tag| request.samples[*tag as usize].caller = None);
        request.left -= gone.len();
        self.open -= gone.len();
        if request.left == 0 {
            self.requests.remove(&number);
            gone.clear(); // all of it
        }
        self.send(FrameKind::Cancel, number, encode_tags(&gone));
    }

    /// Bytes arrived.
    pub(crate) fn on_bytes(&mut self, now: Duration) {
        (self.last_byte, self.silent_until) = (now, None);
    }

    /// The payload that follows a header.
    ///
    /// # Errors
    /// The frame violates the protocol. The connection must end.
    pub(crate) fn expect(&mut self, header: &FrameHeader) -> Result<ExpectedPayload, WireError> {
        if header.job != self.run {
            return Err(WireError::malformed("a frame of another run"));
        }
        match header.kind {
            FrameKind::Heartbeat => return Ok(ExpectedPayload::Skipped),
            FrameKind::Reading => return Ok(ExpectedPayload::Small),
            FrameKind::Answer => {}
            FrameKind::Request | FrameKind::Cancel | FrameKind::Control => {
                return Err(WireError::malformed(format!(
                    "unexpected frame {:?} from a server",
                    header.kind
                )));
            }
        }
        let length = header.length;
        if header.status != 0 && length as usize > MAX_ERROR_BYTES {
            return Err(WireError::malformed(format!("an error in {length} bytes")));
        }
        let known = self.requests.get(&header.request);
        let known = known.and_then(|request| request.samples.get(header.tag as usize));
        let Some(OpenSample { sample, caller: Some(_), .. }) = known else {
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
        self.answer(header, Err(TierError::new(ErrorKind::Changed, NAME).with_detail(detail)));
        Ok(ExpectedPayload::Skipped)
    }

    /// The payload of a short frame arrived undamaged ([`ExpectedPayload::Small`]).
    ///
    /// # Errors
    /// It violates the protocol. The connection must end.
    pub(crate) fn on_small(
        &mut self,
        header: &FrameHeader,
        bytes: &[u8],
        now: Duration,
    ) -> Result<(), WireError> {
        if let Some(kind) = kind_of(header.status).filter(|_| header.kind == FrameKind::Answer) {
            let text = String::from_utf8_lossy(bytes);
            let colon = if text.is_empty() { "" } else { ": " };
            let detail = format!("rank {}{colon}{text}", self.rank);
            self.answer(header, Err(TierError::new(kind, NAME).with_detail(detail)));
            return Ok(());
        }
        let Some(request) = self.requests.get_mut(&header.request) else { return Ok(()) };
        for tag in decode_tags(bytes)? {
            if let Some(open) = request.samples.get_mut(tag as usize) {
                (open.is_acknowledged, open.announced) = (true, now);
            }
        }
        self.response_deadlines.push_back((now + RESPONSE_TIMEOUT, header.request));
        Ok(())
    }

    /// Completes the sample that a frame answers. An error is the reason why it is unusable.
    pub(crate) fn answer(&mut self, header: &FrameHeader, result: Result<Bytes, TierError>) {
        let Some(request) = self.requests.get_mut(&header.request) else { return };
        let open = request.samples.get_mut(header.tag as usize);
        let Some(caller) = open.and_then(|open| open.caller.take()) else { return };
        request.left -= 1;
        if request.left == 0 {
            self.requests.remove(&header.request);
        }
        self.open -= 1;
        if let Ok(bytes) = &result {
            self.counted.received += 1;
            self.counted.received_bytes += bytes.len() as u64;
        }
        caller.answer(result);
    }

    /// Fails all open samples.
    pub(crate) fn fail(&mut self, why: &WireError) {
        self.counted.disconnected += self.open as u64;
        self.open = 0;
        let requests = std::mem::take(&mut self.requests);
        let callers = requests.into_values().flat_map(|request| request.samples);
        let error = error_of(self.rank, why);
        callers.filter_map(|open| open.caller).for_each(|caller| caller.answer(Err(error.clone())));
    }

    /// Times out samples. Returns when to call this again, if any sample is open. `busy`: a payload
    /// is arriving.
    ///
    /// # Errors
    /// Heartbeat timeout. The connection must end, and [`resume`](Self::resume) may be tried.
    pub(crate) fn check_timeouts(
        &mut self,
        now: Duration,
        busy: bool,
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
            let overdue = request.tags(|open, _| open.announced + RESPONSE_TIMEOUT <= now);
            let why = format!("it did not arrive within {} s", RESPONSE_TIMEOUT.as_secs());
            self.time_out(number, &overdue, &why);
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
            let unacknowledged = request.tags(|open, _| !open.is_acknowledged);
            let why = format!("it was not acknowledged within {} s", ACK_TIMEOUT.as_secs());
            self.time_out(number, &unacknowledged, &why);
        }
        if let Some((until, _)) = self.response_deadlines.front() {
            next = next.min(*until);
        }
        Ok((self.open > 0).then_some(next))
    }

    fn time_out(&mut self, request: u64, tags: &[u32], why: &str) {
        if tags.is_empty() {
            return;
        }
        let detail = format!("rank {}: {why}", self.rank);
        let error = TierError::new(ErrorKind::Transient, NAME).with_detail(detail);
        for &tag in tags {
            let header = FrameHeader { tag, ..FrameHeader::new(FrameKind::Answer, self.run, request) };
            self.answer(&header, Err(error.clone()));
        }
        self.counted.timed_out += tags.len() as u64;
        self.send(FrameKind::Cancel, request, encode_tags(tags));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use foreread_types::{DatasetId, SampleId, Tick};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A caller that notes its answer.
    struct Caller {
        id: u64,
        is_gone: Rc<Cell<bool>>,
        answers: Answers,
    }

    type Answers = Rc<RefCell<Vec<String>>>;

    impl SampleCaller for Caller {
        fn sample(&self) -> RequestedSample {
            let key = SampleKey::new(DatasetId(0), SampleId(self.id));
            RequestedSample { key, due: Tick(self.id), length: 10 }
        }

        fn is_gone(&self) -> bool {
            self.is_gone.get()
        }

        fn answer(self, result: Result<Bytes, TierError>) {
            self.answers.borrow_mut().push(format!("{} {}", self.id, result.is_ok()));
        }
    }

    /// A machine that has requested samples of 10 bytes at time 0.
    struct Requesting {
        machine: ClientMachine<Caller>,
        gone: Vec<Rc<Cell<bool>>>,
        answers: Answers,
    }

    impl Requesting {
        fn new(samples: u64) -> Self {
            let answers = Answers::default();
            let gone: Vec<Rc<Cell<bool>>> = (0..samples).map(|_| Rc::default()).collect();
            let caller = |(id, is_gone): (u64, &Rc<Cell<bool>>)| Caller {
                id,
                is_gone: Rc::clone(is_gone),
                answers: Rc::clone(&answers),
            };
            let mut machine = ClientMachine::new(Rank(3), 7);
            machine.request((0..).zip(&gone).map(caller).collect(), Duration::ZERO);
            let mut this = Self { machine, gone, answers };
            assert_eq!(this.shown(), ["Request"]);
            this
        }

        /// The answers and the frames since the last call: kinds of frames with their tags.
        fn shown(&mut self) -> Vec<String> {
            let mut shown = std::mem::take(&mut *self.answers.borrow_mut());
            let output = std::mem::replace(&mut self.machine.output, FrameOutput::new(None));
            shown.extend(output.frames().map(|(header, payload)| match header.kind {
                FrameKind::Cancel => {
                    format!("Cancel {:?}", decode_tags(payload).unwrap().collect::<Vec<_>>())
                }
                kind => format!("{kind:?}"),
            }));
            shown
        }

        fn sample(&mut self, tag: u32) -> Vec<String> {
            let header = FrameHeader { tag, ..FrameHeader::new(FrameKind::Answer, 7, 0) };
            self.machine.answer(&header, Ok(Bytes::from_static(&[0; 10])));
            self.shown()
        }

        fn check(&mut self, at: u32, busy: bool) -> Result<Option<Duration>, WireError> {
            self.machine.check_timeouts(at * MS, busy)
        }
    }

    #[test]
    // semantics: RANK-17, RANK-19
    fn silent_connection_ends_after_650_ms() {
        let mut requesting = Requesting::new(1);
        requesting.machine.on_bytes(100 * MS);
        let mut check = |at| requesting.check(at, false);
        assert_eq!(check(699).unwrap(), Some(700 * MS));
        assert_eq!(check(700).unwrap(), Some(750 * MS));
        assert_eq!(check(749).unwrap(), Some(750 * MS));
        assert_eq!(check(750).unwrap_err().kind(), WireErrorKind::Timeout);
    }

    #[test]
    fn silence_is_checked_twice() {
        let mut requesting = Requesting::new(2);
        let mut look = |at| requesting.check(at, false);
        assert_eq!(look(1).unwrap(), Some(HEARTBEAT_TIMEOUT));
        // This process was paused. Bytes that arrived meanwhile are read first.
        assert_eq!(look(700).unwrap(), Some(750 * MS));
        assert_eq!(look(750).unwrap_err().kind(), WireErrorKind::Timeout);
    }

    #[test]
    fn second_connection_gets_the_open_requests() {
        let mut requesting = Requesting::new(3);
        assert_eq!(requesting.sample(1), ["1 true"]);
        requesting.machine.resume(FrameOutput::new(None), 800 * MS);
        assert_eq!(requesting.shown(), ["Request", "Cancel [1]"]);
        assert_eq!(requesting.sample(1), [""; 0], "answered on the first connection");
        assert_eq!(requesting.sample(0), ["0 true"]);
        // Unacknowledged samples get a new second. The 30 seconds count from the first request.
        requesting.machine.on_bytes(1700 * MS);
        requesting.check(1700, false).unwrap();
        assert_eq!(requesting.shown(), [""; 0]);
        requesting.machine.on_bytes(RESPONSE_TIMEOUT);
        assert_eq!(requesting.machine.check_timeouts(RESPONSE_TIMEOUT, true).unwrap(), None);
        assert_eq!(requesting.shown(), ["2 false", "Cancel [2]"]);
    }

    /// An owner that waits for a silent file server announces its reads again. Only these wait.
    #[test]
    // semantics: HPC-4
    fn announced_sample_is_waited_for() {
        let mut requesting = Requesting::new(3);
        let reading = |requesting: &mut Requesting, tags: &[u32], at: u32| {
            let header = FrameHeader::new(FrameKind::Reading, 7, 0);
            requesting.machine.on_bytes(at * MS);
            requesting.machine.on_small(&header, &encode_tags(tags), at * MS).unwrap();
            requesting.check(at, true).unwrap();
            requesting.shown()
        };
        assert_eq!(reading(&mut requesting, &[0, 1, 2], 10), [""; 0]);
        assert_eq!(reading(&mut requesting, &[1, 2], 20_000), [""; 0]);
        assert_eq!(reading(&mut requesting, &[2], 40_000), ["0 false", "Cancel [0]"]);
        assert_eq!(reading(&mut requesting, &[2], 60_000), ["1 false", "Cancel [1]"]);
        assert_eq!(reading(&mut requesting, &[], 89_999), [""; 0]);
        assert_eq!(reading(&mut requesting, &[], 90_000), ["2 false", "Cancel [2]"]);
        assert_eq!(requesting.machine.open(), 0);
    }

    #[test]
    fn dropped_samples_are_cancelled() {
        let mut requesting = Requesting::new(3);
        let mut drop_reads = |tags: &[usize]| {
            tags.iter().for_each(|tag| requesting.gone[*tag].set(true));
            requesting.machine.sweep();
            requesting.machine.open()
        };
        assert_eq!([drop_reads(&[2]), drop_reads(&[2]), drop_reads(&[0, 1])], [2, 2, 0]);
        assert_eq!(requesting.shown(), ["Cancel [2]", "Cancel []"], "an empty list is all that is left");
        assert_eq!(requesting.machine.counted.timed_out, 0);
    }
}
