//! The samples that a parser has found in a file.

use std::sync::Arc;

use foreread_types::{Decoder, Recipe};
use serde::{Deserialize, Serialize};

use crate::error::one_line;

/// Samples of equal length at equal distances: sample `i` of `count` begins at `start + i *
/// stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The offset of the first sample in bytes.
    pub start: u64,
    /// The distance in bytes between the beginnings of two samples. It may be less than `length`:
    /// windows may overlap.
    pub stride: u64,
    /// The length of each sample in bytes.
    pub length: u64,
    /// The number of samples.
    pub count: u64,
}

impl Run {
    /// The offset after the last sample. `None` if it is larger than any offset.
    pub fn end(&self) -> Option<u64> {
        let last = self.count.checked_sub(1)?;
        last.checked_mul(self.stride)?.checked_add(self.start)?.checked_add(self.length)
    }
}

/// Where the samples of a file lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extents {
    /// Offset and length of each sample, in bytes.
    Rows(Vec<(u64, u64)>),
    /// Samples whose places can be computed. All runs have one length.
    Runs(Vec<Run>),
}

impl Extents {
    /// The number of samples.
    pub fn len(&self) -> u64 {
        match self {
            Self::Rows(rows) => rows.len() as u64,
            Self::Runs(runs) => runs.iter().map(|run| run.count).sum(),
        }
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same samples in a file where a part that begins at `by` was read as a file.
    pub(crate) fn moved(mut self, by: u64) -> Self {
        match &mut self {
            Self::Rows(rows) => rows.iter_mut().for_each(|(start, _)| *start += by),
            Self::Runs(runs) => runs.iter_mut().for_each(|run| run.start += by),
        }
        self
    }
}

/// How the samples of a file are made from stored bytes, where some are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeRows {
    /// The steps of decoding, without repetition.
    #[serde(with = "crate::recipes")]
    pub recipes: Vec<Vec<Decoder>>,
    /// One for each sample: its first part. The sample's extent has the offset of the part's stored
    /// bytes, and the number of bytes that all parts deliver.
    pub rows: Vec<MadeRow>,
    /// The other parts of samples that have several, ordered by sample.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<MorePart>,
}

/// A part of a sample after its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MorePart {
    /// The position of the sample in [`MadeRows::rows`].
    pub row: usize,
    /// The offset of the stored bytes in the object.
    pub offset: u64,
    /// The number of delivered bytes, at least 1.
    pub length: u64,
    /// How they are made.
    pub made: MadeRow,
}

/// How a sample is made from stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeRow {
    /// The number of stored bytes.
    pub stored: u64,
    /// The number of decoded bytes.
    pub decoded: u64,
    /// The offset of the delivered bytes in the decoded ones.
    pub slice: u64,
    /// The position in [`MadeRows::recipes`]. `None`: the stored bytes are the sample.
    pub recipe: Option<u32>,
}

impl MadeRow {
    /// A sample of `length` bytes that is stored as it is.
    pub const fn plain(length: u64) -> Self {
        Self { stored: length, decoded: length, slice: 0, recipe: None }
    }

    /// Whether this part at `at` and the `next` one at `offset` are one piece of the object.
    fn joins(&self, at: u64, next: &Self, offset: u64) -> bool {
        self.recipe.is_none() && next.recipe.is_none() && at.checked_add(self.stored) == Some(offset)
    }
}

impl MadeRows {
    /// Adds a sample: a part of the `decoded` bytes that `decoders` make of `stored` bytes. It
    /// begins at `slice` in them.
    pub fn push(&mut self, stored: u64, decoders: &[Decoder], decoded: u64, slice: u64) {
        let recipe = Some(self.recipe(decoders));
        self.rows.push(MadeRow { stored, decoded, slice, recipe });
    }

    /// The number of a list of decoders.
    pub fn recipe(&mut self, decoders: &[Decoder]) -> u32 {
        let known = self.recipes.iter().rposition(|known| known == decoders);
        let recipe = known.unwrap_or_else(|| {
            self.recipes.push(decoders.to_vec());
            self.recipes.len() - 1
        });
        recipe as u32
    }

    /// Adds a sample of `length` bytes that is stored as it is.
    pub fn push_plain(&mut self, length: u64) {
        self.rows.push(MadeRow::plain(length));
    }

    /// Adds a part of `length` delivered bytes to the last sample, stored at `offset`.
    pub fn push_more(&mut self, offset: u64, length: u64, made: MadeRow) {
        if let Some(row) = self.rows.len().checked_sub(1) {
            self.more.push(MorePart { row, offset, length, made });
        }
    }

    /// The other parts of sample `row`.
    pub fn more(&self, row: usize) -> &[MorePart] {
        let start = self.more.partition_point(|part| part.row < row);
        let of_row = self.more[start..].partition_point(|part| part.row == row);
        &self.more[start..start + of_row]
    }

    /// Adds a sample of these parts: offset of the stored bytes, delivered bytes, how they are
    /// made. Parts without bytes are left out. Neighbours that are stored as they are become one
    /// part. Returns the sample's extent.
    pub fn push_parts(&mut self, parts: impl IntoIterator<Item = (u64, u64, MadeRow)>) -> (u64, u64) {
        let (row, first) = (self.rows.len(), self.more.len());
        let mut extent = (0, 0_u64);
        for (offset, length, made) in parts.into_iter().filter(|(_, length, _)| *length > 0) {
            extent.1 = extent.1.saturating_add(length);
            if self.rows.len() == row {
                extent.0 = offset;
                self.rows.push(made);
                continue;
            }
            let (at, last) = match self.more.get(first..).and_then(<[MorePart]>::last) {
                Some(part) => (part.offset, part.made),
                None => (extent.0, self.rows[row]),
            };
            if !last.joins(at, &made, offset) {
                self.push_more(offset, length, made);
                continue;
            }
            let joined = MadeRow::plain(last.stored + length);
            match self.more.get_mut(first..).and_then(<[MorePart]>::last_mut) {
                Some(part) => (part.length, part.made) = (joined.stored, joined),
                None => self.rows[row] = joined,
            }
        }
        if self.rows.len() == row {
            self.push_plain(0);
        }
        extent
    }

    /// Whether each other part belongs to a sample, in their order.
    pub fn is_ordered(&self) -> bool {
        self.more.is_sorted_by_key(|part| part.row)
            && self.more.last().is_none_or(|part| part.row < self.rows.len())
    }

    /// Whether sample `row` can be made, at `offset` in an object of `size` bytes, with `length`
    /// delivered bytes.
    pub fn fits(&self, row: usize, extent: (u64, u64), size: u64) -> bool {
        let decoders = |recipe: u32| self.recipes.get(recipe as usize).map(Vec::as_slice);
        self.rows.get(row).is_some_and(|made| fits_parts(made, self.more(row), decoders, extent, size))
    }
}

/// Whether a sample can be made of a first part and others, at `offset` in an object of `size`
/// bytes, with `length` delivered bytes. `decoders` has the steps of a number.
pub fn fits_parts<'a>(
    first: &MadeRow,
    more: &[MorePart],
    decoders: impl Fn(u32) -> Option<&'a [Decoder]>,
    (offset, length): (u64, u64),
    size: u64,
) -> bool {
    let part = |made: &MadeRow, extent| match made.recipe.map(&decoders) {
        None => fits(made, None, extent, size),
        Some(steps) => steps.is_some_and(|steps| fits(made, Some(steps), extent, size)),
    };
    let of_more = more.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.length));
    let Some(own) = of_more.and_then(|of_more| length.checked_sub(of_more)) else { return false };
    more.len() < MOST_PARTS
        && (more.is_empty() || own > 0)
        && part(first, (offset, own))
        && more.iter().all(|more| more.length > 0 && part(&more.made, (more.offset, more.length)))
}

/// The most parts of a sample.
pub const MOST_PARTS: usize = 1024;

/// The most bytes that are decoded together.
pub const MOST_DECODED: u64 = 1 << 30;

/// Whether a sample can be made by `decoders`, at `offset` in an object of `size` bytes, with
/// `length` delivered bytes.
pub fn fits(made: &MadeRow, decoders: Option<&[Decoder]>, (offset, length): (u64, u64), size: u64) -> bool {
    if offset.checked_add(made.stored).is_none_or(|end| end > size) {
        return false;
    }
    let Some(decoders) = decoders else { return *made == MadeRow::plain(length) };
    let is_slice = length > 0 && made.slice.checked_add(length).is_some_and(|end| end <= made.decoded);
    let is_slice = is_slice && made.decoded <= MOST_DECODED.max(length);
    let recipe = Recipe::new(decoders, made.decoded);
    is_slice && recipe.is_ok_and(|recipe| recipe.lengths(made.stored).is_some())
}

/// How the bytes of a sample are an array: little endian, row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayType {
    /// NumPy's name of the element type, as in `array.dtype.str`: `<f4`, `|u1`, `<i8`.
    pub dtype: String,
    /// The lengths of the dimensions. The first one is computed from the sample's length if it is
    /// `None`.
    pub shape: Vec<Option<u64>>,
}

impl ArrayType {
    /// The type of arrays of both types: they may differ in the first length.
    pub fn with(mut self, other: &Self) -> Option<Self> {
        if self.shape != other.shape {
            let rest = |array: &Self| array.shape.get(1..).map(<[_]>::to_vec);
            if rest(&self).is_none() || rest(&self) != rest(other) {
                return None;
            }
            self.shape[0] = None;
        }
        (self.dtype == other.dtype).then_some(self)
    }
}

/// One value per sample, which the catalog keeps: labels and small numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueColumn {
    /// The column's name, such as `label`.
    pub name: String,
    /// The values.
    pub values: ColumnValues,
}

impl ValueColumn {
    /// The values of the samples that are kept.
    pub(crate) fn only(self, keep: &[bool]) -> Self {
        fn kept<T>(values: Vec<T>, keep: &[bool]) -> Vec<T> {
            values.into_iter().zip(keep).filter(|(_, keep)| **keep).map(|(value, _)| value).collect()
        }
        let values = match self.values {
            ColumnValues::Integers(values) => ColumnValues::Integers(kept(values, keep)),
            ColumnValues::Floats(values) => ColumnValues::Floats(kept(values, keep)),
            ColumnValues::Texts(values) => ColumnValues::Texts(kept(values, keep)),
            ColumnValues::Arrays { array, width, bytes } => {
                let rows = bytes.chunks(width.max(1)).zip(keep).filter(|(_, keep)| **keep);
                let bytes = rows.flat_map(|(row, _)| row.iter().copied()).collect();
                ColumnValues::Arrays { array, width, bytes }
            }
        };
        Self { values, ..self }
    }
}

/// The values of a [`ValueColumn`], in the order of samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ColumnValues {
    /// Integers. Missing values are `None`.
    Integers(Vec<Option<i64>>),
    /// Numbers with a fraction.
    Floats(#[serde(with = "bits")] Vec<Option<f64>>),
    /// Texts. Equal ones may be shared.
    Texts(Vec<Option<Arc<str>>>),
    /// Arrays of one type and shape: the bytes of all samples, one after another.
    Arrays {
        /// The type of each sample's array.
        array: ArrayType,
        /// The number of bytes per sample.
        width: usize,
        /// `width` bytes per sample.
        bytes: Vec<u8>,
    },
}

impl ColumnValues {
    /// The number of samples.
    pub fn len(&self) -> usize {
        match self {
            Self::Integers(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Texts(values) => values.len(),
            Self::Arrays { width, bytes, .. } => bytes.len().checked_div(*width).unwrap_or(0),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A named part of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldExtent {
    /// The field's name.
    pub name: Arc<str>,
    /// Its offset in the sample, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Which parts of a file were taken, where its format has several. All files of a dataset have the
/// same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenParts {
    /// The part with the samples and its type: `column image.bytes of bytes`.
    pub samples: String,
    /// The part with the labels, if there is one: `label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The samples of one file, in the order in which the format numbers them.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundSamples {
    /// Where they lie.
    pub extents: Extents,
    /// How they are made from stored bytes, if some are. Then they have extents, not runs.
    pub made: Option<MadeRows>,
    /// Their names in the file, or none: LMDB's keys, names of HDF5 datasets. As many as samples.
    pub keys: Option<Vec<String>>,
    /// Their named parts, or none. As many lists as samples, each in the order of offsets.
    pub fields: Option<Vec<Vec<FieldExtent>>>,
    /// Values that were read with the directory. Each has as many values as there are samples.
    pub columns: Vec<ValueColumn>,
    /// The type of each sample's bytes, if the format knows it.
    pub array: Option<ArrayType>,
    /// The types of fields, by name, as far as the format knows them.
    pub field_arrays: Vec<(Arc<str>, ArrayType)>,
    /// Which parts were taken, where the format leaves a choice.
    pub chosen: Option<ChosenParts>,
    /// Entries that are not samples: counters, metadata, a last short window.
    pub skipped: u64,
    /// Notes for the user, one line each: labels that cannot be read.
    pub notes: Vec<String>,
    /// The findings, for people: one line, such as `HDF5 dataset /images: 50000 x 224 x 224 x 3
    /// |u1`.
    pub summary: String,
}

impl FoundSamples {
    /// Samples at these places, with nothing else.
    pub fn at(extents: Extents, summary: impl Into<String>) -> Self {
        Self {
            extents,
            made: None,
            keys: None,
            fields: None,
            columns: Vec::new(),
            array: None,
            field_arrays: Vec::new(),
            chosen: None,
            skipped: 0,
            notes: Vec::new(),
            summary: one_line(summary.into()),
        }
    }

    /// Sets which parts were taken.
    #[must_use]
    pub fn with_chosen(self, samples: impl Into<String>, label: Option<&str>) -> Self {
        let samples = one_line(samples.into());
        Self { chosen: Some(ChosenParts { samples, label: label.map(str::to_owned) }), ..self }
    }

    /// The number of samples.
    pub fn len(&self) -> u64 {
        self.extents.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Numbers as their bits: JSON has neither infinity nor NaN.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[Option<f64>], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(values.iter().map(|value| value.map(f64::to_bits)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Option<f64>>, D::Error> {
        let bits = Vec::<Option<u64>>::deserialize(from)?;
        Ok(bits.into_iter().map(|bits| bits.map(f64::from_bits)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_neighbours_become_one_part() {
        let plain = |at, length| (at, length, MadeRow::plain(length));
        let mut made = MadeRows::default();
        let zlib = MadeRow { stored: 5, decoded: 40, slice: 8, recipe: Some(made.recipe(&[Decoder::Zlib])) };
        assert_eq!(made.push_parts([plain(10, 0), plain(20, 5), plain(25, 7)]), (20, 12));
        assert_eq!(made.push_parts([plain(9, 0)]), (0, 0));
        let parts = [plain(3, 2), (50, 30, zlib), plain(55, 1), plain(56, 1), plain(60, 4), plain(0, 0)];
        assert_eq!(made.push_parts(parts), (3, 38));
        assert_eq!(made.push_parts([(50, 30, zlib)]), (50, 30));
        assert_eq!(made.rows, [MadeRow::plain(12), MadeRow::plain(0), MadeRow::plain(2), zlib]);
        let more: Vec<_> = made.more(2).iter().map(|part| (part.offset, part.length, part.made)).collect();
        assert_eq!(more, [(50, 30, zlib), plain(55, 2), plain(60, 4)]);
        assert!(made.is_ordered() && made.more(0).is_empty() && made.more(3).is_empty());
        assert!(made.fits(2, (3, 38), 64) && !made.fits(2, (3, 38), 63) && !made.fits(2, (3, 36), 64));
        made.more[0].row = 4;
        assert!(!made.is_ordered());
    }

    #[test]
    fn numbers_survive_json() {
        let numbers = vec![Some(0.1), Some(f64::INFINITY), None, Some(f64::NAN), Some(-0.0)];
        let text = serde_json::to_string(&ColumnValues::Floats(numbers.clone())).unwrap();
        let ColumnValues::Floats(read) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        let bits = |values: Vec<Option<f64>>| values.into_iter().map(|value| value.map(f64::to_bits));
        assert!(bits(read).eq(bits(numbers)));
    }
}
