//! The open file: its superblock, and reads with a limit.
//!
//! Every read takes from a limit of 16 times the file's size. A valid file stays far below it. So a
//! damaged file with cycles or overlapping nodes ends with an error, and needs no check of its own
//! in each loop. The price is that the error of such a file does not name the cycle.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use super::cursor::{Cursor, Widths};
use crate::{BlockReader, FileSource, FormatError};

/// The block of reads of metadata, in bytes. Nodes of trees have about this size.
const BLOCK: u64 = 4096;

/// The first read in bytes. It has the superblock and mostly the root group.
const FIRST: u64 = 16 * 1024;

/// The most bytes of a request that joins several ranges.
const MOST: u64 = 1024 * 1024;

/// Structures that are read together.
pub(super) const BATCH: usize = 1024;

const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// An open HDF5 file. Places are offsets from the beginning of the file, behind any user block.
pub(super) struct File<'a> {
    source: &'a dyn FileSource,
    blocks: BlockReader<'a>,
    left: AtomicU64,
    base: u64,
    widths: Widths,
    /// The place of the root group's header.
    pub(super) root: u64,
}

impl<'a> File<'a> {
    /// Finds and reads the superblock.
    pub(super) async fn open(source: &'a dyn FileSource) -> Result<Self, FormatError> {
        let size = source.size();
        let mut file = Self {
            source,
            blocks: BlockReader::new(source, BLOCK),
            left: AtomicU64::new(size.saturating_mul(16).saturating_add(4 * FIRST)),
            base: 0,
            widths: Widths { offset: 8, length: 8 },
            root: 0,
        };
        file.read_part(0, FIRST).await?;
        let mut at = 0;
        while at < size {
            let bytes = file.read_part(at, 128).await?;
            if bytes.starts_with(SIGNATURE) {
                file.superblock(at, &bytes)?;
                return Ok(file);
            }
            at = at.saturating_mul(2).max(512);
        }
        Err(FormatError::damaged(0, "HDF5's signature is missing: not an HDF5 file"))
    }

    fn superblock(&mut self, at: u64, bytes: &[u8]) -> Result<(), FormatError> {
        self.base = at;
        let mut cursor = self.cursor("superblock", at, bytes);
        cursor.skip(SIGNATURE.len())?;
        let version = cursor.u8()?;
        let (offset, length) = match version {
            0 | 1 => {
                cursor.skip(4)?;
                (cursor.u8()?, cursor.u8()?)
            }
            2 | 3 => (cursor.u8()?, cursor.u8()?),
            _ => {
                let why = format!("HDF5 superblock of version {version}: 0 to 3 can be read");
                return Err(FormatError::unsupported(at, why));
            }
        };
        if ![2, 4, 8].contains(&offset) || ![2, 4, 8].contains(&length) {
            let why = format!("HDF5 addresses of {offset} and {length} bytes: expected 2, 4 or 8");
            return Err(FormatError::unsupported(at, why));
        }
        cursor.widths = Widths { offset: offset.into(), length: length.into() };
        if version < 2 {
            cursor.skip(if version == 0 { 9 } else { 13 })?;
        } else if cursor.u8()? & 5 != 0 && version == 3 {
            let why =
                "the HDF5 file is open for writing, or its writer crashed: close it, or run `h5clear -s`";
            return Err(FormatError::unsupported(at, why));
        }
        let base = cursor.uint(offset.into())?;
        // The free space's place in old files, the extension's in new ones.
        cursor.skip(offset.into())?;
        let end = cursor.uint(offset.into())?;
        if end.checked_sub(base).and_then(|end| end.checked_add(at)).is_none_or(|end| end > self.size()) {
            return Err(FormatError::cut_short(at, self.size()));
        }
        if version < 2 {
            // The driver's place, and the name of the root group's entry.
            cursor.skip(2 * usize::from(offset))?;
        }
        let root = cursor.place_of("the root group")?;
        if version >= 2 {
            cursor.checksum()?;
        }
        self.widths = cursor.widths;
        self.root = root;
        Ok(())
    }

    /// The length of the file in bytes.
    pub(super) fn size(&self) -> u64 {
        self.blocks.size()
    }

    /// The widths of addresses and lengths.
    pub(super) fn widths(&self) -> Widths {
        self.widths
    }

    /// A reader of blocks of another size.
    pub(super) fn blocks_of(&self, block: u64) -> BlockReader<'a> {
        BlockReader::new(self.source, block)
    }

    /// A cursor over bytes that were read at `at`.
    pub(super) fn cursor<'b>(&self, what: &'static str, at: u64, bytes: &'b [u8]) -> Cursor<'b> {
        Cursor { what, bytes, next: 0, at, base: self.base, widths: self.widths }
    }

    /// Takes `bytes` from the limit.
    pub(super) fn spend(&self, bytes: u64) -> Result<(), FormatError> {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| {
            FormatError::damaged(0, "the HDF5 file's structures refer to each other in cycles, or overlap")
        })
    }

    /// Reads `length` bytes at `at`.
    pub(super) async fn read(&self, at: u64, length: u64) -> Result<Bytes, FormatError> {
        self.spend(length)?;
        self.blocks.read(at, length).await
    }

    /// Reads `most` bytes at `at`, or those up to the end of the file.
    pub(super) async fn read_part(&self, at: u64, most: u64) -> Result<Bytes, FormatError> {
        self.read(at, self.part(at, most)).await
    }

    fn part(&self, at: u64, most: u64) -> u64 {
        most.min(self.size().saturating_sub(at))
    }

    /// Reads many ranges, each `(place, length)`, with few requests.
    pub(super) async fn read_all(&self, ranges: &[(u64, u64)]) -> Result<Vec<Bytes>, FormatError> {
        self.read_all_by(&self.blocks, ranges).await
    }

    /// Reads many ranges by another reader of this file.
    pub(super) async fn read_all_by(
        &self,
        blocks: &BlockReader<'_>,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Bytes>, FormatError> {
        for &(_, length) in ranges {
            self.spend(length)?;
        }
        blocks.read_all(ranges, MOST).await
    }

    /// Reads structures that give their own length. `guess` bytes of all are read together. Longer
    /// structures, as `length` returns it for their beginning, are read again.
    pub(super) async fn read_sized(
        &self,
        places: &[u64],
        guess: u64,
        length: impl Fn(u64, &[u8]) -> Result<u64, FormatError>,
    ) -> Result<Vec<Bytes>, FormatError> {
        let ranges: Vec<_> = places.iter().map(|&at| (at, self.part(at, guess))).collect();
        let mut found = self.read_all(&ranges).await?;
        for (bytes, &at) in found.iter_mut().zip(places) {
            let length = length(at, bytes)?;
            if length > bytes.len() as u64 {
                *bytes = self.read(at, length).await?;
            }
        }
        Ok(found)
    }
}
