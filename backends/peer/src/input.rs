//! Frames as they arrive.
//!
//! Headers and short payloads are taken from a buffer of a few kilobytes, so that many small frames cost one system call;
//! what is long goes from the socket into the memory that it will stay in. A sample of 100 KB takes two reads and one
//! copy of less than [`STAGING`] bytes. All state is here and none in a future: whoever polls may stop at any time and go on
//! later.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::WireError;
use crate::frame::{HEADER, Header};

/// Bytes read ahead of what is wanted.
const STAGING: usize = 4096;

/// What has come and was not taken yet.
pub(crate) struct Input {
    /// Taken when the first byte is read: a connection that says nothing costs nothing.
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes that ever came.
    came: u64,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { staging: Box::default(), start: 0, end: 0, came: 0 }
    }

    /// How many bytes ever came: whoever sees it grow knows that the other end lives.
    pub(crate) fn came(&self) -> u64 {
        self.came
    }

    fn ready(&self) -> &[u8] {
        &self.staging[self.start..self.end]
    }

    /// Reads more behind what is there; `false` at the end.
    fn poll_more(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, WireError>> {
        if self.staging.is_empty() {
            self.staging = vec![0; STAGING].into_boxed_slice();
        }
        self.staging.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut room = ReadBuf::new(&mut self.staging[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut room)).map_err(|error| WireError::io("reading", error))?;
        let count = room.filled().len();
        self.end += count;
        self.came += count as u64;
        Poll::Ready(Ok(count > 0))
    }

    /// The next header; `None` where the stream ends before one.
    pub(crate) fn poll_header(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Header>, WireError>> {
        loop {
            if let Some(bytes) = self.ready().first_chunk::<HEADER>() {
                let header = Header::decode(bytes)?;
                self.start += HEADER;
                return Poll::Ready(Ok(Some(header)));
            }
            if !ready!(self.poll_more(stream, cx))? {
                let whole = self.start == self.end;
                return Poll::Ready(if whole { Ok(None) } else { Err(cut_short()) });
            }
        }
    }

    /// Fills all room that `into` has.
    pub(crate) fn poll_body(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        into: &mut impl BufMut,
    ) -> Poll<Result<(), WireError>> {
        while into.has_remaining_mut() {
            let there = self.ready();
            if !there.is_empty() {
                let count = there.len().min(into.remaining_mut());
                into.put_slice(&there[..count]);
                self.start += count;
                continue;
            }
            let more = if into.remaining_mut() < STAGING {
                ready!(self.poll_more(stream, cx))?
            } else {
                let count = ready!(pin!(stream.read_buf(into)).poll(cx));
                let count = count.map_err(|error| WireError::io("reading", error))?;
                self.came += count as u64;
                count > 0
            };
            if !more {
                return Poll::Ready(Err(cut_short()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Passes over `left` bytes.
    pub(crate) fn poll_skip(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        left: &mut u64,
    ) -> Poll<Result<(), WireError>> {
        while *left > 0 {
            if self.start == self.end && !ready!(self.poll_more(stream, cx))? {
                return Poll::Ready(Err(cut_short()));
            }
            let count = (self.end - self.start).min(usize::try_from(*left).unwrap_or(usize::MAX));
            self.start += count;
            *left -= count as u64;
        }
        Poll::Ready(Ok(()))
    }
}

fn cut_short() -> WireError {
    WireError::new(crate::WireErrorKind::Gone, "the connection ended within a frame")
}
