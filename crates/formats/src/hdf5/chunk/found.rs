//! The chunks that an index has, as they are found.

use super::grid::Grid;
use crate::FormatError;
use crate::hdf5::chunk_layout::{ChunkLayout, Stored};
use crate::hdf5::cursor::Cursor;

/// The chunks that an index has, as they are found.
pub(super) struct Found<'a> {
    pub(super) grid: Grid,
    pub(super) filtered: bool,
    pub(super) layout: &'a ChunkLayout,
    pub(super) stored: Vec<Stored>,
}

impl Found<'_> {
    /// Adds the chunk of an array's slot, unless it is outside of the dataset.
    pub(super) fn slot(&mut self, slot: u64, at: u64, size: u64, mask: u32) {
        if let Some(number) = self.grid.number_of_slot(slot) {
            self.stored.push(Stored { number, at, size, mask });
        }
    }

    /// Adds the chunk of an array's element, which has `width` bytes.
    pub(super) fn element(
        &mut self,
        slot: u64,
        width: usize,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), FormatError> {
        let at = cursor.address()?;
        let (size, mask) = self.size_and_mask(width, cursor)?;
        if let Some(at) = at {
            self.slot(slot, at, size, mask);
        }
        Ok(())
    }

    /// The rest of an element after its address.
    pub(super) fn size_and_mask(
        &self,
        width: usize,
        cursor: &mut Cursor<'_>,
    ) -> Result<(u64, u32), FormatError> {
        if !self.filtered {
            return Ok((self.layout.bytes, 0));
        }
        let size = width.checked_sub(cursor.widths.offset + 4).filter(|size| (1..=8).contains(size));
        let size = size.ok_or_else(|| cursor.damaged("an element of a chunk index has an invalid size"))?;
        Ok((cursor.uint(size)?, cursor.u32()?))
    }

    /// Checks the width of an array's elements.
    pub(super) fn check(&self, width: usize, cursor: &Cursor<'_>) -> Result<(), FormatError> {
        let filtered = cursor.widths.offset + 5..=cursor.widths.offset + 12;
        let valid = if self.filtered { filtered.contains(&width) } else { width == cursor.widths.offset };
        if valid { Ok(()) } else { Err(cursor.damaged("an element has an invalid size")) }
    }
}
