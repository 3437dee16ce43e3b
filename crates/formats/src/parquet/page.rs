//! Page headers, and the checksums in them.
//!
//! Writers may put a CRC-32 of all bytes after the header into it. It is compared wherever whole
//! pages are read.

use flate2::Crc;

use super::thrift::{Kind, Thrift};

/// The encodings whose values are indices of a dictionary: an old name and a new one.
pub(super) const DICTIONARY_ENCODINGS: [i64; 2] = [2, 8];

/// The encoding of values without a transformation.
pub(super) const PLAIN: i64 = 0;

/// Runs of equal values, and packed bits.
pub(super) const RLE: i64 = 3;

/// Integers as differences, in packed bits.
pub(super) const DELTA_INTEGERS: i64 = 5;

/// The lengths of all values as differences, and then the values.
pub(super) const DELTA_LENGTH: i64 = 6;

/// Where the levels of a data page are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Levels {
    /// Version 1: before the values, after their length, and compressed with them.
    Before { encoding: i64 },
    /// Version 2: before the values, not compressed. Lengths in bytes.
    Apart { repetition: u64, definition: u64, is_compressed: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Data(Levels),
    Dictionary,
    /// Reserved kinds, which a reader skips.
    Other,
}

/// A page's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHead {
    pub(super) kind: PageKind,
    /// The length of the header in bytes.
    pub(super) length: u64,
    /// The length of the rest in the file, and after decompression.
    pub(super) stored: u64,
    pub(super) plain: u64,
    /// The number of values with nulls.
    pub(super) values: u64,
    pub(super) encoding: i64,
    /// The checksum of the bytes after the header.
    pub(super) crc: Option<u32>,
}

impl PageHead {
    /// Compares the bytes after the header with their checksum, if there is one.
    ///
    /// # Errors
    /// Both checksums.
    pub(super) fn check(&self, body: &[u8]) -> Result<(), String> {
        let Some(expected) = self.crc else { return Ok(()) };
        let mut crc = Crc::new();
        crc.update(body);
        if crc.sum() == expected {
            return Ok(());
        }
        let found = crc.sum();
        Err(format!("the checksum of its {} bytes is {found:08x}, expected {expected:08x}", body.len()))
    }
}

/// Checks a page with its header. Returns where the values begin, which stand after the levels if
/// these are not compressed with them.
///
/// # Errors
/// A header that is malformed or has no checksum, another length, and another checksum.
pub(crate) fn checked_values(page: &[u8]) -> Result<usize, String> {
    let head = head(page).filter(|head| head.crc.is_some()).ok_or("its header is malformed")?;
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    let body = page.get(length..).filter(|body| body.len() as u64 == head.stored);
    let body = body.ok_or_else(|| format!("it has {} bytes, not those of its header", page.len()))?;
    head.check(body)?;
    let levels = match head.kind {
        PageKind::Data(Levels::Apart { repetition, definition, .. }) => repetition.saturating_add(definition),
        _ => 0,
    };
    let levels = usize::try_from(levels).ok().filter(|&levels| levels <= body.len());
    levels.map(|levels| length + levels).ok_or_else(|| "its levels are longer than it".to_owned())
}

/// The fields of a data or dictionary page's own header.
#[derive(Default)]
struct Inner {
    values: Option<u64>,
    encoding: Option<i64>,
    level_encoding: Option<i64>,
    definition: Option<u64>,
    repetition: Option<u64>,
    is_compressed: Option<bool>,
}

/// The header at the beginning of `bytes`. `None` if it is malformed or incomplete.
pub(super) fn head(bytes: &[u8]) -> Option<PageHead> {
    let (mut number, mut stored, mut plain, mut inner, mut crc) = (None, None, None, None, None);
    let mut thrift = Thrift::new(bytes);
    thrift.fields(|thrift, id, kind| {
        match id {
            1 => number = Some(thrift.integer(kind)?),
            2 => plain = Some(thrift.unsigned(kind)?),
            3 => stored = Some(thrift.unsigned(kind)?),
            // A signed number of 32 bits.
            4 => crc = Some(thrift.integer(kind)? as u32),
            5 | 7 | 8 if kind == Kind::Struct => inner = Some((id, inner_head(thrift, id == 8)?)),
            _ => thrift.skip(kind)?,
        }
        Some(())
    })?;
    let (number, stored, plain) = (number?, stored?, plain?);
    let kind = match (number, &inner) {
        (0, Some((5, inner))) => PageKind::Data(Levels::Before { encoding: inner.level_encoding? }),
        (3, Some((8, inner))) => PageKind::Data(Levels::Apart {
            repetition: inner.repetition?,
            definition: inner.definition?,
            is_compressed: inner.is_compressed.unwrap_or(true),
        }),
        (2, Some((7, _))) => PageKind::Dictionary,
        (0 | 2 | 3, _) => return None,
        _ => PageKind::Other,
    };
    let (values, encoding) = match inner {
        Some((_, inner)) if kind != PageKind::Other => (inner.values?, inner.encoding?),
        _ => (0, PLAIN),
    };
    // The format has 32-bit numbers here.
    let is_small = stored.max(plain).max(values) <= i32::MAX as u64;
    let length = thrift.position() as u64;
    is_small.then_some(PageHead { kind, length, stored, plain, values, encoding, crc })
}

fn inner_head(thrift: &mut Thrift<'_>, is_version_2: bool) -> Option<Inner> {
    let mut inner = Inner::default();
    thrift.fields(|thrift, id, kind| {
        match (id, is_version_2) {
            (1, _) => inner.values = Some(thrift.unsigned(kind)?),
            (2, false) | (4, true) => inner.encoding = Some(thrift.integer(kind)?),
            // A dictionary's header has a flag there.
            (3, false) if kind == Kind::Integer => inner.level_encoding = Some(thrift.integer(kind)?),
            (5, true) => inner.definition = Some(thrift.unsigned(kind)?),
            (6, true) => inner.repetition = Some(thrift.unsigned(kind)?),
            (7, true) => inner.is_compressed = Some(thrift.boolean(kind)?),
            _ => thrift.skip(kind)?,
        }
        Some(())
    })?;
    Some(inner)
}
