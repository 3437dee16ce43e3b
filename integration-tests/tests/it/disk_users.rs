//! One `--disk` directory for several users: each has a separate cache.
//!
//! The tests switch from root to two other users. They report that they are skipped if not run as
//! root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use foreread_tier_testing::copy_program;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Samples, assert_digests, binary, cache_root, clean, disk, number, run};

const SAMPLES: u64 = 60;

/// A dataset, a directory and the command, accessible to all users.
struct Scratch {
    samples: Samples,
    directory: TempDir,
    program: PathBuf,
}

impl Scratch {
    /// `None` where this process cannot become another user.
    fn new() -> Option<Self> {
        if cache_root(Path::new("")) != Path::new("foreread-cache-0") {
            println!("skipped: only root can become other users");
            return None;
        }
        let (samples, directory) = (Samples::awkward(SAMPLES, 20_000), tempfile::tempdir().unwrap());
        let program = directory.path().join("foreread");
        copy_program(binary(), &program);
        for (path, mode) in [(samples.path(), 0o755), (directory.path(), 0o1777), (&program, 0o755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        Some(Self { samples, directory, program })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn command(&self, user: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir("/").uid(user).gid(user);
        clean(&mut command);
        command
    }

    /// Runs as a user until the whole dataset is cached. Returns the last report.
    #[track_caller]
    fn fill(&self, user: u32, disk: &str) -> Value {
        let target = self.samples.path().to_str().unwrap();
        let arguments = ["load", target, "--digest", "--report=json", "--epochs=2", "--compute-ms=3", disk];
        for _ in 0..20 {
            let report = run(&mut self.command(user, &arguments)).json();
            assert_digests(&self.samples, &report);
            if number(&report, "/origin_requests") == 0 {
                return report;
            }
        }
        panic!("user {user}: samples are not kept");
    }
}

#[test]
// semantics: DISK-12
fn users_of_one_directory_have_separate_caches() {
    let Some(scratch) = Scratch::new() else { return };
    let disk = disk(scratch.path(), 20_000_000);
    for user in [1001, 1002] {
        scratch.fill(user, &disk);
        let own = scratch.path().join(format!("foreread-cache-{user}"));
        let metadata = fs::metadata(&own).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (user, 0o700));
    }
    let list =
        |user| run(&mut scratch.command(user, &["cache", "list", scratch.path().to_str().unwrap()])).ok();
    for (user, other) in [(1001, 1002), (1002, 1001)] {
        assert_eq!(list(user).lines().count(), 2, "{}", list(user));
        let clean = ["cache", "clean", scratch.path().to_str().unwrap(), "--all"];
        assert!(run(&mut scratch.command(user, &clean)).ok().starts_with("removed "));
        assert_eq!(list(user).lines().count(), 1);
        assert_eq!(list(other).lines().count(), if other == 1002 { 2 } else { 1 }, "the other's stays");
    }
}

/// Each rank's part is in its user's cache.
#[test]
// semantics: DISK-12
fn ranks_of_two_users_share_a_directory() {
    let Some(scratch) = Scratch::new() else { return };
    let (target, disk) = (scratch.samples.path().to_str().unwrap(), disk(scratch.path(), 20_000_000));
    for user in [1001, 1002] {
        for rank in ["0", "1"] {
            let mut command = scratch.command(user, &["load", target, "--epochs=1", "--peers=off", &disk]);
            command.envs([("RANK", rank), ("WORLD_SIZE", "2")]);
            command.envs([("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", "2")]);
            run(&mut command).ok();
        }
        assert!(scratch.path().join(format!("foreread-cache-{user}/rank-1")).is_dir());
    }
}

/// Another user has put other data with the same names in the place of this user's cache.
#[test]
// semantics: DISK-13
fn planted_cache_delivers_nothing() {
    let Some(scratch) = Scratch::new() else { return };
    let disk = disk(scratch.path(), 20_000_000);
    scratch.fill(1001, &disk);
    let own = scratch.path().join("foreread-cache-1001");
    let planted = scratch.path().join("foreread-cache-1002");
    fs::rename(&own, &planted).unwrap();
    let target = scratch.samples.path().to_str().unwrap();
    let mut command =
        scratch.command(1002, &["load", target, "--digest", "--report=json", "--epochs=1", &disk]);
    let finished = run(&mut command);
    let warnings = finished.stderr.lines().filter(|line| line.contains("belongs to user 1001")).count();
    assert_eq!(warnings, 1, "{}", finished.stderr);
    let report = finished.json();
    assert_digests(&scratch.samples, &report);
    assert_eq!(number(&report, "/epochs/0/reads/origin/samples"), SAMPLES);
    assert!(scratch.path().join("foreread-cache-1002.1").is_dir());
}

/// An administrator fills it, and users without write permission read it.
#[test]
// semantics: DISK-14
fn shared_cache_serves_other_users() {
    let Some(scratch) = Scratch::new() else { return };
    let disk = format!("{},shared", disk(scratch.path(), 20_000_000));
    scratch.fill(0, &disk);
    let target = scratch.samples.path().to_str().unwrap();
    let mut command =
        scratch.command(1001, &["load", target, "--digest", "--report=json", "--epochs=1", &disk]);
    let finished = run(&mut command);
    assert!(finished.stderr.contains("only read"), "{}", finished.stderr);
    let report = finished.json();
    assert_digests(&scratch.samples, &report);
    assert_eq!(number(&report, "/epochs/0/reads/disk/samples"), SAMPLES);
}
