//! Runs over samples that share stored units: rows of a compressed Parquet file.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use foreread::dataset::IndexOptions;
use foreread::report::Report;
use foreread::size::ByteSize;
use foreread::{Catalog, ErrorKind, Format, Loader, Memory, RankOf, State};
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
        let builder = Loader::builder(target()).catalog(catalog()).batch_size(8).epochs(3).look_ahead(20_000);
        let ready = builder.memory(Memory::Bytes(memory)).plan_only(true).prepare().unwrap();
        *ready.prepared().units().unwrap()
    };
    let all = plan(4 << 20);
    assert!(all.is_cached() && all.units == PAGES && (all.samples_per_unit - 25.0).abs() < 0.01, "{all:?}");
    assert_eq!((all.bytes_per_epoch(), all.delivered_bytes), (all.stored_bytes, ROWS * LENGTH));
    let tenth = plan(ROWS * (LENGTH + 256) * 4 / 3 / 10);
    assert!((4.0..6.0).contains(&tenth.reads_per_epoch), "{tenth:?}");
    assert!(tenth.bytes_per_epoch() > 4 * tenth.stored_bytes);
}

/// More memory was planned as a cache next to the memory of units.
#[test]
// semantics: FORMAT-6
fn more_memory_saves_the_repeated_reads_of_units() {
    let builder = Loader::builder(target()).catalog(catalog()).batch_size(8).epochs(3).look_ahead(20_000);
    let ready = builder.memory(Memory::Bytes(60_000)).plan_only(true).prepare().unwrap();
    let (planned, units) = (ready.prepared(), *ready.prepared().units().unwrap());
    let now = (3.0 * (ROWS * LENGTH) as f64 * units.reads_per_epoch) as u64;
    let gain = |more| planned.capacity_gain(more).unwrap()[0].origin_bytes;
    assert_eq!(gain(1 << 30), now - ROWS * LENGTH);
    assert!((1..now / 2).contains(&gain(60_000)), "{} of {now}", gain(60_000));
    assert_eq!(planned.capacity_gain(1 << 30).unwrap()[1].origin_bytes, now - ROWS * LENGTH);
}

/// Loads `epochs` epochs of a fixture in memory for all, checks its rows, and returns the report.
fn load_fixture(name: &str, memory: u64, epochs: u64, expected: impl Fn(u64) -> Vec<u8>) -> Report {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let builder = Loader::builder(path.to_str().unwrap()).batch_size(4).epochs(epochs).seed(3);
    let loader = builder.memory(Memory::Bytes(memory)).look_ahead(20_000).start().unwrap();
    for batch in loader.batches() {
        for (id, bytes) in batch.unwrap().iter() {
            assert!(*bytes == expected(id.0), "{name} {id}");
        }
    }
    loader.close().unwrap()
}

/// Empty samples once cut a unit in pieces, each of which was read with all of it.
#[test]
// semantics: FORMAT-6
fn empty_samples_lie_between_those_of_a_unit() {
    let expected = |id: u64| if id.is_multiple_of(3) { Vec::new() } else { row(id) };
    let report = load_fixture("empty.parquet", 1 << 20, 2, expected);
    assert_eq!((report.units.unwrap().read, report.origin_requests), (12, 12), "{report:?}");
    // In memory for half of them.
    let report = load_fixture("empty.parquet", 120 * 656 / 3 * 4 / 3, 4, expected);
    let reads = report.units.unwrap().read;
    assert!((24..=100).contains(&reads), "{reads} reads of 12 units in 4 epochs");
}

/// A dictionary whose values many rows share seemed to cost its bytes for each of them. The lower
/// bound was above the bytes that were read.
#[test]
// semantics: FORMAT-5
fn shares_of_a_dictionary_add_up_to_it() {
    let report = load_fixture("dictionary.parquet", 1 << 20, 2, |id| row(id * 5 % 16));
    assert_eq!((report.units.unwrap().read, report.origin_requests), (1, 1), "{report:?}");
    let (read, planned) = (report.origin_bytes, report.planned_origin_bytes);
    assert_eq!((planned, report.floor_origin_bytes), (read, read));
    let report = load_fixture("dictionary.parquet", 20_000, 4, |id| row(id * 5 % 16));
    assert!(report.floor_origin_bytes <= report.origin_bytes, "{report:?}");
}

/// Pages of one row took the memory tier away, and nothing was cached.
#[test]
// semantics: FORMAT-6
fn rows_with_a_page_each_are_cached_as_any_samples() {
    let report = load_fixture("single.parquet", 10 * 700, 5, row);
    assert!(report.units.is_none() && report.origin_requests < 5 * 20 - 30, "{report:?}");
}

#[test]
// semantics: FORMAT-6
fn validation_data_in_units_are_read_once_too() {
    let builder = Loader::builder(target()).validate(target()).batch_size(8).epochs(2).seed(3);
    let loader = builder.memory(Memory::Bytes(4 << 20)).look_ahead(100_000).start().unwrap();
    loader.batches().for_each(|batch| assert!(!batch.unwrap().is_empty()));
    let report = loader.close().unwrap();
    assert_eq!((report.units.unwrap().read, report.origin_requests), (2 * PAGES, 2 * PAGES));
    assert_eq!(report.planned_origin_bytes, report.origin_bytes);
}

/// The memory that keeps the samples of units is a cache, too. A plan that lets samples come and go
/// does not hold all of them.
#[test]
// semantics: FORMAT-6
fn bounds_and_plans_know_the_memory_of_units() {
    for (memory, rank, ranks) in [(ROWS * LENGTH, 0, 1), (60_000, 1, 4), (0, 0, 1)] {
        let builder = Loader::builder(target()).catalog(catalog()).batch_size(8).epochs(4).seed(3);
        let builder = builder.memory(Memory::Bytes(memory)).look_ahead(20_000).rank(RankOf { rank, ranks });
        let ready = builder.prepare().unwrap();
        let plan = *ready.prepared().units().unwrap();
        assert!(!plan.is_cached() && plan.memory_bytes == memory, "{plan:?}");
        let loader = ready.start();
        loader.batches().for_each(|batch| assert!(!batch.unwrap().is_empty()));
        let report = loader.close().unwrap();
        assert!(report.floor_origin_bytes <= report.origin_bytes, "{report:?}");
        let error = report.origin_bytes as f64 / report.planned_origin_bytes as f64;
        assert!((0.6..1.5).contains(&error), "{memory}: {error} of the plan");
    }
}

/// Rows in several chunks that many rows share.
#[test]
// semantics: FORMAT-6
fn rows_of_several_shared_chunks_read_each_chunk_once() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures/filters");
    std::fs::copy(fixtures.join("filters_v110.h5"), folder.path().join("rows.h5")).unwrap();
    let target = folder.path().to_str().unwrap();
    let mut options = IndexOptions::default();
    options.format_options.fields = vec!["all_grid".to_owned()];
    let catalog = Loader::builder(target).index(options, |_| ()).unwrap();
    let load = |memory, look_ahead| {
        let builder = Loader::builder(target).catalog(catalog.clone()).batch_size(1).epochs(3).seed(3);
        let ready = builder.memory(Memory::Bytes(memory)).look_ahead(look_ahead).prepare().unwrap();
        let plan = *ready.prepared().units().unwrap();
        let loader = ready.start();
        assert_eq!(loader.batches().map(|batch| batch.unwrap().len()).sum::<usize>(), 15);
        (plan, loader.close().unwrap())
    };
    // 2 x 3 of 4 x 5 numbers: two of two rows, and one of one.
    let (plan, report) = load(1 << 20, 100_000);
    assert_eq!((plan.units, plan.is_cached()), (6, true));
    assert!((plan.samples_per_unit - 10.0 / 6.0).abs() < 0.01, "{plan:?}");
    assert_eq!((report.units.unwrap().read, report.origin_bytes), (6, plan.stored_bytes));
    let (_, report) = load(0, 1);
    assert!(report.units.unwrap().read >= 6);
}

/// Samples of an order that leaves some out.
#[test]
// semantics: FORMAT-6
fn announced_part_of_a_dataset_reads_each_unit_once() {
    let builder = Loader::builder(target()).catalog(catalog()).batch_size(8);
    let source = builder.memory(Memory::Bytes(4 << 20)).look_ahead(20_000).source().unwrap();
    let order: Vec<u64> = (0..ROWS / 2).map(|at| at * 389 % (ROWS / 2) * 2).collect();
    source.announce(vec![order.clone(), order.clone()], true).unwrap();
    for ids in order.repeat(2).chunks(8) {
        let mut requested = source.request(ids);
        while requested.remaining() > 0 {
            let Some((at, bytes)) = requested.wait(Duration::from_secs(300)) else { panic!("{ids:?}") };
            assert!(bytes.unwrap() == row(ids[at]), "{}", ids[at]);
        }
    }
    let report = source.report();
    assert_eq!(report.units.unwrap().read, PAGES, "{report:?}");
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

/// The room that a refusal asks for must be enough: small records take more than their bytes. With
/// just less, units were read several times.
#[test]
// semantics: FORMAT-7
fn room_of_a_refusal_is_enough_for_one_read_of_each_shard() {
    let folder = tempfile::tempdir().unwrap();
    for shard in 0..10 {
        let archive = Archive::new(NumberedObjects::named(200, 11, |id| format!("{id:04}.cls")));
        let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
        writer.write_all(&archive.range(0..archive.size())).unwrap();
        std::fs::write(folder.path().join(format!("{shard}.tar.gz")), writer.finish().unwrap()).unwrap();
    }
    let disk = tempfile::tempdir().unwrap();
    let load = |memory, on_disk| {
        let builder = Loader::builder(folder.path().to_str().unwrap()).batch_size(8).epochs(3).seed(3);
        let builder = builder.memory(Memory::Bytes(memory)).look_ahead(16 << 20);
        let builder = if on_disk > 0 { builder.disk(disk.path(), on_disk) } else { builder };
        let loader = builder.start()?;
        assert_eq!(loader.batches().map(|batch| batch.unwrap().len()).sum::<usize>(), 6000);
        Ok::<_, foreread::Error>(loader.close().unwrap().units.unwrap().read)
    };
    let text = load(0, 0).unwrap_err().to_string();
    let (_, needs) = text.split_once("must hold all samples: ").unwrap();
    let (memory, needs) = needs.split_once(" of memory or ").unwrap();
    let (on_disk, _) = needs.split_once(" of disk, and there are").unwrap();
    let [memory, on_disk] = [memory, on_disk].map(|text| text.parse::<ByteSize>().unwrap().0);
    assert!(memory > 200 * 11 * 10 && on_disk >= 2000 * (64 + 44), "{text}");
    assert_eq!(load(memory, 0).unwrap(), 10);
    assert_eq!(load(0, on_disk).unwrap(), 10);
    for less in [memory / 4, memory / 2, memory * 3 / 4, memory * 9 / 10] {
        assert!(
            load(less, 0).is_err_and(|error| error.kind() == ErrorKind::Usage)
                || load(less, 0).unwrap() == 10
        );
    }
}

/// A plan has no place for samples that are used once. So short runs and the last epoch of a
/// resumed one were refused.
#[test]
// semantics: FORMAT-7
fn short_and_resumed_runs_of_compressed_shards_use_their_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (data, disk) = (folder.path().join("data"), folder.path().join("disk"));
    write_shards(&data, true);
    let start = |epochs, state: Option<State>| {
        let builder = Loader::builder(data.to_str().unwrap()).batch_size(8).seed(3).drop_last(true);
        let builder = builder.memory(Memory::Bytes(0)).disk(&disk, 16 << 20).look_ahead(1 << 20);
        let builder = builder.epochs(epochs);
        let loader = state.into_iter().fold(builder, |builder, state| builder.resume(state)).start().unwrap();
        let batches = loader.batches().take(if epochs == 1 { 15 } else { 20 });
        batches.for_each(|batch| assert_eq!(batch.unwrap().len(), 8));
        (loader.state(), loader.close().unwrap())
    };
    let (_, report) = start(1, None);
    assert_eq!(report.origin_requests, 3);
    let (state, report) = start(2, None);
    assert_eq!(report.origin_requests, 0);
    let (_, report) = start(2, Some(state));
    assert_eq!(report.origin_requests, 0);
}

/// Chunks of LitData are whole objects as well, and have few samples.
#[test]
// semantics: FORMAT-6
fn compressed_chunks_of_litdata_need_no_room_for_all() {
    let chunks =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures/tables/litdata/zstd_chunk");
    let builder = Loader::builder(chunks.to_str().unwrap()).format(Format::LitData).batch_size(4).epochs(2);
    let loader = builder.memory(Memory::Bytes(0)).start().unwrap();
    assert_eq!(loader.batches().map(|batch| batch.unwrap().len()).sum::<usize>(), 24);
    assert!(loader.close().unwrap().units.unwrap().read >= 2);
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
