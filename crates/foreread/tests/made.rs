//! Runs over samples that are decoded when they are read: HDF5 rows in compressed chunks.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::path::Path;

use foreread::dataset::IndexOptions;
use foreread::report::Report;
use foreread::{Catalog, Loader, Memory, OnError, SampleId};
use foreread_tier::Span;

const ROWS: u64 = 60;

/// The bytes of a row.
const LENGTH: u64 = 40 * 30 * 4;

/// The rows as the recipe of the fixture writes them (`make_filters.py`).
fn row(row: u64) -> Vec<u8> {
    let numbers = (row * 1200..(row + 1) * 1200).map(|at| ((at * 7 + 1) % 251 + 1) as f32);
    numbers.flat_map(f32::to_le_bytes).collect()
}

fn fixture() -> Vec<u8> {
    let path = "../formats/tests/fixtures/filters/filters_rows.h5";
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A directory with the file.
fn compressed(folder: &Path, bytes: &[u8]) -> String {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("rows.h5"), bytes).unwrap();
    folder.to_str().unwrap().to_owned()
}

fn index(target: &str) -> Catalog {
    Loader::builder(target).index(IndexOptions::default(), |_| ()).unwrap()
}

/// Two epochs with caches in memory and on a disk: each sample's epoch, id and bytes.
fn load(target: &str, disk: &Path, memory: u64) -> (Vec<(u64, SampleId, Vec<u8>)>, Report) {
    let builder = Loader::builder(target).catalog(index(target)).batch_size(8).epochs(2).seed(5);
    let loader = builder.memory(Memory::Bytes(memory)).disk(disk, 16 << 20).start().unwrap();
    let mut samples = Vec::new();
    for batch in loader.batches() {
        let batch = batch.unwrap();
        samples.extend(batch.iter().map(|(id, bytes)| (batch.epoch(), id, bytes.to_vec())));
    }
    (samples, loader.close().unwrap())
}

#[test]
// semantics: FORMAT-5
fn decoded_samples_equal_files_of_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let packed = compressed(&folder.path().join("packed"), &fixture());
    let plain = folder.path().join("plain");
    std::fs::create_dir_all(&plain).unwrap();
    for at in 0..ROWS {
        std::fs::write(plain.join(format!("{at:03}.bin")), row(at)).unwrap();
    }
    let disks = [folder.path().join("disk0"), folder.path().join("disk1")];
    let half = ROWS * LENGTH / 2;
    let (found, _) = load(&packed, &disks[0], half);
    let (expected, _) = load(plain.to_str().unwrap(), &disks[1], half);
    assert!(found == expected && found.len() as u64 == 2 * ROWS);
    for (_, id, bytes) in &found {
        assert!(*bytes == row(id.0), "{id}");
    }
    // The origin is counted in stored bytes, caches in delivered ones.
    let catalog = index(&packed);
    let stored = catalog.stored_sizes().unwrap().total();
    assert!(stored < ROWS * LENGTH / 2, "{stored}");
    assert_eq!(catalog.total_bytes(), ROWS * LENGTH);
    let (all, report) = load(&packed, &folder.path().join("disk2"), 4 * ROWS * LENGTH);
    assert!(all == found, "{report:?}");
    assert_eq!((report.origin_bytes, report.floor_origin_bytes), (stored, stored));
    assert_eq!(report.planned_origin_bytes, stored);
    // A later run finds decoded samples on the disk.
    let (again, report) = load(&packed, &disks[0], half);
    assert!(again == found && report.origin_bytes < stored, "{}", report.origin_bytes);
}

#[test]
// semantics: FORMAT-5
fn damaged_chunk_is_one_error_that_names_the_sample() {
    const BAD: u64 = 17;
    let folder = tempfile::tempdir().unwrap();
    let target = compressed(&folder.path().join("packed"), &fixture());
    let Span::Made(parts) = index(&target).entry(SampleId(BAD)).unwrap().span else { panic!("not decoded") };
    let mut bytes = fixture();
    bytes[parts[0].stored.start as usize + 20] ^= 1;
    compressed(Path::new(&target), &bytes);
    let run = |on_error| {
        Loader::builder(&*target).batch_size(8).epochs(1).seed(5).on_error(on_error).start().unwrap()
    };
    let errors: Vec<_> = run(OnError::Fail).batches().filter_map(Result::err).collect();
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(error.key().unwrap().id, SampleId(BAD));
    let text = error.to_string();
    assert!(text.contains("rows.h5") && text.contains("fletcher32") && text.contains("17"), "{text}");
    // The other samples are delivered.
    let rest: usize = run(OnError::Skip).batches().map(|batch| batch.unwrap().len()).sum();
    assert_eq!(rest as u64, ROWS - 1);
}
