//! Tests of whole catalogs: round trips, damage, hostile files, other tools' readers.

use std::fs;
use std::path::Path;

use foreread_tier::{Object, Span, Version};
use foreread_types::SampleId;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::build::object_layouts::Layouts;
use crate::catalog_file::CatalogFile;
use crate::catalog_file::checksum::{checksum, checksum_digits};
use crate::packed::{FormatColumns, IndexedShard, SampleRows};
use crate::{Catalog, CatalogEntry, DatasetErrorKind, Format, SampleChecksum, SampleField};

fn object(path: &str, size: u64, version: Option<Version>) -> Object {
    Object { path: path.into(), size, version }
}

fn small() -> Vec<Object> {
    vec![
        object("dog/b.jpg", 10, Some(Version::Modified(1_600_000_000_123_456_789))),
        object("dog/a.jpg", 0, Some(Version::Modified(-5))),
        object("cat/deep/\u{e9}.jpg", 1 << 40, None),
        object("top.jpg", 7, Some(Version::ETag("\"abc\"".into()))),
    ]
}

fn saved(objects: Vec<Object>) -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("catalog.foreread");
    Catalog::from_objects("/data", objects).unwrap().save(&path).unwrap();
    (directory, path)
}

#[test]
fn files_are_found_by_their_paths() {
    let paths = ["top", "zop", "a/z", "a/b/2", "a/b-c/1", "a/b/10/1", "a-b/1", "b/1"];
    let catalog = Catalog::from_objects("/x", paths.map(|path| object(path, 1, None))).unwrap();
    for path in paths {
        let id = catalog.find(path).unwrap();
        assert_eq!(catalog.path(id).unwrap(), path);
    }
    for path in ["", "a", "a/b", "tops", "zzz", "a/b/10", "/top"] {
        assert_eq!(catalog.find(path), None, "{path}");
    }
    assert_eq!(
        Catalog::from_shards(
            "/data",
            crate::build::header::IndexNotes::default(),
            Format::Tar,
            packed(),
            None,
            &Layouts::new()
        )
        .unwrap()
        .find("a"),
        None
    );
}

/// Two shards, with properties that each format has and with properties that it has not.
fn packed() -> Vec<IndexedShard> {
    let mut rows = SampleRows::new(FormatColumns { keys: true, crc32c: true, fields: true });
    rows.push("a/1", 512, 0, 7);
    rows.push_field("jpg", 512, 100);
    rows.push_field("cls", 1536, 1);
    rows.push("../2", 2560, 0, 8);
    rows.push_field("\u{e9}", 2560, 0);
    let one = IndexedShard {
        object: object("x/1.tar", 4096, Some(Version::Modified(-7))),
        rows: rows.clone(),
        skipped: 0,
    };
    let two = IndexedShard {
        object: object("x/0.tar", 1 << 40, Some(Version::ETag("\"e\"".into()))),
        rows,
        skipped: 3,
    };
    vec![one, two]
}

fn packed_saved() -> (TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("packed.foreread");
    Catalog::from_shards(
        "/data",
        crate::build::header::IndexNotes::default(),
        Format::Tar,
        packed(),
        None,
        &Layouts::new(),
    )
    .unwrap()
    .save(&path)
    .unwrap();
    (directory, path)
}

fn entries(catalog: &Catalog) -> Vec<CatalogEntry> {
    (0..catalog.len()).map(|id| catalog.entry(SampleId(id)).unwrap()).collect()
}

#[test]
fn saved_catalog_equals_the_built_one() {
    let made = Catalog::from_objects("s3://bucket/data", small()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    made.save(&path).unwrap();
    made.save(&path).unwrap();
    let opened = Catalog::open(&path).unwrap();
    for catalog in [&made, &opened] {
        assert_eq!((catalog.len(), catalog.is_empty()), (4, false));
        assert_eq!(catalog.total_bytes(), 17 + (1 << 40));
        assert_eq!(catalog.base_url(), "s3://bucket/data");
        let paths: Vec<_> = (0..4).map(|id| catalog.path(SampleId(id)).unwrap()).collect();
        assert_eq!(paths, ["top.jpg", "cat/deep/\u{e9}.jpg", "dog/a.jpg", "dog/b.jpg"]);
        let labels: Vec<Option<&str>> = (0..5).map(|id| catalog.label(SampleId(id))).collect();
        assert_eq!(labels, [None, Some("cat"), Some("dog"), Some("dog"), None]);
        assert_eq!(catalog.labels().iter().map(|label| &**label).collect::<Vec<_>>(), ["cat", "dog"]);
        assert_eq!(catalog.label_index(SampleId(3)), Some(1));
        let mut sorted = small();
        sorted.sort_by_key(|object| paths.iter().position(|path| **path == *object.path));
        let expected: Vec<CatalogEntry> =
            sorted.into_iter().map(|object| CatalogEntry { object, span: Span::Whole }).collect();
        assert_eq!(entries(catalog), expected);
        assert_eq!(catalog.entry(SampleId(4)).unwrap_err().kind(), DatasetErrorKind::OutOfRange);
        assert_eq!(catalog.entry(SampleId(u64::MAX)).unwrap_err().kind(), DatasetErrorKind::OutOfRange);
    }
    assert_eq!(made.fingerprint(), opened.fingerprint());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a temporary file was left");
}

/// A change of this value means that saved states and disk caches of older versions no longer fit.
#[test]
fn fingerprint_is_stable_across_versions() {
    let catalog = Catalog::from_objects("/data", small()).unwrap();
    assert_eq!(catalog.fingerprint().to_string(), "d7d72f7fcf183a71f76a92a353555e3b");
}

#[test]
// semantics: SAMPLE-23
fn fingerprint_depends_on_data_and_not_on_place_or_order() {
    let base = Catalog::from_objects("/data", small()).unwrap();
    let mut reversed = small();
    reversed.reverse();
    assert_eq!(Catalog::from_objects("s3://elsewhere", reversed).unwrap().fingerprint(), base.fingerprint());
    type Change = fn(&mut Object);
    let changes: [Change; 4] = [
        |object| object.path = "dog/c.jpg".into(),
        |object| object.size += 1,
        |object| object.version = None,
        |object| object.version = Some(Version::Modified(1_600_000_000_123_456_790)),
    ];
    for change in changes {
        let mut objects = small();
        change(&mut objects[0]);
        assert_ne!(Catalog::from_objects("/data", objects).unwrap().fingerprint(), base.fingerprint());
    }
}

#[test]
fn catalog_spans_several_batches() {
    let objects = (0..140_000u64).map(|number| object(&format!("{}/{number}", number % 7), number, None));
    let (_directory, path) = saved(objects.collect());
    let catalog = Catalog::open(path).unwrap();
    assert_eq!(catalog.len(), 140_000);
    for id in [0, 65_535, 65_536, 131_071, 131_072, 139_999] {
        let entry = catalog.entry(SampleId(id)).unwrap();
        let (label, number) = entry.object.path.split_once('/').unwrap();
        assert_eq!(catalog.label(SampleId(id)), Some(label));
        assert_eq!(number.parse::<u64>().unwrap(), entry.object.size);
        assert_eq!(catalog.sizes().bytes(SampleId(id)), entry.object.size);
    }
}

#[test]
fn unrepresentable_object_is_refused_by_name() {
    let of = |objects: Vec<Object>| Catalog::from_objects("/data", objects).unwrap_err();
    assert_eq!(of(vec![]).kind(), DatasetErrorKind::Empty);
    for path in ["/etc/passwd", "a/../../x", "a//b", "a/", "", "a\0b"] {
        let error = of(vec![object("fine", 1, None), object(path, 1, None)]);
        assert_eq!(error.kind(), DatasetErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(&format!("{path:?}")), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let error = of(vec![object("a/b", 1, None), object("c", 1, None), object("a/b", 2, None)]);
    assert!(error.to_string().contains("\"a/b\"") && error.to_string().contains("twice"), "{error}");
    assert_eq!(of(vec![object("a", u64::MAX, None), object("b", 1, None)]).kind(), DatasetErrorKind::Invalid);
}

#[test]
fn file_that_is_not_a_catalog_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let kind = |path: &Path| Catalog::open(path).unwrap_err().kind();
    assert_eq!(kind(&path), DatasetErrorKind::Io);
    assert_eq!(kind(directory.path()), DatasetErrorKind::NotACatalog);
    assert!(!Catalog::is_catalog_file(&path) && !Catalog::is_catalog_file(directory.path()));
    for content in [&b""[..], b"ARROW", b"{\"a\": 1}"] {
        fs::write(&path, content).unwrap();
        assert_eq!(kind(&path), DatasetErrorKind::NotACatalog, "{content:?}");
        assert!(!Catalog::is_catalog_file(&path));
    }
    // An Arrow file of another program.
    let schema = arrow_schema::Schema::new(Vec::<arrow_schema::Field>::new());
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &schema).unwrap();
    writer.finish().unwrap();
    fs::write(&path, writer.into_inner().unwrap()).unwrap();
    assert!(!Catalog::is_catalog_file(&path));
    let error = Catalog::open(&path).unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::NotACatalog);
    assert!(error.to_string().contains("foreread index"), "{error}");
}

#[test]
fn packed_catalog_round_trips() {
    let (_directory, path) = packed_saved();
    let catalog = Catalog::open(path).unwrap();
    assert_eq!((catalog.len(), catalog.format(), catalog.total_bytes()), (4, Format::Tar, 2050));
    let object = |id| catalog.entry(SampleId(id)).unwrap().object;
    assert_eq!(
        object(0),
        Object { path: "x/0.tar".into(), size: 1 << 40, version: Some(Version::ETag("\"e\"".into())) }
    );
    assert_eq!(
        object(3),
        Object { path: "x/1.tar".into(), size: 4096, version: Some(Version::Modified(-7)) }
    );
    assert_eq!(catalog.entry(SampleId(2)).unwrap().span, Span::Range(512..1537));
    assert_eq!(catalog.entry(SampleId(3)).unwrap().span, Span::Range(2560..2560));
    let sums = [2, 3].map(|id| catalog.checksum(SampleId(id)).map(SampleChecksum::expected));
    assert_eq!(sums, [Some(7), Some(8)]);
    assert_eq!(catalog.checksum(SampleId(4)), None);
    assert_eq!(
        (catalog.key(SampleId(3)).unwrap(), catalog.path(SampleId(3)).unwrap()),
        (Some("../2".into()), "x/1.tar/../2".into())
    );
    let fields = |id| catalog.fields(SampleId(id)).unwrap();
    assert_eq!(
        fields(0),
        [SampleField { name: "jpg", range: 0..100 }, SampleField { name: "cls", range: 1024..1025 }]
    );
    assert_eq!(fields(3), [SampleField { name: "\u{e9}", range: 0..0 }]);
    assert_eq!(catalog.fields(SampleId(4)).unwrap_err().kind(), DatasetErrorKind::OutOfRange);
    assert_eq!(catalog.label(SampleId(0)), None);
    assert_eq!(catalog.fingerprint().to_string(), "46a1c376cf4bf677f21fd9fa58ce467f");
}

#[test]
fn damaged_or_hostile_packed_catalog_is_refused() {
    let (directory, path) = packed_saved();
    let bytes = fs::read(path).unwrap();
    let damaged = directory.path().join("damaged");
    for at in 0..bytes.len() {
        let mut copy = bytes.clone();
        copy[at] ^= 0x41;
        fs::write(&damaged, &copy).unwrap();
        assert!(Catalog::open(&damaged).is_err(), "byte {at} was accepted");
        copy[at] = if at % 2 == 0 { 0xff } else { 0x00 };
        request_everything(copy, &damaged);
    }
}

#[test]
// semantics: SAMPLE-19
fn every_flipped_byte_and_every_truncation_is_refused() {
    let (directory, path) = saved(small());
    let bytes = fs::read(&path).unwrap();
    let damaged = directory.path().join("damaged");
    for at in 0..bytes.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut copy = bytes.clone();
            copy[at] ^= flip;
            fs::write(&damaged, copy).unwrap();
            let error = Catalog::open(&damaged).expect_err(&format!("byte {at} ^ {flip:#x} was accepted"));
            assert!(error.to_string().contains("damaged"), "{error}");
        }
        fs::write(&damaged, &bytes[..at]).unwrap();
        assert!(Catalog::open(&damaged).is_err(), "the first {at} bytes were accepted");
    }
    fs::write(&damaged, [&bytes[..], b"\n"].concat()).unwrap();
    assert!(Catalog::open(&damaged).is_err());
}

/// Adds a valid checksum to modified bytes, as an attacker would.
pub(crate) fn believable(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let digits = checksum_digits(&bytes).ok()?;
    let sum = checksum(&bytes, &digits);
    bytes[digits].copy_from_slice(sum.as_bytes());
    Some(bytes)
}

/// Opens a catalog that may be hostile from a file, and requests everything.
fn request_everything(bytes: Vec<u8>, file: &Path) {
    let Some(bytes) = believable(bytes) else { return };
    fs::write(file, bytes).unwrap();
    if let Ok(catalog) = Catalog::open(file) {
        request_all(&catalog);
    }
}

/// Calls every method on a catalog that may be hostile. Each must return a result or an error.
pub(crate) fn request_all(catalog: &Catalog) {
    for id in 0..catalog.len().min(1000) + 1 {
        if let Ok(entry) = catalog.entry(SampleId(id)) {
            assert!(!entry.object.path.split('/').any(|part| matches!(part, "" | "." | "..")));
            let length = catalog.sizes().bytes(SampleId(id));
            match entry.span {
                Span::Whole => assert_eq!(entry.object.size, length),
                Span::Range(range) => {
                    assert!(range.end <= entry.object.size && range.end - range.start == length);
                }
                Span::Made(parts) => {
                    assert!(parts.iter().all(|part| part.check(entry.object.size).is_ok()));
                    let delivered = parts.iter().map(|part| part.delivered.end - part.delivered.start);
                    assert_eq!(delivered.sum::<u64>(), length);
                }
            }
            for field in catalog.fields(SampleId(id)).unwrap_or_default() {
                assert!(field.range.start <= field.range.end && field.range.end <= length);
            }
        }
        let _ = (catalog.path(SampleId(id)), catalog.key(SampleId(id)), catalog.checksum(SampleId(id)));
        assert_eq!(catalog.label(SampleId(id)).is_some(), catalog.label_index(SampleId(id)).is_some());
    }
}

#[test]
// semantics: SAMPLE-21
fn hostile_byte_with_a_valid_checksum_is_harmless() {
    let (directory, path) = saved(small());
    let bytes = fs::read(&path).unwrap();
    let hostile = directory.path().join("hostile");
    for at in 0..bytes.len() {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut copy = bytes.clone();
            copy[at] = value;
            request_everything(copy, &hostile);
        }
    }
}

#[test]
// semantics: SAMPLE-18
fn catalog_path_with_dot_dot_is_refused() {
    let (_directory, path) = saved(vec![object("aaa/bbb", 1, None), object("ccc", 1, None)]);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(7).position(|window| window == b"aaa/bbb").unwrap();
    bytes[at..at + 7].copy_from_slice(b"../../b");
    fs::write(&path, believable(bytes).unwrap()).unwrap();
    let catalog = Catalog::open(&path).unwrap();
    assert!(catalog.entry(SampleId(0)).is_ok());
    let error = catalog.entry(SampleId(1)).unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Corrupt);
    assert!(error.to_string().contains("../../b") && error.to_string().contains("sample 1"), "{error}");
}

#[test]
// semantics: SAMPLE-20
fn replacing_an_open_catalog_leaves_it_whole() {
    let (_directory, path) = saved(small());
    let open = Catalog::open(&path).unwrap();
    let before = entries(&open);
    Catalog::from_objects("/other", [object("x", 1, None)]).unwrap().save(&path).unwrap();
    assert_eq!(entries(&open), before);
    assert_eq!(Catalog::open(&path).unwrap().len(), 1);
}

#[test]
// semantics: SAMPLE-22
fn arrows_own_reader_sees_the_columns_and_the_metadata() {
    let (_directory, path) = saved(small());
    let reader = arrow_ipc::reader::FileReader::try_new(fs::File::open(path).unwrap(), None).unwrap();
    let schema = reader.schema();
    let columns: Vec<String> =
        schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type())).collect();
    assert_eq!(
        columns,
        [
            "path: Utf8",
            "offset: UInt64",
            "length: UInt64",
            "label: Dictionary(Int32, Utf8)",
            "modified: Timestamp(ns, \"UTC\")",
            "etag: Utf8"
        ]
    );
    let value = |key: &str| schema.metadata().get(key).unwrap().to_string();
    assert_eq!(value("foreread.catalog"), "1");
    assert_eq!(value("foreread.format"), "files");
    assert_eq!(value("foreread.base_url"), "/data");
    assert_eq!(value("foreread.fingerprint").len(), 32);
    let sum = reader.custom_metadata().get("foreread.checksum").unwrap().to_string();
    assert!(
        sum.starts_with("xxh3:") && sum.len() == 37 && sum != format!("xxh3:{}", "0".repeat(32)),
        "{sum}"
    );
    let batches: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 4);
    // A property that no object has is not a column.
    let (_directory, path) = saved(vec![object("a", 1, None)]);
    let reader = arrow_ipc::reader::FileReader::try_new(fs::File::open(path).unwrap(), None).unwrap();
    assert_eq!(reader.schema().fields().len(), 4);
}

fn versions() -> impl Strategy<Value = Option<Version>> {
    prop_oneof![
        Just(None),
        any::<i64>().prop_map(|time| Some(Version::Modified(time))),
        "[ -~]{0,8}".prop_map(|tag| Some(Version::ETag(tag.into()))),
    ]
}

fn objects() -> impl Strategy<Value = Vec<Object>> {
    let paths = prop::collection::btree_set("([a-c.-]?[a-c\u{e9}\u{4e16}]/){0,3}[a-d -]{0,2}[a-d]", 1..40);
    paths.prop_flat_map(|paths| {
        let rest = prop::collection::vec((0..1u64 << 50, versions()), paths.len());
        (Just(paths), rest).prop_map(|(paths, rest)| {
            paths.iter().zip(rest).map(|(path, (size, version))| object(path, size, version)).collect()
        })
    })
}

proptest! {
    #[test]
    fn objects_round_trip(objects in objects()) {
        let (_directory, path) = saved(objects.clone());
        let catalog = Catalog::open(path).unwrap();
        let found = entries(&catalog);
        // The order, in a second and slow implementation.
        let mut expected = objects;
        expected.sort_by_key(|object| {
            let parts: Vec<&str> = object.path.split('/').collect();
            let (name, directories) = parts.split_last().unwrap();
            let first = directories.first().copied().unwrap_or_default();
            (first.to_owned(), directories.join("/"), (*name).to_owned())
        });
        let found: Vec<Object> = found.into_iter().map(|entry| entry.object).collect();
        prop_assert_eq!(&found, &expected);
        for (id, object) in expected.iter().enumerate() {
            let label = object.path.split_once('/').map(|(label, _)| label);
            prop_assert_eq!(catalog.label(SampleId(id as u64)), label);
        }
    }

    #[test]
    fn random_flips_are_refused_and_hostile_ones_harmless(
        objects in objects(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..4),
    ) {
        let (_directory, path) = saved(objects);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        for (at, flip) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        prop_assume!(bytes != whole);
        fs::write(&path, &bytes).unwrap();
        prop_assert!(Catalog::open(&path).is_err());
        request_everything(bytes, &path);
    }
}

#[test]
fn in_memory_catalog_equals_its_file() {
    let (_directory, path) = saved(small());
    let image = CatalogFile::owned(fs::read(&path).unwrap().into()).unwrap();
    assert_eq!(image.samples(), 4);
    assert_eq!(*image.bytes().unwrap(), fs::read(&path).unwrap());
}

#[test]
// semantics: SAMPLE-19
fn received_catalog_equals_the_opened_one() {
    for (_directory, path) in [saved(small()), packed_saved()] {
        let opened = Catalog::open(path).unwrap();
        let received = Catalog::from_bytes(opened.to_bytes().unwrap(), "received").unwrap();
        assert_eq!(entries(&received), entries(&opened));
        assert_eq!(received.fingerprint(), opened.fingerprint());
        let mut bytes = received.to_bytes().unwrap().to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let error = Catalog::from_bytes(bytes, "received").unwrap_err();
        assert_eq!(error.kind(), DatasetErrorKind::Corrupt, "{error}");
    }
}

/// A catalog with enough samples for several groups of names.
fn many() -> (TempDir, std::path::PathBuf) {
    saved((0..100).map(|number| object(&format!("a/{number:03}"), number, None)).collect())
}

#[test]
// semantics: SAMPLE-20
fn truncated_catalog_is_an_error_that_names_it() {
    let (_directory, path) = many();
    let catalog = Catalog::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    for error in [
        catalog.entry(SampleId(0)).unwrap_err(),
        catalog.path(SampleId(99)).unwrap_err(),
        catalog.to_bytes().unwrap_err(),
    ] {
        assert_eq!(error.kind(), DatasetErrorKind::Changed);
        let expected = format!("{}: the catalog was changed while it was in use: ", path.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    // Values in memory are still available.
    assert_eq!(catalog.sizes().bytes(SampleId(7)), 7);
    assert_eq!(catalog.label(SampleId(7)), Some("a"));
}

#[test]
// semantics: SAMPLE-20
fn overwritten_catalog_never_gives_another_name() {
    let (_directory, path) = many();
    let (catalog, time) = (Catalog::open(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(5).position(|name| name == b"a/050").unwrap();
    bytes[at..at + 5].copy_from_slice(b"a/x50");
    // Overwritten in place, with the same length and the old modification time.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    file.set_modified(time).unwrap();
    let error = catalog.entry(SampleId(50)).unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Changed);
    assert!(error.to_string().starts_with(path.to_str().unwrap()), "{error}");
    assert_eq!(catalog.to_bytes().unwrap_err().kind(), DatasetErrorKind::Changed);
    // Names in other groups are unchanged.
    assert_eq!(catalog.path(SampleId(0)).unwrap(), "a/000");
    assert_eq!(catalog.path(SampleId(99)).unwrap(), "a/099");
}

/// Replaces the only occurrence of `from` in `bytes`.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let at: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, it)| *it == from).map(|it| it.0).collect();
    assert_eq!(at.len(), 1, "{from:?} is at {at:?}");
    bytes[at[0]..at[0] + to.len()].copy_from_slice(to);
}

/// A batch could be as long as the file. A sparse file costs its author nothing.
#[test]
// semantics: SAMPLE-21
fn sparse_catalog_is_refused_before_it_is_read() {
    let (_directory, path) = saved(small());
    let mut bytes = fs::read(&path).unwrap();
    let footer = bytes.split_off(bytes.len() / 2);
    let length = 1 << 42;
    let file = fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &footer, length - footer.len() as u64).unwrap();
    let error = Catalog::open(&path).unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Corrupt);
    assert!(error.to_string().contains("sparse"), "{error}");
}

#[test]
// semantics: SAMPLE-21
fn catalog_with_a_repeated_batch_is_refused() {
    let objects = (0..140_000u64).map(|number| object(&format!("a/{number:07}"), 1, None));
    let (_directory, path) = saved(objects.collect());
    let mut bytes = fs::read(&path).unwrap();
    let length = bytes.len();
    let end = &bytes[..length - 10];
    let footer = i32::from_le_bytes(*bytes[length - 10..].first_chunk().unwrap()) as usize;
    let footer = arrow_ipc::root_as_footer(&end[end.len() - footer..]).unwrap();
    let blocks: Vec<[u8; 24]> = footer.recordBatches().unwrap().into_iter().map(|block| block.0).collect();
    replace(&mut bytes, &blocks[1], &blocks[0]);
    fs::write(&path, believable(bytes).unwrap()).unwrap();
    let error = Catalog::open(&path).unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Corrupt);
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[test]
// semantics: SAMPLE-21
fn catalog_with_overlapping_columns_is_refused() {
    let (_directory, path) =
        saved((0..4000).map(|number| object(&format!("a/{number:04}"), 1, None)).collect());
    let mut bytes = fs::read(&path).unwrap();
    // The positions of offsets and lengths in the batch's header. Both columns have 32,000 bytes.
    let long = |at: &[u8]| at[8..] == 32_000i64.to_le_bytes();
    let buffers: Vec<Vec<u8>> = bytes.windows(16).filter(|at| long(at)).map(<[u8]>::to_vec).collect();
    let [offsets, lengths] = &buffers[..] else { panic!("{buffers:?}") };
    replace(&mut bytes, lengths, offsets);
    fs::write(&path, believable(bytes).unwrap()).unwrap();
    let error = Catalog::open(&path).unwrap_err();
    assert!(error.to_string().contains("lies in another"), "{error}");
}
