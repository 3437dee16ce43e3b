//! Frames: a header of fixed length, then its payload.
//!
//! ```text
//!  0  magic      u32     24  request  u64     all little endian
//!  4  version    u8      32  tag      u32
//!  5  kind       u8      36  length   u32     of the payload
//!  6  status     u8      40  check    u32     crc32c of the payload
//!  7  flags      u8      44  seal     u32     crc32c of the header before it
//!  8  job        u64        the run of samples; for a rendezvous, the job
//! 16  sample id  u64
//! ```
//!
//! The header has its own checksum. A damaged payload costs only its sample. After a damaged header
//! the beginning of the next is unknown, so it ends the connection. The valid headers
//! ([`FrameHeader::decode`]) do not depend on the request. The receiver knows the request and
//! limits the length before it allocates memory. The dataset is not in the header: the request and
//! the tag identify the sample.
//!
//! Samples are requested by a list ([`RequestedSample`]). The position in the list is the tag of
//! the answer, so no tag occurs twice.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use foreread_tier::ErrorKind;
use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::{WireError, WireErrorKind};

/// The protocol version of handshakes, frames and rendezvous messages. It is raised when one of
/// these changes, so that incompatible programs report the cause.
pub const VERSION: u8 = 5;

/// The length of a header in bytes.
pub const HEADER: usize = 48;

/// The maximum number of samples per request.
pub const MAX_SAMPLES_PER_REQUEST: usize = 4096;

/// The bytes per requested sample.
const REQUEST_BYTES: usize = 28;

/// The maximum length of an error message in bytes.
pub const MAX_ERROR_BYTES: usize = 1024;

const MAGIC: u32 = u32::from_le_bytes(*b"frd\x01");

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Requests samples: a list of [`RequestedSample`].
    Request = 1,
    /// A sample or an error.
    Answer = 2,
    /// The owner is reading these samples, or has queued them: their tags, four bytes each.
    Reading = 3,
    /// A heartbeat.
    Heartbeat = 4,
    /// Cancels these tags of the request, four bytes each, or the whole request if there are none.
    Cancel = 5,
    /// A rendezvous message.
    Control = 6,
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Request, Self::Answer, Self::Reading, Self::Heartbeat, Self::Cancel, Self::Control]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    /// The maximum payload length without knowledge of the request.
    fn max_length(self) -> u32 {
        match self {
            Self::Request => (MAX_SAMPLES_PER_REQUEST * REQUEST_BYTES) as u32,
            Self::Reading | Self::Cancel => (MAX_SAMPLES_PER_REQUEST * 4) as u32,
            Self::Heartbeat => 0,
            Self::Answer | Self::Control => u32::MAX,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// For answers: 0, or the kind of error ([`status_of`]).
    pub status: u8,
    /// For samples: half of the run's id ([`RunId::tag`](crate::RunId::tag)). For a rendezvous: the
    /// job, as in the handshake.
    pub job: u64,
    /// For answers: the sample's id, so that an answer to another request is detected.
    pub sample: u64,
    /// The request it belongs to. Unused elsewhere.
    pub request: u64,
    /// The position in the request. Unused elsewhere.
    pub tag: u32,
    /// The length of the payload.
    pub length: u32,
    /// The crc32c of the payload.
    pub check: u32,
}

impl FrameHeader {
    /// A header without payload.
    pub const fn new(kind: FrameKind, job: u64, request: u64) -> Self {
        Self { kind, status: 0, job, sample: 0, request, tag: 0, length: 0, check: 0 }
    }

    /// The same for `payload`. A length above the limit of frames is clamped, and the receiver
    /// refuses it: senders obey the limits.
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

    /// Encodes the header.
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

    /// Decodes a header.
    ///
    /// # Errors
    /// If it is invalid, damaged, of another version, or too long for its kind.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, WireError> {
        let mut rest = &bytes[..];
        if rest.get_u32_le() != MAGIC {
            return Err(WireError::malformed("the received bytes are not a frame"));
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
        let kind = FrameKind::of(kind).filter(|_| flags == 0).ok_or_else(unknown)?;
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
        if header.length > kind.max_length() {
            return Err(WireError::malformed(format!("a frame {kind:?} of {} bytes", header.length)));
        }
        Ok(header)
    }

    /// Whether `payload` matches the header.
    pub fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.length as usize && crc32c::crc32c(payload) == self.check
    }
}

/// One requested sample. Its position in the list is its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedSample {
    /// The sample.
    pub key: SampleKey,
    /// When the requester needs it.
    pub due: Tick,
    /// Its expected length, so that another version is detected before it is sent.
    pub length: u64,
}

impl RequestedSample {
    /// Encodes a list.
    pub fn encode(samples: impl Iterator<Item = Self>) -> Bytes {
        let mut bytes = BytesMut::with_capacity(samples.size_hint().0 * REQUEST_BYTES);
        for sample in samples {
            bytes.put_u32_le(sample.key.dataset.0);
            bytes.put_u64_le(sample.key.id.0);
            bytes.put_u64_le(sample.due.0);
            bytes.put_u64_le(sample.length);
        }
        bytes.freeze()
    }

    /// Decodes a list.
    ///
    /// # Errors
    /// If it is empty, too long, or has an invalid length.
    pub fn decode(bytes: &[u8]) -> Result<Vec<Self>, WireError> {
        let (samples, rest) = bytes.as_chunks::<REQUEST_BYTES>();
        if samples.is_empty() || !rest.is_empty() || samples.len() > MAX_SAMPLES_PER_REQUEST {
            return Err(WireError::malformed(format!("a list of samples of {} bytes", bytes.len())));
        }
        let sample = |bytes: &[u8; REQUEST_BYTES]| {
            let mut rest = &bytes[..];
            let (dataset, id) = (DatasetId(rest.get_u32_le()), SampleId(rest.get_u64_le()));
            Self { key: SampleKey::new(dataset, id), due: Tick(rest.get_u64_le()), length: rest.get_u64_le() }
        };
        Ok(samples.iter().map(sample).collect())
    }
}

/// Encodes a list of tags.
pub fn encode_tags(tags: &[u32]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(tags.len() * 4);
    tags.iter().for_each(|tag| bytes.put_u32_le(*tag));
    bytes.freeze()
}

/// Decodes a list of tags.
///
/// # Errors
/// If its length is not a multiple of four.
pub fn decode_tags(bytes: &[u8]) -> Result<impl Iterator<Item = u32>, WireError> {
    let (tags, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(WireError::malformed(format!("a list of tags of {} bytes", bytes.len())));
    }
    Ok(tags.iter().map(|tag| u32::from_le_bytes(*tag)))
}

/// The number of an error kind in [`FrameHeader::status`].
pub fn status_of(kind: ErrorKind) -> u8 {
    kind.number() + 1
}

/// The error kind of a status. `None` for success. Unknown numbers of later versions are
/// [`ErrorKind::Other`].
pub fn kind_of(status: u8) -> Option<ErrorKind> {
    status.checked_sub(1).map(ErrorKind::of_number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = FrameHeader> {
        let kind = prop::sample::select(vec![FrameKind::Answer, FrameKind::Control]);
        (kind, any::<(u8, u64, u64, u64)>(), any::<(u32, u32, u32)>()).prop_map(|(kind, one, two)| {
            let ((status, job, sample, request), (tag, length, check)) = (one, two);
            FrameHeader { kind, status, job, sample, request, tag, length, check }
        })
    }

    proptest! {
        #[test]
        fn header_round_trips(header in header()) {
            prop_assert_eq!(FrameHeader::decode(&header.encode()).unwrap(), header);
        }

        #[test]
        fn header_with_a_flipped_bit_is_invalid(header in header(), at in 0..HEADER, bit in 0u8..8) {
            let mut bytes = header.encode();
            bytes[at] ^= 1u8 << bit;
            prop_assert!(FrameHeader::decode(&bytes).is_err());
        }

        #[test]
        fn request_list_round_trips(fields in prop::collection::vec(any::<(u32, u64, u64, u64)>(), 1..50)) {
            let sample = |(dataset, id, due, length)| {
                let key = SampleKey::new(DatasetId(dataset), SampleId(id));
                RequestedSample { key, due: Tick(due), length }
            };
            let samples: Vec<RequestedSample> = fields.into_iter().map(sample).collect();
            let encoded = RequestedSample::encode(samples.iter().copied());
            prop_assert_eq!(RequestedSample::decode(&encoded).unwrap(), samples);
        }

        #[test]
        fn tag_list_round_trips(tags in prop::collection::vec(any::<u32>(), 0..50)) {
            prop_assert_eq!(decode_tags(&encode_tags(&tags)).unwrap().collect::<Vec<_>>(), tags);
        }
    }

    #[test]
    fn frame_length_is_limited_by_its_kind() {
        for (kind, max_length) in [
            (FrameKind::Heartbeat, 0),
            (FrameKind::Request, 4096 * 28),
            (FrameKind::Reading, 4096 * 4),
            (FrameKind::Cancel, 4096 * 4),
        ] {
            let mut header = FrameHeader::new(kind, 1, 2);
            header.length = max_length;
            assert!(FrameHeader::decode(&header.encode()).is_ok());
            header.length += 1;
            let error = FrameHeader::decode(&header.encode()).unwrap_err();
            assert_eq!(error.to_string(), format!("a frame {kind:?} of {} bytes", max_length + 1));
        }
    }

    #[test]
    fn lists_of_invalid_length_are_refused() {
        for length in [0, 1, 27, 29, (MAX_SAMPLES_PER_REQUEST + 1) * 28] {
            assert!(RequestedSample::decode(&vec![0; length]).is_err(), "{length}");
        }
        assert!(decode_tags(&[0; 5]).is_err());
    }

    #[test]
    fn error_kinds_round_trip_as_a_status() {
        for kind in ErrorKind::ALL {
            assert_eq!(kind_of(status_of(kind)), Some(kind));
        }
        assert_eq!((kind_of(0), kind_of(200)), (None, Some(ErrorKind::Other)));
    }

    #[test]
    fn frame_of_another_version_is_named() {
        let mut bytes = FrameHeader::new(FrameKind::Heartbeat, 0, 0).encode();
        bytes[4] = 9;
        let seal = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&seal.to_le_bytes());
        let error = FrameHeader::decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), WireErrorKind::OtherVersion);
        assert_eq!(error.to_string(), format!("a frame of version 9; this program speaks {VERSION}"));
    }
}
