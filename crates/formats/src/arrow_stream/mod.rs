//! Arrow IPC streams, as Hugging Face `datasets` keeps tables on disk, and Arrow IPC files.
//!
//! Each value of a column of bytes lies in one place of a batch's body. So the parser reads the
//! batches' messages and the offsets of their values, and never the values themselves. Labels are
//! read with the offsets.
//!
//! Decision: the flatbuffers are read by `arrow-ipc`, which checks them, and no array is built. An
//! array would need the whole body. The price is that positions of buffers are counted here.
//!
//! A stream has no directory: each message says where the next one begins. So one request follows
//! another, one for each batch. Batches hold up to a thousand rows, so the requests are few. The
//! footer of an Arrow file lists its batches, which are read at once.

mod batch;
mod messages;
mod schema;

use bytes::Bytes;

use crate::columns::{self, Label, SharedTexts};
use crate::joined::{self, JoinedColumn};
use crate::{
    BlockReader, ColumnValues, Extents, FileSource, FormatError, FoundSamples, Run, ValueColumn, le,
};
use batch::{BatchBuffers, BufferRange, Part, VIEW};
use schema::{Chosen, Column, Storage};

/// The size of blocks in bytes. A message and the offsets after it often fit in one.
const BLOCK: u64 = 32 << 10;

/// The most bytes in one request for offsets and labels.
const REQUEST: u64 = 8 << 20;

/// Batches whose offsets and labels are in memory at once.
const AT_ONCE: usize = 64;

/// The bytes before each message of a stream.
const STREAM_MARK: [u8; 4] = [0xff; 4];

/// The first and the last bytes of an Arrow file.
const FILE_MAGIC: &[u8] = b"ARROW1";

/// How to read an Arrow stream or file.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct ArrowOptions {
    /// The column with the samples, such as `image.bytes` or `image`. Without it the only column of
    /// bytes is used.
    pub column: Option<String>,
    /// The column with the labels. Without it a column with a usual name is used: `label`,
    /// `labels`, `target`, `class` or `cls`.
    pub label: Option<String>,
    /// More columns of bytes. A sample has a value of each, as its fields.
    pub joined: Vec<String>,
    /// Columns of numbers and texts whose values samples have.
    pub columns: Vec<String>,
    /// Whether the column with the samples must be the only one next to the labels.
    pub(crate) only: bool,
}

/// Finds the samples of an Arrow IPC stream or file: the values of one column of bytes.
///
/// Rows whose value is null are skipped and counted. A column `label`, `labels`, `target`, `class`
/// or `cls` becomes the values of `label`.
///
/// # Errors
/// [`Unsupported`](crate::FormatErrorKind::Unsupported) for compressed batches, for columns encoded
/// by a dictionary, and if the column is not clear.
/// [`Damaged`](crate::FormatErrorKind::Damaged) for files that Arrow does not permit.
/// [`Unread`](crate::FormatErrorKind::Unread) if the source fails.
pub async fn index(source: &dyn FileSource, options: &ArrowOptions) -> Result<FoundSamples, FormatError> {
    if options.joined.is_empty() {
        return Ok(find(source, options).await?.1.0);
    }
    join(source, options).await
}

/// Samples with a value of each of several columns. The price: the messages and offsets are read
/// once for each column.
async fn join(source: &dyn FileSource, options: &ArrowOptions) -> Result<FoundSamples, FormatError> {
    joined::names(options.column.iter().chain(&options.joined).map(String::as_str), &options.columns)?;
    let (first, (found, present)) = find(source, options).await?;
    let mut all = vec![(options.column.clone().unwrap_or(first), found.extents, present.clone())];
    for name in &options.joined {
        let of_column = ArrowOptions { column: Some(name.clone()), label: None, ..ArrowOptions::default() };
        let (_, (other, present)) = find(source, &of_column).await?;
        all.push((name.clone(), other.extents, present));
    }
    let names = joined::names(all.iter().map(|(name, ..)| name.as_str()), &options.columns)?;
    let column = |(name, (_, extents, present))| JoinedColumn { name, extents, made: None, present };
    let (joined, whole) = joined::join(names.iter().cloned().zip(all).map(column).collect())?;
    // Values are of rows with a value in the first column.
    let flags =
        |runs: Vec<(u64, bool)>| runs.into_iter().flat_map(|(count, flag)| (0..count).map(move |_| flag));
    let keep: Vec<bool> =
        flags(present).zip(flags(whole)).filter(|(is_there, _)| *is_there).map(|(_, whole)| whole).collect();
    let columns = found.columns.into_iter().map(|column| column.only(&keep)).collect();
    let summary = format!("{}, joined with {}", found.summary, options.joined.join(" and "));
    Ok(FoundSamples { columns, notes: found.notes, chosen: found.chosen, summary, ..joined })
}

/// Finds the samples as [`index`] does, and the path of their column.
pub(crate) async fn find(
    source: &dyn FileSource,
    options: &ArrowOptions,
) -> Result<(String, (FoundSamples, Vec<(u64, bool)>)), FormatError> {
    let reader = BlockReader::new(source, BLOCK);
    let head = reader.read(0, reader.size().min(8)).await?;
    let (format, table) = if head.starts_with(FILE_MAGIC) {
        ("file", messages::of_file(&reader, options).await?)
    } else {
        ("stream", messages::of_stream(&reader, options).await?)
    };
    let chosen = &table.chosen;
    let mut found = Collected::new(chosen);
    for batches in table.batches.chunks(AT_ONCE) {
        let ranges: Vec<BufferRange> = batches.iter().flat_map(ranges).collect();
        let mut buffers = reader.read_all(&ranges, REQUEST).await?.into_iter();
        for batch in batches {
            found.add(batch, &mut buffers)?;
        }
    }
    let present = std::mem::take(&mut found.present);
    Ok((chosen.samples.path.clone(), (found.finish(format, table.batches.len()), present)))
}

/// The buffers that are read of a batch, in the order in which [`Collected::add`] takes them.
fn ranges(batch: &BatchBuffers) -> Vec<BufferRange> {
    let samples = &batch.samples;
    let mut ranges = samples.validity.clone();
    ranges.extend(samples.offsets);
    for values in batch.label.iter().chain(&batch.columns) {
        ranges.extend(&values.validity);
        ranges.extend(values.offsets);
        ranges.extend(&values.values);
    }
    ranges
}

/// The contents of a part's validity and offsets.
struct PartBytes {
    validity: Vec<Bytes>,
    offsets: Bytes,
}

impl PartBytes {
    fn take(part: &Part, buffers: &mut impl Iterator<Item = Bytes>) -> Self {
        let validity = buffers.take(part.validity.len()).collect();
        let offsets = part.offsets.and_then(|_| buffers.next()).unwrap_or_default();
        Self { validity, offsets }
    }

    fn has_value(&self, row: usize) -> bool {
        self.validity.iter().all(|bits| bits.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1))
    }

    /// The range of a row's value among `length` bytes of values.
    fn range(&self, row: usize, width: u64, length: u64) -> Option<(u64, u64)> {
        let width = width as usize;
        let at = row.checked_mul(width)?;
        let start = le::uint(&self.offsets, at, width)?;
        let end = le::uint(&self.offsets, at.checked_add(width)?, width)?;
        (start <= end && end <= length).then_some((start, end))
    }
}

/// Where the value of a row lies whose view is in `bytes`.
fn view(part: &Part, bytes: &PartBytes, row: usize) -> Option<BufferRange> {
    let at = VIEW.checked_mul(row as u64)?;
    let view = bytes.offsets.get(at as usize..)?;
    let length = u64::from(le::u32(view, 0)?);
    if length <= VIEW - 4 {
        // The view has the value itself.
        return Some((part.offsets?.0.checked_add(at)?.checked_add(4)?, length));
    }
    let (start, whole) = *part.values.get(le::u32(view, 8)? as usize)?;
    let offset = u64::from(le::u32(view, 12)?);
    (offset + length <= whole).then_some((start + offset, length))
}

/// A row's value of a column of numbers or texts. `None` for an integer beyond 64 bits.
fn value(
    column: &Column,
    texts: &mut SharedTexts,
    batch: &BatchBuffers,
    bytes: &PartBytes,
    values: &Bytes,
    row: usize,
) -> Result<Option<Label>, FormatError> {
    let Storage::Offsets { width, .. } = column.storage else { return Ok(column.number(values, row)) };
    let range = bytes.range(row, width, values.len() as u64);
    let text = range.and_then(|(from, to)| std::str::from_utf8(&values[from as usize..to as usize]).ok());
    let text = text.ok_or_else(|| {
        FormatError::damaged(batch.at, format!("a value of column {} is not UTF-8", column.path))
    })?;
    Ok(Some(Label::Text(texts.share(text))))
}

/// The samples and labels of the batches so far.
struct Collected<'a> {
    samples: &'a Column,
    label: Option<&'a Column>,
    extents: Extents,
    labels: Option<ColumnValues>,
    /// The columns of values, and their types.
    columns: Vec<(&'a Column, ColumnValues)>,
    texts: SharedTexts,
    skipped: u64,
    /// Runs of rows, and whether they have a sample.
    present: Vec<(u64, bool)>,
    /// Why the labels are omitted.
    note: Option<String>,
}

impl<'a> Collected<'a> {
    fn new(chosen: &'a Chosen) -> Self {
        let (samples, label) = (&chosen.samples, chosen.label.as_ref());
        let extents = match samples.storage {
            Storage::Fixed { .. } => Extents::Runs(Vec::new()),
            _ => Extents::Rows(Vec::new()),
        };
        let labels = label.and_then(Column::label_kind).map(columns::no_labels);
        let columns = chosen.columns.iter();
        let columns = columns.filter_map(|column| Some((column, columns::no_labels(column.label_kind()?))));
        Self {
            samples,
            label,
            extents,
            labels,
            columns: columns.collect(),
            texts: SharedTexts::default(),
            skipped: 0,
            present: Vec::new(),
            note: chosen.note.clone(),
        }
    }

    /// Adds the rows of a batch. `buffers` begins with the contents of its [`ranges`].
    fn add(
        &mut self,
        batch: &BatchBuffers,
        buffers: &mut impl Iterator<Item = Bytes>,
    ) -> Result<(), FormatError> {
        let bytes = PartBytes::take(&batch.samples, buffers);
        let mut of_values = |part: &Part| {
            let bytes = PartBytes::take(part, buffers);
            (bytes, buffers.next().unwrap_or_default())
        };
        let label = batch.label.as_ref().map(&mut of_values);
        let columns: Vec<_> = batch.columns.iter().map(&mut of_values).collect();
        for row in 0..batch.rows as usize {
            let is_there = bytes.has_value(row);
            match self.present.last_mut() {
                Some((count, last)) if *last == is_there => *count += 1,
                _ => self.present.push((1, is_there)),
            }
            if !is_there {
                self.skipped += 1;
                continue;
            }
            let added = self.add_sample(&batch.samples, &bytes, row);
            added.ok_or_else(|| FormatError::damaged(batch.at, "a value lies outside the batch's values"))?;
            if let Some((bytes, values)) = &label {
                self.add_label(batch, bytes, values, row)?;
            }
            for ((column, found), (bytes, values)) in self.columns.iter_mut().zip(&columns) {
                let value = match bytes.has_value(row) {
                    true => {
                        Some(value(column, &mut self.texts, batch, bytes, values, row)?.ok_or_else(|| {
                            let why = format!("column {} exceeds 64-bit signed integers", column.path);
                            FormatError::unsupported(batch.at, why)
                        })?)
                    }
                    false => None,
                };
                columns::push_label(found, value);
            }
        }
        Ok(())
    }

    fn add_sample(&mut self, part: &Part, bytes: &PartBytes, row: usize) -> Option<()> {
        match (self.samples.storage, &mut self.extents) {
            (Storage::Fixed { width }, Extents::Runs(runs)) => {
                let (start, _) = *part.values.first()?;
                let at = start.checked_add(width.checked_mul(row as u64)?)?;
                match runs.last_mut() {
                    Some(run) if run.end() == Some(at) => run.count += 1,
                    _ => runs.push(Run { start: at, stride: width, length: width, count: 1 }),
                }
            }
            (Storage::Offsets { width, .. }, Extents::Rows(rows)) => {
                let (start, length) = *part.values.first()?;
                let (from, to) = bytes.range(row, width, length)?;
                rows.push((start.checked_add(from)?, to - from));
            }
            (Storage::Views { .. }, Extents::Rows(rows)) => rows.push(view(part, bytes, row)?),
            _ => return None,
        }
        Some(())
    }

    fn add_label(
        &mut self,
        batch: &BatchBuffers,
        bytes: &PartBytes,
        values: &Bytes,
        row: usize,
    ) -> Result<(), FormatError> {
        let (Some(column), Some(labels)) = (self.label, &mut self.labels) else { return Ok(()) };
        if !bytes.has_value(row) {
            columns::push_label(labels, None);
            return Ok(());
        }
        match value(column, &mut self.texts, batch, bytes, values, row)? {
            Some(label) => columns::push_label(labels, Some(label)),
            None => {
                self.labels = None;
                self.note = Some(format!("no labels: column {} exceeds 64-bit signed integers", column.path));
            }
        }
        Ok(())
    }

    fn finish(self, format: &str, batches: usize) -> FoundSamples {
        let count = self.extents.len();
        let mut summary =
            format!("Arrow {format}, column {}: {count} values in {batches} batches", self.samples.path);
        match (&self.note, self.label) {
            (Some(note), _) => summary += &format!(", {note}"),
            (None, Some(label)) => summary += &format!(", labels of column {}", label.path),
            (None, None) => {}
        }
        let chosen = columns::described(&self.samples.path, !self.samples.storage.is_text());
        let labels = self.labels.map(|values| ValueColumn { name: "label".to_owned(), values });
        let named = self.columns.into_iter();
        let named = named.map(|(column, values)| ValueColumn { name: column.path.clone(), values });
        FoundSamples {
            columns: named.chain(labels).collect(),
            skipped: self.skipped,
            notes: self.note.into_iter().collect(),
            ..FoundSamples::at(self.extents, summary)
        }
        .with_chosen(chosen, self.label.map(|label| &*label.path))
    }
}
