//! The task that drives [`ServerMachine`](super::ServerMachine) over one connection.
//!
//! It reads requests, starts them at the store, and writes the responses. None of these waits for
//! the others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use foreread_connection::channel::AuthenticatedStream;
use foreread_connection::frame::{FrameHeader, FrameKind};
use foreread_connection::input::FrameInput;
use foreread_connection::mac::SampleMac;
use foreread_connection::{BoxedStream, RunId, WireError};
use foreread_tier::{ErrorKind, PeerReply, TierError};
use foreread_types::{Rank, SampleKey};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream as _, StreamExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::shared::ServingShared;
use super::{SampleCheck, ServerMachine, StoreReply};
use crate::timer::PollTimer;

/// The store's replies to samples of a request. Ends after one answer for each. Where the store
/// ends early, it does not have the others.
struct StoreReplies {
    request: u64,
    /// The samples without an answer.
    tags: Vec<u32>,
    replies: BoxStream<'static, PeerReply>,
}

impl futures::Stream for StoreReplies {
    type Item = (u64, PeerReply);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.tags.is_empty() {
            return Poll::Ready(None);
        }
        let reply = ready!(self.replies.poll_next_unpin(cx));
        if let Some(PeerReply::Done { tag, .. }) = &reply {
            self.tags.retain(|open| open != tag);
        }
        let reply = reply.unwrap_or_else(|| {
            self.replies = futures::stream::empty().boxed();
            let tag = self.tags.pop().unwrap_or_default();
            PeerReply::Done { tag, result: Err(TierError::new(ErrorKind::Absent, "peer")) }
        });
        Poll::Ready(Some((self.request, reply)))
    }
}

/// The task of one connection. Ends with it.
pub(crate) struct PeerConnection {
    shared: Arc<ServingShared>,
    from: Rank,
    stream: BoxedStream,
    /// Tags samples, on connections with tags.
    samples: Option<Arc<SampleMac>>,
    input: FrameInput,
    machine: ServerMachine<OwnedSemaphorePermit>,
    started: SelectAll<StoreReplies>,
    /// Waits for the budget, for the response that is next.
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
        let (started, turn, timer) = Default::default();
        Self { shared, from, stream, samples, input, machine, started, turn, clock: Instant::now(), timer }
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

    fn on_request(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), WireError> {
        self.machine.on_request(header, payload, self.clock.elapsed())?;
        if header.kind == FrameKind::Cancel {
            let (machine, request) = (&self.machine, header.request);
            for replies in self.started.iter_mut().filter(|replies| replies.request == request) {
                replies.tags.retain(|tag| machine.wanted(request, *tag).is_some());
            }
            if self.started.iter().any(|replies| replies.tags.is_empty()) {
                let started = std::mem::take(&mut self.started);
                self.started.extend(started.into_iter().filter(|replies| !replies.tags.is_empty()));
            }
        }
        Ok(())
    }

    /// Passes samples to the store. Returns whether there were any.
    fn start(&mut self) -> bool {
        let mut starts = false;
        while let Some((request, samples)) = self.machine.start() {
            let tags = samples.iter().map(|sample| sample.tag).collect();
            let replies = self.shared.source().map(|source| source.serve(self.from, samples));
            let replies = replies.unwrap_or_else(|| futures::stream::empty().boxed());
            self.started.push(StoreReplies { request, tags, replies });
            starts = true;
        }
        starts
    }

    /// Passes the store's replies on, as many as there is room for. Returns whether there were any.
    fn pass_on(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = self.poll_room(cx);
        while self.machine.has_room()
            && let Poll::Ready(Some((request, reply))) = Pin::new(&mut self.started).poll_next(cx)
        {
            self.on_reply(request, reply);
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

    fn on_reply(&mut self, request: u64, reply: PeerReply) {
        let (tag, reply) = match reply {
            PeerReply::Reading { tag } => (tag, StoreReply::Reading),
            PeerReply::Done { tag, result } => {
                let Some(key) = self.machine.wanted(request, tag) else { return };
                let checked = result.map(|bytes| {
                    let check = self.check(key, &bytes);
                    (bytes, check)
                });
                (tag, StoreReply::Done(checked))
            }
        };
        self.machine.on_reply(request, tag, reply, self.clock.elapsed());
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
                let (machine, stream) = (&this.machine, &mut this.stream);
                match this.input.poll_frame(stream, cx, |header| machine.expect(header))? {
                    Poll::Ready(Some((header, payload))) => this.on_request(&header, &payload)?,
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            // A rank may get requests right after the rendezvous, before it has a source. The timer
            // checks again.
            progress |= this.shared.has_source() && this.start();
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
