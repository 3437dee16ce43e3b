//! Version 2 B-trees: records of links and of chunks.

use super::cursor::width_of_limit;
use super::file::{BATCH, File};
use crate::FormatError;

/// The signature, the version, the type and the checksum of a node.
const FRAME: u64 = 10;

/// The most levels of a tree.
const MOST_DEPTH: u16 = 64;

/// The widths of a tree's pointers at each depth.
#[derive(Debug, PartialEq, Eq)]
struct Pointers {
    /// The width of a child's number of records.
    count: usize,
    /// The width of the number of records below a child, by the child's depth. 0 at leaves.
    total: Vec<usize>,
}

/// `None` if a node cannot hold a record.
fn pointers(node: u64, record: u64, offset: u64, depth: u16) -> Option<Pointers> {
    let leaf = node.checked_sub(FRAME)?.checked_div(record)?;
    let count = width_of_limit(leaf);
    let mut total = vec![0];
    let mut below = leaf;
    for _ in 1..depth {
        let pointer = offset + count as u64 + *total.last()? as u64;
        let most = node.checked_sub(FRAME + pointer)? / (record + pointer);
        // The library computes in 64 bits as well. A real tree never has this many records.
        below = most.checked_add(1)?.checked_mul(below)?.checked_add(most)?;
        total.push(width_of_limit(below));
    }
    Some(Pointers { count, total })
}

/// Calls `each` with the tree's type and every record. The type must be one of `types`.
pub(super) async fn walk(
    file: &File<'_>,
    at: u64,
    types: &[u8],
    mut each: impl FnMut(u8, &[u8]) -> Result<(), FormatError>,
) -> Result<(), FormatError> {
    let head = file.read_part(at, 64).await?;
    let mut cursor = file.cursor("version 2 B-tree", at, &head);
    cursor.signature(b"BTHD")?;
    cursor.version(0)?;
    let kind = cursor.u8()?;
    if !types.contains(&kind) {
        return Err(cursor.damaged("it has records of another type"));
    }
    let node = u64::from(cursor.u32()?);
    let record = cursor.u16()?;
    let depth = cursor.u16()?;
    cursor.skip(2)?;
    let root = cursor.address()?;
    let count = u64::from(cursor.u16()?);
    cursor.length()?;
    cursor.checksum()?;
    let Some(root) = root else { return Ok(()) };
    if depth > MOST_DEPTH {
        return Err(cursor.damaged("it has more than 64 levels"));
    }
    let widths = pointers(node, record.into(), file.widths().offset as u64, depth);
    let widths = widths.ok_or_else(|| cursor.damaged("its nodes are too small for a record"))?;
    let mut level = vec![(root, count)];
    for depth in (0..=depth).rev() {
        let mut next = Vec::new();
        for batch in level.chunks(BATCH) {
            let ranges: Vec<_> = batch.iter().map(|&(at, _)| (at, node)).collect();
            for (bytes, &(at, count)) in file.read_all(&ranges).await?.iter().zip(batch) {
                let mut cursor = file.cursor("version 2 B-tree", at, bytes);
                cursor.signature(if depth == 0 { b"BTLF" } else { b"BTIN" })?;
                cursor.version(0)?;
                if cursor.u8()? != kind {
                    return Err(cursor.damaged("a node has records of another type"));
                }
                for _ in 0..count {
                    each(kind, cursor.take(record.into())?)?;
                }
                if let Some(below) = usize::from(depth).checked_sub(1) {
                    for _ in 0..=count {
                        let child = cursor.place_of("a node")?;
                        let records = cursor.uint(widths.count)?;
                        cursor.skip(widths.total[below])?;
                        next.push((child, records));
                    }
                }
                cursor.checksum()?;
            }
        }
        level = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_widths_follow_from_the_node_size() {
        // Links: 512-byte nodes, 11-byte records: 45 in a leaf.
        let links = pointers(512, 11, 8, 3).unwrap();
        // Depth 1: (512 - 19) / 20 = 24 records, so 25 * 45 + 24 = 1149 records, 2 bytes.
        assert_eq!(links, Pointers { count: 1, total: vec![0, 2, 2] });
        assert_eq!(pointers(8, 11, 8, 0), None);
        assert_eq!(pointers(512, 0, 8, 0), None);
        assert_eq!(pointers(15, 4, 8, 2), None);
    }
}
