//! The common parts of the tests of Parquet and of Arrow: the manifest of fixtures, and damaged
//! copies.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use foreread_formats::decode::{DecodeError, decode};
use foreread_formats::{
    ColumnValues, Extents, FileSource, FormatError, FormatErrorKind, FoundSamples, ReadError,
};
use foreread_types::Recipe;
use futures::executor::block_on;
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::allocation::LARGEST;

/// A file whose samples pyarrow has read.
#[derive(Deserialize)]
struct Expected {
    file: String,
    field: Option<String>,
    /// Length and FNV-1a hash of each sample, or the hash of this list.
    samples: Value,
    skipped: u64,
    /// The labels, or the hash of their list.
    labels: Value,
    notes: String,
}

/// A file that is refused.
#[derive(Deserialize)]
struct Refused {
    file: String,
    field: Option<String>,
    error: String,
}

#[derive(Deserialize)]
struct Manifest {
    found: Vec<Expected>,
    refused: Vec<Refused>,
}

fn manifest() -> Manifest {
    serde_json::from_slice(&fixture("manifest.json")).unwrap()
}

/// The bytes of a fixture.
pub fn fixture(name: &str) -> Bytes {
    crate::kit::read("columnar", name)
}

/// A file that counts its requests.
pub struct Counted {
    pub bytes: Bytes,
    pub requests: AtomicUsize,
}

impl Counted {
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, requests: AtomicUsize::new(0) }
    }
}

impl FileSource for Counted {
    fn size(&self) -> u64 {
        self.bytes.size()
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        assert!(range.start < range.end && range.end <= self.size(), "{range:?}");
        self.requests.fetch_add(1, Relaxed);
        self.bytes.read(range)
    }
}

/// A parser, called with the file and the option `--field`.
pub type Index = fn(&dyn FileSource, Option<String>) -> Result<FoundSamples, FormatError>;

/// The extents, one per sample.
pub fn extents(found: &FoundSamples) -> Vec<(u64, u64)> {
    match &found.extents {
        Extents::Rows(rows) => rows.clone(),
        Extents::Runs(runs) => {
            let places = |run: &foreread_formats::Run| {
                let run = *run;
                (0..run.count).map(move |at| (run.start + at * run.stride, run.length))
            };
            runs.iter().flat_map(places).collect()
        }
    }
}

fn fnv(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The bytes of a sample, decoded if need be.
pub fn sample(bytes: &Bytes, found: &FoundSamples, row: usize) -> Result<Bytes, DecodeError> {
    let (at, length) = extents(found)[row];
    let slice = |at: u64, length: u64| bytes.slice(at as usize..(at + length) as usize);
    let made = found.made.as_ref().map(|made| (made, made.rows[row]));
    let Some((of, made, recipe)) = made.and_then(|(of, made)| Some((of, made, made.recipe?))) else {
        return Ok(slice(at, length));
    };
    let recipe = Recipe::new(&of.recipes[recipe as usize][..], made.decoded).unwrap();
    let decoded = decode(&recipe, &slice(at, made.stored))?.into_owned();
    Ok(Bytes::from(decoded).slice(made.slice as usize..(made.slice + length) as usize))
}

/// A list, or its hash if the manifest has that.
fn like(expected: &Value, list: Value) -> Value {
    if expected.is_string() { fnv(list.to_string().as_bytes()).into() } else { list }
}

/// Labels as the manifest has them.
fn as_json(values: &ColumnValues) -> Value {
    match values {
        ColumnValues::Integers(values) => json!(values),
        ColumnValues::Floats(values) => json!(values),
        ColumnValues::Texts(values) => json!(values),
        other => panic!("{other:?}"),
    }
}

/// Compares the samples and labels of all fixtures whose names end with `extension`.
pub fn samples_are_those_of_pyarrow(extension: &str, index: Index) {
    let mut count = 0;
    for expected in manifest().found.iter().filter(|expected| expected.file.ends_with(extension)) {
        let name = format!("{} --field {:?}", expected.file, expected.field);
        let source = Counted::new(fixture(&expected.file));
        let found = index(&source, expected.field.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let bytes =
            |row| sample(&source.bytes, &found, row).unwrap_or_else(|error| panic!("{name}: {error}"));
        let samples = (0..found.len() as usize).map(bytes).map(|bytes| json!([bytes.len(), fnv(&bytes)]));
        assert_eq!(like(&expected.samples, samples.collect()), expected.samples, "{name}");
        assert_eq!(found.skipped, expected.skipped, "{name}");
        let labels = found.columns.first().map_or(Value::Null, |column| as_json(&column.values));
        assert_eq!(like(&expected.labels, labels), expected.labels, "{name}");
        assert!(found.columns.iter().all(|column| column.name == "label"), "{name}");
        assert!(found.summary.contains(&expected.notes), "{name}: {}", found.summary);
        assert_eq!(found.summary.contains("no labels"), !expected.notes.is_empty(), "{}", found.summary);
        count += 1;
    }
    assert!(count >= 8, "the manifest has {count} files of this format");
}

/// Compares the errors of all fixtures that are refused.
pub fn refused_files_have_a_remedy(extension: &str, index: Index) {
    let mut count = 0;
    for refused in manifest().refused.iter().filter(|refused| refused.file.ends_with(extension)) {
        let error = index(&fixture(&refused.file), refused.field.clone()).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Unsupported, "{}: {error}", refused.file);
        assert!(error.why().contains(&refused.error), "{}: {error}", refused.file);
        assert!(!error.why().contains('\n'), "{error}");
        count += 1;
    }
    assert!(count >= 4, "the manifest has {count} refused files of this format");
}

/// A generator of random numbers: SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % most.max(1) as u64) as usize
    }
}

/// Checks the result of a parser for any file.
fn check_any(bytes: &Bytes, index: Index, field: Option<String>, name: &str) -> bool {
    let Ok(found) = index(bytes, field) else { return false };
    let size = bytes.size();
    assert!(found.len() <= size, "{name}: {} samples in {size} bytes", found.len());
    for (row, (at, length)) in extents(&found).into_iter().enumerate() {
        let fits = match &found.made {
            None => at.checked_add(length).is_some_and(|end| end <= size),
            Some(made) => made.fits(row, (at, length), size),
        };
        assert!(fits, "{name}: {at} {length}");
    }
    if let Some(made) = &found.made {
        assert_eq!(made.rows.len() as u64, found.len(), "{name}");
        // Bytes or an error, but no panic.
        let _ = (0..found.len() as usize).step_by(7).try_for_each(|row| sample(bytes, &found, row).map(drop));
    }
    for column in &found.columns {
        assert_eq!(column.values.len() as u64, found.len(), "{name}");
    }
    true
}

/// Parses damaged copies of all fixtures: cut short, with changed bytes, and with changed words.
pub fn damaged_files_are_errors_or_samples(extension: &str, copies: usize, index: Index) {
    let manifest = manifest();
    let found = manifest.found.iter().map(|it| (&it.file, &it.field));
    let refused = manifest.refused.iter().map(|it| (&it.file, &it.field));
    let (mut random, mut parsed, mut failed) = (Random(1), 0, 0);
    for (file, field) in found.chain(refused).filter(|(file, _)| file.ends_with(extension)) {
        let bytes = fixture(file);
        for copy in 0..crate::kit::copies(copies) {
            let mut damaged = bytes.to_vec();
            if copy % 5 == 0 {
                damaged.truncate(random.below(bytes.len()));
            } else {
                for _ in 0..=random.below(4) {
                    // Structure is dense at both ends.
                    let near = if copy % 2 == 0 { bytes.len() } else { bytes.len().min(900) };
                    let at = match copy % 3 {
                        0 => random.below(near),
                        _ => bytes.len() - 1 - random.below(near),
                    };
                    let word = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
                    let width = [1, 1, 2, 4, 8][random.below(5)];
                    damaged[at..(at + width).min(bytes.len())].fill(word);
                }
            }
            let is_parsed = check_any(&damaged.into(), index, field.clone(), &format!("{file}, copy {copy}"));
            *if is_parsed { &mut parsed } else { &mut failed } += 1;
        }
    }
    assert!(parsed > 0 && failed > parsed / 50, "{parsed} copies were parsed, {failed} were errors");
    // Fixtures have at most 20 kB. A page is decoded in at most 64 MiB.
    let most = if extension == ".parquet" { 65 << 20 } else { 8 << 20 };
    let largest = LARGEST.get();
    assert!(largest < most, "one allocation had {largest} bytes");
}

/// Runs a parser.
pub fn run(
    parsing: impl Future<Output = Result<FoundSamples, FormatError>>,
) -> Result<FoundSamples, FormatError> {
    block_on(parsing)
}
