//! Runs over samples that share stored units: rows of a compressed Parquet file.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::path::Path;

use foreread::dataset::IndexOptions;
use foreread::report::Report;
use foreread::{Catalog, Loader, Memory};

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
