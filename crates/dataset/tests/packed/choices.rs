//! Directories of which some files are not data, and shards that differ.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use foreread_dataset::{Catalog, DatasetErrorKind, IndexOptions, SampleValue};
use foreread_types::SampleId;

use crate::origin::Held;

/// An Arrow stream with these columns.
fn stream(columns: impl IntoIterator<Item = (&'static str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// An Arrow stream with a column of bytes.
fn table(column: &'static str, values: &[Option<&[u8]>]) -> Vec<u8> {
    stream([(column, Arc::new(BinaryArray::from_iter(values.iter().copied())) as ArrayRef)])
}

/// Two images, and a column of labels.
fn labelled(label: &'static str) -> Vec<u8> {
    let images: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"a", b"b"]));
    stream([("image", images), (label, Arc::new(Int64Array::from(vec![3, 4])))])
}

fn two(column: &'static str) -> Vec<u8> {
    table(column, &[Some(b"a"), Some(b"b")])
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures").join(name)).unwrap()
}

fn state(files: &[&str], indices: &str) -> Vec<u8> {
    let files: Vec<String> = files.iter().map(|file| format!("{{\"filename\": \"{file}\"}}")).collect();
    format!("{{\"_data_files\": [{}], \"_indices_data_files\": {indices}}}", files.join(",")).into_bytes()
}

fn paths(catalog: &Catalog) -> Vec<String> {
    (0..catalog.len()).map(|id| catalog.path(SampleId(id)).unwrap().into_owned()).collect()
}

async fn refusal(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> (DatasetErrorKind, String) {
    let error = Held::new(files).index(&IndexOptions::default()).await.unwrap_err();
    (error.kind(), error.to_string())
}

/// `map` leaves `cache-*.arrow` there, and a save with fewer shards leaves the earlier ones.
#[tokio::test]
// semantics: FORMAT-11
async fn saved_dataset_has_the_shards_of_its_state() {
    let (new, old) = ("data-00000-of-00001.arrow", "data-00000-of-00002.arrow");
    let files = [
        (new, two("image")),
        (old, two("image")),
        ("cache-49cf3bae7e19d02c.arrow", two("indices")),
        ("state.json", state(&[new], "null")),
        ("dataset_info.json", b"{}".to_vec()),
    ];
    let origin = Held::new(files.clone());
    let catalog = origin.index(&IndexOptions::default()).await.unwrap();
    assert_eq!(paths(&catalog), [format!("{new}/0"), format!("{new}/1")]);
    // A file that the user names is read.
    let named = IndexOptions::default().naming([old]);
    assert_eq!(origin.index(&named).await.unwrap().len(), 2);
    let missing = files.clone().into_iter().filter(|(name, _)| *name != new);
    let (kind, error) = refusal(missing).await;
    assert!(kind == DatasetErrorKind::BadShard && error.contains(&format!("{new} is missing")), "{error}");
    let (kind, error) = refusal([files[0].clone(), ("state.json", b"{\"_data".to_vec())]).await;
    assert!(kind == DatasetErrorKind::BadShard && error.contains("not valid JSON"), "{error}");
    // Another program's file.
    let other = Held::new([files[0].clone(), files[1].clone(), ("state.json", b"[1]".to_vec())]);
    assert_eq!(other.index(&IndexOptions::default()).await.unwrap().len(), 4);
}

#[tokio::test]
// semantics: FORMAT-11
async fn indices_of_a_saved_dataset_are_refused_with_the_remedy() {
    let (data, indices) = ("data-00000-of-00001.arrow", "[{\"filename\": \"indices.arrow\"}]");
    let files =
        [(data, two("image")), ("indices.arrow", two("indices")), ("state.json", state(&[data], indices))];
    let (kind, error) = refusal(files).await;
    assert!(kind == DatasetErrorKind::Unsupported && error.contains("flatten_indices()"), "{error}");
}

#[tokio::test]
// semantics: FORMAT-11
async fn cached_dataset_has_the_files_of_its_splits() {
    let info = b"{\"splits\": {\"train\": {\"shard_lengths\": [2, 2]}, \"test\": {}}}".to_vec();
    let files = [
        ("a/cache-0123456789abcdef.arrow", two("image")),
        ("a/dataset_info.json", info),
        ("a/old.arrow", two("image")),
        ("a/pets-test.arrow", two("image")),
        ("a/pets-train-00000-of-00002.arrow", two("image")),
        ("a/pets-train-00001-of-00002.arrow", two("image")),
    ];
    let catalog = Held::new(files).index(&IndexOptions::default()).await.unwrap();
    assert_eq!(catalog.len(), 6);
    assert!(paths(&catalog).iter().all(|path| path.starts_with("a/pets-")));
}

#[tokio::test]
// semantics: FORMAT-11
async fn splits_that_are_not_named_are_left_out() {
    let data = "data-00000-of-00001.arrow";
    let files = ["test", "train", "old"].into_iter().flat_map(|split| {
        [
            (format!("d/{split}/{data}"), two("image")),
            (format!("d/{split}/state.json"), state(&[data], "null")),
        ]
    });
    let splits = ("d/dataset_dict.json".to_owned(), b"{\"splits\": [\"train\", \"test\"]}".to_vec());
    let catalog = Held::new(files.chain([splits])).index(&IndexOptions::default()).await.unwrap();
    let [test, train] = ["test", "train"].map(|split| [0, 1].map(|row| format!("d/{split}/{data}/{row}")));
    assert_eq!(paths(&catalog), [test, train].concat());
}

/// Images and masks, images and addresses, images and labels: each file has one candidate.
#[tokio::test]
// semantics: FORMAT-12
async fn shards_of_other_columns_are_an_error() {
    let hdf5 =
        [("train_x.h5", fixture("hdf5/samples.h5")), ("train_y.h5", fixture("hdf5/labels_only_v110.h5"))];
    let tables = [
        ("a.parquet", fixture("columnar/fastparquet_none.parquet")),
        ("b.parquet", fixture("columnar/delta.parquet")),
    ];
    for (files, parts) in [
        ([("a.arrow", two("image")), ("b.arrow", two("mask"))], ["column image", "column mask"]),
        (tables, ["column jpg", "column key"]),
        (hdf5, ["group /", "dataset /labels"]),
    ] {
        let [first, second] = [files[0].0, files[1].0];
        let (kind, error) = refusal(files).await;
        assert_eq!(kind, DatasetErrorKind::Unsupported, "{error}");
        assert!(error.contains("choose with `field`"), "{error}");
        assert!([first, second, parts[0], parts[1]].iter().all(|part| error.contains(part)), "{error}");
    }
    // A shard without samples may have any column.
    let files = [("a.arrow", two("image")), ("b.arrow", table("mask", &[]))];
    assert_eq!(Held::new(files).index(&IndexOptions::default()).await.unwrap().len(), 2);
    let (_, error) = refusal([("a.arrow", labelled("label")), ("b.arrow", labelled("target"))]).await;
    assert!(
        error.contains("the labels of a.arrow are label") && error.contains("choose with `label`"),
        "{error}"
    );
}

/// Each file was written under its own name.
#[tokio::test]
// semantics: FORMAT-12
async fn only_dataset_of_each_file_is_taken_by_a_star() {
    let hdf5 = [("a.h5", fixture("hdf5/samples.h5")), ("b.h5", fixture("hdf5/labels_only_v110.h5"))];
    let files: [[(&str, Vec<u8>); 2]; 2] = [[("a.arrow", two("image_a")), ("b.arrow", two("image_b"))], hdf5];
    for files in files {
        let mut alone = 0;
        for file in files.clone() {
            alone += Held::new([file]).index(&IndexOptions::default()).await.unwrap().len();
        }
        let mut options = IndexOptions::default();
        options.format_options.fields = vec!["*".to_owned()];
        let catalog = Held::new(files).index(&options).await.unwrap();
        assert_eq!(catalog.len(), alone);
    }
    // Of several candidates, none is the only one.
    let columns = ["a", "b"].map(|name| (name, Arc::new(BinaryArray::from_vec(vec![b"x"])) as ArrayRef));
    let mut options = IndexOptions::default();
    options.format_options.fields = vec!["*".to_owned()];
    let error = Held::new([("a.arrow", stream(columns))]).index(&options).await.unwrap_err();
    assert_eq!(error.kind(), DatasetErrorKind::Unsupported, "{error}");
    let files = [("a.arrow", labelled("label")), ("b.arrow", labelled("target"))];
    let mut options = IndexOptions::default();
    options.format_options.label = Some("*".to_owned());
    let catalog = Held::new(files).index(&options).await.unwrap();
    let labels: Vec<_> = (0..4).map(|id| catalog.value(SampleId(id), "label").unwrap()).collect();
    assert_eq!(labels, [3, 4, 3, 4].map(|label| Some(SampleValue::Integer(label))));
}

/// The cache of an image folder has the paths of images and not their bytes.
#[tokio::test]
async fn samples_of_nulls_are_an_error_with_the_remedy() {
    let (kind, error) = refusal([("a.arrow", table("bytes", &[None, None]))]).await;
    assert_eq!(kind, DatasetErrorKind::Empty);
    assert!(
        error.contains("in 1 arrow shard: all 2 values of column bytes") && error.contains("null"),
        "{error}"
    );
    assert!(error.contains("save_to_disk"), "{error}");
    for (name, bytes, why) in [
        ("a.mdb", fixture("lmdb/empty-0.9.mdb"), "the database has no entries"),
        ("a.zip", [&b"PK\x05\x06"[..], &[0; 18]].concat(), "the archives have no members"),
        ("a.tfrecord", Vec::new(), "they have no records"),
    ] {
        let (_, error) = refusal([(name, bytes)]).await;
        assert!(error.contains(why), "{error}");
    }
}
