//! The columns of a table of samples, with their meaning.

use std::fmt;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array,
    LargeStringArray, UInt64Array,
};
use arrow_schema::ArrowError;
use arrow_select::filter::filter;

use crate::catalog_file::column_names::LABEL;
use crate::messages::listed;
use crate::{DatasetError, DatasetErrorKind};
use foreread_formats::ArrayType;

/// The rows of a table: one sample each, in this order.
///
/// All columns have one length. A row may name the same file as another.
#[derive(Clone, Debug)]
pub struct TableRows {
    pub(super) name: String,
    pub(super) paths: LargeStringArray,
    /// The names of the files of each sample, if samples have several.
    pub(super) fields: Vec<String>,
    /// The paths of all files but the first ones.
    pub(super) more: Vec<LargeStringArray>,
    /// The rows' numbers in the table, from 1.
    pub(super) numbers: UInt64Array,
    pub(super) sizes: Option<UInt64Array>,
    pub(super) tags: Option<LargeStringArray>,
    /// Where samples start in their files, and their lengths.
    pub(super) parts: Option<(UInt64Array, UInt64Array)>,
    pub(super) label: Option<TableLabel>,
    /// The name of the column with the labels.
    pub(super) label_column: Option<String>,
    pub(super) values: Vec<(String, TableColumn)>,
}

/// The values of one column. A row without a value has a null, except in arrays.
#[derive(Clone, Debug)]
pub enum TableColumn {
    /// Integers.
    Integers(Int64Array),
    /// Numbers with a fraction.
    Floats(Float64Array),
    /// Texts.
    Texts(LargeStringArray),
    /// Arrays of one type, by their bytes.
    Arrays(ArrayType, FixedSizeBinaryArray),
}

/// The labels of rows.
#[derive(Clone, Debug)]
pub enum TableLabel {
    /// The names of all classes in the order of their numbers, and each row's class.
    Classes(Vec<String>, Int32Array),
    /// Numbers or arrays.
    Values(TableColumn),
}

impl TableColumn {
    /// The column as an array of Arrow.
    pub(super) fn array(&self) -> &dyn Array {
        match self {
            Self::Integers(array) => array,
            Self::Floats(array) => array,
            Self::Texts(array) => array,
            Self::Arrays(_, array) => array,
        }
    }

    fn filtered(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        let kept = filter(self.array(), keep)?;
        Ok(match self {
            Self::Integers(_) => Self::Integers(kept.to_data().into()),
            Self::Floats(_) => Self::Floats(kept.to_data().into()),
            Self::Texts(_) => Self::Texts(kept.to_data().into()),
            Self::Arrays(kind, _) => Self::Arrays(kind.clone(), kept.to_data().into()),
        })
    }
}

impl TableLabel {
    /// The labels as an array of Arrow.
    pub(super) fn array(&self) -> &dyn Array {
        match self {
            Self::Classes(_, numbers) => numbers,
            Self::Values(column) => column.array(),
        }
    }

    fn filtered(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        Ok(match self {
            Self::Classes(names, numbers) => {
                Self::Classes(names.clone(), filter(numbers, keep)?.to_data().into())
            }
            Self::Values(column) => Self::Values(column.filtered(keep)?),
        })
    }
}

impl TableRows {
    /// Rows of these files. `name` is the table's in messages.
    pub fn new(name: impl Into<String>, paths: LargeStringArray) -> Self {
        let numbers = UInt64Array::from_iter_values(1..=paths.len() as u64);
        let name = name.into();
        Self {
            name,
            paths,
            fields: Vec::new(),
            more: Vec::new(),
            numbers,
            sizes: None,
            tags: None,
            parts: None,
            label: None,
            label_column: None,
            values: Vec::new(),
        }
    }

    /// Rows of samples that have several files each, with their names: fields of the samples.
    ///
    /// # Panics
    /// Without a field, and as [`with_sizes`](Self::with_sizes).
    pub fn of_fields(
        name: impl Into<String>,
        fields: impl IntoIterator<Item = (String, LargeStringArray)>,
    ) -> Self {
        let (fields, mut paths): (Vec<String>, Vec<LargeStringArray>) = fields.into_iter().unzip();
        let more = paths.split_off(1);
        let rows = Self::new(name, paths.remove(0));
        more.iter().for_each(|paths| rows.expect(paths));
        Self { fields, more, ..rows }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same rows with the length of each file in bytes.
    ///
    /// # Panics
    /// If there are more or fewer sizes than rows. So do the other setters.
    #[must_use]
    pub fn with_sizes(self, sizes: UInt64Array) -> Self {
        self.expect(&sizes);
        Self { sizes: Some(sizes), ..self }
    }

    /// The same rows with the ETag of each file.
    ///
    /// # Panics
    /// As [`with_sizes`](Self::with_sizes).
    #[must_use]
    pub fn with_tags(self, tags: LargeStringArray) -> Self {
        self.expect(&tags);
        Self { tags: Some(tags), ..self }
    }

    /// The same rows as parts of their files: where each begins, and its length in bytes.
    ///
    /// # Panics
    /// As [`with_sizes`](Self::with_sizes).
    #[must_use]
    pub fn with_parts(self, starts: UInt64Array, lengths: UInt64Array) -> Self {
        self.expect(&starts);
        self.expect(&lengths);
        Self { parts: Some((starts, lengths)), ..self }
    }

    /// The same rows with labels.
    ///
    /// # Panics
    /// As [`with_sizes`](Self::with_sizes).
    #[must_use]
    pub fn with_label(self, label: TableLabel) -> Self {
        self.expect(label.array());
        Self { label: Some(label), ..self }
    }

    /// The same rows with the name of the column that has the labels.
    #[must_use]
    pub fn with_label_column(self, name: impl Into<String>) -> Self {
        Self { label_column: Some(name.into()), ..self }
    }

    /// The same rows with one more column of values.
    ///
    /// # Panics
    /// As [`with_sizes`](Self::with_sizes).
    #[must_use]
    pub fn with_values(mut self, name: impl Into<String>, column: TableColumn) -> Self {
        self.expect(column.array());
        // In the order of names, so that a table's own order of columns does not matter.
        let name = name.into();
        let at = self.values.partition_point(|(known, _)| *known <= name);
        self.values.insert(at, (name, column));
        self
    }

    fn expect(&self, column: &dyn Array) {
        assert_eq!(column.len(), self.len(), "a column of {} has another length", self.name);
    }

    /// The rows that `keep` selects, with their numbers.
    ///
    /// # Errors
    /// [`DatasetErrorKind::Invalid`] if `keep` has another length.
    pub fn filtered(&self, keep: &BooleanArray) -> Result<Self, DatasetError> {
        self.try_filtered(keep).map_err(|error| self.invalid(error))
    }

    fn try_filtered(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        let kept = |array: &dyn Array| -> Result<ArrayRef, ArrowError> { filter(array, keep) };
        let numbers =
            |array: &UInt64Array| -> Result<UInt64Array, ArrowError> { Ok(kept(array)?.to_data().into()) };
        let texts = |array: &LargeStringArray| -> Result<LargeStringArray, ArrowError> {
            Ok(kept(array)?.to_data().into())
        };
        let part = |(starts, lengths): &(UInt64Array, UInt64Array)| -> Result<_, ArrowError> {
            Ok((numbers(starts)?, numbers(lengths)?))
        };
        let values = self.values.iter().map(|(name, column)| Ok((name.clone(), column.filtered(keep)?)));
        Ok(Self {
            name: self.name.clone(),
            paths: texts(&self.paths)?,
            fields: self.fields.clone(),
            more: self.more.iter().map(texts).collect::<Result<_, _>>()?,
            numbers: numbers(&self.numbers)?,
            sizes: self.sizes.as_ref().map(numbers).transpose()?,
            tags: self.tags.as_ref().map(texts).transpose()?,
            parts: self.parts.as_ref().map(part).transpose()?,
            label_column: self.label_column.clone(),
            label: self.label.as_ref().map(|label| label.filtered(keep)).transpose()?,
            values: values.collect::<Result<_, ArrowError>>()?,
        })
    }

    /// The paths of each row's files: a column for each field.
    pub(super) fn columns(&self) -> impl Iterator<Item = &LargeStringArray> {
        std::iter::once(&self.paths).chain(&self.more)
    }

    /// The names of the classes, and each row's class.
    pub(super) fn classes(&self) -> (&[String], Option<&Int32Array>) {
        match &self.label {
            Some(TableLabel::Classes(names, numbers)) => (names, Some(numbers)),
            _ => (&[], None),
        }
    }

    /// The columns of values: labels that are no classes, and the others.
    pub(super) fn value_columns(&self) -> impl Iterator<Item = (&str, &TableColumn)> {
        let label = match &self.label {
            Some(TableLabel::Values(column)) => Some((LABEL, column)),
            _ => None,
        };
        label.into_iter().chain(self.values.iter().map(|(name, column)| (name.as_str(), column)))
    }

    /// An error about this table.
    pub(super) fn invalid(&self, why: impl fmt::Display) -> DatasetError {
        DatasetError::new(DatasetErrorKind::Invalid, format!("{}: {why}", self.name))
    }

    /// The first of these rows and their paths, for a message: `row 3 (a.jpg), row 5 (b.jpg)`.
    pub(super) fn named(&self, rows: &[usize]) -> String {
        self.named_by(rows, |row| self.path(row))
    }

    /// The same, with the path that is shown of each row.
    pub(super) fn named_by<'a>(&self, rows: &[usize], path: impl Fn(usize) -> Option<&'a str>) -> String {
        let text = |row: &usize| named_row(self.numbers.value(*row), path(*row));
        let texts: Vec<String> = rows.iter().take(8).map(text).collect();
        listed(texts.iter().map(String::as_str), rows.len())
    }

    /// A row and its path, for a message.
    pub(super) fn row(&self, row: usize) -> String {
        named_row(self.numbers.value(row), self.path(row))
    }

    /// The path of a row's first file.
    fn path(&self, row: usize) -> Option<&str> {
        self.paths.is_valid(row).then(|| self.paths.value(row))
    }
}

fn named_row(number: u64, path: Option<&str>) -> String {
    match path.filter(|path| !path.is_empty()) {
        Some(path) => format!("row {number} ({})", crate::messages::shortened(path)),
        None => format!("row {number}"),
    }
}
