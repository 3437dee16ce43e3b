//! Writing a catalog of packed samples.
//!
//! A row contains everything that a read of its sample needs. Values that the rows of a shard share
//! are in dictionaries (path, ETag) or short (length, time). So a sample costs some 40 bytes and
//! its name.

use std::sync::Arc;

use arrow_array::{ArrayRef, ListArray, RecordBatch, StructArray, UInt32Array, UInt64Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields};
use foreread_types::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

use crate::build::header::CatalogHeader;
use crate::build::object_layouts::Layouts;
use crate::build::recipe_table::{self, RecipeTable};
use crate::build::schema::begin;
use crate::build::shard_columns::{ShardColumns, strings};
use crate::build::value_table::{self, ValueTable};
use crate::catalog_file::fingerprint::{hash_text, hash_version};
use crate::catalog_file::version::{
    VERSION_CHECKED, VERSION_DECODED, VERSION_ORDERED, VERSION_PACKED, VERSION_VALUES,
};
use crate::catalog_file::writer::{ROWS, finish};
use crate::catalog_file::{column_names, server_column};
use crate::packed::{IndexedShard, SampleRows};
use crate::{Format, SampleChecksum};

/// Identifies the data. It covers the path, length and version of each shard, and the name, extent,
/// fields, checksum and values of each sample.
fn fingerprint(format: &str, shards: &[IndexedShard], labels: &[&ValueTable]) -> Fingerprint {
    let mut hash = Xxh3::new();
    hash.update(b"foreread packed samples 1\0");
    hash_text(&mut hash, 1, format);
    for shard in shards {
        let IndexedShard { object, rows, .. } = shard;
        hash_text(&mut hash, 2, &object.path);
        hash.update(&object.size.to_le_bytes());
        hash_version(&mut hash, object);
        hash.update(&(rows.rows() as u64).to_le_bytes());
        for row in 0..rows.rows() {
            let (offset, length) = rows.extent(row);
            hash.update(&offset.to_le_bytes());
            hash.update(&length.to_le_bytes());
            if let Some(key) = rows.key(row) {
                hash_text(&mut hash, 4, key);
            }
            // Those of zip came later, and states of earlier catalogs stay valid.
            if let Some(sum) = rows.crc32c(row).filter(|_| format != Format::Zip.name()) {
                hash.update(&[5]);
                hash.update(&sum.to_le_bytes());
            }
            for (name, offset, length) in
                rows.fields(row).into_iter().flatten().map(|field| rows.field(field))
            {
                hash_text(&mut hash, 6, name);
                hash.update(&offset.to_le_bytes());
                hash.update(&length.to_le_bytes());
            }
            recipe_table::hash_row(&mut hash, rows, row);
            value_table::hash_row(&mut hash, shard, row);
        }
    }
    labels.iter().for_each(|table| table.hash_classes(&mut hash));
    Fingerprint(hash.digest128())
}

/// The columns of a list of fields.
pub(crate) fn field_columns() -> Fields {
    Fields::from(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("offset", DataType::UInt64, false),
        Field::new("length", DataType::UInt64, false),
    ])
}

/// The bytes of the catalog file. `shards` are sorted by path and none is empty. `layouts` are
/// those of the shards that have one.
pub(crate) fn encode(
    head: CatalogHeader<'_>,
    format: &str,
    shards: &[IndexedShard],
    layouts: &Layouts,
    values: &[ValueTable],
    made: Option<&RecipeTable>,
) -> Result<Vec<u8>, ArrowError> {
    let (labels, values): (Vec<_>, Vec<_>) = values.iter().partition(|table| table.is_label());
    let has = |what: fn(&SampleRows) -> bool| shards.iter().any(|shard| what(&shard.rows));
    let (keys, fields, sums) = (
        has(|rows| rows.key(0).is_some()),
        has(|rows| rows.fields(0).is_some()),
        has(|rows| rows.crc32c(0).is_some()),
    );
    let is_zip = format == Format::Zip.name();
    let shared = ShardColumns::of(shards, head)?;
    let [time, change, tag] = shared.version_fields();
    let item = Arc::new(Field::new_struct("item", field_columns(), false));
    let columns = [
        Some(ShardColumns::object_field()),
        keys.then(|| Field::new("key", DataType::Utf8, false)),
        Some(Field::new("offset", DataType::UInt64, false)),
        Some(Field::new("length", DataType::UInt64, false)),
        Some(Field::new("object_size", DataType::UInt64, false)),
        labels.first().map(|table| table.field()),
        time,
        change,
        tag,
        fields.then(|| Field::new_list("fields", Arc::clone(&item), false)),
        sums.then(|| {
            Field::new(
                if is_zip { SampleChecksum::CRC32 } else { SampleChecksum::CRC32C },
                DataType::UInt32,
                true,
            )
        }),
        (!layouts.is_empty()).then(|| Field::new(column_names::SERVER, DataType::UInt32, true)),
    ];
    let made_fields = made.iter().flat_map(|made| made.fields());
    let columns = columns.into_iter().flatten().chain(made_fields);
    let columns = columns.chain(values.iter().map(|table| table.field())).collect();
    // Versions of foreread that know no values refuse a catalog that has some. Versions that know
    // no decoders refuse a catalog with decoded samples. So it is with the checksums of zip
    // archives.
    let version = match made {
        _ if labels.iter().any(|table| !table.is_sorted()) => VERSION_ORDERED,
        _ if sums && is_zip => VERSION_CHECKED,
        Some(_) => VERSION_DECODED,
        None if head.extra.is_empty() && labels.is_empty() && values.is_empty() => VERSION_PACKED,
        None => VERSION_VALUES,
    };
    let fingerprint = fingerprint(format, shards, &labels);
    let (schema, mut writer) = begin(columns, (version, shared.changes()), head, format, fingerprint)?;
    for rows in (BatchRanges { shards, shard: 0, row: 0 }) {
        let numbers = || rows.iter().map(|&(shard, _)| shard);
        let of = |&(shard, _): &(usize, usize)| &shards[shard];
        let extent = |&(shard, row): &(usize, usize)| shards[shard].rows.extent(row);
        let mut arrays: Vec<ArrayRef> = vec![shared.objects(numbers())?];
        if keys {
            let keys = rows.iter().map(|at| of(at).rows.key(at.1).unwrap_or_default());
            arrays.push(Arc::new(strings(keys)?));
        }
        arrays.push(Arc::new(UInt64Array::from_iter_values(rows.iter().map(|at| extent(at).0))));
        arrays.push(Arc::new(UInt64Array::from_iter_values(rows.iter().map(|at| extent(at).1))));
        arrays.push(Arc::new(UInt64Array::from_iter_values(rows.iter().map(|at| of(at).object.size))));
        if let Some(labels) = labels.first() {
            arrays.push(labels.column(shards, &rows)?);
        }
        arrays.extend(shared.versions(numbers())?);
        if fields {
            arrays.push(Arc::new(lists(shards, &rows, &item)?));
        }
        if sums {
            let sums: UInt32Array = rows.iter().map(|at| of(at).rows.crc32c(at.1)).collect();
            arrays.push(Arc::new(sums));
        }
        if !layouts.is_empty() {
            let server = |at: &(usize, usize)| {
                let layout = layouts.get(&of(at).object.path)?;
                server_column::encode(&**layout, extent(at).0)
            };
            arrays.push(Arc::new(rows.iter().map(server).collect::<UInt32Array>()));
        }
        if let Some(made) = made {
            arrays.extend(made.arrays(shards, &rows)?);
        }
        for table in &values {
            arrays.push(table.column(shards, &rows)?);
        }
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), arrays)?)?;
    }
    finish(writer)
}

/// The fields of these rows.
fn lists(
    shards: &[IndexedShard],
    rows: &[(usize, usize)],
    item: &Arc<Field>,
) -> Result<ListArray, ArrowError> {
    let fields = |&(shard, row): &(usize, usize)| {
        let rows = &shards[shard].rows;
        rows.fields(row).unwrap_or_default().map(move |field| rows.field(field))
    };
    let ends = OffsetBuffer::from_lengths(rows.iter().map(|at| fields(at).len()));
    let all = || rows.iter().flat_map(fields);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(strings(all().map(|(name, ..)| name))?),
        Arc::new(UInt64Array::from_iter_values(all().map(|(_, offset, _)| offset))),
        Arc::new(UInt64Array::from_iter_values(all().map(|(.., length)| length))),
    ];
    let fields = StructArray::try_new(field_columns(), columns, None)?;
    ListArray::try_new(Arc::clone(item), ends, Arc::new(fields), None)
}

/// All rows as (shard, row in it), one batch at a time.
struct BatchRanges<'a> {
    shards: &'a [IndexedShard],
    shard: usize,
    row: usize,
}

impl Iterator for BatchRanges<'_> {
    type Item = Vec<(usize, usize)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut places = Vec::new();
        while let Some(shard) = self.shards.get(self.shard) {
            let take = (shard.rows.rows() - self.row).min(ROWS - places.len());
            places.extend((self.row..self.row + take).map(|row| (self.shard, row)));
            self.row += take;
            if self.row < shard.rows.rows() {
                break;
            }
            (self.shard, self.row) = (self.shard + 1, 0);
        }
        (!places.is_empty()).then_some(places)
    }
}
