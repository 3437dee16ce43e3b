//! Many shards as one dataset: order, formats, names.

use foreread_dataset::{Catalog, DatasetErrorKind, Format, IndexOptions, IndexProgress};
use foreread_types::SampleId;
use proptest::prelude::*;

use crate::origin::{Content, Held};
use crate::writers::file;

/// A ustar header as the specification defines it.
pub fn header(name: &str, size: u64, kind: u8) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

/// Writes the valid checksum into a header.
pub fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// A member with its padding.
pub fn member(name: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = header(name, data.len() as u64, b'0');
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub fn end() -> Vec<u8> {
    vec![0; 1024]
}

fn keys(catalog: &Catalog) -> Vec<String> {
    (0..catalog.len()).map(|id| catalog.path(SampleId(id)).unwrap().into_owned()).collect()
}

#[tokio::test]
// semantics: SHARD-4
async fn samples_are_ordered_by_shard_and_offset() {
    let shard = |names: &[&str]| [names.iter().flat_map(|name| member(name, b"x")).collect(), end()].concat();
    let origin = Held::new([
        ("b.tar", shard(&["z.a", "y.a"])),
        ("a/c.tar", shard(&["q.a"])),
        ("a-b.tar", shard(&["r.a", "r.b"])),
        ("none.tar", end()),
    ]);
    let mut last = IndexProgress::default();
    let catalog = origin.index_with(&IndexOptions::default(), |progress| last = progress).await.unwrap();
    assert_eq!(keys(&catalog), ["a-b.tar/r", "a/c.tar/q", "b.tar/z", "b.tar/y"]);
    assert_eq!((last.objects, last.samples, last.skipped), (4, 4, 0));
    assert_eq!(catalog.label(SampleId(0)), None);
    assert_eq!((catalog.labels().len(), catalog.base_url()), (0, "/data"));
    assert_eq!(
        (last.requests, last.bytes_read),
        (
            origin.requests.load(std::sync::atomic::Ordering::Relaxed),
            origin.bytes.load(std::sync::atomic::Ordering::Relaxed)
        )
    );
}

#[tokio::test]
async fn records_are_numbered_within_their_file() {
    let origin = Held::new([
        ("a.tfrecord", file("tensorflow.tfrecord")),
        ("b.tfrecords", file("tensorflow.tfrecord")),
    ]);
    let catalog = origin.index(&IndexOptions::default()).await.unwrap();
    assert_eq!(catalog.format(), Format::TfRecord);
    assert_eq!(keys(&catalog)[3..6], ["a.tfrecord/3", "b.tfrecords/0", "b.tfrecords/1"]);
}

#[tokio::test]
// semantics: SHARD-1
async fn format_is_detected_from_names_or_given() {
    let tar = || Content::from(file("webdataset.tar"));
    let origin = Held::new([("a.tar", tar()), ("photo.jpg", b"x".to_vec().into())]);
    assert_eq!(origin.index(&IndexOptions::default()).await.unwrap().format(), Format::Files);
    let included = origin.index(&IndexOptions::default().including("*.tar")).await.unwrap();
    assert_eq!((included.format(), included.len()), (Format::Tar, 3));
    let error = origin.index(&IndexOptions::default().with_format(Format::Tar)).await.unwrap_err();
    assert!(error.to_string().starts_with("/data: photo.jpg: byte 0: "), "{error}");
    let odd = Held::new([("train-00000-of-00001", file("tensorflow.tfrecord"))]);
    assert_eq!(odd.index(&IndexOptions::default().with_format(Format::TfRecord)).await.unwrap().len(), 4);
    let files =
        Held::new([("a.tar", tar())]).index(&IndexOptions::default().with_format(Format::Files)).await;
    assert_eq!(files.unwrap().len(), 1);
}

#[tokio::test]
// semantics: SHARD-1
async fn files_next_to_shards_are_no_shards() {
    let tar = || Content::from(file("webdataset.tar"));
    let text = || Content::from(b"{}".to_vec());
    let origin =
        Held::new([("a.tar", tar()), ("README.md", text()), ("_SUCCESS", text()), ("a.json", text())]);
    for options in [IndexOptions::default(), IndexOptions::default().with_format(Format::Tar)] {
        let catalog = origin.index(&options).await.unwrap();
        assert_eq!((catalog.format(), catalog.len()), (Format::Tar, 3));
    }
}

#[tokio::test]
// semantics: SHARD-2
async fn shard_without_a_name_is_recognised_by_its_first_bytes() {
    let records = || Content::from(file("tensorflow.tfrecord"));
    let tar = || Content::from(file("webdataset.tar"));
    for (name, content, format) in [("train", records(), Format::TfRecord), ("a/data.0", tar(), Format::Tar)]
    {
        let origin = Held::new([(name, content), ("README.md", b"x".to_vec().into())]);
        assert_eq!(origin.index(&IndexOptions::default()).await.unwrap().format(), format, "{name}");
    }
    // Next to samples it is one of them, with a warning.
    let mixed = Held::new([("train", tar()), ("b.jpg", b"x".to_vec().into())]);
    assert_eq!(mixed.index(&IndexOptions::default()).await.unwrap().format(), Format::Files);
}

/// An Arrow file with one column of bytes and one row.
fn arrow_file() -> Vec<u8> {
    let column: arrow_array::ArrayRef =
        std::sync::Arc::new(arrow_array::BinaryArray::from(vec![&b"sample"[..]]));
    let batch = arrow_array::RecordBatch::try_from_iter([("image", column)]).unwrap();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// A catalog in the directory of its data was read as a dataset of its own column of paths.
#[tokio::test]
// semantics: SAMPLE-2
async fn catalog_with_the_name_of_a_shard_is_no_sample() {
    let object = foreread_tier::Object { path: "x/1.jpg".into(), size: 7, version: None };
    let catalog = Catalog::from_objects("/elsewhere", [object]).unwrap().to_bytes().unwrap();
    let cut = catalog[..catalog.len() / 2].to_vec();
    let arrow = || Content::from(arrow_file());
    let origin = Held::new([
        ("a.arrow", arrow()),
        ("b.arrow", catalog.to_vec().into()),
        ("c.feather", cut.clone().into()),
        ("d.feather", arrow()),
    ]);
    let found = origin.index(&IndexOptions::default()).await.unwrap();
    assert_eq!((found.format(), found.len(), found.total_bytes()), (Format::Arrow, 2, 12));
    let beside = Held::new([("cat/1.jpg", b"x".to_vec()), ("c.arrow", catalog.to_vec())]);
    assert_eq!(beside.index(&IndexOptions::default()).await.unwrap().len(), 1);
    let alone = Held::new([("c.arrow", cut)]).index(&IndexOptions::default()).await.unwrap_err();
    assert_eq!(alone.kind(), DatasetErrorKind::Empty);
    assert!(alone.to_string().contains("1 left out as catalogs"), "{alone}");
}

#[tokio::test]
// semantics: SHARD-5
async fn named_shards_are_indexed_and_missing_ones_are_one_error() {
    let tar = || Content::from(file("webdataset.tar"));
    let origin = Held::new([("s-0.tar", tar()), ("s-1.tar", tar()), ("readme.md", b"x".to_vec().into())]);
    let catalog = origin.index(&IndexOptions::default().naming(["s-1.tar"])).await.unwrap();
    assert_eq!(keys(&catalog), ["s-1.tar/train/000000", "s-1.tar/train/000001", "s-1.tar/train/000002"]);
    let named = foreread_dataset::expand("s-{0..9}.tar").unwrap();
    let error = origin.index(&IndexOptions::default().naming(named)).await.unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Invalid);
    let expected = "/data: not there: s-2.tar, s-3.tar, s-4.tar, s-5.tar, s-6.tar and 3 more";
    assert!(error.to_string().starts_with(expected), "{error}");
    // Directories of a bucket are no objects.
    let error =
        origin.index(&IndexOptions::default().naming(["train", "val"])).await.unwrap_err().to_string();
    assert!(error.contains("train, val; these are no objects; of several directories, name one"), "{error}");
}

#[tokio::test]
async fn concatenated_archives_are_one_shard() {
    let one = [member("a.x", b"1"), end()].concat();
    let two = [member("b.x", b"2"), end()].concat();
    let catalog = Held::new([("c.tar", [one, two].concat())]).index(&IndexOptions::default()).await.unwrap();
    assert_eq!(keys(&catalog), ["c.tar/a", "c.tar/b"]);
}

#[tokio::test]
async fn global_headers_hold_for_all_members_that_follow() {
    let pax = |kind, records: &[u8]| {
        let mut bytes = header("pax", records.len() as u64, kind);
        bytes.extend_from_slice(records);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    };
    let shard = [
        pax(b'g', b"19 comment=nothing\n"),
        pax(b'g', b"14 path=all.x\n"),
        member("a.x", b"1"),
        pax(b'x', b"14 path=one.x\n"),
        member("b.x", b"2"),
        end(),
    ];
    let catalog = Held::new([("c.tar", shard.concat())]).index(&IndexOptions::default()).await.unwrap();
    assert_eq!(keys(&catalog), ["c.tar/all", "c.tar/one"]);
}

#[tokio::test]
async fn fingerprint_covers_the_content_of_shards() {
    let of = async |objects: Vec<(&str, Vec<u8>)>| {
        Held::new(objects).index(&IndexOptions::default()).await.unwrap().fingerprint()
    };
    let shard = |name: &str, data: &[u8]| [member(name, data), end()].concat();
    let base = of(vec![("a.tar", shard("x.jpg", b"1"))]).await;
    assert_eq!(base.to_string(), "e094a023a562711a700b52864b424de0");
    assert_eq!(base, of(vec![("a.tar", shard("x.jpg", b"2"))]).await, "bytes are not read");
    for other in [
        vec![("b.tar", shard("x.jpg", b"1"))],
        vec![("a.tar", shard("y.jpg", b"1"))],
        vec![("a.tar", shard("x.png", b"1"))],
        vec![("a.tar", shard("x.jpg", b"12"))],
        vec![("a.tar", [shard("x.jpg", b"1"), end()].concat())],
    ] {
        assert_ne!(base, of(other).await);
    }
}

#[derive(Clone, Debug)]
struct Made {
    key: String,
    fields: Vec<(String, usize)>,
}

fn made() -> impl Strategy<Value = Vec<Vec<Made>>> {
    let size = prop_oneof![0..3usize, 500..530usize, 0..200_000usize];
    let fields = prop::collection::btree_map("[a-z]{1,3}(\\.[a-z]{1,2})?", size, 1..4);
    let sample = ("([a-z]{1,2}/){0,2}[a-z0-9]{1,4}", fields);
    let shard = prop::collection::vec(sample, 0..30).prop_map(|samples| {
        let mut samples: Vec<Made> = samples
            .into_iter()
            .map(|(key, fields)| Made { key, fields: fields.into_iter().collect() })
            .collect();
        samples.dedup_by(|a, b| a.key == b.key);
        samples
    });
    prop::collection::vec(shard, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Written and indexed samples equal the original ones.
    #[test]
    fn samples_of_shards_round_trip(shards in made(), latency in 0..2u64) {
        let mut objects = Vec::new();
        let mut expected = Vec::new();
        for (number, samples) in shards.iter().enumerate() {
            let mut bytes = Vec::new();
            for sample in samples {
                let mut fields = Vec::new();
                for (field, size) in &sample.fields {
                    let data: Vec<u8> = (0..*size).map(|at| (at * 7 + size) as u8).collect();
                    bytes.extend(member(&format!("{}.{field}", sample.key), &data));
                    fields.push((field.clone(), data));
                }
                expected.push((format!("{number}.tar/{}", sample.key), fields));
            }
            bytes.extend(end());
            objects.push((format!("{number}.tar"), bytes));
        }
        prop_assume!(!expected.is_empty());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let origin = Held::new(objects).slow(std::time::Duration::from_millis(latency));
        let catalog = runtime.block_on(origin.index(&IndexOptions::default())).unwrap();
        let mut found = Vec::new();
        for id in 0..catalog.len() {
            let sample = origin.sample(&catalog, id);
            let fields = catalog.fields(SampleId(id)).unwrap();
            let fields = fields.into_iter().map(|field| {
                (field.name.to_owned(), sample[field.range.start as usize..field.range.end as usize].to_vec())
            });
            found.push((catalog.path(SampleId(id)).unwrap().into_owned(), fields.collect::<Vec<_>>()));
        }
        prop_assert_eq!(found, expected);
    }
}
