//! The two ends of a simulated connection: the drivers' work without tasks, sockets and timers.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::buf::Limit;
use bytes::{BufMut, BytesMut};
use foreread_connection::frame::FrameHeader;
use foreread_connection::input::FrameInput;
use foreread_connection::output::FrameOutput;
use foreread_connection::{WireError, WireErrorKind};
use foreread_tier::{ErrorKind, PeerRequest, TierError};

use super::pipe::Pipe;
use crate::client::{ClientMachine, ExpectedPayload, SampleCaller};
use crate::serving::ServerMachine;

/// A part of a rank's budget for responses.
pub(super) struct Room(Rc<Cell<u64>>, u64);

impl Room {
    pub(super) fn take(free: &Rc<Cell<u64>>, bytes: u64) -> Option<Self> {
        free.set(free.get().checked_sub(bytes)?);
        Some(Self(Rc::clone(free), bytes))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.set(self.0.get() + self.1);
    }
}

enum Body {
    Sample(FrameHeader, foreread_types::SampleKey, Limit<BytesMut>),
    Small(FrameHeader, Limit<BytesMut>),
    Skipped(u64),
}

fn body(header: &FrameHeader) -> Limit<BytesMut> {
    let length = header.length as usize;
    BytesMut::with_capacity(length).limit(length)
}

/// The requesting end.
pub(super) struct AskingEnd {
    input: FrameInput,
    body: Option<Body>,
    came: u64,
}

impl AskingEnd {
    pub(super) fn new() -> Self {
        Self { input: FrameInput::new(None), body: None, came: 0 }
    }

    pub(super) fn was_useful(&self) -> bool {
        self.came > 0
    }

    /// Does all that is possible. Returns when to run it again.
    pub(super) fn run<C: SampleCaller>(
        &mut self,
        machine: &mut ClientMachine<C>,
        pipes: &mut [Pipe; 2],
        now: Duration,
    ) -> Result<Option<Duration>, WireError> {
        let cx = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(frame) = self.poll_frame(machine, &mut pipes[1], now, cx) {
            if !frame? {
                return Err(WireError::new(WireErrorKind::Disconnected, "closed"));
            }
        }
        if self.input.came() > self.came {
            self.came = self.input.came();
            machine.on_bytes(now);
        }
        let next = machine.check_timeouts(now, self.body.is_some());
        if let Some(Body::Sample(header, _, buffer)) = &self.body
            && machine.caller(header).is_none()
        {
            self.body = Some(Body::Skipped(buffer.remaining_mut() as u64));
        }
        if let Poll::Ready(written) = machine.output.poll_write(&mut pipes[0], cx) {
            written?;
        }
        next
    }

    fn poll_frame<C: SampleCaller>(
        &mut self,
        machine: &mut ClientMachine<C>,
        pipe: &mut Pipe,
        now: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, WireError>> {
        if self.body.is_none() {
            let Some(header) = std::task::ready!(self.input.poll_header(pipe, cx))? else {
                return Poll::Ready(Ok(false));
            };
            self.body = Some(match machine.expect(&header)? {
                ExpectedPayload::Skipped => Body::Skipped(u64::from(header.length)),
                ExpectedPayload::Small => Body::Small(header, body(&header)),
                ExpectedPayload::Sample(key) => Body::Sample(header, key, body(&header)),
            });
        }
        match &mut self.body {
            Some(Body::Sample(_, _, bytes) | Body::Small(_, bytes)) => {
                std::task::ready!(self.input.poll_body(pipe, cx, bytes))?;
            }
            Some(Body::Skipped(left)) => std::task::ready!(self.input.poll_skip(pipe, cx, left))?,
            None => {}
        }
        match self.body.take() {
            Some(Body::Sample(header, key, bytes)) => {
                let bytes = bytes.into_inner().freeze();
                let corrupt = || TierError::new(ErrorKind::Corrupt, "peer");
                let result = self.input.fits(&header, Some(key), &bytes).then_some(bytes).ok_or_else(corrupt);
                machine.answer(&header, result);
            }
            Some(Body::Small(header, bytes)) => {
                let bytes = bytes.into_inner();
                if !self.input.fits(&header, None, &bytes) {
                    return Poll::Ready(Err(WireError::malformed("damaged")));
                }
                machine.on_small(&header, &bytes, now)?;
            }
            Some(Body::Skipped(_)) | None => {}
        }
        Poll::Ready(Ok(true))
    }
}

/// The serving end.
pub(super) struct ServingEnd {
    input: FrameInput,
    pub(super) machine: ServerMachine<Room>,
}

impl ServingEnd {
    pub(super) fn new(run: u64, share: u64) -> Self {
        let machine = ServerMachine::new(run, share, FrameOutput::new(None));
        Self { input: FrameInput::new(None), machine }
    }

    /// Does all that is possible. Appends samples for the store, by request. Returns when to run it
    /// again.
    pub(super) fn run(
        &mut self,
        pipes: &mut [Pipe; 2],
        free: &Rc<Cell<u64>>,
        now: Duration,
        started: &mut Vec<(u64, Vec<PeerRequest>)>,
    ) -> Result<Option<Duration>, WireError> {
        let cx = &mut Context::from_waker(Waker::noop());
        while self.machine.takes_requests() {
            let machine = &self.machine;
            let frame = self.input.poll_frame(&mut pipes[0], cx, |header| machine.expect(header));
            let Poll::Ready(frame) = frame else { break };
            let Some((header, bytes)) = frame? else {
                return Err(WireError::new(WireErrorKind::Disconnected, "closed"));
            };
            self.machine.on_request(&header, &bytes, now)?;
        }
        self.give_room(free, now);
        self.write(&mut pipes[1], now, cx)?;
        self.give_room(free, now);
        started.extend(std::iter::from_fn(|| self.machine.start()));
        loop {
            self.machine.acknowledge_origin_reads();
            self.write(&mut pipes[1], now, cx)?;
            let next = self.machine.check_timeouts(now)?;
            if next.is_none_or(|next| next > now) {
                return Ok(next);
            }
        }
    }

    fn give_room(&mut self, free: &Rc<Cell<u64>>, now: Duration) {
        let Some(bytes) = self.machine.needs_room() else { return };
        let room = Room::take(free, bytes);
        if room.is_some() || self.machine.output.is_empty() {
            self.machine.give_room(room, now);
        }
    }

    fn write(&mut self, pipe: &mut Pipe, now: Duration, cx: &mut Context<'_>) -> Result<(), WireError> {
        let before = self.machine.output.total_sent();
        if let Poll::Ready(written) = self.machine.output.poll_write(pipe, cx) {
            written?;
        }
        if self.machine.output.total_sent() > before {
            self.machine.on_write(now);
        }
        Ok(())
    }
}
