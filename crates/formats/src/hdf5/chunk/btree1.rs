//! Version 1 B-trees of chunks: the index of all files up to HDF5 1.8.

use std::collections::HashSet;

use super::{Found, Stored};
use crate::FormatError;
use crate::hdf5::file::{BATCH, File};

/// Entries of a node, with the library's default.
const ENTRIES: u64 = 64;

/// Reads the tree level by level.
pub(super) async fn read(file: &File<'_>, root: u64, found: &mut Found<'_>) -> Result<(), FormatError> {
    let rank = found.layout.lengths.len();
    let key = 16 + 8 * rank as u64;
    let child = file.widths().offset as u64;
    let head = 8 + 2 * child;
    let length = |entries: u64| head + entries * (key + child) + key;
    let chunks = found.grid.len();
    let mut seen = HashSet::from([root]);
    let mut nodes = vec![root];
    let mut expected = None;
    loop {
        let mut children = Vec::new();
        let mut level = 0;
        for batch in nodes.chunks(BATCH) {
            let read = file.read_sized(batch, length(ENTRIES.min(chunks)), |at, bytes| {
                let mut cursor = file.cursor("chunk tree", at, bytes);
                cursor.signature(b"TREE")?;
                cursor.skip(2)?;
                Ok(length(cursor.u16()?.into()))
            });
            for (bytes, &at) in read.await?.iter().zip(batch) {
                let mut cursor = file.cursor("chunk tree", at, bytes);
                cursor.skip(4)?;
                if cursor.u8()? != 1 {
                    return Err(cursor.damaged("it is not a tree of chunks"));
                }
                level = cursor.u8()?;
                if expected.is_some_and(|expected| level != expected) {
                    return Err(cursor.damaged("a node has the wrong level"));
                }
                let entries = cursor.u16()?;
                cursor.skip(2 * file.widths().offset)?;
                for _ in 0..entries {
                    let (size, mask) = (cursor.u32()?, cursor.u32()?);
                    let mut index = Vec::with_capacity(rank);
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
                        if !seen.insert(at) {
                            return Err(cursor.damaged("two nodes have one child"));
                        }
                        children.push(at);
                    } else if let Some(number) = found.grid.number(&index) {
                        found.stored.push(Stored { number, at, size: size.into(), mask });
                    }
                }
            }
        }
        if level == 0 || children.is_empty() {
            return Ok(());
        }
        expected = Some(level - 1);
        nodes = children;
    }
}
