//! The chunks of a dataset, from any of HDF5's six indexes.
//!
//! Every index becomes one list, sorted by the chunks' order in the dataset. A chunk is a number in
//! that order and 20 bytes more, so a list of a million chunks stays small. The price is a
//! conversion from the coordinates that B-trees have.

mod btree1;
mod extensible_array;
mod fixed_array;
mod found;
mod grid;

use super::btree2;
use super::chunk_layout::{ChunkIndex, ChunkLayout, Stored};
use super::dataset::Dataset;
use super::file::File;
use crate::FormatError;
pub(super) use btree1::only_chunks;
use found::Found;
use grid::Grid;

/// The chunks of a dataset.
pub(super) struct Chunks {
    pub(super) grid: Grid,
    /// Sorted by number. Chunks that were never written are missing.
    pub(super) stored: Vec<Stored>,
}

impl Chunks {
    /// Reads the index of a dataset.
    pub(super) async fn read(
        file: &File<'_>,
        dataset: &Dataset,
        layout: &ChunkLayout,
    ) -> Result<Self, FormatError> {
        let grid = Grid::new(&dataset.shape, &layout.most, &layout.lengths);
        let grid = grid.ok_or_else(|| dataset.damaged("it has more chunks than any file"))?;
        let mut found = Found { grid, filtered: !dataset.filters.is_empty(), layout, stored: Vec::new() };
        match layout.index {
            _ if layout.only.is_some() => found.stored.extend(layout.only),
            ChunkIndex::BTree1(Some(at)) => btree1::read(file, at, &mut found).await?,
            ChunkIndex::Single { at: Some(at), size, mask } => found.slot(0, at, size, mask),
            ChunkIndex::Implicit(Some(at)) => implicit(file, dataset, at, &mut found)?,
            ChunkIndex::FixedArray(Some(at)) => fixed_array::read(file, at, &mut found).await?,
            ChunkIndex::ExtensibleArray(Some(at)) => extensible_array::read(file, at, &mut found).await?,
            ChunkIndex::BTree2(Some(at)) => version_2_tree(file, at, &mut found).await?,
            _ => {}
        }
        let Found { grid, mut stored, .. } = found;
        stored.sort_unstable_by_key(|chunk| chunk.number);
        if stored.windows(2).any(|pair| pair[0].number == pair[1].number) {
            return Err(dataset.damaged("two chunks have one place in the dataset"));
        }
        for chunk in &stored {
            if chunk.at.checked_add(chunk.size).is_none_or(|end| end > file.size()) {
                return Err(FormatError::cut_short(chunk.at, file.size()));
            }
        }
        Ok(Self { grid, stored })
    }

    /// Whether the bytes of a chunk are its elements, without a filter.
    pub(super) fn is_plain(&self, dataset: &Dataset, layout: &ChunkLayout, chunk: &Stored) -> bool {
        let all = 1u32.checked_shl(dataset.filters.len() as u32).map_or(u32::MAX, |bit| bit - 1);
        let skipped = chunk.mask & all == all;
        chunk.size == layout.bytes
            && (skipped || layout.edges_unfiltered && self.is_edge(dataset, layout, chunk))
    }

    /// Whether a chunk reaches out of the dataset.
    fn is_edge(&self, dataset: &Dataset, layout: &ChunkLayout, chunk: &Stored) -> bool {
        let index = self.grid.index(chunk.number);
        let ends =
            index.iter().zip(&layout.lengths).map(|(&index, &length)| (index + 1).saturating_mul(length));
        ends.zip(&dataset.shape).any(|(end, &length)| end > length)
    }
}

/// Chunks one after another: one for each chunk of the largest shape.
fn implicit(file: &File<'_>, dataset: &Dataset, at: u64, found: &mut Found<'_>) -> Result<(), FormatError> {
    let bytes = found.layout.bytes;
    // All of them were allocated, so their number is bounded by the file.
    let fits = |slots: &u64| slots.checked_mul(bytes)?.checked_add(at).filter(|&end| end <= file.size());
    let slots = found.grid.slots().filter(|slots| fits(slots).is_some());
    let slots = slots.ok_or_else(|| dataset.damaged("its chunks end after the end of the file"))?;
    for slot in 0..slots {
        found.slot(slot, at + slot * bytes, bytes, 0);
    }
    Ok(())
}

async fn version_2_tree(file: &File<'_>, at: u64, found: &mut Found<'_>) -> Result<(), FormatError> {
    btree2::walk(file, at, &[10, 11], |kind, record| {
        let mut cursor = file.cursor("chunk record", at, record);
        let rank = found.layout.lengths.len();
        let width = record.len().saturating_sub(8 * rank);
        if found.filtered != (kind == 11) {
            return Err(cursor.damaged("it has the type of other filters"));
        }
        found.check(width, &cursor)?;
        let chunk = cursor.address()?;
        let (size, mask) = found.size_and_mask(width, &mut cursor)?;
        let mut index = Vec::with_capacity(rank);
        for _ in 0..rank {
            index.push(cursor.uint(8)?);
        }
        if let (Some(at), Some(number)) = (chunk, found.grid.number(&index)) {
            found.stored.push(Stored { number, at, size, mask });
        }
        Ok(())
    })
    .await
}
