//! TFRecord is a sequence of records. A record is `length: u64 LE, masked crc32c of the length: u32
//! LE, data, masked crc32c of the data: u32 LE`. There is no other header and no end mark.
//!
//! Sixteen bytes lie between two records. The data is not read. Its checksum goes into the catalog,
//! so that every read from an origin is checked against it.

use std::borrow::Cow;

use super::scan::{ParseStep, ShardMember, ShardParser};
use super::shard_error::{compressed, compression};
use foreread_formats::FormatError;

/// The bytes of a record's header: the length and its checksum.
pub(super) const HEAD: u64 = 12;
const FOOT: u64 = 4;
const MASK_DELTA: u32 = 0xa282_ead8;

/// Masks a checksum as TFRecord stores it. A checksum of data that contains checksums then stays
/// strong.
fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(MASK_DELTA).rotate_left(15)
}

/// The parser of a TFRecord file.
#[derive(Debug, Default)]
pub(crate) struct TfRecord {
    /// The start of the data of the record whose end comes next.
    open: Option<u64>,
}

/// The length in a record's header, if its checksum is valid.
fn length(head: &[u8]) -> Option<u64> {
    let (length, rest) = head.split_first_chunk::<8>()?;
    let masked = u32::from_le_bytes(*rest.first_chunk()?);
    (mask(crc32c::crc32c(length)) == masked).then_some(u64::from_le_bytes(*length))
}

/// Whether a file of `size` bytes that begins with `head` is a TFRecord file.
pub(super) fn begins(head: &[u8], size: u64) -> bool {
    length(head).and_then(|length| length.checked_add(HEAD + FOOT)).is_some_and(|end| end <= size)
}

impl ShardParser for TfRecord {
    type Note = ();

    fn step<'a>(&mut self, at: u64, bytes: &'a [u8], size: u64) -> Result<ParseStep<'a>, FormatError> {
        if let Some(start) = self.open {
            let Some(masked) = bytes.first_chunk() else { return Ok(ParseStep::Needs(FOOT)) };
            self.open = None;
            let crc32c = unmask(u32::from_le_bytes(*masked));
            let member = ShardMember { name: Cow::Borrowed(""), start, length: at - start, crc32c, note: () };
            return Ok(ParseStep::ShardMember(member, at + FOOT));
        }
        if at == size {
            return Ok(ParseStep::End);
        }
        let Some(head) = bytes.get(..HEAD as usize) else { return Ok(ParseStep::Needs(HEAD)) };
        let Some(length) = length(head) else {
            return Err(match compression(head) {
                Some(how) if at == 0 => compressed(how),
                _ => FormatError::damaged(
                    at,
                    "no TFRecord begins here: the checksum of its length does not match",
                ),
            });
        };
        let start = at + HEAD;
        let end =
            start.checked_add(length).filter(|end| end.checked_add(FOOT).is_some_and(|end| end <= size));
        let end = end.ok_or_else(|| FormatError::cut_short(at, size))?;
        self.open = Some(start);
        Ok(ParseStep::Go(end))
    }

    fn is_fresh(&self) -> bool {
        self.open.is_none()
    }

    fn find(bytes: &[u8]) -> Option<usize> {
        bytes.windows(HEAD as usize).position(|head| length(head).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_mask_is_that_of_the_specification() {
        // The CRC-32C check value of these digits, and its mask as TensorFlow defines it.
        let crc = crc32c::crc32c(b"123456789");
        assert_eq!(crc, 0xe306_9283);
        assert_eq!(mask(crc), 0xc78a_b0e5);
        for crc in [0, 1, u32::MAX, crc] {
            assert_eq!(unmask(mask(crc)), crc);
        }
    }
}
