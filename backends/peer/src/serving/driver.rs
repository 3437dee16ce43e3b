//! The task that drives [`Machine`](super::Machine) over one connection.
//!
//! It reads questions, starts them at the engine, and writes what is said of them, each as far as it goes without waiting
//! for the others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use foreread_tier::{Sample, Served};
use foreread_types::{Rank, SampleKey};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream as _, StreamExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::{Action, Check, Machine, Said};
use crate::channel::Channel;
use crate::frame::Header;
use crate::input::Input;
use crate::server::Shared;
use crate::tags::SampleTags;
use crate::timer::Timer;
use crate::{RunId, Stream, WireError};

/// The engine's answers to a chunk. The stream ends after as many answers as samples, or after the engine's last word.
struct Answers {
    chunk: u64,
    left: usize,
    answers: BoxStream<'static, Served>,
}

/// What the engine says of a chunk.
struct Word {
    chunk: u64,
    /// `None` at the end.
    served: Option<Served>,
    /// Whether it says no more.
    last: bool,
}

impl futures::Stream for Answers {
    type Item = Word;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Word>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let served = ready!(self.answers.poll_next_unpin(cx));
        match &served {
            None => self.left = 0,
            Some(Served::Reading { .. }) => {}
            Some(Served::Done { .. } | Served::Kept { .. }) => self.left -= 1,
        }
        Poll::Ready(Some(Word { chunk: self.chunk, served, last: self.left == 0 }))
    }
}

/// The task of a connection.
pub(crate) struct Serving {
    shared: Arc<Shared>,
    from: Rank,
    stream: Stream,
    /// On authenticated connections: what tags samples.
    samples: Option<Arc<SampleTags>>,
    input: Input,
    body: Option<(Header, Limit<BytesMut>)>,
    machine: Machine<OwnedSemaphorePermit>,
    /// Taken from the machine and carried out; empty between events.
    actions: Vec<Action>,
    started: SelectAll<Answers>,
    /// The turn of an answer for which there is no room yet.
    turn: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
    clock: Instant,
    timer: Timer,
}

impl Serving {
    pub(crate) fn new(shared: Arc<Shared>, from: Rank, run: RunId, channel: Channel) -> Self {
        let samples = channel.keys.as_ref().map(|keys| Arc::clone(&keys.samples));
        let (stream, input, output) = channel.into_parts();
        let machine = Machine::new(run.tag(), shared.settings.share, output);
        Self {
            shared,
            from,
            stream,
            samples,
            input,
            body: None,
            machine,
            actions: Vec::new(),
            started: SelectAll::new(),
            turn: None,
            clock: Instant::now(),
            timer: Timer::default(),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        let before = self.machine.output.left_ever();
        if let Poll::Ready(done) = self.machine.output.poll_write(&mut self.stream, cx) {
            done?;
        }
        if self.machine.output.left_ever() > before {
            self.machine.left(self.clock.elapsed());
        }
        Ok(())
    }

    /// The next frame and what follows it.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<(Header, Bytes)>, WireError>> {
        if self.body.is_none() {
            let Some(header) = ready!(self.input.poll_header(&mut self.stream, cx))? else {
                return Poll::Ready(Ok(None));
            };
            self.machine.expect(&header)?;
            let length = header.length as usize; // bounded by its kind
            self.body = Some((header, BytesMut::with_capacity(length).limit(length)));
        }
        if let Some((_, body)) = &mut self.body {
            ready!(self.input.poll_body(&mut self.stream, cx, body))?;
        }
        let Some((header, body)) = self.body.take() else { return Poll::Pending };
        let payload = body.into_inner().freeze();
        if self.input.fits(&header, None, &payload) {
            Poll::Ready(Ok(Some((header, payload))))
        } else {
            Poll::Ready(Err(WireError::malformed("a question arrived damaged")))
        }
    }

    /// Carries out what the machine wants; whether anything was started.
    fn act(&mut self) -> bool {
        let mut starts = false;
        for action in self.actions.drain(..) {
            match action {
                Action::Start { chunk, asked } => {
                    let left = asked.len();
                    let answers = self.shared.source().map(|source| source.serve(self.from, asked));
                    // Nothing is held here where the engine is gone.
                    let answers = answers.unwrap_or_else(|| futures::stream::empty().boxed());
                    self.started.push(Answers { chunk, left, answers });
                    starts = true;
                }
                Action::Stop { chunk } => {
                    let started = std::mem::take(&mut self.started);
                    self.started.extend(started.into_iter().filter(|answers| answers.chunk != chunk));
                }
            }
        }
        starts
    }

    /// Passes on what the engine says; `false` where it says nothing, or there is no room to pass it on.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = self.poll_room(cx);
        while self.machine.has_room() {
            match Pin::new(&mut self.started).poll_next(cx) {
                Poll::Ready(Some(word)) => self.said(word),
                Poll::Ready(None) | Poll::Pending => break,
            }
            any = true;
            self.poll_room(cx);
        }
        let (served, bytes) = std::mem::take(&mut self.machine.served);
        let refused = std::mem::take(&mut self.machine.refused);
        if served + refused > 0 {
            let mut tally = self.shared.counters.now();
            tally.served += served;
            tally.served_bytes += bytes;
            tally.refused += refused;
        }
        self.machine.say_reading();
        any
    }

    fn said(&mut self, Word { chunk, served, last }: Word) {
        let now = self.clock.elapsed();
        let said = served.and_then(|served| self.checked(chunk, served));
        let ended = said.is_some_and(|(place, said)| self.machine.said(chunk, place, said, now));
        if last {
            self.machine.ended(chunk, now);
        } else if ended {
            // Only what was cancelled is still being read.
            self.actions.push(Action::Stop { chunk });
            self.act();
        }
    }

    /// What the engine says of a sample that is still wanted, with its checksum or tag.
    fn checked(&self, chunk: u64, served: Served) -> Option<(u32, Said)> {
        Some(match served {
            Served::Reading { tag } => (tag, Said::Reading),
            Served::Done { tag, result } => {
                let key = self.machine.wanted(chunk, tag)?;
                (tag, Said::Done(result.map(|bytes| (bytes.clone(), self.check(key, &bytes)))))
            }
            Served::Kept { tag, sample } => {
                let key = self.machine.wanted(chunk, tag)?;
                (tag, Said::Done(Ok((sample.bytes(), self.check_kept(key, &sample)))))
            }
        })
    }

    /// Gets room for the answer that waits for it, if one does and there is.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(bytes) = self.machine.needs_room() else {
            self.turn = None; // it was cancelled
            return false;
        };
        let needed = self.shared.settings.pieces(bytes);
        let room = &self.shared.room;
        let permit = match &mut self.turn {
            None => match Arc::clone(room).try_acquire_many_owned(needed) {
                Ok(permit) => Poll::Ready(Some(permit)),
                Err(_) => {
                    let room = Arc::clone(room);
                    let turn = Box::pin(async move { room.acquire_many_owned(needed).await.ok() });
                    self.turn.insert(turn).as_mut().poll(cx)
                }
            },
            Some(turn) => turn.as_mut().poll(cx),
        };
        let permit = match permit {
            Poll::Ready(permit) => permit,
            Poll::Pending if self.machine.output.is_empty() => None,
            Poll::Pending => return false,
        };
        self.turn = None;
        self.machine.give_room(permit, self.clock.elapsed());
        true
    }

    /// The checksum and the tag of a sample, of which a connection has one.
    fn check(&self, key: SampleKey, bytes: &[u8]) -> Check {
        match &self.samples {
            Some(tags) => (0, Some(tags.of_bytes(key, bytes).into())),
            None => (crc32c::crc32c(bytes), None),
        }
    }

    /// The same of a sample that is kept: computed once.
    fn check_kept(&self, key: SampleKey, sample: &Sample) -> Check {
        match &self.samples {
            Some(tags) => (0, Some(tags.of(key, sample).into())),
            None => (sample.crc32c(), None),
        }
    }

    /// Sets the timer, where there is anything to wait for.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        loop {
            let now = self.clock.elapsed();
            let Some(next) = self.machine.look(now)? else {
                self.input.rest();
                return Ok(()); // the timer rings once more, in vain
            };
            if next <= now {
                self.write(cx)?;
                continue;
            }
            let (now, next) = (self.clock + now, self.clock + next);
            if self.timer.poll(next, now, cx).is_pending() {
                return Ok(());
            }
        }
    }
}

impl Future for Serving {
    type Output = Result<(), WireError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let mut progress = false;
            while this.machine.takes_questions() {
                match this.poll_frame(cx)? {
                    Poll::Ready(Some((header, payload))) => {
                        let now = this.clock.elapsed();
                        this.machine.asked(&header, &payload, now, &mut this.actions)?;
                        this.act();
                    }
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            // A rank that has just met others may be asked before it serves; the timer looks again.
            if this.shared.has_source() {
                this.machine.start(&mut this.actions);
                progress |= this.act();
            }
            progress |= this.pass_on(cx);
            let waiting = this.machine.output.waiting();
            this.write(cx)?;
            progress |= this.machine.output.waiting() < waiting;
            if !progress {
                break;
            }
        }
        this.tick(cx)?;
        Poll::Pending
    }
}
