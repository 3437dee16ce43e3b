//! The task that drives [`ClientMachine`](super::ClientMachine) over one connection.
//!
//! Samples are read into memory of their exact length and passed to a queue that never blocks this
//! task. The amount is bounded, because only requested samples arrive, and their requesters have
//! counted them. A slow caller therefore delays no other, and this end always reads.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::Ordering::AcqRel;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Limit;
use bytes::{BufMut, BytesMut};
use foreread_connection::channel::AuthenticatedStream;
use foreread_connection::frame::FrameHeader;
use foreread_connection::input::FrameInput;
use foreread_connection::output::FrameOutput;
use foreread_connection::{BoxedStream, WireError, WireErrorKind};
use foreread_tier::{Buffer, ErrorKind, Lifetime, TierError};
use foreread_types::SampleKey;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{ClientAction, ClientEvent, ClientMachine, ExpectedPayload};
use crate::batch::RequestBatch;
use crate::peer_client::ClientShared;
use crate::tier_error::NAME;
use crate::timer::PollTimer;

/// A command to the connection's task.
pub(crate) enum ClientCommand {
    /// A new request with its number.
    Request(u64, RequestBatch),
    /// Reads were dropped.
    Sweep,
}

impl ClientCommand {
    /// Fails its samples.
    pub(crate) fn fail(self, why: &WireError) {
        if let Self::Request(_, batch) = self {
            batch.fail(why);
        }
    }
}

/// The payload that follows a header.
enum Body {
    Sample(FrameHeader, SampleKey, Buffer),
    Small(FrameHeader, Limit<BytesMut>),
    /// The bytes that are left.
    Skipped(u64),
}

/// Open requests and their callers. Outlives connections.
pub(crate) struct OpenRequests {
    machine: ClientMachine,
    batches: BTreeMap<u64, RequestBatch>,
    clock: Instant,
}

impl OpenRequests {
    pub(crate) fn new(remote: &ClientShared) -> Self {
        let machine = ClientMachine::new(remote.rank, remote.requester.run.tag());
        Self { machine, batches: BTreeMap::new(), clock: Instant::now() }
    }

    pub(crate) fn len(&self) -> usize {
        self.machine.open()
    }

    /// Fails all open samples.
    pub(crate) fn fail(self, remote: &ClientShared, why: &WireError) {
        remote.requester.counters.now().disconnected += self.len() as u64;
        self.batches.into_values().for_each(|batch| batch.fail(why));
    }
}

/// The task of a connection.
pub(crate) struct ClientTask<'a> {
    remote: &'a ClientShared,
    stream: BoxedStream,
    commands: &'a mut mpsc::UnboundedReceiver<ClientCommand>,
    open: &'a mut OpenRequests,
    /// Output of the machine that is carried out next. Empty between events.
    actions: Vec<ClientAction>,
    input: FrameInput,
    body: Option<Body>,
    output: FrameOutput,
    came: u64,
    timer: PollTimer,
}

impl<'a> ClientTask<'a> {
    /// Resumes the `open` requests on a new connection.
    pub(crate) fn new(
        remote: &'a ClientShared,
        channel: AuthenticatedStream,
        commands: &'a mut mpsc::UnboundedReceiver<ClientCommand>,
        open: &'a mut OpenRequests,
    ) -> Self {
        let (stream, input, output) = channel.into_parts();
        let mut actions = Vec::new();
        open.machine.resume(open.clock.elapsed(), &mut actions);
        let mut this = Self {
            remote,
            stream,
            commands,
            open,
            actions,
            input,
            body: None,
            output,
            came: 0,
            timer: PollTimer::default(),
        };
        this.act();
        this
    }

    /// Whether any byte arrived.
    pub(crate) fn was_useful(&self) -> bool {
        self.input.came() > 0
    }

    fn on(&mut self, event: ClientEvent) -> Result<(), WireError> {
        self.open.machine.on(event, self.open.clock.elapsed(), &mut self.actions)?;
        self.act();
        Ok(())
    }

    /// Carries out the machine's actions. Returns whether frames are to be sent.
    fn act(&mut self) -> bool {
        let (mut sends, mut got, mut got_bytes) = (false, 0, 0);
        for action in self.actions.drain(..) {
            match action {
                ClientAction::Send(header, payload) => {
                    self.output.push(header, payload, None, ());
                    sends = true;
                }
                ClientAction::Answer { request, tag, result } => {
                    if let Ok(bytes) = &result {
                        (got, got_bytes) = (got + 1, got_bytes + bytes.len() as u64);
                    }
                    if let Some(batch) = self.open.batches.get_mut(&request) {
                        batch.answer(tag as usize, result);
                        if batch.is_empty() {
                            self.open.batches.remove(&request);
                        }
                    }
                }
            }
        }
        let late = self.open.machine.take_timed_out();
        if got + late > 0 {
            let mut tally = self.remote.requester.counters.now();
            tally.timed_out += late;
            tally.received += got;
            tally.received_bytes += got_bytes;
        }
        // The rest of a sample that was given up takes no memory.
        if let Some(Body::Sample(header, _, buffer)) = &self.body
            && !self.open.machine.is_open(header.request, header.tag)
        {
            self.body = Some(Body::Skipped(buffer.remaining_mut() as u64));
        }
        sends
    }

    fn command(&mut self, command: ClientCommand) -> Result<(), WireError> {
        match command {
            ClientCommand::Request(request, batch) => {
                self.remote.requester.counters.now().requested += batch.left() as u64;
                let sample_requests = batch.sample_requests().collect();
                self.open.batches.insert(request, batch);
                self.on(ClientEvent::Request { request, sample_requests })?;
                // Reads that were dropped before this command arrived: an earlier sweep did not
                // find them.
                self.cancel_dropped(request)
            }
            ClientCommand::Sweep => self.sweep(),
        }
    }

    /// Cancels samples without a caller.
    fn sweep(&mut self) -> Result<(), WireError> {
        self.remote.sweeps.swap(false, AcqRel);
        let requests: Vec<u64> = self.open.batches.keys().copied().collect();
        requests.into_iter().try_for_each(|request| self.cancel_dropped(request))
    }

    fn cancel_dropped(&mut self, request: u64) -> Result<(), WireError> {
        let Some(batch) = self.open.batches.get_mut(&request) else { return Ok(()) };
        let tags = batch.take_dropped();
        if batch.is_empty() {
            self.open.batches.remove(&request);
        }
        if tags.is_empty() { Ok(()) } else { self.on(ClientEvent::Cancel { request, tags }) }
    }

    /// Reads and handles a frame. `false` at the end of the stream.
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
                self.on(ClientEvent::Sample { header, result })?;
            }
            Some(Body::Small(header, bytes)) => {
                let bytes = bytes.into_inner().freeze();
                if !self.input.fits(&header, None, &bytes) {
                    return Poll::Ready(Err(WireError::malformed("a frame arrived damaged")));
                }
                self.on(ClientEvent::Small { header, bytes })?;
            }
            Some(Body::Skipped(..)) | None => {}
        }
        Poll::Ready(Ok(true))
    }

    /// Where the bytes that follow `header` go.
    fn expect(&mut self, header: FrameHeader) -> Result<Body, WireError> {
        let length = header.length as usize;
        let skipped = Body::Skipped(u64::from(header.length));
        let expected = self.open.machine.expect(&header, &mut self.actions)?;
        self.act();
        Ok(match expected {
            ExpectedPayload::Skipped => skipped,
            ExpectedPayload::Small => Body::Small(header, BytesMut::with_capacity(length).limit(length)),
            ExpectedPayload::Sample(key) => match self.memory(&header, length) {
                Some(buffer) => Body::Sample(header, key, buffer),
                None => {
                    let error = TierError::new(ErrorKind::Other, NAME)
                        .with_detail(format!("no memory for {length} bytes"));
                    self.on(ClientEvent::Sample { header, result: Err(error) })?;
                    skipped
                }
            },
        })
    }

    /// Memory for the sample that follows `header`.
    fn memory(&self, header: &FrameHeader, length: usize) -> Option<Buffer> {
        let batch = self.open.batches.get(&header.request);
        let lifetime = batch.map_or(Lifetime::Passing, |batch| batch.lifetime(header.tag));
        self.remote.requester.buffers.allocate_for(lifetime, length, 1)
    }

    /// When to check the timeouts next.
    fn check_timeouts(&mut self) -> Result<Option<Duration>, WireError> {
        loop {
            let busy = self.body.is_some();
            let next = self.open.machine.check_timeouts(self.open.clock.elapsed(), busy, &mut self.actions);
            if !self.act() || next.is_err() {
                return next;
            }
        }
    }

    /// Does all that is possible without waiting. The end of the connection is an error.
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Result<(), WireError> {
        while let Poll::Ready(frame) = self.poll_frame(cx) {
            if !frame? {
                return Err(WireError::new(WireErrorKind::Disconnected, "it closed the connection"));
            }
        }
        if self.input.came() > self.came {
            self.came = self.input.came();
            self.on(ClientEvent::BytesArrived)?;
        }
        while let Poll::Ready(command) = self.commands.poll_recv(cx) {
            match command {
                Some(command) => self.command(command)?,
                None => return Err(WireError::new(WireErrorKind::Disconnected, "no caller is left")),
            }
        }
        loop {
            let next = self.check_timeouts()?;
            if let Poll::Ready(written) = self.output.poll_write(&mut self.stream, cx) {
                written?;
            }
            let Some(next) = next else {
                self.input.rest();
                return Ok(());
            };
            let (now, next) = (Instant::now(), self.open.clock + next);
            if self.timer.poll(next, now, cx).is_pending() {
                return Ok(());
            }
        }
    }
}

impl Future for ClientTask<'_> {
    /// Why the connection ended.
    type Output = WireError;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WireError> {
        match self.get_mut().poll_all(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }
}
