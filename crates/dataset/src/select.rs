//! A part of a dataset: some samples of a catalog, as a catalog.
//!
//! The rows of the catalog's file are copied, with all their columns. So labels keep the numbers of
//! their classes, and a part of a part is a part. Rows that stand for many samples (windows of
//! tokens) become a row for each. The price: the file of the whole catalog is in memory while a
//! part is made, and each part has caches of its own.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, RecordBatch, UInt64Array};
use arrow_ipc::reader::FileReader;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use arrow_select::interleave::interleave;
use foreread_types::{Fingerprint, SampleId};
use xxhash_rust::xxh3::Xxh3;

use crate::catalog_file::{FINGERPRINT_KEY, ORDERED_KEY, VERSION_KEY};
use crate::catalog_version::VERSION_TABLE;
use crate::encode::{ROWS, begin_with, finish};
use crate::{Catalog, DatasetError, DatasetErrorKind};

/// The column with the number of each sample in its shard. Rows of a part do not show it.
pub(crate) const NUMBER: &str = "number";

/// Columns of rows that stand for many samples.
const OF_RUNS: [&str; 2] = ["stride", "samples"];

impl Catalog {
    /// The catalog of these samples, in this order. Classes keep their numbers. A sample may occur
    /// several times.
    ///
    /// # Errors
    /// [`DatasetErrorKind::OutOfRange`] for an unknown sample, [`DatasetErrorKind::Empty`] without
    /// samples, and those of [`to_bytes`](Self::to_bytes).
    pub fn select(&self, ids: &[u64]) -> Result<Self, DatasetError> {
        let base = self.base_url();
        if ids.is_empty() {
            let message = format!("{base}: the selection has no samples");
            return Err(DatasetError::new(DatasetErrorKind::Empty, message));
        }
        if let Some(unknown) = ids.iter().find(|id| **id >= self.len()) {
            return Err(self.out_of_range(SampleId(*unknown)));
        }
        let selected = self.selected(ids, &self.to_bytes()?).map_err(|error| {
            let message = format!("{base}: the selection cannot be made: {error}");
            DatasetError::new(DatasetErrorKind::Invalid, message).with_source(error)
        })?;
        Self::from_bytes(selected, format!("a part of the catalog of {base}"))
    }

    /// Identifies the samples of a part, in their order.
    fn fingerprint_of(&self, ids: &[u64]) -> Fingerprint {
        let mut hash = Xxh3::new();
        hash.update(b"foreread part 1\0");
        hash.update(&self.fingerprint().0.to_le_bytes());
        ids.iter().for_each(|id| hash.update(&id.to_le_bytes()));
        Fingerprint(hash.digest128())
    }

    /// The bytes of a catalog file of these samples, from the bytes of this one's.
    fn selected(&self, ids: &[u64], bytes: &[u8]) -> Result<Vec<u8>, ArrowError> {
        let reader = FileReader::try_new(Cursor::new(bytes), None)?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>()?;
        let named = |name: &str| schema.fields().iter().position(|field| field.name() == name);
        let columns: Vec<usize> = (0..schema.fields().len())
            .filter(|at| !OF_RUNS.contains(&schema.field(*at).name().as_str()))
            .collect();
        let mut fields: Vec<Field> = columns.iter().map(|at| schema.field(*at).clone()).collect();
        // Its place is after the size of the shard.
        let has_numbers = self.format().is_packed() && named("key").is_none() && named(NUMBER).is_none();
        let place = fields.iter().position(|field| field.name() == "object_size").filter(|_| has_numbers);
        if let Some(at) = place {
            fields.insert(at + 1, Field::new(NUMBER, DataType::UInt64, false));
        }
        let mut metadata: HashMap<String, String> = schema.metadata().clone().into();
        metadata.insert(VERSION_KEY.to_owned(), VERSION_TABLE.to_owned());
        metadata.insert(ORDERED_KEY.to_owned(), "1".to_owned());
        metadata.insert(FINGERPRINT_KEY.to_owned(), self.fingerprint_of(ids).to_string());
        let new = Arc::new(Schema::new(fields).with_metadata(metadata));
        let mut writer = begin_with(&new)?;
        for some in ids.chunks(ROWS) {
            let rows: Vec<(usize, usize)> = some.iter().map(|id| self.file_row(SampleId(*id))).collect();
            let wide = |number: &dyn Fn(SampleId) -> u64| -> ArrayRef {
                Arc::new(UInt64Array::from_iter_values(some.iter().map(|id| number(SampleId(*id)))))
            };
            let taken = columns.iter().map(|at| match schema.field(*at).name().as_str() {
                "offset" => Ok(wide(&|id| self.offset(id))),
                _ => taken(&batches, *at, &rows),
            });
            let mut taken = taken.collect::<Result<Vec<_>, _>>()?;
            if let Some(at) = place {
                taken.insert(at + 1, wide(&|id| self.number_in_object(id)));
            }
            writer.write(&RecordBatch::try_new(Arc::clone(&new), taken)?)?;
        }
        finish(writer)
    }
}

/// The values of a column in these rows: numbers of batches, and of rows in them.
fn taken(batches: &[RecordBatch], at: usize, rows: &[(usize, usize)]) -> Result<ArrayRef, ArrowError> {
    let columns = || batches.iter().map(|batch| batch.column(at));
    let texts = columns().find_map(|column| column.as_dictionary_opt::<Int32Type>());
    let Some(texts) = texts.map(DictionaryArray::values) else {
        return interleave(&columns().map(AsRef::as_ref).collect::<Vec<&dyn Array>>(), rows);
    };
    // All batches of a file share the texts.
    let numbers: Vec<&dyn Array> =
        columns().map(|column| column.as_dictionary::<Int32Type>().keys() as &dyn Array).collect();
    let numbers = interleave(&numbers, rows)?;
    let numbers = numbers.as_primitive::<Int32Type>().clone();
    Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(numbers, Arc::clone(texts))?))
}
