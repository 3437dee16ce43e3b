//! Every invalid input ends with one clear line and a non-zero exit code, and nothing hangs.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use foreread_tier_testing::copy_program;

use crate::support::{DEADLINE, Samples, foreread, number, run};

fn index(samples: &Samples) -> String {
    let catalog = samples.path().join("set.foreread").to_str().unwrap().to_owned();
    run(&mut foreread(["index", samples.path().to_str().unwrap(), "-o", &catalog])).ok();
    catalog
}

#[track_caller]
fn assert_contains(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "'{part}' is not in: {line}");
    }
}

/// Guards against this fault: the lines of two ranks that failed at the same time were mixed.
#[test]
// semantics: FAIL-24
fn error_line_is_one_write() {
    // Each write to such a socket is a message.
    let (here, there) = UnixDatagram::pair().unwrap();
    here.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut command = foreread(["load", "/no/such/place"]);
    let mut child = command.stderr(OwnedFd::from(there)).spawn().unwrap();
    let mut message = [0; 4096];
    let length = here.recv(&mut message).unwrap();
    let line = std::str::from_utf8(&message[..length]).unwrap();
    assert!(line.starts_with("foreread: ") && line.ends_with('\n'), "{line:?}");
    assert_contains(line, &["/no/such/place", "not found"]);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn file_that_is_not_a_catalog_is_refused() {
    let samples = Samples::awkward(3, 10);
    samples.add("notes.md", b"hello");
    let line = run(&mut foreread(["load", samples.path().join("notes.md").to_str().unwrap()])).fails(1);
    assert_contains(&line, &["notes.md", "neither a directory nor a catalog"]);
}

#[test]
// semantics: FAIL-2
fn file_truncated_or_deleted_after_indexing_is_named() {
    let samples = Samples::awkward(200, 1000);
    let catalog = index(&samples);
    let path = samples.path().join("a/2");
    let changes: [(&dyn Fn(), _); 2] = [
        (&|| fs::write(&path, b"short").unwrap(), ["a/2", "sample ", "changed", "5 bytes"]),
        (&|| fs::remove_file(&path).unwrap(), ["a/2", "sample ", "not found", "index"]),
    ];
    for (change, expected) in changes {
        change();
        assert_contains(&run(&mut foreread(["load", &catalog])).fails(1), &expected);
    }
}

#[test]
// semantics: FAIL-3
fn unreadable_samples_are_skipped_or_substituted_on_request() {
    let samples = Samples::awkward(200, 1000);
    let catalog = index(&samples);
    fs::remove_file(samples.path().join("a/2")).unwrap();
    let skip =
        run(&mut foreread(["load", &catalog, "--on-error=skip", "--report=json", "--epochs=2"])).json();
    assert_eq!((number(&skip, "/skipped"), number(&skip, "/epochs/0/samples")), (2, 199));
    let other =
        run(&mut foreread(["load", &catalog, "--on-error=substitute", "--report=json", "--epochs=2"])).json();
    assert_eq!((number(&other, "/substituted"), number(&other, "/epochs/1/samples")), (2, 200));
}

#[test]
// semantics: FAIL-3
fn run_that_skips_every_sample_fails() {
    let samples = Samples::awkward(20, 100);
    let catalog = index(&samples);
    for path in samples.in_order().iter().filter(|path| !path.ends_with("set.foreread")) {
        fs::remove_file(path).unwrap();
    }
    let line = run(&mut foreread(["load", &catalog, "--on-error=skip", "--epochs=2"])).fails(1);
    assert_contains(&line, &["no sample could be read", "all 40 were skipped"]);
    let report = run(&mut foreread(["load", &catalog, "--on-error=skip", "--report=json"]));
    assert_eq!(report.code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(number(&report, "/skipped"), 40);
}

#[test]
fn file_without_read_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let samples = Samples::awkward(20, 1000);
    let path = samples.path().join("a/2");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&path).is_ok() {
        // Root reads everything, so the test switches to another user who may enter the directory.
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let program = elsewhere.path().join("foreread");
        copy_program(crate::support::binary(), &program);
        [samples.path(), elsewhere.path(), &program].into_iter().for_each(open);
        let mut command = std::process::Command::new(&program);
        command.args(["load", samples.path().to_str().unwrap()]).current_dir("/");
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        let line = run(&mut command).fails(1);
        assert_contains(&line, &["a/2", "permission denied"]);
        return;
    }
    let line = run(&mut foreread(["load", samples.path().to_str().unwrap()])).fails(1);
    assert_contains(&line, &["a/2", "permission denied"]);
}

#[test]
// semantics: FAIL-24
fn invalid_settings_are_one_line() {
    for (arguments, expected) in [
        ("load x --rank=4 --world-size=4", &["--rank 4", "0 to 3"][..]),
        ("load x --rank=1", &["--rank 1"]),
        ("load x --batch-size=0", &["--batch-size 0", "at least 1"]),
        ("load x --epochs=0", &["--epochs 0", "at least 1"]),
        ("load x --epochs=99999999999", &["at most 1000000"]),
        ("load x --memory=lots", &["--memory lots", "invalid size", "MiB"]),
        ("load x --look-ahead=12XB", &["--look-ahead 12XB", "invalid size"]),
        ("load x --origin-limit=0", &["--origin-limit 0", "at least 1"]),
        ("load x --sampler=random", &["'random' for '--sampler", "shuffle, torch"]),
        ("load x --on-error=ignore", &["'ignore' for '--on-error", "fail, skip"]),
        ("load x --deal=fair", &["'fair' for '--deal", "torch, blocks, locality"]),
        ("load x --compute-ms=-3", &["--compute-ms -3"]),
        ("load x --report=xml", &["'xml' for '--report", "text, json]"]),
        ("load x --seed=-1", &["--seed -1"]),
        ("load x --no-such-option", &["--no-such-option"]),
        ("load x --memory", &["--memory"]),
        ("load", &["required arguments"]),
        ("laod", &["laod"]),
        ("order", &["--samples"]),
        ("order --samples=3 --epoch=-1", &["--epoch -1"]),
        ("order --samples=3 --world-size=2", &["which rank"]),
        ("plan --samples=5", &["--sample-bytes"]),
    ] {
        assert_contains(&run(&mut foreread(arguments.split(' '))).fails(2), expected);
    }
    assert_contains(&run(&mut foreread(["load", "gopher://x"])).fails(1), &["gopher", "file"]);
    assert_eq!(run(&mut foreread(["--help"])).code, Some(0));
}

#[test]
// semantics: FAIL-1
fn file_of_ten_terabytes_is_an_error() {
    let samples = Samples::awkward(8, 100);
    let huge = fs::File::create(samples.path().join("a/huge")).unwrap();
    if let Err(error) = huge.set_len(10 << 40) {
        println!("this file system has no files so long ({error})");
        return;
    }
    let line = run(&mut foreread(["load", samples.path().to_str().unwrap()])).fails(1);
    assert_contains(&line, &["a/huge", "10995116277760 bytes"]);
    let report = crate::support::load(&samples, &["--on-error=skip", "--epochs=1", "--batch-size=4"]);
    assert_eq!((number(&report, "/skipped"), number(&report, "/epochs/0/samples")), (1, 8));
}

#[test]
fn pipe_in_place_of_settings_or_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("foreread.toml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = foreread(["order", "--samples=3"]);
    assert_contains(
        &run(command.current_dir(directory.path())).fails(2),
        &["foreread.toml", "not a regular file"],
    );
    let samples = Samples::awkward(8, 100);
    let line =
        run(&mut foreread(["load", samples.path().to_str().unwrap(), "--state", pipe.to_str().unwrap()]))
            .fails(1);
    assert_contains(&line, &["foreread.toml", "not a regular file"]);
}

#[test]
// semantics: FAIL-25
fn index_replaces_catalogs_only() {
    let samples = Samples::awkward(20, 100);
    let catalog = index(&samples);
    // The same file with foreign keys. Files of other programs begin and end in the same way.
    let mut bytes = fs::read(&catalog).unwrap();
    let keys: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"foreread.")).collect();
    keys.iter().for_each(|at| bytes[*at..at + 8].copy_from_slice(b"somebody"));
    let other = samples.path().join("results.feather");
    fs::write(&other, &bytes).unwrap();
    let (data, path) = (samples.path().to_str().unwrap(), other.to_str().unwrap());
    let sample = samples.path().join("a/2");
    let before = fs::read(&sample).unwrap();
    for output in [path, sample.to_str().unwrap()] {
        let line = run(&mut foreread(["index", data, "-o", output])).fails(2);
        assert_contains(&line, &[output, "exists and is not a catalog"]);
    }
    assert_eq!((fs::read(&other).unwrap(), fs::read(&sample).unwrap()), (bytes, before));
    // A catalog with damaged rows is still a catalog.
    let mut damaged = fs::read(&catalog).unwrap();
    damaged[1000] ^= 1;
    fs::write(&catalog, &damaged).unwrap();
    run(&mut foreread(["index", data, "-o", &catalog, "--exclude", "*.feather"])).ok();
    assert_ne!(fs::read(&catalog).unwrap(), damaged);
}

#[test]
// semantics: FAIL-25
fn calibration_replaces_no_catalog_and_output_is_no_setting() {
    let samples = Samples::awkward(20, 100);
    let catalog = index(&samples);
    let before = fs::read(&catalog).unwrap();
    let data = samples.path().to_str().unwrap();
    let line = run(&mut foreread(["calibrate", data, "--seconds", "1", "-o", &catalog])).fails(2);
    assert_contains(&line, &[&catalog, "exists and is not a calibration"]);
    assert_eq!(fs::read(&catalog).unwrap(), before);
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("foreread.toml"), format!("output = {catalog:?}")).unwrap();
    for command in ["index", "calibrate"] {
        let line = run(foreread([command, data]).current_dir(directory.path())).fails(2);
        assert_contains(&line, &["foreread.toml: output can be set by an argument only (--output)"]);
    }
    fs::remove_file(directory.path().join("foreread.toml")).unwrap();
    let mut command = foreread(["calibrate", data, "--seconds", "1"]);
    command.current_dir(directory.path());
    let line = run(command.env("FOREREAD_OUTPUT", &catalog)).fails(2);
    assert_contains(&line, &["FOREREAD_OUTPUT: output can be set by an argument only (--output)"]);
    // Twice: a calibration replaces one.
    for _ in 0..2 {
        run(command.env_remove("FOREREAD_OUTPUT")).ok();
    }
    assert!(directory.path().join("foreread-calibration.toml").is_file());
    assert_eq!(fs::read(&catalog).unwrap(), before);
}
