//! The messages of both ends. A message has one or more records. All numbers are little endian.
//!
//! ```text
//! worker to server
//!  1 request tag u32, id u64
//!  2 release slot u32
//!  3 call    tag u32, name, bytes to the end
//!  4 greet   magic u32, version u16, secret
//!
//! server to worker
//! 16 hello   magic u32, version u16, memory u64, in flight u32, release threshold u64
//! 17 refused text to the end
//! 18 leased  tag u32, slot u32, offset u64, length u64
//! 19 part    tag u32, total u64, at u64, bytes to the end
//! 20 failed  tag u32, kind u8, retry u64, tier, object, detail
//! ```
//!
//! The worker's first message is its greeting alone, which the server answers by *hello* or
//! *refused*. A record begins with its number. A tag is the worker's id of a request. A slot is the
//! server's id of a leased sample. Answers longer than a message are sent in parts. A text is a u16
//! length and UTF-8. An absent text has the length `u16::MAX`.
//!
//! Input is never trusted: a truncated or unknown record is [`MalformedMessage`], and the
//! connection ends. Records have no separate versions. The price is that both ends must be of one
//! version, as processes of one program are.

use std::error::Error;
use std::time::Duration;

use foreread_tier::{ErrorKind, TierError};
use foreread_types::SampleId;

use crate::address::{BYTES, Secret};

/// The maximum size of a message in bytes. A socket buffers two or three of them by default.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;
/// The maximum size of a call's payload in bytes.
pub(crate) const MAX_CALL_PAYLOAD: usize = MAX_MESSAGE - 7 - MAX_CALL_NAME;
/// The maximum length of a call's name in bytes.
pub(crate) const MAX_CALL_NAME: usize = 256;
/// The maximum length of each text of an error in bytes.
const MAX_TEXT: usize = 2048;
/// The maximum size of an answer's record other than [`ServerRecord::Part`]. The largest is a
/// failure.
pub(crate) const MAX_ANSWER: usize = 3 * (2 + MAX_TEXT) + 16;

const MAGIC: u32 = u32::from_le_bytes(*b"frsh");
const VERSION: u16 = 2;

const REQUEST: u8 = 1;
const RELEASE: u8 = 2;
const CALL: u8 = 3;
const GREET: u8 = 4;
const HELLO: u8 = 16;
const REFUSED: u8 = 17;
const LEASED: u8 = 18;
const PART: u8 = 19;
const FAILED: u8 = 20;

/// The size of [`WorkerRecord::Ask`] in bytes.
pub(crate) const REQUEST_BYTES: usize = 13;
/// The size of [`WorkerRecord::Release`] in bytes.
pub(crate) const RELEASE_BYTES: usize = 5;

/// The input is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

/// A record from a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerRecord<'a> {
    /// Requests the sample `id`.
    Request { tag: u32, id: SampleId },
    /// Releases the sample in `slot`.
    Release { slot: u32 },
    /// Calls the layer above the server.
    Call { tag: u32, name: &'a str, payload: &'a [u8] },
}

/// A record from the server.
#[derive(Clone, Debug)]
pub(crate) enum ServerRecord<'a> {
    /// The first record, sent with the memory's descriptor.
    Hello(ServerHello),
    /// Instead of `Hello`: why the worker is refused.
    Refused(String),
    /// The sample is in the memory, and leased to the worker until it releases `slot`.
    Leased { tag: u32, slot: u32, offset: u64, length: u64 },
    /// Part of `total` bytes, starting at byte `at`.
    Part { tag: u32, total: u64, at: u64, bytes: &'a [u8] },
    /// The request has failed.
    Failed { tag: u32, error: TierError },
}

/// The server's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerHello {
    /// The size of the shared memory in bytes.
    pub(crate) memory: u64,
    /// Samples that a worker may have requested and not received.
    pub(crate) max_in_flight: u32,
    /// Bytes that a worker may keep after their release, until its next request.
    pub(crate) release_threshold: u64,
}

pub(crate) fn encode_request(to: &mut Vec<u8>, tag: u32, id: SampleId) {
    to.push(REQUEST);
    to.extend(tag.to_le_bytes());
    to.extend(id.0.to_le_bytes());
}

pub(crate) fn release(to: &mut Vec<u8>, slot: u32) {
    to.push(RELEASE);
    to.extend(slot.to_le_bytes());
}

/// Appends a call, which must be the last record of its message.
pub(crate) fn call(to: &mut Vec<u8>, tag: u32, name: &str, payload: &[u8]) {
    to.push(CALL);
    to.extend(tag.to_le_bytes());
    put_text(to, Some(name));
    to.extend(payload);
}

/// The worker's first message.
pub(crate) fn greeting(secret: &Secret) -> Vec<u8> {
    let mut to = vec![GREET];
    to.extend(MAGIC.to_le_bytes());
    to.extend(VERSION.to_le_bytes());
    to.extend(secret.expose());
    to
}

/// Parses a worker's first message and returns its secret.
pub(crate) fn parse_greeting(message: &[u8]) -> Result<[u8; BYTES], MalformedMessage> {
    let mut cursor = Cursor(message);
    if cursor.u8()? != GREET || cursor.u32()? != MAGIC || cursor.u16()? != VERSION {
        return Err(MalformedMessage);
    }
    let secret = cursor.take()?;
    if cursor.rest().is_empty() { Ok(secret) } else { Err(MalformedMessage) }
}

pub(crate) fn hello(hello: ServerHello) -> Vec<u8> {
    let mut to = vec![HELLO];
    to.extend(MAGIC.to_le_bytes());
    to.extend(VERSION.to_le_bytes());
    to.extend(hello.memory.to_le_bytes());
    to.extend(hello.max_in_flight.to_le_bytes());
    to.extend(hello.release_threshold.to_le_bytes());
    to
}

pub(crate) fn refused(why: &str) -> Vec<u8> {
    let mut to = vec![REFUSED];
    to.extend(why.as_bytes());
    to
}

pub(crate) fn leased(to: &mut Vec<u8>, tag: u32, slot: u32, offset: u64, length: u64) {
    to.push(LEASED);
    to.extend(tag.to_le_bytes());
    to.extend(slot.to_le_bytes());
    to.extend(offset.to_le_bytes());
    to.extend(length.to_le_bytes());
}

/// The head of a part of an answer. Its bytes follow.
pub(crate) fn part_head(tag: u32, total: u64, at: u64) -> [u8; 21] {
    let mut head = [PART; 21];
    head[1..5].copy_from_slice(&tag.to_le_bytes());
    head[5..13].copy_from_slice(&total.to_le_bytes());
    head[13..].copy_from_slice(&at.to_le_bytes());
    head
}

/// Appends a failure. The error's sources become part of its detail.
pub(crate) fn failed(to: &mut Vec<u8>, tag: u32, error: &TierError) {
    to.push(FAILED);
    to.extend(tag.to_le_bytes());
    to.push(KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(KINDS.len() - 1) as u8);
    let retry = error.retry_after().map_or(u64::MAX, |after| after.as_millis() as u64);
    to.extend(retry.to_le_bytes());
    let mut detail = error.detail().map(str::to_owned);
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        match &mut detail {
            Some(detail) if detail.ends_with(&cause_words) => {}
            Some(detail) => detail.extend([": ", &cause_words]),
            None => detail = Some(cause_words),
        }
        source = cause.source();
    }
    put_text(to, Some(error.tier()));
    put_text(to, error.object());
    put_text(to, detail.as_deref());
}

/// All kinds of error, in the order of their numbers. The last one stands for unknown kinds.
const KINDS: [ErrorKind; 13] = [
    ErrorKind::NotFound,
    ErrorKind::Denied,
    ErrorKind::Expired,
    ErrorKind::Changed,
    ErrorKind::Throttled,
    ErrorKind::Transient,
    ErrorKind::Corrupt,
    ErrorKind::Absent,
    ErrorKind::Full,
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Closed,
    ErrorKind::Other,
];

fn put_text(to: &mut Vec<u8>, words: Option<&str>) {
    match words {
        Some(words) => {
            let words = &words[..words.floor_char_boundary(MAX_TEXT)];
            to.extend((words.len() as u16).to_le_bytes());
            to.extend(words.as_bytes());
        }
        None => to.extend(u16::MAX.to_le_bytes()),
    }
}

/// The records of a message.
pub(crate) struct RecordReader<'a>(Cursor<'a>);

impl<'a> RecordReader<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self(Cursor(message))
    }

    /// The next record from a worker.
    pub(crate) fn request(&mut self) -> Option<Result<WorkerRecord<'a>, MalformedMessage>> {
        (!self.0.0.is_empty()).then(|| self.read_request())
    }

    fn read_request(&mut self) -> Result<WorkerRecord<'a>, MalformedMessage> {
        let cursor = &mut self.0;
        match cursor.u8()? {
            REQUEST => Ok(WorkerRecord::Request { tag: cursor.u32()?, id: SampleId(cursor.u64()?) }),
            RELEASE => Ok(WorkerRecord::Release { slot: cursor.u32()? }),
            CALL => {
                let (tag, name) = (cursor.u32()?, cursor.text()?.ok_or(MalformedMessage)?);
                Ok(WorkerRecord::Call { tag, name, payload: cursor.rest() })
            }
            _ => Err(MalformedMessage),
        }
    }

    /// The next record from the server.
    pub(crate) fn answer(&mut self) -> Option<Result<ServerRecord<'a>, MalformedMessage>> {
        (!self.0.0.is_empty()).then(|| self.read_answer())
    }

    fn read_answer(&mut self) -> Result<ServerRecord<'a>, MalformedMessage> {
        let cursor = &mut self.0;
        match cursor.u8()? {
            HELLO => {
                if cursor.u32()? != MAGIC || cursor.u16()? != VERSION {
                    return Err(MalformedMessage);
                }
                let (memory, max_in_flight, release_threshold) =
                    (cursor.u64()?, cursor.u32()?, cursor.u64()?);
                Ok(ServerRecord::Hello(ServerHello { memory, max_in_flight, release_threshold }))
            }
            REFUSED => Ok(ServerRecord::Refused(String::from_utf8_lossy(cursor.rest()).into_owned())),
            LEASED => {
                let (tag, slot) = (cursor.u32()?, cursor.u32()?);
                Ok(ServerRecord::Leased { tag, slot, offset: cursor.u64()?, length: cursor.u64()? })
            }
            PART => {
                let (tag, total, at) = (cursor.u32()?, cursor.u64()?, cursor.u64()?);
                Ok(ServerRecord::Part { tag, total, at, bytes: cursor.rest() })
            }
            FAILED => {
                let tag = cursor.u32()?;
                let kind = *KINDS.get(usize::from(cursor.u8()?)).ok_or(MalformedMessage)?;
                let retry = cursor.u64()?;
                let mut error = TierError::new(kind, cursor.text()?.ok_or(MalformedMessage)?);
                if let Some(object) = cursor.text()? {
                    error = error.with_object(object);
                }
                if let Some(detail) = cursor.text()? {
                    error = error.with_detail(detail);
                }
                let retry = (retry != u64::MAX).then(|| Duration::from_millis(retry));
                let error = error.with_retry_after(retry);
                Ok(ServerRecord::Failed { tag, error })
            }
            _ => Err(MalformedMessage),
        }
    }
}

/// The unread rest of a message.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MalformedMessage> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, MalformedMessage> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, MalformedMessage> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MalformedMessage> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MalformedMessage> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<Option<&'a str>, MalformedMessage> {
        let length = self.u16()?;
        if length == u16::MAX {
            return Ok(None);
        }
        let (words, rest) = self.0.split_at_checked(usize::from(length)).ok_or(MalformedMessage)?;
        self.0 = rest;
        std::str::from_utf8(words).map(Some).map_err(|_| MalformedMessage)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn worker_records_round_trip() {
        let mut message = Vec::new();
        encode_request(&mut message, 7, SampleId(u64::MAX));
        assert_eq!(message.len(), REQUEST_BYTES);
        release(&mut message, 9);
        assert_eq!(message.len(), REQUEST_BYTES + RELEASE_BYTES);
        call(&mut message, 3, "labels", b"payload");
        let mut records = RecordReader::of(&message);
        assert_eq!(records.request(), Some(Ok(WorkerRecord::Request { tag: 7, id: SampleId(u64::MAX) })));
        assert_eq!(records.request(), Some(Ok(WorkerRecord::Release { slot: 9 })));
        assert_eq!(
            records.request(),
            Some(Ok(WorkerRecord::Call { tag: 3, name: "labels", payload: b"payload" }))
        );
        assert_eq!(records.request(), None);
        let mut longest = Vec::new();
        call(&mut longest, 3, &"n".repeat(MAX_CALL_NAME), &vec![0; MAX_CALL_PAYLOAD]);
        assert_eq!(longest.len(), MAX_MESSAGE);
    }

    #[test]
    fn greeting_round_trips_and_nothing_else_parses() {
        let secret = crate::address::Address::new().unwrap().secret;
        let encoded = greeting(&secret);
        assert_eq!(encoded.len(), 23);
        assert_eq!(parse_greeting(&encoded).as_ref(), Ok(secret.expose()));
        for at in 0..7 {
            let mut other = encoded.clone();
            other[at] ^= 1;
            assert_eq!(parse_greeting(&other), Err(MalformedMessage), "{at}");
        }
        assert_eq!(parse_greeting(&encoded[..22]), Err(MalformedMessage));
        assert_eq!(parse_greeting(&[&encoded[..], b"x"].concat()), Err(MalformedMessage));
    }

    #[test]
    fn server_records_round_trip() {
        let greeting = ServerHello { memory: 1, max_in_flight: 2, release_threshold: 3 };
        let encoded = hello(greeting);
        let read = RecordReader::of(&encoded).answer();
        assert!(matches!(read, Some(Ok(ServerRecord::Hello(read))) if read == greeting));
        let mut message = Vec::new();
        leased(&mut message, 1, 2, 3, 4);
        message.extend(part_head(5, 6, 7));
        message.extend(b"rest");
        let mut records = RecordReader::of(&message);
        assert!(matches!(
            records.answer(),
            Some(Ok(ServerRecord::Leased { tag: 1, slot: 2, offset: 3, length: 4 }))
        ));
        assert!(matches!(
            records.answer(),
            Some(Ok(ServerRecord::Part { tag: 5, total: 6, at: 7, bytes: b"rest" }))
        ));
        assert!(records.answer().is_none());
    }

    #[test]
    fn every_error_kind_round_trips_with_its_causes() {
        for kind in KINDS {
            let error = TierError::new(kind, "s3")
                .with_object("images/a.jpg")
                .with_detail("too often")
                .with_retry_after(Duration::from_millis(1500))
                .with_source(std::io::Error::other("connection reset"));
            let mut message = Vec::new();
            failed(&mut message, 4, &error);
            let Some(Ok(ServerRecord::Failed { tag: 4, error })) = RecordReader::of(&message).answer() else {
                panic!()
            };
            assert_eq!((error.kind(), error.tier(), error.object()), (kind, "s3", Some("images/a.jpg")));
            assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
            assert_eq!(error.detail(), Some("too often: connection reset"));
        }
        let mut message = Vec::new();
        let long = "ü".repeat(MAX_TEXT);
        let error =
            TierError::new(ErrorKind::Other, long.clone()).with_object(long.clone()).with_detail(long);
        failed(&mut message, 4, &error);
        assert!(message.len() <= MAX_ANSWER);
        let Some(Ok(ServerRecord::Failed { error, .. })) = RecordReader::of(&message).answer() else {
            panic!()
        };
        assert_eq!(error.tier().len(), MAX_TEXT);
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            first in 0_u8..24,
        ) {
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            let mut records = RecordReader::of(&bytes);
            while let Some(Ok(_)) = records.request() {}
            let mut records = RecordReader::of(&bytes);
            while let Some(Ok(_)) = records.answer() {}
        }
    }
}
