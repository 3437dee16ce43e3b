//! Tar: each member has a header of 512 bytes before its data, which is padded to 512 bytes. Two
//! blocks of zeros mark the end. ustar, pax and GNU's extensions are supported.
//!
//! Members without data (directories, links, devices) are skipped and counted. Members whose data
//! is not one extent (sparse files, parts of volumes) are refused, because leaving them out would
//! be silent loss. This reader is stricter than most in two ways, for the same reason. An archive
//! without its end mark was truncated. After an end mark there must be another archive (`cat a.tar
//! b.tar`) or zeros.

use std::borrow::Cow;

use super::pax::Pax;
use super::scan::{ParseStep, ShardMember, ShardParser};
use super::shard_error::{compressed, compression};
use crate::names::{MAX_TEXT, lenient};
use foreread_formats::FormatError;

const BLOCK: u64 = 512;
/// The longest pax header or long name. Real ones have a few hundred bytes.
const MOST_EXTRA: u64 = 1 << 20;
/// The maximum number of extra headers before one member.
const MOST_EXTRAS: u32 = 32;
/// The number of zero blocks after which the rest of the archive is not read.
const MOST_ZEROS: u32 = 2048;

/// The parser of an archive.
#[derive(Debug, Default)]
pub(crate) struct Tar {
    /// Attributes of the next member, from pax and GNU headers.
    next: Pax,
    /// Attributes of all later members, from global pax headers.
    global: Pax,
    /// Extra headers of the next member so far.
    extras: u32,
    /// Consecutive blocks of zeros so far.
    zeros: u32,
}

/// One header block.
struct TarHeader<'a>(&'a [u8; BLOCK as usize]);

impl<'a> TarHeader<'a> {
    fn field(&self, start: usize, length: usize) -> &'a [u8] {
        let field = &self.0[start..start + length];
        field.iter().position(|&byte| byte == 0).map_or(field, |end| &field[..end])
    }

    /// Whether the checksum is valid. Old writers sum signed bytes, so both sums are accepted.
    fn is_whole(&self) -> bool {
        let Some(declared) = octal(&self.0[148..156]) else { return false };
        let bytes = || {
            self.0.iter().enumerate().map(|(at, &byte)| if (148..156).contains(&at) { b' ' } else { byte })
        };
        let unsigned: u64 = bytes().map(u64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte as i8)).sum();
        declared == unsigned || i64::try_from(declared) == Ok(signed)
    }

    fn size(&self) -> Option<u64> {
        number(&self.0[124..136])
    }

    fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The name in the header, as bytes.
    fn name(&self) -> Cow<'a, [u8]> {
        let name = self.field(0, 100);
        // GNU's archives have `ustar  ` here, and times in place of ustar's prefix.
        let prefix = if &self.0[257..263] == b"ustar\0" { self.field(345, 155) } else { &[] };
        match prefix.is_empty() {
            true => Cow::Borrowed(name),
            false => Cow::Owned([prefix, b"/", name].concat()),
        }
    }
}

/// An octal number with blanks or zero bytes around it. An empty field is 0.
fn octal(field: &[u8]) -> Option<u64> {
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !blank(byte)).unwrap_or(field.len());
    let digits = &field[start..];
    let end = digits.iter().position(blank).unwrap_or(digits.len());
    digits[..end].iter().try_fold(0u64, |value, &digit| {
        let digit = (b'0'..=b'7').contains(&digit).then(|| u64::from(digit - b'0'))?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

/// A number of a header: octal, or GNU's base 256 for large ones, marked by the highest bit.
fn number(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        Some((&first, rest)) if first & 0x80 != 0 => {
            // The next bit is the sign.
            let start = (first & 0x40 == 0).then_some(u64::from(first & 0x3f))?;
            rest.iter().try_fold(start, |value, &byte| value.checked_mul(256)?.checked_add(byte.into()))
        }
        _ => octal(field),
    }
}

fn text(at: u64, name: Cow<'_, [u8]>) -> Result<Cow<'_, str>, FormatError> {
    let name = lenient(name);
    if name.len() > MAX_TEXT {
        return Err(FormatError::damaged(at, "a name is longer than 16,384 bytes"));
    }
    Ok(name)
}

impl Tar {
    /// Reads the data of a pax header or a long name, which describes a later member.
    fn extra<'a>(
        &mut self,
        at: u64,
        kind: u8,
        length: u64,
        bytes: &[u8],
        end: u64,
    ) -> Result<ParseStep<'a>, FormatError> {
        self.extras += 1;
        if self.extras > MOST_EXTRAS {
            return Err(FormatError::damaged(at, format!("more than {MOST_EXTRAS} headers and no member")));
        }
        let data = &bytes[BLOCK as usize..(BLOCK + length) as usize];
        match kind {
            b'L' => {
                let name = data.split(|&byte| byte == 0).next().unwrap_or_default();
                self.next.path = Some(name.to_vec());
            }
            b'x' | b'X' => self.next.read(data).map_err(|why| FormatError::damaged(at, why))?,
            b'g' => self.global.read(data).map_err(|why| FormatError::damaged(at, why))?,
            _ => {} // 'K', a long link: links are not samples
        }
        Ok(ParseStep::Go(end))
    }

    /// Handles a block of zeros: at the end, or between two archives.
    fn zero<'a>(&mut self, at: u64, size: u64) -> Result<ParseStep<'a>, FormatError> {
        if self.extras > 0 {
            return Err(FormatError::damaged(at, "the archive ends between a header and its member"));
        }
        self.zeros += 1;
        let next = at + BLOCK;
        match size - next < BLOCK || self.zeros == MOST_ZEROS {
            true => Ok(ParseStep::End),
            false => Ok(ParseStep::Go(next)),
        }
    }
}

impl ShardParser for Tar {
    type Note = ();

    fn step<'a>(&mut self, at: u64, bytes: &'a [u8], size: u64) -> Result<ParseStep<'a>, FormatError> {
        if at == size {
            return Err(FormatError::damaged(at, "the archive has no end mark: it was cut short"));
        }
        let Some(block) = bytes.first_chunk() else {
            let left = size - at;
            return match compression(bytes) {
                _ if left >= BLOCK || (bytes.len() as u64) < left => Ok(ParseStep::Needs(BLOCK.min(left))),
                Some(how) if at == 0 => Err(compressed(how)),
                _ => Err(FormatError::cut_short(at, size)),
            };
        };
        if block.iter().all(|&byte| byte == 0) {
            return self.zero(at, size);
        }
        let header = TarHeader(block);
        if !header.is_whole() {
            return Err(match compression(bytes) {
                Some(how) if at == 0 => compressed(how),
                _ => FormatError::damaged(at, "no tar header stands here: its checksum does not match"),
            });
        }
        self.zeros = 0;
        let kind = header.kind();
        let next = std::mem::take(&mut self.next);
        let large = || FormatError::damaged(at, "a member's size is not a number or too large");
        let is_extra = matches!(kind, b'x' | b'X' | b'g' | b'L' | b'K');
        let declared = if is_extra { None } else { next.size.or(self.global.size) };
        let length = declared.or_else(|| header.size()).ok_or_else(large)?;
        // Only these types have no data whatever their size field. For unknown types the size field
        // holds.
        let length = if matches!(kind, b'1'..=b'6') { 0 } else { length };
        let start = at + BLOCK;
        let padded = length.checked_next_multiple_of(BLOCK).and_then(|length| start.checked_add(length));
        let end = padded.ok_or_else(large)?;
        if end > size {
            return Err(FormatError::cut_short(at, size));
        }
        if is_extra {
            if length > MOST_EXTRA {
                return Err(FormatError::damaged(
                    at,
                    format!("a header of {length} bytes, more than {MOST_EXTRA}"),
                ));
            }
            self.next = next;
            if (bytes.len() as u64) < end - at {
                return Ok(ParseStep::Needs(end - at));
            }
            return self.extra(at, kind, length, bytes, end);
        }
        self.extras = 0;
        if kind == b'S' || next.is_sparse || self.global.is_sparse {
            let why = "a sparse file, whose bytes are not contiguous; pack it without --sparse";
            return Err(FormatError::unsupported(at, why));
        }
        if kind == b'M' {
            let why =
                "a part of a file that began in another volume; pack the samples into single-volume archives";
            return Err(FormatError::unsupported(at, why));
        }
        let name = match next.path.or_else(|| self.global.path.clone()) {
            Some(path) => Cow::Owned(path),
            None => header.name(),
        };
        // In tar before pax and ustar, a directory was a file whose name ends in a slash.
        if !matches!(kind, b'0' | 0 | b'7') || name.is_empty() || name.ends_with(b"/") {
            return Ok(ParseStep::Skip(end));
        }
        Ok(ParseStep::ShardMember(
            ShardMember { name: text(at, name)?, start, length, crc32c: 0, note: () },
            end,
        ))
    }

    fn is_fresh(&self) -> bool {
        self.extras == 0 && self.zeros == 0
    }

    fn is_bound(&self) -> bool {
        self.global != Pax::default()
    }

    fn find(bytes: &[u8]) -> Option<usize> {
        let blocks = bytes.as_chunks::<{ BLOCK as usize }>().0;
        let found =
            blocks.iter().position(|block| &block[257..262] == b"ustar" && TarHeader(block).is_whole());
        found.map(|block| block * BLOCK as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        for (field, value) in [
            (&b"00000001750\0"[..], Some(1000)),
            (b"       1750 ", Some(1000)),
            (b"\0\0\0\0", Some(0)),
            (b"", Some(0)),
            (b"777777777777", Some((1 << 36) - 1)),
            (b"00000000008\0", None),
            (b"-0000000001\0", None),
            (b"\x80\0\0\0\0\0\0\x02\0\0\0\0", Some(8 << 30)),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }
}
