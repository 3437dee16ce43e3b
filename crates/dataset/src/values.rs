//! Values of packed samples as columns of a catalog: labels and small numbers.
//!
//! Parsers read them with a shard's directory, so no second request per sample is needed. All
//! shards of a dataset have one type per column. Integers become numbers with a fraction if one
//! shard has these. A column of texts named `label` is the catalog's column of labels, with classes
//! in the order of their names. All other columns are `value.NAME`. The price is memory: a value
//! takes one to eight bytes per sample, an array its length.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array, StringArray,
};
use arrow_schema::{ArrowError, DataType, Field};
use foreread_formats::{ArrayType, ColumnValues};
use foreread_types::setting;
use xxhash_rust::xxh3::Xxh3;

use crate::classes::check;
use crate::encode::hash_names;
use crate::packed::{IndexedShard, SampleRows};
use crate::{DatasetError, DatasetErrorKind};

/// The prefix of the names of these columns.
pub(crate) const PREFIX: &str = "value.";

/// The column of texts that is the catalog's column of labels.
pub(crate) const LABEL: &str = "label";

/// The name under which the type of the samples' own bytes is stored.
const SAMPLE: &str = "";

/// A value of one sample.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SampleValue<'a> {
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(Cow<'a, str>),
    /// An array: its type, and its bytes.
    Array(&'a ArrayType, &'a [u8]),
}

/// The type of a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueType {
    Integer,
    Float,
    Text,
    /// The array's type, and its length in bytes.
    Array(ArrayType, usize),
}

impl ValueType {
    fn of(values: &ColumnValues) -> Result<Self, String> {
        Ok(match values {
            ColumnValues::Integers(_) => Self::Integer,
            ColumnValues::Floats(_) => Self::Float,
            ColumnValues::Texts(_) => Self::Text,
            ColumnValues::Arrays { array, width, .. } => Self::Array(array.clone(), *width),
            _ => return Err("has a type that catalogs cannot store".to_owned()),
        })
    }

    /// The type that has the values of both.
    fn with(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Integer, Self::Float) | (Self::Float, Self::Integer) => Some(Self::Float),
            (one, other) => (one == other).then_some(one),
        }
    }
}

/// One column over all shards.
#[derive(Debug)]
pub(crate) struct ValueTable {
    pub(crate) name: String,
    kind: ValueType,
    /// The numbers of texts.
    numbers: HashMap<Arc<str>, i32>,
    dictionary: ArrayRef,
    /// The user's classes, if they are not those of the samples.
    chosen: Option<Vec<String>>,
    is_sorted: bool,
}

/// The columns of `shards`, in the order of their names. `classes` are the user's names of the
/// labels.
///
/// # Errors
/// [`DatasetErrorKind::Invalid`] if two shards have one column with different types, or `classes`
/// do not fit the labels.
pub(crate) fn tables(
    base_url: &str,
    shards: &[IndexedShard],
    classes: Option<&[String]>,
) -> Result<Vec<ValueTable>, DatasetError> {
    let invalid = |why: String| DatasetError::new(DatasetErrorKind::Invalid, format!("{base_url}: {why}"));
    if classes.is_some_and(|classes| !classes.is_empty()) && !have_classes(shards) {
        let classes = setting("classes");
        let why = format!("{classes} has no effect: the samples have no labels that are texts; leave it out");
        return Err(invalid(why));
    }
    let mut kinds: BTreeMap<&str, ValueType> = BTreeMap::new();
    for shard in shards {
        for column in &shard.rows.extra().values {
            let fault =
                |why: &str| invalid(format!("{}: the column {:?} {why}", shard.object.path, column.name));
            let kind = ValueType::of(&column.values).map_err(|why| fault(&why))?;
            let before = kinds.remove(&*column.name);
            let both = before.map_or(Some(kind.clone()), |before| before.with(kind));
            let both =
                both.ok_or_else(|| fault("has another type in other shards; index them separately"))?;
            kinds.insert(&column.name, both);
        }
    }
    let tables = kinds.into_iter().map(|(name, kind)| {
        let has = |shard: &IndexedShard| shard.rows.extra().values.iter().any(|column| column.name == name);
        if matches!(kind, ValueType::Array(..))
            && let Some(without) = shards.iter().find(|shard| !has(shard))
        {
            let why = format!("{}: it has no column {name:?}, which other shards have", without.object.path);
            return Err(invalid(why));
        }
        let without = shards.iter().filter(|shard| !has(shard)).count();
        if without > 0 {
            tracing::warn!(
                "{without} of {} shards have no values {name:?}: their samples have none",
                shards.len()
            );
        }
        let mut texts = texts(shards, name);
        let mut chosen = None;
        if let Some(classes) = classes.filter(|_| name == LABEL) {
            check(base_url, classes, texts.iter().map(|text| &**text))?;
            if texts.iter().map(|text| &**text).ne(classes.iter().map(String::as_str)) {
                chosen = Some(classes.to_vec());
                texts = classes.iter().map(|name| name.as_str().into()).collect();
            }
        }
        let length: usize = texts.iter().map(|text| text.len()).sum();
        if i32::try_from(length).is_err() {
            return Err(invalid(format!("the texts of the column {name:?} exceed 2 GiB")));
        }
        let dictionary = Arc::new(StringArray::from_iter_values(&texts));
        let is_sorted = texts.is_sorted();
        let numbers = texts.into_iter().zip(0..).collect();
        Ok(ValueTable { name: name.to_owned(), kind, numbers, dictionary, chosen, is_sorted })
    });
    tables.collect()
}

/// Whether samples have labels that are texts, which are numbered.
pub(crate) fn have_classes(shards: &[IndexedShard]) -> bool {
    let mut columns = shards.iter().flat_map(|shard| &shard.rows.extra().values);
    columns.any(|column| column.name == LABEL && matches!(column.values, ColumnValues::Texts(_)))
}

/// The distinct texts of a column, sorted.
fn texts(shards: &[IndexedShard], name: &str) -> Vec<Arc<str>> {
    let mut all: Vec<Arc<str>> = Vec::new();
    for shard in shards {
        for column in shard.rows.extra().values.iter().filter(|column| column.name == name) {
            if let ColumnValues::Texts(texts) = &column.values {
                let mut some: Vec<Arc<str>> = texts.iter().flatten().cloned().collect();
                some.sort_unstable();
                some.dedup();
                all.append(&mut some);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// A value of the column `name` of a row.
fn value<'a>(shard: &'a IndexedShard, row: usize, name: &str) -> Option<SampleValue<'a>> {
    let column = shard.rows.extra().values.iter().find(|column| column.name == name)?;
    match &column.values {
        ColumnValues::Integers(values) => values.get(row).copied().flatten().map(SampleValue::Integer),
        ColumnValues::Floats(values) => values.get(row).copied().flatten().map(SampleValue::Float),
        ColumnValues::Texts(values) => values.get(row)?.as_deref().map(|text| SampleValue::Text(text.into())),
        ColumnValues::Arrays { array, width, bytes } => {
            bytes.get(row * width..(row + 1) * width).map(|bytes| SampleValue::Array(array, bytes))
        }
        _ => None,
    }
}

impl ValueTable {
    /// Whether this is the catalog's column of labels.
    pub(crate) fn is_label(&self) -> bool {
        self.name == LABEL && self.kind == ValueType::Text
    }

    /// Whether the texts are in byte order.
    pub(crate) fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    /// Adds the user's classes to a fingerprint.
    pub(crate) fn hash_classes(&self, hash: &mut Xxh3) {
        if let Some(chosen) = &self.chosen {
            hash_names(hash, chosen);
        }
    }

    /// The column in the schema.
    pub(crate) fn field(&self) -> Field {
        let name = format!("{PREFIX}{}", self.name);
        match &self.kind {
            ValueType::Integer => Field::new(name, DataType::Int64, true),
            ValueType::Float => Field::new(name, DataType::Float64, true),
            ValueType::Text if self.is_label() => {
                Field::new_dictionary(LABEL, DataType::Int32, DataType::Utf8, true)
            }
            ValueType::Text => Field::new_dictionary(name, DataType::Int32, DataType::Utf8, true),
            ValueType::Array(_, width) => Field::new(name, DataType::FixedSizeBinary(*width as i32), false),
        }
    }

    /// The values of these rows: indexes of shards, and of rows in them.
    pub(crate) fn column(
        &self,
        shards: &[IndexedShard],
        rows: &[(usize, usize)],
    ) -> Result<ArrayRef, ArrowError> {
        let values = || rows.iter().map(|&(shard, row)| value(&shards[shard], row, &self.name));
        Ok(match &self.kind {
            ValueType::Integer => Arc::new(Int64Array::from_iter(values().map(|value| match value {
                Some(SampleValue::Integer(value)) => Some(value),
                _ => None,
            }))),
            ValueType::Float => Arc::new(Float64Array::from_iter(values().map(|value| match value {
                Some(SampleValue::Integer(value)) => Some(value as f64),
                Some(SampleValue::Float(value)) => Some(value),
                _ => None,
            }))),
            ValueType::Text => {
                let numbers = values().map(|value| match value {
                    Some(SampleValue::Text(text)) => self.numbers.get(&*text).copied(),
                    _ => None,
                });
                let numbers = Int32Array::from_iter(numbers);
                Arc::new(DictionaryArray::<Int32Type>::try_new(numbers, Arc::clone(&self.dictionary))?)
            }
            ValueType::Array(_, width) => {
                let missing = vec![0; *width];
                let bytes = values().map(|value| match value {
                    Some(SampleValue::Array(_, bytes)) => bytes.to_vec(),
                    _ => missing.clone(),
                });
                Arc::new(FixedSizeBinaryArray::try_from_iter(bytes)?)
            }
        })
    }
}

/// A row's part of a fingerprint.
pub(crate) fn hash_row(hash: &mut Xxh3, shard: &IndexedShard, row: usize) {
    for column in &shard.rows.extra().values {
        hash_value(hash, value(shard, row, &column.name));
    }
}

/// The number of a shard's samples that have no label.
pub(crate) fn missing_labels(rows: &SampleRows) -> u64 {
    let column = rows.extra().values.iter().find(|column| column.name == LABEL);
    let missing = match column.map(|column| &column.values) {
        Some(ColumnValues::Integers(values)) => values.iter().filter(|value| value.is_none()).count(),
        Some(ColumnValues::Floats(values)) => values.iter().filter(|value| value.is_none()).count(),
        Some(ColumnValues::Texts(values)) => values.iter().filter(|value| value.is_none()).count(),
        Some(_) => 0,
        None => return rows.len(),
    };
    missing as u64
}

/// A value's part of a fingerprint.
pub(crate) fn hash_value(hash: &mut Xxh3, value: Option<SampleValue<'_>>) {
    let (kind, bytes): (u8, &[u8]) = match &value {
        None => (7, &[]),
        Some(SampleValue::Integer(value)) => (8, &value.to_le_bytes()),
        Some(SampleValue::Float(value)) => (9, &value.to_bits().to_le_bytes()),
        Some(SampleValue::Text(text)) => (10, text.as_bytes()),
        Some(SampleValue::Array(_, bytes)) => (11, bytes),
    };
    hash.update(&[kind]);
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// The types of arrays in a dataset, as the catalog's metadata has them: JSON, by column. `None`
/// if there are none. The samples' own type is left out if shards differ in it.
pub(crate) fn arrays(shards: &[IndexedShard], tables: &[ValueTable]) -> Option<String> {
    let mut arrays: BTreeMap<&str, &ArrayType> = BTreeMap::new();
    let mut own = shards.iter().map(|shard| shard.rows.extra().array.as_ref());
    if let Some(Some(first)) = own.next() {
        match own.all(|other| other == Some(first)) {
            true => {
                arrays.insert(SAMPLE, first);
            }
            false => tracing::warn!("shards have samples of different types: array() is not available"),
        }
    }
    for table in tables {
        if let ValueType::Array(array, _) = &table.kind {
            arrays.insert(&table.name, array);
        }
    }
    arrays_text(&arrays)
}

/// Types of arrays by column, as the catalog's metadata has them. `None` if there are none.
pub(crate) fn arrays_text(arrays: &BTreeMap<&str, &ArrayType>) -> Option<String> {
    (!arrays.is_empty()).then(|| serde_json::to_string(arrays).ok()).flatten()
}

/// The types of fields in a dataset, as the catalog's metadata has them: JSON, by name. `None` if
/// there are none. Types are left out if shards differ in more than the first length.
pub(crate) fn field_arrays(shards: &[IndexedShard]) -> Option<String> {
    let first = &shards.first()?.rows.extra().field_arrays;
    let of = |shard: &IndexedShard, name: &str| {
        let arrays = shard.rows.extra().field_arrays.iter();
        arrays.into_iter().find(|(known, _)| **known == *name).map(|(_, array)| array.clone())
    };
    let common = |(name, array): &(Arc<str>, ArrayType)| {
        let all = shards.iter().try_fold(array.clone(), |common, shard| common.with(&of(shard, name)?));
        if all.is_none() {
            tracing::warn!("shards have fields {name:?} of different types: arrays() leaves them out");
        }
        Some((name.to_string(), all?))
    };
    let arrays: BTreeMap<String, ArrayType> = first.iter().filter_map(common).collect();
    (!arrays.is_empty()).then(|| serde_json::to_string(&arrays).ok()).flatten()
}

/// The types of arrays in a catalog.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ArrayTypes {
    values: BTreeMap<String, ArrayType>,
    fields: BTreeMap<String, ArrayType>,
}

impl ArrayTypes {
    /// Parses the columns that [`arrays`] and [`field_arrays`] wrote.
    pub(crate) fn parse(values: Option<&str>, fields: Option<&str>) -> Option<Self> {
        let parse = |text: Option<&str>| match text {
            None => Some(BTreeMap::new()),
            Some(text) => serde_json::from_str(text).ok(),
        };
        Some(Self { values: parse(values)?, fields: parse(fields)? })
    }

    /// The type of the samples' own bytes.
    pub(crate) fn of_samples(&self) -> Option<&ArrayType> {
        self.values.get(SAMPLE)
    }

    /// The type of a column's values.
    pub(crate) fn of_column(&self, name: &str) -> Option<&ArrayType> {
        self.values.get(name)
    }

    /// The type of a field.
    pub(crate) fn of_field(&self, name: &str) -> Option<&ArrayType> {
        self.fields.get(name)
    }
}

#[cfg(test)]
mod tests {
    use foreread_formats::ValueColumn;
    use foreread_tier::{Object, Version};
    use foreread_types::SampleId;

    use super::*;
    use crate::packed::{FormatColumns, SampleRows, ShardExtra};
    use crate::servers::Layouts;
    use crate::{Catalog, Format};

    /// A shard of two samples.
    fn shard(path: &str, values: Vec<(&str, ColumnValues)>) -> IndexedShard {
        let mut rows = SampleRows::new(FormatColumns::default());
        rows.push("", 0, 10, 0);
        rows.push("", 10, 10, 0);
        let column = |(name, values): (&str, _)| ValueColumn { name: name.to_owned(), values };
        let values = values.into_iter().map(column).collect();
        let array = Some(ArrayType { dtype: "|u1".to_owned(), shape: vec![None, Some(5)] });
        let extra = ShardExtra { values, array, summary: format!("of {path}"), ..ShardExtra::default() };
        let object = Object { path: path.into(), size: 20, version: Some(Version::ETag("1".into())) };
        IndexedShard { object, rows: rows.with_extra(extra), skipped: 0 }
    }

    fn catalog(shards: Vec<IndexedShard>) -> Result<Catalog, DatasetError> {
        let made = Catalog::from_shards(
            "/data",
            crate::encode::IndexNotes::default(),
            Format::Parquet,
            shards,
            None,
            &Layouts::new(),
        )?;
        let opened = Catalog::from_bytes(made.to_bytes().unwrap(), "test").unwrap();
        assert_eq!(opened.fingerprint(), made.fingerprint());
        Ok(opened)
    }

    fn texts(texts: [Option<&str>; 2]) -> ColumnValues {
        ColumnValues::Texts(texts.map(|text| text.map(Arc::from)).to_vec())
    }

    fn array(bytes: [u8; 4]) -> ColumnValues {
        let array = ArrayType { dtype: "<i2".to_owned(), shape: vec![Some(1)] };
        ColumnValues::Arrays { array, width: 2, bytes: bytes.to_vec() }
    }

    #[test]
    // semantics: FORMAT-2
    fn values_are_those_of_their_samples() {
        let one = vec![
            ("label", ColumnValues::Integers(vec![Some(-3), None])),
            ("weight", ColumnValues::Floats(vec![Some(0.5), None])),
            ("text", texts([Some("b"), None])),
            ("box", array([1, 2, 3, 4])),
        ];
        let two = vec![
            ("label", ColumnValues::Integers(vec![Some(i64::MAX), Some(0)])),
            ("weight", ColumnValues::Integers(vec![Some(7), Some(8)])),
            ("text", texts([Some("a"), Some("b")])),
            ("box", array([5, 6, 7, 8])),
        ];
        let catalog = catalog(vec![shard("0", one), shard("1", two)]).unwrap();
        let value = |id, name| catalog.value(SampleId(id), name).unwrap();
        let (integer, float) = (SampleValue::Integer, SampleValue::Float);
        assert_eq!(catalog.value_names(), ["box", "label", "text", "weight"]);
        let labels: Vec<_> = (0..5).map(|id| value(id, "label")).collect();
        assert_eq!(labels, [Some(integer(-3)), None, Some(integer(i64::MAX)), Some(integer(0)), None]);
        let weights: Vec<_> = (0..4).map(|id| value(id, "weight")).collect();
        assert_eq!(weights, [Some(float(0.5)), None, Some(float(7.0)), Some(float(8.0))]);
        let all: Vec<_> = (0..4).map(|id| value(id, "text")).collect();
        assert_eq!(
            all,
            ["b", "", "a", "b"].map(|text| (!text.is_empty()).then_some(SampleValue::Text(text.into())))
        );
        assert!(matches!(value(2, "box"), Some(SampleValue::Array(kind, [5, 6])) if kind.dtype == "<i2"));
        assert_eq!(value(0, "unknown"), None);
        assert_eq!(catalog.array().unwrap().shape, [None, Some(5)]);
        assert_eq!(catalog.summary(), Some("of 0"));
        assert_eq!(catalog.labels().len(), 0);
    }

    #[test]
    // semantics: FORMAT-2
    fn label_texts_are_classes() {
        let shards = vec![
            shard("0", vec![("label", texts([Some("dog"), None]))]),
            shard("1", vec![("label", texts([Some("cat"), Some("dog")]))]),
        ];
        let catalog = catalog(shards).unwrap();
        assert_eq!(catalog.labels().iter().map(|label| &**label).collect::<Vec<_>>(), ["cat", "dog"]);
        let classes: Vec<_> = (0..4).map(|id| catalog.label_index(SampleId(id))).collect();
        assert_eq!(classes, [Some(1), None, Some(0), Some(1)]);
        assert!(catalog.value_names().is_empty());
    }

    #[test]
    fn columns_of_two_types_are_refused() {
        let shards = vec![
            shard("0", vec![("label", texts([Some("dog"), None]))]),
            shard("1", vec![("label", ColumnValues::Integers(vec![Some(1), Some(2)]))]),
        ];
        let error = catalog(shards).unwrap_err().to_string();
        assert!(error.contains("1: the column \"label\" has another type"), "{error}");
        let shards = vec![shard("0", vec![("box", array([1, 2, 3, 4]))]), shard("1", vec![])];
        let error = catalog(shards).unwrap_err().to_string();
        assert!(error.contains("1: it has no column \"box\""), "{error}");
    }

    #[test]
    fn values_belong_to_the_fingerprint() {
        let of = |label| {
            let values = vec![("label", ColumnValues::Integers(vec![Some(label), None]))];
            catalog(vec![shard("0", values)]).unwrap().fingerprint()
        };
        assert_ne!(of(1), of(2));
    }
}
