//! HDF5 files that h5py wrote, against the values that h5py reads (`fixtures/make_hdf5.py`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use foreread_formats::decode::{DecodeError, decode};
use foreread_formats::hdf5::{self, Hdf5Options};
use foreread_formats::{ColumnValues, Extents, FileSource, FormatErrorKind, FoundSamples, MadeRow};
use foreread_types::{Recipe, SplitMix64};
use futures::executor::block_on;
use serde::Deserialize;
use serde_json::Value;

use crate::allocation::LARGEST;
use crate::counting::Counted;
use crate::kit::{self, fnv, read};
use crate::mutations::mutated;

/// Cases that the recipe writes at least.
const LEAST_CASES: usize = 639;

/// Mutations of each file.
const MUTATIONS: usize = 300;

#[derive(Deserialize)]
struct Expected {
    index: Vec<Case>,
    chunks: Vec<ChunkCase>,
    refused: Vec<Case>,
    datasets: Vec<DatasetsCase>,
}

#[derive(Deserialize)]
struct Case {
    file: String,
    dataset: Option<String>,
    labels: Option<String>,
    #[serde(default)]
    whole: bool,
    #[serde(default)]
    count: u64,
    #[serde(default)]
    digest: String,
    keys: Option<String>,
    dtype: Option<String>,
    shape: Option<Vec<Option<u64>>>,
    values: Option<Vec<Value>>,
    #[serde(default)]
    skipped: u64,
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct ChunkCase {
    file: String,
    dataset: String,
    count: usize,
    digest: String,
    shape: Vec<u64>,
    chunk: Vec<u64>,
    size: u64,
    #[serde(default)]
    filtered: bool,
}

#[derive(Deserialize)]
struct DatasetsCase {
    file: String,
    found: Vec<(String, Vec<u64>)>,
}

impl Case {
    fn options(&self) -> Hdf5Options {
        let mut options = Hdf5Options::default();
        options.dataset.clone_from(&self.dataset);
        options.labels.clone_from(&self.labels);
        options.whole = self.whole;
        options
    }

    fn name(&self) -> String {
        format!("{} {:?} labels {:?}", self.file, self.dataset, self.labels)
    }
}

/// A fixture. Those with filters have their own folder and recipe (`make_filters.py`).
fn file(name: &str) -> Bytes {
    let folder = if name.starts_with("filters_") { "filters" } else { "hdf5" };
    read(folder, name)
}

fn expected() -> Expected {
    let of = |folder| serde_json::from_slice::<Expected>(&read(folder, "expected.json")).unwrap();
    let (mut all, filters) = (of("hdf5"), of("filters"));
    all.index.extend(filters.index);
    all.refused.extend(filters.refused);
    all
}

fn places(extents: &Extents) -> Vec<(u64, u64)> {
    match extents {
        Extents::Rows(rows) => rows.clone(),
        Extents::Runs(runs) => runs
            .iter()
            .flat_map(|run| (0..run.count).map(|i| (run.start + i * run.stride, run.length)))
            .collect(),
    }
}

/// The sample of one row, decoded if need be.
fn sample<'a>(bytes: &'a Bytes, found: &FoundSamples, row: usize) -> Result<Cow<'a, [u8]>, DecodeError> {
    let (at, length) = places(&found.extents)[row];
    let Some(made) = &found.made else { return Ok(bytes[at as usize..(at + length) as usize].into()) };
    let more = made.more(row);
    let first = length - more.iter().map(|part| part.length).sum::<u64>();
    let mut sample = Vec::new();
    for (at, length, part) in std::iter::once((at, first, made.rows[row]))
        .chain(more.iter().map(|part| (part.offset, part.length, part.made)))
    {
        let stored = &bytes[at as usize..(at + part.stored) as usize];
        let decoded = match part.recipe {
            None => stored.into(),
            Some(recipe) => {
                let decoders = &made.recipes[recipe as usize];
                decode(&Recipe::new(&decoders[..], part.decoded).unwrap(), stored)?
            }
        };
        sample.extend_from_slice(&decoded[part.slice as usize..(part.slice + length) as usize]);
    }
    Ok(sample.into())
}

fn samples<'a>(bytes: &'a Bytes, found: &FoundSamples) -> Vec<Cow<'a, [u8]>> {
    (0..found.len() as usize).map(|row| sample(bytes, found, row).unwrap()).collect()
}

/// Values as the recipe writes them: numbers and texts, or a digest of an array.
fn values(column: &ColumnValues) -> Vec<Value> {
    match column {
        ColumnValues::Integers(values) => values.iter().map(|value| (*value).into()).collect(),
        ColumnValues::Floats(values) => values.iter().map(|value| (*value).into()).collect(),
        ColumnValues::Texts(values) => values.iter().map(|value| value.as_deref().into()).collect(),
        ColumnValues::Arrays { array, width, bytes } if array.shape.is_empty() => {
            // Integers beyond 63 bits.
            assert_eq!((array.dtype.as_str(), *width), ("<u8", 8));
            bytes.chunks(8).map(|item| u64::from_le_bytes(item.try_into().unwrap()).into()).collect()
        }
        ColumnValues::Arrays { width, bytes, .. } => {
            bytes.chunks(*width).map(|item| fnv([item]).into()).collect()
        }
        _ => unreachable!(),
    }
}

fn same(found: &Value, expected: &Value) -> bool {
    let flag = |value: &Value| value.as_bool().map(i64::from).or(value.as_i64());
    match (found.as_f64(), expected.as_f64()) {
        (Some(a), Some(b)) if found.is_f64() => a == b,
        _ => found == expected || flag(found).is_some() && flag(found) == flag(expected),
    }
}

fn check_index(case: &Case, bytes: &Bytes) {
    let name = case.name();
    let found =
        block_on(hdf5::index(bytes, &case.options())).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(found.len(), case.count, "{name}");
    assert_eq!(fnv(samples(bytes, &found).iter().map(|sample| &**sample)), case.digest, "{name}");
    assert_eq!(found.skipped, case.skipped, "{name}");
    assert!(found.summary.contains(&case.text), "{name}: {}", found.summary);
    let array = found.array.as_ref();
    assert_eq!(array.map(|array| &array.dtype), case.dtype.as_ref(), "{name}");
    assert_eq!(array.map(|array| &array.shape), case.shape.as_ref(), "{name}");
    let keys = found.keys.as_ref().map(|keys| fnv(keys.iter().map(|key| key.as_bytes())));
    assert_eq!(keys, case.keys, "{name}");
    let Some(expected) = &case.values else {
        assert!(found.columns.is_empty(), "{name}: {:?}", found.columns);
        return;
    };
    assert_eq!(found.columns.len(), 1, "{name}");
    assert_eq!(found.columns[0].name, "label", "{name}");
    assert_eq!(found.columns[0].values.len() as u64, case.count, "{name}");
    let values = values(&found.columns[0].values);
    assert_eq!(values.len(), expected.len(), "{name}");
    for (found, expected) in values.iter().zip(expected) {
        assert!(same(found, expected), "{name}: {found} for {expected}");
    }
}

/// The part of a chunk within the dataset.
fn inside(case: &ChunkCase, at: &[u64], chunk: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for element in 0..case.chunk.iter().product::<u64>() {
        let mut rest = element;
        let mut within = true;
        for d in (0..case.chunk.len()).rev() {
            within &= at[d] + rest % case.chunk[d] < case.shape[d];
            rest /= case.chunk[d];
        }
        if within {
            let from = (element * case.size) as usize;
            bytes.extend_from_slice(&chunk[from..from + case.size as usize]);
        }
    }
    bytes
}

fn check_chunks(case: &ChunkCase, bytes: &Bytes) {
    let name = format!("{} {}", case.file, case.dataset);
    let chunks =
        block_on(hdf5::chunks(bytes, &case.dataset)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut pieces = Vec::new();
    let mut count = 0;
    for chunk in &chunks {
        let stored = &bytes[chunk.address as usize..(chunk.address + chunk.size) as usize];
        let stored = if case.filtered { stored.to_vec() } else { inside(case, &chunk.coordinates, stored) };
        // Chunks that were allocated early and never written are zero. h5py reads the same.
        if !case.filtered && stored.iter().all(|&byte| byte == 0) {
            continue;
        }
        count += 1;
        pieces.push(chunk.coordinates.iter().flat_map(|at| at.to_le_bytes()).collect());
        pieces.push(chunk.filter_mask.to_le_bytes().to_vec());
        pieces.push(stored);
    }
    assert_eq!(count, case.count, "{name}");
    assert_eq!(fnv(pieces.iter().map(Vec::as_slice)), case.digest, "{name}");
}

#[test]
// semantics: FORMAT-1, FORMAT-2, FORMAT-5
fn samples_are_the_values_that_h5py_reads() {
    let expected = expected();
    for case in &expected.index {
        check_index(case, &file(&case.file));
    }
    for case in &expected.chunks {
        check_chunks(case, &file(&case.file));
    }
    let cases = expected.index.len() + expected.chunks.len();
    assert!(cases >= LEAST_CASES, "{cases}");
}

#[test]
// semantics: FORMAT-2
fn unusable_labels_are_a_note() {
    let notes = |group: &str| {
        let mut options = Hdf5Options::default();
        options.dataset = Some(format!("{group}/images"));
        let found = block_on(hdf5::index(&file("labels_odd.h5"), &options)).unwrap();
        (found.columns.len(), found.notes.join(" "))
    };
    assert_eq!(notes("small"), (1, String::new()));
    let (count, note) = notes("short");
    assert!(count == 0 && note.contains("/short/labels (5 <i4)") && note.contains("6 x 2"), "{note}");
    let (count, note) = notes("wide");
    assert!(count == 0 && note.contains("exceeds 64-bit signed integers"), "{note}");
}

#[test]
// semantics: FORMAT-4
fn refused_datasets_are_named_with_the_cause() {
    for case in expected().refused {
        let error = block_on(hdf5::index(&file(&case.file), &case.options())).expect_err(&case.name());
        assert_eq!(error.kind(), FormatErrorKind::Unsupported, "{}: {error}", case.name());
        let error = error.to_string();
        assert!(error.contains(&case.text), "{}: {error}", case.name());
        assert!(!error.contains('\n'));
    }
}

#[test]
// semantics: SHARD-9
fn requests_are_far_fewer_than_samples() {
    let cost = |name: &str, path: &str| {
        let source = Counted::new(file(name));
        let mut options = Hdf5Options::default();
        options.dataset = Some(path.into());
        let found = block_on(hdf5::index(&source, &options)).unwrap();
        (source.cost().0, found.len())
    };
    // The first 16 KiB, and the directories after them.
    for (name, path, most) in [
        ("pages.h5", "fixed", 6),
        ("main_v110.h5", "contiguous", 8),
        ("links.h5", "group", 12),
        ("samples.h5", "/", 12),
    ] {
        let (requests, samples) = cost(name, path);
        assert!(requests <= most, "{name}: {requests} requests for {samples} samples");
    }
}

#[test]
fn datasets_of_a_file_are_those_of_h5py() {
    for case in expected().datasets {
        let mut found: Vec<_> = block_on(hdf5::datasets(&file(&case.file)))
            .unwrap()
            .into_iter()
            .map(|dataset| (dataset.path, dataset.shape))
            .collect();
        found.sort();
        assert_eq!(found, case.found, "{}", case.file);
    }
}

#[test]
fn dataset_infos_describe_layout_and_filters() {
    let found = block_on(hdf5::datasets(&file("main_v110.h5"))).unwrap();
    let found: BTreeMap<_, _> = found.into_iter().map(|dataset| (dataset.path.clone(), dataset)).collect();
    let layout = |path: &str| found[path].layout.as_str();
    assert_eq!(layout("contiguous"), "contiguous");
    assert_eq!(layout("compact"), "compact");
    assert_eq!(layout("edge_chunks"), "chunks of 4 x 4 x 3, fixed array");
    assert_eq!(layout("unlimited"), "chunks of 2 x 5, extensible array");
    assert_eq!(layout("two_unlimited"), "chunks of 3 x 6, version 2 B-tree");
    assert_eq!(layout("one_chunk"), "chunks of 7 x 6, single chunk");
    assert_eq!(layout("implicit"), "chunks of 3 x 4, implicit index");
    assert_eq!(found["shuffled"].filters, ["shuffle", "fletcher32"]);
    assert_eq!(found["contiguous_be"].dtype, ">f4");
}

/// Writes the right checksum where one is wrong, so that mutations reach the code after it.
fn repaired(mut bytes: Vec<u8>, options: &Hdf5Options) -> Bytes {
    for _ in 0..32 {
        let Err(error) = block_on(hdf5::index(&Bytes::copy_from_slice(&bytes), options)) else { break };
        let Some((_, sum)) =
            error.why().split_once(", expected ").filter(|_| error.why().contains("checksum"))
        else {
            break;
        };
        let sum = u32::from_str_radix(&sum[..8], 16).unwrap();
        let at = error.at() as usize;
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    bytes.into()
}

#[test]
// semantics: FORMAT-5
fn rows_of_a_chunk_are_slices_of_one_unit() {
    let bytes = file("filters_v110.h5");
    let of = |path: &str| {
        let mut options = Hdf5Options::default();
        options.dataset = Some(path.into());
        block_on(hdf5::index(&bytes, &options)).unwrap()
    };
    // Chunks of 4 rows, each of 80 bytes. Three rows of the last chunk are outside of the dataset.
    let found = of("all_rows");
    let (made, places) = (found.made.as_ref().unwrap(), places(&found.extents));
    let unit = |row: usize| (places[row].0, MadeRow { slice: 0, ..made.rows[row] });
    assert!((0..9).all(|row| unit(row) == unit(row / 4 * 4) && made.rows[row].slice == row as u64 % 4 * 80));
    assert!(unit(0) != unit(4) && unit(4) != unit(8) && made.rows[8].decoded == 320);
    // A row is in two chunks.
    let found = of("all_grid");
    let made = found.made.unwrap();
    assert!((0..5).all(|row| made.more(row).len() == 1 && made.more(row)[0].length == 20));
}

#[test]
// semantics: FORMAT-5
fn damaged_chunks_with_checksums_are_errors() {
    let original = file("filters_v110.h5");
    for path in ["gzipu1", "alli4", "sumf8", "gzip_sumi4"] {
        let mut options = Hdf5Options::default();
        options.dataset = Some(path.into());
        let found = block_on(hdf5::index(&original, &options)).unwrap();
        let (at, made) = (places(&found.extents)[2].0, found.made.as_ref().unwrap().rows[2]);
        assert!(made.recipe.is_some(), "{path}");
        for byte in (0..made.stored).step_by(7) {
            let mut bytes = original.to_vec();
            bytes[(at + byte) as usize] ^= 16;
            let error = sample(&bytes.into(), &found, 2).expect_err(path).to_string();
            assert!(!error.contains('\n'), "{path}: {error}");
        }
    }
}

#[test]
// semantics: FORMAT-5
fn mutated_streams_end_with_bytes_or_an_error() {
    let original = file("filters_earliest.h5");
    let mut random = SplitMix64(11);
    let (mut decoded, mut refused) = (0, 0);
    let kinds = ["gzip", "lzf", "zstd", "zstd_19", "lz4", "lz4_blocks", "lzf_shuffle", "all"];
    for path in kinds.iter().flat_map(|kind| [format!("{kind}i4"), format!("{kind}_noise")]) {
        let mut options = Hdf5Options::default();
        options.dataset = Some(path.clone());
        let found = block_on(hdf5::index(&original, &options)).unwrap();
        let Some(made) = &found.made else { continue };
        let Some(recipe) = made.rows[0].recipe else { continue };
        let recipe = Recipe::new(&made.recipes[recipe as usize][..], made.rows[0].decoded).unwrap();
        let at = places(&found.extents)[0].0 as usize;
        let stored = &original[at..at + made.rows[0].stored as usize];
        let whole = decode(&recipe, stored).unwrap().len();
        for _ in 0..MUTATIONS {
            LARGEST.set(0);
            match decode(&recipe, &mutated(stored, &mut random)) {
                Ok(bytes) => {
                    decoded += 1;
                    assert_eq!(bytes.len(), whole, "{path}");
                }
                Err(_) => refused += 1,
            }
            // The window of a Zstandard frame, twice in a ring.
            assert!(LARGEST.get() <= 32 << 20, "{path}: {} bytes", LARGEST.get());
        }
    }
    assert!(decoded > 100 && refused > 1000, "{decoded} {refused}");
}

#[test]
fn files_that_were_cut_short_are_damaged() {
    for name in ["main_earliest.h5", "main_v110.h5", "block_v200.h5"] {
        let bytes = file(name);
        let mut options = Hdf5Options::default();
        options.dataset = Some("contiguous".into());
        assert!(block_on(hdf5::index(&bytes, &options)).is_ok());
        for length in [bytes.len() - 1, 2000, 600, 20, 0] {
            let error = block_on(hdf5::index(&bytes.slice(..length), &options)).unwrap_err();
            assert_eq!(error.kind(), FormatErrorKind::Damaged, "{name} {length}: {error}");
        }
    }
}

#[test]
fn flipped_bits_of_new_metadata_are_found() {
    let original = file("block_v200.h5");
    for path in ["row_chunks", "unlimited", "two_unlimited", "group"] {
        let mut options = Hdf5Options::default();
        options.dataset = Some(path.into());
        let expected = block_on(hdf5::index(&original, &options)).unwrap();
        for at in 0..original.len() {
            let mut bytes = original.to_vec();
            bytes[at] ^= 4;
            // Either an error, or the same samples: no wrong place.
            if let Ok(found) = block_on(hdf5::index(&Bytes::from(bytes), &options)) {
                assert_eq!(found.extents, expected.extents, "{path}, byte {at}");
            }
        }
    }
}

#[test]
// semantics: FORMAT-4
fn mutated_files_end_with_samples_or_an_error() {
    let expected = expected();
    let mut cases: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in expected.index.iter().chain(&expected.refused) {
        cases.entry(&case.file).or_default().push(case);
    }
    let mut random = SplitMix64(7);
    let (mut found, mut refused) = (0, 0);
    for (name, cases) in cases {
        let original = file(name);
        for _ in 0..kit::copies(MUTATIONS) {
            let case = cases[random.below(cases.len() as u64) as usize];
            let bytes = repaired(mutated(&original, &mut random), &case.options());
            let size = bytes.size();
            let source = Counted::new(bytes);
            // Each byte is read 16 times at most. A link or a chunk of 8 bytes takes 48.
            LARGEST.set(0);
            let result = block_on(hdf5::index(&source, &case.options()));
            let largest = LARGEST.get() as u64;
            assert!(largest <= 64 * size + (1 << 20), "{name}: {largest} bytes for a file of {size}");
            match result {
                Ok(samples) => {
                    found += 1;
                    assert!(samples.len() <= size, "{name}: {} samples", samples.len());
                    if let Some(made) = &samples.made {
                        let parts = (made.rows.len() + made.more.len()) as u64;
                        assert!(made.rows.len() as u64 == samples.len() && parts <= size, "{name}: {parts}");
                    }
                    for (row, (at, length)) in places(&samples.extents).into_iter().enumerate() {
                        let fits = match &samples.made {
                            None => at.checked_add(length).is_some_and(|end| end <= size),
                            Some(made) => made.fits(row, (at, length), size),
                        };
                        assert!(fits, "{name}: {at} {length}");
                        // An error or bytes, but no panic.
                        let _ = sample(&source.source, &samples, row);
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().contains('\n'));
                }
            }
            // Blocks around the parts that are needed are read too.
            let (_, read) = source.cost();
            assert!(read <= 64 * size + (1 << 20), "{name}: {read} of {size} bytes read");
        }
        for chunks in expected.chunks.iter().filter(|case| case.file == name).take(4) {
            for _ in 0..kit::copies(MUTATIONS / 10) {
                let bytes = Bytes::from(mutated(&original, &mut random));
                let _ = block_on(hdf5::chunks(&bytes, &chunks.dataset));
            }
        }
    }
    assert!(found > 500 && refused > 500, "{found} {refused}");
}
