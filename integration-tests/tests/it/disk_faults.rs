//! `load --disk` on a cache that is damaged during a run: every run succeeds with the right digest
//! and keeps the capacity. Faults that need a mount are in `needs_mounts.rs`.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use foreread_tier_testing::copy_program;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    DEADLINE, Samples, TestRandom, assert_digests, binary, cache_root, disk, foreread, number, run, taken,
    times, watch,
};

const SAMPLES: u64 = 100;
const CAPACITY: u64 = 20_000_000;

/// A dataset, and a directory with all of it cached.
struct Cache {
    samples: Samples,
    directory: TempDir,
}

impl Cache {
    fn filled() -> Self {
        let cache =
            Self { samples: Samples::awkward(SAMPLES, 20_000), directory: tempfile::tempdir().unwrap() };
        cache.fill("a new cache");
        cache
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let target = self.samples.path().to_str().unwrap();
        let mut command = foreread(["load", target, "--look-ahead=100KB", "--digest"]);
        command.arg("--report=json").arg(disk(self.directory.path(), CAPACITY)).args(arguments);
        command
    }

    /// A run that must succeed with the right digest and never exceed the capacity.
    #[track_caller]
    fn load_while(&self, arguments: &[&str], mut happens: impl FnMut(u32)) -> Value {
        let mut most = 0;
        let report = watch(&mut self.command(arguments), DEADLINE, |process| {
            happens(process);
            most = most.max(taken(self.directory.path()));
        });
        let report = report.json();
        assert_digests(&self.samples, &report);
        assert!(most <= CAPACITY, "{most} bytes of {CAPACITY}");
        report
    }

    /// The directory of the cache's files.
    fn place(&self) -> PathBuf {
        let root = cache_root(self.directory.path());
        let found = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
        found.into_iter().find(|path| path.is_dir()).expect("a cache")
    }

    fn segment(&self) -> PathBuf {
        self.place().join("00000.segment")
    }

    fn index(&self) -> PathBuf {
        self.place().join("index")
    }

    /// Runs until nothing is read from the origin. A run may end before all copies are written, so
    /// one run may not suffice.
    #[track_caller]
    fn fill(&self, what: &str) {
        let read = || number(&self.load_while(&["--compute-ms=3"], |_| ()), "/origin_requests");
        assert!((0..20).any(|_| read() == 0), "{what}: samples are not kept");
    }
}

/// Whether a process has a file open whose path ends so.
fn has_open(process: u32, ending: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    let mut paths = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    paths.any(|path| path.to_string_lossy().ends_with(ending))
}

/// Damage to an open cache, and its removal. The samples can be cached again.
#[test]
// semantics: DISK-9
fn damaged_files_during_a_run_cost_reads_only() {
    type Damage = fn(&Cache);
    let damages: [(&str, Damage); 4] = [
        ("truncated", |cache| {
            let segment = fs::File::options().write(true).open(cache.segment()).unwrap();
            segment.set_len(segment.metadata().unwrap().len() / 2).unwrap();
        }),
        ("overwritten", |cache| {
            let segment = fs::File::options().write(true).open(cache.segment()).unwrap();
            let noise = crate::support::content(1, segment.metadata().unwrap().len() as usize);
            segment.write_all_at(&noise, 0).unwrap();
        }),
        ("lost", |cache| {
            fs::remove_file(cache.segment()).unwrap();
            fs::remove_file(cache.index()).unwrap();
        }),
        // The run may create a file while its directory is being removed.
        ("removed with its directory", |cache| {
            while let Err(error) = fs::remove_dir_all(cache.directory.path()) {
                assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{error}");
            }
        }),
    ];
    let mut draw = TestRandom::new();
    for (what, damage) in damages {
        let rounds = times(1, 20);
        for round in 1..=rounds {
            let cache = Cache::filled();
            let when = Duration::from_millis(draw.below(150));
            let (mut opened, mut done) = (None, false);
            let arguments = ["--epochs=20", "--batch-size=10", "--compute-ms=8"];
            cache.load_while(&arguments, |process| {
                // Damage before the opening is an error of opening.
                if opened.is_none() && has_open(process, "/index") {
                    opened = Some(Instant::now());
                }
                if !done && opened.is_some_and(|opened| opened.elapsed() > when) {
                    damage(&cache);
                    done = true;
                }
            });
            assert!(done, "{what}: the run was over before anything happened");
            cache.fill(what);
            if round == rounds {
                println!("{what}: {rounds} times");
            }
        }
    }
}

#[test]
// semantics: DISK-20
fn directory_that_is_not_writable_is_named_with_the_remedy() {
    let cache = Cache::filled();
    let path = cache.directory.path().join("closed");
    fs::create_dir(&path).unwrap();
    let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    set(0o555);
    let target = cache.samples.path().to_str().unwrap().to_owned();
    let mut command = foreread(["load", &target, &disk(&path, CAPACITY)]);
    let elsewhere = tempfile::tempdir().unwrap();
    if fs::File::create(path.join("probe")).is_ok() {
        // Root writes everywhere, so the test switches to another user who may enter the
        // directories.
        fs::remove_file(path.join("probe")).unwrap();
        let program = elsewhere.path().join("foreread");
        copy_program(binary(), &program);
        for path in [elsewhere.path(), &*program, cache.samples.path(), cache.directory.path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        command = Command::new(&program);
        command.args(["load", &target, &disk(&path, CAPACITY)]).current_dir("/");
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
    }
    let line = run(&mut command).fails(1);
    set(0o755);
    for part in [path.to_str().unwrap(), "permission denied", "make the directory writable"] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
}
