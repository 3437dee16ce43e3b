//! Parquet files: the samples and labels that pyarrow reads, and damaged files.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use foreread_formats::decode::decode;
use foreread_formats::parquet::{ParquetOptions, index};
use foreread_formats::{FileSource, FormatError, FormatErrorKind, FoundSamples, MadeRow};
use foreread_types::{Decoder, Recipe};

use crate::columnar;
use crate::columnar::{Counted, Random, fixture, run};
use crate::kit;

fn parse(source: &dyn FileSource, field: Option<String>) -> Result<FoundSamples, FormatError> {
    let mut options = ParquetOptions::default();
    options.column = field;
    run(index(source, &options))
}

#[test]
// semantics: FORMAT-1, FORMAT-2
fn parquet_samples_are_those_of_pyarrow() {
    columnar::samples_are_those_of_pyarrow(".parquet", parse);
}

#[test]
// semantics: FORMAT-4
fn parquet_files_that_are_refused_have_a_remedy() {
    columnar::refused_files_have_a_remedy(".parquet", parse);
}

#[test]
// semantics: FORMAT-4
fn damaged_parquet_files_are_errors_or_samples() {
    columnar::damaged_files_are_errors_or_samples(".parquet", 500, parse);
}

/// An index that does not fit is a hint that is not used.
#[test]
fn damaged_offset_index_is_not_used() {
    for name in ["nulls_v1_index.parquet", "nulls_v2_index.parquet"] {
        let whole = fixture(name);
        let found = parse(&whole, None).unwrap();
        let length = u32::from_le_bytes(whole[whole.len() - 8..][..4].try_into().unwrap()) as usize;
        let metadata = whole.len() - 8 - length;
        // The indexes lie between the last chunk, which has the last labels, and the metadata.
        let mut damaged = whole.to_vec();
        damaged[metadata - 300..metadata].fill(0);
        assert_eq!(parse(&Bytes::from(damaged), None).unwrap(), found, "{name}");
    }
}

#[test]
fn parquet_takes_fewer_requests_than_samples() {
    for name in ["datasets.parquet", "nulls_v1_chain.parquet", "nulls_v2_chain.parquet", "nested.parquet"] {
        let source = Counted::new(fixture(name));
        let found = parse(&source, None).unwrap();
        let requests = source.requests.load(Relaxed) as u64;
        assert!(requests < found.len() / 2, "{name}: {requests} requests for {} samples", found.len());
    }
}

/// 100 images in the dictionary of a row group, as `datasets` wrote them before version 4.
#[test]
// semantics: FORMAT-5, SHARD-9
fn parquet_images_of_a_dictionary_are_one_unit() {
    let source = Counted::new(fixture("images_snappy.parquet"));
    let found = parse(&source, None).unwrap();
    let made = found.made.as_ref().unwrap();
    let unit = |row: usize| (columnar::extents(&found)[row].0, MadeRow { slice: 0, ..made.rows[row] });
    assert_eq!(found.len(), 100);
    assert!((0..100).all(|row| unit(row) == unit(0)));
    assert!(
        found.summary.contains("100 values in 1 row groups, compressed with snappy"),
        "{}",
        found.summary
    );
    assert!(source.requests.load(Relaxed) <= 3, "{:?}", source.requests);
}

/// Without compression a dictionary's values are places in the file, and rows may share one.
#[test]
fn parquet_values_of_a_plain_dictionary_are_extents() {
    let found = parse(&fixture("shared_none_v1.parquet"), Some("few".to_owned())).unwrap();
    assert_eq!(found.made, None);
    let rows = columnar::extents(&found);
    let distinct: std::collections::HashSet<_> = rows.iter().collect();
    assert!(distinct.len() <= 20 && rows.len() > 30, "{} of {}", distinct.len(), rows.len());
}

/// Version 2 of pages leaves those as they are that would become longer.
#[test]
fn parquet_pages_that_stay_longer_are_extents() {
    let is_mixed = |codec: &&str| {
        let bytes = fixture(&format!("shared_{codec}_v2.parquet"));
        let made = parse(&bytes, Some("many".to_owned())).unwrap().made.unwrap();
        let plain = made.rows.iter().filter(|row| row.recipe.is_none() && row.stored > 0).count();
        plain > 0 && plain < made.rows.len()
    };
    assert!(["snappy", "gzip", "zstd", "lz4", "brotli"].iter().any(is_mixed));
}

/// A flipped bit of a page with a checksum never gives other bytes, when it is read nor when it is
/// indexed. Of the header, only fields for decoding are compared.
#[test]
// semantics: FORMAT-5
fn flipped_bit_of_a_page_with_a_checksum_gives_no_other_bytes() {
    for (codec, version) in [("snappy", 1), ("snappy", 2), ("lz4", 1), ("lz4", 2)] {
        let (bytes, mut checked) = (fixture(&format!("crc_{codec}_v{version}.parquet")), 0);
        for field in ["plain", "few", "zeros", "lengths", "fixed"] {
            let found = parse(&bytes, Some(field.to_owned())).unwrap();
            // In version 2, pages that would become longer are not compressed.
            let Some(made) = found.made.as_ref() else { continue };
            let extents = columnar::extents(&found);
            let units = extents.iter().zip(&made.rows).filter(|(_, row)| row.recipe.is_some());
            let mut units: Vec<_> =
                units.map(|(&(at, _), &unit)| (at, MadeRow { slice: 0, ..unit })).collect();
            units.dedup();
            checked += units.len();
            for (at, unit) in units {
                let recipe =
                    Recipe::new(&made.recipes[unit.recipe.unwrap() as usize][..], unit.decoded).unwrap();
                assert_eq!(recipe.decoders()[0], Decoder::ParquetPage);
                let stored = &bytes[at as usize..(at + unit.stored) as usize];
                let expected = decode(&recipe, stored).unwrap();
                let mut refused = 0;
                for bit in 0..stored.len() * 8 {
                    let mut damaged = stored.to_vec();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    match decode(&recipe, &damaged) {
                        Ok(found) => assert_eq!(found, expected, "{codec} {version} {field} bit {bit}"),
                        Err(_) => refused += 1,
                    }
                }
                assert!(refused >= (stored.len() - 40) * 8, "{refused} of {} bytes", stored.len());
                let mut damaged = bytes.to_vec();
                damaged[(at + unit.stored) as usize - 1] ^= 1;
                let error = parse(&Bytes::from(damaged), Some(field.to_owned())).unwrap_err();
                assert_eq!(error.kind(), FormatErrorKind::Damaged);
                assert!(error.why().contains("is damaged: the checksum of its"), "{error}");
            }
        }
        assert!(checked > 3, "{codec} {version}: {checked}");
    }
}

/// Pages of labels are read in whole, compressed or not.
#[test]
// semantics: FORMAT-2
fn flipped_bit_of_labels_with_a_checksum_is_an_error() {
    for name in ["crc_none_v1.parquet", "crc_none_v2.parquet", "crc_snappy_v1.parquet"] {
        let bytes = fixture(name);
        let found = parse(&bytes, Some("plain".to_owned())).unwrap();
        let length = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        // Labels are the last column, before the metadata.
        let mut refused = 0;
        for at in bytes.len() - 8 - length - 60..bytes.len() - 8 - length {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x10;
            match parse(&Bytes::from(damaged), Some("plain".to_owned())) {
                // A damaged header may have an unknown encoding: then there are no labels.
                Ok(same) => assert!(same.columns.is_empty() || same.columns == found.columns, "{name} {at}"),
                Err(error) => refused += usize::from(error.why().contains("labels is damaged: the checksum")),
            }
        }
        assert!(refused > 5, "{name}: {refused}");
    }
}

#[test]
// semantics: FORMAT-5
fn mutated_pages_end_with_bytes_or_an_error() {
    let mut random = Random(3);
    let (mut decoded, mut refused) = (0, 0);
    for codec in ["snappy", "gzip", "zstd", "lz4", "brotli"] {
        let bytes = fixture(&format!("shared_{codec}_v1.parquet"));
        for field in ["few", "zeros"] {
            let found = parse(&bytes, Some(field.to_owned())).unwrap();
            let made = found.made.as_ref().unwrap();
            let row = made.rows.iter().position(|row| row.recipe.is_some()).unwrap();
            let (at, unit) = (columnar::extents(&found)[row].0 as usize, made.rows[row]);
            let decoders = &made.recipes[unit.recipe.unwrap() as usize][..];
            let recipe = Recipe::new(decoders, unit.decoded).unwrap();
            for _ in 0..kit::copies(300) {
                let mut stored = bytes[at..at + unit.stored as usize].to_vec();
                for _ in 0..=random.below(2) {
                    let at = random.below(stored.len());
                    stored[at] ^= 1 << random.below(8);
                }
                stored.truncate(stored.len() - random.below(8) / 6);
                match decode(&recipe, &stored) {
                    Ok(bytes) => decoded += usize::from(bytes.len() as u64 == unit.decoded),
                    Err(error) => refused += usize::from(!error.to_string().contains('\n')),
                }
            }
        }
    }
    assert_eq!(decoded + refused, 10 * kit::copies(300));
    assert!(decoded > 100 && refused > 1000, "{decoded} {refused}");
}

#[test]
fn parquet_file_that_was_cut_short_is_damaged() {
    let whole = fixture("datasets.parquet");
    for length in [0, 4, 7, 8, 100, whole.len() - 1] {
        let error = parse(&whole.slice(..length), None).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Damaged, "{length}: {error}");
    }
}

/// Metadata before the end of a file.
fn with_metadata(metadata: &[u8]) -> Bytes {
    [b"PAR1", metadata, &(metadata.len() as u32).to_le_bytes(), b"PAR1"].concat().into()
}

/// The crate `parquet` 60.1 ends the process on both.
#[test]
fn hostile_schemas_are_damaged() {
    // A list of elements, each a group named `a` with one child: 60,000 levels.
    let mut nested = vec![0x15, 2, 0x19, 0xfc, 0xe0, 0xd4, 0x03];
    for _ in 0..60_000 {
        nested.extend([0x48, 1, b'a', 0x15, 2, 0]);
    }
    nested.push(0);
    // One element with two billion children.
    let wide = [0x15, 2, 0x19, 0x1c, 0x48, 1, b'a', 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0];
    for metadata in [&nested[..], &wide[..]] {
        let error = parse(&with_metadata(metadata), None).unwrap_err();
        assert_eq!(error.why(), "the metadata is malformed");
    }
}
