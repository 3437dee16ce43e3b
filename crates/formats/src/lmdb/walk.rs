//! The walk over a tree, level by level.
//!
//! The pages of a level are read in the order of the file, whatever the order of their keys. So
//! each page is read once, and neighbouring ones take one request. They are read in groups, so
//! memory for pages is bounded. The findings are put into the order of keys afterwards.
//!
//! Where values lie in overflow pages, the leaves are far apart, and a request reads only pages of
//! the tree. That is a request for each leaf: for about 100 values with keys of 8 bytes, and for 37
//! with keys of 40 bytes. Where most values lie in leaves, requests also read the pages between
//! them.

use super::meta::{Db, Format, Snapshot};
use super::page::{Kind, Page, Value};
use super::{LmdbOptions, ValueUse};
use crate::{BlockReader, FileSource, FormatError};

/// The most levels of a tree. LMDB's own cursors have as many.
const DEPTH: u16 = 32;

/// The most bytes of one request.
const REQUEST: u64 = 1 << 20;

/// The most bytes of pages in memory at once, in addition to the pages that the reader keeps.
const GROUP: u64 = 32 << 20;

/// Blocks in bytes, for pages that are far apart and for pages that are close together.
const FAR: u64 = 4 << 10;
const NEAR: u64 = 64 << 10;

/// Keys under which data sets store something else than a sample, unless keys are chosen.
const NO_SAMPLES: [&[u8]; 7] =
    [b"__len__", b"__keys__", b"length", b"num-samples", b"nextid", b"metadata", b"deleted_ids"];

/// The rest of a key, with offset and length of its value.
pub(super) type NamedValue = (String, (u64, u64));

/// The values of a database, in the order of keys.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) keys: Vec<String>,
    /// Offset and length of each value.
    pub(super) rows: Vec<(u64, u64)>,
    /// Entries that are not chosen.
    pub(super) skipped: u64,
    /// Keys by convention that are no samples.
    pub(super) conventional: Vec<String>,
    /// Keys of labels without their prefix, with offset and length of each value.
    pub(super) labels: Vec<NamedValue>,
    /// The same of further fields, by the number of their prefix, in the order of keys.
    pub(super) fields: Vec<(usize, NamedValue)>,
    /// Other databases: the name, the offset of the record, and the record.
    pub(super) databases: Vec<(String, u64, Db)>,
}

/// The state that all trees of a file share.
pub(super) struct Tree<'a> {
    source: &'a dyn FileSource,
    options: &'a LmdbOptions,
    format: Format,
    page_size: u64,
    last_page: u64,
}

impl<'a> Tree<'a> {
    pub(super) fn new(source: &'a dyn FileSource, snapshot: &Snapshot, options: &'a LmdbOptions) -> Self {
        Self {
            source,
            options,
            format: snapshot.format(),
            page_size: snapshot.page_size(),
            last_page: snapshot.last_page(),
        }
    }

    /// Finds the values of the database `db`, whose record is at `at`.
    pub(super) async fn walk(&self, at: u64, db: &Db) -> Result<Found, FormatError> {
        let found = match db.root {
            Some(root) => self.levels(at, db, root).await?,
            None => Found::default(),
        };
        let entries = found.rows.len() + found.labels.len() + found.fields.len() + found.databases.len();
        let entries = entries as u64 + found.skipped;
        if entries != db.entries {
            let why = format!("the database has {entries} entries, but its record counts {}", db.entries);
            return Err(FormatError::damaged(at, why));
        }
        Ok(found)
    }

    async fn levels(&self, at: u64, db: &Db, root: u64) -> Result<Found, FormatError> {
        if db.depth == 0 || db.depth > DEPTH {
            let why = format!("a tree of {} levels, expected 1 to {DEPTH}", db.depth);
            return Err(FormatError::damaged(at, why));
        }
        let mut level = vec![root];
        let mut visited = 1;
        for _ in 1..db.depth {
            let children = self.level(&level, FAR, Kind::Branch, |page| page.children()).await?;
            level = children.into_iter().flatten().collect();
            visited += level.len() as u64;
            if visited > self.last_page.saturating_add(1) {
                return Err(FormatError::damaged(at, "the tree has more pages than the file"));
            }
        }
        let integers = db.has_integer_keys();
        let block = if db.leaf_pages > db.overflow_pages { NEAR } else { FAR };
        let leaves = self.level(&level, block, Kind::Leaf, |page| self.leaf(page, integers)).await?;
        let rows = leaves.iter().map(|leaf| leaf.rows.len()).sum();
        let mut found =
            Found { keys: Vec::with_capacity(rows), rows: Vec::with_capacity(rows), ..Found::default() };
        for leaf in leaves {
            found.keys.extend(leaf.keys);
            found.rows.extend(leaf.rows);
            found.skipped += leaf.skipped;
            found.conventional.extend(leaf.conventional);
            found.labels.extend(leaf.labels);
            found.fields.extend(leaf.fields);
            found.databases.extend(leaf.databases);
        }
        Ok(found)
    }

    /// Reads the pages of a level in blocks of `block` bytes, at least a page. Returns the findings
    /// of `parse` in each, in their order.
    async fn level<T: Send>(
        &self,
        pages: &[u64],
        block: u64,
        kind: Kind,
        parse: impl Fn(&Page<'_>) -> Result<T, FormatError> + Send,
    ) -> Result<Vec<T>, FormatError> {
        let mut order: Vec<(u64, usize)> = pages.iter().copied().zip(0..).collect();
        order.sort_unstable();
        // Trees of equal levels cannot share a page, unless it is twice in one level.
        if let Some(twice) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let at = twice[0].0.saturating_mul(self.page_size);
            return Err(FormatError::damaged(at, format!("page {} is twice in the tree", twice[0].0)));
        }
        let mut found = Vec::with_capacity(pages.len());
        let block = block.max(self.page_size);
        let reader = BlockReader::new(self.source, block);
        let per_block = block / self.page_size;
        let blocks: Vec<&[(u64, usize)]> =
            order.chunk_by(|one, next| one.0 / per_block == next.0 / per_block).collect();
        for group in blocks.chunks((GROUP / block) as usize) {
            let group = group.concat();
            let ranges = group.iter().map(|&(page, _)| Ok((self.offset(page)?, self.page_size)));
            let ranges = ranges.collect::<Result<Vec<_>, FormatError>>()?;
            let read = reader.read_all(&ranges, REQUEST).await?;
            for ((&(number, index), &(at, _)), bytes) in group.iter().zip(&ranges).zip(&read) {
                let page = Page::parse(bytes, (number, at), kind, self.format)?;
                found.push((index, parse(&page)?));
            }
        }
        found.sort_unstable_by_key(|&(index, _)| index);
        Ok(found.into_iter().map(|(_, found)| found).collect())
    }

    /// The offset of a page of the tree.
    fn offset(&self, page: u64) -> Result<u64, FormatError> {
        let at = page.saturating_mul(self.page_size);
        if page < 2 || page > self.last_page {
            let why = format!("a reference to page {page}, expected 2 to {}", self.last_page);
            return Err(FormatError::damaged(at, why));
        }
        let end = at.checked_add(self.page_size).filter(|&end| end <= self.source.size());
        end.map(|_| at).ok_or_else(|| FormatError::cut_short(at, self.source.size()))
    }

    fn leaf(&self, page: &Page<'_>, integers: bool) -> Result<Found, FormatError> {
        let mut found = Found::default();
        page.entries(|key, value| {
            let row = match value {
                Value::Database(at, db) => {
                    // LMDB 1.0 stores names with a NUL at the end.
                    let name = key.strip_suffix(b"\0").unwrap_or(key);
                    found.databases.push((text(name), at, db));
                    return Ok(());
                }
                Value::Inline(at, length) => (at, length),
                Value::Overflow(page, length) => (self.overflow(page, length)?, length),
            };
            let name = if integers { hex(key) } else { text(key) };
            // Of `image-` and `image-mask-`, the longer one.
            let prefix = self.options.prefixes().filter(|(prefix, _)| name.starts_with(prefix));
            let rest = |prefix: &str| name[prefix.len()..].to_owned();
            match prefix.max_by_key(|(prefix, _)| prefix.len()) {
                Some((prefix, ValueUse::Label)) => {
                    found.labels.push((rest(prefix), row));
                    return Ok(());
                }
                Some((prefix, ValueUse::Field(number))) => {
                    found.fields.push((number, (rest(prefix), row)));
                    return Ok(());
                }
                _ => {}
            }
            let is_sample = match &self.options.prefix {
                Some(prefix) => name.starts_with(&**prefix),
                None if integers || !NO_SAMPLES.contains(&key) => true,
                None => {
                    found.conventional.push(name.clone());
                    false
                }
            };
            if !is_sample {
                found.skipped += 1;
                return Ok(());
            }
            found.keys.push(name);
            found.rows.push(row);
            Ok(())
        })?;
        Ok(found)
    }

    /// The offset of a value in overflow pages.
    fn overflow(&self, page: u64, length: u64) -> Result<u64, FormatError> {
        let at = self.offset(page)?;
        let header = self.format.header() as u64;
        let last = page + (header + length).div_ceil(self.page_size) - 1;
        if last > self.last_page {
            let why = format!("a value ends on page {last}, expected at most {}", self.last_page);
            return Err(FormatError::damaged(at, why));
        }
        let start = at + header;
        let end = start.checked_add(length).filter(|&end| end <= self.source.size());
        end.map(|_| start).ok_or_else(|| FormatError::cut_short(start, self.source.size()))
    }
}

/// A key as text. Hex digits if it is not printable.
fn text(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => hex(key),
    }
}

fn hex(key: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    let mut hex = String::with_capacity(2 + 2 * key.len());
    hex.push_str("0x");
    for byte in key {
        hex.extend([digit(byte >> 4), digit(byte & 15)]);
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_text_or_hex_digits() {
        assert_eq!(text("caf\u{e9} 7".as_bytes()), "caf\u{e9} 7");
        assert_eq!(text(b"0001\0"), "0x3030303100");
        assert_eq!(text(&[0xff, 0x0a]), "0xff0a");
        assert_eq!(hex(b"A"), "0x41");
    }
}
