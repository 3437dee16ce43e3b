//! Disk tiers on file systems that are full or read-only, mounted in a mount namespace that ends
//! with the test.
//!
//! `FOREREAD_TEST_MOUNTS` holds the words that make such a namespace, to be put before a command.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{DEADLINE, Finished, Samples, assert_digests, binary, clean, needed, number, watch};

/// A dataset of 20 MB, a directory `mounted` as mount point, and the prefix of commands.
pub struct MountedDataset {
    pub samples: Samples,
    directory: TempDir,
    words: String,
}

impl MountedDataset {
    pub fn within(words: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("mounted")).unwrap();
        Self { samples: Samples::awkward(400, 50_000), directory, words }
    }

    /// Runs a shell script in a new namespace, in the parent of `mounted`. Its function `load` runs
    /// over the dataset with a disk tier of 1 GB there, or of `$DISK`.
    #[track_caller]
    pub fn run(&self, script: &str) -> Finished {
        let load = r#"load() { "$0" load "$DATASET" --digest --report=json --look-ahead=1MB --disk=${DISK:-mounted=1GB} "$@"; }"#;
        let words: Vec<&str> = self.words.split(' ').collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["sh", "-c", &format!("set -e\n{load}\n{script}")]).arg(binary());
        clean(&mut command).env("DATASET", self.samples.path()).current_dir(self.directory.path());
        watch(&mut command, DEADLINE, |_| ())
    }

    /// The reports that a script's runs printed, with the right digests.
    #[track_caller]
    pub fn reports(&self, script: &str) -> Vec<Value> {
        self.reports_and_warnings(script).0
    }

    /// The same, and the warnings that they printed about `mounted`, except that the disk tier may
    /// take more than its small file system has.
    #[track_caller]
    pub fn reports_and_warnings(&self, script: &str) -> (Vec<Value>, Vec<String>) {
        let finished = self.run(script);
        let is_beyond = |line: &str| line.contains("but its file system has only");
        let about = |line: &&str| line.contains("WARN") && line.contains("mounted") && !is_beyond(line);
        let warnings = finished.stderr.lines().filter(about).map(str::to_owned).collect();
        let printed = finished.ok();
        let reports: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        reports.iter().for_each(|report| assert_digests(&self.samples, report));
        (reports, warnings)
    }
}

fn place() -> MountedDataset {
    MountedDataset::within(needed("FOREREAD_TEST_MOUNTS"))
}

#[test]
#[ignore = "needs the right to mount"]
// semantics: DISK-10
fn full_disk_keeps_the_samples_that_fit() {
    let place = place();
    let reports = place.reports(
        "mount -t tmpfs -o size=8m tmpfs mounted
         load --epochs=3
         load --epochs=1",
    );
    let [cold, warm] = &reports[..] else { panic!("{reports:?}") };
    let kept = number(cold, "/epochs/2/reads/disk/bytes");
    assert!(kept > 2 << 20, "only {kept} bytes of 8 MiB were used");
    assert!(number(warm, "/epochs/0/reads/disk/bytes") > 2 << 20, "what was kept is there for the next run");
}

/// Other programs fill the disk during the run.
#[test]
#[ignore = "needs the right to mount"]
// semantics: DISK-10
fn disk_filled_by_others_costs_reads_only() {
    let place = place();
    let reports = place.reports(
        "mount -t tmpfs -o size=40m tmpfs mounted
         load --epochs=4 --batch-size=8 --compute-ms=40 &
         until [ \"$(du -sk mounted | cut -f1)\" -gt 1000 ]; do sleep 0.01; done
         head -c 40m /dev/zero >mounted/others 2>/dev/null || true
         wait $!
         rm mounted/others
         load --epochs=3 --batch-size=8 --compute-ms=20",
    );
    let [filled, free] = &reports[..] else { panic!("{reports:?}") };
    let read = number(filled, "/epochs/3/reads/origin/samples");
    assert!(read > 0, "the disk was full before the run was over, and yet all was kept");
    assert!(number(filled, "/epochs/3/reads/disk/samples") > 0, "what was kept before is read");
    // The next run uses the room again.
    assert_eq!(number(free, "/epochs/2/reads/disk/samples"), 400);
}

#[test]
#[ignore = "needs the right to mount"]
// semantics: DISK-11
fn read_only_cache_of_one_rank_serves_a_run_of_two() {
    let place = place();
    let run = |peers: &str| {
        let script = "mount -t tmpfs -o size=40m tmpfs mounted
         load --epochs=2 --compute-ms=3 >/dev/null
         mount -o remount,ro mounted
         mkdir meet
         export FOREREAD_MEET=$PWD/meet WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
         RANK=1 LOCAL_RANK=1 load --epochs=1 --peers=PEERS >second &
         RANK=0 LOCAL_RANK=0 load --epochs=1 --peers=PEERS >first
         wait $!
         cat first second
         rm -r meet
         umount mounted";
        let finished = place.run(&script.replace("PEERS", peers));
        let printed = finished.stderr.clone();
        let reports: Vec<Value> =
            finished.ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(reports[0]["epochs"][0]["digest"].as_str().map(str::len), Some(64));
        (reports, printed)
    };
    // One rank reads it for both.
    let (reports, printed) = run("auto");
    assert!(printed.contains("the disk cache is only read"), "{printed}");
    let read: u64 = reports.iter().map(|report| number(report, "/origin_requests")).sum();
    assert_eq!(read, 0, "samples that the first run has kept are read again");
    // Each rank has a part of it. That of the second one does not exist.
    let (reports, printed) = run("off");
    assert!(printed.contains("continues without this disk cache"), "{printed}");
    assert!(number(&reports[0], "/epochs/0/reads/disk/samples") > 0, "rank 0 reads what is there");
}

#[test]
#[ignore = "needs the right to mount"]
// semantics: DISK-4
fn second_mount_point_keeps_the_cache() {
    let place = place();
    let reports = place.reports(
        "mkdir bound
         mount --bind \"$DATASET\" bound
         load --epochs=2
         DATASET=bound
         load --epochs=1",
    );
    let [first, bound] = &reports[..] else { panic!("{reports:?}") };
    let kept = number(first, "/epochs/1/reads/disk/samples");
    let found = number(bound, "/epochs/0/reads/disk/samples");
    assert!(kept > 0 && found >= kept, "{found} of {kept} were found by another path");
}

/// The copies differ in inodes and change times alone.
#[test]
#[ignore = "needs the right to mount"]
// semantics: FAIL-2
fn catalog_of_a_copy_at_one_path_of_another_machine_is_read() {
    let place = place();
    let copy = "cp -a \"$DATASET\" copy
         \"$0\" index copy -o copy.foreread >index.log
         mv copy first
         cp -a first copy
         DATASET=copy.foreread";
    let line = place.run(&format!("{copy}\nload --epochs=1")).fails(1);
    assert!(line.contains("its inode or change time is not the indexed one"), "{line}");
    place.reports(&format!(
        "rm -r first copy*
         {copy}
         echo 0123456789abcdef0123456789abcdef >id
         for id in /etc/machine-id /proc/sys/kernel/random/boot_id; do
             if [ -e $id ]; then mount --bind id $id; fi
         done
         load --epochs=1"
    ));
}

/// The dynamic linker there does not find the library, and would print an error for each program.
#[test]
#[ignore = "needs the right to mount"]
// semantics: FILES-5
fn programs_after_chroot_start_without_errors() {
    let place = place();
    let script = "mkdir -p jail/data disk
        for top in /usr /bin /lib /lib64; do
            [ ! -e $top ] || { mkdir jail$top; mount --bind $(readlink -f $top) jail$top; }
        done
        mount --bind \"$DATASET\" jail/data
        first=$(cd \"$DATASET\"; find . -type f | head -1)
        \"$0\" run --report off --root \"$DATASET\" --disk disk=100MB -- chroot jail sh -c \"
            wc -c < data/$first; cat data/$first | wc -c\" > out 2> errors
        cat errors; sort -u out | wc -l";
    assert_eq!(place.run(script).ok(), "1\n");
}
