//! Frames: a header of fixed length, then as many bytes as it says.
//!
//! ```text
//!  0  magic      u32     24  request  u64     all little endian
//!  4  version    u8      32  tag      u32
//!  5  kind       u8      36  length   u32     of the payload
//!  6  status     u8      40  check    u32     crc32c of the payload
//!  7  flags      u8      44  seal     u32     crc32c of the header before it
//!  8  job        u64        the run that samples are of; of a meeting, the job
//! 16  sample id  u64
//! ```
//!
//! The header has a check of its own. A payload that arrives damaged harms its sample alone; of a damaged header
//! nothing can be believed, not even where the next one begins, so it ends the connection. What a header may say
//! ([`Header::decode`]) does not depend on what was asked: who reads knows that and bounds the length before a byte of
//! memory is taken for it. The dataset is not in the header: the request and the tag name the sample, and the asker knows
//! which it is.
//!
//! Samples are asked for by a list ([`Ask`]), whose places are the tags of the answers: a tag cannot be given twice.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use foreread_tier::ErrorKind;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::{WireError, WireErrorKind};

/// The version that this program speaks: of handshakes, of frames, and of what ranks say when they meet. It is raised when one
/// of these changes, so that programs which would not understand each other name the cause.
pub const VERSION: u8 = 4;

/// Bytes of a header.
pub const HEADER: usize = 48;

/// Samples that one frame may ask for.
pub const MOST_ASKED: usize = 4096;

/// Bytes that each of them takes.
const ASK: usize = 28;

/// Bytes of a message that goes with an error.
pub const MOST_WORDS: usize = 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"frd\x01");

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Asks for samples: an [`Ask`].
    Ask = 1,
    /// A sample, or why there is none.
    Answer = 2,
    /// These samples are on their way: their tags, four bytes each. They are being read, or wait for their turn or for the
    /// cable.
    Reading = 3,
    /// Nothing to say; the connection lives.
    Alive = 4,
    /// No longer wanted: these tags of the request, four bytes each, or the whole request where there are none.
    Cancel = 5,
    /// What ranks say when they meet.
    Control = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Ask, Self::Answer, Self::Reading, Self::Alive, Self::Cancel, Self::Control]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    /// How many bytes may follow, where nobody knows better.
    fn longest(self) -> u32 {
        match self {
            Self::Ask => (MOST_ASKED * ASK) as u32,
            Self::Reading | Self::Cancel => (MOST_ASKED * 4) as u32,
            Self::Alive => 0,
            Self::Answer | Self::Control => u32::MAX,
        }
    }
}

/// What stands before the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame says.
    pub kind: Kind,
    /// Of an answer: 0, or why there is none ([`status_of`]).
    pub status: u8,
    /// Of samples: half of the run's id ([`RunId::tag`](crate::RunId::tag)). Of a meeting: the job, as in the handshake.
    pub job: u64,
    /// Of an answer: the sample's id, so that an answer to another question shows.
    pub sample: u64,
    /// The batch that it belongs to; free where there is none.
    pub request: u64,
    /// The place in the batch; free where there is none.
    pub tag: u32,
    /// How many bytes follow.
    pub length: u32,
    /// Their crc32c.
    pub check: u32,
}

impl Header {
    /// A header without payload.
    pub const fn new(kind: Kind, job: u64, request: u64) -> Self {
        Self { kind, status: 0, job, sample: 0, request, tag: 0, length: 0, check: 0 }
    }

    /// The same for `payload`. What is longer than a frame can be is cut in its length, which the other end refuses:
    /// senders hold themselves to what may follow.
    #[must_use]
    pub fn over(self, payload: &[u8]) -> Self {
        self.over_checked(payload, crc32c::crc32c(payload))
    }

    /// The same for `payload`, whose crc32c is known.
    #[must_use]
    pub fn over_checked(self, payload: &[u8], check: u32) -> Self {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Self { length, check, ..self }
    }

    /// As it is sent.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut out = &mut bytes[..];
        out.put_u32_le(MAGIC);
        out.put_slice(&[VERSION, self.kind as u8, self.status, 0]);
        out.put_u64_le(self.job);
        out.put_u64_le(self.sample);
        out.put_u64_le(self.request);
        out.put_u32_le(self.tag);
        out.put_u32_le(self.length);
        out.put_u32_le(self.check);
        let seal = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&seal.to_le_bytes());
        bytes
    }

    /// Takes a header apart.
    ///
    /// # Errors
    /// If it is none, is damaged, of another version, or says a length that its kind cannot have.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, WireError> {
        let mut rest = &bytes[..];
        if rest.get_u32_le() != MAGIC {
            return Err(WireError::malformed("what came is no frame"));
        }
        if crc32c::crc32c(&bytes[..HEADER - 4]) != (&bytes[HEADER - 4..]).get_u32_le() {
            return Err(WireError::malformed("a frame's header arrived damaged"));
        }
        let [version, kind, status, flags] = rest.get_u32_le().to_le_bytes();
        if version != VERSION {
            let detail = format!("a frame of version {version}; this program speaks {VERSION}");
            return Err(WireError::new(WireErrorKind::OtherVersion, detail));
        }
        let unknown = || WireError::malformed(format!("a frame of kind {kind} with flags {flags}"));
        let kind = Kind::of(kind).filter(|_| flags == 0).ok_or_else(unknown)?;
        let header = Self {
            kind,
            status,
            job: rest.get_u64_le(),
            sample: rest.get_u64_le(),
            request: rest.get_u64_le(),
            tag: rest.get_u32_le(),
            length: rest.get_u32_le(),
            check: rest.get_u32_le(),
        };
        if header.length > kind.longest() {
            return Err(WireError::malformed(format!("a frame {kind:?} of {} bytes", header.length)));
        }
        Ok(header)
    }

    /// Whether `payload` is what was sent with it.
    pub fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.length as usize && crc32c::crc32c(payload) == self.check
    }
}

/// One sample of a list that is asked for; its place in the list is its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The sample.
    pub key: SampleKey,
    /// When the asker needs it.
    pub due: Tick,
    /// How long it is, so that another state of it is found before it is sent.
    pub length: u64,
}

impl Ask {
    /// The list as it is sent.
    pub fn encode(asks: impl Iterator<Item = Self>) -> Bytes {
        let mut bytes = BytesMut::with_capacity(asks.size_hint().0 * ASK);
        for ask in asks {
            bytes.put_u32_le(ask.key.dataset.0);
            bytes.put_u64_le(ask.key.id.0);
            bytes.put_u64_le(ask.due.0);
            bytes.put_u64_le(ask.length);
        }
        bytes.freeze()
    }

    /// Takes a list apart.
    ///
    /// # Errors
    /// If it is no list, empty, or too long.
    pub fn decode(bytes: &[u8]) -> Result<Vec<Self>, WireError> {
        let (asks, rest) = bytes.as_chunks::<ASK>();
        if asks.is_empty() || !rest.is_empty() || asks.len() > MOST_ASKED {
            return Err(WireError::malformed(format!("a list of samples of {} bytes", bytes.len())));
        }
        let ask = |bytes: &[u8; ASK]| {
            let mut rest = &bytes[..];
            let (dataset, id) = (DatasetId(rest.get_u32_le()), SampleId(rest.get_u64_le()));
            Self { key: SampleKey::new(dataset, id), due: Tick(rest.get_u64_le()), length: rest.get_u64_le() }
        };
        Ok(asks.iter().map(ask).collect())
    }
}

/// A list of tags as it is sent.
pub fn encode_tags(tags: &[u32]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(tags.len() * 4);
    tags.iter().for_each(|tag| bytes.put_u32_le(*tag));
    bytes.freeze()
}

/// Takes a list of tags apart.
///
/// # Errors
/// If its length is no multiple of four.
pub fn decode_tags(bytes: &[u8]) -> Result<impl Iterator<Item = u32>, WireError> {
    let (tags, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(WireError::malformed(format!("a list of tags of {} bytes", bytes.len())));
    }
    Ok(tags.iter().map(|tag| u32::from_le_bytes(*tag)))
}

/// Kinds of failure by their number on the wire, from 1 on: new ones are added at the end.
const KINDS: [ErrorKind; 13] = [
    ErrorKind::Other,
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
];

/// The number of a kind of failure in [`Header::status`].
pub fn status_of(kind: ErrorKind) -> u8 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8 + 1
}

/// The kind of failure that a status says; `None` where it says success. Numbers of later versions are
/// [`ErrorKind::Other`].
pub fn kind_of(status: u8) -> Option<ErrorKind> {
    let place = status.checked_sub(1)?;
    Some(KINDS.get(usize::from(place)).copied().unwrap_or(ErrorKind::Other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        let kind = prop::sample::select(vec![Kind::Answer, Kind::Control]);
        (kind, any::<(u8, u64, u64, u64)>(), any::<(u32, u32, u32)>()).prop_map(|(kind, one, two)| {
            let ((status, job, sample, request), (tag, length, check)) = (one, two);
            Header { kind, status, job, sample, request, tag, length, check }
        })
    }

    proptest! {
        #[test]
        fn headers_and_back(header in header()) {
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }

        #[test]
        fn one_wrong_bit_is_found(header in header(), at in 0..HEADER, bit in 0u8..8) {
            let mut bytes = header.encode();
            bytes[at] ^= 1u8 << bit;
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn lists_and_back(asks in prop::collection::vec(any::<(u32, u64, u64, u64)>(), 1..50)) {
            let ask = |(dataset, id, due, length)| {
                Ask { key: SampleKey::new(DatasetId(dataset), SampleId(id)), due: Tick(due), length }
            };
            let asks: Vec<Ask> = asks.into_iter().map(ask).collect();
            prop_assert_eq!(Ask::decode(&Ask::encode(asks.iter().copied())).unwrap(), asks);
        }

        #[test]
        fn tags_and_back(tags in prop::collection::vec(any::<u32>(), 0..50)) {
            prop_assert_eq!(decode_tags(&encode_tags(&tags)).unwrap().collect::<Vec<_>>(), tags);
        }
    }

    #[test]
    fn each_kind_has_its_bound() {
        for (kind, longest) in
            [(Kind::Alive, 0), (Kind::Ask, 4096 * 28), (Kind::Reading, 4096 * 4), (Kind::Cancel, 4096 * 4)]
        {
            let mut header = Header::new(kind, 1, 2);
            header.length = longest;
            assert!(Header::decode(&header.encode()).is_ok());
            header.length += 1;
            let error = Header::decode(&header.encode()).unwrap_err();
            assert_eq!(error.to_string(), format!("a frame {kind:?} of {} bytes", longest + 1));
        }
    }

    #[test]
    fn lists_that_are_none() {
        for length in [0, 1, 27, 29, (MOST_ASKED + 1) * 28] {
            assert!(Ask::decode(&vec![0; length]).is_err(), "{length}");
        }
        assert!(decode_tags(&[0; 5]).is_err());
    }

    #[test]
    fn every_kind_of_failure_travels() {
        for kind in KINDS {
            assert_eq!(kind_of(status_of(kind)), Some(kind));
        }
        assert_eq!((kind_of(0), kind_of(200)), (None, Some(ErrorKind::Other)));
    }

    #[test]
    fn other_versions_are_said_to_be_so() {
        let mut bytes = Header::new(Kind::Alive, 0, 0).encode();
        bytes[4] = 9;
        let seal = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&seal.to_le_bytes());
        let error = Header::decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), WireErrorKind::OtherVersion);
        assert_eq!(error.to_string(), format!("a frame of version 9; this program speaks {VERSION}"));
    }
}
