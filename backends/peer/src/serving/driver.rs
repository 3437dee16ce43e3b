//! The task that drives [`ServerMachine`](super::ServerMachine) over one connection.
//!
//! It reads requests, starts them at the store, and writes the responses. None of these waits for
//! the others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use foreread_connection::channel::AuthenticatedStream;
use foreread_connection::frame::FrameHeader;
use foreread_connection::input::FrameInput;
use foreread_connection::mac::SampleMac;
use foreread_connection::{BoxedStream, RunId, WireError};
use foreread_tier::PeerReply;
use foreread_types::{Rank, SampleKey};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream as _, StreamExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::shared::ServingShared;
use super::{SampleCheck, ServerAction, ServerMachine, StoreReply};
use crate::timer::PollTimer;

/// The store's replies to a chunk. Ends after one response per sample, or when the store ends.
struct ChunkReplies {
    chunk: u64,
    left: usize,
    answers: BoxStream<'static, PeerReply>,
}

/// A reply of the store to a chunk.
struct ChunkReply {
    chunk: u64,
    /// `None` at the end.
    served: Option<PeerReply>,
    /// Whether it is the last one.
    last: bool,
}

impl futures::Stream for ChunkReplies {
    type Item = ChunkReply;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChunkReply>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let served = ready!(self.answers.poll_next_unpin(cx));
        match &served {
            None => self.left = 0,
            Some(PeerReply::Reading { .. }) => {}
            Some(PeerReply::Done { .. }) => self.left -= 1,
        }
        Poll::Ready(Some(ChunkReply { chunk: self.chunk, served, last: self.left == 0 }))
    }
}

/// The task of a connection.
pub(crate) struct PeerConnection {
    shared: Arc<ServingShared>,
    from: Rank,
    stream: BoxedStream,
    /// Computes the tags of samples on authenticated connections.
    samples: Option<Arc<SampleMac>>,
    input: FrameInput,
    body: Option<(FrameHeader, Limit<BytesMut>)>,
    machine: ServerMachine<OwnedSemaphorePermit>,
    /// Output of the machine that is carried out next. Empty between events.
    actions: Vec<ServerAction>,
    started: SelectAll<ChunkReplies>,
    /// Waits for the budget of a response.
    turn: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
    clock: Instant,
    timer: PollTimer,
}

impl PeerConnection {
    pub(crate) fn new(
        shared: Arc<ServingShared>,
        from: Rank,
        run: RunId,
        channel: AuthenticatedStream,
    ) -> Self {
        let samples = channel.keys.as_ref().map(|keys| Arc::clone(&keys.samples));
        let (stream, input, output) = channel.into_parts();
        let machine = ServerMachine::new(run.tag(), shared.settings.share, output);
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
            timer: PollTimer::default(),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        let before = self.machine.output.total_sent();
        if let Poll::Ready(done) = self.machine.output.poll_write(&mut self.stream, cx) {
            done?;
        }
        if self.machine.output.total_sent() > before {
            self.machine.on_write(self.clock.elapsed());
        }
        Ok(())
    }

    /// The next frame and its payload.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<(FrameHeader, Bytes)>, WireError>> {
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
            Poll::Ready(Err(WireError::malformed("a request arrived damaged")))
        }
    }

    /// Carries out the machine's actions. Returns whether a chunk was started.
    fn act(&mut self) -> bool {
        let mut starts = false;
        for action in self.actions.drain(..) {
            match action {
                ServerAction::Start { chunk, peer_requests } => {
                    let left = peer_requests.len();
                    let answers = self.shared.source().map(|source| source.serve(self.from, peer_requests));
                    // If the store is gone, no sample is cached here.
                    let answers = answers.unwrap_or_else(|| futures::stream::empty().boxed());
                    self.started.push(ChunkReplies { chunk, left, answers });
                    starts = true;
                }
                ServerAction::Stop { chunk } => {
                    let started = std::mem::take(&mut self.started);
                    self.started.extend(started.into_iter().filter(|answers| answers.chunk != chunk));
                }
            }
        }
        starts
    }

    /// Passes the store's replies on. `false` if there is none, or no room for it.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = self.poll_room(cx);
        while self.machine.has_room() {
            match Pin::new(&mut self.started).poll_next(cx) {
                Poll::Ready(Some(reply)) => self.on_reply(reply),
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
        self.machine.acknowledge_origin_reads();
        any
    }

    fn on_reply(&mut self, ChunkReply { chunk, served, last }: ChunkReply) {
        let now = self.clock.elapsed();
        let reply = served.and_then(|served| self.checked(chunk, served));
        let ended = reply.is_some_and(|(place, reply)| self.machine.on_reply(chunk, place, reply, now));
        if last {
            self.machine.on_chunk_end(chunk, now);
        } else if ended {
            // The rest of the chunk was cancelled.
            self.actions.push(ServerAction::Stop { chunk });
            self.act();
        }
    }

    /// A reply to a sample that is still wanted, with its checksum or tag.
    fn checked(&self, chunk: u64, served: PeerReply) -> Option<(u32, StoreReply)> {
        Some(match served {
            PeerReply::Reading { tag } => (tag, StoreReply::Reading),
            PeerReply::Done { tag, result } => {
                let key = self.machine.wanted(chunk, tag)?;
                (tag, StoreReply::Done(result.map(|bytes| (bytes.clone(), self.check(key, &bytes)))))
            }
        })
    }

    /// Acquires budget for the response that waits for it, if possible.
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

    /// The checksum or the tag of a sample, whichever the connection uses.
    fn check(&self, key: SampleKey, bytes: &[u8]) -> SampleCheck {
        match &self.samples {
            Some(tags) => (0, Some(tags.of(key, bytes))),
            None => (crc32c::crc32c(bytes), None),
        }
    }

    /// Arms the timer for the next check.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        loop {
            let now = self.clock.elapsed();
            let Some(next) = self.machine.check_timeouts(now)? else {
                self.input.rest();
                return Ok(()); // the timer fires once more without effect
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

impl Future for PeerConnection {
    type Output = Result<(), WireError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let mut progress = false;
            while this.machine.takes_requests() {
                match this.poll_frame(cx)? {
                    Poll::Ready(Some((header, payload))) => {
                        let now = this.clock.elapsed();
                        this.machine.on_request(&header, &payload, now, &mut this.actions)?;
                        this.act();
                    }
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            // A rank may get requests right after the rendezvous, before it has a source. The timer
            // checks again.
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
