//! One direction of a simulated connection.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes in flight.
const WINDOW: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// Written, and not sent yet.
    pub(super) written: Vec<u8>,
    /// In flight.
    pub(super) flying: VecDeque<Vec<u8>>,
    /// Arrived, and not read yet.
    pub(super) arrived: VecDeque<u8>,
    /// No more bytes follow the bytes that have arrived.
    pub(super) closed: bool,
}

impl Pipe {
    fn room(&self) -> usize {
        let flying: usize = self.flying.iter().map(Vec::len).sum();
        WINDOW.saturating_sub(flying + self.written.len())
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = self.room().min(bytes.len());
        if count == 0 {
            return Poll::Pending;
        }
        self.written.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.arrived.is_empty() {
            return if self.closed { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let count = into.remaining().min(self.arrived.len());
        let bytes: Vec<u8> = self.arrived.drain(..count).collect();
        into.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}
