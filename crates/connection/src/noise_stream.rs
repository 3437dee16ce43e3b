//! An encrypted and authenticated byte stream: Noise transport messages over another stream.
//!
//! ```text
//! 0  length  u16  of the rest, little endian
//! 2  a transport message of Noise: up to 16 KiB of the stream, and 16 bytes of tag
//! ```
//!
//! Both ends count records, and the count is the nonce. So a record that was changed, replayed,
//! dropped or moved from another connection or direction fails authentication, which ends the
//! stream. Each direction is rekeyed every [`REKEY_INTERVAL`] records, which keeps the data per
//! AES-GCM key far below its limit. All state is in this type and none in a future, so reads and
//! writes may be dropped at any time. The price is one more copy at each end, in addition to the
//! encryption.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use snow::TransportState;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::BoxedStream;

/// The maximum payload of a record.
const MAX_RECORD: usize = 16 << 10;

/// The overhead of a record: its length and its tag.
const LENGTH_BYTES: usize = 2;
const TAG: usize = 16;

/// The maximum number of buffered bytes.
const MAX_BUFFERED: usize = 64 << 10;

/// The number of records between two rekeyings.
const REKEY_INTERVAL: u64 = 1 << 20;

/// The encrypted stream.
pub(crate) struct NoiseStream {
    stream: BoxedStream,
    noise: TransportState,
    /// Records to be written, from `left` on. Buffers are allocated only while in use: rank 0
    /// has a connection to each rank.
    outgoing: Vec<u8>,
    left: usize,
    /// Received bytes of incomplete records.
    incoming: BytesMut,
    /// The last record's plaintext, from `taken` on.
    plain: Vec<u8>,
    taken: usize,
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a record arrived damaged")
}

impl NoiseStream {
    pub(crate) fn new(stream: BoxedStream, noise: TransportState) -> Self {
        let incoming = BytesMut::new();
        Self { stream, noise, outgoing: Vec::new(), left: 0, incoming, plain: Vec::new(), taken: 0 }
    }

    /// Appends a record with `part`, at most [`MAX_RECORD`] bytes.
    fn seal(&mut self, part: &[u8]) -> io::Result<()> {
        let sealed = part.len() + TAG;
        let start = self.outgoing.len();
        let length = u16::try_from(sealed).map_err(io::Error::other)?;
        self.outgoing.extend_from_slice(&length.to_le_bytes());
        self.outgoing.resize(start + LENGTH_BYTES + sealed, 0);
        let into = self.outgoing.get_mut(start + LENGTH_BYTES..).unwrap_or_default();
        self.noise.write_message(part, into).map_err(io::Error::other)?;
        if self.noise.sending_nonce().is_multiple_of(REKEY_INTERVAL) {
            self.noise.rekey_outgoing();
        }
        Ok(())
    }

    /// Decrypts the next record. `false` if it is incomplete.
    fn open(&mut self) -> io::Result<bool> {
        let Some(length) = self.incoming.first_chunk::<LENGTH_BYTES>() else { return Ok(false) };
        let length = usize::from(u16::from_le_bytes(*length));
        if !(TAG..=MAX_RECORD + TAG).contains(&length) {
            return Err(damaged());
        }
        let Some(record) = self.incoming.get(LENGTH_BYTES..LENGTH_BYTES + length) else { return Ok(false) };
        // Long enough for decryption in place.
        self.plain.resize(length, 0);
        let opened = self.noise.read_message(record, &mut self.plain).map_err(|_| damaged())?;
        self.plain.truncate(opened);
        self.taken = 0;
        self.incoming.advance(LENGTH_BYTES + length);
        if self.noise.receiving_nonce().is_multiple_of(REKEY_INTERVAL) {
            self.noise.rekey_incoming();
        }
        Ok(true)
    }

    /// Writes until at most `rest` bytes are left.
    fn poll_drain(&mut self, cx: &mut Context<'_>, rest: usize) -> Poll<io::Result<()>> {
        while self.outgoing.len() - self.left > rest {
            if self.left >= MAX_BUFFERED {
                // Removes written bytes even if the queue never becomes empty.
                self.outgoing.drain(..self.left);
                self.left = 0;
            }
            let waiting = self.outgoing.get(self.left..).unwrap_or_default();
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, waiting))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.left += count;
        }
        if self.left == self.outgoing.len() {
            (self.outgoing, self.left) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for NoiseStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while into.remaining() > 0 {
            if let Some(rest @ [_, ..]) = this.plain.get(this.taken..) {
                let count = rest.len().min(into.remaining());
                into.put_slice(rest.get(..count).unwrap_or_default());
                this.taken += count;
                return Poll::Ready(Ok(()));
            }
            if this.open()? {
                continue;
            }
            this.incoming.reserve(MAX_BUFFERED);
            match pin!(this.stream.read_buf(&mut this.incoming)).poll(cx)? {
                Poll::Ready(0) if this.incoming.is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(_) => {}
                Poll::Pending => {
                    if this.incoming.is_empty() {
                        (this.incoming, this.plain, this.taken) = (BytesMut::new(), Vec::new(), 0);
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for NoiseStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_drain(cx, MAX_BUFFERED))?;
        let mut count = 0;
        for part in parts.iter().flat_map(|part| part.chunks(MAX_RECORD)) {
            if this.outgoing.len() - this.left > MAX_BUFFERED {
                break;
            }
            this.seal(part)?;
            count += part.len();
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx, 0))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx, 0))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Both ends of a handshake without secrets.
    fn noise() -> (TransportState, TransportState) {
        let builder = || snow::Builder::new("Noise_NN_25519_AESGCM_SHA256".parse().unwrap());
        let (mut one, mut other) =
            (builder().build_initiator().unwrap(), builder().build_responder().unwrap());
        let (mut message, mut nothing) = ([0; 64], [0; 64]);
        let length = one.write_message(&[], &mut message).unwrap();
        other.read_message(&message[..length], &mut nothing).unwrap();
        let length = other.write_message(&[], &mut message).unwrap();
        one.read_message(&message[..length], &mut nothing).unwrap();
        (one.into_transport_mode().unwrap(), other.into_transport_mode().unwrap())
    }

    /// The encrypted bytes of `parts`, each flushed.
    async fn sealed(noise: TransportState, parts: &[&[u8]]) -> Vec<u8> {
        let (ours, mut theirs) = duplex(1 << 20);
        let mut records = NoiseStream::new(Box::new(ours), noise);
        for part in parts {
            records.write_all(part).await.unwrap();
            records.flush().await.unwrap();
        }
        drop(records);
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).await.unwrap();
        bytes
    }

    async fn opened(noise: TransportState, bytes: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let (ours, mut theirs) = duplex(1 << 20);
        theirs.write_all(bytes).await.unwrap();
        drop(theirs);
        let mut records = NoiseStream::new(Box::new(ours), noise);
        let mut text = Vec::new();
        let ended = records.read_to_end(&mut text).await;
        (text, ended.map(drop))
    }

    #[tokio::test]
    async fn stream_round_trips_and_is_encrypted() {
        let (one, other) = noise();
        let text: Vec<u8> = (0..200_000u32).map(|at| (at / 64) as u8).collect();
        let bytes = sealed(one, &[&text[..1], &text[1..100_000], &text[100_000..]]).await;
        assert!(!bytes.windows(32).any(|part| part == &text[..32]));
        let (arrived, ended) = opened(other, &bytes).await;
        assert!(arrived == text);
        ended.unwrap();
    }

    #[tokio::test]
    // semantics: RANK-35
    async fn changed_replayed_swapped_and_cut_records_are_errors() {
        let attack = |change: fn(&mut Vec<u8>)| async move {
            let (one, other) = noise();
            let mut bytes = sealed(one, &[b"first", b"after"]).await;
            assert_eq!(bytes.len(), 2 * (2 + 5 + 16));
            change(&mut bytes);
            opened(other, &bytes).await
        };
        type Change = (fn(&mut Vec<u8>), &'static [u8]);
        let changes: [Change; 7] = [
            (|bytes| bytes[3] ^= 1, b""),
            (|bytes| bytes[0] ^= 1, b""),
            (|bytes| bytes[45] ^= 1, b"first"),
            (|bytes| bytes.truncate(40), b"first"),
            (|bytes| bytes.rotate_left(23), b""),
            (|bytes| bytes.copy_within(..23, 23), b"first"),
            (|bytes| bytes.splice(..0, [0xff; 40]).for_each(drop), b""),
        ];
        for (number, (change, arrives)) in changes.into_iter().enumerate() {
            let (text, ended) = attack(change).await;
            assert_eq!(text, arrives, "change {number}");
            assert!(ended.is_err(), "change {number}");
        }
        let bytes = sealed(noise().0, &[b"first"]).await;
        assert!(opened(noise().1, &bytes).await.1.is_err(), "another connection");
    }

    #[tokio::test]
    async fn reflected_bytes_are_an_error() {
        let (one, _other) = noise();
        let (ours, theirs) = duplex(1 << 16);
        let mut records = NoiseStream::new(Box::new(ours), one);
        let (mut read, mut write): (_, tokio::io::WriteHalf<DuplexStream>) = tokio::io::split(theirs);
        records.write_all(b"question").await.unwrap();
        records.flush().await.unwrap();
        let mut bytes = vec![0; 2 + 8 + 16];
        read.read_exact(&mut bytes).await.unwrap();
        write.write_all(&bytes).await.unwrap();
        let error = records.read_exact(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.to_string(), "a record arrived damaged");
    }

    #[tokio::test]
    async fn both_ends_rekey_at_the_same_record() {
        let (mut one, mut other) = noise();
        while one.sending_nonce() < REKEY_INTERVAL - 1 {
            one.write_message(&[], &mut [0; 16]).unwrap();
        }
        other.set_receiving_nonce(REKEY_INTERVAL - 1);
        let bytes = sealed(one, &[b"before", b"and after"]).await;
        let (arrived, ended) = opened(other, &bytes).await;
        assert_eq!(arrived, b"beforeand after");
        ended.unwrap();
    }

    /// A writer that alternately accepts ten kilobytes and nothing.
    struct Slow(bool);

    impl AsyncRead for Slow {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.0 = !self.0;
            if self.0 { Poll::Ready(Ok(bytes.len().min(10_000))) } else { Poll::Pending }
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn slow_socket_does_not_grow_the_buffers() {
        let mut records = NoiseStream::new(Box::new(Slow(false)), noise().0);
        let (mut context, part) = (Context::from_waker(Waker::noop()), vec![7; 100_000]);
        let mut taken = 0;
        while taken < 50 << 20 {
            let written = Pin::new(&mut records).poll_write(&mut context, &part);
            if let Poll::Ready(count) = written {
                taken += count.unwrap();
            }
        }
        assert!(records.outgoing.capacity() < 2 << 20, "{} bytes", records.outgoing.capacity());
    }
}
