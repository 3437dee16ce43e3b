//! Datasets of the command on a file system that behaves like Lustre (`foreread-lustre-testing`):
//! silent, slow and evicting servers, and the reports about them.
//!
//! The command reads in other processes. So a thread that waits for a hung server ends with the
//! mount, and not with this process.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use foreread_lustre_testing::{EvictedFrom, LayoutSpec, Recall, StandIn, StandInOptions};
use foreread_tier_testing::until;
use rustix::io::Errno;
use serde_json::Value;

use super::mount;
use crate::ranks::{Rank, RankJob, assert_digests};
use crate::support::{Samples, foreread, number, run};

/// The number of OSTs.
const OSTS: u32 = 16;

/// Files of `bytes` bytes, one on each OST in turn.
fn files(count: u64, bytes: u64) -> Samples {
    let samples = Samples::new();
    for number in 0..count {
        let content = crate::support::content(number, bytes as usize);
        samples.add(&format!("{:02}/{number:05}", number % 10), &content);
    }
    samples
}

/// The file's number, which decides its OST.
fn number_of(path: &str) -> u32 {
    path.rsplit('/').next().and_then(|name| name.parse().ok()).unwrap_or(0)
}

fn by_number(options: StandInOptions) -> StandInOptions {
    options.with_layout(|path, _| LayoutSpec::on([number_of(path) % OSTS], 1 << 20))
}

fn job(ranks: u32, stand_in: &StandIn, samples: &Samples, arguments: &[&str]) -> RankJob {
    let mut job = RankJob::new(ranks, samples, arguments);
    job.arguments[1] = stand_in.root().to_str().unwrap().to_owned();
    job
}

/// The threads of all processes that wait for an OST, for each process and OST.
fn waiting(stand_in: &StandIn, ranks: &[Rank], osts: [u32; 2]) -> Vec<usize> {
    let of_rank = |rank: &Rank| {
        let waiting = stand_in.waiting_threads_by_ost(rank.process.id());
        osts.map(|ost| waiting[ost as usize])
    };
    ranks.iter().flat_map(of_rank).collect()
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-6
fn index_on_lustre_names_servers_and_changes_nothing_else() {
    let samples = files(160, 5000);
    let stand_in = mount(samples.path(), by_number(StandInOptions::new(OSTS)));
    let directory = tempfile::tempdir().unwrap();
    let catalog = directory.path().join("x.foreread");
    let index = |target: &Path| {
        let target = target.to_str().unwrap();
        run(&mut foreread(["index", target, "--report", "json", "-o", catalog.to_str().unwrap()])).json()
    };
    let report = index(stand_in.root());
    let servers = report["storage"]["servers"].as_array().unwrap();
    assert_eq!(servers.len(), OSTS as usize, "{report}");
    assert!(servers.iter().all(|server| server["samples"] == 10), "{report}");
    assert_eq!(report["storage"]["metadata_requests"], 320);
    // The same files at the same place, without layouts.
    let options = StandInOptions::new(OSTS).with_layout(|_, _| LayoutSpec::none());
    let plain = index(StandIn::mount(samples.path(), options).unwrap().root());
    assert_eq!((&report["fingerprint"], &plain["storage"]), (&plain["fingerprint"], &Value::Null));
    let text = run(&mut foreread(["plan", stand_in.root().to_str().unwrap(), "--memory", "1MB"])).ok();
    assert!(text.contains("servers: 16 hold") && text.contains("metadata: 320 requests"), "{text}");
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-6
fn layout_of_ceph_is_logged() {
    let samples = files(4, 5000);
    let layout = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs.data";
    let stand_in = mount(samples.path(), StandInOptions::new(OSTS).as_ceph(layout));
    let catalog = samples.path().join(".x.foreread");
    let target = stand_in.root().to_str().unwrap();
    let indexed = run(&mut foreread(["-v", "index", target, "-o", catalog.to_str().unwrap()]));
    assert!(
        indexed.stderr.contains(&format!("is on CephFS, with the layout {layout}")),
        "{}",
        indexed.stderr
    );
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-1, HPC-2, HPC-4
fn hung_servers_that_recover_cost_time_only() {
    const HUNG: [u32; 2] = [3, 11];
    let samples = files(640, 20_000);
    let options = by_number(StandInOptions::new(OSTS).with_latency(Duration::from_millis(2)));
    let stand_in = mount(samples.path(), options);
    let arguments =
        ["--epochs", "2", "--batch-size", "8", "--memory", "64MB", "--digest", "--patience", "100"];
    let job = job(4, &stand_in, &samples, &arguments);
    HUNG.into_iter().for_each(|ost| stand_in.hang(ost));
    let ranks = job.all();
    let (began, mut most) = (Instant::now(), vec![0; 8]);
    // Longer than a rank waits for another rank that announces nothing.
    until("a minute has passed", || {
        for (most, now) in most.iter_mut().zip(waiting(&stand_in, &ranks, HUNG)) {
            *most = now.max(*most);
        }
        began.elapsed() > Duration::from_secs(60)
    });
    let of_others = stand_in.counts();
    let flowed: u64 = of_others.by_ost.iter().map(|ost| ost.requests).sum();
    HUNG.into_iter().for_each(|ost| stand_in.resume(ost));
    let finished: Vec<_> = ranks.into_iter().map(Rank::wait).collect();
    let warnings: String = finished.iter().map(|rank| rank.stderr.clone()).collect();
    let reports: Vec<Value> = finished.into_iter().map(|rank| rank.json()).collect();
    assert_digests(&samples, &reports);
    assert!(most.iter().all(|most| *most <= 4) && most.iter().sum::<usize>() > 0, "{most:?}");
    assert!(flowed > 300, "{flowed} reads of other servers");
    // The watch may come a few seconds late.
    for ost in HUNG {
        assert!(warnings.contains(&format!("no answer from OST {ost} for 3")), "{warnings}");
        assert!(warnings.contains(&format!("OST {ost} answers again")), "{warnings}");
    }
    // Each sample was read once, by its owner.
    assert_eq!(stand_in.counts().reads, 640);
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-1
fn server_that_hangs_for_ever_ends_the_run_with_its_name() {
    let samples = files(320, 20_000);
    let options = by_number(StandInOptions::new(OSTS).with_latency(Duration::from_millis(2)));
    let stand_in = mount(samples.path(), options);
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state.json");
    let arguments = [
        "--epochs",
        "1",
        "--batch-size",
        "4",
        "--patience",
        "5",
        "--compute-ms",
        "50",
        // Most samples are not read when the first batch is there.
        "--look-ahead",
        "200kB",
        "--state",
        state.to_str().unwrap(),
    ];
    let job = job(1, &stand_in, &samples, &arguments);
    let rank = job.start(0);
    rank.wait_for_first_batch();
    stand_in.hang(7);
    let began = Instant::now();
    rank.wait_until_printed("no answer: OST 7 was silent for ");
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    until("the state is written", || state.exists());
    drop(stand_in);
    let finished = rank.wait();
    let error = finished.stderr;
    assert_eq!(finished.code, Some(1), "{error}");
    assert!(error.contains("no answer: OST 7 was silent") && error.contains("cannot end before"), "{error}");
    assert!(
        fs::read_to_string(&state).unwrap().contains("consumed"),
        "{}",
        fs::read_to_string(&state).unwrap()
    );
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-3
fn eviction_is_retried() {
    let samples = files(160, 20_000);
    let options = by_number(StandInOptions::new(OSTS).with_latency(Duration::from_millis(1)));
    let stand_in = mount(samples.path(), options);
    let job = job(1, &stand_in, &samples, &["--epochs", "1", "--digest", "--compute-ms", "20"]);
    for errno in [Errno::NOTCONN, Errno::SHUTDOWN] {
        let rank = job.start(0);
        rank.wait_for_first_batch();
        let before = stand_in.counts().evicted;
        stand_in.evict(EvictedFrom::All, errno, None);
        until("reads fail", || stand_in.counts().evicted > before + 10);
        stand_in.reconnect();
        let report = rank.wait().json();
        assert!(number(&report, "/retried") > 0, "{report}");
        assert_digests(&samples, &[report]);
    }
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-5
fn released_files_are_named_and_recalled() {
    let samples = files(64, 3000);
    let released = |path: &str| number_of(path).is_multiple_of(8);
    let options =
        StandInOptions::new(4).with_layout(move |path, _| LayoutSpec::on([number_of(path) % 4], 1 << 20));
    let stand_in = mount(samples.path(), options);
    samples.each_file(|path, _| {
        if released(path) {
            stand_in.release(path, Recall::After(Duration::from_millis(300)));
        }
    });
    let target = stand_in.root().to_str().unwrap();
    let finished = run(&mut foreread(["plan", target]));
    assert!(
        finished.stderr.contains("8 files (23.4 KiB) were released to an archive: "),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("lfs hsm_restore"), "{}", finished.stderr);
    let finished =
        run(&mut foreread(["load", target, "--epochs", "1", "--recall", "--report", "json", "--digest"]));
    assert!(finished.stderr.contains("they are restored in the background"), "{}", finished.stderr);
    assert_digests(&samples, &[finished.json()]);
    assert_eq!(stand_in.counts().recalls, 8);
    let finished = run(&mut foreread(["load", target, "--epochs", "1", "--report", "json"]));
    assert!(!finished.stderr.contains("archive"), "{}", finished.stderr);
}
