//! The two ends of a simulated connection: the drivers' work without tasks, sockets and timers.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use foreread_connection::frame::FrameHeader;
use foreread_connection::input::FrameInput;
use foreread_connection::output::FrameOutput;
use foreread_connection::{WireError, WireErrorKind};
use foreread_tier::{ErrorKind, TierError};

use super::pipe::Pipe;
use crate::client::{self, ExpectedPayload};
use crate::serving;

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

fn fits(input: &FrameInput, header: &FrameHeader, bytes: &[u8]) -> Result<(), WireError> {
    match input.fits(header, None, bytes) {
        true => Ok(()),
        false => Err(WireError::malformed("damaged")),
    }
}

/// The requesting end.
pub(super) struct AskingEnd {
    input: FrameInput,
    body: Option<Body>,
    output: FrameOutput,
    came: u64,
}

impl AskingEnd {
    pub(super) fn new() -> Self {
        Self { input: FrameInput::new(None), body: None, output: FrameOutput::new(None), came: 0 }
    }

    pub(super) fn was_useful(&self) -> bool {
        self.came > 0
    }

    /// Does all that is possible. Appends completed samples. Returns when to run it again.
    pub(super) fn run(
        &mut self,
        machine: &mut client::ClientMachine,
        pipes: &mut [Pipe; 2],
        now: Duration,
        answers: &mut Vec<(u64, u32, Result<Bytes, TierError>)>,
    ) -> Result<Option<Duration>, WireError> {
        let cx = &mut Context::from_waker(Waker::noop());
        let mut actions = Vec::new();
        while let Poll::Ready(frame) = self.poll_frame(machine, &mut pipes[1], now, &mut actions, cx) {
            if !frame? {
                return Err(WireError::new(WireErrorKind::Disconnected, "closed"));
            }
            self.act(machine, &mut actions, answers);
        }
        self.act(machine, &mut actions, answers);
        if self.input.came() > self.came {
            self.came = self.input.came();
            machine.on(client::ClientEvent::BytesArrived, now, &mut actions)?;
        }
        let next = machine.check_timeouts(now, self.body.is_some(), &mut actions);
        self.act(machine, &mut actions, answers);
        if let Poll::Ready(written) = self.output.poll_write(&mut pipes[0], cx) {
            written?;
        }
        next
    }

    pub(super) fn act(
        &mut self,
        machine: &client::ClientMachine,
        actions: &mut Vec<client::ClientAction>,
        answers: &mut Vec<(u64, u32, Result<Bytes, TierError>)>,
    ) {
        for action in actions.drain(..) {
            match action {
                client::ClientAction::Send(header, payload) => self.output.push(header, payload, None, ()),
                client::ClientAction::Answer { request, tag, result } => answers.push((request, tag, result)),
            }
        }
        if let Some(Body::Sample(header, _, buffer)) = &self.body
            && !machine.is_open(header.request, header.tag)
        {
            self.body = Some(Body::Skipped(buffer.remaining_mut() as u64));
        }
    }

    fn poll_frame(
        &mut self,
        machine: &mut client::ClientMachine,
        pipe: &mut Pipe,
        now: Duration,
        actions: &mut Vec<client::ClientAction>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, WireError>> {
        if self.body.is_none() {
            let Some(header) = std::task::ready!(self.input.poll_header(pipe, cx))? else {
                return Poll::Ready(Ok(false));
            };
            self.body = Some(match machine.expect(&header, actions)? {
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
                machine.on(client::ClientEvent::Sample { header, result }, now, actions)?;
            }
            Some(Body::Small(header, bytes)) => {
                let bytes = bytes.into_inner().freeze();
                fits(&self.input, &header, &bytes)?;
                machine.on(client::ClientEvent::Small { header, bytes }, now, actions)?;
            }
            Some(Body::Skipped(_)) | None => {}
        }
        Poll::Ready(Ok(true))
    }
}

/// The serving end.
pub(super) struct ServingEnd {
    input: FrameInput,
    body: Option<(FrameHeader, Limit<BytesMut>)>,
    pub(super) machine: serving::ServerMachine<Room>,
}

impl ServingEnd {
    pub(super) fn new(run: u64, share: u64) -> Self {
        let machine = serving::ServerMachine::new(run, share, FrameOutput::new(None));
        Self { input: FrameInput::new(None), body: None, machine }
    }

    /// Does all that is possible. Appends actions for the store. Returns when to run it again.
    pub(super) fn run(
        &mut self,
        pipes: &mut [Pipe; 2],
        free: &Rc<Cell<u64>>,
        now: Duration,
        actions: &mut Vec<serving::ServerAction>,
    ) -> Result<Option<Duration>, WireError> {
        let cx = &mut Context::from_waker(Waker::noop());
        while self.machine.takes_requests() {
            let Poll::Ready(frame) = self.poll_frame(&mut pipes[0], now, actions, cx) else { break };
            if !frame? {
                return Err(WireError::new(WireErrorKind::Disconnected, "closed"));
            }
        }
        self.give_room(free, now);
        self.write(&mut pipes[1], now, cx)?;
        self.give_room(free, now);
        self.machine.start(actions);
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

    fn poll_frame(
        &mut self,
        pipe: &mut Pipe,
        now: Duration,
        actions: &mut Vec<serving::ServerAction>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, WireError>> {
        if self.body.is_none() {
            let Some(header) = std::task::ready!(self.input.poll_header(pipe, cx))? else {
                return Poll::Ready(Ok(false));
            };
            self.machine.expect(&header)?;
            self.body = Some((header, body(&header)));
        }
        if let Some((_, bytes)) = &mut self.body {
            std::task::ready!(self.input.poll_body(pipe, cx, bytes))?;
        }
        let Some((header, bytes)) = self.body.take() else { return Poll::Pending };
        let bytes = bytes.into_inner().freeze();
        fits(&self.input, &header, &bytes)?;
        self.machine.on_request(&header, &bytes, now, actions)?;
        Poll::Ready(Ok(true))
    }
}
