//! One connection on which another rank asks.
//!
//! All of it is one task, which reads questions, starts them, and writes what is said of them, each as far as it goes
//! without waiting for the others. What it may hold is bounded:
//!
//! * Samples that were handed to the engine of which nothing was said, and answers that wait to be written, have
//!   together at most [`Settings::share`] bytes (or are one sample). The engine's word that it reads a sample frees its place:
//!   samples that come from the origin do not hold up those that are in memory.
//! * Answers that wait on all connections have at most [`Settings::budget`] bytes beside one on each connection. So a rank that
//!   does not read what it asked for holds its share and no more, a sample larger than the budget leaves when its
//!   connection has nothing else, and there is no state in which two ranks wait for each other: each always has room for one
//!   answer more.
//! * Questions wait where they arrived, the earliest due first; beyond [`MOST_OPEN`] the connection is not read, and who
//!   asks finds it full.
//!
//! Who asks must know that this end lives although it has nothing to say yet, so while something is open a frame leaves
//! every [`ALIVE`]. Questions that had to wait here, and answers that wait for the cable, are said to be on their way after
//! [`TELL`]; what the engine reads from the origin is said to be so at once, and again every [`TELL`] as long as it is true,
//! because only that is worth waiting for where a trainer waits. Such words go before the answers that wait, and no new ones
//! are said while earlier ones have not left: who does not listen makes nothing grow. What is cancelled does not leave any
//! more, unless it has begun to.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use foreread_tier::{Asked, Sample, TierError};
use foreread_types::{Rank, SampleKey};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::SelectAll;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::channel::Channel;
use crate::chunk::{Chunk, Event, Said, Slot, State};
use crate::counters::count;
use crate::frame::{
    AT_ORIGIN, Ask, Header, Kind, MOST_ASKED, MOST_WORDS, decode_tags, encode_tags, status_of,
};
use crate::input::Input;
use crate::output::Output;
use crate::server::Shared;
use crate::tags::{SampleTags, Trailer};
use crate::wanted::{Queued, Request};
use crate::{RunId, Stream, WireError, WireErrorKind};

#[cfg(doc)]
use crate::Settings;

/// While something is open, no longer than this passes without a frame.
pub const ALIVE: Duration = Duration::from_millis(100);

/// A sample that waits here for this long is said to be on its way.
pub const TELL: Duration = Duration::from_millis(300);

/// A connection that takes no byte for so long is given up.
pub const STALLED: Duration = Duration::from_secs(10);

/// Samples that one connection may have asked for and not got.
pub const MOST_OPEN: usize = 64 << 10;

/// Bytes that are handed to the engine in one call, and samples.
const CHUNK: (u64, usize) = (1 << 20, 64);

type Room = Option<OwnedSemaphorePermit>;

/// What a frame that waits to leave has.
enum Held {
    Answer {
        /// Its part of the budget.
        _room: Room,
        request: u64,
        tag: u32,
        /// Since when it waits, until it was said to be on its way.
        untold: Option<Instant>,
    },
    /// That samples are on their way.
    Word,
    Alive,
}

impl Held {
    fn answer(header: &Header, room: Room) -> Self {
        let Header { request, tag, .. } = *header;
        Self::Answer { _room: room, request, tag, untold: Some(Instant::now()) }
    }

    /// Whether it is an answer to these of a request, in order; to any of it where none is named.
    fn is_of(&self, asked: u64, tags: &[u32]) -> bool {
        match self {
            Self::Answer { request, tag, .. } => *request == asked && names(tags, *tag),
            Self::Word | Self::Alive => false,
        }
    }
}

/// Whether a list of tags, in order, names this one; an empty list names all.
fn names(tags: &[u32], tag: u32) -> bool {
    tags.is_empty() || tags.binary_search(&tag).is_ok()
}

/// The task of a connection.
pub(crate) struct Serving {
    shared: Arc<Shared>,
    from: Rank,
    /// What every frame of the run names.
    run: u64,
    stream: Stream,
    /// On authenticated connections: what tags samples.
    samples: Option<Arc<SampleTags>>,
    input: Input,
    body: Option<(Header, Limit<BytesMut>)>,
    output: Output<Held>,
    requests: HashMap<u64, Request>,
    /// Samples in `requests`.
    open: usize,
    queue: BinaryHeap<Reverse<Queued>>,
    started: SelectAll<Chunk>,
    /// Bytes that were started and of which nothing was said.
    silent: u64,
    /// To be said to be on their way from the origin.
    reading: Vec<(u64, u32)>,
    /// When that was last said again of all of which it is true.
    renewed: Instant,
    /// An answer for which there is no room yet, and its turn.
    held: Option<(Header, Bytes, Option<Trailer>, BoxFuture<'static, Room>)>,
    /// When something last left, or began to wait.
    sent: Instant,
    /// When to look again for what has waited long.
    look: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Serving {
    pub(crate) fn new(shared: Arc<Shared>, from: Rank, run: RunId, channel: Channel) -> Self {
        let samples = channel.keys.as_ref().map(|keys| Arc::clone(&keys.samples));
        let (stream, input, output) = channel.into_parts();
        Self {
            shared,
            from,
            run: run.tag(),
            stream,
            samples,
            input,
            body: None,
            output,
            requests: HashMap::new(),
            open: 0,
            queue: BinaryHeap::new(),
            started: SelectAll::new(),
            silent: 0,
            reading: Vec::new(),
            renewed: Instant::now(),
            held: None,
            sent: Instant::now(),
            look: Instant::now(),
            timer: None,
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        let before = self.output.left_ever();
        if let Poll::Ready(done) = self.output.poll_write(&mut self.stream, cx) {
            done?;
        }
        if self.output.left_ever() > before {
            self.sent = Instant::now();
        }
        Ok(())
    }

    /// The next frame and what follows it.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<(Header, Bytes)>, WireError>> {
        if self.body.is_none() {
            match self.input.poll_header(&mut self.stream, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(None)),
                Poll::Ready(Ok(Some(header))) => {
                    let wanted = matches!(header.kind, Kind::Ask | Kind::Cancel) && header.job == self.run;
                    if !wanted {
                        let detail = format!("a frame {:?} from who asks for samples", header.kind);
                        return Poll::Ready(Err(WireError::malformed(detail)));
                    }
                    let length = header.length as usize; // bounded by its kind
                    self.body = Some((header, BytesMut::with_capacity(length).limit(length)));
                }
            }
        }
        if let Some((_, body)) = &mut self.body {
            std::task::ready!(self.input.poll_body(&mut self.stream, cx, body))?;
        }
        let Some((header, body)) = self.body.take() else { return Poll::Pending };
        let payload = body.into_inner().freeze();
        if self.input.fits(&header, None, &payload) {
            Poll::Ready(Ok(Some((header, payload))))
        } else {
            Poll::Ready(Err(WireError::malformed("a question arrived damaged")))
        }
    }

    fn take_in(&mut self, header: &Header, payload: &Bytes) -> Result<(), WireError> {
        let request = header.request;
        if header.kind == Kind::Cancel {
            let mut tags: Vec<u32> = decode_tags(payload)?.collect();
            tags.sort_unstable();
            self.cancel(request, &tags);
            return Ok(());
        }
        let asks = Ask::decode(payload)?;
        if self.requests.insert(request, Request::new(asks.len())).is_some() {
            return Err(WireError::malformed(format!("request {request} was made twice")));
        }
        if self.open == 0 {
            self.sent = Instant::now();
        }
        self.open += asks.len();
        self.queue.extend(asks.into_iter().zip(0..).map(|(ask, tag)| {
            Reverse(Queued { due: ask.due, request, tag, key: ask.key, length: ask.length })
        }));
        Ok(())
    }

    /// These are no longer wanted; all of the request where none is named. What waits in the queue stays there until its turn
    /// comes, but not for ever: whoever asks and cancels all the time must not make it grow.
    fn cancel(&mut self, request: u64, tags: &[u32]) {
        self.forget(request, tags);
        self.output.discard(|held| held.is_of(request, tags));
        let is_unwanted = |header: &Header| header.request == request && names(tags, header.tag);
        drop(self.held.take_if(|(header, ..)| is_unwanted(header)));
        if self.queue.len() > 2 * self.open + CHUNK.1 {
            let is_open = |queued: &Queued| {
                self.requests.get(&queued.request).is_some_and(|known| known.is_open(queued.tag))
            };
            self.queue.retain(|Reverse(queued)| is_open(queued));
        }
    }

    fn forget(&mut self, request: u64, tags: &[u32]) {
        let Some(known) = self.requests.get_mut(&request) else { return };
        let closed = match tags {
            [] => std::mem::take(&mut known.left),
            tags => tags.iter().filter(|tag| known.close(**tag)).count(),
        };
        self.open -= closed;
        if known.left == 0 {
            self.requests.remove(&request);
            let (ended, kept): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.started).into_iter().partition(|chunk| chunk.request == request);
            self.silent -= ended.iter().map(Chunk::silent).sum::<u64>();
            self.started.extend(kept);
            return;
        }
        for chunk in self.started.iter_mut().filter(|chunk| chunk.request == request) {
            self.silent -= tags.iter().map(|tag| chunk.forget(*tag)).sum::<u64>();
        }
    }

    /// Hands what is due first to the engine; `false` where there is nothing, or no room.
    fn start(&mut self) -> bool {
        // A rank that has just met others may be asked before it serves; the timer looks again.
        if !self.shared.has_source() {
            return false;
        }
        let share = self.shared.settings.share;
        let waiting = self.output.waiting() as u64;
        let mut slots: Vec<Slot> = Vec::new();
        let mut asked: Vec<Asked> = Vec::new();
        let (mut request, mut bytes) = (0, 0u64);
        while let Some(Reverse(next)) = self.queue.peek() {
            let known = self.requests.get(&next.request);
            if !known.is_some_and(|known| known.is_open(next.tag)) {
                self.queue.pop(); // cancelled
                continue;
            }
            let held = self.silent.saturating_add(waiting).saturating_add(bytes);
            let fits = held == 0 || held.saturating_add(next.length) <= share;
            let same = slots.is_empty() || next.request == request;
            if !fits || !same || slots.len() == CHUNK.1 || bytes >= CHUNK.0 {
                break;
            }
            let Some(Reverse(next)) = self.queue.pop() else { break };
            request = next.request;
            bytes = bytes.saturating_add(next.length);
            asked.push(Asked { tag: slots.len() as u32, key: next.key, due: next.due });
            let state = State::Silent;
            slots.push(Slot { tag: next.tag, key: next.key, length: next.length, state });
        }
        if slots.is_empty() {
            return false;
        }
        self.silent = self.silent.saturating_add(bytes);
        let answers = self.shared.source().map(|source| source.serve(self.from, asked));
        self.started.push(Chunk::new(request, slots, answers));
        true
    }

    /// Passes on what the engine says; `false` where it says nothing, or there is no room to pass it on.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some((header, payload, tag, turn)) = &mut self.held {
            let room = match turn.as_mut().poll(cx) {
                Poll::Ready(room) => room,
                Poll::Pending if self.output.is_empty() => None,
                Poll::Pending => return false,
            };
            let (header, payload, tag) = (*header, std::mem::take(payload), *tag);
            self.held = None;
            self.output.push(header, payload, tag, Held::answer(&header, room));
        }
        let mut any = false;
        while self.held.is_none() && (self.output.waiting() as u64) < self.shared.settings.share {
            match self.started.poll_next_unpin(cx) {
                Poll::Ready(Some(event)) => self.say(event),
                Poll::Ready(None) | Poll::Pending => break,
            }
            any = true;
        }
        self.say_reading();
        any
    }

    fn say(&mut self, event: Event) {
        self.silent -= event.freed;
        let Some(known) = self.requests.get_mut(&event.request) else { return };
        if matches!(event.said, Said::Reading) {
            return self.reading.push((event.request, event.tag));
        }
        if !known.close(event.tag) {
            return;
        }
        self.open -= 1;
        if known.left == 0 {
            self.requests.remove(&event.request);
        }
        let result = match event.said {
            Said::Reading => return,
            Said::Done(result) => result.map(|bytes| (self.check(event.key, &bytes), bytes)),
            Said::Kept(sample) => Ok((self.check_kept(event.key, &sample), sample.data().clone())),
        };
        let header =
            Header { sample: event.key.id.0, tag: event.tag, ..self.header(Kind::Answer, event.request) };
        match result {
            Ok((check, bytes)) => {
                count(&self.shared.counters.served, 1);
                count(&self.shared.counters.served_bytes, bytes.len() as u64);
                self.answer(header.over_checked(&bytes, check.0), bytes, check.1);
            }
            Err(error) => {
                count(&self.shared.counters.refused, 1);
                let words = Bytes::from(words_of(&error));
                let header = Header { status: status_of(error.kind()), ..header };
                self.output.push(header.over(&words), words, None, Held::answer(&header, None));
            }
        }
    }

    /// The checksum and the tag of a sample, of which a connection has one.
    fn check(&self, key: SampleKey, bytes: &[u8]) -> (u32, Option<Trailer>) {
        match &self.samples {
            Some(tags) => (0, Some(tags.of_bytes(key, bytes).into())),
            None => (crc32c::crc32c(bytes), None),
        }
    }

    /// The same of a sample that is kept: computed once.
    fn check_kept(&self, key: SampleKey, sample: &Sample) -> (u32, Option<Trailer>) {
        match &self.samples {
            Some(tags) => (0, Some(tags.of(key, sample).into())),
            None => (sample.crc32c(), None),
        }
    }

    /// Lets an answer leave, now or when there is room.
    fn answer(&mut self, header: Header, bytes: Bytes, tag: Option<Trailer>) {
        if self.output.is_empty() {
            return self.output.push(header, bytes, tag, Held::answer(&header, None));
        }
        let room = Arc::clone(&self.shared.room);
        let needed = self.shared.settings.pieces(bytes.len() as u64);
        match Arc::clone(&room).try_acquire_many_owned(needed) {
            Ok(room) => self.output.push(header, bytes, tag, Held::answer(&header, Some(room))),
            Err(_) => {
                let turn = Box::pin(async move { room.acquire_many_owned(needed).await.ok() });
                self.held = Some((header, bytes, tag, turn));
            }
        }
    }

    fn header(&self, kind: Kind, request: u64) -> Header {
        Header::new(kind, self.run, request)
    }

    /// Whether words are still to leave. They are the first that do.
    fn words_wait(&mut self) -> bool {
        self.output.held().take(2).any(|held| matches!(held, Held::Word))
    }

    /// Says what is on its way from the origin, as far as it still is.
    fn say_reading(&mut self) {
        if self.reading.is_empty() {
            return;
        }
        let wait = self.words_wait();
        if wait && self.reading.len() <= 2 * self.open + CHUNK.1 {
            return;
        }
        let requests = &self.requests;
        self.reading.retain(|(request, tag)| requests.get(request).is_some_and(|known| known.is_open(*tag)));
        if !wait {
            let reading = std::mem::take(&mut self.reading);
            self.say_on_their_way(reading, AT_ORIGIN);
        }
    }

    fn say_on_their_way(&mut self, mut samples: Vec<(u64, u32)>, status: u8) {
        samples.sort_unstable();
        for of_one in samples.chunk_by(|one, other| one.0 == other.0) {
            for part in of_one.chunks(MOST_ASKED) {
                let tags = encode_tags(&part.iter().map(|(_, tag)| *tag).collect::<Vec<_>>());
                let header = Header { status, ..self.header(Kind::Reading, part[0].0) };
                self.output.push_early(header.over(&tags), tags, Held::Word);
            }
        }
    }

    /// Says that this end lives, and what had to wait; finds out that the other end takes nothing. Afterwards the timer is
    /// set, where there is anything to wait for.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        loop {
            if self.open == 0 && self.output.is_empty() {
                self.input.rest();
                return Ok(()); // the timer rings once more, in vain
            }
            let now = Instant::now();
            if self.look <= now {
                self.look = now + ALIVE;
                self.tell(now);
                self.write(cx)?;
            }
            let blocked = !self.output.is_empty();
            if blocked && now.duration_since(self.sent) >= STALLED {
                let detail = format!("it takes nothing for {} s", STALLED.as_secs());
                return Err(WireError::new(WireErrorKind::Late, detail));
            }
            let due = if blocked { now.max(self.sent) + ALIVE } else { self.sent + ALIVE };
            if due <= now {
                if self.output.is_empty() {
                    let header = self.header(Kind::Alive, 0);
                    self.output.push(header.over(&[]), Bytes::new(), None, Held::Alive);
                }
                self.write(cx)?;
                self.sent = now; // also where it did not leave: the kernel has what left before
                continue;
            }
            let timer = match &mut self.timer {
                Some(timer) if timer.deadline() <= now || timer.deadline() > due => {
                    timer.as_mut().reset(due);
                    timer
                }
                Some(timer) => timer,
                None => self.timer.insert(Box::pin(sleep_until(due))),
            };
            if Future::poll(timer.as_mut(), cx).is_pending() {
                return Ok(());
            }
        }
    }

    /// Says of what has waited here for long that it is on its way: of questions, and of answers that wait to leave. Says
    /// again what is being read from the origin.
    fn tell(&mut self, now: Instant) {
        if self.words_wait() {
            return;
        }
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        for held in self.output.held() {
            if let Held::Answer { request, tag, untold, .. } = held
                && untold.take_if(|since| now.duration_since(*since) >= TELL).is_some()
            {
                waiting.push((*request, *tag));
            }
        }
        let waits = |request: &Request| !request.told && now.duration_since(request.since) >= TELL;
        if self.requests.values().any(waits) {
            for Reverse(queued) in &self.queue {
                let known = self.requests.get(&queued.request);
                if known.is_some_and(|known| waits(known) && known.is_open(queued.tag)) {
                    waiting.push((queued.request, queued.tag));
                }
            }
            self.requests.values_mut().filter(|request| waits(request)).for_each(|known| known.told = true);
        }
        if now.duration_since(self.renewed) >= TELL {
            self.renewed = now;
            self.reading.clear(); // they are among these
            let chunks = self.started.iter();
            self.reading.extend(chunks.flat_map(|chunk| chunk.reading().map(|tag| (chunk.request, tag))));
        }
        self.say_reading();
        self.say_on_their_way(waiting, 0);
    }
}

/// What the other end is told of a failure, cut to what a frame may have.
fn words_of(error: &TierError) -> String {
    let mut words = error.detail().unwrap_or_default().to_owned();
    let end = (0..=MOST_WORDS.min(words.len())).rev().find(|end| words.is_char_boundary(*end));
    words.truncate(end.unwrap_or(0));
    words
}

impl Future for Serving {
    type Output = Result<(), WireError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let mut progress = false;
            while this.open < MOST_OPEN {
                match this.poll_frame(cx)? {
                    Poll::Ready(Some((header, payload))) => this.take_in(&header, &payload)?,
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            while this.start() {
                progress = true;
            }
            progress |= this.pass_on(cx);
            let waiting = this.output.waiting();
            this.write(cx)?;
            progress |= this.output.waiting() < waiting;
            if !progress {
                break;
            }
        }
        this.tick(cx)?;
        Poll::Pending
    }
}
