//! Version 1 B-trees of chunks: the index of all files up to HDF5 1.8.
//!
//! Files with one dataset per sample have a tree per sample, with one chunk. [`only_chunks`] reads
//! the trees of many such datasets together, right after their headers. A tree often lies in the
//! block of its header, which is kept for a while.

use super::found::Found;
use super::grid::Grid;
use crate::FormatError;
use crate::hdf5::btree1;
use crate::hdf5::chunk_layout::{ChunkIndex, Stored};
use crate::hdf5::dataset::{Dataset, Layout};
use crate::hdf5::file::File;

/// Entries of a node, with the library's default.
const ENTRIES: u64 = 64;

/// Reads the tree level by level.
pub(super) async fn read(file: &File<'_>, root: u64, found: &mut Found<'_>) -> Result<(), FormatError> {
    let rank = found.layout.lengths.len();
    let length = |entries| node_length(file, rank, entries);
    let guess = length(ENTRIES.min(found.grid.len()));
    let node = |at, bytes: &[u8]| node(file, at, bytes, found);
    btree1::walk(file, root, "chunk tree", (guess, length), node).await.map(drop)
}

/// The bytes of a node.
fn node_length(file: &File<'_>, rank: usize, entries: u64) -> u64 {
    let (key, child) = (16 + 8 * rank as u64, file.widths().offset as u64);
    8 + 2 * child + entries * (key + child) + key
}

/// Adds the chunks of a leaf to `found`. Returns the node's level and the nodes below it.
fn node(
    file: &File<'_>,
    at: u64,
    bytes: &[u8],
    found: &mut Found<'_>,
) -> Result<(u8, Vec<u64>), FormatError> {
    let mut cursor = file.cursor("chunk tree", at, bytes);
    cursor.signature(b"TREE")?;
    if cursor.u8()? != 1 {
        return Err(cursor.damaged("it is not a tree of chunks"));
    }
    let level = cursor.u8()?;
    let entries = cursor.u16()?;
    cursor.skip(2 * file.widths().offset)?;
    let mut children = Vec::new();
    for _ in 0..entries {
        let (size, mask) = (cursor.u32()?, cursor.u32()?);
        let mut index = Vec::with_capacity(found.layout.lengths.len());
        for &length in &found.layout.lengths {
            let offset = cursor.uint(8)?;
            if offset % length != 0 {
                return Err(cursor.damaged("a chunk lies between two places"));
            }
            index.push(offset / length);
        }
        // The offset in an element is zero.
        cursor.skip(8)?;
        let at = cursor.place_of("a chunk or a node")?;
        if level > 0 {
            children.push(at);
        } else if let Some(number) = found.grid.number(&index) {
            found.stored.push(Stored { number, at, size: size.into(), mask });
        }
    }
    Ok((level, children))
}

/// Finds the chunks of those datasets that have one chunk and a tree. A damaged tree is left to
/// [`read`], which datasets that are not chosen do not need.
pub(crate) async fn only_chunks(file: &File<'_>, datasets: &mut [Dataset]) -> Result<(), FormatError> {
    let mut wanted = Vec::new();
    for (number, dataset) in datasets.iter().enumerate() {
        let Layout::Chunked(layout) = &dataset.layout else { continue };
        let ChunkIndex::BTree1(Some(root)) = layout.index else { continue };
        let grid = Grid::new(&dataset.shape, &layout.most, &layout.lengths);
        if grid.is_some_and(|grid| grid.len() == 1) && root < file.size() {
            let length = node_length(file, layout.lengths.len(), 1);
            wanted.push((number, (root, length.min(file.size() - root))));
        }
    }
    let ranges: Vec<(u64, u64)> = wanted.iter().map(|&(_, range)| range).collect();
    for (bytes, (number, (root, _))) in file.read_all(&ranges).await?.iter().zip(wanted) {
        let dataset = &mut datasets[number];
        let Layout::Chunked(layout) = &mut dataset.layout else { continue };
        let Some(grid) = Grid::new(&dataset.shape, &layout.most, &layout.lengths) else { continue };
        let filtered = !dataset.filters.is_empty();
        let mut found = Found { grid, filtered, layout, stored: Vec::new() };
        let is_leaf = matches!(node(file, root, bytes, &mut found), Ok((0, _)));
        let only = found.stored.pop().filter(|_| is_leaf && found.stored.is_empty());
        layout.only = only;
    }
    Ok(())
}
