//! The bytes of a catalog file, and reading samples out of them.
//!
//! A catalog is an Arrow IPC file, so that pandas, polars and DuckDB open it. It is *read* without Arrow's arrays: only
//! the [`layout`](crate::layout)s that [`encode`](crate::encode) writes are accepted (fixed columns, no compression, all batches of one
//! length but the last), and a value is fetched from its place in the file with a bounds check. So nothing is copied or
//! decoded on opening, names are not touched before somebody asks for one, and a hostile file finds no decoder to
//! mislead. The price is that a catalog rewritten by another tool is refused; its checksum would be wrong anyway.
//!
//! The checksum is the value of `foreread.checksum` in the footer's metadata, `xxh3:` and 32 hexadecimal digits: the
//! XXH3-128 of the whole file with those digits as zeros. It guards against damage, not against an adversary, so every
//! number that leads to a place in the file is checked beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::sync::Arc;

use arrow_ipc::{Footer, MetadataVersion, root_as_footer};
use foreread_types::Sizes;
use memmap2::Mmap;
use xxhash_rust::xxh3::Xxh3;

use crate::DatasetErrorKind;
use crate::layout::{Batch, Columns, Numbers, batch, dictionary};

/// What begins and ends an Arrow IPC file.
pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";
/// The versions of the layout; values of [`VERSION_KEY`]. A catalog of files is still written as the first, so that older
/// versions of foreread read it.
pub(crate) const VERSION: &str = "1";
pub(crate) const VERSION_PACKED: &str = "2";
pub(crate) const VERSION_KEY: &str = "foreread.catalog";
pub(crate) const BASE_URL_KEY: &str = "foreread.base_url";
pub(crate) const FORMAT_KEY: &str = "foreread.format";
pub(crate) const FINGERPRINT_KEY: &str = "foreread.fingerprint";
/// What the user calls the place of the data, where somebody did.
pub(crate) const NAME_KEY: &str = "foreread.name";
/// What tells the listing from others; see [`listing`](crate::listing).
pub(crate) const LISTING_KEY: &str = "foreread.listing";
pub(crate) const CHECKSUM_KEY: &str = "foreread.checksum";
pub(crate) const CHECKSUM_PREFIX: &str = "xxh3:";
/// What stands in the checksum's place while it is computed.
pub(crate) const CHECKSUM_BLANK: [u8; 32] = [b'0'; 32];

/// How much of a file is in memory while its checksum is computed.
const CHUNK: usize = 256 << 10;

/// Why a file is not a catalog that can be used, without its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: DatasetErrorKind,
    pub(crate) why: String,
}

pub(crate) fn corrupt(why: impl Into<String>) -> Fault {
    Fault { kind: DatasetErrorKind::Corrupt, why: why.into() }
}

fn foreign(why: impl Into<String>) -> Fault {
    Fault { kind: DatasetErrorKind::NotACatalog, why: why.into() }
}

/// Where the bytes are: mapped from a file, or in memory after indexing.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl fmt::Debug for Bytes {
    /// How many: they are a whole file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bytes").field("length", &self.len()).finish()
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A catalog file's bytes, and where in them everything is.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Bytes,
    /// `foreread.*`, as they stand in the schema.
    metadata: BTreeMap<String, String>,
    labels: Vec<Arc<str>>,
    /// The objects that shards are; none where each row names its own.
    objects: Vec<Arc<str>>,
    etags: Vec<Arc<str>>,
    batches: Vec<Batch>,
    rows_per_batch: u64,
    rows: u64,
    sizes: Sizes,
}

/// What one row says.
pub(crate) struct Row<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) modified: Option<i64>,
    pub(crate) etag: Option<Arc<str>>,
    pub(crate) crc32c: Option<u32>,
}

/// What a row calls its sample.
pub(crate) enum Place<'a> {
    /// The path of the object that it is.
    File(&'a str),
    /// The object that it is a part of, that one's length, and its name in it.
    Part { object: &'a Arc<str>, size: u64, key: Option<&'a str> },
}

/// One field of a sample: its name as bytes, and where in the sample it lies.
pub(crate) struct FieldRow<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Image {
    /// Maps a catalog file and checks every byte of it.
    pub(crate) fn map(file: &File) -> Result<Self, MapError> {
        let map = mapping(file).map_err(MapError::Io)?;
        let digits = checksum_digits(&map)?;
        // Not through the mapping: the pages would count as this process's memory from then on.
        let checksum = checksum_of_file(file, map.len(), &digits).map_err(MapError::Io)?;
        if map.get(digits) != Some(checksum.as_bytes()) {
            return Err(corrupt("its checksum does not match: the file was damaged or edited").into());
        }
        let length = map.len();
        let mut image = Self::parse(Bytes::Mapped(map))?;
        // Checking the rows has touched most pages, names too (the kernel maps what is around). A new mapping has none.
        let fresh = mapping(file).map_err(MapError::Io)?;
        if fresh.len() != length {
            return Err(corrupt("it changed while it was opened").into());
        }
        image.bytes = Bytes::Mapped(fresh);
        Ok(image)
    }

    /// Takes bytes that [`encode`](crate::encode) has just made.
    pub(crate) fn owned(bytes: Vec<u8>) -> Result<Self, Fault> {
        Self::parse(Bytes::Owned(bytes))
    }

    fn parse(bytes: Bytes) -> Result<Self, Fault> {
        let footer = footer(&bytes)?;
        let schema = footer.schema().ok_or_else(|| corrupt("it has no schema"))?;
        let metadata: BTreeMap<String, String> = (schema.custom_metadata().into_iter().flatten())
            .filter_map(|pair| Some((pair.key()?.to_owned(), pair.value()?.to_owned())))
            .collect();
        let columns = Columns::of(&schema)?;
        let mut tables = BTreeMap::new();
        for block in footer.dictionaries().into_iter().flatten() {
            let (id, texts) = dictionary(&bytes, block)?;
            if tables.insert(id, texts).is_some() {
                return Err(corrupt("it has two dictionaries of one number"));
            }
        }
        let mut table = |id: Option<i64>| id.and_then(|id| tables.remove(&id)).unwrap_or_default();
        let (labels, objects, etags) = (table(columns.label), table(columns.object), table(columns.etags));
        if !tables.is_empty() {
            return Err(corrupt("it has more dictionaries than columns for them"));
        }
        let batches = footer.recordBatches().into_iter().flatten();
        let batches: Vec<Batch> =
            batches.map(|block| batch(&bytes, block, columns)).collect::<Result<_, _>>()?;
        let rows_per_batch = batches.first().map_or(1, |batch| batch.rows);
        let (last, full) = batches.split_last().ok_or_else(|| corrupt("it has no samples"))?;
        if full.iter().any(|batch| batch.rows != rows_per_batch) || last.rows > rows_per_batch {
            return Err(corrupt("its batches are not of one length"));
        }
        let rows = (full.len() * rows_per_batch + last.rows) as u64;
        let (sizes, rows_per_batch) = (Sizes::uniform(0, 0), rows_per_batch as u64);
        let mut image =
            Self { rows_per_batch, rows, metadata, labels, objects, etags, batches, sizes, bytes };
        image.sizes = Sizes::table(&image.lengths()?);
        Ok(image)
    }

    /// All bytes, as they stand in a file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A value of the schema's metadata.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    pub(crate) fn labels(&self) -> &[Arc<str>] {
        &self.labels
    }

    /// Whether rows are parts of objects.
    pub(crate) fn is_packed(&self) -> bool {
        self.batches.iter().any(|batch| batch.object.is_some())
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The length of each sample.
    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    fn find(&self, row: u64) -> Option<(&Batch, usize)> {
        let batch = self.batches.get(usize::try_from(row / self.rows_per_batch).ok()?)?;
        let row = (row % self.rows_per_batch) as usize;
        (row < batch.rows).then_some((batch, row))
    }

    /// The row, its text checked for being text; `None` if there is none of that number.
    pub(crate) fn row(&self, row: u64) -> Option<Result<Row<'_>, Fault>> {
        let (batch, row) = self.find(row)?;
        let bytes = &self.bytes;
        Some((|| {
            let etag = match (&batch.etag, &batch.etag_number) {
                (Some(column), _) => column.get(bytes, row)?.map(Arc::from),
                (None, Some(column)) => {
                    column.u32(bytes, row)?.and_then(|number| self.etags.get(number as usize)).cloned()
                }
                (None, None) => None,
            };
            Ok(Row {
                place: self.place(batch, row)?,
                offset: batch.offset.u64(bytes, row)?,
                length: batch.length.u64(bytes, row)?,
                modified: match &batch.modified {
                    Some(column) if column.is_present(bytes, row) => Some(column.i64(bytes, row)?),
                    _ => None,
                },
                etag,
                crc32c: batch.crc32c.as_ref().map_or(Ok(None), |column| column.u32(bytes, row))?,
            })
        })())
    }

    fn place(&self, batch: &Batch, row: usize) -> Result<Place<'_>, Fault> {
        let bytes = &self.bytes;
        let missing = || corrupt("it has no path");
        if let (Some(object), Some(size)) = (&batch.object, &batch.object_size) {
            let object = object.u32(bytes, row)?.and_then(|number| self.objects.get(number as usize));
            let key = batch.key.as_ref().map_or(Ok(None), |column| column.get(bytes, row))?;
            return Ok(Place::Part { object: object.ok_or_else(missing)?, size: size.u64(bytes, row)?, key });
        }
        let path = batch.path.as_ref().map_or(Ok(None), |column| column.get(bytes, row))?;
        path.map(Place::File).ok_or_else(missing)
    }

    /// The row's label, by its number.
    pub(crate) fn label(&self, row: u64) -> Option<u32> {
        let (batch, row) = self.find(row)?;
        batch.label.as_ref()?.u32(&self.bytes, row).ok().flatten()
    }

    /// The row's fields; `None` if there is no such row or it has none.
    pub(crate) fn fields(&self, row: u64) -> Option<impl Iterator<Item = Result<FieldRow<'_>, Fault>>> {
        let (batch, row) = self.find(row)?;
        let (fields, bytes) = (batch.fields.as_ref()?, &*self.bytes);
        let range = fields.of(bytes, row).ok()?;
        Some(range.map(move |field| {
            Ok(FieldRow {
                name: fields.name.bytes(bytes, field)?.unwrap_or_default(),
                offset: fields.offset.u64(bytes, field)?,
                length: fields.length.u64(bytes, field)?,
            })
        }))
    }

    /// How many rows before this one are of the same object.
    pub(crate) fn number_in_object(&self, row: u64) -> u64 {
        let object = |row: u64| {
            let (batch, row) = self.find(row)?;
            batch.object.as_ref()?.u32(&self.bytes, row).ok().flatten()
        };
        let this = object(row);
        // Rows are sorted by object.
        let (mut before, mut from) = (0, row);
        while before < from {
            let middle = before + (from - before) / 2;
            match object(middle) < this {
                true => before = middle + 1,
                false => from = middle,
            }
        }
        row - before
    }

    /// The lengths of all samples, after checking what every row must keep: that its bytes lie in its object, its label
    /// is one of those there are, and its fields lie in the sample.
    fn lengths(&self) -> Result<Vec<u64>, Fault> {
        let mut lengths = Vec::with_capacity(self.rows as usize);
        let mut total = 0u64;
        let mut object = 0;
        for batch in &self.batches {
            for row in 0..batch.rows {
                let length = batch.length.u64(&self.bytes, row)?;
                let offset = batch.offset.u64(&self.bytes, row)?;
                let sum = total.checked_add(length).filter(|_| offset.checked_add(length).is_some());
                total = sum.ok_or_else(|| corrupt(format!("sample {} is impossibly long", lengths.len())))?;
                self.check(batch, row, offset, length, &mut object)
                    .map_err(|why| corrupt(format!("sample {} {why}", lengths.len())))?;
                lengths.push(length);
            }
        }
        Ok(lengths)
    }

    fn check(
        &self,
        batch: &Batch,
        row: usize,
        offset: u64,
        length: u64,
        object: &mut u32,
    ) -> Result<(), String> {
        let bytes = &*self.bytes;
        let told = |fault: Fault| fault.why;
        match (&batch.object, &batch.object_size) {
            (Some(column), Some(size)) => {
                let number = column.u32(bytes, row).map_err(told)?.unwrap_or(u32::MAX);
                if number as usize >= self.objects.len() || number < *object {
                    return Err("is of an unknown object, or out of order".to_owned());
                }
                *object = number;
                if offset.saturating_add(length) > size.u64(bytes, row).map_err(told)? {
                    return Err("lies outside its object".to_owned());
                }
            }
            _ if offset != 0 => return Err("does not begin its file".to_owned()),
            _ => {}
        }
        let known = |column: &Option<Numbers>, table: &[Arc<str>]| match column {
            Some(column) => {
                let number = column.u32(bytes, row).map_err(told)?;
                Ok(number.is_none_or(|number| (number as usize) < table.len()))
            }
            None => Ok::<_, String>(true),
        };
        if !known(&batch.label, &self.labels)? {
            return Err("has an unknown label".to_owned());
        }
        if !known(&batch.etag_number, &self.etags)? {
            return Err("has an unknown ETag".to_owned());
        }
        let Some(fields) = &batch.fields else { return Ok(()) };
        for field in fields.of(bytes, row).map_err(told)? {
            let end = fields
                .offset
                .u64(bytes, field)
                .map_err(told)?
                .checked_add(fields.length.u64(bytes, field).map_err(told)?);
            if end.is_none_or(|end| end > length) {
                return Err("has a field outside of it".to_owned());
            }
        }
        Ok(())
    }
}

fn mapping(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: a mapping is shared memory, and no borrow of it may see it change. Whoever writes to the file in place, or
    // truncates it (then touching it is a SIGBUS), breaks that, and no lock prevents it. foreread itself never does: a
    // catalog is written beside its place and renamed over it, which leaves this mapping its own inode. What remains is
    // another program that edits a catalog in place under a running loader. Numbers are read by value and checked at
    // each use, so even then no access leaves the mapping.
    unsafe { Mmap::map(file) }
}

/// Why mapping failed.
#[derive(Debug)]
pub(crate) enum MapError {
    Io(std::io::Error),
    Fault(Fault),
}

impl From<Fault> for MapError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The footer, at the file's end.
fn footer(bytes: &[u8]) -> Result<Footer<'_>, Fault> {
    if !bytes.starts_with(MAGIC) {
        return Err(foreign("it does not begin as an Arrow file does"));
    }
    let cut = || corrupt("it ends early");
    let (rest, magic) = bytes.split_last_chunk::<6>().ok_or_else(cut)?;
    let (rest, length) = rest.split_last_chunk::<4>().ok_or_else(cut)?;
    if magic != MAGIC {
        return Err(cut());
    }
    let length =
        usize::try_from(i32::from_le_bytes(*length)).map_err(|_| corrupt("its footer is damaged"))?;
    let start = rest.len().checked_sub(length).ok_or_else(|| corrupt("its footer is damaged"))?;
    let footer = root_as_footer(&rest[start..]).map_err(|_| corrupt("its footer is damaged"))?;
    if footer.version() != MetadataVersion::V5 {
        return Err(foreign("it is an Arrow file of another version"));
    }
    Ok(footer)
}

/// Where the digits of the checksum stand. Files of other makers and versions are told apart on the way, because a
/// newer version may have another idea of a checksum.
pub(crate) fn checksum_digits(bytes: &[u8]) -> Result<Range<usize>, Fault> {
    let footer = footer(bytes)?;
    let schema = footer.schema().and_then(|schema| schema.custom_metadata());
    let version = schema.into_iter().flatten().find(|pair| pair.key() == Some(VERSION_KEY));
    match version.and_then(|pair| pair.value()) {
        Some(VERSION | VERSION_PACKED) => {}
        Some(other) if other.bytes().all(|byte| byte.is_ascii_digit()) && other.len() < 8 => {
            let why = format!(
                "it is of version {other}, and this foreread reads versions {VERSION} and {VERSION_PACKED}"
            );
            return Err(Fault { kind: DatasetErrorKind::Unsupported, why });
        }
        _ => return Err(foreign("it is an Arrow file of another kind")),
    }
    let mut pairs = footer.custom_metadata().into_iter().flatten();
    let value = pairs.find(|pair| pair.key() == Some(CHECKSUM_KEY)).and_then(|pair| pair.value());
    let digits =
        value.and_then(|value| value.strip_prefix(CHECKSUM_PREFIX)).filter(|digits| digits.len() == 32);
    let digits = digits.ok_or_else(|| corrupt("its checksum is missing"))?;
    // They are borrowed from the footer and so from `bytes`: their place is their distance from its beginning.
    let start = digits.as_ptr().addr() - bytes.as_ptr().addr();
    Ok(start..start + 32)
}

/// The checksum's 32 digits over bytes in memory.
pub(crate) fn checksum(bytes: &[u8], digits: &Range<usize>) -> String {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..digits.start]);
    hash.update(&CHECKSUM_BLANK);
    hash.update(&bytes[digits.end..]);
    format!("{:032x}", hash.digest128())
}

/// The same over the first `length` bytes of a file, through a small buffer.
fn checksum_of_file(mut file: &File, length: usize, digits: &Range<usize>) -> std::io::Result<String> {
    let mut hash = Xxh3::new();
    let mut room = vec![0; CHUNK];
    let mut at = 0;
    while at < length {
        let chunk = &mut room[..CHUNK.min(length - at)];
        file.read_exact(chunk)?;
        let blank = digits.start.clamp(at, at + chunk.len())..digits.end.clamp(at, at + chunk.len());
        chunk[blank.start - at..blank.end - at].fill(CHECKSUM_BLANK[0]);
        hash.update(chunk);
        at += chunk.len();
    }
    Ok(format!("{:032x}", hash.digest128()))
}
