//! Receiving frames.
//!
//! Headers and short payloads are read through a buffer of a few kilobytes, so that many small
//! frames cost one system call. Long payloads go from the socket directly to their final memory. A
//! sample of 100 KB takes two reads and one copy of less than 4 KiB. All state is in this type and
//! none in a future, so polling may stop at any time and resume later.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use foreread_types::SampleKey;

use crate::WireError;
use crate::frame::{FrameHeader, HEADER};
use crate::mac::{FrameVerifier, TAGGED};

/// The size of the buffer in bytes.
const BUFFER_BYTES: usize = 4096;

/// Bytes that were received and not consumed.
pub struct FrameInput {
    /// Allocated only while data is expected: a rank has connections to all others, and few are
    /// busy.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The total of received bytes.
    came: u64,
    /// On connections with tags.
    tags: Option<FrameVerifier>,
    /// A frame of which not all has arrived.
    partial: Option<(FrameHeader, Limit<BytesMut>)>,
}

impl FrameInput {
    /// An input for frames with tags, or without.
    pub fn new(tags: Option<FrameVerifier>) -> Self {
        Self { buffer: Box::default(), start: 0, end: 0, came: 0, tags, partial: None }
    }

    /// The total of received bytes. It grows while the other end is alive.
    pub fn came(&self) -> u64 {
        self.came
    }

    /// Frees the buffer if it is empty and nothing is expected soon.
    pub fn rest(&mut self) {
        if self.start == self.end {
            (self.buffer, self.start, self.end) = (Box::default(), 0, 0);
        }
    }

    fn ready(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads more into the buffer. `false` at the end of the stream.
    fn poll_more(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, WireError>> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut room = ReadBuf::new(&mut self.buffer[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut room)).map_err(|error| WireError::io("reading", error))?;
        let count = room.filled().len();
        self.end += count;
        self.came += count as u64;
        Poll::Ready(Ok(count > 0))
    }

    /// Takes a complete header. Nothing in it is trusted before its tag is verified.
    fn take_header(&mut self) -> Result<Option<FrameHeader>, WireError> {
        let received = &self.buffer[self.start..self.end];
        let (header, length) = match &mut self.tags {
            None => (received.first_chunk::<HEADER>(), HEADER),
            Some(tags) => {
                let sealed = received.first_chunk::<TAGGED>();
                (sealed.map(|sealed| tags.open(sealed)).transpose()?, TAGGED)
            }
        };
        let header = header.map(FrameHeader::decode).transpose()?;
        if header.is_some() {
            self.start += length;
        }
        Ok(header)
    }

    /// Whether `payload` belongs to `header`, which was the last one. `sample` is the key of a
    /// sample's payload.
    pub fn fits(&self, header: &FrameHeader, sample: Option<SampleKey>, payload: &[u8]) -> bool {
        match &self.tags {
            None => header.fits(payload),
            Some(tags) => header.length as usize == payload.len() && tags.fits(sample, payload),
        }
    }

    /// The next header. `None` where the stream ends before one.
    pub fn poll_header(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FrameHeader>, WireError>> {
        loop {
            if let Some(header) = self.take_header()? {
                return Poll::Ready(Ok(Some(header)));
            }
            if !ready!(self.poll_more(stream, cx))? {
                let whole = self.start == self.end;
                return Poll::Ready(if whole { Ok(None) } else { Err(truncated()) });
            }
        }
    }

    /// The next frame with all of its payload, whose length `check` has found acceptable. `None`
    /// where the stream ends before one. Not for samples, which have memory of their own.
    pub fn poll_frame(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        check: impl FnOnce(&FrameHeader) -> Result<(), WireError>,
    ) -> Poll<Result<Option<(FrameHeader, Bytes)>, WireError>> {
        let (header, mut payload) = match self.partial.take() {
            Some(partial) => partial,
            None => {
                let Some(header) = ready!(self.poll_header(stream, cx))? else {
                    return Poll::Ready(Ok(None));
                };
                check(&header)?;
                let length = header.length as usize;
                (header, BytesMut::with_capacity(length).limit(length))
            }
        };
        if self.poll_body(stream, cx, &mut payload)?.is_pending() {
            self.partial = Some((header, payload));
            return Poll::Pending;
        }
        let payload = payload.into_inner().freeze();
        if self.fits(&header, None, &payload) {
            Poll::Ready(Ok(Some((header, payload))))
        } else {
            Poll::Ready(Err(WireError::malformed("a frame arrived damaged")))
        }
    }

    /// Fills all free space of `into`.
    pub fn poll_body(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        into: &mut impl BufMut,
    ) -> Poll<Result<(), WireError>> {
        while into.has_remaining_mut() {
            let received = self.ready();
            if !received.is_empty() {
                let count = received.len().min(into.remaining_mut());
                into.put_slice(&received[..count]);
                self.start += count;
                continue;
            }
            let more = if into.remaining_mut() < BUFFER_BYTES {
                ready!(self.poll_more(stream, cx))?
            } else {
                let count = ready!(pin!(stream.read_buf(into)).poll(cx));
                let count = count.map_err(|error| WireError::io("reading", error))?;
                self.came += count as u64;
                count > 0
            };
            if !more {
                return Poll::Ready(Err(truncated()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Skips `left` bytes.
    pub fn poll_skip(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
        left: &mut u64,
    ) -> Poll<Result<(), WireError>> {
        while *left > 0 {
            if self.start == self.end && !ready!(self.poll_more(stream, cx))? {
                return Poll::Ready(Err(truncated()));
            }
            let count = (self.end - self.start).min(usize::try_from(*left).unwrap_or(usize::MAX));
            self.start += count;
            *left -= count as u64;
        }
        Poll::Ready(Ok(()))
    }
}

fn truncated() -> WireError {
    WireError::new(crate::WireErrorKind::Disconnected, "the connection ended within a frame")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;
    use std::io;

    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;
    use tokio::io::AsyncWrite;

    use super::*;
    use crate::frame::FrameKind;
    use crate::mac::ends;
    use crate::output::FrameOutput;

    /// A stream that transfers the given numbers of bytes, with a pause between any two.
    struct Parts {
        bytes: VecDeque<u8>,
        parts: Vec<usize>,
        at: usize,
        pause: bool,
    }

    impl Parts {
        fn next(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
            self.pause = !self.pause;
            if self.pause {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.at += 1;
            Poll::Ready(self.parts[self.at % self.parts.len()])
        }
    }

    impl AsyncRead for Parts {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let count = ready!(self.next(cx)).min(into.remaining()).min(self.bytes.len());
            let part: Vec<u8> = self.bytes.drain(..count).collect();
            into.put_slice(&part);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Parts {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = ready!(self.next(cx)).min(bytes.len());
            self.bytes.extend(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            parts: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let room = ready!(self.next(cx));
            let taken: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(room).collect();
            self.bytes.extend(&taken);
            Poll::Ready(Ok(taken.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn frames() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        let length = prop_oneof![0..10usize, 0..300usize, 4000..4200usize, 0..20_000usize];
        let payload = (length, any::<u8>())
            .prop_map(|(length, first)| (0..length).map(|at| first.wrapping_add(at as u8)).collect());
        prop::collection::vec((any::<u64>(), payload), 0..8)
    }

    fn parts() -> impl Strategy<Value = Vec<usize>> {
        let part = prop_oneof![1..5usize, 40..60usize, 1..5000usize, Just(1 << 20)];
        prop::collection::vec(part, 1..6)
    }

    proptest! {
        #[test]
        fn frames_round_trip_over_any_split_of_the_stream(
            frames in frames(),
            written in parts(),
            read in parts(),
            early in any::<bool>(),
            tagged in any::<bool>(),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut stream = Parts { bytes: VecDeque::new(), parts: written, at: 0, pause: false };
                let ends = tagged.then(ends);
                let (sends, takes) = ends.map(|(one, other)| (one.ours, FrameVerifier::new(other))).unzip();
                let mut output = FrameOutput::new(sends);
                let mut expected = frames.clone();
                for (request, payload) in &frames {
                    let payload = Bytes::from(payload.clone());
                    let header = FrameHeader::new(FrameKind::Control, 5, *request).over(&payload);
                    output.push(header, payload, None, ());
                }
                if early {
                    let heartbeat = FrameHeader::new(FrameKind::Heartbeat, 5, 0).over(&[]);
                    output.push_front(heartbeat, Bytes::new(), ());
                    expected.insert(0, (0, Vec::new()));
                }
                poll_fn(|cx| output.poll_write(&mut stream, cx)).await.unwrap();
                prop_assert_eq!((output.waiting(), output.total_sent() as usize), (0, stream.bytes.len()));
                stream.parts = read;

                let mut input = FrameInput::new(takes);
                let mut arrived = Vec::new();
                while let Some(header) = poll_fn(|cx| input.poll_header(&mut stream, cx)).await.unwrap() {
                    let length = header.length as usize;
                    let mut body = BytesMut::with_capacity(length).limit(length);
                    if header.request % 5 == 4 {
                        let mut left = u64::from(header.length);
                        poll_fn(|cx| input.poll_skip(&mut stream, cx, &mut left)).await.unwrap();
                        arrived.push((header.request, None));
                        continue;
                    }
                    poll_fn(|cx| input.poll_body(&mut stream, cx, &mut body)).await.unwrap();
                    let body = body.into_inner();
                    prop_assert!(input.fits(&header, None, &body));
                    arrived.push((header.request, Some(body.to_vec())));
                }
                let expected: Vec<_> = expected
                    .into_iter()
                    .map(|(request, payload)| (request, (request % 5 != 4).then_some(payload)))
                    .collect();
                prop_assert_eq!(arrived, expected);
                Ok(())
            })?;
        }

        #[test]
        fn stream_that_ends_within_a_frame_is_an_error(
            length in 1..5000usize,
            cut in any::<prop::sample::Index>(),
        ) {
            let payload = vec![7; length];
            let header = FrameHeader::new(FrameKind::Control, 5, 1).over(&payload);
            let whole = [&header.encode()[..], &payload].concat();
            let cut = 1 + cut.index(whole.len() - 1);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let read = runtime.block_on(async {
                let bytes = whole[..cut].iter().copied().collect();
                let mut stream = Parts { bytes, parts: vec![1000], at: 0, pause: false };
                let mut input = FrameInput::new(None);
                poll_fn(|cx| input.poll_header(&mut stream, cx)).await?;
                let mut body = BytesMut::with_capacity(length).limit(length);
                poll_fn(|cx| input.poll_body(&mut stream, cx, &mut body)).await
            });
            prop_assert_eq!(read.unwrap_err().to_string(), "the connection ended within a frame");
        }
    }
}
