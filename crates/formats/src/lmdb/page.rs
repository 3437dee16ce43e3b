//! Pages of a tree and their nodes: children of a branch, keys and values of a leaf.
//!
//! Every offset is checked. The nodes of a page may not take more bytes than the page has for them.
//! So the memory for a page is bounded by its length, even if pointers repeat.

use super::meta::{DB, Db, Format};
use crate::{FormatError, le};

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
/// The flags that are a page's kind. The others are of a running writer.
const KIND: u16 = 0x6f;

/// Node flag: the value is in overflow pages.
const BIG_DATA: u16 = 1;
/// Node flag: the value is the record of a database.
const SUB_DATA: u16 = 2;

/// Bytes of a node before its key.
const NODE: usize = 8;

/// The kinds of tree pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Branch,
    Leaf,
}

/// The value of a key in a leaf.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Bytes in the leaf: their offset in the file, and their length.
    Inline(u64, u64),
    /// Bytes in overflow pages: the first page, and the length of the value.
    Overflow(u64, u64),
    /// Another database, whose record is at this offset.
    Database(u64, Db),
}

/// A page of a tree.
#[derive(Debug)]
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    format: Format,
    /// Its offset in the file.
    at: u64,
    /// The number of nodes.
    nodes: usize,
    /// Where nodes begin.
    upper: usize,
}

/// A node, which is somewhere in its page.
struct Node<'a> {
    /// Its offset in the page.
    at: usize,
    low: u16,
    high: u16,
    flags: u16,
    key: &'a [u8],
}

impl<'a> Page<'a> {
    /// The page with this number, which is at `at` and must be of this kind.
    pub(super) fn parse(
        bytes: &'a [u8],
        (number, at): (u64, u64),
        kind: Kind,
        format: Format,
    ) -> Result<Self, FormatError> {
        let header = format.header();
        let damaged = |why: String| FormatError::damaged(at, why);
        if le::u64(bytes, 0) != Some(number) {
            return Err(damaged(format!("page {number} does not have its number: it was not written")));
        }
        let word = |at| le::u16(bytes, at).unwrap_or(0);
        let flags = word(header - 6) & KIND;
        let expected = match kind {
            Kind::Branch => BRANCH,
            Kind::Leaf => LEAF,
        };
        if flags != expected {
            return Err(damaged(format!("page {number} has the flags {flags:#x}, expected {expected:#x}")));
        }
        let lower = usize::from(word(header - 4)) + format.base();
        let upper = usize::from(word(header - 2)) + format.base();
        if lower < header || lower > upper || upper > bytes.len() {
            return Err(damaged(format!("page {number} has invalid bounds of its free space")));
        }
        Ok(Self { bytes, format, at, nodes: (lower - header) / 2, upper })
    }

    /// The numbers of a branch's pages, in the order of keys.
    pub(super) fn children(&self) -> Result<Vec<u64>, FormatError> {
        if self.nodes == 0 {
            return Err(FormatError::damaged(self.at, "a branch page without children"));
        }
        let mut children = Vec::with_capacity(self.nodes);
        let mut free = self.bytes.len() - self.upper;
        for index in 0..self.nodes {
            let node = self.node(index)?;
            self.take(&mut free, NODE + node.key.len())?;
            children.push(u64::from(node.low) | u64::from(node.high) << 16 | u64::from(node.flags) << 32);
        }
        Ok(children)
    }

    /// Calls `found` with each key of a leaf and its value, in the order of keys.
    pub(super) fn entries(
        &self,
        mut found: impl FnMut(&'a [u8], Value) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        let mut free = self.bytes.len() - self.upper;
        for index in 0..self.nodes {
            let node = self.node(index)?;
            if node.key.is_empty() {
                return Err(self.damaged(&node, "an empty key"));
            }
            let (stored, value) = self.value(&node)?;
            self.take(&mut free, NODE + node.key.len() + stored)?;
            found(node.key, value)?;
        }
        Ok(())
    }

    /// The value of a leaf's node, and how many bytes of the page it takes.
    fn value(&self, node: &Node<'_>) -> Result<(usize, Value), FormatError> {
        let start = node.at + NODE + self.format.padded(node.key.len());
        let length = usize::from(node.low) | usize::from(node.high) << 16;
        let at = self.at + start as u64;
        let stored = match node.flags {
            0 | SUB_DATA => length,
            // LMDB 1.0 writes the transaction and the number of pages as well.
            BIG_DATA if self.format == Format::V1_0 => 24,
            BIG_DATA => 8,
            _ => return Err(self.damaged(node, "a key with several values, or unknown flags")),
        };
        let bytes = start.checked_add(stored).and_then(|end| self.bytes.get(start..end));
        let bytes = bytes.ok_or_else(|| self.damaged(node, "a value that ends after its page"))?;
        let value = match node.flags {
            BIG_DATA => Value::Overflow(le::u64(bytes, 0).unwrap_or(u64::MAX), length as u64),
            SUB_DATA => {
                let db = Db::parse(bytes).filter(|_| length == DB);
                Value::Database(at, db.ok_or_else(|| self.damaged(node, "an invalid record of a database"))?)
            }
            _ => Value::Inline(at, length as u64),
        };
        Ok((stored, value))
    }

    fn node(&self, index: usize) -> Result<Node<'a>, FormatError> {
        let pointer = self.format.header() + 2 * index;
        let invalid =
            || FormatError::damaged(self.at + pointer as u64, "a pointer to a node outside of its page");
        let at = usize::from(le::u16(self.bytes, pointer).ok_or_else(invalid)?) + self.format.base();
        let head: [u8; NODE] = le::bytes(self.bytes, at).filter(|_| at >= self.upper).ok_or_else(invalid)?;
        let word = |at| le::u16(&head, at).unwrap_or(0);
        let key = at + NODE..at + NODE + usize::from(word(6));
        let key = self.bytes.get(key).ok_or_else(invalid)?;
        Ok(Node { at, low: word(0), high: word(2), flags: word(4), key })
    }

    /// Takes `bytes` of the bytes that the page has for its nodes.
    fn take(&self, free: &mut usize, bytes: usize) -> Result<(), FormatError> {
        *free = free
            .checked_sub(bytes)
            .ok_or_else(|| FormatError::damaged(self.at, "the nodes of a page overlap"))?;
        Ok(())
    }

    fn damaged(&self, node: &Node<'_>, why: &str) -> FormatError {
        FormatError::damaged(self.at + node.at as u64, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Format; 2] = [Format::V0_9, Format::V1_0];

    /// Low, high, flags, key, data.
    type Stored<'a> = (u16, u16, u16, &'a [u8], &'a [u8]);

    /// A page 7 of 256 bytes with these nodes.
    fn page(format: Format, flags: u16, nodes: &[Stored<'_>]) -> Vec<u8> {
        let (header, base) = (format.header(), format.base());
        let mut page = vec![0; 256];
        page[0] = 7;
        let mut upper = 256;
        for (index, (low, high, flags, key, data)) in nodes.iter().enumerate() {
            let padded = format.padded(key.len());
            upper = (upper - NODE - padded - data.len()) & !1;
            for (place, word) in [low, high, flags, &(key.len() as u16)].into_iter().enumerate() {
                page[upper + 2 * place..][..2].copy_from_slice(&word.to_le_bytes());
            }
            page[upper + NODE..][..key.len()].copy_from_slice(key);
            page[upper + NODE + padded..][..data.len()].copy_from_slice(data);
            page[header + 2 * index..][..2].copy_from_slice(&((upper - base) as u16).to_le_bytes());
        }
        let lower = header + 2 * nodes.len() - base;
        for (place, word) in [flags, lower as u16, (upper - base) as u16].into_iter().enumerate() {
            page[header - 6 + 2 * place..][..2].copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    fn entries(format: Format, page: &[u8]) -> Result<Vec<(Vec<u8>, Value)>, FormatError> {
        let mut found = Vec::new();
        Page::parse(page, (7, 1792), Kind::Leaf, format)?.entries(|key, value| {
            found.push((key.to_vec(), value));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn leaf_has_values_of_three_kinds() {
        for format in FORMATS {
            let mut record = vec![0; DB];
            record[32] = 9;
            let big = [5; 24];
            let nodes: [Stored<'_>; 3] = [
                (3, 0, 0, b"odd", b"abc"),
                (0x100, 2, BIG_DATA, b"big", &big[..if format == Format::V0_9 { 8 } else { 24 }]),
                (48, 0, SUB_DATA, b"db", &record),
            ];
            let bytes = page(format, LEAF, &nodes);
            let found = entries(format, &bytes).unwrap();
            let Value::Inline(at, 3) = found[0].1 else { panic!("{found:?}") };
            assert_eq!(&bytes[at as usize - 1792..][..3], b"abc");
            assert_eq!(found[1], (b"big".to_vec(), Value::Overflow(0x0505_0505_0505_0505, 0x2_0100)));
            assert!(matches!(&found[2].1, Value::Database(_, db) if db.entries == 9));
        }
    }

    #[test]
    fn branch_has_page_numbers_of_48_bits() {
        for format in FORMATS {
            let bytes = page(format, BRANCH, &[(1, 0, 0, b"", b""), (2, 3, 4, b"key", b"")]);
            let page = Page::parse(&bytes, (7, 0), Kind::Branch, format).unwrap();
            assert_eq!(page.children().unwrap(), [1, 0x0004_0003_0002]);
        }
    }

    #[test]
    fn damaged_pages_are_refused() {
        for format in FORMATS {
            let nodes: [Stored<'_>; 2] = [(2, 0, 0, b"a", b"12"), (2, 0, 0, b"b", b"34")];
            let bytes = page(format, LEAF, &nodes);
            assert_eq!(entries(format, &bytes).unwrap().len(), 2);
            let header = format.header();
            let node = (256 - NODE - format.padded(1) - 2) & !1;
            for (at, byte, why) in [
                (0, 8, "its number"),
                (header - 6, 0x22, "flags"),
                (header - 6, 1, "flags"),
                (header - 4, 255, "bounds"),
                (header - 3, 0xff, "bounds"),
                (header - 1, 255, "bounds"),
                (header, 0, "outside of its page"),
                (header, 254, "outside of its page"),
                // The first node again: two nodes in the place of one.
                (node, 14, "overlap"),
                (node + 1, 1, "after its page"),
                (node + 4, 4, "several values"),
                (node + 6, 0, "an empty key"),
                (node + 7, 1, "outside of its page"),
            ] {
                let mut changed = bytes.clone();
                changed[at] = byte;
                // Space that the nodes do not need, so that one of them can grow.
                if why == "overlap" {
                    changed.copy_within(node..node + NODE + 1, node - 12);
                    changed[header..header + 2]
                        .copy_from_slice(&((node - 12 - format.base()) as u16).to_le_bytes());
                }
                let error = entries(format, &changed).unwrap_err();
                assert!(error.why().contains(why), "{at} {byte}: {error}");
            }
        }
    }

    #[test]
    fn page_without_a_header_is_refused() {
        let mut bytes = page(Format::V0_9, LEAF, &[]);
        bytes[12] = 15;
        assert!(entries(Format::V0_9, &bytes).unwrap_err().why().contains("bounds"));
    }

    #[test]
    fn branch_has_children() {
        for format in FORMATS {
            let bytes = page(format, BRANCH, &[]);
            let page = Page::parse(&bytes, (7, 0), Kind::Branch, format).unwrap();
            assert!(page.children().unwrap_err().why().contains("without children"));
        }
    }

    #[test]
    fn database_record_has_one_length() {
        for (format, length) in FORMATS.into_iter().zip([DB - 2, DB + 2]) {
            let record = vec![0; length];
            let bytes = page(format, LEAF, &[(length as u16, 0, SUB_DATA, b"name", &record)]);
            assert!(entries(format, &bytes).unwrap_err().why().contains("invalid record"));
        }
    }

    #[test]
    fn repeated_pointers_are_refused() {
        for format in FORMATS {
            let key = [b'k'; 100];
            let nodes: [Stored<'_>; 2] = [(0, 0, 0, &key, b""), (1, 0, 0, b"b", b"x")];
            let mut bytes = page(format, LEAF, &nodes);
            let header = format.header();
            bytes.copy_within(header..header + 2, header + 2);
            assert!(entries(format, &bytes).unwrap_err().why().contains("overlap"));
        }
    }
}
