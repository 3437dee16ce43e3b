//! LMDB: every value compared with the library's own reads, and damaged files.
//! `fixtures/make_lmdb.py` writes the databases and the manifest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use foreread_formats::lmdb::{LmdbOptions, index};
use foreread_formats::{
    ColumnValues, Extents, FileSource, FormatError, FormatErrorKind, FoundSamples, ReadError,
};
use futures::executor::block_on;
use futures::future::BoxFuture;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::counting::Counted;
use crate::kit;

/// The page size of all fixtures.
const PAGE: usize = 4096;

#[derive(Deserialize)]
struct Listed {
    duplicates: bool,
    entries: u64,
    /// Key, length, SHA-256.
    samples: Vec<(String, usize, String)>,
}

fn fixtures() -> PathBuf {
    kit::fixtures("lmdb")
}

fn manifest() -> BTreeMap<String, BTreeMap<String, Listed>> {
    let text = std::fs::read_to_string(fixtures().join("manifest.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn file(name: &str) -> Bytes {
    std::fs::read(fixtures().join(name)).unwrap().into()
}

fn find(source: &dyn FileSource, database: Option<&str>) -> Result<FoundSamples, FormatError> {
    let mut options = LmdbOptions::default();
    options.database = database.map(str::to_owned);
    block_on(index(source, &options))
}

fn rows(found: &FoundSamples) -> &[(u64, u64)] {
    match &found.extents {
        Extents::Rows(rows) => rows,
        Extents::Runs(_) => panic!("LMDB has rows"),
    }
}

fn refusal(source: &dyn FileSource, database: Option<&str>, kind: FormatErrorKind) -> String {
    let error = find(source, database).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(!error.why().contains('\n'));
    error.to_string()
}

/// A fixture with these bytes at `at` instead.
fn changed(name: &str, at: usize, bytes: &[u8]) -> Bytes {
    let mut file = file(name).to_vec();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file.into()
}

/// The offset of the current record of the main database.
fn main_record(file: &[u8], header: usize) -> usize {
    let transaction = |page: usize| {
        let at = page * PAGE + header + 128;
        u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
    };
    usize::from(transaction(0) < transaction(1)) * PAGE + header + 72
}

#[test]
// semantics: FORMAT-1
fn values_are_those_that_the_library_reads() {
    let (mut databases, mut samples) = (0, 0);
    for (name, listed) in manifest() {
        let file = file(&name);
        for (database, listed) in listed.iter().filter(|(database, _)| {
            // The main database by itself, if it has no others.
            !database.is_empty() || listed.len() == 1
        }) {
            let selected = Some(database.as_str()).filter(|database| !database.is_empty());
            if listed.duplicates {
                let refused = refusal(&file, selected, FormatErrorKind::Unsupported);
                assert!(refused.contains("several values per key"), "{refused}");
                continue;
            }
            let found = find(&file, selected).unwrap();
            assert_eq!(found.len() + found.skipped, listed.entries, "{name} {database}");
            let keys = found.keys.as_ref().unwrap();
            let read: Vec<_> = rows(&found)
                .iter()
                .zip(keys)
                .map(|(&(start, length), key)| {
                    let value = &file[start as usize..(start + length) as usize];
                    let digest: String =
                        Sha256::digest(value).iter().map(|byte| format!("{byte:02x}")).collect();
                    (key.clone(), value.len(), digest)
                })
                .collect();
            assert_eq!(read, listed.samples, "{name} {database}");
            (databases, samples) = (databases + 1, samples + read.len());
        }
    }
    assert!(databases >= 17 && samples >= 270, "{databases} databases, {samples} samples");
}

#[test]
fn only_database_is_taken_and_several_are_listed() {
    for version in ["0.9", "1.0"] {
        let found = find(&file(&format!("one-{version}/data.mdb")), None).unwrap();
        assert_eq!((found.len(), found.skipped), (12, 1));
        assert_eq!(found.summary, format!("LMDB {version} database bilder \u{e4}: 12 values, 1 skipped"));
        let file = file(&format!("named-{version}.mdb"));
        let listed = refusal(&file, None, FormatErrorKind::Unsupported);
        assert!(listed.contains("`key` NAME") && listed.contains("plain (30 entries)"), "{listed}");
        assert!(listed.contains("empty (0 entries)"), "{listed}");
        let unknown = refusal(&file, Some("plane"), FormatErrorKind::Unsupported);
        assert!(unknown.contains("no database 'plane'") && unknown.contains("plain"), "{unknown}");
        let file = self::file(&format!("main_database-{version}.mdb"));
        let alone = refusal(&file, Some("plain"), FormatErrorKind::Unsupported);
        assert!(alone.contains("leave out `key`"), "{alone}");
        assert_eq!(find(&file, None).unwrap().skipped, 7);
    }
}

/// A database of words has `length` and `metadata` as keys.
#[test]
// semantics: FORMAT-10
fn keys_of_counters_are_named_and_can_be_kept() {
    let file = file("main_database-0.9.mdb");
    let found = find(&file, None).unwrap();
    let [note] = &found.notes[..] else { panic!("{:?}", found.notes) };
    assert!(note.starts_with("7 values are not samples") && note.contains("`field` \"\""), "{note}");
    assert!(note.contains("__keys__, __len__, deleted_ids, length, metadata"), "{note}");
    let mut options = LmdbOptions::default();
    options.prefix = Some(String::new());
    let all = block_on(index(&file, &options)).unwrap();
    assert_eq!((all.len(), all.skipped), (found.len() + 7, 0));
    assert!(all.notes.is_empty(), "{:?}", all.notes);
}

/// Data sets for text recognition have `image-000000001` and `label-000000001`.
#[test]
// semantics: FORMAT-2
fn labels_under_other_keys_belong_to_their_samples() {
    let mut options = LmdbOptions::default();
    (options.prefix, options.labels) = (Some("image-".to_owned()), Some("label-".to_owned()));
    let found = block_on(index(&file("pairs-0.9.mdb"), &options)).unwrap();
    let lengths: Vec<u64> = rows(&found).iter().map(|row| row.1).collect();
    assert_eq!((lengths, found.skipped), (vec![41, 42, 43, 44, 45], 1));
    let text = |number: u32| Some(format!("text \u{e4} {}", number % 2).into());
    let labels = vec![text(1), text(2), None, text(4), text(5)];
    assert_eq!(found.columns[0].values, ColumnValues::Texts(labels));
}

#[test]
// semantics: FORMAT-2
fn values_under_keys_of_one_rest_are_fields_of_a_sample() {
    let found = |prefix: &str, joined: &[&str], labels: Option<&str>| {
        let mut options = LmdbOptions::default();
        options.prefix = Some(prefix.to_owned());
        options.joined = joined.iter().map(|joined| (*joined).to_owned()).collect();
        options.labels = labels.map(str::to_owned);
        block_on(index(&file("pairs-0.9.mdb"), &options))
    };
    let bytes = file("pairs-0.9.mdb");
    // The third image has no text.
    let samples = found("image-", &["label-"], None).unwrap();
    let numbers = [1, 2, 4, 5].map(|number| format!("image-{number:09}"));
    assert_eq!(samples.keys.as_deref(), Some(&numbers[..]));
    // An image, and the counter of samples.
    assert_eq!(samples.skipped, 2);
    let (made, fields) = (samples.made.as_ref().unwrap(), samples.fields.as_ref().unwrap());
    for (row, number) in [1, 2, 4, 5].into_iter().enumerate() {
        let text = format!("text \u{e4} {}", number % 2);
        let lengths: Vec<_> =
            fields[row].iter().map(|field| (&*field.name, field.offset, field.length)).collect();
        assert_eq!(lengths, [("image", 0, 40 + number), ("label", 40 + number, text.len() as u64)]);
        let [part] = made.more(row) else { panic!("{:?}", made.more(row)) };
        assert_eq!(bytes[part.offset as usize..][..part.length as usize], *text.as_bytes());
    }
    let twice = found("image-", &["image_"], None).unwrap_err();
    assert!(twice.why().contains("each once"), "{twice}");
    // A longer beginning goes before a shorter one.
    let longer = found("image-", &["image-00000000"], Some("label-")).unwrap();
    // All images are fields without a sample, and the counter of samples is no image.
    assert_eq!((longer.len(), longer.skipped), (0, 6));
}

#[test]
// semantics: FORMAT-4
fn duplicates_in_the_main_database_are_refused() {
    for (name, header) in [("main_database-0.9.mdb", 16), ("main_database-1.0.mdb", 24)] {
        let at = main_record(&file(name), header) + 4;
        let refused = refusal(&changed(name, at, &[4]), None, FormatErrorKind::Unsupported);
        assert!(refused.contains("the main database may have several values"), "{refused}");
    }
}

#[test]
fn encrypted_database_is_refused() {
    let refused = refusal(&changed("empty-1.0.mdb", 24 + 29, &[0x20]), None, FormatErrorKind::Unsupported);
    assert!(refused.contains("encrypted"), "{refused}");
}

#[test]
fn file_may_be_as_long_as_its_map() {
    let name = "main_database-0.9.mdb";
    let mut long = file(name).to_vec();
    long.resize(long.len() + (1 << 20), 0);
    assert_eq!(find(&Bytes::from(long), None).unwrap(), find(&file(name), None).unwrap());
}

#[test]
fn cut_file_is_damaged() {
    for name in ["deep-0.9.mdb", "deep-1.0.mdb"] {
        let whole = file(name);
        for length in (0..whole.len() - PAGE).step_by(97).chain([1, 15, 31, PAGE + 1]) {
            refusal(&whole.slice(..length), None, FormatErrorKind::Damaged);
        }
    }
}

#[test]
fn damaged_trees_are_refused() {
    let name = "deep-0.9.mdb";
    let whole = file(name);
    let record = main_record(&whole, 16);
    let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap());
    let root = word(record + 40);
    // The first child of the root.
    let pointer = root as usize * PAGE + 16;
    let node = root as usize * PAGE + usize::from(u16::from_le_bytes([whole[pointer], whole[pointer + 1]]));
    let second = u16::from_le_bytes([whole[pointer + 2], whole[pointer + 3]]);
    let second = root as usize * PAGE + usize::from(second);
    for (at, bytes, why) in [
        (record + 6, &[33][..], "33 levels"),
        (record + 6, &[0], "0 levels"),
        (record + 6, &[2], "has the flags"),
        (record + 6, &[4], "has the flags"),
        (record + 32, &[31], "30 entries, but its record counts 31"),
        (record + 40, &[1], "expected 2 to"),
        (record + 40, &[0xff, 0xff], "expected 2 to"),
        (record + 40, &[0xff; 8], "0 entries"),
        (record + 48, &[3], "expected 2 to 3"),
        (node, &whole[second..second + 6], "twice in the tree"),
        (node, &[root as u8], "has the flags"),
    ] {
        // The root below itself is a branch where a leaf should be.
        let refused = refusal(&changed(name, at, bytes), None, FormatErrorKind::Damaged);
        let loops = at == node && bytes.len() == 1;
        assert!(refused.contains(why) || loops && refused.contains("twice"), "{at}: {refused}");
    }
}

/// A file that changes after `before` requests: a transaction has been committed, or reads fail.
struct Changing {
    file: Bytes,
    before: u64,
    fails: bool,
    requests: AtomicU64,
}

impl Changing {
    fn new(before: u64, fails: bool) -> Self {
        Self { file: file("main_database-0.9.mdb"), before, fails, requests: AtomicU64::new(0) }
    }

    /// The requests without a change.
    fn all() -> u64 {
        let unchanged = Self::new(u64::MAX, false);
        find(&unchanged, None).unwrap();
        unchanged.requests.load(Relaxed)
    }
}

impl FileSource for Changing {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read(&self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        let mut file = self.file.to_vec();
        if self.requests.fetch_add(1, Relaxed) >= self.before {
            if self.fails {
                return Box::pin(std::future::ready(Err("the network is down".into())));
            }
            file[PAGE + 16 + 128] += 2;
        }
        Box::pin(async move { Bytes::from(file).read(range).await })
    }
}

#[test]
fn database_that_is_being_written_is_refused() {
    assert!(Changing::all() > 2);
    for before in 1..Changing::all() {
        let refused = refusal(&Changing::new(before, false), None, FormatErrorKind::Damaged);
        assert!(refused.contains("is being written to"), "{refused}");
    }
}

#[test]
fn failed_read_is_the_error() {
    for before in 0..Changing::all() {
        let refused = refusal(&Changing::new(before, true), None, FormatErrorKind::Unread);
        assert!(refused.contains("the network is down"), "{refused}");
    }
}

#[test]
fn index_runs_on_any_thread() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&index(&file("empty-0.9.mdb"), &LmdbOptions::default()));
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A place in a file. One of two is in the head of a page, where structure is.
    fn place(&mut self, length: usize) -> usize {
        let place = self.below(length);
        if self.below(2) == 0 { place } else { (place / PAGE * PAGE + self.below(200)).min(length - 1) }
    }

    fn mutate(&mut self, file: &mut Vec<u8>) {
        let length = file.len();
        let at = self.place(length);
        match self.below(6) {
            0 => file[at] ^= 1 << self.below(8),
            1 => file[at] = self.next() as u8,
            2 => {
                let width = [2, 4, 8][self.below(3)].min(length - at);
                let word = [0, 1, 2, 0x7fff, u64::MAX, u64::MAX - 1, 1 << 47][self.below(7)];
                file[at..at + width].copy_from_slice(&word.to_le_bytes()[..width]);
            }
            3 => file.truncate(at.max(1)),
            4 => {
                let from = self.place(length);
                let count = self.below(64).min(length - at.max(from));
                file.copy_within(from..from + count, at);
            }
            _ => {
                let pages = length / PAGE;
                let (from, to) = (self.below(pages), self.below(pages));
                if pages > 0 {
                    file.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
                }
            }
        }
    }
}

#[test]
// semantics: FORMAT-4
fn mutated_files_are_bounded_in_time_and_memory() {
    let (mut valid, mut refused) = (0, 0);
    for (index, (name, databases)) in manifest().into_iter().enumerate() {
        let whole = file(&name);
        for seed in 0..kit::copies(2000) as u64 {
            let mut random = Random(seed << 8 | index as u64);
            let mut mutated = whole.to_vec();
            for _ in 0..1 + random.below(3) {
                random.mutate(&mut mutated);
            }
            let selected = databases.keys().nth(random.below(databases.len()));
            let selected = selected.map(String::as_str).filter(|name| !name.is_empty());
            let size = mutated.len() as u64;
            let source = Counted::new(Bytes::from(mutated));
            let found = find(&source, selected);
            let (requests, read) = source.cost();
            assert!(read <= 5 * size + (64 << 10), "{name} {seed}: {read} of {size} bytes");
            assert!(requests <= 2 * size / PAGE as u64 + 8, "{name} {seed}: {requests} requests");
            let Ok(found) = found else {
                refused += 1;
                continue;
            };
            valid += 1;
            let keys = found.keys.as_ref().unwrap();
            assert_eq!(keys.len() as u64, found.len());
            assert!(found.len() <= size / 10, "{name} {seed}: {} samples", found.len());
            assert!(keys.iter().map(String::len).sum::<usize>() as u64 <= 3 * size);
            assert!(rows(&found).iter().all(|&(start, length)| start + length <= size), "{name} {seed}");
        }
    }
    assert!(valid > 1000 && refused > 1000, "{valid} valid, {refused} refused");
}
