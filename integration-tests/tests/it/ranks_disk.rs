//! The disks and the catalogs of ranks that share the cache of their node, without an agent.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use foreread_tier_testing::until;
use serde_json::Value;

use crate::disk::listed;
use crate::ranks::{RankJob, assert_digests, ids};
use crate::support::{Samples, disk, load, number};

/// Memory for almost nothing, so that samples come from storage or from the disk.
const FEW: [&str; 8] =
    ["--memory", "100kB", "--look-ahead", "200kB", "--batch-size", "8", "--compute-ms", "2"];

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&FEW[..], more].concat()
}

/// On a busy machine, a rank may take the host for silent, and read some samples by itself.
const BY_THEMSELVES: u64 = 40;

fn sum(reports: &[Value], pointer: &str) -> u64 {
    reports.iter().map(|report| number(report, pointer)).sum()
}

#[test]
// semantics: RANK-37, RANK-39
fn ranks_of_a_node_share_its_disk_and_later_runs_find_it() {
    let samples = Samples::awkward(400, 10_000);
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(&directory.path().join("disk"), 50_000_000);
    let run = |ranks: u32, more: &[&str]| {
        let more = [more, &["--epochs", "3", "--digest", &disk]].concat();
        RankJob::new(ranks, &samples, &arguments(&more)).reports()
    };
    let first = run(3, &[]);
    assert_digests(&samples, &first);
    let (read, written) = (sum(&first, "/origin_requests"), number(&first[0], "/disk/written"));
    assert!((400..=400 + BY_THEMSELVES).contains(&read), "{read}");
    assert!((400 - BY_THEMSELVES..=400).contains(&written), "{written}");
    assert!(first[1].get("disk").is_none() && sum(&first, "/peers/received") == 0);
    // With any number of ranks, and without agents.
    for reports in [run(2, &[]), run(3, &["--agent", "off"]), run(4, &[])] {
        assert_digests(&samples, &reports);
        let (read, bound) = (sum(&reports, "/origin_requests"), number(&reports[0], "/floor_origin_bytes"));
        assert!(read <= BY_THEMSELVES && bound <= samples.bytes() / 10, "{read} reads, bound {bound}");
    }
    let alone = load(&samples, &["--digest", "--memory", "0", &disk]);
    crate::support::assert_digests(&samples, &alone);
    assert!(number(&alone, "/origin_requests") <= BY_THEMSELVES);
}

#[test]
// semantics: RANK-39
fn partial_disk_of_ranks_reads_the_lower_bound() {
    let samples = Samples::awkward(400, 10_000);
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(&directory.path().join("disk"), 2_500_000);
    let reports = RankJob::new(2, &samples, &arguments(&["--epochs", "4", "--digest", &disk])).reports();
    assert_digests(&samples, &reports);
    let (read, planned) = (sum(&reports, "/origin_bytes"), number(&reports[0], "/planned_origin_bytes"));
    let (held, bytes) = (number(&reports[0], "/disk/held_bytes"), samples.bytes());
    assert!(held > bytes / 2, "{held} of {bytes}");
    assert!(read <= planned + planned / 10, "{read} bytes, {planned} planned");
}

#[test]
// semantics: RANK-39, DISK-1
fn host_of_the_disk_may_die_and_the_next_run_finds_it() {
    let samples = Samples::awkward(400, 10_000);
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(&directory.path().join("disk"), 50_000_000);
    let more = arguments(&["--epochs", "5", "--digest", &disk]);
    let job = RankJob::new(3, &samples, &more);
    let mut ranks = job.all();
    until("half of the samples are on the disk", || listed(&directory.path().join("disk")) >= 200);
    ranks[0].signal("-KILL");
    let reports: Vec<Value> = ranks.drain(1..).map(|rank| rank.wait().json()).collect();
    for (rank, report) in (1..).zip(&reports) {
        for epoch in 0..5 {
            let expected = samples.digest(&ids(400, epoch, 3, rank));
            assert_eq!(report["epochs"][epoch as usize]["digest"], expected, "rank {rank}, epoch {epoch}");
        }
    }
    let again = RankJob::new(2, &samples, &more).reports();
    assert_digests(&samples, &again);
    let read = sum(&again, "/origin_requests");
    assert!(read < 300, "{read} of 400 samples were not on the disk");
}

#[test]
// semantics: DISK-1
fn unusable_disk_of_ranks_is_one_line_on_each() {
    let samples = Samples::awkward(20, 1000);
    let none = disk(Path::new("/no/such/parent/cache"), 50_000_000);
    for rank in RankJob::new(2, &samples, &["--memory", "1MB", &none]).all() {
        let line = rank.wait().fails(1);
        assert!(line.contains("/no/such/parent/cache"), "{line}");
    }
}

/// Two jobs with one directory: the second one reads the samples of the first, and writes nothing.
#[test]
// semantics: RANK-39
fn disk_that_another_job_owns_is_only_read() {
    let samples = Samples::awkward(400, 10_000);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let disk = disk(&path, 50_000_000);
    RankJob::new(2, &samples, &arguments(&["--epochs", "2", &disk])).reports();
    let owner = RankJob::new(2, &samples, &arguments(&["--epochs", "1000", &disk]));
    let ranks = owner.all();
    ranks[1].wait_for_first_batch();
    let second = RankJob::new(2, &samples, &arguments(&["--epochs", "2", "--digest", &disk]));
    let finished: Vec<_> = second.all().into_iter().map(|rank| rank.wait()).collect();
    assert!(finished[0].stderr.contains("the disk cache is only read"), "{}", finished[0].stderr);
    let reports: Vec<Value> = finished.into_iter().map(|finished| finished.json()).collect();
    assert_digests(&samples, &reports);
    assert!(sum(&reports, "/origin_requests") <= BY_THEMSELVES);
    assert_eq!(number(&reports[0], "/disk/written"), 0);
    drop(ranks);
    assert!(fs::read_dir(&path).unwrap().count() > 0);
}

/// Guards against this fault: samples that are larger than the disk's queue never got there.
#[test]
// semantics: RANK-39
fn sample_larger_than_the_write_queue_reaches_the_disk() {
    let samples = Samples::awkward(3, 100);
    for path in samples.in_order() {
        fs::write(path, vec![7; 35 << 20]).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = disk(&directory.path().join("disk"), 300_000_000);
    let more = ["--memory", "0", "--look-ahead", "40MB", "--batch-size", "1", "--epochs", "3", &disk];
    let first = RankJob::new(2, &samples, &more).reports();
    assert!(number(&first[0], "/disk/written") > 0, "{}", first[0]);
}

/// Guards against this fault: the directory was opened for the training data first, which removed
/// the validation data of the run before.
#[test]
// semantics: RANK-37
fn small_disk_keeps_the_samples_of_both_datasets() {
    let (train, validation) = (Samples::awkward(200, 10_000), Samples::awkward(200, 10_000));
    let directory = tempfile::tempdir().unwrap();
    let room = train.bytes() + train.bytes() / 4;
    let disk = disk(&directory.path().join("disk"), room);
    let target = validation.path().to_str().unwrap();
    let more = arguments(&["--epochs", "2", "--validate", target, &disk]);
    let run = || RankJob::new(2, &train, &more).reports();
    let (first, second) = (run(), run());
    let (held, before) = (number(&second[0], "/disk/held_bytes"), number(&first[0], "/disk/held_bytes"));
    assert!(held >= before && before > room / 2, "{held} {before} of {room}");
    let written = number(&second[0], "/disk/written");
    assert!(written < 10, "{written} samples were written again");
}

/// Guards against these faults: a directory in a path that is not UTF-8 ended the ranks. `.` was
/// the same directory for ranks in different ones.
#[test]
// semantics: RANK-39
fn relative_directories_of_disks_are_compared_as_whole_paths() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let samples = Samples::awkward(100, 10_000);
    let directory = tempfile::tempdir().unwrap();
    let (odd, other) = (directory.path().join(OsStr::from_bytes(b"odd\xff")), directory.path().join("b"));
    for place in [&odd, &other] {
        fs::create_dir(place).unwrap();
    }
    let run = |places: [&Path; 2]| -> Vec<Value> {
        let job = RankJob::new(2, &samples, &arguments(&["--epochs", "2", "--digest", "--disk=.=50MB"]));
        let start = |rank: u32| job.start_as(job.command(rank).current_dir(places[rank as usize]));
        [0, 1].map(start).map(|rank| rank.wait().json()).into()
    };
    let shared = run([&odd, &odd]);
    assert_digests(&samples, &shared);
    assert!(number(&shared[0], "/disk/written") >= 80 && shared[1].get("disk").is_none());
    let own = run([&odd, &other]);
    assert_digests(&samples, &own);
    assert!(own[1].get("disk").is_some(), "each rank has its own directory");
    // Copies of whole files are no matter of ranks.
    assert!(!odd.join("foreread-files-0").exists());
}

/// The files in memory with catalogs that a process has open, by their inodes.
fn catalogs_in_memory(process: u32) -> Vec<u64> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let is_catalog = |link: &Path| {
        fs::read_link(link).is_ok_and(|name| name.to_string_lossy().contains("memfd:foreread-catalog"))
    };
    let links = descriptors.map(|entry| entry.path()).filter(|link| is_catalog(link));
    let mut inodes: Vec<u64> = links.filter_map(|link| Some(fs::metadata(link).ok()?.ino())).collect();
    inodes.dedup();
    inodes
}

#[test]
// semantics: RANK-25
fn ranks_of_a_node_have_one_catalog_in_memory() {
    let samples = Samples::awkward(100, 1000);
    let more = arguments(&["--epochs", "1000", "--validate", samples.path().to_str().unwrap()]);
    let job = RankJob::new(3, &samples, &more);
    let ranks = job.all();
    ranks.iter().for_each(crate::ranks::Rank::wait_for_first_batch);
    let of_ranks: Vec<Vec<u64>> = ranks.iter().map(|rank| catalogs_in_memory(rank.process.id())).collect();
    // Training and validation data are the same dataset here.
    assert_eq!(of_ranks[0].len(), 1);
    assert!(of_ranks.iter().all(|inodes| *inodes == of_ranks[0]), "{of_ranks:?}");
}
