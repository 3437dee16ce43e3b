//! Samples of several parts: HDF5 rows of several datasets, and Megatron's packed documents.
//!
//! `fixtures/make_parts.py` writes the files, and the samples that h5py and Megatron read of them.

use bytes::Bytes;
use foreread_formats::decode::{DecodeError, decode};
use foreread_formats::hdf5::{self, Hdf5Options};
use foreread_formats::megatron::{self, PackOptions};
use foreread_formats::{ColumnValues, Extents, FormatErrorKind, FoundSamples, MadeRow};
use foreread_types::{Recipe, SplitMix64};
use futures::executor::block_on;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::allocation::LARGEST;
use crate::kit::{self, fnv};
use crate::mutations::mutated;

#[derive(Deserialize)]
struct Expected {
    hdf5: Vec<Joined>,
    gpt: Vec<Packed>,
}

#[derive(Deserialize)]
struct Joined {
    file: String,
    datasets: Vec<String>,
    #[serde(default)]
    whole: bool,
    /// The error's text.
    refused: Option<String>,
    /// Names, types and shapes.
    #[serde(default)]
    fields: Vec<(String, String, Vec<Option<u64>>)>,
    /// The length of each field of each sample.
    #[serde(default)]
    lengths: Vec<Vec<u64>>,
    labels: Option<Vec<Value>>,
    #[serde(default)]
    digest: String,
}

#[derive(Deserialize)]
struct Packed {
    file: String,
    length: u64,
    seed: Option<u32>,
    samples: Option<u64>,
    split: Option<String>,
    dtype: String,
    count: u64,
    digest: String,
}

fn read(name: &str) -> Bytes {
    kit::read("parts", name)
}

fn expected() -> Expected {
    serde_json::from_slice(&read("expected.json")).unwrap()
}

fn extents(found: &FoundSamples) -> &[(u64, u64)] {
    match &found.extents {
        Extents::Rows(rows) => rows,
        Extents::Runs(runs) => panic!("{runs:?}"),
    }
}

/// The bytes of a part.
fn part(
    bytes: &[u8],
    found: &FoundSamples,
    at: u64,
    length: u64,
    row: &MadeRow,
) -> Result<Vec<u8>, DecodeError> {
    let stored = &bytes[at as usize..(at + row.stored) as usize];
    let Some(recipe) = row.recipe else { return Ok(stored.to_vec()) };
    let decoders = &found.made.as_ref().unwrap().recipes[recipe as usize];
    let decoded = decode(&Recipe::new(&decoders[..], row.decoded).unwrap(), stored)?;
    Ok(decoded[row.slice as usize..(row.slice + length) as usize].to_vec())
}

fn sample(bytes: &[u8], found: &FoundSamples, row: usize) -> Result<Vec<u8>, DecodeError> {
    let (at, length) = extents(found)[row];
    let Some(made) = &found.made else { return Ok(bytes[at as usize..(at + length) as usize].to_vec()) };
    assert!(made.is_ordered() && made.fits(row, (at, length), bytes.len() as u64));
    let more: u64 = made.more(row).iter().map(|part| part.length).sum();
    let mut sample = part(bytes, found, at, length - more, &made.rows[row])?;
    for more in made.more(row) {
        sample.extend(part(bytes, found, more.offset, more.length, &more.made)?);
    }
    assert_eq!(sample.len() as u64, length);
    Ok(sample)
}

fn samples(bytes: &[u8], found: &FoundSamples) -> Vec<Vec<u8>> {
    (0..found.len() as usize).map(|row| sample(bytes, found, row).unwrap()).collect()
}

impl Joined {
    fn options(&self) -> Hdf5Options {
        let mut options = Hdf5Options::default();
        options.dataset = self.datasets.first().cloned();
        options.joined = self.datasets[1..].to_vec();
        options.whole = self.whole;
        options
    }
}

impl Packed {
    fn options(&self) -> PackOptions {
        let mut options = PackOptions::new(self.length);
        options.seed = self.seed.unwrap_or(options.seed);
        (options.samples, options.split) = (self.samples, self.split.clone());
        options
    }

    fn idx(&self) -> Bytes {
        read(&format!("{}.idx", self.file))
    }

    fn bin(&self) -> Bytes {
        read(&format!("{}.bin", self.file))
    }
}

#[test]
// semantics: FORMAT-8
fn rows_of_several_datasets_are_those_of_h5py() {
    for case in expected().hdf5 {
        let name = format!("{:?}", case.datasets);
        let bytes = read(&case.file);
        let found = block_on(hdf5::index(&bytes, &case.options()));
        if let Some(why) = case.refused {
            let error = found.unwrap_err();
            assert_eq!(error.kind(), FormatErrorKind::Unsupported, "{name}");
            assert!(error.why().contains(&why) && !error.why().contains('\n'), "{name}: {error}");
            continue;
        }
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let samples = samples(&bytes, &found);
        assert_eq!(fnv(samples.iter().map(Vec::as_slice)), case.digest, "{name}");
        assert!(found.array.is_none());
        let arrays: Vec<_> = case
            .fields
            .iter()
            .map(|(name, dtype, shape)| (name.as_str(), dtype.as_str(), &shape[..]))
            .collect();
        let types =
            found.field_arrays.iter().map(|(name, array)| (&**name, array.dtype.as_str(), &array.shape[..]));
        assert_eq!(types.collect::<Vec<_>>(), arrays, "{name}");
        for (fields, lengths) in found.fields.as_ref().unwrap().iter().zip(&case.lengths) {
            let mut offset = 0;
            for ((field, expected), length) in fields.iter().zip(&case.fields).zip(lengths) {
                assert_eq!(
                    (&*field.name, field.offset, field.length),
                    (&*expected.0, offset, *length),
                    "{name}"
                );
                offset += length;
            }
            assert_eq!((fields.len(), lengths.len()), (case.fields.len(), case.fields.len()));
        }
        let labels = found.columns.first().map(|column| match &column.values {
            ColumnValues::Integers(values) => values.iter().map(|value| json!(value)).collect(),
            ColumnValues::Arrays { bytes, .. } => vec![json!(fnv([&bytes[..]]))],
            other => panic!("{other:?}"),
        });
        assert_eq!(labels, case.labels, "{name}");
    }
}

#[test]
// semantics: FORMAT-9
fn packed_documents_are_the_samples_of_megatron() {
    let cases = expected().gpt;
    for case in &cases {
        let bin = case.bin();
        let found = block_on(megatron::packed(&case.idx(), bin.len() as u64, &case.options()));
        let found = found.unwrap_or_else(|error| panic!("{} {}: {error}", case.file, case.length));
        assert_eq!(found.len(), case.count, "{}", found.summary);
        let samples = samples(&bin, &found);
        assert_eq!(fnv(samples.iter().map(Vec::as_slice)), case.digest, "{}", found.summary);
        let array = found.array.as_ref().unwrap();
        assert_eq!((&array.dtype, &array.shape[..]), (&case.dtype, &[Some(case.length + 1)][..]));
    }
    assert!(cases.iter().any(|case| case.count > 10_000));
    // Samples of one document have one part, and no columns for more of them.
    let case = &cases[0];
    let found = block_on(megatron::packed(&case.idx(), case.bin().len() as u64, &case.options())).unwrap();
    let single = (0..found.len() as usize).filter(|row| found.made.as_ref().unwrap().more(*row).is_empty());
    assert!(single.count() > 1000);
}

#[test]
// semantics: FORMAT-4
fn samples_of_too_many_documents_are_refused() {
    // 5,000 documents of one token.
    let count = 5000_u64;
    let mut idx = b"MMIDIDX\0\0".to_vec();
    idx.extend(1_u64.to_le_bytes());
    idx.push(8);
    idx.extend(count.to_le_bytes());
    idx.extend((count + 1).to_le_bytes());
    idx.extend((0..count).flat_map(|_| 1_u32.to_le_bytes()));
    idx.extend((0..count).flat_map(|number| (2 * number).to_le_bytes()));
    idx.extend((0..=count).flat_map(u64::to_le_bytes));
    let idx = Bytes::from(idx);
    let found = block_on(megatron::packed(&idx, 2 * count, &PackOptions::new(1000))).unwrap();
    assert_eq!(found.len(), 4);
    let error = block_on(megatron::packed(&idx, 2 * count, &PackOptions::new(1100))).unwrap_err();
    assert!(error.why().contains("documents, and at most 1024 are read"), "{error}");
    let error = block_on(megatron::packed(&idx, 2 * count, &PackOptions::new(5000))).unwrap_err();
    assert!(error.why().contains("5000 documents have 5000 tokens"), "{error}");
}

#[test]
// semantics: FORMAT-4
fn mutated_files_end_with_samples_or_an_error() {
    let expected = expected();
    let mut random = SplitMix64(17);
    let (mut found, mut refused) = (0, 0);
    let mut check = |name: &str, size: usize, largest: usize, result: Result<(FoundSamples, Bytes), _>| {
        assert!(largest <= 64 * size + (1 << 20), "{name}: {largest} bytes for a file of {size}");
        let (samples, bytes) = match result {
            Ok(samples) => samples,
            Err(error) => {
                let error: foreread_formats::FormatError = error;
                assert!(!error.to_string().contains('\n'), "{error}");
                refused += 1;
                return;
            }
        };
        found += 1;
        for row in 0..samples.len() as usize {
            // An error or bytes, but no panic.
            let _ = sample(&bytes, &samples, row);
        }
    };
    for case in &expected.hdf5 {
        let original = read(&case.file);
        for _ in 0..kit::copies(200) {
            let bytes = Bytes::from(mutated(&original, &mut random));
            LARGEST.set(0);
            let result = block_on(hdf5::index(&bytes, &case.options()));
            let largest = LARGEST.get();
            check("joined", bytes.len(), largest, result.map(|found| (found, bytes)));
        }
    }
    for case in expected.gpt.iter().filter(|case| case.samples.is_none_or(|samples| samples < 1000)) {
        let (idx, bin) = (case.idx(), case.bin());
        let table = idx.len() - 16;
        for _ in 0..kit::copies(200) {
            // The tables, or the numbers before them.
            let mut bytes = Bytes::from(mutated(&idx, &mut random));
            if bytes.len() > table && random.below(2) == 0 {
                bytes = [&idx[..34], &bytes[34..]].concat().into();
            }
            LARGEST.set(0);
            let result = block_on(megatron::packed(&bytes, bin.len() as u64, &case.options()));
            let largest = LARGEST.get();
            let size = bytes.len() + case.samples.unwrap_or(0) as usize;
            check("packed", size, largest, result.map(|found| (found, bin.clone())));
        }
    }
    assert!(found > 500 && refused > 500, "{found} {refused}");
}
