//! Bodies of answers: parts of an object, or truncated ones.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;

use super::content::Content;
use super::counters::CountedRequest;

/// The longest read of a [`Content`].
pub const PART: u64 = 1 << 20;

/// How a body ends.
#[derive(Debug)]
pub(super) enum BodyEnd {
    /// Complete.
    Whole,
    /// The connection closes after this many bytes.
    Close(u64),
    /// It pauses after this many bytes.
    Stall(u64, Duration),
    /// The connection closes now.
    Now,
}

/// Time to flush: a connection that closes with an error discards unwritten bytes.
const FLUSH: Duration = Duration::from_millis(1);

/// The error that closes a connection in the middle of an answer.
#[derive(Debug)]
pub(super) struct ConnectionClosed;

impl std::fmt::Display for ConnectionClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed on command")
    }
}

impl std::error::Error for ConnectionClosed {}

impl From<Infallible> for ConnectionClosed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The body of one answer.
pub(super) struct AnswerBody {
    content: Arc<dyn Content>,
    range: Range<u64>,
    sent: u64,
    end: BodyEnd,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether the bytes belong to an object and are counted.
    counts: bool,
    /// Dropped with the body, to count the requests in flight.
    flight: CountedRequest,
}

impl AnswerBody {
    pub(super) fn new(
        content: Arc<dyn Content>,
        range: Range<u64>,
        end: BodyEnd,
        flight: CountedRequest,
    ) -> Self {
        Self { content, range, sent: 0, end, sleep: None, counts: false, flight }
    }

    /// The same, with its bytes counted.
    pub(super) fn counted(self) -> Self {
        Self { counts: true, ..self }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = ConnectionClosed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionClosed>>> {
        if let Some(sleep) = &mut self.sleep {
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
            self.end = if matches!(self.end, BodyEnd::Close(_)) { BodyEnd::Now } else { BodyEnd::Whole };
        }
        let (stop, pause) = match self.end {
            BodyEnd::Whole => (u64::MAX, FLUSH),
            BodyEnd::Close(at) => (at, FLUSH),
            BodyEnd::Stall(at, time) => (at, time),
            BodyEnd::Now => return Poll::Ready(Some(Err(ConnectionClosed))),
        };
        if self.sent >= stop {
            self.sleep = Some(Box::pin(tokio::time::sleep(pause)));
            return self.poll_frame(context);
        }
        let left = self.range.end - self.range.start;
        if left == 0 {
            return Poll::Ready(None);
        }
        let length = left.min(PART).min(stop - self.sent);
        let part = self.content.range(self.range.start..self.range.start + length);
        self.range.start += length;
        self.sent += length;
        if self.counts {
            self.flight.counters.sent(length);
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.range.is_empty() && matches!(self.end, BodyEnd::Whole)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.range.end - self.range.start)
    }
}
