//! Damaged and hostile shards. Each is one clear error, without a panic or a hang.
//!
//! `tests/corpus` holds inputs that once failed or are meant to fail. All of them are run. Fuzzing
//! continues from there: `FOREREAD_FUZZ_SECONDS=3600 cargo test -p foreread-dataset --test packed
//! fuzz`. Inputs that fail are stored in the corpus.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foreread_dataset::{Catalog, DatasetError, DatasetErrorKind, Format, IndexOptions};
use foreread_tier::Span;
use foreread_types::SampleId;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::origin::Held;
use crate::recordio;
use crate::shards::{end, header, member, seal};
use crate::writers::file;

/// Names of shards of each format, so that each input is tried as each format.
const NAMES: [&str; 4] = ["a.tar", "a.tfrecord", "a.zip", "a.rec"];

fn index(name: &str, bytes: Vec<u8>) -> Result<Catalog, DatasetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(Held::new([(name, bytes)]).index(&IndexOptions::default()))
}

/// For any bytes the result is samples within these bytes, or a one-line error with the position.
#[track_caller]
fn answers(name: &str, bytes: Vec<u8>) -> Result<Catalog, DatasetError> {
    let size = bytes.len() as u64;
    let answer = index(name, bytes);
    match &answer {
        Ok(catalog) => {
            for id in (0..catalog.len()).map(SampleId) {
                let length = catalog.sizes().bytes(id);
                match catalog.entry(id).unwrap().span {
                    Span::Range(range) => {
                        assert!(range.start <= range.end && range.end <= size);
                        assert_eq!(range.end - range.start, length);
                    }
                    Span::Made(parts) => assert!(parts.iter().all(|part| part.check(size).is_ok())),
                    Span::Whole => panic!("a part is no object"),
                }
                for field in catalog.fields(id).unwrap() {
                    assert!(field.range.end <= length);
                }
                catalog.path(id).unwrap();
            }
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.starts_with("/data: "), "{text}");
            let reported =
                text.starts_with(&format!("/data: {name}: byte ")) || error.kind() == DatasetErrorKind::Empty;
            assert!(reported, "{text}");
        }
    }
    answer
}

#[track_caller]
fn fails(bytes: Vec<u8>, at: u64, why: &str) {
    let error = answers("a.tar", bytes).unwrap_err().to_string();
    assert!(error.starts_with(&format!("/data: a.tar: byte {at}: ")) && error.contains(why), "{error}");
}

fn pax(kind: u8, records: &[u8]) -> Vec<u8> {
    let mut bytes = header("pax", records.len() as u64, kind);
    bytes.extend_from_slice(records);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn overflowing_or_wrong_sizes_are_refused() {
    let sized = |size: &[u8; 12]| {
        let mut block = header("a.x", 0, b'0');
        block[124..136].copy_from_slice(size);
        seal(&mut block);
        [block, end()].concat()
    };
    fails(sized(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"), 0, "is not a number or too large");
    fails(sized(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 0, "is not a number or too large");
    fails(sized(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), 0, "is not a number or too large");
    fails(sized(b"777777777777"), 0, "cut short");
    fails(sized(b"garbage!!!!!"), 0, "is not a number or too large");
    let good = member("a.x", b"x");
    fails(
        [good.clone(), pax(b'x', b"29 size=18446744073709551615\n"), good.clone(), end()].concat(),
        2048,
        "is not a number or too large",
    );
    fails(
        [pax(b'x', b"31 size=9999999999999999999999\n"), good, end()].concat(),
        0,
        "is not a number or too large",
    );
}

#[test]
// semantics: SHARD-8
fn climbing_member_names_read_only_the_shard() {
    for name in ["../../etc/passwd.x", "/etc/passwd.x", "a/../b.x"] {
        let catalog = answers("a.tar", [member(name, b"x"), end()].concat()).unwrap();
        let key = name.strip_suffix(".x").unwrap();
        assert_eq!(catalog.key(SampleId(0)).unwrap().as_deref(), Some(key));
        // The shard is read, whatever the member's name.
        assert_eq!(&*catalog.entry(SampleId(0)).unwrap().object.path, "a.tar");
    }
    let long = "x".repeat(20_000);
    fails([pax(b'L', long.as_bytes()), member("a.x", b""), end()].concat(), 20_992, "longer than 16,384");
}

/// Names of old archives are in another encoding. The other members are still read.
#[test]
// semantics: SHARD-3
fn names_that_are_not_utf8_are_escaped() {
    let mut block = header("caf_.x", 0, b'0');
    block[3] = 0xe9;
    seal(&mut block);
    let tar = answers("a.tar", [block, member("b.x", b"y"), end()].concat()).unwrap();
    let keys = |catalog: &Catalog| -> Vec<String> {
        (0..2).map(|id| catalog.key(SampleId(id)).unwrap().unwrap().into_owned()).collect()
    };
    assert_eq!(keys(&tar), ["caf%E9", "b"]);
    let mut zip = file("python-stored.zip");
    let directory = zip.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    zip[directory + 46] = 0xe9;
    assert_eq!(keys(&answers("a.zip", zip).unwrap())[0], "%E9/0001.jpg");
}

#[test]
fn compressed_shard_of_a_few_bytes_is_named() {
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    for name in ["a.tar", "a.tfrecord"] {
        let error = answers(name, gzip.clone()).unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Unsupported);
        assert!(error.to_string().contains("compressed (gzip)"), "{error}");
    }
}

/// Damage in a zip archive that its directory does not show.
#[test]
// semantics: FORMAT-5
fn zip_members_have_the_checksums_of_the_directory() {
    for name in ["python-stored.zip", "python-deflated.zip"] {
        let bytes = file(name);
        let origin = Held::new([("a.zip", bytes.clone())]);
        let catalog = index("a.zip", bytes.clone()).unwrap();
        let passes = |origin: &Held, id: u64| {
            let sum = catalog.checksum(SampleId(id)).unwrap();
            sum.of(&origin.sample(&catalog, id)) == sum.expected()
        };
        assert!((0..catalog.len()).all(|id| passes(&origin, id)), "{name}");
        if let Span::Range(range) = catalog.entry(SampleId(0)).unwrap().span {
            let mut damaged = bytes;
            damaged[range.start as usize] ^= 1;
            assert!(!passes(&Held::new([("a.zip", damaged)]), 0), "{name}");
        }
    }
}

#[test]
fn excessive_or_damaged_headers_are_refused() {
    fails([pax(b'x', b"10 path=a\n").repeat(40), end()].concat(), 32 * 1024, "no member");
    fails([header("pax", 2 << 20, b'x'), vec![0; 2 << 20], end()].concat(), 0, "a header of 2097152 bytes");
    fails([pax(b'x', b"10 path=a\n"), end()].concat(), 1024, "between a header and its member");
    fails([pax(b'x', b"99 path=a\n"), member("a.x", b""), end()].concat(), 0, "a pax header is damaged");
    let zeros = [member("a.x", b""), vec![0; 3 << 20], b"junk".repeat(128)].concat();
    assert_eq!(answers("a.tar", zeros).unwrap().len(), 1, "the scan ends after a mebibyte of zeros");
}

#[test]
fn invalid_tar_header_and_trailing_data_are_distinct_errors() {
    let good = member("a.x", b"x");
    for at in [0, 100, 124, 148, 156, 257, 400] {
        let mut bytes = [good.clone(), good.clone(), end()].concat();
        bytes[1024 + at] ^= 0x55;
        fails(bytes, 1024, "checksum");
    }
    fails([good.clone(), vec![0; 512], b"junk".repeat(128)].concat(), 1536, "checksum");
    fails(b"junk".repeat(1000), 0, "checksum");
    fails(Vec::new(), 0, "cut short");
    fails(good.clone(), 1024, "no end mark");
    fails([good.clone(), member("a.X", b"y"), end()].concat(), 1536, "twice");
    let fields: Vec<u8> = (0..1001).flat_map(|number| member(&format!("a.{number}"), b"")).collect();
    fails([fields, end()].concat(), 512_512, "more than 1000 fields");
    fails([header("a.x", 0, b'M'), end()].concat(), 0, "volume");
    let gzip = [&[0x1f, 0x8b, 8, 0][..], &[7; 1000]].concat();
    fails(gzip, 0, "compressed (gzip)");
}

/// Some old writers summed signed bytes.
#[test]
fn signed_checksums_are_accepted() {
    let mut block = header("\u{e9}.x", 0, b'0');
    block[148..156].fill(b' ');
    let sum: i64 = block.iter().map(|&byte| i64::from(byte as i8)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let catalog = answers("a.tar", [block, end()].concat()).unwrap();
    assert_eq!(catalog.key(SampleId(0)).unwrap().as_deref(), Some("\u{e9}"));
}

#[test]
// semantics: SHARD-7
fn members_without_data_are_counted_and_skipped() {
    let parts = [
        header("d/", 0, b'5'),
        header("l.x", 0, b'2'),
        header("h.x", 700, b'1'), // has a size in its header and no data
        member("README", b"x"),
        member("__m__", b"x"),
        member("a.x", b"x"),
        end(),
    ];
    let origin = Held::new([("a.tar", parts.concat())]);
    let mut last = foreread_dataset::IndexProgress::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let options = IndexOptions::default();
    let index = origin.index_with(&options, |progress| last = progress);
    assert_eq!(runtime.block_on(index).unwrap().len(), 1);
    assert_eq!((last.samples, last.skipped), (1, 5));
    let none = answers("a.tar", [member("README", b"x"), end()].concat()).unwrap_err();
    let why = "no samples in 1 tar shard: all 1 members are directories";
    assert!(none.to_string().contains(why), "{none}");
}

#[test]
fn inconsistent_records_are_refused() {
    let good = file("tensorflow.tfrecord");
    let fails = |bytes: Vec<u8>, at: u64, why: &str| {
        let error = answers("a.tfrecord", bytes).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("/data: a.tfrecord: byte {at}: ")) && error.contains(why),
            "{error}"
        );
    };
    for at in 0..12 {
        let mut bytes = good.clone();
        bytes[21 + at] ^= 1;
        fails(bytes, 21, "does not match");
    }
    let mut huge = u64::MAX.to_le_bytes().to_vec();
    let sum = crc32c::crc32c(&huge);
    huge.extend((sum.rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes());
    fails([good.clone(), huge].concat(), good.len() as u64, "cut short");
    // A wrong checksum of the data is detected when the data is read.
    let mut bytes = good.clone();
    bytes[14] ^= 1;
    let catalog = answers("a.tfrecord", bytes.clone()).unwrap();
    let sum = catalog.checksum(SampleId(0)).unwrap();
    assert_ne!(sum.expected(), sum.of(&bytes[12..17]));
}

#[test]
fn inconsistent_zips_are_refused() {
    let good = file("python-stored.zip");
    let directory = good.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let fails = |bytes: Vec<u8>, why: &str| {
        let error = answers("a.zip", bytes).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    let change = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    fails(change(directory + 8, &[1]), "\"a/0001.jpg\" is encrypted");
    fails(change(directory + 10, &[12]), "other than deflate");
    fails(change(directory + 20, &[1, 2, 3]), "is not compressed and");
    fails(change(directory + 42, &[9]), "points to a position without a header");
    fails(change(directory + 42, &[255; 3]), "cut short");
    fails(change(good.len() - 12, &[9]), "should have");
    fails(b"PK".to_vec(), "not a zip archive");
    fails(Vec::new(), "no zip archive");
    // Two members at one offset.
    let second =
        directory + 1 + good[directory + 1..].windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let mut bytes = good.clone();
    bytes.copy_within(directory + 42..directory + 46, second + 42);
    fails(bytes, "overlaps");
}

/// The valid files from which truncations and mutations are made.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let tars = ["gnutar-gnu.tar", "gnutar-pax.tar", "python-ustar.tar", "gnutar-pax-sparse.tar"];
    let zips = ["python-stored.zip", "python-zip64.zip", "python-streamed.zip", "python-deflated.zip"];
    let records = ["tensorflow.tfrecord", "tensorflow-gzip.tfrecord"];
    let of = |name: &'static str| move |path: &&'static str| (name, file(path));
    let tars = tars.iter().map(of(NAMES[0]));
    let parts = ["plain.rec", "magic.rec", "classes.rec", "vectors.rec", "boxes.rec"];
    let parts = parts.iter().map(|path| (NAMES[3], recordio::file(path)));
    let records = records.iter().map(of(NAMES[1])).chain(parts);
    tars.chain(records).chain(zips.iter().map(of(NAMES[2]))).collect()
}

#[test]
// semantics: SHARD-7
fn truncated_shard_is_one_error() {
    for (name, bytes) in seeds() {
        let whole = answers(name, bytes.clone());
        let Ok(whole) = whole else { continue };
        let step = if bytes.len() > 2000 { 61 } else { 1 };
        for length in (0..bytes.len()).step_by(step) {
            match answers(name, bytes[..length].to_vec()) {
                // A missing record is not detectable in TFRecord and RecordIO.
                Ok(cut) if name == "a.tfrecord" || name == "a.rec" => assert!(cut.len() < whole.len()),
                // After the end mark nothing is missing.
                Ok(cut) => {
                    assert!(bytes[length..].iter().all(|&byte| byte == 0), "{name} cut at {length}");
                    assert_eq!(cut.len(), whole.len());
                }
                Err(error) => assert_ne!(error.kind(), DatasetErrorKind::Reading, "{error}"),
            }
        }
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// All files of the corpus, each as the format of its extension.
fn kept() -> Vec<(PathBuf, Vec<u8>)> {
    let mut kept: Vec<PathBuf> = fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    kept.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
// semantics: SHARD-7
fn corpus_is_parsed_or_refused() {
    let kept = kept();
    assert!(kept.len() >= 10);
    for (path, bytes) in kept {
        let Some(format) = path.to_str().and_then(Format::of_shard) else { panic!("{}", path.display()) };
        let name = NAMES.into_iter().find(|name| Format::of_shard(name) == Some(format)).unwrap();
        let began = Instant::now();
        let _ = answers(name, bytes);
        assert!(began.elapsed() < Duration::from_secs(300), "{}", path.display());
    }
}

/// One change to a file: operation, position, second position, value.
type Change = (u8, prop::sample::Index, prop::sample::Index, u64);

fn mutate(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for (what, at, other, value) in changes {
        if bytes.is_empty() {
            break;
        }
        let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
        match what % 9 {
            0 => bytes[at] ^= *value as u8 | 1,
            1 => bytes.truncate(at),
            2 => bytes.splice(at..at, value.to_le_bytes()).for_each(drop),
            3 => drop(bytes.drain(at.min(other)..at.max(other))),
            4 => {
                let part = bytes[at.min(other)..at.max(other)].to_vec();
                bytes.splice(at..at, part).for_each(drop);
            }
            5 => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            // The beginning of a part of a record.
            8 => {
                let head = [0xced7_230a_u32, *value as u32].map(u32::to_le_bytes).concat();
                let at = at / 4 * 4;
                bytes.splice(at..at, head).for_each(drop);
            }
            // A header with wrong content and a valid checksum.
            6 => {
                let block = at / 512 * 512;
                if let Some(block) = bytes.get_mut(block..block + 512) {
                    let place = [0, 100, 124, 124, 135, 156, 257, 345][other % 8];
                    block[place] = *value as u8;
                    seal(block);
                }
            }
            _ => {
                let block = at / 512 * 512;
                if let Some(block) = bytes.get_mut(block..block + 512) {
                    block[124..136].copy_from_slice(format!("{:011o}\0", value % (1 << 33)).as_bytes());
                    seal(block);
                }
            }
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let value = prop_oneof![any::<u64>(), 0..2000u64, Just(u64::MAX), Just(1 << 63)];
    prop::collection::vec(
        (any::<u8>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), value),
        1..5,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    // semantics: SHARD-7
    fn mutated_shard_is_parsed_or_refused(seed in any::<prop::sample::Index>(), changes in changes()) {
        let seeds = seeds();
        let (name, bytes) = seeds[seed.index(seeds.len())].clone();
        let _ = answers(name, mutate(bytes, &changes));
    }

    #[test]
    fn arbitrary_bytes_are_parsed_or_refused(
        name in 0..NAMES.len(),
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let _ = answers(NAMES[name], bytes);
    }
}

/// Mutates corpus and valid files for `FOREREAD_FUZZ_SECONDS`, or not at all.
#[test]
fn fuzz() {
    let seconds =
        std::env::var("FOREREAD_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut runner = TestRunner::new(ProptestConfig::default());
    let of = |path: &Path| {
        let format = Format::of_shard(path.to_str()?);
        NAMES.into_iter().find(|name| Format::of_shard(name) == format)
    };
    let mut pool = seeds();
    pool.extend(kept().into_iter().filter_map(|(path, bytes)| Some((of(&path)?, bytes))));
    let draw = (any::<prop::sample::Index>(), changes());
    for number in 0u64.. {
        if Instant::now() >= until {
            eprintln!("{number} shards were tried");
            break;
        }
        let (seed, changes) = draw.new_tree(&mut runner).unwrap().current();
        let (name, bytes) = pool[seed.index(pool.len())].clone();
        let bytes = mutate(bytes, &changes);
        let tried = std::panic::catch_unwind(|| answers(name, bytes.clone()).is_ok());
        if tried.is_err() {
            let path = corpus().join(format!("found-{:08x}-{name}", crc32c::crc32c(&bytes)));
            fs::write(&path, &bytes).unwrap();
            panic!("kept as {}", path.display());
        }
    }
}
