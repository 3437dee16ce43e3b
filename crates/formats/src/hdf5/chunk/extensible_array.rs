//! Extensible arrays of chunks: the index of datasets with one unlimited dimension.
//!
//! The first elements lie in the index block. The next ones lie in data blocks of growing sizes.
//! The index block has the places of the first data blocks. Super blocks have those of the others.

use super::found::Found;
use crate::FormatError;
use crate::hdf5::cursor::{Cursor, bytes_of_bits};
use crate::hdf5::file::File;

/// The bytes of blocks that are read together.
const TOGETHER: u64 = 4 * 1024 * 1024;

/// The parameters of an array.
#[derive(Clone, Copy, Debug)]
struct Array {
    /// The bytes of an element.
    width: usize,
    /// The bits of a slot number.
    bits: u8,
    /// The elements in the index block.
    inline: u64,
    /// The elements of the smallest data block, a power of two.
    least: u64,
    /// The data blocks of the first super block that is a block of its own, a power of two.
    pointers: u64,
    /// The elements of a page.
    page: u64,
}

impl Array {
    /// The data blocks of super block `number`, and the elements of each.
    fn super_block(&self, number: u32) -> Option<(u64, u64)> {
        let blocks = 1u64.checked_shl(number / 2)?;
        let factor = 1u64.checked_shl(number.div_ceil(2))?;
        Some((blocks, factor.checked_mul(self.least)?))
    }

    /// The number of super blocks.
    fn super_blocks(&self) -> u32 {
        (1 + u32::from(self.bits)).saturating_sub(self.least.ilog2())
    }

    /// The number of super blocks whose data blocks the index block refers to.
    fn direct(&self) -> u32 {
        2 * self.pointers.ilog2()
    }

    /// The pages of a data block, or 0 if it is not divided.
    fn pages(&self, elements: u64) -> u64 {
        if elements > self.page { elements / self.page } else { 0 }
    }
}

/// A data block that was not read yet.
struct DataBlock {
    at: u64,
    /// The slot of its first element.
    slot: u64,
    elements: u64,
    /// Whether each page was written. Empty if it is not divided.
    pages: Vec<bool>,
}

/// A super block that was not read yet.
struct SuperBlock {
    at: u64,
    slot: u64,
    blocks: u64,
    elements: u64,
}

/// Reads all blocks of an array.
pub(super) async fn read(file: &File<'_>, at: u64, found: &mut Found<'_>) -> Result<(), FormatError> {
    let head = file.read_part(at, 128).await?;
    let mut cursor = file.cursor("extensible array", at, &head);
    cursor.signature(b"EAHD")?;
    cursor.version(0)?;
    cursor.skip(1)?;
    let width = usize::from(cursor.u8()?);
    found.check(width, &cursor)?;
    let (bits, inline) = (cursor.u8()?, u64::from(cursor.u8()?));
    let (least, pointers) = (u64::from(cursor.u8()?), u64::from(cursor.u8()?));
    let page = 1u64.checked_shl(cursor.u8()?.into());
    if bits > 64 || !least.is_power_of_two() || !pointers.is_power_of_two() {
        return Err(cursor.damaged("its block sizes are not powers of two"));
    }
    let page = page.ok_or_else(|| cursor.damaged("its pages are too large"))?;
    let array = Array { width, bits, inline, least, pointers, page };
    // Six counters.
    cursor.skip(6 * file.widths().length)?;
    let index = cursor.address()?;
    cursor.checksum()?;
    let Some(index) = index else { return Ok(()) };
    let (mut blocks, supers) = index_block(file, array, index, found).await?;
    super_blocks(file, array, &supers, &mut blocks).await?;
    data_blocks(file, array, &blocks, found).await
}

/// Skips the part that all blocks have: signature, version, client and the header's address.
fn frame(cursor: &mut Cursor<'_>, signature: &[u8; 4]) -> Result<(), FormatError> {
    cursor.signature(signature)?;
    cursor.version(0)?;
    cursor.skip(1 + cursor.widths.offset)
}

/// Adds the elements of the index block. Returns the blocks that it refers to.
async fn index_block(
    file: &File<'_>,
    array: Array,
    at: u64,
    found: &mut Found<'_>,
) -> Result<(Vec<DataBlock>, Vec<SuperBlock>), FormatError> {
    let offset = file.widths().offset as u64;
    let (direct, all) = (array.direct(), array.super_blocks());
    let addresses = 2 * (array.pointers - 1) + u64::from(all.saturating_sub(direct));
    let length = 10 + offset + array.inline * array.width as u64 + addresses * offset;
    let bytes = file.read(at, length).await?;
    let mut cursor = file.cursor("extensible array", at, &bytes);
    cursor.clone().checksum_at_end()?;
    frame(&mut cursor, b"EAIB")?;
    for slot in 0..array.inline {
        found.element(slot, array.width, &mut cursor)?;
    }
    let mut slot = array.inline;
    let (mut data, mut supers) = (Vec::new(), Vec::new());
    for number in 0..all.max(direct) {
        let sizes = array.super_block(number);
        let end = sizes.and_then(|(blocks, elements)| blocks.checked_mul(elements)?.checked_add(slot));
        // Slots beyond 64 bits cannot be in use.
        let (Some((blocks, elements)), Some(end)) = (sizes, end) else { break };
        if number < direct {
            for block in 0..blocks {
                if let Some(at) = cursor.address()? {
                    if array.pages(elements) > 0 {
                        return Err(cursor.damaged("a block of the index block has pages"));
                    }
                    data.push(DataBlock { at, slot: slot + block * elements, elements, pages: Vec::new() });
                }
            }
        } else if let Some(at) = cursor.address()? {
            supers.push(SuperBlock { at, slot, blocks, elements });
        }
        slot = end;
    }
    Ok((data, supers))
}

/// Adds the data blocks that super blocks refer to.
async fn super_blocks(
    file: &File<'_>,
    array: Array,
    supers: &[SuperBlock],
    blocks: &mut Vec<DataBlock>,
) -> Result<(), FormatError> {
    let offset = file.widths().offset as u64;
    let slot_width = bytes_of_bits(array.bits.into());
    for unit in supers {
        let pages = array.pages(unit.elements);
        // One stream of bits for all data blocks, padded as if each had bytes of its own.
        let bitmap = pages.div_ceil(8).checked_mul(unit.blocks);
        let length = bitmap.and_then(|bitmap| {
            let addresses = unit.blocks.checked_mul(offset)?;
            addresses.checked_add(bitmap)?.checked_add(10 + offset + slot_width as u64)
        });
        let (Some(bitmap), Some(length)) = (bitmap, length) else {
            return Err(FormatError::cut_short(unit.at, file.size()));
        };
        let bytes = file.read(unit.at, length).await?;
        let mut cursor = file.cursor("extensible array", unit.at, &bytes);
        cursor.clone().checksum_at_end()?;
        frame(&mut cursor, b"EASB")?;
        cursor.skip(slot_width)?;
        let bitmap = cursor.take(bitmap as usize)?;
        for block in 0..unit.blocks {
            let Some(at) = cursor.address()? else { continue };
            let written = |page| {
                let bit = block * pages + page;
                bitmap[(bit / 8) as usize] << (bit % 8) & 0x80 != 0
            };
            blocks.push(DataBlock {
                at,
                slot: unit.slot + block * unit.elements,
                elements: unit.elements,
                pages: (0..pages).map(written).collect(),
            });
        }
    }
    Ok(())
}

/// Adds the elements of data blocks.
async fn data_blocks(
    file: &File<'_>,
    array: Array,
    blocks: &[DataBlock],
    found: &mut Found<'_>,
) -> Result<(), FormatError> {
    let slot_width = bytes_of_bits(array.bits.into());
    let prefix = (6 + file.widths().offset + slot_width + 4) as u64;
    let length = |block: &DataBlock| {
        let elements = block.elements.checked_mul(array.width as u64)?;
        elements.checked_add(prefix + 4 * block.pages.len() as u64)
    };
    let mut rest = blocks;
    while !rest.is_empty() {
        let mut ranges = Vec::new();
        let mut bytes = 0;
        for block in rest {
            let length = length(block).filter(|&length| length <= file.size());
            let length = length.ok_or_else(|| FormatError::cut_short(block.at, file.size()))?;
            ranges.push((block.at, length));
            bytes += length;
            if bytes > TOGETHER {
                break;
            }
        }
        let (now, later) = rest.split_at(ranges.len());
        for (block, bytes) in now.iter().zip(file.read_all(&ranges).await?) {
            let mut cursor = file.cursor("extensible array", block.at, &bytes);
            frame(&mut cursor, b"EADB")?;
            cursor.skip(slot_width)?;
            if block.pages.is_empty() {
                for element in 0..block.elements {
                    found.element(block.slot + element, array.width, &mut cursor)?;
                }
                cursor.checksum()?;
                continue;
            }
            cursor.checksum()?;
            for (page, &written) in block.pages.iter().enumerate() {
                let mut elements = cursor.part(array.page as usize * array.width + 4)?;
                if !written {
                    continue;
                }
                let slot = block.slot + page as u64 * array.page;
                for element in 0..array.page {
                    found.element(slot + element, array.width, &mut elements)?;
                }
                elements.checksum()?;
            }
        }
        rest = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library's parameters.
    fn array() -> Array {
        Array { width: 8, bits: 32, inline: 4, least: 16, pointers: 4, page: 1024 }
    }

    #[test]
    fn super_blocks_grow_as_in_the_library() {
        let sizes: Vec<_> = (0..7).map(|number| array().super_block(number).unwrap()).collect();
        assert_eq!(sizes, [(1, 16), (1, 32), (2, 32), (2, 64), (4, 64), (4, 128), (8, 128)]);
        assert_eq!(array().super_blocks(), 29);
        assert_eq!(array().direct(), 4);
        // The blocks of the direct super blocks are 2 * (4 - 1).
        assert_eq!(sizes[..4].iter().map(|&(blocks, _)| blocks).sum::<u64>(), 6);
        assert_eq!(array().super_block(200), None);
    }

    #[test]
    fn large_data_blocks_have_pages() {
        assert_eq!(array().pages(1024), 0);
        assert_eq!(array().pages(2048), 2);
        // The slots before the first super block whose data blocks have pages.
        let slots = |until: u32| -> u64 {
            (0..until).map(|number| array().super_block(number).unwrap()).map(|(b, e)| b * e).sum()
        };
        let first =
            (0..29).find(|&number| array().pages(array().super_block(number).unwrap().1) > 0).unwrap();
        assert_eq!((first, 4 + slots(first)), (13, 131_060));
    }
}
