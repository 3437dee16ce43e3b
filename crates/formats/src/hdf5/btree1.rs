//! Version 1 B-trees, of groups and of chunks.

use std::collections::HashSet;

use super::file::{BATCH, File};
use crate::FormatError;

/// Reads a tree level by level: `guess` bytes of each node at first, and its `length` by the number
/// of its entries. `node` parses a node to its level and the places below it. Returns the places
/// below the last level.
pub(super) async fn walk(
    file: &File<'_>,
    root: u64,
    what: &'static str,
    (guess, length): (u64, impl Fn(u64) -> u64),
    mut node: impl FnMut(u64, &[u8]) -> Result<(u8, Vec<u64>), FormatError>,
) -> Result<Vec<u64>, FormatError> {
    let mut seen = HashSet::from([root]);
    let mut nodes = vec![root];
    let mut expected = None;
    loop {
        let mut children = Vec::new();
        let mut level = 0;
        for batch in nodes.chunks(BATCH) {
            let read = file.read_sized(batch, guess, |at, bytes| {
                let mut cursor = file.cursor(what, at, bytes);
                cursor.signature(b"TREE")?;
                cursor.skip(2)?;
                Ok(length(cursor.u16()?.into()))
            });
            for (bytes, &at) in read.await?.iter().zip(batch) {
                let (found_level, below) = node(at, bytes)?;
                level = found_level;
                let damaged = |why| file.cursor(what, at, bytes).damaged(why);
                if expected.is_some_and(|expected| level != expected) {
                    return Err(damaged("a node has the wrong level"));
                }
                if !below.iter().all(|&child| seen.insert(child)) {
                    return Err(damaged("two nodes have one child"));
                }
                children.extend(below);
            }
        }
        if level == 0 || children.is_empty() {
            return Ok(children);
        }
        expected = Some(level - 1);
        nodes = children;
    }
}
