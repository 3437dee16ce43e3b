//! `foreread index`: the files that become samples, and their catalog.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::support::{DEADLINE, Samples, foreread, load, number, run, watch};

#[test]
// semantics: SAMPLE-2
fn hidden_files_and_catalogs_are_not_samples() {
    let samples = Samples::awkward(30, 100);
    let target = samples.path().to_str().unwrap();
    let catalog = samples.path().join("mine.foreread").to_str().unwrap().to_owned();
    let printed = run(&mut foreread(["index", target, "-o", &catalog])).ok();
    assert!(printed.contains("30 samples"), "{printed}");
    // Listed again with the catalog next to the samples: still thirty.
    assert_eq!(number(&load(&samples, &["--epochs=1"]), "/samples"), 30);
}

#[test]
fn catalog_next_to_the_data_replaces_listing() {
    let samples = Samples::awkward(30, 100);
    let target = samples.path().to_str().unwrap();
    let catalog = samples.path().join("catalog.foreread");
    run(&mut foreread(["index", target, "-o", catalog.to_str().unwrap()])).ok();
    samples.add("later", b"not in it");
    assert_eq!(number(&load(&samples, &["--epochs=1"]), "/samples"), 30);
    // Indexing lists despite an existing catalog.
    let printed = run(&mut foreread(["index", target, "-o", catalog.to_str().unwrap()])).ok();
    assert!(printed.contains("31 samples"), "{printed}");
    assert_eq!(number(&load(&samples, &["--epochs=1"]), "/samples"), 31);
    // A damaged catalog is an error.
    fs::write(&catalog, &fs::read(&catalog).unwrap()[..500]).unwrap();
    let printed = run(&mut foreread(["load", target])).fails(1);
    assert!(printed.contains("catalog.foreread: the catalog is damaged"), "{printed}");
}

#[test]
fn catalog_loads_as_its_directory_does() {
    let samples = Samples::awkward(120, 1000);
    let directory = load(&samples, &["--digest", "--epochs=2", "--memory=1MB"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let mut index = foreread(["index", samples.path().to_str().unwrap()]);
    run(index.current_dir(elsewhere.path())).ok();
    let name = format!("{}.foreread", samples.path().file_name().unwrap().to_str().unwrap());
    let catalog = elsewhere.path().join(name.trim_start_matches('/'));
    let report = run(&mut foreread([
        "load",
        catalog.to_str().unwrap(),
        "--digest",
        "--epochs=2",
        "--memory=1MB",
        "--report=json",
    ]))
    .json();
    for epoch in 0..2 {
        assert_eq!(report["epochs"][epoch]["digest"], directory["epochs"][epoch]["digest"]);
    }
}

/// It was read as a dataset of its own column of paths.
#[test]
// semantics: SAMPLE-19
fn catalog_with_the_name_of_an_arrow_file_is_loaded() {
    let samples = Samples::awkward(30, 100);
    let elsewhere = tempfile::tempdir().unwrap();
    let in_it = |arguments: &[&str]| {
        let mut command = foreread(arguments);
        command.current_dir(elsewhere.path());
        command
    };
    run(&mut in_it(&["index", samples.path().to_str().unwrap(), "-o", "c.arrow", "--classes", ""])).ok();
    let report = run(&mut in_it(&["load", "c.arrow", "--report=json"])).json();
    assert_eq!(report["samples"], 30);
    let whole = fs::read(elsewhere.path().join("c.arrow")).unwrap();
    for name in ["c.arrow", "c.feather", "c"] {
        fs::write(elsewhere.path().join(name), &whole[..whole.len() - 100]).unwrap();
        let line = run(&mut in_it(&["load", name])).fails(1);
        assert!(line.contains("the catalog is damaged"), "{name}: {line}");
    }
}

#[test]
fn include_and_exclude_select_files() {
    let samples = Samples::new();
    for path in ["a/1.jpg", "a/2.png", "b/3.jpg", "b/notes.txt"] {
        samples.add(path, b"x");
    }
    let count = |arguments: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let mut command =
            foreread(["index", samples.path().to_str().unwrap(), "-o", "c.foreread"].iter().chain(arguments));
        run(command.current_dir(directory.path())).ok()
    };
    assert!(count(&["--include", "**/*.jpg"]).contains("2 samples"));
    assert!(count(&["--exclude", "b/**"]).contains("2 samples"));
    assert!(count(&["--include", "**/*.{jpg,png}", "--exclude", "a/1.*"]).contains("2 samples"));
    let line = run(foreread(["index", samples.path().to_str().unwrap(), "--include", "[", "-o", "d"])
        .current_dir(tempfile::tempdir().unwrap().path()))
    .fails(1);
    assert!(line.contains('['), "{line}");
}

#[test]
// semantics: SAMPLE-4
fn labels_are_the_first_directories() {
    let samples = Samples::new();
    for path in ["b/x/1", "a/2", "top", "b/3"] {
        samples.add(path, b"x");
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = foreread(["index", samples.path().to_str().unwrap(), "-o", "c.foreread"]);
    let printed = run(command.current_dir(directory.path())).ok();
    assert!(printed.contains("4 samples") && printed.contains("2 labels"), "{printed}");
    let catalog = foreread_dataset::Catalog::open(directory.path().join("c.foreread")).unwrap();
    let labels: Vec<_> =
        (0..4).map(|id| (catalog.path(id.into()).unwrap(), catalog.label(id.into()))).collect();
    let expected = [("top", None), ("a/2", Some("a")), ("b/3", Some("b")), ("b/x/1", Some("b"))];
    assert_eq!(labels, expected.map(|(path, label)| (path.into(), label)));
}

#[test]
// semantics: SAMPLE-17
fn name_outside_utf8_is_reported_and_can_be_excluded() {
    let samples = Samples::awkward(10, 100);
    fs::write(samples.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.jpg")), b"x").unwrap();
    let target = samples.path().to_str().unwrap();
    let line = run(&mut foreread(["load", target])).fails(1);
    assert!(line.contains("caf") && line.contains("UTF-8"), "{line}");
    let directory = tempfile::tempdir().unwrap();
    let mut command = foreread(["index", target, "-o", "c.foreread", "--exclude", "caf*.jpg"]);
    assert!(run(command.current_dir(directory.path())).ok().contains("10 samples"));
}

#[test]
// semantics: SAMPLE-18
fn catalog_with_outside_paths_is_refused() {
    let samples = Samples::awkward(3, 10);
    let secret = samples.path().parent().unwrap();
    let target = samples.path().to_str().unwrap();
    let catalog = samples.path().join("c.foreread");
    run(&mut foreread(["index", target, "-o", catalog.to_str().unwrap()])).ok();
    // An attacker can compute the checksum: replace a path by one of equal length and correct the
    // checksum.
    let path = "a/2";
    let climbing = "../";
    let mut bytes = fs::read(&catalog).unwrap();
    let at = bytes.windows(path.len()).position(|window| window == path.as_bytes()).unwrap();
    bytes[at..at + path.len()].copy_from_slice(climbing.as_bytes());
    seal(&mut bytes);
    fs::write(&catalog, &bytes).unwrap();
    let line = run(&mut foreread(["load", catalog.to_str().unwrap(), "--epochs=1"])).fails(1);
    assert!(line.contains("..") && !line.contains(&format!("{}: denied", secret.display())), "{line}");
}

/// Whether a process has a thread that reads samples.
fn reads_samples(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.trim() == "foreread-local")
}

/// Mapped catalogs once ended the run by SIGBUS without a message.
#[test]
// semantics: SAMPLE-20
fn truncated_catalog_ends_a_run_with_its_name() {
    let samples = Samples::awkward(300, 1000);
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("c.foreread");
    let target = catalog.to_str().unwrap();
    run(&mut foreread(["index", samples.path().to_str().unwrap(), "-o", target])).ok();
    let mut load = foreread([
        "load",
        target,
        "--epochs=100000",
        "--batch-size=10",
        "--look-ahead=20KB",
        "--compute-ms=1",
    ]);
    let mut truncated = false;
    let finished = watch(&mut load, DEADLINE, |process| {
        if !truncated && reads_samples(process) {
            fs::OpenOptions::new().write(true).open(&catalog).unwrap().set_len(0).unwrap();
            truncated = true;
        }
    });
    let line = finished.fails(1);
    assert!(line.contains(target) && line.contains("changed while it was in use"), "{line}");
}

/// Corrects the checksum of a changed catalog: XXH3-128 over the file with the checksum's digits
/// zeroed.
fn seal(bytes: &mut [u8]) {
    let marker = b"xxh3:";
    let at = bytes.windows(marker.len()).rposition(|window| window == marker).unwrap() + marker.len();
    bytes[at..at + 32].fill(b'0');
    let sum = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes));
    bytes[at..at + 32].copy_from_slice(sum.as_bytes());
}
