//! The columns of one batch of a catalog, in memory.
//!
//! Numbers are in memory. Each column uses as few bytes per row as its largest difference needs. So
//! no read of a sample waits for them. Texts that differ from row to row (paths, keys, ETags of
//! files) are most of a catalog and are used once per sample and epoch. For a file only their ends
//! are in memory, and the text is read on request. Each group of [`ROWS_PER_CHECKSUM`] rows has a
//! checksum of its text, computed when the whole file was checked. So a file that was overwritten
//! or truncated since is an error, and never another name. The price is one `pread` per sample, of
//! about a kilobyte.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use foreread_types::{Decoder, Sizes};
use xxhash_rust::xxh3::xxh3_64;

use crate::DatasetErrorKind;
use crate::batch_layout::{BatchLayout, NumberColumn, TextColumn, is_present, validity};
use crate::catalog_file::{CatalogFault, corrupt};
use crate::field_lists::{FieldLists, NameTable, decode_fields};
use crate::made::{MadeBatch, MadeColumns};
use crate::shared_numbers::PackedColumns;
use crate::value_columns::ValueRows;

/// The number of rows whose texts share a checksum and are read together.
const ROWS_PER_CHECKSUM: usize = 16;

/// The storage of a catalog's bytes.
#[derive(Debug)]
pub(crate) enum CatalogBytes {
    /// In memory: just built, or received.
    Memory(Bytes),
    /// In a file of this length.
    File(File, u64),
}

impl CatalogBytes {
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, length) => *length,
        }
    }

    /// The bytes in `range`. Bytes of a file are read into `room`.
    pub(crate) fn read<'a>(
        &'a self,
        range: Range<u64>,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], CatalogFault> {
        let beyond = || corrupt("it names a place outside the file");
        let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| beyond())?;
        if range.end > self.length() {
            return Err(beyond());
        }
        match self {
            Self::Memory(bytes) => {
                bytes.get(range.start as usize..).and_then(|rest| rest.get(..length)).ok_or_else(beyond)
            }
            Self::File(file, _) => {
                // The range of a file may be larger than memory.
                room.try_reserve_exact(length.saturating_sub(room.len())).map_err(|_| no_memory(length))?;
                room.resize(length, 0);
                file.read_exact_at(room, range.start).map_err(|error| unreadable(&error))?;
                Ok(room)
            }
        }
    }
}

fn no_memory(length: usize) -> CatalogFault {
    CatalogFault { kind: DatasetErrorKind::Io, why: format!("there is no memory for {length} bytes of it") }
}

fn unreadable(error: &std::io::Error) -> CatalogFault {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return CatalogFault {
            kind: DatasetErrorKind::Changed,
            why: "the file is shorter than it was".to_owned(),
        };
    }
    CatalogFault::io(error)
}

/// Integers, each in as few bytes as the difference of the largest and the smallest needs.
#[derive(Debug)]
pub(crate) struct PackedIntegers {
    least: u64,
    width: usize,
    bytes: Bytes,
}

impl PackedIntegers {
    pub(crate) fn of(values: &[u64]) -> Self {
        let least = values.iter().copied().min().unwrap_or(0);
        let most = values.iter().copied().max().unwrap_or(0);
        let width = (u64::BITS - (most - least).leading_zeros()).div_ceil(8) as usize;
        let mut bytes = Vec::with_capacity(values.len() * width);
        for value in values {
            bytes.extend_from_slice(&(value - least).to_le_bytes()[..width]);
        }
        Self { least, width, bytes: bytes.into() }
    }

    /// The value of an existing row.
    pub(crate) fn get(&self, row: usize) -> u64 {
        let mut word = [0; 8];
        word[..self.width].copy_from_slice(&self.bytes[row * self.width..][..self.width]);
        self.least + u64::from_le_bytes(word)
    }
}

/// Numbers, some of which may be absent.
#[derive(Debug)]
pub(crate) struct NullableIntegers {
    validity: Option<Bytes>,
    values: PackedIntegers,
}

impl NullableIntegers {
    /// The values, of which those whose bit in `validity` is unset are absent.
    pub(crate) fn new(validity: Option<&[u8]>, values: PackedIntegers) -> Self {
        Self { validity: validity.map(Bytes::copy_from_slice), values }
    }

    /// The value of an existing row, if it has one.
    pub(crate) fn get(&self, row: usize) -> Option<u64> {
        is_present(self.validity.as_deref(), row).then(|| self.values.get(row))
    }
}

/// Texts, one per row.
#[derive(Debug)]
pub(crate) struct TextRows {
    validity: Option<Bytes>,
    /// A zero, then the end of each row's text.
    ends: PackedIntegers,
    rows: usize,
    /// The offset of the texts in the catalog.
    start: u64,
    /// The checksum of each group's text. Empty if the text is in memory.
    checksums: Bytes,
}

impl TextRows {
    /// The row's text, or `None` if it has none.
    pub(crate) fn get<'a>(
        &self,
        source: &'a CatalogBytes,
        row: usize,
    ) -> Result<Option<Cow<'a, str>>, CatalogFault> {
        self.read(source, row, Cow::Borrowed, |text| Cow::Owned(text.to_owned()))
    }

    /// Like [`get`](Self::get), but shared: copied once from the buffer that it was read into.
    pub(crate) fn shared(&self, source: &CatalogBytes, row: usize) -> Result<Option<Arc<str>>, CatalogFault> {
        self.read(source, row, Arc::from, |text| Arc::from(text))
    }

    /// Converts the row's text. `kept` converts text that lives as long as the source, `read`
    /// converts text in the buffer of this call.
    fn read<'a, R>(
        &self,
        source: &'a CatalogBytes,
        row: usize,
        kept: impl FnOnce(&'a str) -> R,
        read: impl FnOnce(&str) -> R,
    ) -> Result<Option<R>, CatalogFault> {
        if !is_present(self.validity.as_deref(), row) {
            return Ok(None);
        }
        let no_text = |_| corrupt("a text is not UTF-8");
        let outside = || corrupt("a text lies outside its column");
        let (start, end) = (self.ends.get(row), self.ends.get(row + 1));
        let file = match source {
            CatalogBytes::Memory(bytes) => {
                let place = (self.start + start) as usize..(self.start + end) as usize;
                let text = std::str::from_utf8(bytes.get(place).ok_or_else(outside)?);
                return text.map(kept).map(Some).map_err(no_text);
            }
            CatalogBytes::File(file, _) => file,
        };
        // Before the file is read, so that the two waits for memory overlap.
        let checksum = self.checksums.as_chunks().0.get(row / ROWS_PER_CHECKSUM);
        let first = row / ROWS_PER_CHECKSUM * ROWS_PER_CHECKSUM;
        let group = self.ends.get(first)..self.ends.get(self.rows.min(first + ROWS_PER_CHECKSUM));
        let own = (start - group.start) as usize..(end - group.start) as usize;
        with_room((group.end - group.start) as usize, |room| {
            file.read_exact_at(room, self.start + group.start).map_err(|error| unreadable(&error))?;
            if checksum != Some(&xxh3_64(room).to_le_bytes()) {
                let why = "the file was written to".to_owned();
                return Err(CatalogFault { kind: DatasetErrorKind::Changed, why });
            }
            let text = room.get(own).ok_or_else(outside)?;
            let text = std::str::from_utf8(text).map_err(no_text)?;
            Ok(Some(read(text)))
        })
    }
}

/// Provides a buffer for a group's text. It is on the stack for most groups, because most are
/// short.
fn with_room<R>(length: usize, read: impl FnOnce(&mut [u8]) -> R) -> R {
    const SHORT: usize = 1024;
    if length <= SHORT { read(&mut [0; SHORT][..length]) } else { read(&mut vec![0; length]) }
}

/// The tables that rows refer to.
#[derive(Debug, Default)]
pub(crate) struct Dictionaries {
    pub(crate) labels: Vec<Arc<str>>,
    /// The objects of the shards. Empty if each row has its own object.
    pub(crate) objects: Vec<Arc<str>>,
    pub(crate) etags: Vec<Arc<str>>,
    /// The texts of each column of values that has texts.
    pub(crate) values: Vec<Option<Arc<[Arc<str>]>>>,
    /// The lists of decoders.
    pub(crate) recipes: Vec<Arc<[Decoder]>>,
}

/// The columns of one batch. A column that the version or the dataset does not have is `None`.
#[derive(Debug)]
pub(crate) struct BatchColumns {
    pub(crate) rows: usize,
    pub(crate) path: Option<TextRows>,
    pub(crate) key: Option<TextRows>,
    pub(crate) object: Option<PackedIntegers>,
    pub(crate) object_size: Option<PackedIntegers>,
    /// The offsets of samples. Whole files have none.
    pub(crate) offset: Option<PackedIntegers>,
    /// The distances of samples, if rows are runs.
    pub(crate) stride: Option<PackedIntegers>,
    pub(crate) label: Option<NullableIntegers>,
    pub(crate) modified: Option<NullableIntegers>,
    pub(crate) changed: Option<NullableIntegers>,
    pub(crate) etag: Option<TextRows>,
    pub(crate) etag_number: Option<NullableIntegers>,
    pub(crate) fields: Option<FieldLists>,
    /// The files of samples that have several.
    pub(crate) files: Option<TextRows>,
    pub(crate) crc32c: Option<NullableIntegers>,
    pub(crate) server: Option<NullableIntegers>,
    /// How samples are made, if some are decoded.
    pub(crate) made: Option<MadeColumns>,
    pub(crate) values: Vec<ValueRows>,
}

impl PackedColumns for PackedIntegers {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        visit(&mut self.bytes);
    }
}

impl PackedColumns for NullableIntegers {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.validity.iter_mut().for_each(&mut *visit);
        self.values.each_column(visit);
    }
}

impl PackedColumns for TextRows {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        self.validity.iter_mut().for_each(&mut *visit);
        self.ends.each_column(visit);
        visit(&mut self.checksums);
    }
}

impl PackedColumns for BatchColumns {
    fn each_column(&mut self, visit: &mut dyn FnMut(&mut Bytes)) {
        let Self { path, key, etag, files, .. } = self;
        [path, key, etag, files].each_column(visit);
        let Self { object, object_size, offset, stride, .. } = self;
        [object, object_size, offset, stride].each_column(visit);
        let Self { label, modified, changed, etag_number, crc32c, server, .. } = self;
        [label, modified, changed, etag_number, crc32c, server].each_column(visit);
        self.fields.each_column(visit);
        self.made.each_column(visit);
        self.values.iter_mut().for_each(|values| values.each_column(visit));
    }
}

/// Reads batches, one after another.
#[derive(Debug)]
pub(crate) struct BatchDecoder {
    pub(crate) tables: Dictionaries,
    pub(crate) names: NameTable,
    /// The length of each sample so far. Of runs, the length of all samples.
    lengths: Vec<u64>,
    /// The stored length of each sample so far, if some are decoded.
    stored: Vec<u64>,
    /// For each run the number of samples up to its end.
    pub(crate) run_ends: Vec<u64>,
    total: u64,
    /// The rows so far.
    rows: usize,
    /// The last row's object.
    object: u64,
    /// Whether rows may have another order than that of their objects.
    is_ordered: bool,
}

impl BatchDecoder {
    pub(crate) fn new(is_ordered: bool) -> Self {
        Self {
            is_ordered,
            tables: Dictionaries::default(),
            names: NameTable::default(),
            lengths: Vec::new(),
            stored: Vec::new(),
            run_ends: Vec::new(),
            total: 0,
            rows: 0,
            object: 0,
        }
    }

    /// The number of samples, and their lengths.
    pub(crate) fn sizes(&self) -> (u64, Sizes) {
        match (self.run_ends.last(), self.lengths.first()) {
            (Some(&samples), Some(&length)) => (samples, Sizes::uniform(samples, length)),
            _ => (self.lengths.len() as u64, Sizes::table(&self.lengths)),
        }
    }

    /// The stored length of each sample, if some are decoded.
    pub(crate) fn stored_sizes(&self) -> Option<Sizes> {
        (!self.stored.is_empty()).then(|| Sizes::table(&self.stored))
    }

    /// The columns of the batch at offset `start` of the catalog, with the layout `batch` in
    /// `bytes`. It checks the conditions of every row. The row's bytes lie in its object. Its label
    /// exists. Its fields lie in the sample.
    pub(crate) fn batch(
        &mut self,
        batch: &BatchLayout,
        bytes: &[u8],
        start: u64,
    ) -> Result<BatchColumns, CatalogFault> {
        let rows = batch.rows;
        let before = self.rows;
        let bad = |row: usize, why: &str| corrupt(format!("sample {} {why}", before + row));
        let wide = |numbers: &NumberColumn| -> Result<Vec<u64>, CatalogFault> {
            Ok(numbers.values(bytes, rows)?.iter().map(|value| u64::from_le_bytes(*value)).collect())
        };
        let narrow = |numbers: &NumberColumn| -> Result<Vec<u64>, CatalogFault> {
            Ok(numbers.values(bytes, rows)?.iter().map(|value| u32::from_le_bytes(*value).into()).collect())
        };
        let (offsets, lengths) = (wide(&batch.offset)?, wide(&batch.length)?);
        for (row, (&offset, &length)) in offsets.iter().zip(&lengths).enumerate() {
            let sum = self.total.checked_add(length).filter(|_| offset.checked_add(length).is_some());
            self.total = sum.ok_or_else(|| bad(row, "is impossibly long"))?;
        }
        let mut stride = None;
        // The end of each row's last sample, relative to its offset.
        let mut spans = lengths.clone();
        if let Some((distance, count)) = &batch.run {
            let (distances, counts) = (wide(distance)?, wide(count)?);
            for (row, span) in spans.iter_mut().enumerate() {
                *span = self.run(distances[row], counts[row], *span).ok_or_else(|| bad(row, "is no run"))?;
            }
            stride = Some(PackedIntegers::of(&distances));
        }
        let (mut object, mut object_size, mut offset, mut made) = (None, None, None, None);
        if let (Some(numbers), Some(sizes)) = (&batch.object, &batch.object_size) {
            let (numbers, sizes) = (narrow(numbers)?, wide(sizes)?);
            for (row, &number) in numbers.iter().enumerate() {
                if number >= self.tables.objects.len() as u64 || number < self.object && !self.is_ordered {
                    return Err(bad(row, "is of an unknown object, or out of order"));
                }
                self.object = number;
            }
            if let Some(layout) = &batch.made {
                let rows = MadeBatch { bytes, offsets: &offsets, lengths: &lengths, sizes: &sizes };
                let (columns, stored) = MadeColumns::decode(layout, &self.tables.recipes, &rows, bad)?;
                self.stored.extend_from_slice(&stored);
                made = Some(columns);
            }
            // Samples that are made have been checked, part by part.
            for row in 0..if made.is_some() { 0 } else { rows } {
                if offsets[row].checked_add(spans[row]).is_none_or(|end| end > sizes[row]) {
                    return Err(bad(row, "lies outside its object"));
                }
            }
            (object, object_size) = (Some(PackedIntegers::of(&numbers)), Some(PackedIntegers::of(&sizes)));
            offset = Some(PackedIntegers::of(&offsets));
        } else if let Some(sizes) = &batch.object_size {
            let sizes = wide(sizes)?;
            let is_outside =
                |row: &usize| offsets[*row].checked_add(lengths[*row]).is_none_or(|end| end > sizes[*row]);
            if let Some(row) = (0..rows).find(is_outside) {
                return Err(bad(row, "lies outside its file"));
            }
            (object_size, offset) = (Some(PackedIntegers::of(&sizes)), Some(PackedIntegers::of(&offsets)));
        } else if let Some(row) = offsets.iter().position(|&offset| offset != 0) {
            return Err(bad(row, "does not begin its file"));
        }
        let nullable = |numbers: &NumberColumn, values: Vec<u64>| -> Result<NullableIntegers, CatalogFault> {
            let validity = validity(bytes, numbers.validity, rows)?;
            Ok(NullableIntegers::new(validity, PackedIntegers::of(&values)))
        };
        // Checks an index into a table. The value of an absent one is not checked.
        let known = |numbers: &Option<NumberColumn>, table: &[Arc<str>], why: &str| {
            let Some(numbers) = numbers else { return Ok(None) };
            let validity = validity(bytes, numbers.validity, rows)?;
            let mut values = narrow(numbers)?;
            for (row, value) in values.iter_mut().enumerate() {
                if !is_present(validity, row) {
                    *value = 0;
                } else if *value >= table.len() as u64 {
                    return Err(bad(row, why));
                }
            }
            nullable(numbers, values).map(Some)
        };
        let texts = |text: &Option<TextColumn>| {
            text.as_ref().map(|text| decode_texts(text, bytes, start, rows)).transpose()
        };
        let columns = BatchColumns {
            rows,
            path: texts(&batch.path)?,
            key: texts(&batch.key)?,
            object,
            object_size,
            offset,
            stride,
            label: known(&batch.label, &self.tables.labels, "has an unknown label")?,
            modified: batch.modified.as_ref().map(|times| nullable(times, wide(times)?)).transpose()?,
            changed: batch.changed.as_ref().map(|digests| nullable(digests, narrow(digests)?)).transpose()?,
            etag: texts(&batch.etag)?,
            files: texts(&batch.files)?,
            etag_number: known(&batch.etag_number, &self.tables.etags, "has an unknown ETag")?,
            crc32c: batch.crc32c.as_ref().map(|sums| nullable(sums, narrow(sums)?)).transpose()?,
            server: batch.server.as_ref().map(|servers| nullable(servers, narrow(servers)?)).transpose()?,
            made,
            fields: match &batch.fields {
                Some(fields) => Some(decode_fields(fields, bytes, &lengths, &mut self.names, bad)?),
                None => None,
            },
            values: (batch.values.iter().zip(&self.tables.values))
                .map(|(layout, texts)| ValueRows::decode(layout, texts.as_ref(), bytes, start, rows))
                .collect::<Result<_, _>>()?,
        };
        self.rows += rows;
        if batch.run.is_none() {
            self.lengths.extend_from_slice(&lengths);
        }
        Ok(columns)
    }

    /// Adds a run of `count` samples of `length` bytes. Returns the distance from its offset to its
    /// end. `None` if it is impossible, or of another length than the runs before.
    fn run(&mut self, distance: u64, count: u64, length: u64) -> Option<u64> {
        if self.lengths.is_empty() {
            self.lengths.push(length);
        }
        let last = count.checked_sub(1)?;
        // Without a distance, a short file could have any number of samples.
        if self.lengths.first() != Some(&length) || (last > 0 && distance == 0) {
            return None;
        }
        let samples = self.run_ends.last().copied().unwrap_or(0).checked_add(count)?;
        samples.checked_mul(length)?;
        self.run_ends.push(samples);
        last.checked_mul(distance)?.checked_add(length)
    }
}

pub(crate) fn decode_texts(
    text: &TextColumn,
    bytes: &[u8],
    start: u64,
    rows: usize,
) -> Result<TextRows, CatalogFault> {
    let (ends, all) = text.decode(bytes, rows)?;
    let groups = (0..rows)
        .step_by(ROWS_PER_CHECKSUM)
        .map(|first| ends[first]..ends[rows.min(first + ROWS_PER_CHECKSUM)]);
    let checksum = |group: Range<u64>| xxh3_64(&all[group.start as usize..group.end as usize]).to_le_bytes();
    let checksums: Vec<u8> = groups.flat_map(checksum).collect();
    Ok(TextRows {
        validity: validity(bytes, text.validity, rows)?.map(Bytes::copy_from_slice),
        ends: PackedIntegers::of(&ends),
        rows,
        start: start + text.start() as u64,
        checksums: checksums.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_the_bytes_that_their_range_needs() {
        for (values, width) in [
            (vec![7, 7, 7], 0),
            (vec![u64::MAX, u64::MAX - 255], 1),
            (vec![0, 256], 2),
            (vec![0, u64::MAX, 5], 8),
            (vec![], 0),
        ] {
            let integers = PackedIntegers::of(&values);
            assert_eq!(integers.width, width, "{values:?}");
            assert_eq!(integers.bytes.len(), width * values.len());
            let found: Vec<u64> = (0..values.len()).map(|row| integers.get(row)).collect();
            assert_eq!(found, values);
        }
    }
}
