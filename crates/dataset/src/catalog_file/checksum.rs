//! The checksum of a catalog file: every byte is covered, the digits as if they were zeros.
//!
//! A catalog is checked in the pass that decodes it. A file that is too large for memory is written
//! with blank digits, and they are filled in at the end. The price: such a file is read once more.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_ipc::{Block, Footer, MetadataVersion, root_as_footer};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog_file::fault::{CatalogFault, changed, corrupt, foreign};
use crate::catalog_file::keys::{CHECKSUM_BLANK, CHECKSUM_KEY, CHECKSUM_PREFIX, MAGIC, VERSION_KEY};
use crate::catalog_file::layout::place;
use crate::catalog_file::source::CatalogBytes;
use crate::catalog_file::version;

/// The number of bytes between blocks that are read at once.
const CHUNK: u64 = 256 << 10;

/// Completes a file that was written with a blank checksum.
pub(crate) fn seal(file: File) -> Result<CatalogBytes, CatalogFault> {
    let failed = |error: io::Error| CatalogFault::io(&error);
    let length = file.metadata().map_err(failed)?.len();
    let source = CatalogBytes::File(Arc::new(file), length);
    let mut room = Vec::new();
    let start = tail_start(&source, &mut room)?;
    let digits = checksum_digits(source.read(start..length, &mut room)?)?;
    let mut pass = ChecksumPass::new(&source, room);
    pass.skip_to(length)?;
    let checksum = format!("{:032x}", pass.hash.digest128());
    if let CatalogBytes::File(file, _) = &source {
        file.write_all_at(checksum.as_bytes(), start + digits.start as u64).map_err(failed)?;
    }
    Ok(source)
}

/// Writes all bytes of a catalog whose digits are at `digits`, and checks them. The inner result is
/// a fault of the catalog.
pub(crate) fn copy(
    source: &CatalogBytes,
    (digits, checksum): (&Range<u64>, &str),
    out: &mut impl Write,
) -> io::Result<Result<(), CatalogFault>> {
    let (mut hash, mut room, mut at) = (Xxh3::new(), Vec::new(), 0);
    // The digits are a piece of their own, which counts as blank.
    for (end, is_blank) in [(digits.start, false), (digits.end, true), (source.length(), false)] {
        while at < end {
            let next = end.min(at + CHUNK);
            let bytes = match source.read(at..next, &mut room) {
                Ok(bytes) => bytes,
                Err(fault) => return Ok(Err(fault)),
            };
            if is_blank && bytes != checksum.as_bytes() {
                return Ok(Err(written_to()));
            }
            hash.update(if is_blank { &CHECKSUM_BLANK } else { bytes });
            out.write_all(bytes)?;
            at = next;
        }
    }
    let is_same = format!("{:032x}", hash.digest128()) == checksum;
    Ok(if is_same { Ok(()) } else { Err(written_to()) })
}

/// The fault of a file that has other bytes than before.
pub(crate) fn written_to() -> CatalogFault {
    changed("the file was written to")
}

/// One pass through a catalog, which also computes the checksum.
pub(crate) struct ChecksumPass<'a> {
    source: &'a CatalogBytes,
    hash: Xxh3,
    at: u64,
    room: Vec<u8>,
}

impl<'a> ChecksumPass<'a> {
    /// A pass that begins. `room` is the buffer for reads.
    pub(crate) fn new(source: &'a CatalogBytes, room: Vec<u8>) -> Self {
        Self { source, hash: Xxh3::new(), at: 0, room }
    }

    /// The checksum's digits after the pass, of which `tail` is the rest.
    pub(crate) fn finish(mut self, tail: &[u8], digits: &Range<usize>) -> String {
        with_blank(&mut self.hash, tail, digits)
    }

    /// The bytes of a block, which must begin after the previous one. So all blocks together are no
    /// longer than the file.
    pub(crate) fn block(&mut self, block: &Block, end: u64) -> Result<&[u8], CatalogFault> {
        let place = place(block)?;
        if place.start < self.at || place.end > end {
            return Err(corrupt("its batches overlap or lie outside the file"));
        }
        self.skip_to(place.start)?;
        let bytes = self.source.read(place.clone(), &mut self.room)?;
        self.hash.update(bytes);
        self.at = place.end;
        Ok(bytes)
    }

    pub(crate) fn skip_to(&mut self, place: u64) -> Result<(), CatalogFault> {
        while self.at < place {
            let next = place.min(self.at + CHUNK);
            self.hash.update(self.source.read(self.at..next, &mut self.room)?);
            self.at = next;
        }
        Ok(())
    }
}

/// The length of the footer's length field and the magic at the end.
const FOOTER_END: u64 = 4 + MAGIC.len() as u64;

/// The position where the footer begins.
pub(crate) fn tail_start(source: &CatalogBytes, room: &mut Vec<u8>) -> Result<u64, CatalogFault> {
    let end = source.length().checked_sub(FOOTER_END).ok_or_else(|| corrupt("it ends early"))?;
    footer_start(source.read(end..end + FOOTER_END, room)?, end)
}

/// The position of the footer that ends at `end`, by the bytes from there: its length and the
/// magic.
fn footer_start(bytes: &[u8], end: u64) -> Result<u64, CatalogFault> {
    let parts = bytes.split_first_chunk::<4>().filter(|(_, magic)| magic == MAGIC);
    let (length, _) = parts.ok_or_else(|| corrupt("it ends early"))?;
    let length = u64::try_from(i32::from_le_bytes(*length)).ok();
    let start = length.and_then(|length| end.checked_sub(length));
    start.ok_or_else(|| corrupt("its footer is damaged"))
}

/// The footer, at the end of a file or of a part of it.
pub(crate) fn footer(bytes: &[u8]) -> Result<Footer<'_>, CatalogFault> {
    let end = bytes.len().saturating_sub(FOOTER_END as usize);
    let start = footer_start(&bytes[end..], end as u64)? as usize;
    let footer = root_as_footer(&bytes[start..end]).map_err(|_| corrupt("its footer is damaged"))?;
    if footer.version() != MetadataVersion::V5 {
        return Err(foreign("it is an Arrow file of another version"));
    }
    Ok(footer)
}

/// The position of the checksum's digits in a file, or in a part at its end. Files of other
/// programs and versions are detected first, because a newer version may compute its checksum
/// differently.
pub(crate) fn checksum_digits(bytes: &[u8]) -> Result<Range<usize>, CatalogFault> {
    let footer = footer(bytes)?;
    let schema = footer.schema().and_then(|schema| schema.custom_metadata());
    let version = schema.into_iter().flatten().find(|pair| pair.key() == Some(VERSION_KEY));
    version::check(version.and_then(|pair| pair.value()))?;
    let mut pairs = footer.custom_metadata().into_iter().flatten();
    let value = pairs.find(|pair| pair.key() == Some(CHECKSUM_KEY)).and_then(|pair| pair.value());
    let digits =
        value.and_then(|value| value.strip_prefix(CHECKSUM_PREFIX)).filter(|digits| digits.len() == 32);
    let digits = digits.ok_or_else(|| corrupt("its checksum is missing"))?;
    // They are borrowed from the footer and so from `bytes`. Their position is their distance from
    // its beginning.
    let start = digits.as_ptr().addr() - bytes.as_ptr().addr();
    Ok(start..start + 32)
}

/// The checksum's 32 digits over bytes in memory.
pub(crate) fn checksum(bytes: &[u8], digits: &Range<usize>) -> String {
    with_blank(&mut Xxh3::new(), bytes, digits)
}

/// The checksum after more bytes, whose digits count as blank.
fn with_blank(hash: &mut Xxh3, bytes: &[u8], digits: &Range<usize>) -> String {
    hash.update(&bytes[..digits.start]);
    hash.update(&CHECKSUM_BLANK);
    hash.update(&bytes[digits.end..]);
    format!("{:032x}", hash.digest128())
}
