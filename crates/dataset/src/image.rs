//! The bytes of a catalog file, and reading samples out of them.
//!
//! A catalog is an Arrow IPC file, so that pandas, polars and DuckDB open it. It is *read* without Arrow's arrays: only
//! the layout that [`encode`](crate::encode) writes is accepted (fixed columns, no compression, all batches of one
//! length but the last), and a value is fetched from its place in the file with a bounds check. So nothing is copied or
//! decoded on opening, names are not touched before somebody asks for one, and a hostile file finds no decoder to
//! mislead. The price is that a catalog rewritten by another tool is refused; its checksum would be wrong anyway.
//!
//! The checksum is the value of `foreread.checksum` in the footer's metadata, `xxh3:` and 32 hexadecimal digits: the
//! XXH3-128 of the whole file with those digits as zeros. It guards against damage, not against an adversary, so every
//! number that leads to a place in the file is checked beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::sync::Arc;

use arrow_ipc::{
    Block, Buffer, Field, FieldNode, Footer, Message, MetadataVersion, RecordBatch, Schema, TimeUnit, Type,
    root_as_footer, root_as_message,
};
use foreread_types::Sizes;
use memmap2::Mmap;
use xxhash_rust::xxh3::Xxh3;

use crate::DatasetErrorKind;

/// What begins and ends an Arrow IPC file.
pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";
/// The version of the layout; the value of [`VERSION_KEY`].
pub(crate) const VERSION: &str = "1";
pub(crate) const VERSION_KEY: &str = "foreread.catalog";
pub(crate) const BASE_URL_KEY: &str = "foreread.base_url";
pub(crate) const FORMAT_KEY: &str = "foreread.format";
pub(crate) const FINGERPRINT_KEY: &str = "foreread.fingerprint";
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

fn corrupt(why: impl Into<String>) -> Fault {
    Fault { kind: DatasetErrorKind::Corrupt, why: why.into() }
}

fn foreign(why: impl Into<String>) -> Fault {
    Fault { kind: DatasetErrorKind::NotACatalog, why: why.into() }
}

/// Where the bytes are: mapped from a file, or in memory after indexing.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
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
    batches: Vec<Batch>,
    rows_per_batch: u64,
    rows: u64,
    sizes: Sizes,
}

/// A column of numbers: where its validity bits (if some value is absent) and its values begin.
#[derive(Debug)]
struct Numbers {
    validity: Option<usize>,
    values: usize,
}

/// A column of text: where its validity bits and its `rows + 1` ends begin, and where the text is.
#[derive(Debug)]
struct Text {
    validity: Option<usize>,
    ends: usize,
    text: Range<usize>,
}

#[derive(Debug)]
struct Batch {
    rows: usize,
    path: Text,
    offset: Numbers,
    length: Numbers,
    label: Numbers,
    modified: Option<Numbers>,
    etag: Option<Text>,
}

/// What one row says.
pub(crate) struct Row<'a> {
    pub(crate) path: &'a str,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) modified: Option<i64>,
    pub(crate) etag: Option<&'a str>,
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
        let columns = columns(&schema)?;
        let mut tables = footer.dictionaries().into_iter().flatten();
        let labels = tables.next().map_or(Ok(Vec::new()), |block| labels(&bytes, block))?;
        if tables.next().is_some() {
            return Err(corrupt("it has more than one table of labels"));
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
        let sizes = Sizes::uniform(0, 0);
        let mut image =
            Self { rows_per_batch: rows_per_batch as u64, rows, metadata, labels, batches, sizes, bytes };
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
            Ok(Row {
                path: batch.path.get(bytes, row)?.ok_or_else(|| corrupt("it has no path"))?,
                offset: number(bytes, batch.offset.values, row).map(u64::from_le_bytes)?,
                length: number(bytes, batch.length.values, row).map(u64::from_le_bytes)?,
                modified: match &batch.modified {
                    Some(column) if column.is_present(bytes, row) => {
                        Some(number(bytes, column.values, row).map(i64::from_le_bytes)?)
                    }
                    _ => None,
                },
                etag: batch.etag.as_ref().map_or(Ok(None), |column| column.get(bytes, row))?,
            })
        })())
    }

    /// The row's label, by its number.
    pub(crate) fn label(&self, row: u64) -> Option<u32> {
        let (batch, row) = self.find(row)?;
        let present = batch.label.is_present(&self.bytes, row);
        present.then(|| number(&self.bytes, batch.label.values, row).ok().map(u32::from_le_bytes)).flatten()
    }

    /// The lengths of all samples, after checking what every row must keep: that its bytes are the whole object and
    /// its label one of those there are.
    fn lengths(&self) -> Result<Vec<u64>, Fault> {
        let mut lengths = Vec::with_capacity(self.rows as usize);
        let mut total = 0u64;
        for batch in &self.batches {
            for row in 0..batch.rows {
                let length = u64::from_le_bytes(number(&self.bytes, batch.length.values, row)?);
                let offset = u64::from_le_bytes(number(&self.bytes, batch.offset.values, row)?);
                let sum = total.checked_add(length).filter(|_| offset.checked_add(length).is_some());
                total = sum.ok_or_else(|| corrupt(format!("sample {} is impossibly long", lengths.len())))?;
                if offset != 0 {
                    return Err(corrupt(format!("sample {} does not begin its file", lengths.len())));
                }
                if batch.label.is_present(&self.bytes, row) {
                    let label = u32::from_le_bytes(number(&self.bytes, batch.label.values, row)?);
                    if label as usize >= self.labels.len() {
                        return Err(corrupt(format!("sample {} has an unknown label", lengths.len())));
                    }
                }
                lengths.push(length);
            }
        }
        Ok(lengths)
    }
}

/// The bytes of value `row` of the column that begins at `values`; a column is checked to lie in the file as a whole.
fn number<const BYTES: usize>(bytes: &[u8], values: usize, row: usize) -> Result<[u8; BYTES], Fault> {
    let at = values + row * BYTES;
    let value = bytes.get(at..at + BYTES).and_then(|value| value.try_into().ok());
    value.ok_or_else(|| corrupt("a column ends early"))
}

fn is_present(bytes: &[u8], validity: Option<usize>, row: usize) -> bool {
    validity.is_none_or(|bits| bytes.get(bits + row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1))
}

impl Numbers {
    fn is_present(&self, bytes: &[u8], row: usize) -> bool {
        is_present(bytes, self.validity, row)
    }
}

impl Text {
    fn get<'a>(&self, bytes: &'a [u8], row: usize) -> Result<Option<&'a str>, Fault> {
        if !is_present(bytes, self.validity, row) {
            return Ok(None);
        }
        let end = |row| number(bytes, self.ends, row).map(|end| i32::from_le_bytes(end) as usize);
        let text = bytes.get(self.text.clone()).and_then(|text| text.get(end(row).ok()?..end(row + 1).ok()?));
        let text = text.ok_or_else(|| corrupt("a text lies outside its column"))?;
        std::str::from_utf8(text).map(Some).map_err(|_| corrupt("a text is not UTF-8"))
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
        Some(VERSION) => {}
        Some(other) if other.bytes().all(|byte| byte.is_ascii_digit()) && other.len() < 8 => {
            let why = format!("it is of version {other}, and this foreread reads version {VERSION}");
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

/// Which of the optional columns there are.
#[derive(Clone, Copy, Debug)]
struct Columns {
    modified: bool,
    etag: bool,
}

/// Checks that the columns are those of a catalog.
fn columns(schema: &Schema<'_>) -> Result<Columns, Fault> {
    let unknown = || corrupt("its columns are not those of a catalog");
    let mut fields = schema.fields().into_iter().flatten().peekable();
    let mut next = |name: &str, fits: fn(&Field<'_>) -> bool| {
        fields.next_if(|field| field.name() == Some(name) && fits(field)).is_some()
    };
    let required = next("path", |field| is_plain(field, Type::Utf8))
        && next("offset", is_length)
        && next("length", is_length)
        && next("label", is_label);
    let modified = next("modified", is_time);
    let etag = next("etag", |field| is_plain(field, Type::Utf8));
    match required && fields.next().is_none() {
        true => Ok(Columns { modified, etag }),
        false => Err(unknown()),
    }
}

fn is_plain(field: &Field<'_>, kind: Type) -> bool {
    field.type_type() == kind && field.dictionary().is_none()
}

fn is_length(field: &Field<'_>) -> bool {
    is_plain(field, Type::Int)
        && field.type_as_int().is_some_and(|int| int.bitWidth() == 64 && !int.is_signed())
}

fn is_label(field: &Field<'_>) -> bool {
    let index = field.dictionary().and_then(|dictionary| dictionary.indexType());
    field.type_type() == Type::Utf8 && index.is_some_and(|int| int.bitWidth() == 32 && int.is_signed())
}

fn is_time(field: &Field<'_>) -> bool {
    is_plain(field, Type::Timestamp)
        && field.type_as_timestamp().is_some_and(|time| time.unit() == TimeUnit::NANOSECOND)
}

/// The message that a block of the footer names, and where its body is.
fn message<'a>(bytes: &'a [u8], block: &Block) -> Result<(Message<'a>, Range<usize>), Fault> {
    let damaged = || corrupt("the footer names a place outside the file");
    let start = usize::try_from(block.offset()).map_err(|_| damaged())?;
    let head = usize::try_from(block.metaDataLength()).map_err(|_| damaged())?;
    let body = usize::try_from(block.bodyLength()).map_err(|_| damaged())?;
    let body_start = start.checked_add(head).ok_or_else(damaged)?;
    let body_end = body_start.checked_add(body).filter(|&end| end <= bytes.len()).ok_or_else(damaged)?;
    // Four bytes that mark a message, four of its length, the message itself.
    let head = bytes[start..body_start].get(8..).ok_or_else(damaged)?;
    let message = root_as_message(head).map_err(|_| corrupt("a batch's head is damaged"))?;
    Ok((message, body_start..body_end))
}

/// Hands out the parts of a batch in the order in which they are written.
struct Parts<'a> {
    nodes: Box<dyn Iterator<Item = &'a FieldNode> + 'a>,
    buffers: Box<dyn Iterator<Item = &'a Buffer> + 'a>,
    body: Range<usize>,
    rows: usize,
}

impl<'a> Parts<'a> {
    fn of(batch: &RecordBatch<'a>, body: Range<usize>) -> Result<Self, Fault> {
        let rows = usize::try_from(batch.length()).ok().filter(|&rows| rows <= bytes_bound(&body));
        let rows = rows.ok_or_else(|| corrupt("a batch has an impossible number of rows"))?;
        if batch.compression().is_some()
            || batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty())
        {
            return Err(corrupt("a batch is compressed"));
        }
        let nodes = Box::new(batch.nodes().into_iter().flatten());
        let buffers = Box::new(batch.buffers().into_iter().flatten());
        Ok(Self { nodes, buffers, body, rows })
    }

    /// The next buffer, which must have at least `least` bytes.
    fn buffer(&mut self, least: usize) -> Result<Range<usize>, Fault> {
        let damaged = || corrupt("a column lies outside its batch");
        let buffer = self.buffers.next().ok_or_else(damaged)?;
        let start = usize::try_from(buffer.offset()).map_err(|_| damaged())?;
        let length =
            usize::try_from(buffer.length()).ok().filter(|&length| length >= least).ok_or_else(damaged)?;
        let end = start.checked_add(length).filter(|&end| end <= self.body.len()).ok_or_else(damaged)?;
        Ok(self.body.start + start..self.body.start + end)
    }

    /// The head of the next column: where its validity bits are, if some value is absent.
    fn column(&mut self) -> Result<Option<usize>, Fault> {
        let node = self.nodes.next().ok_or_else(|| corrupt("a batch lacks a column"))?;
        if usize::try_from(node.length()) != Ok(self.rows) {
            return Err(corrupt("a column has not as many rows as its batch"));
        }
        match node.null_count() {
            0 => self.buffer(0).map(|_| None),
            _ => self.buffer(self.rows.div_ceil(8)).map(|bits| Some(bits.start)),
        }
    }

    fn numbers(&mut self, width: usize) -> Result<Numbers, Fault> {
        Ok(Numbers { validity: self.column()?, values: self.buffer(self.rows * width)?.start })
    }

    /// A column in which no value may be absent.
    fn complete(&mut self, width: usize) -> Result<Numbers, Fault> {
        let numbers = self.numbers(width)?;
        match numbers.validity {
            None => Ok(numbers),
            Some(_) => Err(corrupt("a length is missing")),
        }
    }

    fn text(&mut self) -> Result<Text, Fault> {
        let validity = self.column()?;
        let ends = if self.rows == 0 { 0 } else { (self.rows + 1) * 4 };
        Ok(Text { validity, ends: self.buffer(ends)?.start, text: self.buffer(0)? })
    }
}

/// Each row of any batch takes at least four bytes of its body, which bounds the arithmetic on rows.
fn bytes_bound(body: &Range<usize>) -> usize {
    body.len() / 4
}

fn batch(bytes: &[u8], block: &Block, columns: Columns) -> Result<Batch, Fault> {
    let (message, body) = message(bytes, block)?;
    let head = message.header_as_record_batch().ok_or_else(|| corrupt("a batch is something else"))?;
    let mut parts = Parts::of(&head, body)?;
    if parts.rows == 0 {
        return Err(corrupt("a batch is empty"));
    }
    Ok(Batch {
        rows: parts.rows,
        path: parts.text()?,
        offset: parts.complete(8)?,
        length: parts.complete(8)?,
        label: parts.numbers(4)?,
        modified: columns.modified.then(|| parts.numbers(8)).transpose()?,
        etag: columns.etag.then(|| parts.text()).transpose()?,
    })
}

fn labels(bytes: &[u8], block: &Block) -> Result<Vec<Arc<str>>, Fault> {
    let (message, body) = message(bytes, block)?;
    let table = message.header_as_dictionary_batch().filter(|table| !table.isDelta());
    let data =
        table.and_then(|table| table.data()).ok_or_else(|| corrupt("its labels are something else"))?;
    let mut parts = Parts::of(&data, body)?;
    let text = parts.text()?;
    let mut labels: Vec<Arc<str>> = Vec::with_capacity(parts.rows);
    for row in 0..parts.rows {
        let label = text.get(bytes, row)?.ok_or_else(|| corrupt("a label is missing"))?;
        if labels.last().is_some_and(|last| **last >= *label) {
            return Err(corrupt("its labels are not sorted"));
        }
        labels.push(label.into());
    }
    Ok(labels)
}
