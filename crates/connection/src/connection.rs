//! An authenticated connection for the rendezvous of ranks.
//!
//! Messages are bytes with a number for their type. The caller defines their meaning. The receiver
//! limits the length of a message, so that no rank can make another allocate too much memory.

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, timeout_at};

use crate::channel::AuthenticatedStream;
use crate::frame::{FrameHeader, FrameKind};
use crate::handshake::{self, Identity, Purpose};
use crate::input::FrameInput;
use crate::output::FrameOutput;
use crate::{Address, BoxedStream, Transport, WireError, WireErrorKind, WireProtection};
use foreread_types::Rank;

/// The type of a message, and its bytes.
pub type ControlMessage = (u32, Bytes);

/// Both directions of a connection.
pub struct ControlConnection {
    sender: MessageSender,
    receiver: MessageReceiver,
}

impl ControlConnection {
    /// The connection after a handshake for a rendezvous, which encrypts all of it.
    pub fn new(channel: AuthenticatedStream, job: u64) -> Self {
        let (stream, input, output) = channel.into_parts();
        let (read, write) = tokio::io::split(stream);
        let sender = MessageSender { stream: write, output, job };
        let receiver = MessageReceiver { stream: read, input, job };
        Self { sender, receiver }
    }

    /// Connects to rank `to` (`None` for any rank) at `address` for a rendezvous, with the timeout
    /// `timeout`. Also returns the rank at the other end.
    ///
    /// # Errors
    /// If no rank answers in time, or the other end is not of this job.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn open(
        network: &dyn Transport,
        address: &Address,
        identity: &Identity,
        to: Option<Rank>,
        timeout: Duration,
    ) -> Result<(Self, Rank), WireError> {
        Self::open_for(Purpose::Rendezvous, network, address, identity, to, timeout).await
    }

    /// [`open`](Self::open) for another purpose than a rendezvous, and not for samples.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn open_for(
        purpose: Purpose,
        network: &dyn Transport,
        address: &Address,
        identity: &Identity,
        to: Option<Rank>,
        timeout: Duration,
    ) -> Result<(Self, Rank), WireError> {
        let open = async {
            let stream =
                network.connect(address).await.map_err(|error| WireError::io("cannot connect", error))?;
            handshake::initiate(stream, identity, purpose, WireProtection::Sealed, to).await
        };
        let (channel, rank) = within(timeout, address, open).await?;
        Ok((Self::new(channel, identity.job), rank))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the connection is broken, or the message is longer than 4 GiB.
    ///
    /// # Cancel safety
    /// A message whose future was dropped is sent before the next one.
    pub async fn send(&mut self, kind: u32, payload: Bytes) -> Result<(), WireError> {
        self.sender.send(kind, payload).await
    }

    /// The next message of at most `most` bytes. `None` after the other end has closed the
    /// connection.
    ///
    /// # Errors
    /// If the connection is broken, or the frame is too long or not a message.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn receive(&mut self, most: usize) -> Result<Option<ControlMessage>, WireError> {
        self.receiver.receive(most).await
    }

    /// Splits it into its two directions, for separate tasks.
    pub fn split(self) -> (MessageSender, MessageReceiver) {
        (self.sender, self.receiver)
    }
}

/// The sending half of a [`ControlConnection`].
pub struct MessageSender {
    stream: WriteHalf<BoxedStream>,
    output: FrameOutput,
    job: u64,
}

impl MessageSender {
    /// As [`ControlConnection::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&mut self, kind: u32, payload: Bytes) -> Result<(), WireError> {
        if u32::try_from(payload.len()).is_err() {
            return Err(WireError::malformed(format!("a message of {} bytes", payload.len())));
        }
        let header = FrameHeader { tag: kind, ..FrameHeader::new(FrameKind::Control, self.job, 0) };
        self.output.push(header.over(&payload), payload, None, ());
        poll_fn(|cx| self.output.poll_write(&mut self.stream, cx)).await
    }

    /// Ends this direction. The other end sees it even if a forked child holds the socket.
    pub async fn shutdown(&mut self) {
        // A broken connection has ended already.
        drop(self.stream.shutdown().await);
    }
}

/// The receiving half of a [`ControlConnection`].
pub struct MessageReceiver {
    stream: ReadHalf<BoxedStream>,
    input: FrameInput,
    job: u64,
}

impl MessageReceiver {
    /// As [`ControlConnection::receive`].
    ///
    /// # Errors
    /// As there.
    pub async fn receive(&mut self, most: usize) -> Result<Option<ControlMessage>, WireError> {
        let job = self.job;
        let is_message = |header: &FrameHeader| {
            let (kind, length) = (header.kind, header.length as usize);
            if kind == FrameKind::Control && header.job == job && length <= most {
                return Ok(());
            }
            let detail = format!("a frame {kind:?} of {length} bytes where a message of {most} may come");
            Err(WireError::malformed(detail))
        };
        let frame = poll_fn(|cx| self.input.poll_frame(&mut self.stream, cx, is_message)).await?;
        Ok(frame.map(|(header, payload)| (header.tag, payload)))
    }
}

/// The output of `future`, or a timeout error after `timeout`.
pub async fn within<T>(
    timeout: Duration,
    peer: &(impl fmt::Display + ?Sized),
    future: impl Future<Output = Result<T, WireError>>,
) -> Result<T, WireError> {
    match timeout_at(Instant::now() + timeout, future).await {
        Ok(result) => result.map_err(|error| error.with(peer)),
        Err(_) => {
            let detail = format!("{peer}: no answer in {:.1} s", timeout.as_secs_f64());
            Err(WireError::new(WireErrorKind::Timeout, detail))
        }
    }
}
