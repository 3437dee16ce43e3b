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

pub(crate) mod column;
pub(crate) mod column_set;
pub(crate) mod values;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_ipc::{Block, Buffer, FieldNode, Message, RecordBatch, root_as_message};

use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::column::{FieldsColumn, NumberColumn, TextColumn};
use crate::catalog_file::layout::column_set::ColumnSet;
use crate::catalog_file::layout::values::{ValueLayout, ValuesLayout};

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

/// The columns of samples that are made from stored bytes. See [`made`](super::columns::made).
#[derive(Debug)]
pub(crate) struct MadeLayout {
    pub(crate) stored: NumberColumn,
    pub(crate) decoded: NumberColumn,
    pub(crate) slice: NumberColumn,
    pub(crate) recipe: NumberColumn,
    /// The parts after the first one, if some sample has several.
    pub(crate) parts: Option<TextColumn>,
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
