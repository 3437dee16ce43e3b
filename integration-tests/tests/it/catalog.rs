//! `foreread index`: the files that become samples, and their catalog.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::support::{Samples, foreread, load, number, run};

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
    let printed = count(&["--include", "**/*.jpg"]);
    assert!(printed.contains("2 samples") && printed.contains("2 labels"), "{printed}");
    assert!(count(&["--exclude", "b/**"]).contains("2 samples"));
    assert!(count(&["--include", "**/*.{jpg,png}", "--exclude", "a/1.*"]).contains("2 samples"));
    let line = run(foreread(["index", samples.path().to_str().unwrap(), "--include", "[", "-o", "d"])
        .current_dir(tempfile::tempdir().unwrap().path()))
    .fails(1);
    assert!(line.contains('['), "{line}");
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
