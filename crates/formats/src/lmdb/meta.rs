//! Meta pages: the format of the file, and the roots of its last snapshot.
//!
//! The first two pages are meta pages. A transaction writes the page that is not current. The one
//! with the larger transaction number is current.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::{FileSource, FormatError, le};

/// LMDB's `MDB_MAGIC`.
const MAGIC: u32 = 0xBEEF_C0DE;

/// Bytes of the first read. Both meta pages are in them if pages are at most half as large.
const HEAD: u64 = 16 << 10;

/// Bytes of a meta record after the page header.
const META: usize = 136;

/// Bytes of the record of a database.
pub(super) const DB: usize = 48;

/// The flag of meta pages in the page header.
const META_PAGE: u16 = 8;

/// The flag of an encrypted file, in the flags of the database of free pages.
const ENCRYPTED: u16 = 0x2000;

/// `DUPSORT`, `DUPFIXED`, `INTEGERDUP` and `REVERSEDUP`.
const DUPLICATES: u16 = 0x04 | 0x10 | 0x20 | 0x40;

/// `INTEGERKEY`.
const INTEGER_KEY: u16 = 0x08;

/// The formats that are read: 64 bit, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Data version 1, of LMDB 0.9.
    V0_9,
    /// Data version 3, of LMDB 1.0.
    V1_0,
}

impl Format {
    /// The length of a page header in bytes.
    pub(super) fn header(self) -> usize {
        match self {
            Self::V0_9 => 16,
            Self::V1_0 => 24,
        }
    }

    /// The place in a page that offsets in the page are relative to.
    pub(super) fn base(self) -> usize {
        match self {
            Self::V0_9 => 0,
            Self::V1_0 => self.header(),
        }
    }

    /// The bytes that a key of `length` bytes takes in a leaf.
    pub(super) fn padded(self, length: usize) -> usize {
        match self {
            Self::V0_9 => length,
            Self::V1_0 => length.next_multiple_of(2),
        }
    }

    /// The version of LMDB, for people.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::V0_9 => "0.9",
            Self::V1_0 => "1.0",
        }
    }

    fn data_version(self) -> u32 {
        match self {
            Self::V0_9 => 1,
            Self::V1_0 => 3,
        }
    }

    fn largest_page(self) -> u32 {
        match self {
            Self::V0_9 => 32 << 10,
            Self::V1_0 => 64 << 10,
        }
    }
}

/// Where the magic number is, which is the length of the page header, and whether the byte order is
/// the other one.
pub(super) fn magic(head: &[u8]) -> Option<(usize, bool)> {
    [16, 24, 12].into_iter().find_map(|at| match le::u32(head, at)? {
        MAGIC => Some((at, false)),
        other if other == MAGIC.swap_bytes() => Some((at, true)),
        _ => None,
    })
}

fn format(head: &[u8]) -> Result<Format, FormatError> {
    let Some((at, swapped)) = magic(head) else {
        return Err(FormatError::damaged(0, "this is no LMDB database: its magic number is missing"));
    };
    let refused = |why: String| Err(FormatError::unsupported(at as u64, why));
    let copy = "copy it by `mdb_dump` on such a machine and `mdb_load` on one of 64 bit, little endian";
    if swapped {
        return refused(format!("the database was written in big-endian byte order: {copy}"));
    }
    match (at, le::u32(head, at + 4).ok_or_else(|| too_short(0))?) {
        (16, 1) => Ok(Format::V0_9),
        (24, 3) => Ok(Format::V1_0),
        // Headers of 32 bit are shorter: 12 bytes in LMDB 0.9, 16 in 1.0.
        (12, _) | (16, 3) => refused(format!("the database was written by a 32-bit program: {copy}")),
        (_, version) => refused(format!(
            "data version {version} is unknown: copy it by its writer's `mdb_dump` and `mdb_load` of LMDB 1.0"
        )),
    }
}

/// The record of a database, which is a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Db {
    flags: u16,
    /// The levels of the tree.
    pub(super) depth: u16,
    /// Pages of its leaves.
    pub(super) leaf_pages: u64,
    /// Pages of values that do not fit into leaves.
    pub(super) overflow_pages: u64,
    /// Its keys.
    pub(super) entries: u64,
    /// The page at the top, or none if it is empty.
    pub(super) root: Option<u64>,
}

impl Db {
    /// Reads the record at the beginning of `record`.
    pub(super) fn parse(record: &[u8]) -> Option<Self> {
        Some(Self {
            flags: le::u16(record, 4)?,
            depth: le::u16(record, 6)?,
            leaf_pages: le::u64(record, 16)?,
            overflow_pages: le::u64(record, 24)?,
            entries: le::u64(record, 32)?,
            root: Some(le::u64(record, 40)?).filter(|&root| root != u64::MAX),
        })
    }

    /// Whether a key may have several values.
    pub(super) fn has_duplicates(&self) -> bool {
        self.flags & DUPLICATES != 0
    }

    /// Whether the keys are integers in the writer's byte order.
    pub(super) fn has_integer_keys(&self) -> bool {
        self.flags & INTEGER_KEY != 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Meta {
    page_size: u32,
    encrypted: bool,
    main: Db,
    last_page: u64,
    transaction: u64,
}

impl Meta {
    /// Reads meta page `number` of a file in this format. `page` begins with the page.
    fn parse(page: &[u8], number: u64, at: u64, format: Format) -> Result<Self, FormatError> {
        let header = format.header();
        let flags = le::u16(page, header - 6);
        let record = page.get(header..header + META).ok_or_else(|| too_short(at))?;
        let valid = le::u64(page, 0) == Some(number)
            && flags.is_some_and(|flags| flags & META_PAGE != 0)
            && le::u32(record, 0) == Some(MAGIC)
            && le::u32(record, 4) == Some(format.data_version());
        if !valid {
            return Err(FormatError::damaged(at, format!("meta page {number} is invalid")));
        }
        let fields = || {
            let free = record.get(24..24 + DB)?;
            Some(Self {
                page_size: le::u32(free, 0)?,
                encrypted: format == Format::V1_0 && le::u16(free, 4)? & ENCRYPTED != 0,
                main: Db::parse(record.get(24 + DB..)?)?,
                last_page: le::u64(record, 24 + 2 * DB)?,
                transaction: le::u64(record, 32 + 2 * DB)?,
            })
        };
        fields().ok_or_else(|| too_short(at))
    }
}

fn too_short(at: u64) -> FormatError {
    FormatError::damaged(at, "the file ends in its meta pages: it was cut short")
}

/// Both meta pages. A file whose meta pages are equal has not been written in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    format: Format,
    metas: [Meta; 2],
}

impl Snapshot {
    /// Reads the meta pages from `source`.
    pub(super) async fn read(source: &dyn FileSource) -> Result<Self, FormatError> {
        let size = source.size();
        if size == 0 {
            return Err(too_short(0));
        }
        let head = source.read(0..size.min(HEAD)).await?;
        let format = format(&head)?;
        let first = Meta::parse(&head, 0, 0, format)?;
        let page_size = first.page_size;
        let smallest = (format.header() + META).max(256) as u32;
        if !page_size.is_power_of_two() || !(smallest..=format.largest_page()).contains(&page_size) {
            let why = format!("the page size is {page_size}, expected a power of two from 256 to 64 KiB");
            return Err(FormatError::damaged(format.header() as u64 + 24, why));
        }
        if first.encrypted {
            let why = "the database is encrypted: copy it into one without encryption";
            return Err(FormatError::unsupported(format.header() as u64 + 28, why));
        }
        let page = second_page(source, &head, page_size, format).await?;
        let second = Meta::parse(&page, 1, u64::from(page_size), format)?;
        if second.page_size != page_size {
            return Err(FormatError::damaged(
                u64::from(page_size),
                "the meta pages differ in their page size",
            ));
        }
        Ok(Self { format, metas: [first, second] })
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The length of a page in bytes.
    pub(super) fn page_size(&self) -> u64 {
        u64::from(self.current().1.page_size)
    }

    /// The main database, and the offset of its record.
    pub(super) fn main(&self) -> (u64, &Db) {
        let (number, meta) = self.current();
        (number * self.page_size() + (self.format.header() + 24 + DB) as u64, &meta.main)
    }

    /// The last page in use.
    pub(super) fn last_page(&self) -> u64 {
        self.current().1.last_page
    }

    fn current(&self) -> (u64, &Meta) {
        let [first, second] = &self.metas;
        match first.transaction.cmp(&second.transaction) {
            Ordering::Less => (1, second),
            Ordering::Equal | Ordering::Greater => (0, first),
        }
    }
}

/// The beginning of page 1.
async fn second_page(
    source: &dyn FileSource,
    head: &Bytes,
    page_size: u32,
    format: Format,
) -> Result<Bytes, FormatError> {
    let start = u64::from(page_size);
    let end = start + (format.header() + META) as u64;
    if end > source.size() {
        return Err(too_short(start));
    }
    if end <= head.len() as u64 {
        return Ok(head.slice(start as usize..));
    }
    Ok(source.read(start..end).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a file with this magic number and version at `at`.
    fn head(at: usize, magic: u32, version: u32) -> Vec<u8> {
        let mut head = vec![0; 32];
        head[at..at + 4].copy_from_slice(&magic.to_le_bytes());
        head[at + 4..at + 8].copy_from_slice(&version.to_le_bytes());
        head
    }

    #[test]
    fn formats_are_known_by_the_place_of_the_magic_number() {
        assert_eq!(format(&head(16, MAGIC, 1)).unwrap(), Format::V0_9);
        assert_eq!(format(&head(24, MAGIC, 3)).unwrap(), Format::V1_0);
        assert_eq!(magic(&head(20, MAGIC, 1)), None);
        assert_eq!(magic(&[]), None);
    }

    #[test]
    fn other_machines_databases_are_refused_with_the_remedy() {
        for (at, magic, version, why) in [
            (12, MAGIC, 1, "32-bit"),
            (16, MAGIC, 3, "32-bit"),
            (16, MAGIC.swap_bytes(), 1 << 24, "big-endian"),
            (24, MAGIC.swap_bytes(), 3 << 24, "big-endian"),
            (16, MAGIC, 999, "data version 999"),
            (24, MAGIC, 1, "data version 1"),
        ] {
            let error = format(&head(at, magic, version)).unwrap_err();
            assert_eq!(error.kind(), crate::FormatErrorKind::Unsupported);
            assert!(error.why().contains(why) && error.why().contains("mdb_load"), "{error}");
        }
    }

    #[test]
    fn database_record_without_a_root_is_empty() {
        let mut record = vec![0; DB];
        record[4] = 0x0c;
        record[40..].fill(0xff);
        let db = Db::parse(&record).unwrap();
        assert_eq!(db.root, None);
        assert!(db.has_duplicates() && db.has_integer_keys());
        assert_eq!(Db::parse(&record[1..]), None);
    }
}
