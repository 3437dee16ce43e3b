//! `load --disk`: the disk tier in the real command, and `cache`.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use foreread_tier_testing::until;

use crate::support::{
    Samples, TestRandom, assert_digests, cache_root, content, disk, foreread, four_thousand, load, number,
    run, taken, times,
};

#[test]
// semantics: DISK-2, DISK-7
fn memory_and_disk_read_the_lower_bound_and_restart_warm() {
    let samples = four_thousand();
    let directory = tempfile::tempdir().unwrap();
    let (size, epochs) = (samples.bytes(), 3);
    let part = size * 3 / 10;
    let (memory, disk) = (format!("--memory={part}"), disk(directory.path(), part));
    let arguments =
        ["--epochs=3", "--look-ahead=16MiB", "--digest", "--origin-limit=400MB/s", &memory, &disk];
    let cold = load(samples, &arguments);
    let bound = size + (epochs - 1) * (size - 2 * part);
    let read = number(&cold, "/origin_bytes");
    assert!(read as f64 <= 1.01 * bound as f64, "{read} of at most {bound}");
    assert!(read >= number(&cold, "/floor_origin_bytes"));
    assert_eq!(number(&cold, "/epochs/0/reads/origin/bytes"), size, "each byte once in epoch 1");
    assert!(number(&cold, "/epochs/2/reads/disk/bytes") as f64 >= 0.97 * part as f64);
    assert_digests(samples, &cold);
    assert!(taken(directory.path()) <= part);

    let warm = load(samples, &arguments);
    let first = number(&warm, "/epochs/0/reads/origin/bytes");
    assert!(first as f64 <= 1.01 * (size - part) as f64, "{first} of at most {}", size - part);
    assert!(number(&warm, "/origin_bytes") >= number(&warm, "/floor_origin_bytes"));
    assert_digests(samples, &warm);
    assert!(taken(directory.path()) <= part);
}

/// Runs once ended before their last samples were written to the disk.
#[test]
// semantics: DISK-21
fn run_waits_for_its_last_disk_writes_and_reports_them() {
    let samples = Samples::awkward(200, 100_000);
    let directory = tempfile::tempdir().unwrap();
    let all = disk(directory.path(), 100_000_000);
    let cold = load(&samples, &["--epochs=2", &all]);
    let (written, failed) = (number(&cold, "/disk/written"), number(&cold, "/disk/failed"));
    assert!((1..=200).contains(&written) && failed == 0, "{}", cold["disk"]);
    let (held, capacity) = (number(&cold, "/disk/held_bytes"), number(&cold, "/disk/capacity_bytes"));
    assert!(held >= (64 + 44) * written && held <= capacity && capacity <= 100_000_000, "{}", cold["disk"]);
    assert!(["io_uring", "threads"].contains(&cold["disk"]["reader"].as_str().unwrap()));
    let warm = load(&samples, &["--epochs=1", &all]);
    assert_eq!(number(&warm, "/origin_requests"), 200 - written, "what was written is there");
    assert_eq!(number(&warm, "/disk/corrupt"), 0);

    let printed = run(&mut foreread(["load", samples.path().to_str().unwrap(), "--epochs=1", &all])).ok();
    assert!(
        printed.lines().any(|line| line.starts_with("disk  ") && line.contains("0 corrupt")),
        "{printed}"
    );
    assert!(load(&samples, &["--epochs=1"]).get("disk").is_none(), "nothing is printed where there is none");
}

#[test]
// semantics: DISK-7
fn disk_contents_are_used_under_any_plan() {
    let samples = Samples::awkward(200, 20_000);
    let directory = tempfile::tempdir().unwrap();
    let all = disk(directory.path(), 20_000_000);
    load(&samples, &["--epochs=2", &all, "--look-ahead=100KB", "--compute-ms=5"]);
    // Memory now holds everything: every sample moves there from the disk, and none is read from
    // the origin.
    let moved = load(&samples, &["--epochs=2", &all, "--memory=50MB", "--digest", "--look-ahead=100KB"]);
    assert_eq!(number(&moved, "/origin_requests"), 0);
    assert_eq!(number(&moved, "/epochs/0/reads/disk/samples"), 200);
    assert_eq!(number(&moved, "/epochs/1/reads/memory/samples"), 200);
    assert_digests(&samples, &moved);
}

/// Most kills hit a run that fills a new cache, after a random number of listed samples. Every
/// fourth hits a run that continues with an existing cache, at a random time.
#[test]
// semantics: DISK-8
fn killed_run_leaves_only_whole_samples() {
    let samples = Samples::awkward(300, 30_000);
    let mut directory = tempfile::tempdir().unwrap();
    let (mut draw, kills, mut unfinished) = (TestRandom::new(), times(10, 500), 0);
    for kill in 0..kills {
        let afresh = kill % 4 != 3;
        if afresh {
            directory = tempfile::tempdir().unwrap();
        }
        let disk = disk(directory.path(), 6_000_000);
        let target = samples.path().to_str().unwrap();
        let mut child = foreread([
            "load",
            target,
            "--epochs=50",
            "--look-ahead=1MB",
            "--batch-size=8",
            "--compute-ms=2",
            &disk,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
        if afresh {
            let when = draw.below(150);
            until("the run writes samples", || {
                assert!(child.try_wait().unwrap().is_none(), "the run has ended");
                listed(directory.path()) > when
            });
        }
        std::thread::sleep(Duration::from_micros(draw.below(if afresh { 2_000 } else { 200_000 })));
        child.kill().unwrap();
        child.wait().unwrap();
        let report = load(&samples, &["--epochs=2", "--look-ahead=1MB", "--digest", &disk]);
        assert_digests(&samples, &report);
        let held = |epoch| number(&report, &format!("/epochs/{epoch}/reads/disk/samples"));
        println!("kill {kill}: {} of {} samples were kept", held(0), held(1));
        unfinished += u64::from(0 < held(0) && held(0) < held(1));
        let taken = taken(directory.path());
        assert!(taken <= 6_000_000, "{taken} bytes after kill {kill}, from FOREREAD_TEST_SEED={}", draw.seed);
        if (kill + 1).is_multiple_of(50) {
            println!("{} of {kills} kills", kill + 1);
        }
    }
    assert!(unfinished >= kills / 2, "{unfinished} of {kills} kills hit a cache that was being filled");
}

/// The number of entries in the index of a directory's only cache.
pub fn listed(directory: &Path) -> u64 {
    let places = fs::read_dir(cache_root(directory)).into_iter().flatten().flatten();
    let indexes = places.filter_map(|place| fs::metadata(place.path().join("index")).ok());
    indexes.map(|index| index.len().saturating_sub(64) / 20).sum()
}

#[test]
// semantics: DISK-19
fn caches_are_listed_and_cleaned_unless_in_use() {
    let samples = Samples::awkward(50, 20_000);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let all = disk(directory.path(), 20_000_000);
    load(&samples, &["--epochs=2", &all, "--look-ahead=100KB", "--compute-ms=5"]);
    let listed = run(&mut foreread(["cache", "list", path])).ok();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    // With the place of its data.
    let end = format!("  none            {}\n", samples.path().display());
    assert!(listed.ends_with(&end), "{listed}");

    let target = samples.path().to_str().unwrap();
    let mut user = foreread(["load", target, "--epochs=10000", "--compute-ms=20", &all])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the run owns the directory", || {
        run(&mut foreread(["cache", "list", path])).ok().contains(&format!("process {}", user.id()))
    });
    let kept = run(&mut foreread(["cache", "clean", path, "--all"])).ok();
    assert!(kept.starts_with("skipped ") && kept.contains(&format!("process {}", user.id())), "{kept}");
    // A second run on the same directory only reads.
    assert_digests(&samples, &load(&samples, &["--epochs=1", &all, "--digest"]));
    user.kill().unwrap();
    user.wait().unwrap();

    let young = run(&mut foreread(["cache", "clean", path, "--older-than=3"])).ok();
    assert!(young.starts_with("skipped ") && young.contains("used 0.0 days ago, not 3"), "{young}");
    let other = format!("--dataset={:032x}", 1);
    let none = run(&mut foreread(["cache", "clean", path, &other])).ok();
    assert!(none.starts_with("nothing to remove: no such cache"), "{none}");
    // Foreign files stay, and are named.
    let place = fs::read_dir(cache_root(directory.path())).unwrap().map(|entry| entry.unwrap().path());
    let notes = place.into_iter().find(|path| path.is_dir()).unwrap().join("notes.txt");
    fs::write(&notes, "x").unwrap();
    let removed = run(&mut foreread(["cache", "clean", path, "--all"])).ok();
    assert!(removed.starts_with("removed "), "{removed}");
    assert!(removed.contains(&format!("kept {}", notes.display())), "{removed}");
    assert_eq!(run(&mut foreread(["cache", "list", path])).ok().lines().count(), 1);
}

#[test]
// semantics: DISK-24
fn size_beyond_the_free_space_is_one_warning() {
    let samples = Samples::awkward(8, 100);
    let (target, directory) = (samples.path().to_str().unwrap(), tempfile::tempdir().unwrap());
    let load = |bytes: u64| run(&mut foreread(["load", target, &disk(directory.path(), bytes)]));
    let printed = load(1 << 50).stderr;
    assert_eq!(printed.lines().count(), 1, "{printed}");
    let line = "the disk cache may take 1024.0 TiB, but its file system has only ";
    assert!(printed.contains(line) && printed.contains(directory.path().to_str().unwrap()), "{printed}");
    assert_eq!(load(20_000_000).stderr, "");
}

#[test]
// semantics: DISK-20
fn unusable_directory_is_named() {
    let samples = Samples::awkward(8, 100);
    samples.add("file", &content(1, 10));
    let target = samples.path().to_str().unwrap();
    let line = run(&mut foreread(["load", target, "--disk=/no/such/parent/cache=1GB"])).fails(1);
    assert!(line.contains("/no/such/parent"), "{line}");
    let file = disk(&samples.path().join("file"), 1_000_000);
    assert!(run(&mut foreread(["load", target, &file])).fails(1).contains("file"));
    for (text, expected) in [
        ("--disk=/tmp", "DIR=SIZE"),
        ("--disk=/tmp=much", "invalid size"),
        ("--disk=/tmp=0", "at least 1"),
        ("--disk=/tmp=1GB,theirs", "expected shared"),
    ] {
        let line = run(&mut foreread(["load", target, text])).fails(2);
        assert!(line.contains(expected), "{line}");
    }
    let place = disk(&samples.path().join("disk"), 10_000);
    let line = run(&mut foreread(["load", target, &place])).fails(1);
    assert!(line.contains("cannot hold a single sample; give it at least "), "{line}");
    assert!(run(&mut foreread(["cache", "list", "/no/such/place"])).fails(1).contains("/no/such/place"));
}
