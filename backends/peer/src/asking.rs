//! One connection on which this rank asks another.
//!
//! All of it is one task. Answers are read into memory of their exact length and handed on at once, to a queue that
//! never makes this task wait: what may come is what was asked for, which its askers have counted already. So a slow
//! asker holds up nobody, and this end always reads.
//!
//! # When a question is given up
//!
//! | what happens | after | what fails |
//! |---|---|---|
//! | not a byte comes while something is open | [`SILENT`] and [`LOOK_AGAIN`] | all that is open; the connection ends |
//! | bytes come and nothing is said of a sample | [`UNSEEN`] | that sample |
//! | it was said to be on its way, and does not come | [`LONGEST`] | that sample |
//! | the trainer waits for it, and at the pace at which bytes come it will not be here in time | at once | that sample |
//!
//! The last does not hold for what its owner is reading from the origin: the owner says so, and says it again as long as it
//! is true, so that a word that is older than [`FRESH`] is worth nothing. A link that is clogged with samples lets no such
//! words through in time, which is right.
//!
//! The other end says every 100 ms that it lives. A process that was itself stopped finds the bytes that came meanwhile
//! when it goes on, which is why silence is looked at twice. While a long sample arrives nothing else can be said, so a
//! sample that waits behind it is not counted as unseen, up to [`LONGEST`].

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use foreread_tier::{Buffer, ErrorKind, TierError};
use foreread_types::Tick;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::batch::{Batch, State};
use crate::channel::Channel;
use crate::counters::count;
use crate::frame::{AT_ORIGIN, Ask, Header, Kind, MOST_ASKED, MOST_WORDS, decode_tags, encode_tags, kind_of};
use crate::input::Input;
use crate::output::Output;
use crate::pace::Pace;
use crate::remote::Inner;
use crate::{Stream, WireError, WireErrorKind};

/// Silence after which a rank counts as gone, while something is open.
pub const SILENT: Duration = Duration::from_millis(600);

/// How much later silence is looked at again before it counts.
pub const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a rank may say nothing of a sample.
pub const UNSEEN: Duration = Duration::from_secs(1);

/// How long a sample may be on its way.
pub const LONGEST: Duration = Duration::from_secs(30);

/// How long the word that a sample is being read from the origin counts: two times as long as until it is said again.
pub const FRESH: Duration = Duration::from_millis(600);

/// The tier's name.
pub(crate) const NAME: &str = "peer";

/// What the connection's task is told.
pub(crate) enum Command {
    /// A request of this number.
    Ask(u64, Batch),
    /// The request of this number is no longer wanted.
    Cancel(u64),
    /// The trainer waits for what is due by then, and should have it within this time.
    Hurry { due: Tick, within: Duration },
}

/// What follows a header.
enum Body {
    Sample(Header, Buffer),
    /// Tags, or words that go with an error.
    Small(Header, Limit<BytesMut>),
    /// Of nobody's interest: so many bytes are left.
    Skipped(u64),
}

/// The task of a connection.
pub(crate) struct Asking<'a> {
    remote: &'a Inner,
    stream: Stream,
    commands: &'a mut mpsc::UnboundedReceiver<Command>,
    input: Input,
    body: Option<Body>,
    output: Output,
    requests: HashMap<u64, Batch>,
    /// Samples in `requests`.
    open: usize,
    /// When bytes last came, or something was asked after all was answered.
    heard: Instant,
    came: u64,
    pace: Pace,
    /// Silence was seen once; when it counts.
    doubt: Option<Instant>,
    /// When nothing may be unseen of which request.
    unseen: VecDeque<(Instant, u64)>,
    /// When which sample has been on its way for too long.
    reading: VecDeque<(Instant, u64, u32)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<'a> Asking<'a> {
    pub(crate) fn new(
        remote: &'a Inner,
        channel: Channel,
        commands: &'a mut mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let (stream, input, output) = channel.into_parts();
        Self {
            remote,
            stream,
            commands,
            input,
            body: None,
            output,
            requests: HashMap::new(),
            open: 0,
            heard: Instant::now(),
            came: 0,
            pace: Pace::new(Instant::now()),
            doubt: None,
            unseen: VecDeque::new(),
            reading: VecDeque::new(),
            timer: None,
        }
    }

    /// Whether anything ever came.
    pub(crate) fn was_useful(&self) -> bool {
        self.input.came() > 0
    }

    /// Samples that were asked for and not answered.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Answers all that is open.
    pub(crate) fn fail(mut self, why: &WireError) {
        count(&self.remote.asker.counters.lost, self.open as u64);
        self.requests.drain().for_each(|(_, batch)| batch.fail(why));
    }

    fn header(&self, kind: Kind, request: u64) -> Header {
        Header::new(kind, self.remote.asker.run.tag(), request)
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Ask(request, batch) => {
                let asks = Ask::encode(batch.asks());
                let header = self.header(Kind::Ask, request);
                self.output.push(header.over(&asks), asks, None, ());
                let now = Instant::now();
                if self.open == 0 {
                    (self.heard, self.doubt) = (now, None);
                }
                count(&self.remote.asker.counters.asked, batch.left as u64);
                self.open += batch.left;
                self.unseen.push_back((now + UNSEEN, request));
                self.requests.insert(request, batch);
            }
            Command::Cancel(request) => {
                let Some(batch) = self.requests.remove(&request) else { return };
                self.open -= batch.left;
                self.cancel(request, &[]);
            }
            Command::Hurry { due, within } => self.hurry(due, within),
        }
    }

    /// Gives up what is due by `due` and will not come `within` the time that is left. What is due first comes first.
    fn hurry(&mut self, due: Tick, within: Duration) {
        let now = Instant::now();
        let requests = self.requests.iter();
        let waited_for = requests.flat_map(|(request, batch)| {
            batch.waited_for(due, now).map(|(due, tag, bytes)| (due, *request, tag, bytes))
        });
        let mut waited_for: Vec<_> = waited_for.collect();
        waited_for.sort_unstable();
        let mut room = self.pace.bytes_in(within, now, self.input.came());
        let mut late: Vec<(u64, u32)> = Vec::new();
        for (_, request, tag, bytes) in waited_for {
            let left = bytes.saturating_sub(self.body_of(request, tag));
            match room.checked_sub(left.max(1)).filter(|_| late.is_empty()) {
                Some(rest) => room = rest,
                None => late.push((request, tag)),
            }
        }
        late.sort_unstable();
        for of_one in late.chunk_by(|one, other| one.0 == other.0) {
            let tags: Vec<u32> = of_one.iter().map(|(_, tag)| *tag).collect();
            self.give_up(of_one[0].0, &tags, "the trainer waits for it, and it will not come in time");
        }
    }

    /// Bytes of a sample that have come, where it is the one that is coming.
    fn body_of(&self, request: u64, tag: u32) -> u64 {
        match &self.body {
            Some(Body::Sample(header, buffer)) if (header.request, header.tag) == (request, tag) => {
                buffer.filled() as u64
            }
            _ => 0,
        }
    }

    /// Tells the other end what is no longer wanted.
    fn cancel(&mut self, request: u64, tags: &[u32]) {
        let tags = encode_tags(tags);
        let header = self.header(Kind::Cancel, request);
        self.output.push(header.over(&tags), tags, None, ());
    }

    /// Reads a frame and does what it says; `false` at the end of the stream.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, WireError>> {
        if self.body.is_none() {
            let Some(header) = ready!(self.input.poll_header(&mut self.stream, cx))? else {
                return Poll::Ready(Ok(false));
            };
            self.body = Some(self.expect(header)?);
        }
        match &mut self.body {
            Some(Body::Sample(_, buffer)) => ready!(self.input.poll_body(&mut self.stream, cx, buffer))?,
            Some(Body::Small(_, bytes)) => ready!(self.input.poll_body(&mut self.stream, cx, bytes))?,
            Some(Body::Skipped(left)) => ready!(self.input.poll_skip(&mut self.stream, cx, left))?,
            None => {}
        }
        match self.body.take() {
            Some(Body::Sample(header, buffer)) => self.sample(&header, buffer.freeze()),
            Some(Body::Small(header, bytes)) => self.small(&header, &bytes.into_inner())?,
            Some(Body::Skipped(..)) | None => {}
        }
        Poll::Ready(Ok(true))
    }

    /// Where the bytes that follow `header` go.
    fn expect(&mut self, header: Header) -> Result<Body, WireError> {
        let length = header.length as usize;
        let small = || Body::Small(header, BytesMut::with_capacity(length).limit(length));
        if header.job != self.remote.asker.run.tag() {
            return Err(WireError::malformed("a frame of another run"));
        }
        match header.kind {
            Kind::Alive => Ok(Body::Skipped(0)),
            Kind::Reading => Ok(small()),
            Kind::Answer => {
                if header.status != 0 && length > MOST_WORDS {
                    return Err(WireError::malformed(format!("an error in {length} bytes")));
                }
                let skipped = Body::Skipped(u64::from(header.length));
                let Some(batch) = self.requests.get_mut(&header.request) else { return Ok(skipped) };
                let slot = batch.slots.get(header.tag as usize);
                let Some(slot) = slot.filter(|slot| slot.state != State::Done) else { return Ok(skipped) };
                if slot.key.id.0 != header.sample {
                    let detail = format!("sample {} as the answer to {}", header.sample, slot.key);
                    return Err(WireError::malformed(detail));
                }
                if header.status != 0 {
                    return Ok(small());
                }
                let error = if header.length != slot.length {
                    let detail = format!("{} bytes instead of {}", header.length, slot.length);
                    TierError::new(ErrorKind::Changed, NAME).with_detail(detail)
                } else if let Some(buffer) = self.remote.asker.buffers.allocate(length, 1) {
                    return Ok(Body::Sample(header, buffer));
                } else {
                    TierError::new(ErrorKind::Other, NAME)
                        .with_detail(format!("no memory for {length} bytes"))
                };
                self.answer(&header, Err(error));
                Ok(skipped)
            }
            Kind::Ask | Kind::Cancel | Kind::Control => {
                Err(WireError::malformed(format!("a frame {:?} from who is asked for samples", header.kind)))
            }
        }
    }

    fn sample(&mut self, header: &Header, bytes: Bytes) {
        let slot = self.requests.get(&header.request).and_then(|batch| batch.slots.get(header.tag as usize));
        let Some(key) = slot.map(|slot| slot.key) else { return };
        let result = if self.input.fits(header, Some(key), &bytes) {
            Ok(bytes)
        } else {
            let detail =
                format!("rank {}: the checksum or tag does not match what arrived", self.remote.rank);
            Err(TierError::new(ErrorKind::Corrupt, NAME).with_detail(detail))
        };
        self.answer(header, result);
    }

    fn small(&mut self, header: &Header, bytes: &[u8]) -> Result<(), WireError> {
        if !self.input.fits(header, None, bytes) {
            return Err(WireError::malformed("a frame arrived damaged"));
        }
        if let Some(kind) = kind_of(header.status).filter(|_| header.kind == Kind::Answer) {
            let words = String::from_utf8_lossy(bytes);
            let colon = if words.is_empty() { "" } else { ": " };
            let detail = format!("rank {}{colon}{words}", self.remote.rank);
            self.answer(header, Err(TierError::new(kind, NAME).with_detail(detail)));
            return Ok(());
        }
        let now = Instant::now();
        let state = match header.status {
            AT_ORIGIN => State::AtOrigin { until: now + FRESH },
            _ => State::Waiting,
        };
        let Some(batch) = self.requests.get_mut(&header.request) else { return Ok(()) };
        for tag in decode_tags(bytes)? {
            let slot = batch.slots.get_mut(tag as usize);
            let Some(slot) = slot.filter(|slot| slot.state != State::Done) else { continue };
            if slot.state == State::Unseen {
                self.reading.push_back((now + LONGEST, header.request, tag));
            }
            slot.state = state;
        }
        // Those that came are taken out as their turn comes; behind a slow one they would gather.
        if self.reading.len() > 2 * self.open + MOST_ASKED {
            let requests = &self.requests;
            let slot = |request, tag: u32| {
                requests.get(&request).and_then(|batch: &Batch| batch.slots.get(tag as usize))
            };
            self.reading.retain(|&(_, request, tag)| {
                slot(request, tag).is_some_and(|slot| slot.state.is_on_its_way())
            });
        }
        Ok(())
    }

    fn answer(&mut self, header: &Header, result: Result<Bytes, TierError>) {
        let Some(batch) = self.requests.get_mut(&header.request) else { return };
        let bytes = result.as_ref().ok().map(Bytes::len);
        if batch.answer(header.tag as usize, result) {
            self.open -= 1;
            if let Some(bytes) = bytes {
                count(&self.remote.asker.counters.got, 1);
                count(&self.remote.asker.counters.got_bytes, bytes as u64);
            }
            if batch.left == 0 {
                self.requests.remove(&header.request);
            }
        }
    }

    /// Gives up what has taken too long; says when to look again.
    fn look(&mut self, now: Instant) -> Result<Option<Instant>, WireError> {
        if self.open == 0 {
            self.unseen.clear();
            self.reading.clear();
            self.input.rest();
            return Ok(None);
        }
        let mut next = self.heard + SILENT;
        if next <= now {
            // From now on, not from then: this process may have been the one that stood still.
            next = *self.doubt.get_or_insert(now + LOOK_AGAIN);
            if next <= now {
                let detail = format!("it has said nothing for {:.1} s", (now - self.heard).as_secs_f64());
                return Err(WireError::new(WireErrorKind::Late, detail));
            }
        }
        while let Some(&(until, request)) = self.unseen.front() {
            if until > now {
                next = next.min(until);
                break;
            }
            if self.body.is_some() && now < until + (LONGEST - UNSEEN) && self.requests.contains_key(&request)
            {
                next = next.min(now + LOOK_AGAIN);
                break;
            }
            self.unseen.pop_front();
            let slots = self.requests.get(&request).map_or(&[][..], |batch| &batch.slots);
            let unseen = (0..).zip(slots).filter(|(_, slot)| slot.state == State::Unseen);
            let unseen: Vec<u32> = unseen.map(|(tag, _)| tag).collect();
            self.give_up(request, &unseen, &format!("nothing was said of it in {} s", UNSEEN.as_secs()));
        }
        while let Some(&(until, request, tag)) = self.reading.front() {
            let slot = self.requests.get(&request).and_then(|batch| batch.slots.get(tag as usize));
            if until > now && slot.is_some_and(|slot| slot.state.is_on_its_way()) {
                next = next.min(until);
                break;
            }
            self.reading.pop_front();
            if until <= now {
                self.give_up(request, &[tag], &format!("it was on its way for {} s", LONGEST.as_secs()));
            }
        }
        Ok(Some(next))
    }

    fn give_up(&mut self, request: u64, tags: &[u32], why: &str) {
        let Some(batch) = self.requests.get_mut(&request) else { return };
        let detail = format!("rank {}: {why}", self.remote.rank);
        let error = TierError::new(ErrorKind::Transient, NAME).with_detail(detail);
        let mut open = |tag: &u32| batch.answer(*tag as usize, Err(error.clone()));
        let given_up: Vec<u32> = tags.iter().copied().filter(|tag| open(tag)).collect();
        if given_up.is_empty() {
            return;
        }
        self.open -= given_up.len();
        count(&self.remote.asker.counters.late, given_up.len() as u64);
        if batch.left == 0 {
            self.requests.remove(&request);
        }
        self.cancel(request, &given_up);
        // What still comes of it takes no memory.
        if let Some(Body::Sample(header, buffer)) = &self.body
            && header.request == request
            && given_up.contains(&header.tag)
        {
            self.body = Some(Body::Skipped(buffer.remaining_mut() as u64));
        }
    }

    /// All that can be done without waiting; the connection's end is an error.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        while let Poll::Ready(frame) = self.poll_frame(cx) {
            if !frame? {
                return Err(WireError::new(WireErrorKind::Gone, "it closed the connection"));
            }
        }
        if self.input.came() > self.came {
            (self.came, self.heard, self.doubt) = (self.input.came(), Instant::now(), None);
            self.pace.note(self.heard, self.came);
        }
        while let Poll::Ready(command) = self.commands.poll_recv(cx) {
            match command {
                Some(command) => self.command(command),
                None => return Err(WireError::new(WireErrorKind::Gone, "nobody asks any more")),
            }
        }
        loop {
            if let Poll::Ready(written) = self.output.poll_write(&mut self.stream, cx) {
                written?;
            }
            let now = Instant::now();
            let waiting = self.output.waiting();
            let Some(next) = self.look(now)? else { return Ok(()) };
            if self.output.waiting() > waiting {
                continue; // something was cancelled
            }
            let timer = match &mut self.timer {
                // One that rings earlier is let ring: putting it off at each frame would cost more.
                Some(timer) if timer.deadline() <= now || timer.deadline() > next => {
                    timer.as_mut().reset(next);
                    timer
                }
                Some(timer) => timer,
                None => self.timer.insert(Box::pin(sleep_until(next))),
            };
            if Future::poll(timer.as_mut(), cx).is_pending() {
                return Ok(());
            }
        }
    }
}

impl Future for Asking<'_> {
    /// Why the connection ended.
    type Output = WireError;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WireError> {
        match self.get_mut().go_on(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }
}
