//! Sending frames.
//!
//! A frame is a header and shared bytes. Both stay in place until the kernel has taken them, and
//! one call sends several frames. A frame's attached value (its part of a budget) is dropped when
//! its last byte was sent.
//!
//! On connections with tags, a frame gets its tags just before it is written, with its number in
//! the queue at that time. Until its first byte is sent, other frames may be inserted before it or
//! discarded. A tag for another number is computed again. The first one was never sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::WireError;
use crate::frame::{FrameHeader, HEADER};
use crate::mac::{FrameMac, PayloadTag, TAGGED};

/// The maximum number of buffers per call.
const MAX_BUFFERS: usize = 32;

struct QueuedFrame<T> {
    header: [u8; HEADER],
    /// The header with its tags, and the frame number they are valid for.
    sealed: Option<(u64, [u8; TAGGED])>,
    /// The payload's tag, if it is known.
    known: Option<PayloadTag>,
    payload: Bytes,
    /// Dropped when the frame was sent.
    held: T,
}

impl<T> QueuedFrame<T> {
    fn length(&self, tags: Option<&FrameMac>) -> usize {
        tags.map_or(HEADER, |_| TAGGED) + self.payload.len()
    }

    fn seal(&mut self, tags: &FrameMac, number: u64) {
        if self.sealed.is_none_or(|(made_for, _)| made_for != number) {
            self.sealed = Some((number, tags.seal(number, &self.header, &self.payload, self.known)));
        }
    }

    /// The bytes before the payload.
    fn head(&self) -> &[u8] {
        self.sealed.as_ref().map_or(&self.header[..], |(_, sealed)| sealed)
    }
}

/// A queue of frames. `T` is held by a frame until it was sent.
pub struct FrameOutput<T = ()> {
    frames: VecDeque<QueuedFrame<T>>,
    /// On connections with tags.
    tags: Option<FrameMac>,
    /// The number of sent frames, which is the number of the first in the queue.
    sent_frames: u64,
    /// Sent bytes of the first frame.
    sent_of_first: usize,
    /// Bytes of the queued frames.
    waiting: usize,
    /// The total of sent bytes.
    total_sent: u64,
    /// Written bytes have not been flushed.
    dirty: bool,
}

impl<T> FrameOutput<T> {
    /// A queue for frames with tags, or without.
    pub fn new(tags: Option<FrameMac>) -> Self {
        Self {
            frames: VecDeque::new(),
            tags,
            sent_frames: 0,
            sent_of_first: 0,
            waiting: 0,
            total_sent: 0,
            dirty: false,
        }
    }

    /// The queued bytes. A frame's bytes count until all of them were sent.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The total of sent bytes. It grows while the other end receives.
    pub fn total_sent(&self) -> u64 {
        self.total_sent
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Appends a frame. `known` is the tag of its payload, if it was computed before.
    pub fn push(&mut self, header: FrameHeader, payload: Bytes, known: Option<PayloadTag>, held: T) {
        debug_assert_eq!(header.length as usize, payload.len());
        let frame = QueuedFrame { header: header.encode(), sealed: None, known, payload, held };
        self.waiting += frame.length(self.tags.as_ref());
        self.frames.push_back(frame);
    }

    /// Inserts a frame before all frames that have not started.
    pub fn push_front(&mut self, header: FrameHeader, payload: Bytes, held: T) {
        self.push(header, payload, None, held);
        let begun = usize::from(self.sent_of_first > 0);
        if let Some(last) = self.frames.pop_back() {
            self.frames.insert(begun.min(self.frames.len()), last);
        }
    }

    /// Discards the frames that have not started and whose held value is `unwanted`.
    pub fn discard(&mut self, mut unwanted: impl FnMut(&T) -> bool) {
        let mut begun = self.sent_of_first > 0;
        let (waiting, tags) = (&mut self.waiting, self.tags.as_ref());
        self.frames.retain(|frame| {
            let keep = std::mem::take(&mut begun) || !unwanted(&frame.held);
            if !keep {
                *waiting -= frame.length(tags);
            }
            keep
        });
    }

    /// The values that queued frames hold, in order.
    pub fn held(&mut self) -> impl Iterator<Item = &mut T> {
        self.frames.iter_mut().map(|frame| &mut frame.held)
    }

    /// The queued frames, for tests.
    #[cfg(feature = "testing")]
    pub fn frames(&self) -> impl Iterator<Item = (FrameHeader, &Bytes)> {
        let header = |frame: &QueuedFrame<T>| FrameHeader::decode(&frame.header).ok();
        self.frames.iter().filter_map(move |frame| Some((header(frame)?, &frame.payload)))
    }

    fn advance(&mut self, mut count: usize) {
        self.total_sent += count as u64;
        while let Some(first) = self.frames.front() {
            let length = first.length(self.tags.as_ref());
            let rest = length - self.sent_of_first;
            if count < rest {
                self.sent_of_first += count;
                return;
            }
            count -= rest;
            self.sent_of_first = 0;
            self.waiting -= length;
            self.sent_frames += 1;
            self.frames.pop_front();
        }
    }

    /// Sends the whole queue.
    pub fn poll_write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WireError>> {
        while !self.frames.is_empty() {
            if let Some(tags) = &self.tags {
                let numbers = self.sent_frames..;
                self.frames
                    .iter_mut()
                    .take(MAX_BUFFERS / 2)
                    .zip(numbers)
                    .for_each(|(frame, number)| frame.seal(tags, number));
            }
            let mut parts = [IoSlice::new(&[]); MAX_BUFFERS];
            let mut used = 0;
            let mut skip = self.sent_of_first;
            for frame in self.frames.iter().take(MAX_BUFFERS / 2) {
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
            self.advance(count);
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
