//! Identical-looking data never share a cache, and the same data are recognised under every path.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use foreread_tier_testing::store::HttpStore;
use serde_json::Value;

use crate::s3::at;
use crate::support::{Samples, assert_digests, content, disk, foreread, load, number, run};

const COUNT: u64 = 40;
const LENGTH: usize = 4000;

/// A time in the past, with nanoseconds that no clock produces.
fn then(number: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + number) + Duration::from_nanos(123_456_789)
}

/// Writes data of a `kind`. Kinds differ in bytes only, not in names, sizes and modification
/// `times`.
fn write(samples: &Samples, kind: u64, times: fn(u64) -> SystemTime) {
    for number in 0..COUNT {
        let name = format!("class-{}/{number:03}.npy", number % 3);
        samples.add(&name, &content(1000 * kind + number, LENGTH));
        let file = fs::File::options().write(true).open(samples.path().join(name)).unwrap();
        file.set_modified(times(number)).unwrap();
    }
}

fn made(kind: u64, times: fn(u64) -> SystemTime) -> Samples {
    let samples = Samples::new();
    write(&samples, kind, times);
    samples
}

const TIMES: [fn(u64) -> SystemTime; 2] = [|_| SystemTime::UNIX_EPOCH, then];

fn from_disk(report: &Value) -> u64 {
    report["epochs"][0]["reads"]["disk"]["samples"].as_u64().unwrap_or(0)
}

#[test]
// semantics: DISK-3
fn data_that_look_alike_share_no_cache() {
    for times in TIMES {
        let (one, two) = (made(1, times), made(2, times));
        let directory = tempfile::tempdir().unwrap();
        let disk = disk(directory.path(), 20_000_000);
        let arguments = ["--epochs=2", "--memory=0", "--digest", &disk];
        for samples in [&one, &two, &one, &two] {
            assert_digests(samples, &load(samples, &arguments));
        }
        // Each has a separate cache, which is found again by the file system's change times.
        assert_eq!(from_disk(&load(&one, &arguments)), COUNT);
        assert_eq!(from_disk(&load(&two, &arguments)), COUNT);
    }
}

#[test]
// semantics: DISK-3
fn validation_set_that_looks_like_the_training_set_is_itself() {
    let (train, validation) = (made(1, TIMES[0]), made(2, TIMES[0]));
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(directory.path(), 20_000_000);
    let validate = format!("--validate={}", validation.path().display());
    let in_order: Vec<u64> = (0..COUNT).collect();
    for memory in ["--memory=0", "--memory=10MB"] {
        let report = load(&train, &["--epochs=3", "--digest", &validate, &disk, memory]);
        let passes = report["epochs"].as_array().unwrap();
        let validations: Vec<_> = passes.iter().filter(|pass| pass["phase"] != "train").collect();
        assert_eq!(validations.len(), 3);
        for pass in validations {
            assert_eq!(pass["digest"], validation.digest(&in_order), "{pass}");
        }
    }
}

#[test]
// semantics: DISK-5
fn data_rewritten_with_old_times_are_read_again() {
    for times in TIMES {
        let samples = made(1, times);
        let directory = tempfile::tempdir().unwrap();
        let disk = disk(directory.path(), 20_000_000);
        let arguments = ["--epochs=2", "--memory=0", "--digest", &disk];
        assert_digests(&samples, &load(&samples, &arguments));
        assert_eq!(from_disk(&load(&samples, &arguments)), COUNT, "as long as nothing is written");
        write(&samples, 2, times);
        let report = load(&samples, &arguments);
        assert_eq!(from_disk(&report), 0);
        assert_digests(&samples, &report);
    }
}

#[test]
// semantics: DISK-6
fn state_resumes_after_the_data_were_moved() {
    let samples = made(1, TIMES[1]);
    let directory = tempfile::tempdir().unwrap();
    let (disk, state) = (disk(directory.path(), 20_000_000), directory.path().join("state"));
    let state = format!("--state={}", state.display());
    load(&samples, &["--epochs=2", &disk, &state]);
    let moved = Samples::new();
    for path in samples.in_order() {
        let name = path.strip_prefix(samples.path()).unwrap();
        moved.add(name.to_str().unwrap(), &fs::read(&path).unwrap());
        let file = fs::File::options().write(true).open(moved.path().join(name)).unwrap();
        file.set_modified(fs::metadata(&path).unwrap().modified().unwrap()).unwrap();
    }
    let report = load(&moved, &["--epochs=3", "--digest", &disk, &state]);
    let epochs = report["epochs"].as_array().unwrap();
    assert_eq!((epochs.len(), number(&report, "/epochs/0/epoch")), (1, 2), "{report}");
    assert_eq!(from_disk(&report), 0, "its bytes are another place's");
    assert_digests(&moved, &report);
}

fn index(target: &Path, file: &Path, more: &[&str]) {
    let (target, file) = (target.to_str().unwrap(), file.to_str().unwrap());
    run(&mut foreread(["index", target, "-o", file].iter().chain(more))).ok();
}

#[test]
// semantics: DISK-5
fn named_catalog_keeps_its_cache_when_the_data_are_moved() {
    let (samples, moved) = (made(1, TIMES[1]), made(1, TIMES[1]));
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(directory.path(), 20_000_000);
    for (place, name, expected) in
        [(&samples, "--name=x", 0), (&moved, "--name=x", COUNT), (&samples, "--name=y", 0)]
    {
        let file = directory.path().join("named.foreread");
        index(place.path(), &file, &[name]);
        let arguments =
            ["load", file.to_str().unwrap(), "--report=json", "--epochs=2", "--memory=0", "--digest", &disk];
        let report = run(&mut foreread(arguments)).json();
        assert_eq!(from_disk(&report), expected, "{name}");
        assert_digests(place, &report);
    }
}

#[test]
// semantics: FAIL-2
fn saved_catalog_refuses_files_rewritten_under_old_times() {
    let samples = made(1, TIMES[1]);
    let directory = tempfile::tempdir().unwrap();
    let [plain, named] = ["plain", "named"].map(|name| directory.path().join(format!("{name}.foreread")));
    index(samples.path(), &plain, &[]);
    index(samples.path(), &named, &["--name=x"]);
    let load = |file: &Path| {
        run(&mut foreread(["load", file.to_str().unwrap(), "--report=json", "--epochs=1", "--digest"]))
    };
    assert_digests(&samples, &load(&plain).json());
    write(&samples, 2, TIMES[1]);
    let failed = load(&plain).fails(1);
    assert!(failed.contains("class-") && failed.contains("index it again"), "{failed}");
    assert_digests(&samples, &load(&named).json());
    index(samples.path(), &plain, &[]);
    assert_digests(&samples, &load(&plain).json());
}

/// A bucket `data` with objects below `prefix`.
fn put(store: &HttpStore, prefix: &str, samples: &Samples) {
    store.bucket("data");
    for path in samples.in_order() {
        let name = path.strip_prefix(samples.path()).unwrap().to_str().unwrap().to_owned();
        store.put("data", &format!("{prefix}/{name}"), fs::read(path).unwrap());
    }
}

#[test]
// semantics: DISK-3
fn stores_whose_objects_look_alike_share_no_cache() {
    let samples = [made(1, TIMES[0]), made(2, TIMES[0])];
    // Both stores number their tags from one.
    let stores = [HttpStore::start(), HttpStore::start()];
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(directory.path(), 20_000_000);
    for (store, samples) in stores.iter().zip(&samples) {
        put(store, "train", samples);
    }
    for round in 0..2 {
        for (store, samples) in stores.iter().zip(&samples) {
            let arguments =
                ["load", "s3://data/train", "--report=json", "--epochs=2", "--memory=0", "--digest", &disk];
            let report = run(&mut at(store, &arguments)).json();
            assert_eq!(from_disk(&report), round * COUNT, "each finds its own cache again");
            assert_digests(samples, &report);
        }
    }
}

#[test]
// semantics: DISK-5
fn store_without_versions_caches_by_saved_catalog_only() {
    let (one, two) = (made(1, TIMES[0]), made(2, TIMES[0]));
    let store = HttpStore::start();
    store.forget_tags();
    put(&store, "one", &one);
    put(&store, "two", &two);
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(directory.path(), 20_000_000);
    let load = |target: &str| {
        run(&mut at(
            &store,
            &["load", target, "--report=json", "--epochs=2", "--memory=0", "--digest", &disk],
        ))
    };
    for (target, samples) in [("s3://data/one", &one), ("s3://data/two", &two), ("s3://data/one", &one)] {
        let finished = load(target);
        let warnings = finished.stderr.lines().filter(|line| line.contains("foreread index")).count();
        assert_eq!(warnings, 1, "{}", finished.stderr);
        let report = finished.json();
        assert_eq!(from_disk(&report), 0);
        assert_digests(samples, &report);
    }
    let file = directory.path().join("one.foreread");
    let file = file.to_str().unwrap();
    run(&mut at(&store, &["index", "s3://data/one", "-o", file])).ok();
    for expected in [0, COUNT] {
        let finished = load(file);
        assert!(!finished.stderr.contains("foreread index"), "{}", finished.stderr);
        let report = finished.json();
        assert_eq!(from_disk(&report), expected, "the catalog keeps the number of its listing");
        assert_digests(&one, &report);
    }
    // Rewritten in place: a new listing finds none of the old cache.
    put(&store, "one", &two);
    assert_digests(&two, &load("s3://data/one").json());
}
