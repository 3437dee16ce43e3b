//! The columns of one batch of a catalog, in memory.
//!
//! [Numbers](integers) are in memory, so no read of a sample waits for them. [Texts](texts) stay in
//! the file. A batch is checked while it is decoded.

pub(crate) mod fields;
pub(crate) mod integers;
pub(crate) mod made;
pub(crate) mod parts;
pub(crate) mod runs;
pub(crate) mod shared_numbers;
pub(crate) mod texts;
pub(crate) mod values;

use std::sync::Arc;

use bytes::Bytes;
use foreread_types::{Decoder, Sizes};

use crate::catalog_file::columns::fields::{FieldLists, NameTable, decode_fields};
use crate::catalog_file::columns::integers::{NullableIntegers, PackedIntegers};
use crate::catalog_file::columns::made::{MadeBatch, MadeColumns};
use crate::catalog_file::columns::shared_numbers::PackedColumns;
use crate::catalog_file::columns::texts::{TextRows, decode_texts};
use crate::catalog_file::columns::values::ValueRows;
use crate::catalog_file::fault::{CatalogFault, corrupt};
use crate::catalog_file::layout::BatchLayout;
use crate::catalog_file::layout::column::{NumberColumn, TextColumn, is_present, validity};

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
