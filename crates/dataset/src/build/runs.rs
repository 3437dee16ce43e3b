//! Writing a catalog of samples whose places are computed.
//!
//! Rows of an array and windows of tokens lie at equal distances and have equal lengths. So a row
//! of this catalog is a run of samples, and 10^9 samples take a few rows. Sample `i` of a run
//! begins at `offset + i * stride`. The price: such samples have no names, checksums, fields,
//! values or servers.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field};
use foreread_formats::Run;
use foreread_types::Fingerprint;
use xxhash_rust::xxh3::Xxh3;

use crate::build::header::CatalogHeader;
use crate::build::schema::begin;
use crate::build::shard_columns::ShardColumns;
use crate::catalog_file::fingerprint::{hash_text, hash_version};
use crate::catalog_file::version::VERSION_VALUES;
use crate::catalog_file::writer::{ROWS, finish};
use crate::packed::IndexedShard;

/// Whether all samples of these shards are in runs of one length, without further columns.
pub(crate) fn are_computed(shards: &[IndexedShard]) -> bool {
    let mut runs = shards.iter().flat_map(|shard| &shard.rows.extra().runs);
    let Some(first) = runs.next() else { return false };
    shards.iter().all(|shard| shard.rows.rows() == 0 && shard.rows.extra().values.is_empty())
        && runs.all(|run| run.length == first.length)
}

/// Identifies the data. It covers the path, length and version of each shard, and its runs.
fn fingerprint(format: &str, shards: &[IndexedShard]) -> Fingerprint {
    let mut hash = Xxh3::new();
    hash.update(b"foreread computed samples 1\0");
    hash_text(&mut hash, 1, format);
    for IndexedShard { object, rows, .. } in shards {
        hash_text(&mut hash, 2, &object.path);
        hash.update(&object.size.to_le_bytes());
        hash_version(&mut hash, object);
        hash.update(&(rows.extra().runs.len() as u64).to_le_bytes());
        for Run { start, stride, length, count } in &rows.extra().runs {
            for number in [start, stride, length, count] {
                hash.update(&number.to_le_bytes());
            }
        }
    }
    Fingerprint(hash.digest128())
}

/// The bytes of the catalog file. `shards` are sorted by path, and [computed](are_computed).
pub(crate) fn encode(
    head: CatalogHeader<'_>,
    format: &str,
    shards: &[IndexedShard],
) -> Result<Vec<u8>, ArrowError> {
    let shared = ShardColumns::of(shards, head)?;
    let [time, change, tag] = shared.version_fields();
    let columns = [
        Some(ShardColumns::object_field()),
        Some(Field::new("offset", DataType::UInt64, false)),
        Some(Field::new("length", DataType::UInt64, false)),
        Some(Field::new("stride", DataType::UInt64, false)),
        Some(Field::new("samples", DataType::UInt64, false)),
        Some(Field::new("object_size", DataType::UInt64, false)),
        time,
        change,
        tag,
    ];
    let columns = columns.into_iter().flatten().collect();
    let version = (VERSION_VALUES, shared.changes());
    let (schema, mut writer) = begin(columns, version, head, format, fingerprint(format, shards))?;
    let numbered = shards.iter().enumerate();
    let runs: Vec<(usize, Run)> = numbered
        .flat_map(|(number, shard)| shard.rows.extra().runs.iter().map(move |run| (number, *run)))
        .collect();
    for rows in runs.chunks(ROWS) {
        let column = |number: &dyn Fn(&(usize, Run)) -> u64| -> ArrayRef {
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(number)))
        };
        let numbers = || rows.iter().map(|&(shard, _)| shard);
        let mut arrays: Vec<ArrayRef> = vec![
            shared.objects(numbers())?,
            column(&|row| row.1.start),
            column(&|row| row.1.length),
            column(&|row| row.1.stride),
            column(&|row| row.1.count),
            column(&|row| shards[row.0].object.size),
        ];
        arrays.extend(shared.versions(numbers())?);
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), arrays)?)?;
    }
    finish(writer)
}

#[cfg(test)]
mod tests {
    use foreread_tier::{Object, Span, Version};
    use foreread_types::SampleId;

    use super::*;
    use crate::build::object_layouts::Layouts;
    use crate::packed::{FormatColumns, SampleRows, ShardExtra};
    use crate::{Catalog, DatasetErrorKind, Format};

    fn shard(path: &str, size: u64, runs: Vec<Run>) -> IndexedShard {
        let rows = SampleRows::new(FormatColumns::default());
        let rows = rows.with_extra(ShardExtra { runs, ..ShardExtra::default() });
        let object = Object { path: path.into(), size, version: Some(Version::ETag("1".into())) };
        IndexedShard { object, rows, skipped: 0 }
    }

    fn run(start: u64, stride: u64, length: u64, count: u64) -> Run {
        Run { start, stride, length, count }
    }

    fn catalog(shards: Vec<IndexedShard>) -> Catalog {
        Catalog::from_shards(
            "/data",
            crate::build::header::IndexNotes::default(),
            Format::Tokens,
            shards,
            None,
            &Layouts::new(),
        )
        .unwrap()
    }

    fn extents(catalog: &Catalog) -> Vec<(String, std::ops::Range<u64>)> {
        let entry = |id| match catalog.entry(SampleId(id)).unwrap() {
            crate::CatalogEntry { object, span: Span::Range(range) } => (object.path.to_string(), range),
            other => panic!("{other:?}"),
        };
        (0..catalog.len()).map(entry).collect()
    }

    #[test]
    // semantics: FORMAT-3
    fn billion_windows_take_a_short_catalog() {
        let runs = vec![run(0, 4096, 4098, 1_000_000_000)];
        let made = catalog(vec![shard("a.bin", 4096 * 1_000_000_000 + 2, runs)]);
        let bytes = made.to_bytes().unwrap();
        assert!(bytes.len() < 8192, "{}", bytes.len());
        let opened = Catalog::from_bytes(bytes, "test").unwrap();
        for catalog in [&made, &opened] {
            assert_eq!((catalog.len(), catalog.total_bytes()), (1_000_000_000, 4_098_000_000_000));
            assert!(catalog.sizes().is_uniform());
            let last = catalog.entry(SampleId(999_999_999)).unwrap();
            assert_eq!(last.span, Span::Range(4096 * 999_999_999..4096 * 1_000_000_000 + 2));
            assert_eq!(catalog.path(SampleId(7)).unwrap(), "a.bin/7");
            let beyond = catalog.entry(SampleId(1_000_000_000)).unwrap_err();
            assert_eq!(beyond.kind(), DatasetErrorKind::OutOfRange);
        }
        assert_eq!(made.fingerprint(), opened.fingerprint());
    }

    #[test]
    // semantics: FORMAT-3
    fn computed_samples_equal_listed_ones() {
        let shards = |lengths: [u64; 2]| {
            let first = vec![run(10, 5, 8, 3), run(100, 8, 8, 1), run(60, 20, 8, 2)];
            vec![
                shard("b", 200, vec![run(0, 1, lengths[1], 4)]),
                shard("a", 120, first),
                shard("empty", 120, vec![]),
            ]
        };
        let computed = catalog(shards([8, 8]));
        let a = [10..18, 15..23, 20..28, 100..108, 60..68, 80..88].map(|range| ("a".to_owned(), range));
        let b = [0..8, 1..9, 2..10, 3..11].map(|range| ("b".to_owned(), range));
        let expected: Vec<_> = a.into_iter().chain(b).collect();
        assert_eq!(extents(&computed), expected);
        assert_eq!((computed.objects(), computed.total_bytes()), (2, 80));
        assert_eq!(computed.path(SampleId(6)).unwrap(), "b/0");
        // Lengths differ: one row per sample.
        let listed = catalog(shards([8, 7]));
        assert_eq!((listed.len(), listed.total_bytes()), (10, 76));
        assert_eq!(extents(&listed)[..6], expected[..6]);
        assert_eq!(extents(&listed)[9].1, 3..10);
    }

    #[test]
    fn impossible_runs_are_refused() {
        for (runs, size) in [
            (vec![run(0, 4, 8, 3)], 15),
            (vec![run(0, 0, 8, 2)], 100),
            (vec![run(u64::MAX, 4, 8, 3)], 100),
            (vec![run(0, u64::MAX, 8, 3)], 100),
            (vec![run(0, 1 << 40, 1 << 40, 1 << 40)], u64::MAX),
        ] {
            let shards = vec![shard("a", size, runs.clone())];
            let made = Catalog::from_shards(
                "/data",
                crate::build::header::IndexNotes::default(),
                Format::Tokens,
                shards,
                None,
                &Layouts::new(),
            );
            assert_eq!(made.unwrap_err().kind(), DatasetErrorKind::Corrupt, "{runs:?}");
        }
    }
}
