//! The file of a catalog whose rows come from two: an earlier one, and that of a new listing.
//!
//! Rows are copied column by column. The price: both files are in memory as batches of Arrow.

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray, new_null_array};
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use arrow_select::interleave::interleave;
use foreread_types::Fingerprint;

use crate::catalog::growth_record::GrowthRecord;
use crate::catalog_file::column_names::VALUE_PREFIX;
use crate::catalog_file::keys::{
    FINGERPRINT_KEY, GROWTH_KEY, ORDERED_KEY, RECIPES_KEY, SAMPLES_KEY, VERSION_KEY,
};
use crate::catalog_file::version::VERSION_TABLE;
use crate::catalog_file::writer::{ROWS, begin_with, finish};

/// The bytes of the joined catalog. For each of its rows, `sources` has whether it is of the new
/// catalog, and its number there.
pub(super) fn join(
    bytes: [&[u8]; 2],
    sources: &[(bool, u64)],
    record: &GrowthRecord,
    fingerprint: Fingerprint,
) -> Result<Vec<u8>, ArrowError> {
    let (old, new) = (CatalogBatches::read(bytes[0])?, CatalogBatches::read(bytes[1])?);
    let mut metadata: HashMap<String, String> = new.schema.metadata().clone().into();
    let recipes = [&old, &new].map(|of| of.schema.metadata().get(RECIPES_KEY).cloned());
    if recipes[0] != recipes[1] {
        let message = "samples are decoded in other ways now: make a new catalog by an index";
        return Err(ArrowError::SchemaError(message.to_owned()));
    }
    let growth = serde_json::to_string(record).map_err(|error| ArrowError::ExternalError(error.into()))?;
    metadata.remove(SAMPLES_KEY);
    for (key, value) in [
        (VERSION_KEY, VERSION_TABLE.to_owned()),
        (ORDERED_KEY, "1".to_owned()),
        (FINGERPRINT_KEY, fingerprint.to_string()),
        (GROWTH_KEY, growth),
    ] {
        metadata.insert(key.to_owned(), value);
    }
    let schema = Arc::new(Schema::new(new.schema.fields().clone()).with_metadata(metadata));
    let columns = schema.fields().iter().map(|field| {
        let (name, kind) = (field.name(), field.data_type());
        let of = [&old, &new].map(|of| of.column(name, kind, field.is_nullable()));
        let [old, new] = of;
        JoinedColumn::of(&old?, &new?)
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let mut writer = begin_with(&schema, Vec::new())?;
    for some in sources.chunks(ROWS) {
        let place = |&(is_new, row): &(bool, u64)| {
            let (batch, row) = if is_new { new.place(row) } else { old.place(row) };
            (if is_new { old.batches.len() + batch } else { batch }, row)
        };
        let places: Vec<(usize, usize)> = some.iter().map(place).collect();
        let arrays = columns.iter().map(|column| column.rows(&places)).collect::<Result<_, _>>()?;
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), arrays)?)?;
    }
    finish(writer)
}

/// A catalog file's batches.
struct CatalogBatches {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    rows_per_batch: usize,
}

impl CatalogBatches {
    fn read(bytes: &[u8]) -> Result<Self, ArrowError> {
        let reader = FileReader::try_new(Cursor::new(bytes), None)?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>()?;
        let rows_per_batch = batches.first().map_or(1, RecordBatch::num_rows).max(1);
        Ok(Self { schema, batches, rows_per_batch })
    }

    /// The batch and the row in it.
    fn place(&self, row: u64) -> (usize, usize) {
        let row = row as usize;
        (row / self.rows_per_batch, row % self.rows_per_batch)
    }

    /// A column in all batches. Nulls, if there is none.
    fn column(&self, name: &str, kind: &DataType, nullable: bool) -> Result<Vec<ArrayRef>, ArrowError> {
        let found = self.schema.column_with_name(name);
        let why = |what: &str| {
            let name = name.strip_prefix(VALUE_PREFIX).unwrap_or(name);
            ArrowError::SchemaError(format!("the column {name:?} {what}: make a new catalog by an index"))
        };
        match found {
            Some((at, _)) => {
                let arrays = self.batches.iter().map(|batch| as_texts(batch.column(at), kind));
                arrays.collect::<Option<Vec<_>>>().ok_or_else(|| why("has another type now"))
            }
            None if nullable => {
                Ok(self.batches.iter().map(|batch| new_null_array(kind, batch.num_rows())).collect())
            }
            None => Err(why("is new")),
        }
    }
}

/// A column in its type, or texts with numbers for texts without and the other way round: a writer
/// numbers them if there are few.
fn as_texts(array: &ArrayRef, kind: &DataType) -> Option<ArrayRef> {
    if array.data_type() == kind {
        return Some(Arc::clone(array));
    }
    match kind {
        DataType::Utf8 => {
            let numbered = array.as_dictionary_opt::<Int32Type>()?;
            let texts = numbered.downcast_dict::<StringArray>()?;
            Some(Arc::new(texts.into_iter().collect::<StringArray>()))
        }
        DataType::Dictionary(_, values) if **values == DataType::Utf8 => {
            let texts = array.as_string_opt::<i32>()?;
            Some(Arc::new(texts.iter().collect::<DictionaryArray<Int32Type>>()))
        }
        _ => None,
    }
}

/// A column of both catalogs.
enum JoinedColumn {
    /// By batch: first those of the old catalog.
    Plain(Vec<ArrayRef>),
    /// Numbers of texts, and the texts of both.
    Texts(Vec<Int32Array>, ArrayRef),
}

impl JoinedColumn {
    fn of(old: &[ArrayRef], new: &[ArrayRef]) -> Result<Self, ArrowError> {
        let all = || old.iter().chain(new);
        if !all().any(|array| array.as_dictionary_opt::<Int32Type>().is_some()) {
            return Ok(Self::Plain(all().cloned().collect()));
        }
        let mut texts: Vec<&str> = Vec::new();
        let mut known: BTreeMap<&str, i32> = BTreeMap::new();
        let mut numbers = Vec::new();
        for array in all() {
            let array = array.as_dictionary::<Int32Type>();
            let values = array.values().as_string_opt::<i32>().ok_or_else(|| {
                ArrowError::SchemaError("a column of numbered texts has other values".to_owned())
            })?;
            let places: Vec<i32> = values
                .iter()
                .map(|text| {
                    let text = text.unwrap_or_default();
                    *known.entry(text).or_insert_with(|| {
                        texts.push(text);
                        texts.len() as i32 - 1
                    })
                })
                .collect();
            let place =
                |key: Option<i32>| key.and_then(|key| places.get(usize::try_from(key).ok()?).copied());
            numbers.push(array.keys().iter().map(place).collect::<Int32Array>());
        }
        let length: usize = texts.iter().map(|text| text.len()).sum();
        if i32::try_from(length).is_err() {
            return Err(ArrowError::InvalidArgumentError("the texts of a column exceed 2 GiB".into()));
        }
        Ok(Self::Texts(numbers, Arc::new(StringArray::from_iter_values(texts))))
    }

    fn rows(&self, places: &[(usize, usize)]) -> Result<ArrayRef, ArrowError> {
        match self {
            Self::Plain(arrays) => {
                interleave(&arrays.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>(), places)
            }
            Self::Texts(numbers, texts) => {
                let numbers: Int32Array = places
                    .iter()
                    .map(|(batch, row)| numbers[*batch].is_valid(*row).then(|| numbers[*batch].value(*row)))
                    .collect();
                Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(numbers, Arc::clone(texts))?))
            }
        }
    }
}
