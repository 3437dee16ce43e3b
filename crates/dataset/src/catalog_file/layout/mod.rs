//! The position of each column in a batch of a catalog file.
//!
//! Three tables are supported. Version 1 is of files: a row contains the name of its object, and is
//! the whole object. Version 2 is of shards. Its rows contain their object's number in a
//! dictionary, because a thousand samples share one object. They also contain their range in it.
//! Names, fields and checksums are columns if the format has them, and servers if the storage has
//! several. Version 3 is of shards, too. Its rows may be runs of samples at equal distances, or
//! have values. In version 4, samples may be decoded, or made of several parts. Version 8 is of
//! files that a table names: its rows may have values, and be parts of their files. So are parts of
//! other datasets, whose rows may have the numbers of their samples.

pub(crate) mod values;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_ipc::{
    Block, Buffer, Field, FieldNode, Message, RecordBatch, Schema, TimeUnit, Type, root_as_message,
};

use crate::SampleChecksum;
use crate::build::{changes, recipe_table, value_table};
use crate::catalog::server_shares;
use crate::catalog_file::columns::parts;
use crate::catalog_file::layout::values::{ValueField, ValueKind, ValueLayout, ValuesLayout};
use crate::catalog_file::{CatalogFault, corrupt, file_lists};

/// A column of numbers: the positions of its validity bits (if some value is absent) and its
/// values.
#[derive(Debug)]
pub(crate) struct NumberColumn {
    pub(crate) validity: Option<usize>,
    values: usize,
}

/// A column of text: the positions of its validity bits, its `rows + 1` ends and its text.
#[derive(Debug)]
pub(crate) struct TextColumn {
    pub(crate) validity: Option<usize>,
    ends: usize,
    text: Range<usize>,
}

/// A column of lists of fields: the position of its `rows + 1` ends, the number of all fields, and
/// the fields' columns.
#[derive(Debug)]
pub(crate) struct FieldsColumn {
    ends: usize,
    pub(crate) count: usize,
    pub(crate) name: TextColumn,
    pub(crate) offset: NumberColumn,
    pub(crate) length: NumberColumn,
}

/// One batch's columns. Columns that a version or a dataset does not have are `None`.
#[derive(Debug)]
pub(crate) struct BatchLayout {
    pub(crate) rows: usize,
    /// Version 1: the object's path.
    pub(crate) path: Option<TextColumn>,
    /// Version 2: the object's number, and the sample's name in it.
    pub(crate) object: Option<NumberColumn>,
    pub(crate) key: Option<TextColumn>,
    pub(crate) offset: NumberColumn,
    pub(crate) length: NumberColumn,
    /// Version 3: the distance of samples, and their number.
    pub(crate) run: Option<(NumberColumn, NumberColumn)>,
    pub(crate) object_size: Option<NumberColumn>,
    pub(crate) label: Option<NumberColumn>,
    pub(crate) modified: Option<NumberColumn>,
    /// Version 5: the digest of the file's last change.
    pub(crate) changed: Option<NumberColumn>,
    /// Version 1: the ETag. Version 2: its number.
    pub(crate) etag: Option<TextColumn>,
    pub(crate) etag_number: Option<NumberColumn>,
    pub(crate) fields: Option<FieldsColumn>,
    /// Version 8: the files of the sample.
    pub(crate) files: Option<TextColumn>,
    pub(crate) crc32c: Option<NumberColumn>,
    pub(crate) server: Option<NumberColumn>,
    pub(crate) made: Option<MadeLayout>,
    pub(crate) values: Vec<ValueLayout>,
}

/// The columns of samples that are made from stored bytes. See [`made`].
#[derive(Debug)]
pub(crate) struct MadeLayout {
    pub(crate) stored: NumberColumn,
    pub(crate) decoded: NumberColumn,
    pub(crate) slice: NumberColumn,
    pub(crate) recipe: NumberColumn,
    /// The parts after the first one, if some sample has several.
    pub(crate) parts: Option<TextColumn>,
}

/// The values of the column that begins at `values`.
fn values<const BYTES: usize>(
    bytes: &[u8],
    values: usize,
    rows: usize,
) -> Result<&[[u8; BYTES]], CatalogFault> {
    let column = bytes.get(values..).and_then(|rest| rest.get(..rows * BYTES));
    column.map(|column| column.as_chunks().0).ok_or_else(|| corrupt("a column ends early"))
}

/// Which rows of a column have a value, if not all. `bits` is the position of its validity bits.
pub(crate) fn validity(
    bytes: &[u8],
    bits: Option<usize>,
    rows: usize,
) -> Result<Option<&[u8]>, CatalogFault> {
    let Some(bits) = bits else { return Ok(None) };
    let bits = bytes.get(bits..).and_then(|rest| rest.get(..rows.div_ceil(8)));
    bits.map(Some).ok_or_else(|| corrupt("a column ends early"))
}

/// Whether a row has a value.
pub(crate) fn is_present(validity: Option<&[u8]>, row: usize) -> bool {
    validity.is_none_or(|bits| bits.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1))
}

/// The ends at `start`, which must ascend up to `most`.
fn ends(bytes: &[u8], start: usize, rows: usize, most: usize) -> Result<Vec<u64>, CatalogFault> {
    // A negative end becomes far too large.
    let ends = values(bytes, start, rows + 1)?.iter().map(|end| u64::from(u32::from_le_bytes(*end)));
    let ends: Vec<u64> = ends.collect();
    if !ends.is_sorted() || ends.last().is_none_or(|&last| last > most as u64) {
        return Err(corrupt("what a row has lies outside its column"));
    }
    Ok(ends)
}

impl NumberColumn {
    /// The values of all rows, including rows without a value.
    pub(crate) fn values<'a, const BYTES: usize>(
        &self,
        bytes: &'a [u8],
        rows: usize,
    ) -> Result<&'a [[u8; BYTES]], CatalogFault> {
        values(bytes, self.values, rows)
    }

    /// The values of all rows, of `width` bytes each.
    pub(crate) fn raw<'a>(
        &self,
        bytes: &'a [u8],
        rows: usize,
        width: usize,
    ) -> Result<&'a [u8], CatalogFault> {
        let length = rows.checked_mul(width);
        let column = bytes.get(self.values..).zip(length).and_then(|(rest, length)| rest.get(..length));
        column.ok_or_else(|| corrupt("a column ends early"))
    }
}

impl TextColumn {
    /// The rows' ends after a zero, and all text, which is not yet checked for being UTF-8.
    pub(crate) fn decode<'a>(
        &self,
        bytes: &'a [u8],
        rows: usize,
    ) -> Result<(Vec<u64>, &'a [u8]), CatalogFault> {
        let text = bytes.get(self.text.clone()).ok_or_else(|| corrupt("a column ends early"))?;
        // Without rows, the zero may be absent.
        let ends = if rows == 0 { vec![0] } else { ends(bytes, self.ends, rows, text.len())? };
        Ok((ends, text))
    }

    /// The position of the text.
    pub(crate) fn start(&self) -> usize {
        self.text.start
    }
}

impl FieldsColumn {
    /// The ends of each row's range among the batch's fields, preceded by the first row's
    /// beginning.
    pub(crate) fn ends(&self, bytes: &[u8], rows: usize) -> Result<Vec<u64>, CatalogFault> {
        ends(bytes, self.ends, rows, self.count)
    }
}

/// The columns that exist, with the numbers of their dictionaries.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSet {
    packed: bool,
    /// Whether rows have the size of their object.
    sized: bool,
    runs: bool,
    pub(crate) label: Option<i64>,
    pub(crate) object: Option<i64>,
    pub(crate) etags: Option<i64>,
    key: bool,
    modified: bool,
    changed: bool,
    etag: bool,
    fields: bool,
    files: bool,
    crc32c: bool,
    pub(crate) server: bool,
    made: bool,
    parts: bool,
    pub(crate) values: Vec<ValueField>,
}

impl ColumnSet {
    /// Checks that the columns are those of a catalog.
    pub(crate) fn of(schema: &Schema<'_>) -> Result<Self, CatalogFault> {
        let mut fields = schema.fields().into_iter().flatten().peekable();
        let mut next = |name: &str, fits: fn(&Field<'_>) -> bool| {
            fields.next_if(|field| field.name() == Some(name) && fits(field))
        };
        let dictionary =
            |field: Option<Field<'_>>| field.and_then(|field| field.dictionary()).map(|it| it.id());
        let text = |field: &Field<'_>| is_plain(field, Type::Utf8);
        let object = dictionary(next("object", is_dictionary));
        let packed = object.is_some();
        let named = next(if packed { "key" } else { "path" }, text).is_some();
        let extent = next("offset", is_length).is_some() && next("length", is_length).is_some();
        let runs = packed && next("stride", is_length).is_some() && next("samples", is_length).is_some();
        let sized = next("object_size", is_length).is_some();
        let label = dictionary(next(value_table::LABEL, is_dictionary));
        let has_place = if packed { sized } else { label.is_some() && named };
        let modified = next("modified", is_time).is_some();
        let changed = modified && next(changes::COLUMN, is_narrow).is_some();
        let etags = if packed { dictionary(next("etag", is_dictionary)) } else { None };
        let etag = !packed && next("etag", text).is_some();
        let has_fields = next("fields", is_fields).is_some();
        let files = !packed && has_fields && next(file_lists::COLUMN, text).is_some();
        let is_crc32c = packed && next(SampleChecksum::CRC32C, is_narrow).is_some();
        let crc32c = is_crc32c || packed && next(SampleChecksum::CRC32, is_narrow).is_some();
        let server = next(server_shares::COLUMN, is_narrow).is_some();
        let [stored, decoded, slice, recipe] = recipe_table::COLUMNS;
        let made = packed && next(stored, is_length).is_some();
        let is_complete = !made
            || [decoded, slice].iter().all(|name| next(name, is_length).is_some())
                && next(recipe, is_narrow).is_some();
        let parts = made && next(parts::COLUMN, |field| is_plain(field, Type::Binary)).is_some();
        let value = |field: Field<'_>| {
            let name = field.name()?.strip_prefix(value_table::PREFIX)?.to_owned();
            let dictionary = field.dictionary().map(|it| it.id());
            Some(ValueField { name, kind: ValueKind::of(&field)?, dictionary })
        };
        let values: Option<Vec<ValueField>> = fields.map(value).collect();
        let key = packed && named;
        let has_columns = key || has_fields || crc32c || server || made || label.is_some();
        let fits = |values: &Vec<ValueField>| !runs || (values.is_empty() && !has_columns);
        let Some(values) = values
            .filter(fits)
            .filter(|_| packed || has_fields == files)
            .filter(|_| extent && has_place && is_complete)
        else {
            return Err(corrupt("its columns are not those of a catalog"));
        };
        let fields = has_fields;
        Ok(Self {
            packed,
            sized,
            runs,
            label,
            object,
            etags,
            key,
            modified,
            changed,
            etag,
            fields,
            files,
            crc32c,
            server,
            made,
            parts,
            values,
        })
    }
}

fn is_plain(field: &Field<'_>, kind: Type) -> bool {
    field.type_type() == kind && field.dictionary().is_none()
}

fn is_unsigned(field: &Field<'_>, bits: i32) -> bool {
    is_plain(field, Type::Int)
        && field.type_as_int().is_some_and(|int| int.bitWidth() == bits && !int.is_signed())
}

fn is_length(field: &Field<'_>) -> bool {
    is_unsigned(field, 64)
}

fn is_narrow(field: &Field<'_>) -> bool {
    is_unsigned(field, 32)
}

pub(crate) fn is_dictionary(field: &Field<'_>) -> bool {
    let index = field.dictionary().and_then(|dictionary| dictionary.indexType());
    field.type_type() == Type::Utf8 && index.is_some_and(|int| int.bitWidth() == 32 && int.is_signed())
}

fn is_time(field: &Field<'_>) -> bool {
    is_plain(field, Type::Timestamp)
        && field.type_as_timestamp().is_some_and(|time| time.unit() == TimeUnit::NANOSECOND)
}

fn children<'a>(field: &Field<'a>) -> Vec<Field<'a>> {
    field.children().into_iter().flatten().collect()
}

/// A list of (name, offset, length).
fn is_fields(field: &Field<'_>) -> bool {
    if !is_plain(field, Type::List) {
        return false;
    }
    let [item] = &children(field)[..] else { return false };
    if !is_plain(item, Type::Struct_) {
        return false;
    }
    let [name, offset, length] = &children(item)[..] else { return false };
    is_plain(name, Type::Utf8) && is_length(offset) && is_length(length)
}

/// The range in the file of the message and the body of a block in the footer.
pub(crate) fn place(block: &Block) -> Result<Range<u64>, CatalogFault> {
    let damaged = || corrupt("the footer refers to an offset outside the file");
    let start = u64::try_from(block.offset()).map_err(|_| damaged())?;
    let head = u64::try_from(block.metaDataLength()).map_err(|_| damaged())?;
    let body = u64::try_from(block.bodyLength()).map_err(|_| damaged())?;
    let end = start.checked_add(head).and_then(|end| end.checked_add(body)).ok_or_else(damaged)?;
    Ok(start..end)
}

/// The message in the bytes of a block in the footer, and the position of its body in them.
fn message<'a>(bytes: &'a [u8], block: &Block) -> Result<(Message<'a>, Range<usize>), CatalogFault> {
    let damaged = || corrupt("the footer refers to an offset outside the file");
    let head = usize::try_from(block.metaDataLength()).map_err(|_| damaged())?;
    // Four bytes that mark a message, four of its length, the message itself.
    let message = bytes.get(8..head).ok_or_else(damaged)?;
    let message = root_as_message(message).map_err(|_| corrupt("a batch's head is damaged"))?;
    Ok((message, head..bytes.len()))
}

/// Returns the parts of a batch in the order in which they are written.
struct BatchCursor<'a> {
    nodes: Box<dyn Iterator<Item = &'a FieldNode> + 'a>,
    buffers: Box<dyn Iterator<Item = &'a Buffer> + 'a>,
    body: Range<usize>,
    /// The end of the last buffer. No buffer may overlap another, so the decoded data is no longer
    /// than the batch.
    end: usize,
    rows: usize,
}

impl<'a> BatchCursor<'a> {
    fn of(batch: &RecordBatch<'a>, body: Range<usize>) -> Result<Self, CatalogFault> {
        let rows = usize::try_from(batch.length()).ok().filter(|&rows| rows <= bytes_bound(&body));
        let rows = rows.ok_or_else(|| corrupt("a batch has an impossible number of rows"))?;
        if batch.compression().is_some()
            || batch.variadicBufferCounts().is_some_and(|counts| !counts.is_empty())
        {
            return Err(corrupt("a batch is compressed"));
        }
        let nodes = Box::new(batch.nodes().into_iter().flatten());
        let buffers = Box::new(batch.buffers().into_iter().flatten());
        Ok(Self { nodes, buffers, end: body.start, body, rows })
    }

    /// The next buffer, which must have at least `least` bytes.
    fn buffer(&mut self, least: usize) -> Result<Range<usize>, CatalogFault> {
        let damaged = || corrupt("a column lies outside its batch");
        let buffer = self.buffers.next().ok_or_else(damaged)?;
        let start = usize::try_from(buffer.offset()).map_err(|_| damaged())?;
        let length =
            usize::try_from(buffer.length()).ok().filter(|&length| length >= least).ok_or_else(damaged)?;
        let end = start.checked_add(length).filter(|&end| end <= self.body.len()).ok_or_else(damaged)?;
        let (start, end) = (self.body.start + start, self.body.start + end);
        if start < self.end {
            return Err(corrupt("a column lies in another"));
        }
        self.end = end;
        Ok(start..end)
    }

    /// The head of the next column: the position of its validity bits, if some value is absent.
    fn column(&mut self) -> Result<Option<usize>, CatalogFault> {
        let node = self.nodes.next().ok_or_else(|| corrupt("a batch lacks a column"))?;
        if usize::try_from(node.length()) != Ok(self.rows) {
            return Err(corrupt("a column has not as many rows as its batch"));
        }
        match node.null_count() {
            0 => self.buffer(0).map(|_| None),
            _ => self.buffer(self.rows.div_ceil(8)).map(|bits| Some(bits.start)),
        }
    }

    fn numbers(&mut self, width: usize) -> Result<NumberColumn, CatalogFault> {
        Ok(NumberColumn {
            validity: self.column()?,
            values: self.buffer(self.rows.saturating_mul(width))?.start,
        })
    }

    /// A column in which no value may be absent.
    fn complete(&mut self, width: usize) -> Result<NumberColumn, CatalogFault> {
        let numbers = self.numbers(width)?;
        match numbers.validity {
            None => Ok(numbers),
            Some(_) => Err(corrupt("a length is missing")),
        }
    }

    fn fields(&mut self) -> Result<FieldsColumn, CatalogFault> {
        let missing = |validity: Option<usize>| match validity {
            None => Ok(()),
            Some(_) => Err(corrupt("a list of fields is missing")),
        };
        missing(self.column()?)?;
        let ends = self.buffer((self.rows + 1) * 4)?.start;
        // From here on a row is a field.
        let node = self.nodes.next().ok_or_else(|| corrupt("a batch lacks a column"))?;
        let count = usize::try_from(node.length()).ok().filter(|&count| count <= bytes_bound(&self.body));
        let count = count.ok_or_else(|| corrupt("a batch has an impossible number of fields"))?;
        self.buffer(0)?;
        missing((node.null_count() != 0).then_some(0))?;
        let rows = std::mem::replace(&mut self.rows, count);
        let (name, offset, length) = (self.text()?, self.complete(8)?, self.complete(8)?);
        self.rows = rows;
        Ok(FieldsColumn { ends, count, name, offset, length })
    }

    fn made(&mut self, has_parts: bool) -> Result<MadeLayout, CatalogFault> {
        Ok(MadeLayout {
            stored: self.complete(8)?,
            decoded: self.complete(8)?,
            slice: self.complete(8)?,
            recipe: self.numbers(4)?,
            parts: has_parts.then(|| self.complete_text()).transpose()?,
        })
    }

    /// A column of texts in which none may be absent.
    fn complete_text(&mut self) -> Result<TextColumn, CatalogFault> {
        let text = self.text()?;
        if text.validity.is_some() {
            return Err(corrupt("a list of parts is missing"));
        }
        Ok(text)
    }

    fn text(&mut self) -> Result<TextColumn, CatalogFault> {
        let validity = self.column()?;
        let ends = if self.rows == 0 { 0 } else { (self.rows + 1) * 4 };
        Ok(TextColumn { validity, ends: self.buffer(ends)?.start, text: self.buffer(0)? })
    }
}

/// Each row of any batch takes at least four bytes of its body, which bounds the arithmetic on
/// rows.
fn bytes_bound(body: &Range<usize>) -> usize {
    body.len() / 4
}

/// The positions of the columns of a block's batch, in its bytes.
pub(crate) fn batch(bytes: &[u8], block: &Block, columns: &ColumnSet) -> Result<BatchLayout, CatalogFault> {
    let (message, body) = message(bytes, block)?;
    let head = message.header_as_record_batch().ok_or_else(|| corrupt("a batch is something else"))?;
    let mut parts = BatchCursor::of(&head, body)?;
    if parts.rows == 0 {
        return Err(corrupt("a batch is empty"));
    }
    let packed = columns.packed;
    Ok(BatchLayout {
        rows: parts.rows,
        path: (!packed).then(|| parts.text()).transpose()?,
        object: packed.then(|| parts.complete(4)).transpose()?,
        key: columns.key.then(|| parts.text()).transpose()?,
        offset: parts.complete(8)?,
        length: parts.complete(8)?,
        run: columns.runs.then(|| Ok((parts.complete(8)?, parts.complete(8)?))).transpose()?,
        object_size: columns.sized.then(|| parts.complete(8)).transpose()?,
        label: columns.label.map(|_| parts.numbers(4)).transpose()?,
        modified: columns.modified.then(|| parts.numbers(8)).transpose()?,
        changed: columns.changed.then(|| parts.numbers(4)).transpose()?,
        etag: columns.etag.then(|| parts.text()).transpose()?,
        etag_number: columns.etags.map(|_| parts.numbers(4)).transpose()?,
        fields: columns.fields.then(|| parts.fields()).transpose()?,
        files: columns.files.then(|| parts.complete_text()).transpose()?,
        crc32c: columns.crc32c.then(|| parts.numbers(4)).transpose()?,
        server: columns.server.then(|| parts.numbers(4)).transpose()?,
        made: columns.made.then(|| parts.made(columns.parts)).transpose()?,
        values: columns
            .values
            .iter()
            .map(|column| {
                let of_kind = match column.kind.width() {
                    Some(width) => ValuesLayout::Numbers(parts.numbers(width)?),
                    None => ValuesLayout::Texts(parts.text()?),
                };
                Ok(ValueLayout { kind: column.kind, column: of_kind })
            })
            .collect::<Result<_, CatalogFault>>()?,
    })
}

/// A dictionary's number and its texts, which are unique. They are sorted unless the catalog has
/// another order (`is_ordered`).
pub(crate) fn dictionary(
    bytes: &[u8],
    block: &Block,
    is_ordered: bool,
) -> Result<(i64, Vec<Arc<str>>), CatalogFault> {
    let (message, body) = message(bytes, block)?;
    let table = message.header_as_dictionary_batch().filter(|table| !table.isDelta());
    let table = table.ok_or_else(|| corrupt("its labels are something else"))?;
    let data = table.data().ok_or_else(|| corrupt("its labels are something else"))?;
    let mut parts = BatchCursor::of(&data, body)?;
    let text = parts.text()?;
    if text.validity.is_some() {
        return Err(corrupt("a label is missing"));
    }
    let (ends, all) = text.decode(bytes, parts.rows)?;
    let mut texts: Vec<Arc<str>> = Vec::with_capacity(parts.rows);
    let mut seen = HashSet::new();
    for end in ends.windows(2) {
        let next = std::str::from_utf8(&all[end[0] as usize..end[1] as usize]);
        let next = next.map_err(|_| corrupt("a text is not UTF-8"))?;
        let is_wrong = match is_ordered {
            true => !seen.insert(next),
            false => texts.last().is_some_and(|last| **last >= *next),
        };
        if is_wrong {
            return Err(corrupt("its labels are not sorted, or occur twice"));
        }
        texts.push(next.into());
    }
    Ok((table.id(), texts))
}
