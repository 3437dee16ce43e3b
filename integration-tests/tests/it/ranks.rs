//! Several ranks of one run, each in a separate process: their total reads, and the effect of one
//! rank's faults on the others.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use foreread_tier_testing::until;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use crate::support::{Finished, Samples, TestRandom, foreread, four_thousand, number, order};

/// A run of several ranks that meet in a separate directory.
pub struct RankJob {
    meeting: TempDir,
    pub world_size: u32,
    pub arguments: Vec<String>,
}

/// A running rank.
pub struct Rank {
    pub process: Child,
    out: NamedTempFile,
    err: NamedTempFile,
}

impl Rank {
    /// Starts a command, which logs its first batches with `RUST_LOG=foreread_cli=debug`.
    pub fn start(command: &mut Command) -> Self {
        let (out, err) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
        command.stdin(Stdio::null()).stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
        Self { process: command.spawn().unwrap(), out, err }
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has its first batch, which it logs.
    #[track_caller]
    pub fn wait_for_first_batch(&self) {
        self.wait_until_printed("first batch");
    }

    /// Waits until it has the first batch of this epoch.
    #[track_caller]
    pub fn wait_for_epoch(&self, epoch: u64) {
        self.wait_until_printed(&format!("first batch epoch={epoch} "));
    }

    /// Waits until it has its first batch, or has ended: it resumes at the end of the run.
    #[track_caller]
    pub fn wait_for_first_batch_or_end(&mut self) {
        until("a rank has its first batch", || {
            self.process.try_wait().unwrap().is_some() || self.printed().contains("first batch")
        });
    }

    /// Waits until it has written this to standard error.
    #[track_caller]
    pub fn wait_until_printed(&self, text: &str) {
        until(text, || self.printed().contains(text));
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.err.path()).unwrap()).into_owned()
    }

    /// The result of the rank, after it has ended.
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let mut status = None;
        until("a rank ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        let stdout = String::from_utf8_lossy(&fs::read(self.out.path()).unwrap()).into_owned();
        Finished { code: status.unwrap().code(), stdout, stderr: self.printed(), peak: 0 }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            println!("a rank has printed: {}", self.printed());
        }
    }
}

impl RankJob {
    pub fn new(world_size: u32, samples: &Samples, arguments: &[&str]) -> Self {
        let target = samples.path().to_str().unwrap();
        let all = [&["load", target, "--report", "json"][..], arguments].concat();
        let arguments = all.into_iter().map(str::to_owned).collect();
        Self { meeting: tempfile::tempdir().unwrap(), world_size, arguments }
    }

    pub fn command(&self, rank: u32) -> Command {
        let mut command = foreread(&self.arguments);
        command
            .env("FOREREAD_MEET", self.meeting.path())
            .env("RUST_LOG", "warn,foreread_cli=debug")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.world_size.to_string());
        command
    }

    pub fn start(&self, rank: u32) -> Rank {
        self.start_as(&mut self.command(rank))
    }

    pub fn start_as(&self, command: &mut Command) -> Rank {
        Rank::start(command)
    }

    pub fn all(&self) -> Vec<Rank> {
        (0..self.world_size).map(|rank| self.start(rank)).collect()
    }

    /// Every rank's report, by rank.
    #[track_caller]
    pub fn reports(&self) -> Vec<Value> {
        self.all().into_iter().map(|rank| rank.wait().json()).collect()
    }
}

fn sum(reports: &[Value], pointer: &str) -> u64 {
    reports.iter().map(|report| number(report, pointer)).sum()
}

/// The samples of `rank` in an epoch, computed independently of a run.
pub fn ids(samples: u64, epoch: u64, world_size: u32, rank: u32) -> Vec<u64> {
    let text = [samples, epoch, world_size.into(), rank.into()].map(|number| number.to_string());
    order(&["--samples", &text[0], "--epoch", &text[1], "--world-size", &text[2], "--rank", &text[3]])
}

/// Asserts that every rank delivered its order, byte for byte.
#[track_caller]
pub fn assert_digests(samples: &Samples, reports: &[Value]) {
    for (rank, report) in (0..).zip(reports) {
        assert_digests_of(samples, reports.len() as u32, rank, report);
    }
}

/// Asserts that a rank delivered its order.
#[track_caller]
pub fn assert_digests_of(samples: &Samples, world_size: u32, rank: u32, report: &Value) {
    for epoch in report["epochs"].as_array().unwrap() {
        let number_of = epoch["epoch"].as_u64().unwrap();
        let expected = ids(number(report, "/samples"), number_of, world_size, rank);
        assert_eq!(epoch["digest"], samples.digest(&expected), "rank {rank}, epoch {number_of}");
    }
}

const THREE_EPOCHS: [&str; 9] =
    ["--epochs", "3", "--batch-size", "32", "--memory", "120MiB", "--look-ahead", "16MiB", "--digest"];

#[test]
// semantics: RANK-1, RANK-3, RANK-39
fn ranks_of_a_node_share_one_memory() {
    let samples = four_thousand();
    let bytes = samples.bytes();
    let reports = RankJob::new(4, samples, &THREE_EPOCHS).reports();
    assert_digests(samples, &reports);
    let all = &reports[0]["all_ranks"];
    assert_eq!((number(all, "/ranks"), number(&reports[0], "/floor_origin_bytes")), (4, bytes));
    assert_eq!(number(&reports[1], "/agent/capacity"), 4 * (120 << 20));
    // A rank reads a sample itself if the host is late, as on a busy machine.
    let (direct, requests) = (sum(&reports, "/agent/direct_samples"), number(all, "/origin_requests"));
    assert!(
        requests >= 4000 && requests <= 4000 + direct && direct < 1000,
        "{requests}, {direct} of them direct"
    );
    assert!(number(all, "/origin_bytes") >= bytes);
    // Nothing was sent from rank to rank.
    assert_eq!(sum(&reports, "/peers/received"), 0);
    let shared = sum(&reports, "/epochs/2/reads/agent/samples");
    assert!(shared + direct > 3900, "{shared} of 4000 from the memory that they share");
}

/// Guards against this fault: the host's reads for other ranks after its own last batch were in no
/// report.
#[test]
// semantics: RANK-39
fn all_reads_of_the_memory_that_ranks_share_are_reported() {
    let samples = Samples::awkward(300, 20_000);
    let arguments = ["--epochs", "3", "--memory", "1MB", "--look-ahead", "500kB", "--batch-size", "8"];
    let job = RankJob::new(2, &samples, &arguments);
    let mut slow = job.command(1);
    slow.args(["--compute-ms", "40"]);
    let ranks = [job.start(0), job.start_as(&mut slow)];
    let reports = ranks.map(|rank| rank.wait().json());
    let all = number(&reports[0], "/all_ranks/origin_bytes");
    assert_eq!(all, sum(&reports, "/origin_bytes"));
    let (planned, bytes) = (number(&reports[0], "/planned_origin_bytes"), samples.bytes());
    // Ranks that are not in step share reads of different epochs.
    assert!(planned > 2 * bytes && all * 10 > planned * 9, "{all} of {planned}");
}

/// Guards against this fault: the limit of each rank did not hold for the memory that they share.
#[test]
// semantics: RANK-39
fn limits_of_ranks_hold_for_the_memory_that_they_share() {
    let samples = Samples::awkward(200, 20_000);
    let arguments = ["--epochs", "2", "--memory", "20MB", "--look-ahead", "1MB", "--origin-limit", "1MB/s"];
    let reports = RankJob::new(2, &samples, &arguments).reports();
    let seconds = reports[0]["epochs"][0]["seconds"].as_f64().unwrap();
    // 4 MB at 2 MB/s. The look-ahead and the beginning of a limit's time are not counted.
    assert!(seconds > 1.0, "{seconds} s");
}

#[test]
// semantics: RANK-39
fn rank_that_hosts_the_memory_of_its_node_may_die() {
    let samples = Samples::awkward(600, 20_000);
    let arguments =
        ["--epochs", "4", "--batch-size", "8", "--memory", "20MB", "--compute-ms", "20", "--digest"];
    let job = RankJob::new(3, &samples, &arguments);
    let mut ranks = job.all();
    ranks[1..].iter().for_each(|rank| rank.wait_for_epoch(1));
    ranks[0].signal("-KILL");
    let reports: Vec<Value> = ranks.drain(1..).map(|rank| rank.wait().json()).collect();
    for (rank, report) in (1..).zip(&reports) {
        assert!(number(report, "/agent/direct_samples") > 0, "{report}");
        for epoch in 0..4 {
            let expected = samples.digest(&ids(600, epoch, 3, rank));
            assert_eq!(report["epochs"][epoch as usize]["digest"], expected, "rank {rank}, epoch {epoch}");
        }
    }
}

/// Guards against this fault: ranks that had read all of their samples warned of the end of their
/// node's cache, because its host was done first.
#[test]
fn normal_end_of_a_run_prints_no_warning() {
    let samples = Samples::awkward(600, 2_000);
    let job = RankJob::new(4, &samples, &["--epochs", "2", "--memory", "1MiB"]);
    for ended in job.all().into_iter().map(Rank::wait) {
        assert!(ended.code == Some(0) && !ended.stderr.contains("WARN"), "{}", ended.stderr);
    }
}

/// Guards against this fault: only launchers' variables gave the number, and not the rendezvous.
#[test]
fn ranks_started_by_hand_count_their_nodes_memory() {
    let samples = Samples::awkward(60, 2_000);
    let mut job = RankJob::new(2, &samples, &["--memory", "1MiB"]);
    job.arguments.retain(|argument| !["--report", "json"].contains(&argument.as_str()));
    let printed = job.all().into_iter().map(|rank| rank.wait().ok()).collect::<String>();
    assert!(printed.contains("memory 1.0 MiB x 2 ranks on this node: 2.0 MiB"), "{printed}");
}

#[test]
// semantics: RANK-2
fn ranks_with_partial_caches_read_the_lower_bound() {
    let samples = four_thousand();
    let arguments = ["--epochs", "3", "--batch-size", "32", "--memory", "60MiB", "--look-ahead", "4MiB"];
    let reports = RankJob::new(2, samples, &arguments).reports();
    let (read, bytes) = (sum(&reports, "/origin_bytes"), samples.bytes());
    let floor = bytes + 2 * (bytes - 2 * (60 << 20));
    println!("{:.4} of the lower bound", read as f64 / floor as f64);
    assert!(read * 100 <= floor * 101, "{read} bytes, the floor is {floor}");
}

#[test]
// semantics: RANK-4
fn locality_dealing_keeps_each_steps_samples() {
    let samples = Samples::awkward(512, 2000);
    let arguments = ["--epochs", "3", "--batch-size", "8", "--memory", "10MB", "--ids", "--deal", "locality"];
    let reports = RankJob::new(4, &samples, &arguments).reports();
    let of = |report: &Value, epoch: u64| -> Vec<u64> {
        let ids = report["epochs"][epoch as usize]["ids"].as_array().unwrap();
        ids.iter().map(|id| id.as_u64().unwrap()).collect()
    };
    for epoch in 0..3 {
        let dealt: Vec<Vec<u64>> = reports.iter().map(|report| of(report, epoch)).collect();
        let arithmetic: Vec<Vec<u64>> = (0..4).map(|rank| ids(512, epoch, 4, rank)).collect();
        for step in 0..16 {
            let batch = |ids: &[Vec<u64>]| {
                let mut all: Vec<u64> = ids.iter().flat_map(|ids| ids[step * 8..][..8].to_vec()).collect();
                all.sort_unstable();
                all
            };
            assert_eq!(batch(&dealt), batch(&arithmetic), "epoch {epoch}, step {step}");
        }
    }
}

#[test]
// semantics: RANK-5, RANK-36
fn difference_between_ranks_is_reported_by_all() {
    let samples = Samples::awkward(64, 1000);
    let other = Samples::awkward(65, 1000);
    let cases: [(&Samples, &[&str], &str, &str); 5] = [
        (&samples, &["--seed", "7"], "authenticated", "seed is 7, rank 0's is 0"),
        (&samples, &["--batch-size", "9"], "authenticated", "batch size is 9, rank 0's is 64"),
        (&samples, &["--epochs", "3"], "authenticated", "number of epochs is 3, rank 0's is 2"),
        (&other, &[], "authenticated", "dataset is"),
        (&samples, &[], "sealed", "FOREREAD_PEER_WIRE is sealed, rank 0's is authenticated"),
    ];
    for (data, arguments, wire, printed) in cases {
        let job = RankJob::new(3, &samples, &[]);
        let mut odd = RankJob::new(3, data, arguments).command(1);
        odd.env("FOREREAD_MEET", job.meeting.path()).env("FOREREAD_PEER_WIRE", wire);
        let ranks = [job.start(0), job.start_as(&mut odd), job.start(2)];
        for rank in ranks {
            let line = rank.wait().fails(1);
            assert!(line.contains("rank 1 differs from rank 0") && line.contains(printed), "{line}");
        }
    }
}

/// Node-local directories are often named after their node, and a calibration names one of them.
#[test]
// semantics: RANK-5
fn ranks_with_differently_named_disks_plan_together() {
    let samples = Samples::awkward(200, 2000);
    let directory = tempfile::tempdir().unwrap();
    let disks: Vec<_> = (0..2).map(|rank| directory.path().join(format!("n{rank}"))).collect();
    let point = "parallelism = 8\nbytes_per_second = 5000000\nspread = 0.0\nsamples = 9\n";
    let slow = point.replace("5000000", "3000");
    // Slower than the origin, so the calibration decides whether it is used.
    let of_disk = |disk: &Path| {
        format!("[[disk]]\ndirectory = {disk:?}\nwrite_bytes_per_second = 3000\n[[disk.read]]\n{slow}")
    };
    let origin = format!(
        "version = 1\nmade = 0\n[origin]\nurl = {:?}\nsample_bytes = 2000\nlatency_seconds = 0.001\n\
         stream_bytes_per_second = 5000000\n[[origin.read]]\n{point}",
        samples.path()
    );
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let of_rank = |rank: usize| write(&format!("{rank}.toml"), origin.clone() + &of_disk(&disks[rank]));
    // One file for all with rank 0's directory, and one file per rank.
    for (files, kept) in [([of_rank(0), of_rank(0)], [false, true]), ([of_rank(0), of_rank(1)], [false; 2])] {
        disks.iter().for_each(|disk| fs::create_dir_all(disk).unwrap());
        let job = RankJob::new(
            2,
            &samples,
            &["--epochs", "2", "--batch-size", "8", "--memory", "50KB", "--digest", "--compute-ms", "10"],
        );
        let ranks: Vec<Rank> = (0..2)
            .map(|rank: u32| {
                let mut command = job.command(rank);
                let (disk, file) = (&disks[rank as usize], &files[rank as usize]);
                command.arg(format!("--disk={}=10MB", disk.display())).arg("--calibration").arg(file);
                job.start_as(&mut command)
            })
            .collect();
        let reports: Vec<Value> = ranks.into_iter().map(|rank| rank.wait().json()).collect();
        assert_digests(&samples, &reports);
        for (rank, is_kept) in kept.into_iter().enumerate() {
            let written = number(&reports[rank], "/disk/written");
            assert_eq!(written > 0, is_kept, "rank {rank}: {written} samples on its disk");
        }
        disks.iter().for_each(|disk| fs::remove_dir_all(disk).unwrap());
    }
}

#[test]
// semantics: RANK-5
fn missing_dataset_ends_all_ranks() {
    let samples = Samples::awkward(8, 1000);
    let mut job = RankJob::new(3, &samples, &[]);
    job.arguments[1] = "/nowhere/at/all".to_owned();
    for rank in job.all() {
        let line = rank.wait().fails(1);
        assert!(line.contains("/nowhere/at/all"), "{line}");
    }
}

/// Missing on one rank only, under the same name or another: all ranks name the rank and the
/// dataset.
#[test]
fn dataset_missing_on_one_rank_is_named_with_the_rank() {
    let samples = Samples::awkward(8, 1000);
    let job = RankJob::new(3, &samples, &[]);
    let mut odd = RankJob::new(3, &samples, &[]);
    odd.arguments[1] = "/nowhere/at/all".to_owned();
    let mut odd = odd.command(1);
    odd.env("FOREREAD_MEET", job.meeting.path());
    for (number, rank) in [job.start(0), job.start_as(&mut odd), job.start(2)].into_iter().enumerate() {
        let line = rank.wait().fails(1);
        assert!(line.contains("/nowhere/at/all") && line.contains("not found"), "{line}");
        assert!(number == 1 || line.contains("rank 1 ("), "{line}");
    }
}

#[test]
// semantics: RANK-16
fn killed_rank_costs_others_reads_only() {
    let mut draw = TestRandom::new();
    let samples = Samples::awkward(2000, 20_000);
    let arguments =
        ["--epochs", "3", "--batch-size", "8", "--memory", "100MB", "--digest", "--compute-ms", "40"];
    let job = RankJob::new(3, &samples, &arguments);
    let mut ranks = job.all();
    ranks[2].wait_for_first_batch();
    std::thread::sleep(Duration::from_millis(draw.below(1000)));
    ranks[2].process.kill().unwrap();
    ranks[2].process.wait().unwrap();
    let lost = ranks.pop().unwrap();
    drop(lost);
    let reports: Vec<Value> = ranks.into_iter().map(|rank| rank.wait().json()).collect();
    for (rank, report) in (0..).zip(&reports) {
        for epoch in report["epochs"].as_array().unwrap() {
            let of = epoch["epoch"].as_u64().unwrap();
            assert_eq!(epoch["digest"], samples.digest(&ids(2000, of, 3, rank)), "rank {rank}, epoch {of}");
        }
    }
    assert_eq!(number(&reports[0]["all_ranks"], "/ranks"), 2);
    // At most, each rank re-reads all samples of the lost rank in each remaining epoch.
    let (read, bytes) = (sum(&reports, "/origin_bytes"), samples.bytes());
    assert!(read <= bytes + 3 * bytes / 3, "{read} of {bytes}");
}

/// Its predecessor offered more memory than this process has.
#[test]
// semantics: RANK-16
fn restarted_rank_keeps_no_more_than_its_own_memory() {
    let samples = Samples::awkward(800, 20_000);
    let arguments = ["--epochs", "5", "--batch-size", "8", "--compute-ms", "20", "--digest", "--memory"];
    let job = RankJob::new(2, &samples, &[&arguments[..], &["60MB"]].concat());
    let less = RankJob::new(2, &samples, &[&arguments[..], &["0"]].concat());
    let mut ranks = job.all();
    ranks[1].wait_for_first_batch();
    ranks[1].process.kill().unwrap();
    ranks[1].process.wait().unwrap();
    drop(ranks.pop());
    let mut again = less.command(1);
    again.env("FOREREAD_MEET", job.meeting.path());
    let report = job.start_as(&mut again).wait().json();
    for epoch in report["epochs"].as_array().unwrap() {
        // Its predecessor kept 400 samples. Uses served from the look-ahead count here, too. On a
        // slow machine they are more.
        let kept = epoch["reads"]["memory"]["samples"].as_u64().unwrap_or(0);
        assert!(kept < 200, "{epoch}");
        let of = epoch["epoch"].as_u64().unwrap();
        assert_eq!(epoch["digest"], samples.digest(&ids(800, of, 2, 1)));
    }
    ranks.remove(0).wait().ok();
}

#[test]
fn stopped_rank_does_not_delay_others() {
    let samples = Samples::awkward(2000, 20_000);
    let arguments = ["--epochs", "3", "--batch-size", "8", "--memory", "100MB", "--compute-ms", "40"];
    let job = RankJob::new(3, &samples, &arguments);
    let ranks = job.all();
    ranks[1].wait_for_first_batch();
    ranks[1].signal("-STOP");
    // No other rank's trainer waits for its return.
    [0, 2].iter().for_each(|rank| ranks[*rank as usize].wait_for_epoch(2));
    ranks[1].signal("-CONT");
    ranks.into_iter().for_each(|rank| drop(rank.wait().ok()));
}

#[test]
// semantics: STATE-4, RANK-37
fn run_resumes_with_another_number_of_ranks() {
    let mut draw = TestRandom::new();
    let samples = Samples::awkward(600, 2000);
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let disk = format!("--disk={}=10MB", directory.path().join("disk").display());
    let arguments = [
        "--batch-size",
        "4",
        "--epochs",
        "3",
        "--ids",
        "--state",
        state.to_str().unwrap(),
        &disk,
        "--memory",
        "0",
        "--compute-ms",
        "6",
    ];
    let mut seen: Vec<Vec<u64>> = vec![Vec::new(); 3];
    let mut origin = 0;
    for (world_size, stops) in [(4, true), (2, true), (3, true), (1, false)] {
        let job = RankJob::new(world_size, &samples, &arguments);
        let mut ranks = job.all();
        if stops {
            // Before it, a signal ends a rank at once.
            ranks.iter_mut().for_each(Rank::wait_for_first_batch_or_end);
            std::thread::sleep(Duration::from_millis(draw.below(300)));
            for rank in &mut ranks {
                if rank.process.try_wait().unwrap().is_none() {
                    rank.signal("-TERM");
                }
            }
        }
        let mut of_ranks = Vec::new();
        for rank in ranks {
            let finished = rank.wait();
            assert!([Some(0), Some(143)].contains(&finished.code), "{}", finished.stderr);
            of_ranks.push(serde_json::from_str::<Value>(&finished.stdout).unwrap());
        }
        origin += sum(&of_ranks, "/origin_requests");
        let now: Value = serde_json::from_str(&fs::read_to_string(&state).unwrap()).unwrap();
        // The state is the lowest completed step. Steps beyond it are repeated.
        for (epoch, seen) in seen.iter_mut().enumerate() {
            let of = |report: &Value| -> Option<Vec<u64>> {
                let epochs = report["epochs"].as_array()?;
                let found = epochs.iter().find(|found| found["epoch"] == epoch)?;
                Some(found["ids"].as_array()?.iter().map(|id| id.as_u64().unwrap()).collect())
            };
            let lists: Vec<Vec<u64>> = of_ranks.iter().filter_map(of).collect();
            if lists.is_empty() {
                continue;
            }
            let complete = match now["epoch"].as_u64().unwrap() {
                at if at > epoch as u64 => u64::MAX,
                at if at == epoch as u64 => now["consumed"].as_u64().unwrap(),
                _ => 0,
            };
            let steps = lists.iter().map(Vec::len).max().unwrap().div_ceil(4);
            for step in 0..steps {
                for list in &lists {
                    let batch = list.iter().skip(step * 4).take(4);
                    let room = complete.saturating_sub(seen.len() as u64) as usize;
                    seen.extend(batch.take(room));
                }
            }
        }
        if !stops {
            break;
        }
    }
    for (epoch, seen) in seen.iter_mut().enumerate() {
        let padded = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(*seen, (0..600).collect::<Vec<u64>>(), "epoch {epoch}");
        assert!(padded - 600 <= 12, "epoch {epoch}: {padded} uses of 600 samples");
    }
    // The parts of the disks were used by the following run.
    assert!(origin <= 600 + 120, "{origin} requests for 600 samples");
}

#[test]
// semantics: RANK-31
fn unauthenticated_connections_are_refused() {
    let samples = Samples::awkward(1000, 20_000);
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let mut job =
        RankJob::new(2, &samples, &["--epochs", "3", "--batch-size", "8", "--compute-ms", "5", "--digest"]);
    job.arguments.extend(["--memory".to_owned(), "50MB".to_owned()]);
    let ranks: Vec<Rank> = (0..2)
        .map(|rank| {
            let mut command = job.command(rank);
            command
                .env("FOREREAD_MEET", format!("127.0.0.1:{port}"))
                .env("FOREREAD_TOKEN", "b7e1c95a03f64d2893ab5c17e0d68f42");
            job.start_as(&mut command)
        })
        .collect();
    let mut draw = TestRandom::new();
    let mut held = Vec::new();
    until("rank 0 listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    for _ in 0..300 {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let noise: Vec<u8> = (0..draw.below(200)).map(|_| draw.below(256) as u8).collect();
            // A refused client detects it when it writes.
            let _ = stream.write_all(&noise);
            held.push(stream);
        }
    }
    assert!(held.len() > 200, "{} connections without a token", held.len());
    let reports: Vec<Value> = ranks.into_iter().map(|rank| rank.wait().json()).collect();
    assert_digests(&samples, &reports);
    // Ranks that do not meet read 1,750. On a busy machine they meet late.
    let requests = sum(&reports, "/origin_requests");
    assert!((1000..1700).contains(&requests), "{requests}");
}
