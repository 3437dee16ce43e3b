//! Runs over samples that share stored units: rows of a compressed Parquet file.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use foreread::dataset::IndexOptions;
use foreread::report::Report;
use foreread::{Catalog, ErrorKind, Loader, Memory};
use foreread_tier_testing::store::{Archive, Content, NumberedObjects};

/// Those of `make_units.py`.
const ROWS: u64 = 600;
const LENGTH: u64 = 400;
const PER_PAGE: u64 = 25;
const PAGES: u64 = ROWS / PER_PAGE;

fn row(number: u64) -> Vec<u8> {
    (0..LENGTH).map(|at| ((number * 7 + at / 16) % 251) as u8).collect()
}

fn target() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/units.parquet");
    path.to_str().unwrap().to_owned()
}

fn catalog() -> Catalog {
    Loader::builder(target()).index(IndexOptions::default(), |_| ()).unwrap()
}

/// Loads some epochs, checks each sample, and returns the order and the report.
fn load(memory: u64, disk: Option<(&Path, u64)>, epochs: u64, look_ahead: u64) -> (Vec<u64>, Report) {
    let builder = Loader::builder(target()).catalog(catalog()).batch_size(8).epochs(epochs).seed(3);
    let builder = builder.memory(Memory::Bytes(memory)).look_ahead(look_ahead);
    let builder = match disk {
        Some((directory, bytes)) => builder.disk(directory, bytes),
        None => builder,
    };
    let loader = builder.start().unwrap();
    let mut order = Vec::new();
    for batch in loader.batches() {
        for (id, bytes) in batch.unwrap().iter() {
            assert!(*bytes == row(id.0), "{id}");
            order.push(id.0);
        }
    }
    (order, loader.close().unwrap())
}

#[test]
// semantics: FORMAT-6
fn caches_for_all_read_each_unit_once() {
    let stored: u64 = {
        let catalog = catalog();
        assert_eq!((catalog.len(), catalog.total_bytes()), (ROWS, ROWS * LENGTH));
        catalog.stored_sizes().unwrap().total() / PER_PAGE
    };
    let (order, report) = load(4 << 20, None, 3, 300_000);
    assert_eq!(order.len() as u64, 3 * ROWS);
    assert_eq!((report.units.unwrap().read, report.origin_requests), (PAGES, PAGES), "{report:?}");
    assert_eq!(report.origin_bytes, stored);
    // On a disk, where it takes the samples as fast as units are read. This one may not.
    let folder = tempfile::tempdir().unwrap();
    let (same, report) = load(0, Some((folder.path(), 16 << 20)), 3, 300_000);
    assert_eq!((same, report.units.unwrap().read >= PAGES), (order, true), "{report:?}");
    // A later run finds all samples on the disk.
    let (_, report) = load(0, Some((folder.path(), 16 << 20)), 1, 300_000);
    assert_eq!(report.origin_requests, 0);
}

#[test]
// semantics: FORMAT-6
fn memory_for_a_tenth_reads_a_unit_a_few_times() {
    const LITTLE: u64 = 20_000;
    let epochs = 4;
    let (order, report) = load(ROWS * (LENGTH + 256) * 4 / 3 / 10, None, epochs, LITTLE);
    assert_eq!(order.len() as u64, epochs * ROWS);
    let reads = report.units.unwrap().read as f64 / (PAGES * epochs) as f64;
    let expected = foreread_planner::unit_reads(PER_PAGE as f64, 0.1);
    assert!((0.8..1.4).contains(&(reads / expected)), "{reads} times instead of {expected}");
    // Without any memory for them, nearly every sample reads its unit.
    let (same, report) = load(0, None, epochs, LITTLE);
    assert_eq!(same, order);
    assert!(report.units.unwrap().read as f64 / (PAGES * epochs) as f64 > expected, "{report:?}");
}

#[test]
// semantics: FORMAT-6
fn plan_says_how_often_units_are_read() {
    let plan = |memory| {
        let builder = Loader::builder(target()).catalog(catalog()).batch_size(8).epochs(3);
        let ready = builder.memory(Memory::Bytes(memory)).plan_only(true).prepare().unwrap();
        *ready.prepared().units().unwrap()
    };
    let all = plan(4 << 20);
    assert!(all.is_cached() && all.units == PAGES && (all.samples_per_unit - 25.0).abs() < 0.01, "{all:?}");
    assert_eq!((all.bytes_per_epoch(), all.delivered_bytes), (all.stored_bytes, ROWS * LENGTH));
    let tenth = plan(ROWS * LENGTH / 10);
    assert!((4.0..6.0).contains(&tenth.reads_per_epoch), "{tenth:?}");
    assert!(tenth.bytes_per_epoch() > 4 * tenth.stored_bytes);
}

/// The shards of a tar dataset, compressed or not.
fn write_shards(directory: &Path, compressed: bool) {
    std::fs::create_dir_all(directory).unwrap();
    for shard in 0..3_u64 {
        let members = NumberedObjects::named(40, 1000 + 10 * shard, |id| format!("{id:06}.bin"));
        let archive = Archive::new(members);
        let bytes = archive.range(0..archive.size());
        let name = format!("{shard}.tar");
        if compressed {
            let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
            writer.write_all(&bytes).unwrap();
            std::fs::write(directory.join(name + ".gz"), writer.finish().unwrap()).unwrap();
        } else {
            std::fs::write(directory.join(name), &bytes).unwrap();
        }
    }
}

#[test]
// semantics: FORMAT-7
fn compressed_tar_shards_are_decompressed_once_into_caches() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, packed] = [false, true].map(|compressed| {
        let directory = folder.path().join(compressed.to_string());
        write_shards(&directory, compressed);
        directory.to_str().unwrap().to_owned()
    });
    let load = |target: &str, memory| {
        let builder = Loader::builder(target).batch_size(8).epochs(2).seed(3).look_ahead(1 << 20);
        let loader = builder.memory(Memory::Bytes(memory)).start()?;
        let mut samples = Vec::new();
        for batch in loader.batches() {
            samples.extend(batch.unwrap().iter().map(|(id, bytes)| (id, bytes.to_vec())));
        }
        Ok::<_, foreread::Error>((samples, loader.close().unwrap()))
    };
    let (expected, _) = load(&plain, 0).unwrap();
    let (found, report) = load(&packed, 4 << 20).unwrap();
    assert!(found == expected && found.len() == 240);
    assert_eq!((report.units.unwrap().read, report.origin_requests), (3, 3));
    // Without room for all samples each one would decompress its shard.
    let error = load(&packed, 50_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let text = error.to_string();
    assert!(text.contains("3 shards are compressed as a whole") && text.contains("gunzip"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
// semantics: FORMAT-7
fn damaged_compressed_shards_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_shards(folder.path(), true);
    let path = folder.path().join("1.tar.gz");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let target = folder.path().to_str().unwrap();
    let error = Loader::builder(target).index(IndexOptions::default(), |_| ()).unwrap_err();
    assert!(error.to_string().contains("1.tar.gz"), "{error}");
}
