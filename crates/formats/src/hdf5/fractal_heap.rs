//! The fractal heap: where a group with many links keeps them.
//!
//! A heap is one address space over blocks of doubling sizes. The places of all blocks are read
//! first, so that an object's place is found by its offset.

use bytes::Bytes;

use super::cursor::{bytes_of_bits, width_of_limit};
use super::file::{BATCH, File};
use crate::FormatError;

/// The most levels of indirect blocks: each level has at least twice the size of the one below.
const MOST_LEVELS: usize = 64;

/// A block with objects.
#[derive(Debug)]
struct Block {
    /// Its offset in the heap.
    offset: u64,
    length: u64,
    /// Its place in the file.
    at: u64,
}

/// The directory of a heap.
#[derive(Debug)]
pub(super) struct FractalHeap {
    offset_width: usize,
    length_width: usize,
    /// Sorted by offset.
    blocks: Vec<Block>,
}

/// The sizes of a heap's blocks.
#[derive(Debug)]
struct Table {
    width: u64,
    first: u64,
    most_direct: u64,
    offset_width: usize,
}

impl Table {
    /// The length of a block in `row`, or `None` beyond 64 bits.
    fn block(&self, row: u32) -> Option<u64> {
        self.first.checked_mul(1u64.checked_shl(row.saturating_sub(1))?)
    }

    /// The rows of an indirect block that spans `length` bytes of the heap.
    fn rows(&self, length: u64) -> Option<u32> {
        let first_row = self.first.checked_mul(self.width)?;
        Some((length.checked_ilog2()?).checked_sub(first_row.checked_ilog2()?)? + 1)
    }
}

impl FractalHeap {
    /// Reads the heap's header and the places of its blocks.
    pub(super) async fn open(file: &File<'_>, at: u64) -> Result<Self, FormatError> {
        let head = file.read_part(at, 512).await?;
        let mut cursor = file.cursor("fractal heap", at, &head);
        cursor.signature(b"FRHP")?;
        cursor.version(0)?;
        cursor.skip(2)?;
        if cursor.u16()? != 0 {
            return Err(cursor.unsupported("links are compressed: write the file again by `h5repack`"));
        }
        cursor.skip(1)?;
        let most_managed = u64::from(cursor.u32()?);
        let widths = file.widths();
        // Huge objects and free space, then eight counters.
        cursor.skip(2 * widths.length + 2 * widths.offset + 8 * widths.length)?;
        let width = u64::from(cursor.u16()?);
        let first = cursor.length()?;
        let most_direct = cursor.length()?;
        let bits = cursor.u16()?;
        cursor.skip(2)?;
        let root = cursor.address()?;
        let rows = u32::from(cursor.u16()?);
        cursor.checksum()?;
        if !first.is_power_of_two() || !most_direct.is_power_of_two() || !width.is_power_of_two() || bits > 64
        {
            return Err(cursor.damaged("its block sizes are not powers of two"));
        }
        let offset_width = bytes_of_bits(bits.into());
        let length_width = bytes_of_bits(most_direct.ilog2().into()).min(width_of_limit(most_managed));
        let mut heap = Self { offset_width, length_width, blocks: Vec::new() };
        let table = Table { width, first, most_direct, offset_width };
        match root {
            Some(root) if rows == 0 => heap.blocks.push(Block { offset: 0, length: first, at: root }),
            Some(root) => heap.indirect(file, &table, root, rows).await?,
            None => {}
        }
        heap.blocks.sort_unstable_by_key(|block| block.offset);
        Ok(heap)
    }

    /// Reads the indirect blocks level by level.
    async fn indirect(
        &mut self,
        file: &File<'_>,
        table: &Table,
        root: u64,
        rows: u32,
    ) -> Result<(), FormatError> {
        let mut level = vec![(root, 0, rows)];
        let mut next = Vec::new();
        for _ in 0..MOST_LEVELS {
            for batch in level.chunks(BATCH) {
                let head = 5 + file.widths().offset + table.offset_width;
                let ranges: Option<Vec<(u64, u64)>> = batch
                    .iter()
                    .map(|&(at, _, rows)| {
                        let entries = table.width.checked_mul(rows.into())?;
                        Some((
                            at,
                            entries.checked_mul(file.widths().offset as u64)?.checked_add(head as u64 + 4)?,
                        ))
                    })
                    .collect();
                let too_long = || FormatError::damaged(root, "an HDF5 fractal heap's block is too long");
                let found = file.read_all(&ranges.ok_or_else(too_long)?).await?;
                for (bytes, &(at, start, rows)) in found.iter().zip(batch) {
                    let mut cursor = file.cursor("fractal heap", at, bytes);
                    cursor.signature(b"FHIB")?;
                    cursor.version(0)?;
                    cursor.skip(file.widths().offset + table.offset_width)?;
                    let mut offset: u64 = start;
                    for row in 0..rows {
                        let length = table.block(row).ok_or_else(too_long)?;
                        for _ in 0..table.width {
                            match cursor.address()? {
                                Some(at) if length <= table.most_direct => {
                                    self.blocks.push(Block { offset, length, at });
                                }
                                Some(at) => next.push((at, offset, table.rows(length).ok_or_else(too_long)?)),
                                None => {}
                            }
                            offset = offset.checked_add(length).ok_or_else(too_long)?;
                        }
                    }
                    cursor.checksum()?;
                }
            }
            if next.is_empty() {
                return Ok(());
            }
            level = std::mem::take(&mut next);
        }
        Err(FormatError::damaged(root, "an HDF5 fractal heap has too many levels"))
    }

    /// Reads the objects of `ids`, each with its place.
    pub(super) async fn read_all(
        &self,
        file: &File<'_>,
        ids: &[Vec<u8>],
    ) -> Result<Vec<(u64, Bytes)>, FormatError> {
        let mut found = vec![(0, Bytes::new()); ids.len()];
        let mut ranges = Vec::new();
        let mut owners = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            let mut cursor = file.cursor("identifier in a fractal heap", 0, id);
            let head = cursor.u8()?;
            match head >> 4 & 3 {
                0 => {
                    let offset = cursor.uint(self.offset_width)?;
                    let length = cursor.uint(self.length_width)?;
                    ranges.push((self.place(offset, length)?, length));
                    owners.push(index);
                }
                2 => {
                    let length = usize::from(head & 15) + 1;
                    found[index].1 = Bytes::copy_from_slice(cursor.take(length)?);
                }
                _ => return Err(cursor.unsupported("a link is longer than 4 KiB: rename it")),
            }
        }
        for ((bytes, index), &(at, _)) in file.read_all(&ranges).await?.into_iter().zip(owners).zip(&ranges) {
            found[index] = (at, bytes);
        }
        Ok(found)
    }

    /// The place of an object in the file.
    fn place(&self, offset: u64, length: u64) -> Result<u64, FormatError> {
        let after = self.blocks.partition_point(|block| block.offset <= offset);
        let block = after.checked_sub(1).map(|index| &self.blocks[index]);
        let place = block.and_then(|block| {
            let inside = offset - block.offset;
            let fits = inside.checked_add(length)? <= block.length;
            if fits { block.at.checked_add(inside) } else { None }
        });
        place.ok_or_else(|| {
            FormatError::damaged(0, "an object of an HDF5 fractal heap lies in none of its blocks")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_double_after_the_second_row() {
        let table = Table { width: 4, first: 512, most_direct: 65_536, offset_width: 4 };
        let sizes: Vec<_> = (0..5).map(|row| table.block(row).unwrap()).collect();
        assert_eq!(sizes, [512, 512, 1024, 2048, 4096]);
        assert_eq!(table.block(70), None);
        // An indirect block has the rows that span its length: 4 * (512 + 512 + 1024) = 8192.
        assert_eq!(table.rows(2048), Some(1));
        assert_eq!(table.rows(8192), Some(3));
        assert_eq!(table.rows(1024), None);
    }
}
