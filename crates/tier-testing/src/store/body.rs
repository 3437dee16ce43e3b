//! Bodies of answers: parts of an object, or less than was promised.

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
use super::tally::Flight;

/// The most that is asked of a [`Content`] at once.
pub const PART: u64 = 1 << 20;

/// How a body ends.
#[derive(Debug)]
pub(super) enum End {
    /// As it should.
    Whole,
    /// At this many bytes, with the connection.
    Close(u64),
    /// It stops at this many bytes for a while.
    Stall(u64, Duration),
    /// With the connection, now.
    Now,
}

/// A connection that is closed with an error throws away what it has not written yet; this is time to write it.
const FLUSH: Duration = Duration::from_millis(1);

/// Why a connection is closed in the middle of an answer.
#[derive(Debug)]
pub(super) struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed on command")
    }
}

impl std::error::Error for Closed {}

impl From<Infallible> for Closed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The body of one answer.
pub(super) struct Body {
    content: Arc<dyn Content>,
    range: Range<u64>,
    sent: u64,
    end: End,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether what is sent is an object's.
    counts: bool,
    /// Ends with the body, so that what is under way is known.
    flight: Flight,
}

impl Body {
    pub(super) fn new(content: Arc<dyn Content>, range: Range<u64>, end: End, flight: Flight) -> Self {
        Self { content, range, sent: 0, end, sleep: None, counts: false, flight }
    }

    /// The same, whose bytes are counted.
    pub(super) fn counted(self) -> Self {
        Self { counts: true, ..self }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Closed;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Closed>>> {
        if let Some(sleep) = &mut self.sleep {
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
            self.end = if matches!(self.end, End::Close(_)) { End::Now } else { End::Whole };
        }
        let (stop, pause) = match self.end {
            End::Whole => (u64::MAX, FLUSH),
            End::Close(at) => (at, FLUSH),
            End::Stall(at, time) => (at, time),
            End::Now => return Poll::Ready(Some(Err(Closed))),
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
        self.range.is_empty() && matches!(self.end, End::Whole)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.range.end - self.range.start)
    }
}
