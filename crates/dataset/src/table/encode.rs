//! Writing the catalog of a table's rows.
//!
//! Rows are in the table's order, and each has its file's path, as rows of files have. Texts with
//! few values are a dictionary. Others stay in the catalog's file, like paths, and are read on
//! request, so that a million captions take no memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int32Array, LargeStringArray, ListArray, RecordBatch, StringArray,
    StructArray, TimestampNanosecondArray, UInt32Array, UInt64Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};
use foreread_formats::ArrayType;
use foreread_tier::Object;
use foreread_types::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

use super::files::TableFiles;
use super::{TableColumn, TableLabel, TableRows};
use crate::Format;
use crate::build::changes::FileChanges;
use crate::build::header::CatalogHeader;
use crate::build::object_layouts::Layouts;
use crate::build::schema::begin;
use crate::build::shard_columns::strings;
use crate::build::shards::field_columns;
use crate::catalog_file::array_types::arrays_text;
use crate::catalog_file::column_names::{self, LABEL, VALUE_PREFIX};
use crate::catalog_file::fingerprint::{hash_names, hash_text, hash_value, hash_version};
use crate::catalog_file::keys::{ARRAYS_KEY, LABEL_COLUMN_KEY, SUMMARY_KEY};
use crate::catalog_file::object_versions::{etag, modified};
use crate::catalog_file::version::VERSION_TABLE;
use crate::catalog_file::writer::{ROWS, finish};
use crate::catalog_file::{file_lists, server_column};
use crate::sample_value::SampleValue;

/// The most values of a column of texts that are kept in memory.
const FEW_TEXTS: usize = 4096;

/// The values of one column, in the form in which they are written.
struct ValueColumn {
    field: Field,
    values: ColumnValues,
}

enum ColumnValues {
    /// Written as they are.
    Plain(ArrayRef),
    /// Numbers of texts, and the texts.
    Few(Int32Array, ArrayRef),
    /// Texts.
    Many(LargeStringArray),
}

impl ValueColumn {
    fn of(name: &str, column: &TableColumn) -> Self {
        let name = format!("{VALUE_PREFIX}{name}");
        let plain = |kind, is_nullable, array: ArrayRef| Self {
            field: Field::new(&name, kind, is_nullable),
            values: ColumnValues::Plain(array),
        };
        match column {
            TableColumn::Integers(array) => plain(DataType::Int64, true, Arc::new(array.clone())),
            TableColumn::Floats(array) => plain(DataType::Float64, true, Arc::new(array.clone())),
            TableColumn::Arrays(_, array) => {
                plain(DataType::FixedSizeBinary(array.value_length()), false, Arc::new(array.clone()))
            }
            TableColumn::Texts(array) => match few(array) {
                Some((numbers, texts)) => Self {
                    field: Field::new_dictionary(&name, DataType::Int32, DataType::Utf8, true),
                    values: ColumnValues::Few(numbers, texts),
                },
                None => Self {
                    field: Field::new(&name, DataType::Utf8, true),
                    values: ColumnValues::Many(array.clone()),
                },
            },
        }
    }

    /// The values of these rows.
    fn array(&self, rows: &Range<usize>) -> Result<ArrayRef, ArrowError> {
        let (start, count) = (rows.start, rows.len());
        Ok(match &self.values {
            ColumnValues::Plain(array) => array.slice(start, count),
            ColumnValues::Few(numbers, texts) => {
                let numbers = numbers.slice(start, count);
                Arc::new(DictionaryArray::<Int32Type>::try_new(numbers, Arc::clone(texts))?)
            }
            ColumnValues::Many(texts) => {
                let texts = texts.slice(start, count);
                // Its length is checked without the rows that have none.
                strings(texts.iter().flatten())?;
                Arc::new(texts.iter().collect::<StringArray>())
            }
        })
    }
}

/// The numbers of texts and the texts, in the order of their first rows. `None` if they are many.
fn few(texts: &LargeStringArray) -> Option<(Int32Array, ArrayRef)> {
    let mut numbers: HashMap<&str, i32> = HashMap::new();
    let mut of_row = Vec::with_capacity(texts.len());
    for text in texts {
        let number = text.map(|text| {
            let next = numbers.len() as i32;
            *numbers.entry(text).or_insert(next)
        });
        of_row.push(number);
        if numbers.len() > FEW_TEXTS {
            return None;
        }
    }
    let mut all = vec![""; numbers.len()];
    for (text, number) in numbers {
        all[number as usize] = text;
    }
    Some((Int32Array::from(of_row), Arc::new(StringArray::from(all))))
}

/// A value of a row.
fn value(column: &TableColumn, row: usize) -> Option<SampleValue<'_>> {
    if column.array().is_null(row) {
        return None;
    }
    Some(match column {
        TableColumn::Integers(array) => SampleValue::Integer(array.value(row)),
        TableColumn::Floats(array) => SampleValue::Float(array.value(row)),
        TableColumn::Texts(array) => SampleValue::Text(array.value(row).into()),
        TableColumn::Arrays(kind, array) => SampleValue::Array(kind, array.value(row)),
    })
}

/// The rows of a catalog: of a table, each with its file.
pub(super) struct TableCatalog<'a> {
    pub(super) rows: &'a TableRows,
    pub(super) files: &'a TableFiles,
    pub(super) layouts: &'a Layouts,
}

impl TableCatalog<'_> {
    /// The number of files of each row.
    fn width(&self) -> usize {
        1 + self.rows.more.len()
    }

    /// The files of a row.
    fn objects(&self, row: usize) -> impl Iterator<Item = &Object> {
        let files = row * self.width()..(row + 1) * self.width();
        self.files.of_row[files].iter().map(|file| &self.files.objects[*file as usize])
    }

    /// The first file of a row.
    fn object(&self, row: usize) -> &Object {
        &self.files.objects[self.files.of_row[row * self.width()] as usize]
    }

    /// The start and the length of a row's sample in its file, or of all its files.
    fn extent(&self, row: usize) -> (u64, u64) {
        if self.width() > 1 {
            return (0, self.objects(row).fold(0, |sum, object| sum.saturating_add(object.size)));
        }
        let size = self.object(row).size;
        let Some((starts, lengths)) = &self.rows.parts else { return (0, size) };
        let start = if starts.is_valid(row) { starts.value(row) } else { 0 };
        let rest = size.saturating_sub(start);
        (start, if lengths.is_valid(row) { lengths.value(row) } else { rest })
    }

    /// Rows whose part is not in its file, or has no bytes.
    pub(super) fn outside(&self) -> Vec<usize> {
        let is_outside = |row: &usize| {
            let (start, length) = self.extent(*row);
            length == 0 || start.checked_add(length).is_none_or(|end| end > self.object(*row).size)
        };
        if self.rows.parts.is_none() { Vec::new() } else { (0..self.rows.len()).filter(is_outside).collect() }
    }

    /// The sum of all lengths. `None` if it does not fit.
    pub(super) fn bytes(&self) -> Option<u64> {
        (0..self.rows.len()).try_fold(0, |sum: u64, row| sum.checked_add(self.extent(row).1))
    }

    /// Identifies the rows: each one's file, version, part, label and values, in their order, and
    /// the names of the classes.
    fn fingerprint(&self) -> Fingerprint {
        let mut hash = Xxh3::new();
        hash.update(b"foreread rows 1\0");
        let rows = self.rows;
        let (names, classes) = rows.classes();
        for (name, column) in &rows.values {
            hash_text(&mut hash, 13, name);
            if let TableColumn::Arrays(kind, _) = column {
                hash_text(&mut hash, 15, &kind.dtype);
            }
        }
        rows.fields.iter().for_each(|name| hash_text(&mut hash, 14, name));
        for row in 0..rows.len() {
            let (start, length) = self.extent(row);
            for object in self.objects(row) {
                hash_text(&mut hash, 1, &object.path);
                [start, length, object.size]
                    .into_iter()
                    .for_each(|number| hash.update(&number.to_le_bytes()));
                hash_version(&mut hash, object);
            }
            match &rows.label {
                Some(TableLabel::Values(column)) => hash_value(&mut hash, value(column, row)),
                _ => match classes.filter(|numbers| numbers.is_valid(row)) {
                    Some(numbers) => {
                        hash.update(&[4]);
                        hash.update(&numbers.value(row).to_le_bytes());
                    }
                    None => hash.update(&[0]),
                },
            }
            for (_, column) in &rows.values {
                hash_value(&mut hash, value(column, row));
            }
        }
        hash_names(&mut hash, names);
        Fingerprint(hash.digest128())
    }

    /// The findings, for people.
    fn summary(&self) -> String {
        let rows = self.rows;
        let label = match &rows.label {
            None => "no labels".to_owned(),
            Some(TableLabel::Classes(names, _)) => format!("{} classes", names.len()),
            Some(TableLabel::Values(TableColumn::Arrays(kind, _))) => format!("labels {}", kind.dtype),
            Some(TableLabel::Values(TableColumn::Floats(_))) => "labels with fractions".to_owned(),
            Some(TableLabel::Values(_)) => "integers as labels".to_owned(),
        };
        format!("{} rows of {} with {} files, {label}", rows.len(), rows.name, self.files.objects.len())
    }

    /// The files of these rows as fields of their samples.
    fn fields(&self, rows: &Range<usize>, item: &Arc<Field>) -> Result<ArrayRef, ArrowError> {
        let (mut names, mut offsets, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows.clone() {
            let mut offset = 0;
            for (name, object) in self.rows.fields.iter().zip(self.objects(row)) {
                names.push(name.as_str());
                offsets.push(offset);
                lengths.push(object.size);
                offset += object.size;
            }
        }
        let ends = OffsetBuffer::from_lengths(rows.clone().map(|_| self.width()));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(names)),
            Arc::new(UInt64Array::from(offsets)),
            Arc::new(UInt64Array::from(lengths)),
        ];
        let fields = StructArray::try_new(field_columns(), columns, None)?;
        Ok(Arc::new(ListArray::try_new(Arc::clone(item), ends, Arc::new(fields), None)?))
    }

    /// The types of arrays, as the catalog's metadata has them.
    fn arrays(&self) -> Option<String> {
        let mut arrays: BTreeMap<&str, &ArrayType> = BTreeMap::new();
        for (name, column) in self.rows.value_columns() {
            if let TableColumn::Arrays(kind, _) = column {
                arrays.insert(name, kind);
            }
        }
        arrays_text(&arrays)
    }

    /// The bytes of the catalog file.
    pub(super) fn encode(&self, head: CatalogHeader<'_>) -> Result<Vec<u8>, ArrowError> {
        let (rows, objects) = (self.rows, &self.files.objects);
        let has_times = objects.iter().any(|object| modified(object).is_some());
        let has_tags = objects.iter().any(|object| etag(object).is_some());
        let changes = FileChanges::of(objects.iter(), head);
        let (names, numbers) = rows.classes();
        let classes: ArrayRef = Arc::new(StringArray::from_iter_values(names));
        let values: Vec<ValueColumn> =
            rows.value_columns().map(|(name, column)| ValueColumn::of(name, column)).collect();
        let length = |name| Field::new(name, DataType::UInt64, false);
        let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
        let has_fields = !rows.fields.is_empty();
        let item = Arc::new(Field::new_struct("item", field_columns(), false));
        let fields = [
            Some(Field::new("path", DataType::Utf8, false)),
            Some(length("offset")),
            Some(length("length")),
            rows.parts.is_some().then(|| length("object_size")),
            Some(Field::new_dictionary(LABEL, DataType::Int32, DataType::Utf8, true)),
            has_times.then(|| Field::new("modified", time, true)),
            changes.field(),
            has_tags.then(|| Field::new("etag", DataType::Utf8, true)),
            has_fields.then(|| Field::new_list("fields", Arc::clone(&item), false)),
            has_fields.then(|| Field::new(column_names::FILES, DataType::Utf8, false)),
            (!self.layouts.is_empty()).then(|| Field::new(column_names::SERVER, DataType::UInt32, true)),
        ];
        let fields = fields.into_iter().flatten().chain(values.iter().map(|column| column.field.clone()));
        let label_column = rows.label_column.clone().map(|name| (LABEL_COLUMN_KEY, name));
        let arrays = self.arrays().map(|text| (ARRAYS_KEY, text));
        let summary = Some((SUMMARY_KEY, self.summary()));
        let extra: Vec<_> = [label_column, arrays, summary].into_iter().flatten().collect();
        let head = CatalogHeader { extra: &extra, ..head };
        let version = (VERSION_TABLE, changes);
        let (schema, mut writer) =
            begin(fields.collect(), version, head, Format::Files.name(), self.fingerprint())?;
        for start in (0..rows.len()).step_by(ROWS) {
            let some = start..rows.len().min(start + ROWS);
            let of = || some.clone().map(|row| self.object(row));
            let extents: Vec<(u64, u64)> = some.clone().map(|row| self.extent(row)).collect();
            let wide = |numbers: &mut dyn Iterator<Item = u64>| -> ArrayRef {
                Arc::new(UInt64Array::from_iter_values(numbers))
            };
            let mut arrays: Vec<ArrayRef> = vec![
                Arc::new(strings(of().map(|object| &*object.path))?),
                wide(&mut extents.iter().map(|(start, _)| *start)),
                wide(&mut extents.iter().map(|(_, length)| *length)),
            ];
            if rows.parts.is_some() {
                arrays.push(wide(&mut of().map(|object| object.size)));
            }
            let labels = match numbers {
                Some(numbers) => numbers.slice(start, some.len()),
                None => Int32Array::new_null(some.len()),
            };
            arrays.push(Arc::new(DictionaryArray::<Int32Type>::try_new(labels, Arc::clone(&classes))?));
            if has_times {
                let times: TimestampNanosecondArray = of().map(modified).collect();
                arrays.push(Arc::new(times.with_timezone("UTC")));
            }
            arrays.extend(changes.column(of()));
            if has_tags {
                arrays.push(Arc::new(of().map(etag).collect::<StringArray>()));
            }
            if has_fields {
                arrays.push(self.fields(&some, &item)?);
                let lists: Vec<String> =
                    some.clone().map(|row| file_lists::text(self.objects(row))).collect();
                arrays.push(Arc::new(strings(lists.iter().map(String::as_str))?));
            }
            if !self.layouts.is_empty() {
                let server = |row: usize| {
                    let layout = self.layouts.get(&self.object(row).path)?;
                    server_column::encode(&**layout, self.extent(row).0)
                };
                arrays.push(Arc::new(some.clone().map(server).collect::<UInt32Array>()));
            }
            for column in &values {
                arrays.push(column.array(&some)?);
            }
            writer.write(&RecordBatch::try_new(Arc::clone(&schema), arrays)?)?;
        }
        finish(writer)
    }
}
