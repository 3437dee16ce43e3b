//! The samples of a shard, as columns. A row costs its numbers and its name, and no allocation.

use std::ops::Range;
use std::sync::Arc;

use foreread_formats::{
    ArrayType, ChosenParts, Extents, FoundSamples, MadeRow, MadeRows, MorePart, Run, ValueColumn,
};
use foreread_tier::Object;
use foreread_types::Decoder;
use serde::{Deserialize, Serialize};

/// Texts, concatenated.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextList {
    text: String,
    ends: Vec<usize>,
}

impl TextList {
    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text at `index`. Empty if there is none.
    pub(crate) fn get(&self, index: usize) -> &str {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(index).map_or("", |&end| &self.text[start..end])
    }

    pub(crate) fn last(&self) -> &str {
        self.len().checked_sub(1).map_or("", |last| self.get(last))
    }
}

/// The columns that a format has, in addition to the extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FormatColumns {
    /// Names of samples.
    pub(crate) keys: bool,
    /// Checksums of samples: CRC-32C, or CRC-32 in zip archives.
    pub(crate) crc32c: bool,
    /// Fields of samples.
    pub(crate) fields: bool,
}

impl FormatColumns {
    pub(crate) const TAR: Self = Self { keys: true, crc32c: false, fields: true };
    pub(crate) const TFRECORD: Self = Self { keys: false, crc32c: true, fields: false };
    pub(crate) const ZIP: Self = Self { keys: true, crc32c: true, fields: false };
}

/// The samples of one shard, in the order of their offsets.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleRows {
    /// The name of each sample in its shard. Records have no names.
    keys: Option<TextList>,
    /// Offset in the object, and length.
    extents: Vec<(u64, u64)>,
    /// The checksum of each sample's bytes. `None` if the format has none.
    crc32c: Option<Vec<u32>>,
    /// The end of each sample's fields. `None` if the format has none.
    field_ends: Option<Vec<usize>>,
    field_names: TextList,
    /// Offset in the sample, and length.
    field_extents: Vec<(u64, u64)>,
    extra: ShardExtra,
}

/// The findings of some parsers in addition to the extents of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardExtra {
    /// Samples whose extents are computed. Then there are no rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) runs: Vec<Run>,
    /// How samples are made, if some are decoded. Then there are no runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made: Option<MadeRows>,
    /// Values of the samples: labels and small numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) values: Vec<ValueColumn>,
    /// The type of each sample's bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) array: Option<ArrayType>,
    /// The types of fields, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) field_arrays: Vec<(Arc<str>, ArrayType)>,
    /// Which parts of the shard were taken, where its format leaves a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chosen: Option<ChosenParts>,
    /// The findings, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) summary: String,
}

impl ShardExtra {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The number of samples in runs.
    fn samples(&self) -> u64 {
        self.runs.iter().map(|run| run.count).fold(0, u64::saturating_add)
    }

    /// Whether this fits a shard of `size` bytes with samples at these extents.
    pub(crate) fn is_valid(&self, extents: &[(u64, u64)], size: u64) -> bool {
        let rows = extents.len();
        let fits = |run: &Run| run.stride > 0 && run.end().is_some_and(|end| end <= size);
        let count = self.samples().saturating_add(rows as u64);
        let mut numbered = extents.iter().enumerate();
        let is_inside = match &self.made {
            None => numbered.all(|(_, (at, length))| at.checked_add(*length).is_some_and(|end| end <= size)),
            Some(made) => {
                made.rows.len() == rows
                    && made.is_ordered()
                    && numbered.all(|(row, extent)| made.fits(row, *extent, size))
            }
        };
        is_inside
            && (rows == 0 || self.runs.is_empty())
            && self.runs.iter().all(fits)
            && self.values.iter().all(|column| column.values.len() as u64 == count)
    }
}

impl SampleRows {
    /// An empty table with these columns.
    pub(crate) fn new(columns: FormatColumns) -> Self {
        Self {
            keys: columns.keys.then(TextList::default),
            crc32c: columns.crc32c.then(Vec::new),
            field_ends: columns.fields.then(Vec::new),
            ..Self::default()
        }
    }

    /// The samples that a parser has found, in its order.
    pub(crate) fn found(found: FoundSamples) -> Self {
        let columns =
            FormatColumns { keys: found.keys.is_some(), crc32c: false, fields: found.fields.is_some() };
        let mut rows = Self::new(columns);
        rows.extra = ShardExtra {
            runs: Vec::new(),
            made: found.made,
            values: found.columns,
            array: found.array,
            field_arrays: found.field_arrays,
            chosen: found.chosen,
            summary: found.summary,
        };
        match found.extents {
            Extents::Runs(mut runs) => {
                runs.retain(|run| run.count > 0);
                rows.extra.runs = runs;
            }
            Extents::Rows(extents) => {
                let (keys, fields) = (found.keys.unwrap_or_default(), found.fields.unwrap_or_default());
                for (row, (offset, length)) in extents.into_iter().enumerate() {
                    rows.push(keys.get(row).map_or("", String::as_str), offset, length, 0);
                    for field in fields.get(row).into_iter().flatten() {
                        rows.push_part(&field.name, field.offset, field.length);
                    }
                }
            }
        }
        rows
    }

    /// The same rows in an object that is decoded as a whole, so that all begin with it.
    pub(crate) fn at_the_beginning(mut self) -> Self {
        self.extents.iter_mut().for_each(|(start, _)| *start = 0);
        self
    }

    /// The same rows with this beyond them.
    pub(crate) fn with_extra(self, extra: ShardExtra) -> Self {
        Self { extra, ..self }
    }

    pub(crate) fn extra(&self) -> &ShardExtra {
        &self.extra
    }

    /// Replaces computed extents by one extent per sample.
    pub(crate) fn expand(&mut self) {
        for run in std::mem::take(&mut self.extra.runs) {
            self.extents.extend((0..run.count).map(|sample| (run.start + sample * run.stride, run.length)));
        }
    }

    /// Adds a sample, without fields so far. Values of missing columns are ignored.
    pub(crate) fn push(&mut self, key: &str, offset: u64, length: u64, crc32c: u32) {
        self.extents.push((offset, length));
        if let Some(keys) = &mut self.keys {
            keys.push(key);
        }
        if let Some(sums) = &mut self.crc32c {
            sums.push(crc32c);
        }
        if let Some(ends) = &mut self.field_ends {
            ends.push(self.field_extents.len());
        }
    }

    /// Adds a field to the last sample, at `start` in the object. The sample then ends where the
    /// field ends.
    pub(crate) fn push_field(&mut self, name: &str, start: u64, length: u64) {
        let Some((offset, whole)) = self.extents.last_mut() else { return };
        let from = start.saturating_sub(*offset);
        *whole = from + length;
        self.push_part(name, from, length);
    }

    /// Adds a field to the last sample, at `offset` in the sample, whose length stays.
    pub(crate) fn push_part(&mut self, name: &str, offset: u64, length: u64) {
        let Some(end) = self.field_ends.as_mut().and_then(|ends| ends.last_mut()) else { return };
        self.field_names.push(name);
        self.field_extents.push((offset, length));
        *end = self.field_extents.len();
    }

    /// The columns that exist.
    pub(crate) fn columns(&self) -> FormatColumns {
        FormatColumns {
            keys: self.keys.is_some(),
            crc32c: self.crc32c.is_some(),
            fields: self.field_ends.is_some(),
        }
    }

    /// The number of samples.
    pub(crate) fn len(&self) -> u64 {
        self.extra.samples().saturating_add(self.extents.len() as u64)
    }

    /// The number of samples whose extents are computed.
    pub(crate) fn computed(&self) -> u64 {
        self.extra.samples()
    }

    /// The number of samples with an extent of their own.
    pub(crate) fn rows(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn extent(&self, row: usize) -> (u64, u64) {
        self.extents[row]
    }

    /// All extents.
    pub(crate) fn extents(&self) -> &[(u64, u64)] {
        &self.extents
    }

    /// How the row's sample is made.
    pub(crate) fn made(&self, row: usize) -> MadeRow {
        let made = self.extra.made.as_ref().and_then(|made| made.rows.get(row)).copied();
        made.unwrap_or_else(|| MadeRow::plain(self.extents[row].1))
    }

    /// The parts of the row's sample after its first one.
    pub(crate) fn more(&self, row: usize) -> &[MorePart] {
        self.extra.made.as_ref().map_or(&[], |made| made.more(row))
    }

    /// The list of decoders of this number.
    pub(crate) fn decoders(&self, recipe: u32) -> Option<&[Decoder]> {
        self.extra.made.as_ref()?.recipes.get(recipe as usize).map(Vec::as_slice)
    }

    /// The row's key. `None` if the format has none.
    pub(crate) fn key(&self, row: usize) -> Option<&str> {
        self.keys.as_ref().map(|keys| keys.get(row))
    }

    pub(crate) fn last_key(&self) -> Option<&str> {
        self.keys.as_ref().filter(|keys| keys.len() > 0).map(TextList::last)
    }

    pub(crate) fn crc32c(&self, row: usize) -> Option<u32> {
        self.crc32c.as_ref()?.get(row).copied()
    }

    /// The range of the row's fields. `None` if the format has none.
    pub(crate) fn fields(&self, row: usize) -> Option<Range<usize>> {
        let ends = self.field_ends.as_ref()?;
        let start = row.checked_sub(1).map_or(0, |before| ends[before]);
        Some(start..ends[row])
    }

    pub(crate) fn field(&self, field: usize) -> (&str, u64, u64) {
        let (offset, length) = self.field_extents[field];
        (self.field_names.get(field), offset, length)
    }

    /// The sum of all lengths.
    pub(crate) fn bytes(&self) -> u64 {
        let own = self.extents.iter().map(|&(_, length)| length);
        let computed = self.extra.runs.iter().map(|run| run.length.saturating_mul(run.count));
        own.chain(computed).fold(0, u64::saturating_add)
    }
}

/// One object and the samples in it.
#[derive(Clone, Debug)]
pub(crate) struct IndexedShard {
    pub(crate) object: Object,
    pub(crate) rows: SampleRows,
    /// Members that are not samples.
    pub(crate) skipped: u64,
}
