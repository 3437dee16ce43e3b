//! The messages of both ends. A message has one or more records. All numbers are little endian.
//!
//! ```text
//! client to server
//!  1 request tag u32, dataset u32, sample u64, due u64
//!  2 release slot u32
//!  3 call    tag u32, name, bytes to the end
//!  4 greet   magic u32, least version u16, greatest version u16, secret
//!  5 ping    number u32
//!
//! server to client
//! 16 hello   magic u32, version u16, in flight u32, release threshold u64
//! 17 refused text to the end
//! 18 leased  tag u32, slot u32, region u32, offset u64, length u64
//! 19 part    tag u32, total u64, at u64, bytes to the end
//! 20 failed  tag u32, kind u8, retry u64, tier, object, detail
//! 21 region  number u32, length u64
//! 22 ended   number u32
//! 23 pong    number u32
//! ```
//!
//! A record begins with a head of four bytes: the kind and the length of the rest. Kinds from 128
//! on are optional, so a version that does not know them skips them. Any other unknown kind ends
//! the connection.
//!
//! The client's first message is its greeting alone. It has the range of versions that the client
//! understands. The server answers by *hello* with the greatest one of both, or by *refused*. A tag
//! is the client's id of a request. A slot is the server's id of a leased sample. A *region* comes
//! alone in its message, with its descriptor, before the first sample in it. Answers longer than a
//! message are sent in parts. A text is a u16 length and UTF-8. An absent text has the length
//! `u16::MAX`.
//!
//! Input is never trusted: a truncated or unknown record is [`MalformedMessage`], and the
//! connection ends.

use std::error::Error;
use std::time::Duration;

use foreread_tier::{ErrorKind, TierError};
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::address::{BYTES, Secret};

/// The maximum size of a message in bytes. A socket buffers two or three of them by default.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;
/// The maximum size of a call's payload in bytes.
pub(crate) const MAX_CALL_PAYLOAD: usize = MAX_MESSAGE - HEAD - 6 - MAX_CALL_NAME;
/// The maximum length of a call's name in bytes.
pub(crate) const MAX_CALL_NAME: usize = 256;
/// The maximum length of each text of an error in bytes.
const MAX_TEXT: usize = 2048;
/// The maximum length of a sample that is a record in a message with others.
pub(crate) const MAX_INLINE: usize = 8 << 10;
/// The maximum size of a record that is added to a message with others: a short sample.
pub(crate) const MAX_ANSWER: usize = PART_HEAD + MAX_INLINE;

/// The length of a record's head.
const HEAD: usize = 4;
/// The length of a part before its bytes.
pub(crate) const PART_HEAD: usize = HEAD + 20;

const MAGIC: u32 = u32::from_le_bytes(*b"frsh");
/// The versions that this program understands.
pub(crate) const VERSIONS: std::ops::RangeInclusive<u16> = 3..=3;

const REQUEST: u8 = 1;
const RELEASE: u8 = 2;
const CALL: u8 = 3;
const GREET: u8 = 4;
const PING: u8 = 5;
const HELLO: u8 = 16;
const REFUSED: u8 = 17;
const LEASED: u8 = 18;
const PART: u8 = 19;
const FAILED: u8 = 20;
const REGION: u8 = 21;
const ENDED: u8 = 22;
const PONG: u8 = 23;
/// Unknown kinds from here on are skipped.
const OPTIONAL: u8 = 128;

/// The size of [`ClientRecord::Request`] in bytes.
pub(crate) const REQUEST_BYTES: usize = HEAD + 24;
/// The size of [`ClientRecord::Release`] in bytes.
pub(crate) const RELEASE_BYTES: usize = HEAD + 4;

/// The input is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage;

/// A record from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientRecord<'a> {
    /// Requests a sample, which is used at `due`.
    Request { tag: u32, key: SampleKey, due: Tick },
    /// Releases the sample in `slot`.
    Release { slot: u32 },
    /// Calls the layer above the server.
    Call { tag: u32, name: &'a str, payload: &'a [u8] },
    /// Is answered at once by `Pong`.
    Ping { number: u32 },
}

/// A record from the server.
#[derive(Clone, Debug)]
pub(crate) enum ServerRecord<'a> {
    /// The first record.
    Hello(ServerHello),
    /// Instead of `Hello`: why the client is refused.
    Refused(String),
    /// The sample is in a region, and leased to the client until it releases `slot`.
    Leased { tag: u32, slot: u32, region: u32, offset: u64, length: u64 },
    /// Part of `total` bytes, starting at byte `at`.
    Part { tag: u32, total: u64, at: u64, bytes: &'a [u8] },
    /// The request has failed.
    Failed { tag: u32, error: TierError },
    /// A region of memory, whose descriptor comes with the message.
    Region { number: u32, length: u64 },
    /// No sample will be in that region any more.
    Ended { number: u32 },
    /// The answer to `Ping`.
    Pong,
}

/// The server's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerHello {
    /// The version of the protocol.
    pub(crate) version: u16,
    /// Samples that a client may have requested and not received.
    pub(crate) max_in_flight: u32,
    /// Bytes that a client may keep after their release, until its next request.
    pub(crate) release_threshold: u64,
}

/// A client's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The versions that the client understands, the least and the greatest.
    pub(crate) versions: (u16, u16),
    pub(crate) secret: [u8; BYTES],
}

impl Greeting {
    /// The greatest version that both ends understand.
    pub(crate) fn common_version(&self) -> Option<u16> {
        let version = self.versions.1.min(*VERSIONS.end());
        (version >= self.versions.0.max(*VERSIONS.start())).then_some(version)
    }
}

/// Appends a record whose content `put` appends.
fn record(to: &mut Vec<u8>, kind: u8, put: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend([0; HEAD]);
    put(to);
    let head = head(kind, to.len() - start - HEAD);
    to[start..start + HEAD].copy_from_slice(&head);
}

/// The head of a record. Records are shorter than a message, so three bytes suffice for the length.
fn head(kind: u8, length: usize) -> [u8; HEAD] {
    (length as u32 | u32::from(kind) << 24).to_le_bytes()
}

pub(crate) fn encode_request(to: &mut Vec<u8>, tag: u32, key: SampleKey, due: Tick) {
    record(to, REQUEST, |to| {
        to.extend(tag.to_le_bytes());
        to.extend(key.dataset.0.to_le_bytes());
        to.extend(key.id.0.to_le_bytes());
        to.extend(due.0.to_le_bytes());
    });
}

pub(crate) fn release(to: &mut Vec<u8>, slot: u32) {
    record(to, RELEASE, |to| to.extend(slot.to_le_bytes()));
}

pub(crate) fn call(to: &mut Vec<u8>, tag: u32, name: &str, payload: &[u8]) {
    record(to, CALL, |to| {
        to.extend(tag.to_le_bytes());
        put_text(to, Some(name));
        to.extend(payload);
    });
}

pub(crate) fn ping(number: u32) -> Vec<u8> {
    let mut to = Vec::new();
    record(&mut to, PING, |to| to.extend(number.to_le_bytes()));
    to
}

/// The client's first message.
pub(crate) fn greeting(secret: &Secret) -> Vec<u8> {
    let mut to = Vec::new();
    record(&mut to, GREET, |to| {
        to.extend(MAGIC.to_le_bytes());
        to.extend(VERSIONS.start().to_le_bytes());
        to.extend(VERSIONS.end().to_le_bytes());
        to.extend(secret.expose());
    });
    to
}

/// Parses a client's first message.
pub(crate) fn parse_greeting(message: &[u8]) -> Result<Greeting, MalformedMessage> {
    let mut cursor = Cursor(message);
    let (kind, mut body) = cursor.record()?;
    if kind != GREET || body.u32()? != MAGIC {
        return Err(MalformedMessage);
    }
    let greeting = Greeting { versions: (body.u16()?, body.u16()?), secret: body.take()? };
    if cursor.0.is_empty() { Ok(greeting) } else { Err(MalformedMessage) }
}

pub(crate) fn hello(hello: ServerHello) -> Vec<u8> {
    let mut to = Vec::new();
    record(&mut to, HELLO, |to| {
        to.extend(MAGIC.to_le_bytes());
        to.extend(hello.version.to_le_bytes());
        to.extend(hello.max_in_flight.to_le_bytes());
        to.extend(hello.release_threshold.to_le_bytes());
    });
    to
}

pub(crate) fn refused(why: &str) -> Vec<u8> {
    let mut to = Vec::new();
    record(&mut to, REFUSED, |to| to.extend(&why.as_bytes()[..why.floor_char_boundary(MAX_TEXT)]));
    to
}

pub(crate) fn leased(to: &mut Vec<u8>, tag: u32, slot: u32, region: u32, offset: u64, length: u64) {
    record(to, LEASED, |to| {
        to.extend(tag.to_le_bytes());
        to.extend(slot.to_le_bytes());
        to.extend(region.to_le_bytes());
        to.extend(offset.to_le_bytes());
        to.extend(length.to_le_bytes());
    });
}

/// The head of a part of an answer, which `length` bytes follow.
pub(crate) fn part_head(tag: u32, total: u64, at: u64, length: usize) -> [u8; PART_HEAD] {
    let mut part = [0; PART_HEAD];
    part[..HEAD].copy_from_slice(&head(PART, PART_HEAD - HEAD + length));
    part[4..8].copy_from_slice(&tag.to_le_bytes());
    part[8..16].copy_from_slice(&total.to_le_bytes());
    part[16..].copy_from_slice(&at.to_le_bytes());
    part
}

/// Appends a region, whose descriptor goes with the message.
pub(crate) fn region(number: u32, length: u64) -> Vec<u8> {
    let mut to = Vec::new();
    record(&mut to, REGION, |to| {
        to.extend(number.to_le_bytes());
        to.extend(length.to_le_bytes());
    });
    to
}

pub(crate) fn ended(to: &mut Vec<u8>, number: u32) {
    record(to, ENDED, |to| to.extend(number.to_le_bytes()));
}

pub(crate) fn pong(to: &mut Vec<u8>, number: u32) {
    record(to, PONG, |to| to.extend(number.to_le_bytes()));
}

/// Appends a failure. The error's sources become part of its detail.
pub(crate) fn failed(to: &mut Vec<u8>, tag: u32, error: &TierError) {
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
    record(to, FAILED, |to| {
        to.extend(tag.to_le_bytes());
        to.push(error.kind().number());
        let retry = error.retry_after().map_or(u64::MAX, |after| after.as_millis() as u64);
        to.extend(retry.to_le_bytes());
        put_text(to, Some(error.tier()));
        put_text(to, error.object());
        put_text(to, detail.as_deref());
    });
}

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

    /// The next record from a client.
    pub(crate) fn request(&mut self) -> Option<Result<ClientRecord<'a>, MalformedMessage>> {
        self.next(read_request)
    }

    /// The next record from the server.
    pub(crate) fn answer(&mut self) -> Option<Result<ServerRecord<'a>, MalformedMessage>> {
        self.next(read_answer)
    }

    /// The next record that `read` knows. Unknown optional ones are skipped.
    fn next<T>(
        &mut self,
        read: impl Fn(u8, &mut Cursor<'a>) -> Result<T, MalformedMessage>,
    ) -> Option<Result<T, MalformedMessage>> {
        while !self.0.0.is_empty() {
            match self.0.record() {
                Ok((OPTIONAL.., _)) => {}
                Ok((kind, mut body)) => return Some(read(kind, &mut body)),
                Err(malformed) => return Some(Err(malformed)),
            }
        }
        None
    }
}

fn read_request<'a>(kind: u8, body: &mut Cursor<'a>) -> Result<ClientRecord<'a>, MalformedMessage> {
    match kind {
        REQUEST => {
            let tag = body.u32()?;
            let key = SampleKey::new(DatasetId(body.u32()?), SampleId(body.u64()?));
            Ok(ClientRecord::Request { tag, key, due: Tick(body.u64()?) })
        }
        RELEASE => Ok(ClientRecord::Release { slot: body.u32()? }),
        CALL => {
            let (tag, name) = (body.u32()?, body.text()?.ok_or(MalformedMessage)?);
            Ok(ClientRecord::Call { tag, name, payload: body.rest() })
        }
        PING => Ok(ClientRecord::Ping { number: body.u32()? }),
        _ => Err(MalformedMessage),
    }
}

fn read_answer<'a>(kind: u8, body: &mut Cursor<'a>) -> Result<ServerRecord<'a>, MalformedMessage> {
    match kind {
        HELLO => {
            if body.u32()? != MAGIC {
                return Err(MalformedMessage);
            }
            let (version, max_in_flight, release_threshold) = (body.u16()?, body.u32()?, body.u64()?);
            Ok(ServerRecord::Hello(ServerHello { version, max_in_flight, release_threshold }))
        }
        REFUSED => Ok(ServerRecord::Refused(String::from_utf8_lossy(body.rest()).into_owned())),
        LEASED => {
            let (tag, slot, region) = (body.u32()?, body.u32()?, body.u32()?);
            Ok(ServerRecord::Leased { tag, slot, region, offset: body.u64()?, length: body.u64()? })
        }
        PART => {
            let (tag, total, at) = (body.u32()?, body.u64()?, body.u64()?);
            Ok(ServerRecord::Part { tag, total, at, bytes: body.rest() })
        }
        FAILED => read_failed(body),
        REGION => Ok(ServerRecord::Region { number: body.u32()?, length: body.u64()? }),
        ENDED => Ok(ServerRecord::Ended { number: body.u32()? }),
        PONG => body.u32().map(|_| ServerRecord::Pong),
        _ => Err(MalformedMessage),
    }
}

fn read_failed<'a>(body: &mut Cursor<'a>) -> Result<ServerRecord<'a>, MalformedMessage> {
    let tag = body.u32()?;
    let kind = ErrorKind::of_number(body.u8()?);
    let retry = body.u64()?;
    let mut error = TierError::new(kind, body.text()?.ok_or(MalformedMessage)?);
    if let Some(object) = body.text()? {
        error = error.with_object(object);
    }
    if let Some(detail) = body.text()? {
        error = error.with_detail(detail);
    }
    let retry = (retry != u64::MAX).then(|| Duration::from_millis(retry));
    Ok(ServerRecord::Failed { tag, error: error.with_retry_after(retry) })
}

/// The unread rest of a message or a record.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// The kind and content of the next record.
    fn record(&mut self) -> Result<(u8, Self), MalformedMessage> {
        let head = self.u32()?;
        let (kind, length) = ((head >> 24) as u8, (head & 0x00ff_ffff) as usize);
        let (body, rest) = self.0.split_at_checked(length).ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok((kind, Self(body)))
    }

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

    const KEY: SampleKey = SampleKey::new(DatasetId(3), SampleId(u64::MAX));

    #[test]
    fn client_records_round_trip() {
        let mut message = Vec::new();
        encode_request(&mut message, 7, KEY, Tick(5));
        assert_eq!(message.len(), REQUEST_BYTES);
        release(&mut message, 9);
        assert_eq!(message.len(), REQUEST_BYTES + RELEASE_BYTES);
        call(&mut message, 3, "labels", b"payload");
        message.extend(ping(11));
        let mut records = RecordReader::of(&message);
        assert_eq!(records.request(), Some(Ok(ClientRecord::Request { tag: 7, key: KEY, due: Tick(5) })));
        assert_eq!(records.request(), Some(Ok(ClientRecord::Release { slot: 9 })));
        assert_eq!(
            records.request(),
            Some(Ok(ClientRecord::Call { tag: 3, name: "labels", payload: b"payload" }))
        );
        assert_eq!(records.request(), Some(Ok(ClientRecord::Ping { number: 11 })));
        assert_eq!(records.request(), None);
        let mut longest = Vec::new();
        call(&mut longest, 3, &"n".repeat(MAX_CALL_NAME), &vec![0; MAX_CALL_PAYLOAD]);
        assert_eq!(longest.len(), MAX_MESSAGE);
    }

    #[test]
    // semantics: AGENT-1
    fn newer_versions_are_understood_as_far_as_they_are_common() {
        let secret = crate::address::Address::new().unwrap().secret;
        let encoded = greeting(&secret);
        let mut known = parse_greeting(&encoded).unwrap();
        assert_eq!(known.common_version(), Some(*VERSIONS.end()));
        let mut of = |versions| {
            known.versions = versions;
            known.common_version()
        };
        let (least, greatest) = (*VERSIONS.start(), *VERSIONS.end());
        assert_eq!(of((least, greatest + 5)), Some(greatest));
        assert_eq!(of((1, least)), Some(least));
        assert_eq!((of((greatest + 1, greatest + 5)), of((1, least - 1))), (None, None));
        // A newer end may add optional records.
        let mut message = Vec::new();
        record(&mut message, OPTIONAL + 7, |to| to.extend(b"what is this"));
        release(&mut message, 9);
        record(&mut message, OPTIONAL - 1, |_| {});
        let mut records = RecordReader::of(&message);
        assert_eq!(records.request(), Some(Ok(ClientRecord::Release { slot: 9 })));
        assert_eq!(records.request(), Some(Err(MalformedMessage)));
    }

    #[test]
    fn greeting_round_trips_and_nothing_else_parses() {
        let secret = crate::address::Address::new().unwrap().secret;
        let encoded = greeting(&secret);
        assert_eq!(parse_greeting(&encoded).unwrap().secret, *secret.expose());
        for at in 0..HEAD + 4 {
            let mut other = encoded.clone();
            other[at] ^= 1;
            assert_eq!(parse_greeting(&other), Err(MalformedMessage), "{at}");
        }
        assert_eq!(parse_greeting(&encoded[..encoded.len() - 1]), Err(MalformedMessage));
        assert_eq!(parse_greeting(&[&encoded[..], b"x"].concat()), Err(MalformedMessage));
    }

    #[test]
    fn server_records_round_trip() {
        let greeting = ServerHello { version: 3, max_in_flight: 2, release_threshold: 3 };
        let encoded = hello(greeting);
        let read = RecordReader::of(&encoded).answer();
        assert!(matches!(read, Some(Ok(ServerRecord::Hello(read))) if read == greeting));
        let mut message = region(8, 9);
        leased(&mut message, 1, 2, 8, 3, 4);
        message.extend(part_head(5, 6, 7, 4));
        message.extend(b"rest");
        ended(&mut message, 8);
        pong(&mut message, 1);
        let mut records = RecordReader::of(&message);
        let mut next = || records.answer().map(Result::unwrap);
        assert!(matches!(next(), Some(ServerRecord::Region { number: 8, length: 9 })));
        assert!(matches!(
            next(),
            Some(ServerRecord::Leased { tag: 1, slot: 2, region: 8, offset: 3, length: 4 })
        ));
        assert!(matches!(next(), Some(ServerRecord::Part { tag: 5, total: 6, at: 7, bytes: b"rest" })));
        assert!(matches!(next(), Some(ServerRecord::Ended { number: 8 })));
        assert!(matches!(next(), Some(ServerRecord::Pong)));
        assert!(next().is_none());
    }

    #[test]
    fn every_error_kind_round_trips_with_its_causes() {
        for kind in ErrorKind::ALL {
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
            first in 0_u8..25,
            is_framed in any::<bool>(),
        ) {
            if is_framed && bytes.len() >= HEAD {
                let head = head(first, bytes.len() - HEAD);
                bytes[..HEAD].copy_from_slice(&head);
            }
            let mut records = RecordReader::of(&bytes);
            while let Some(Ok(_)) = records.request() {}
            let mut records = RecordReader::of(&bytes);
            while let Some(Ok(_)) = records.answer() {}
        }
    }
}
