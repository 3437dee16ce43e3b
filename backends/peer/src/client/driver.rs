//! The task that drives [`ClientMachine`](super::ClientMachine) over one connection.
//!
//! Samples are read into memory of their exact length and passed to a queue that never blocks this
//! task. The amount is bounded, because only requested samples arrive, and their requesters have
//! counted them. A slow caller therefore delays no other, and this end always reads.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{Context, Poll, ready};

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use foreread_connection::channel::AuthenticatedStream;
use foreread_connection::frame::{FrameHeader, RequestedSample};
use foreread_connection::input::FrameInput;
use foreread_connection::{BoxedStream, WireError, WireErrorKind};
use foreread_tier::{Buffer, ErrorKind, Lifetime, ReadRequest, TierError};
use foreread_types::SampleKey;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{ClientMachine, ExpectedPayload, SampleCaller};
use crate::peer_client::ClientShared;
use crate::tier_error::NAME;
use crate::timer::PollTimer;

/// A requested sample. Its caller is gone if the other end of `answer` was dropped.
pub(crate) struct PendingSample {
    pub(crate) request: Arc<ReadRequest>,
    pub(crate) answer: oneshot::Sender<Result<Bytes, TierError>>,
}

impl SampleCaller for PendingSample {
    fn sample(&self) -> RequestedSample {
        let request = &self.request;
        RequestedSample { key: request.key, due: request.due, length: request.len() }
    }

    fn is_gone(&self) -> bool {
        self.answer.is_closed()
    }

    fn answer(self, result: Result<Bytes, TierError>) {
        let result = result.map_err(|error| error.with_object(&*self.request.object.path));
        let _ = self.answer.send(result); // the caller may be gone
    }
}

/// A command to the connection's task: the samples of a new request. None at all: reads were
/// dropped.
pub(crate) type ClientCommand = Vec<PendingSample>;

/// The payload that follows a header.
enum Body {
    Sample(FrameHeader, SampleKey, Buffer),
    Small(FrameHeader, Limit<BytesMut>),
    /// The bytes that are left.
    Skipped(u64),
}

/// The task of one connection. Ends with the reason why the connection ended.
pub(crate) struct ClientTask<'a> {
    remote: &'a ClientShared,
    stream: BoxedStream,
    commands: &'a mut mpsc::UnboundedReceiver<ClientCommand>,
    machine: &'a mut ClientMachine<PendingSample>,
    /// The machine's time 0.
    clock: Instant,
    input: FrameInput,
    body: Option<Body>,
    came: u64,
    timer: PollTimer,
}

impl<'a> ClientTask<'a> {
    /// Sends open requests again, then the requests of `commands`.
    pub(crate) fn new(
        remote: &'a ClientShared,
        channel: AuthenticatedStream,
        commands: &'a mut mpsc::UnboundedReceiver<ClientCommand>,
        (machine, clock): (&'a mut ClientMachine<PendingSample>, Instant),
    ) -> Self {
        let (stream, input, output) = channel.into_parts();
        machine.resume(output, clock.elapsed());
        let (body, came, timer) = Default::default();
        Self { remote, stream, commands, machine, clock, input, body, came, timer }
    }

    /// Whether any byte arrived.
    pub(crate) fn was_useful(&self) -> bool {
        self.input.came() > 0
    }

    fn command(&mut self, samples: ClientCommand) {
        if samples.is_empty() {
            // Reads that are dropped from now on send another one.
            self.remote.sweeps.swap(false, AcqRel);
            self.machine.sweep();
        } else {
            self.machine.request(samples, self.clock.elapsed());
        }
    }

    /// Handles the next frame. `false` if the other end closed the connection.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, WireError>> {
        if self.body.is_none() {
            let Some(header) = ready!(self.input.poll_header(&mut self.stream, cx))? else {
                return Poll::Ready(Ok(false));
            };
            self.body = Some(self.expect(header)?);
        }
        match &mut self.body {
            Some(Body::Sample(_, _, buffer)) => ready!(self.input.poll_body(&mut self.stream, cx, buffer))?,
            Some(Body::Small(_, bytes)) => ready!(self.input.poll_body(&mut self.stream, cx, bytes))?,
            Some(Body::Skipped(left)) => ready!(self.input.poll_skip(&mut self.stream, cx, left))?,
            None => {}
        }
        match self.body.take() {
            Some(Body::Sample(header, key, buffer)) => {
                let bytes = buffer.freeze();
                let result = if self.input.fits(&header, Some(key), &bytes) {
                    Ok(bytes)
                } else {
                    let rank = self.remote.rank;
                    let detail = format!("rank {rank}: the checksum or tag does not match what arrived");
                    Err(TierError::new(ErrorKind::Corrupt, NAME).with_detail(detail))
                };
                self.machine.answer(&header, result);
            }
            Some(Body::Small(header, bytes)) => {
                let bytes = bytes.into_inner();
                if !self.input.fits(&header, None, &bytes) {
                    return Poll::Ready(Err(WireError::malformed("a frame arrived damaged")));
                }
                self.machine.on_small(&header, &bytes, self.clock.elapsed())?;
            }
            Some(Body::Skipped(..)) | None => {}
        }
        Poll::Ready(Ok(true))
    }

    /// The payload that follows a header.
    fn expect(&mut self, header: FrameHeader) -> Result<Body, WireError> {
        let length = header.length as usize;
        Ok(match self.machine.expect(&header)? {
            ExpectedPayload::Skipped => Body::Skipped(u64::from(header.length)),
            ExpectedPayload::Small => Body::Small(header, BytesMut::with_capacity(length).limit(length)),
            ExpectedPayload::Sample(key) => {
                let caller = self.machine.caller(&header);
                let lifetime = caller.map_or(Lifetime::Passing, |caller| caller.request.lifetime);
                match self.remote.requester.buffers.allocate_for(lifetime, length, 1) {
                    Some(buffer) => Body::Sample(header, key, buffer),
                    None => {
                        let error = TierError::new(ErrorKind::Other, NAME)
                            .with_detail(format!("no memory for {length} bytes"));
                        self.machine.answer(&header, Err(error));
                        Body::Skipped(u64::from(header.length))
                    }
                }
            }
        })
    }

    /// Skips the rest of a payload whose sample is no longer open, and frees its buffer.
    fn skip_unwanted(&mut self) {
        if let Some(Body::Sample(header, _, buffer)) = &self.body
            && self.machine.caller(header).is_none()
        {
            self.body = Some(Body::Skipped(buffer.remaining_mut() as u64));
        }
    }

    /// Does all that is possible.
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        while let Poll::Ready(frame) = self.poll_frame(cx) {
            if !frame? {
                return Err(WireError::new(WireErrorKind::Disconnected, "it closed the connection"));
            }
        }
        if self.input.came() > self.came {
            self.came = self.input.came();
            self.machine.on_bytes(self.clock.elapsed());
        }
        while let Poll::Ready(command) = self.commands.poll_recv(cx) {
            match command {
                Some(samples) => self.command(samples),
                None => return Err(WireError::new(WireErrorKind::Disconnected, "no caller is left")),
            }
        }
        loop {
            let next = self.machine.check_timeouts(self.clock.elapsed(), self.body.is_some())?;
            self.skip_unwanted();
            if let Poll::Ready(written) = self.machine.output.poll_write(&mut self.stream, cx) {
                written?;
            }
            let Some(next) = next else {
                self.input.rest();
                return Ok(());
            };
            let (now, next) = (Instant::now(), self.clock + next);
            if self.timer.poll(next, now, cx).is_pending() {
                return Ok(());
            }
        }
    }
}

impl Future for ClientTask<'_> {
    type Output = WireError;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WireError> {
        let this = self.get_mut();
        let done = this.poll_all(cx);
        this.remote.requester.counters.add(&mut this.machine.counted);
        match done {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }
}
