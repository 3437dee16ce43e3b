//! npy, tokens, Megatron, MDS and LitData: files of the real writers against the results of their
//! readers.
//!
//! `fixtures/make_tables.py` writes the files and `manifest.json`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use foreread_formats::decode::{DecodeError, decode};
use foreread_formats::tokens::WindowOptions;
use foreread_formats::{
    ColumnValues, Extents, FileSource, FormatError, FormatErrorKind, FoundSamples, ReadError, litdata, mds,
    megatron, npy, tokens,
};
use foreread_types::Recipe;
use futures::executor::block_on;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::allocation::LARGEST;
use crate::kit;

/// A case of the manifest with its files.
struct Case {
    expected: Value,
    file: Bytes,
    /// The `index.json`, or empty.
    index: Bytes,
    /// The file that has the samples, if it is another one.
    bin: Option<Bytes>,
}

fn load(name: &Value) -> Bytes {
    kit::read("tables", name.as_str().unwrap())
}

fn cases() -> Vec<Case> {
    let manifest: Vec<Value> = serde_json::from_slice(&load(&json!("manifest.json"))).unwrap();
    manifest
        .into_iter()
        .map(|expected| Case {
            file: load(&expected["file"]),
            index: expected.get("index").map(load).unwrap_or_default(),
            bin: expected.get("bin").map(load),
            expected,
        })
        .collect()
}

fn name_of(path: &Value, index: &Value) -> String {
    let folder = index.as_str().unwrap().strip_suffix("index.json").unwrap();
    path.as_str().unwrap().strip_prefix(folder).unwrap().to_owned()
}

impl Case {
    fn format(&self) -> &str {
        self.expected["format"].as_str().unwrap()
    }

    fn options(&self) -> Option<WindowOptions> {
        let [window, stride, dtype] = self.expected.get("options")?.as_array()?.as_slice() else {
            return None;
        };
        let (window, stride) = (window.as_u64()?, stride.as_u64()?);
        Some(WindowOptions { window, stride, dtype: dtype.as_str()?.to_owned() })
    }

    /// The samples of `source`, a copy of the file that may be damaged, by a copy of the index.
    fn find(&self, source: &dyn FileSource, index: &[u8]) -> Result<FoundSamples, FormatError> {
        let options = self.options();
        let file = &self.expected["file"];
        match self.format() {
            "npy" => block_on(npy::index(source)),
            "tokens" if file.as_str().unwrap().ends_with(".npy") => {
                block_on(tokens::npy(source, &options.unwrap()))
            }
            "tokens" => block_on(tokens::raw(source, &options.unwrap())),
            "megatron" => block_on(megatron::documents(source, self.bin.as_ref().unwrap().size())),
            "mds" => {
                let shards = mds::parse_index(index)?;
                let name = name_of(file, &self.expected["index"]);
                let shard = shards.iter().find(|shard| name.starts_with(&shard.raw_data.basename));
                block_on(mds::index(source, shard.ok_or_else(|| FormatError::damaged(0, "no shard"))?, None))
            }
            "litdata" => {
                let found = litdata::parse_index(index)?;
                let name = name_of(file, &self.expected["index"]);
                let chunk = found.chunks.iter().find(|chunk| chunk.filename == name);
                let chunk = chunk.ok_or_else(|| FormatError::damaged(0, "no chunk"))?;
                match options {
                    Some(options) => block_on(litdata::windows(source, &found, chunk, &options)),
                    None => block_on(litdata::index(source, &found, chunk, None)),
                }
            }
            other => panic!("format {other}"),
        }
    }
}

fn extents(found: &FoundSamples) -> Vec<(u64, u64)> {
    match &found.extents {
        Extents::Rows(rows) => rows.clone(),
        Extents::Runs(runs) => runs
            .iter()
            .flat_map(|run| (0..run.count).map(|index| (run.start + index * run.stride, run.length)))
            .collect(),
    }
}

/// The bytes of a sample, decoded if need be.
fn sample(file: &Bytes, found: &FoundSamples, row: usize) -> Result<Bytes, DecodeError> {
    let (start, length) = extents(found)[row];
    let slice = |start: u64, length: u64| file.slice(start as usize..(start + length) as usize);
    let made = found.made.as_ref().map(|made| (made, made.rows[row]));
    let Some((of, made, recipe)) = made.and_then(|(of, made)| Some((of, made, made.recipe?))) else {
        return Ok(slice(start, length));
    };
    let recipe = Recipe::new(&of.recipes[recipe as usize][..], made.decoded).unwrap();
    let decoded = decode(&recipe, &slice(start, made.stored))?.into_owned();
    Ok(Bytes::from(decoded).slice(made.slice as usize..(made.slice + length) as usize))
}

fn hex(bytes: &[u8]) -> Value {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

/// The findings, in the words of the manifest.
fn described(found: &FoundSamples, file: &Bytes, expected: &Value) -> Value {
    let samples = extents(found).into_iter().enumerate().map(|(index, (_, length))| {
        let bytes = sample(file, found, index).unwrap();
        let Some(fields) = &found.fields else { return json!({ "bytes": hex(&bytes) }) };
        let fields = &fields[index];
        // The fields follow the stored sizes without gaps, to the end.
        let ends = fields.iter().map(|field| field.offset + field.length);
        assert!(fields[0].offset.is_multiple_of(4) && fields[0].offset <= 4 * fields.len() as u64);
        assert!(ends.eq(fields.iter().skip(1).map(|field| field.offset).chain([length])));
        let fields: Vec<Value> = fields
            .iter()
            .map(|field| {
                let bytes = bytes.slice(field.offset as usize..(field.offset + field.length) as usize);
                json!([*field.name, hex(&bytes)])
            })
            .collect();
        json!({ "fields": fields })
    });
    let samples: Vec<Value> = samples.collect();
    let mut value = expected.clone();
    value["samples"] = samples.into();
    value["skipped"] = found.skipped.into();
    let array = found.array.as_ref().map(|array| json!([array.dtype, array.shape]));
    if array.is_some() || !expected["array"].is_null() {
        value["array"] = array.into();
    }
    assert!(found.columns.len() < 2);
    if let Some(column) = found.columns.first() {
        assert_eq!(column.name, "label");
        value["label"] = match &column.values {
            ColumnValues::Integers(values) => json!(values),
            ColumnValues::Floats(values) => json!(values),
            ColumnValues::Texts(values) => {
                values.iter().map(|text| text.as_deref().map(str::to_owned)).collect()
            }
            other => panic!("{other:?}"),
        };
    } else if !expected["label"].is_null() {
        value["label"] = Value::Null;
    }
    value
}

fn check(format: &str) {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.format() == format).collect();
    assert!(cases.len() > 2);
    for case in cases {
        let found = case.find(&case.file, &case.index);
        let Some(error) = case.expected.get("error") else {
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.expected["file"]));
            let mut expected = case.expected.clone();
            // JSON has truth values where the catalog has integers.
            for label in expected["label"].as_array_mut().into_iter().flatten() {
                if let Some(truth) = label.as_bool() {
                    *label = u64::from(truth).into();
                }
            }
            let described = described(&found, case.bin.as_ref().unwrap_or(&case.file), &expected);
            assert_eq!(described, expected, "{}", found.summary);
            continue;
        };
        let found = found.unwrap_err();
        assert_eq!(
            format!("{:?}", found.kind()),
            error.as_str().unwrap(),
            "{}: {found}",
            case.expected["file"]
        );
    }
}

#[test]
fn npy_rows_are_those_of_numpy() {
    check("npy");
}

#[test]
fn token_windows_are_those_of_numpy() {
    check("tokens");
}

#[test]
fn megatron_documents_are_those_of_megatron() {
    check("megatron");
    for case in cases().iter().filter(|case| case.format() == "megatron") {
        assert_eq!(block_on(megatron::token_type(&case.file)).unwrap(), case.expected["array"][0]);
    }
}

#[test]
fn mds_samples_are_those_of_streaming() {
    check("mds");
}

#[test]
fn litdata_samples_are_those_of_litdata() {
    check("litdata");
}

/// A generator with a stable sequence: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % below.max(1)
    }

    /// Damages bytes: a few other ones, most of them near the beginning or the end, or another end.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let kind = self.next(8);
        if kind < 2 {
            bytes.truncate(self.next(bytes.len() as u64 + 1) as usize);
        } else if kind == 2 {
            bytes.extend((0..self.next(40)).map(|number| number as u8));
        }
        for _ in 0..if kind == 0 { 0 } else { 1 + self.next(4) } {
            let length = bytes.len() as u64;
            let within = if self.next(3) == 0 { length } else { length.min(200) };
            let from = if self.next(4) == 0 { length - within } else { 0 };
            let at = (from + self.next(within)) as usize;
            let value = match self.next(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes.get(at).map_or(0, |byte| byte ^ 1 << self.next(8)),
                _ => self.next(256) as u8,
            };
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes
    }
}

/// A file that counts the bytes that are read.
struct Watched {
    bytes: Bytes,
    requests: AtomicU64,
    read: AtomicU64,
}

impl Watched {
    fn new(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), requests: AtomicU64::new(0), read: AtomicU64::new(0) }
    }
}

impl FileSource for Watched {
    fn size(&self) -> u64 {
        self.bytes.size()
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        assert!(range.start < range.end && range.end <= self.size());
        self.requests.fetch_add(1, Relaxed);
        self.read.fetch_add(range.end - range.start, Relaxed);
        self.bytes.read(range)
    }
}

#[test]
fn damaged_files_are_errors_or_lie_in_the_file() {
    let mut random = Random(5);
    let (mut errors, mut sound) = (0, 0);
    for case in cases() {
        for round in 0..kit::copies(400) {
            let in_index = !case.index.is_empty() && round % 3 == 0;
            let index = if in_index { random.damage(&case.index) } else { case.index.to_vec() };
            let file = Watched::new(if in_index { case.file.to_vec() } else { random.damage(&case.file) });
            let size = file.size();
            LARGEST.set(0);
            let found = case.find(&file, &index);
            let largest = LARGEST.get();
            // Frames are decoded in at most 64 MiB, and say how long they are.
            let is_packed = case.expected["file"].as_str().unwrap().contains("/zstd_");
            let decoded = if is_packed { 64 << 20 } else { 0 };
            assert!(
                largest < 40_000 + 40 * (size as usize + index.len()) + decoded,
                "{largest} {}",
                case.expected["file"]
            );
            assert!(file.read.load(Relaxed) <= 4 * size + 8192, "{}", case.expected["file"]);
            let Ok(found) = found else {
                errors += 1;
                continue;
            };
            sound += 1;
            let size = case.bin.as_ref().map_or(size, Bytes::size);
            assert!(found.len() <= size.max(file.size()), "{}", found.summary);
            for (number, (start, length)) in extents(&found).into_iter().enumerate() {
                let fits = match &found.made {
                    None => start + length <= size,
                    Some(made) => made.fits(number, (start, length), size),
                };
                assert!(fits, "{}", found.summary);
                if found.made.is_some() {
                    // Bytes or an error, but no panic.
                    let _ = sample(&file.bytes, &found, number);
                }
                for field in found.fields.iter().flat_map(|fields| &fields[number]) {
                    assert!(field.offset + field.length <= length);
                }
            }
            assert!(found.fields.as_ref().is_none_or(|fields| fields.len() as u64 == found.len()));
            assert!(found.columns.iter().all(|column| column.values.len() as u64 == found.len()));
        }
    }
    assert!(errors > 3000 && sound > 3000, "{errors} {sound}");
}

#[test]
fn errors_have_one_line() {
    let mut random = Random(6);
    for case in cases() {
        for round in 0..50 {
            let file = if round < 25 { random.damage(&case.file).into() } else { case.file.clone() };
            let index = if round < 25 { case.index.to_vec() } else { random.damage(&case.index) };
            if let Err(error) = case.find(&file, &index) {
                let text = error.to_string();
                assert!(!text.contains('\n') && text.len() < 400, "{text}");
                assert_ne!(error.kind(), FormatErrorKind::Unread);
            }
        }
    }
}

/// A file with a size and no bytes.
struct Unread(u64);

impl FileSource for Unread {
    fn size(&self) -> u64 {
        self.0
    }

    fn read(&self, _: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        panic!("the file was read")
    }
}

#[test]
// semantics: FORMAT-3
fn billion_windows_are_one_run() {
    let options = WindowOptions { window: 1025, stride: 1024, dtype: "uint16".to_owned() };
    let found = block_on(tokens::raw(&Unread(2 * (1024 * 1_000_000_000 + 5)), &options)).unwrap();
    let Extents::Runs(runs) = &found.extents else { panic!("a table") };
    assert_eq!((runs.len(), found.len(), found.skipped), (1, 1_000_000_000, 1));
    assert_eq!((runs[0].stride, runs[0].length), (2048, 2050));
}

#[test]
fn windows_of_bad_options_are_refused() {
    let options = |window, stride, dtype: &str| WindowOptions { window, stride, dtype: dtype.to_owned() };
    let raw = |size, options| block_on(tokens::raw(&Unread(size), &options)).map_err(|error| error.kind());
    for bad in [options(0, 1, "<u2"), options(1, 0, "<u2"), options(u64::MAX, 1, "<u2"), options(1, 1, "")] {
        assert_eq!(raw(10, bad), Err(FormatErrorKind::Unsupported));
    }
    assert_eq!(raw(11, options(1, 1, "<u2")), Err(FormatErrorKind::Damaged));
    let case = cases().into_iter().find(|case| case.expected["file"] == "tokens/u4.npy").unwrap();
    let error = block_on(tokens::npy(&case.file, &options(4, 4, "uint16"))).unwrap_err();
    assert_eq!(error.why(), "the tokens are of type <u4, not uint16");
    assert!(block_on(tokens::npy(&case.file, &options(4, 4, "uint32"))).is_ok());
}

/// A shard of samples with two texts and a label, and its index.
fn shard(samples: u32, length: impl Fn(u32) -> u32) -> (Vec<u8>, mds::MdsShard) {
    let mut offset = 8 + 4 * samples;
    let mut file = samples.to_le_bytes().to_vec();
    for number in 0..=samples {
        file.extend(offset.to_le_bytes());
        offset += 8 + 3 + length(number) + 8;
    }
    for number in 0..samples {
        file.extend(3u32.to_le_bytes());
        file.extend(length(number).to_le_bytes());
        file.extend(b"abc");
        file.resize(file.len() + length(number) as usize, b'x');
        file.extend(i64::from(number).to_le_bytes());
    }
    let shard = mds::MdsShard {
        format: "mds".to_owned(),
        raw_data: mds::MdsFile { basename: "shard.00000.mds".to_owned(), bytes: file.len() as u64 },
        samples: u64::from(samples),
        column_names: ["a", "b", "label"].map(str::to_owned).to_vec(),
        column_encodings: ["bytes", "bytes", "int"].map(str::to_owned).to_vec(),
        column_sizes: vec![None, None, Some(8)],
        compression: None,
    };
    (file, shard)
}

#[test]
fn small_samples_are_read_in_few_requests() {
    let (file, shard) = shard(10_000, |number| number % 50);
    let file = Watched::new(file);
    let found = block_on(mds::index(&file, &shard, None)).unwrap();
    let ColumnValues::Integers(labels) = &found.columns[0].values else { panic!("no integers") };
    assert!(labels.iter().zip(0..).all(|(label, number)| *label == Some(number)));
    let fields = &found.fields.unwrap()[9_999];
    assert_eq!((fields[1].offset, fields[1].length, fields[2].offset), (11, 49, 60));
    assert!(file.requests.load(Relaxed) < 12, "{}", file.requests.load(Relaxed));
}

#[test]
fn large_samples_are_not_read() {
    let (file, shard) = shard(50, |number| 100_000 + number);
    let file = Watched::new(file);
    let found = block_on(mds::index(&file, &shard, None)).unwrap();
    assert_eq!(found.fields.unwrap()[49][1].length, 100_049);
    // Sizes and labels of neighbors are in one block or in adjacent ones.
    assert!(file.requests.load(Relaxed) <= 101);
    assert!(file.read.load(Relaxed) < 50 * 16_384 + 4096);
}

#[test]
fn computed_sizes_need_no_reads() {
    let (file, mut shard) = shard(100, |_| 10_000);
    shard.column_names.truncate(2);
    shard.column_encodings.truncate(2);
    // Of two columns, one has a fixed size.
    shard.column_sizes = vec![Some(15), None];
    let file = Watched::new(file);
    let found = block_on(mds::index(&file, &shard, None)).unwrap();
    assert_eq!(found.fields.unwrap()[99][1].length, 10_000);
    assert_eq!(file.requests.load(Relaxed), 1);
}

#[test]
fn litdata_tables_with_several_values_have_a_remedy() {
    let why = |folder: &str, label: Option<&str>| {
        let name = format!("litdata/{folder}/chunk-0-0.bin");
        let case = cases().into_iter().find(|case| case.expected["file"] == name).unwrap();
        let index = litdata::parse_index(&case.index).unwrap();
        block_on(litdata::index(&case.file, &index, &index.chunks[0], label))
            .map_err(|it| it.why().to_owned())
    };
    for folder in ["arrow_several", "arrow_nested"] {
        let expected = "has 2 values in separate places next to its label: write the samples again as tuples";
        assert!(why(folder, None).unwrap_err().contains(expected));
    }
    assert!(why("arrow_list", None).unwrap_err().contains("not bytes or text"));
    assert!(why("arrow", Some("x")).unwrap_err().starts_with("there is no column \"x\""));
    assert_eq!(why("arrow", Some("label")).unwrap().columns.len(), 1);
}

#[test]
fn equal_texts_are_shared() {
    let case =
        cases().into_iter().find(|case| case.expected["file"] == "mds/text_label/shard.00000.mds").unwrap();
    let found = case.find(&case.file, &case.index).unwrap();
    let ColumnValues::Texts(texts) = &found.columns[0].values else { panic!("no texts") };
    let [Some(first), _, _, Some(fourth), ..] = &texts[..] else { panic!("no labels") };
    assert!(Arc::ptr_eq(first, fourth));
}

#[test]
fn mds_damage_is_named() {
    let why = |change: &dyn Fn(&mut Vec<u8>, &mut mds::MdsShard)| {
        let (mut file, mut shard) = shard(3, |_| 5);
        change(&mut file, &mut shard);
        block_on(mds::index(&Bytes::from(file), &shard, None)).unwrap_err().to_string()
    };
    let fixed = |shard: &mut mds::MdsShard, first| shard.column_sizes = vec![Some(first), Some(8), Some(8)];
    for (found, expected) in [
        (why(&|file, _| file[4] = 0), "begin at 0: expected 20"),
        (why(&|file, _| file[8] = 0xff), "sample 0 ends at 255"),
        (why(&|file, _| file[20] = 2), "sample 0 has 24 bytes, its parts 23"),
        (why(&|file, _| file[20] = 4), "sample 0 has 24 bytes, its parts 25"),
        (why(&|_, shard| fixed(shard, 7)), "sample 0 has 24 bytes, its parts 23"),
        (why(&|_, shard| fixed(shard, 9)), "sample 0 has 24 bytes, its parts 25"),
        (why(&|_, shard| fixed(shard, u64::MAX)), "too large"),
        (why(&|_, shard| shard.samples = 2), "the file has 3 samples, its index 2"),
        (why(&|_, shard| shard.samples = u64::MAX), "cut short"),
        (why(&|_, shard| shard.raw_data.bytes += 1), "the shard has 92 bytes, its index says 93"),
        (
            why(&|file, shard| {
                file.push(0);
                shard.raw_data.bytes += 1;
            }),
            "the last sample ends here, the file at 93",
        ),
    ] {
        assert!(found.contains(expected), "{found}: {expected}");
    }
}

#[test]
fn litdata_counts_of_tokens_are_checked() {
    let case =
        cases().into_iter().find(|case| case.expected["file"] == "litdata/arrays/chunk-0-0.bin").unwrap();
    let index = std::str::from_utf8(&case.index).unwrap();
    let dim = format!("\"dim\": {}", litdata::parse_index(&case.index).unwrap().chunks[0].tokens.unwrap());
    assert!(index.contains(&dim));
    let error = case.find(&case.file, index.replace(&dim, "\"dim\": 7").as_bytes()).unwrap_err();
    assert!(error.why().contains("expected 7 tokens"), "{error}");
}

#[test]
fn megatron_damage_is_named() {
    let case = cases().into_iter().find(|case| case.expected["file"] == "megatron/u2.idx").unwrap();
    let why = |at: usize, value: &[u8], bin_size: u64| {
        let mut file = case.file.to_vec();
        file[at..at + value.len()].copy_from_slice(value);
        block_on(megatron::documents(&Bytes::from(file), bin_size)).unwrap_err().to_string()
    };
    let longer = [&case.file[..], &[0; 3]].concat();
    let error = block_on(megatron::documents(&Bytes::from(longer), 1000)).unwrap_err();
    assert!(error.why().contains("3 bytes after the tables"));
    let (bin, sequences) = (case.bin.as_ref().unwrap().size(), 7);
    let (pointers, documents) = (34 + sequences * 4, 34 + sequences * 12);
    for (found, expected) in [
        (why(0, b"X", bin), "does not begin with MMIDIDX"),
        (why(9, &[2], bin), "version 2"),
        (why(17, &[9], bin), "element type 9"),
        (why(18, &[0xff; 8], bin), "cut short"),
        (why(26, &[0xff; 8], bin), "cut short"),
        (why(34, &(-1i32).to_le_bytes(), bin), "negative"),
        (why(pointers + 8, &[9], bin), "begins before the end"),
        (why(pointers + 48, &[118], bin + 10), "does not begin at the end"),
        (why(documents, &[1], bin), "does not begin with 0"),
        (why(documents + 16, &[0], bin), "ends at sequence 0"),
        (why(documents + 40, &[8], bin), "ends at sequence 8 of 7"),
        (why(0, b"M", bin - 1), "does not fit in a .bin"),
    ] {
        assert!(found.contains(expected), "{found}: {expected}");
    }
}
