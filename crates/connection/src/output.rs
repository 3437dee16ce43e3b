//! Frames as they leave.
//!
//! A frame is a header and shared bytes; both stay where they are until the kernel has taken them, and several frames go
//! out in one call. What a frame holds beside (its part of a budget) is let go when its last byte has left.
//!
//! On authenticated connections a frame gets its tags when it is about to be written, with the number that it has in the
//! queue then: others may be put before it, or discarded, until its first byte has left. A tag that was made for another
//! number is made anew; the first one never left.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::WireError;
use crate::frame::{HEADER, Header};
use crate::tags::{FrameTags, TAGGED, Trailer};

/// Parts that go out in one call.
const PARTS: usize = 32;

struct Outgoing<T> {
    header: [u8; HEADER],
    /// The header with its trailer, and the number that it was made for.
    sealed: Option<(u64, [u8; TAGGED])>,
    /// The payload's tag, where it was known.
    known: Option<Trailer>,
    payload: Bytes,
    /// Let go when the frame has left.
    held: T,
}

impl<T> Outgoing<T> {
    fn length(&self, tags: Option<&FrameTags>) -> usize {
        tags.map_or(HEADER, |_| TAGGED) + self.payload.len()
    }

    fn seal(&mut self, tags: &FrameTags, number: u64) {
        if self.sealed.is_none_or(|(made_for, _)| made_for != number) {
            self.sealed = Some((number, tags.seal(number, &self.header, &self.payload, self.known)));
        }
    }

    /// What is sent before the payload.
    fn head(&self) -> &[u8] {
        self.sealed.as_ref().map_or(&self.header[..], |(_, sealed)| sealed)
    }
}

/// What waits to be sent. `T` is what a frame holds until it has left.
pub struct Output<T = ()> {
    frames: VecDeque<Outgoing<T>>,
    /// On authenticated connections.
    tags: Option<FrameTags>,
    /// Frames that have left: the number of the first that waits.
    gone: u64,
    /// Bytes of the first frame that have left.
    left: usize,
    /// Bytes of the frames that wait.
    waiting: usize,
    /// Bytes that ever left.
    ever: u64,
    /// Something was written and not flushed.
    dirty: bool,
}

impl<T> Output<T> {
    /// Of frames that get tags, or of such that get none.
    pub fn new(tags: Option<FrameTags>) -> Self {
        Self { frames: VecDeque::new(), tags, gone: 0, left: 0, waiting: 0, ever: 0, dirty: false }
    }

    /// Bytes that wait; those of a frame count until all of them have left.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Bytes that ever left: whoever sees it grow knows that the other end takes what it is sent.
    pub fn left_ever(&self) -> u64 {
        self.ever
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Puts a frame behind all others; `known` is the tag of its payload, where it was made before.
    pub fn push(&mut self, header: Header, payload: Bytes, known: Option<Trailer>, held: T) {
        debug_assert_eq!(header.length as usize, payload.len());
        let frame = Outgoing { header: header.encode(), sealed: None, known, payload, held };
        self.waiting += frame.length(self.tags.as_ref());
        self.frames.push_back(frame);
    }

    /// Puts a frame before all of which no byte has left.
    pub fn push_early(&mut self, header: Header, payload: Bytes, held: T) {
        self.push(header, payload, None, held);
        let begun = usize::from(self.left > 0);
        if let Some(last) = self.frames.pop_back() {
            self.frames.insert(begun.min(self.frames.len()), last);
        }
    }

    /// Lets go of all frames of which no byte has left and what they hold is `unwanted`.
    pub fn discard(&mut self, mut unwanted: impl FnMut(&T) -> bool) {
        let mut begun = self.left > 0;
        let (waiting, tags) = (&mut self.waiting, self.tags.as_ref());
        self.frames.retain(|frame| {
            let keep = std::mem::take(&mut begun) || !unwanted(&frame.held);
            if !keep {
                *waiting -= frame.length(tags);
            }
            keep
        });
    }

    /// What the frames that wait hold, first to last.
    pub fn held(&mut self) -> impl Iterator<Item = &mut T> {
        self.frames.iter_mut().map(|frame| &mut frame.held)
    }

    fn took(&mut self, mut count: usize) {
        self.ever += count as u64;
        while let Some(first) = self.frames.front() {
            let length = first.length(self.tags.as_ref());
            let rest = length - self.left;
            if count < rest {
                self.left += count;
                return;
            }
            count -= rest;
            self.left = 0;
            self.waiting -= length;
            self.gone += 1;
            self.frames.pop_front();
        }
    }

    /// Sends all that waits.
    pub fn poll_write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WireError>> {
        while !self.frames.is_empty() {
            if let Some(tags) = &self.tags {
                let numbers = self.gone..;
                self.frames
                    .iter_mut()
                    .take(PARTS / 2)
                    .zip(numbers)
                    .for_each(|(frame, number)| frame.seal(tags, number));
            }
            let mut parts = [IoSlice::new(&[]); PARTS];
            let mut used = 0;
            let mut skip = self.left;
            for frame in self.frames.iter().take(PARTS / 2) {
                for part in [frame.head(), &frame.payload[..]] {
                    let passed = skip.min(part.len());
                    skip -= passed;
                    if passed < part.len() {
                        parts[used] = IoSlice::new(&part[passed..]);
                        used += 1;
                    }
                }
            }
            let count =
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts[..used])).map_err(writing)?;
            if count == 0 {
                return Poll::Ready(Err(writing(io::ErrorKind::WriteZero.into())));
            }
            self.dirty = true;
            self.took(count);
        }
        if self.dirty {
            ready!(Pin::new(stream).poll_flush(cx)).map_err(writing)?;
            self.dirty = false;
        }
        Poll::Ready(Ok(()))
    }
}

fn writing(error: io::Error) -> WireError {
    WireError::io("writing", error)
}
