//! `load --disk` on a cache that is damaged before or during a run: every run succeeds with the
//! right digest and keeps the capacity. Faults that need a mount are in `needs_mounts.rs`.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use foreread_tier_testing::{copy_program, until};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    DEADLINE, Samples, TestRandom, assert_digests, binary, cache_root, disk, foreread, load, number, run,
    taken, times, watch,
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
    fn load(&self, arguments: &[&str]) -> Value {
        self.load_while(arguments, |_| ())
    }

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
        let full = (0..20).any(|_| number(&self.load(&["--compute-ms=3"]), "/origin_requests") == 0);
        assert!(full, "{what}: samples are not kept");
    }

    /// After damage, the next run has the right digest, and its first epoch reads `lost` samples
    /// from the origin. Lost samples are cached again.
    #[track_caller]
    fn heals(&self, what: &str, lost: std::ops::RangeInclusive<u64>) {
        let read = number(&self.load(&[]), "/epochs/0/reads/origin/samples");
        assert!(lost.contains(&read), "{what}: {read} samples were read again, and not {lost:?}");
        self.fill(what);
    }
}

/// Whether a process has a file open whose path ends so.
fn has_open(process: u32, ending: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    let mut paths = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    paths.any(|path| path.to_string_lossy().ends_with(ending))
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Writes a header of another version, with the right checksum.
fn of_another_version(bytes: &mut [u8]) {
    bytes[8] += 1;
    let (text, sum) = bytes.split_last_chunk_mut::<4>().unwrap();
    *sum = crc32c::crc32c(text).to_le_bytes();
}

#[test]
// semantics: DISK-9
fn truncated_segment_costs_the_cut_samples() {
    let cache = Cache::filled();
    let whole = fs::metadata(cache.segment()).unwrap().len();
    // The last block has the end of a record, and zeros.
    for length in [whole - 4096, whole / 2, 4096, 4095, 1, 0] {
        fs::File::options().write(true).open(cache.segment()).unwrap().set_len(length).unwrap();
        let least = if length > whole / 2 { 1 } else { SAMPLES / 3 };
        cache.heals(&format!("a segment of {length} bytes"), least..=SAMPLES);
    }
}

#[test]
// semantics: DISK-9
fn files_of_another_version_are_replaced() {
    let cache = Cache::filled();
    edit(&cache.segment(), |bytes| of_another_version(&mut bytes[..4096]));
    cache.heals("a segment of another version", SAMPLES..=SAMPLES);
    edit(&cache.index(), |bytes| of_another_version(&mut bytes[..64]));
    cache.heals("an index of another version", SAMPLES..=SAMPLES);
}

#[test]
// semantics: DISK-9
fn zeroed_segment_header_frees_its_space() {
    let cache = Cache::filled();
    edit(&cache.segment(), |bytes| bytes[..4096].fill(0));
    cache.heals("a segment whose header is zeros", SAMPLES..=SAMPLES);
    edit(&cache.segment(), |bytes| bytes[..4096].fill(0));
    edit(&cache.index(), |bytes| bytes[..64].fill(0));
    let path = cache.directory.path().to_str().unwrap();
    let printed = run(&mut foreread(["cache", "clean", path, "--all"])).ok();
    assert!(printed.starts_with("removed ") && !printed.contains("kept "), "{printed}");
    let left = taken(cache.directory.path());
    assert!(left <= 2 * 4096, "{left} bytes: more than the two directories");
}

#[test]
// semantics: DISK-9
fn lost_file_costs_its_samples() {
    let cache = Cache::filled();
    fs::remove_file(cache.segment()).unwrap();
    cache.heals("a lost segment", SAMPLES..=SAMPLES);
    fs::remove_file(cache.index()).unwrap();
    cache.heals("a lost index", SAMPLES..=SAMPLES);
    fs::remove_file(cache.place().join("lock")).unwrap();
    cache.heals("a lost lock", 0..=0);
    fs::remove_dir_all(cache_root(cache.directory.path())).unwrap();
    cache.heals("a lost cache", SAMPLES..=SAMPLES);
    fs::remove_dir_all(cache.directory.path()).unwrap();
    cache.heals("a lost directory", SAMPLES..=SAMPLES);
}

#[test]
// semantics: DISK-9
fn garbled_index_costs_its_samples() {
    let cache = Cache::filled();
    let mut draw = TestRandom::new();
    for _ in 0..times(3, 60) {
        // Everything after the middle of an entry is changed.
        let from = draw.below(64 + 32 * SAMPLES) as usize;
        edit(&cache.index(), |bytes| {
            bytes.iter_mut().skip(from).for_each(|byte| *byte = draw.below(256) as u8)
        });
        cache.heals(&format!("an index of noise from byte {from} on"), 0..=SAMPLES);
    }
    edit(&cache.index(), |bytes| bytes[..64].fill(0));
    cache.heals("an index whose header is zeros", SAMPLES..=SAMPLES);
    fs::write(cache.index(), "").unwrap();
    cache.heals("an empty index", SAMPLES..=SAMPLES);
    edit(&cache.index(), |bytes| bytes.truncate(64 + 32 * 10 + 5));
    cache.heals("an index that ends early", 1..=SAMPLES);
}

/// Damage to an open cache: every damage of the tests above, and its removal.
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
                // What is damaged before it is open is an error of opening.
                if opened.is_none() && has_open(process, "/index") {
                    opened = Some(Instant::now());
                }
                if !done && opened.is_some_and(|opened| opened.elapsed() > when) {
                    damage(&cache);
                    done = true;
                }
            });
            assert!(done, "{what}: the run was over before anything happened");
            cache.heals(what, 0..=SAMPLES);
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

/// Both have the right digest. The first fills the directory, the second only reads it.
#[test]
// semantics: DISK-19
fn two_runs_on_one_directory_share_it() {
    let (samples, directory) = (Samples::awkward(4 * SAMPLES, 20_000), tempfile::tempdir().unwrap());
    // Room for about half of the dataset.
    let (room, target) = (4_500_000, samples.path().to_str().unwrap());
    let own = disk(directory.path(), room);
    let run_of = |epochs: &str| {
        let mut command = foreread(["load", target, "--look-ahead=100KB", "--digest", "--report=json"]);
        command.args([epochs, "--compute-ms=30", &own]);
        command
    };
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut first =
        run_of("--epochs=12").stdout(out.reopen().unwrap()).stderr(Stdio::inherit()).spawn().unwrap();
    until("the first run fills half of its room", || taken(directory.path()) >= room / 2);
    let mut most = 0;
    let mut alone = true;
    let second = watch(&mut run_of("--epochs=2"), DEADLINE, |_| {
        most = most.max(taken(directory.path()));
        alone &= first.try_wait().unwrap().is_some();
    });
    assert!(!alone, "the first run was over before the second began");
    let second = second.json();
    assert!(first.wait().unwrap().success());
    let first: Value = serde_json::from_slice(&fs::read(out.path()).unwrap()).unwrap();
    assert_digests(&samples, &first);
    assert_digests(&samples, &second);
    assert!(number(&second, "/epochs/0/reads/disk/samples") > 0, "the second run reads what the first keeps");
    most = most.max(taken(directory.path()));
    assert!(most <= room, "{most} bytes of {room}");
    let third = load(&samples, &["--epochs=1", "--digest", &own]);
    assert_digests(&samples, &third);
    assert!(number(&third, "/epochs/0/reads/disk/samples") > SAMPLES, "what the first kept is there");
}
