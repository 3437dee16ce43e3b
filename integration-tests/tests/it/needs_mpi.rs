//! The command under Open MPI, without settings of ranks.
//!
//! `FOREREAD_TEST_MPIRUN` holds the path of `mpirun`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::ranks::assert_digests;
use crate::support::{DEADLINE, Samples, binary, clean, four_thousand, needed, number, order, watch};

const LIMIT: u64 = 100_000_000;

/// `foreread load` on `samples` under mpirun. Every rank's report, by rank.
#[track_caller]
fn mpirun(ranks: u32, samples: &Samples, arguments: &[&str]) -> Vec<Value> {
    let mpirun = needed("FOREREAD_TEST_MPIRUN");
    let mut command = Command::new(mpirun);
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]);
    // Separate files, because mpirun mixes long outputs of ranks.
    let reports = tempfile::tempdir().unwrap();
    let file = reports.path().join("%r");
    command.arg(binary()).arg("load").arg(samples.path()).arg("--report-file").arg(&file).args(arguments);
    clean(&mut command).current_dir(std::env::temp_dir());
    watch(&mut command, DEADLINE, |_| ()).ok();
    let report = |rank: u32| {
        let text = std::fs::read_to_string(reports.path().join(rank.to_string())).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(number(&report, "/rank"), u64::from(rank));
        report
    };
    (0..ranks).map(report).collect()
}

/// Five epochs in batches of 32 with this memory per rank, and the origin limited to 100 MB/s in
/// total.
#[track_caller]
fn held(ranks: u32, memory: &str) -> Vec<Value> {
    let limit = format!("{}B/s", LIMIT / u64::from(ranks));
    let arguments = ["--epochs", "5", "--batch-size", "32", "--look-ahead", "16MiB", "--memory", memory];
    mpirun(ranks, four_thousand(), &[&arguments[..], &["--origin-limit", &limit, "--digest"]].concat())
}

fn read(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(report, "/origin_bytes")).sum()
}

#[test]
#[ignore = "needs Open MPI"]
// semantics: RANK-1
fn full_caches_open_the_origin_in_the_first_epoch_only() {
    for (ranks, memory) in [(4, "1024MiB"), (4, "120MiB"), (2, "1024MiB")] {
        let reports = held(ranks, memory);
        assert_digests(four_thousand(), &reports);
        assert_eq!(read(&reports), four_thousand().bytes(), "{ranks} ranks with {memory}");
        for epoch in 1..5 {
            let from_origin =
                |report: &Value| number(report, &format!("/epochs/{epoch}/reads/origin/samples"));
            assert_eq!(reports.iter().map(from_origin).sum::<u64>(), 0, "{ranks} ranks, epoch {epoch}");
        }
    }
}

#[test]
#[ignore = "needs Open MPI"]
// semantics: RANK-2
fn partial_caches_read_the_lower_bound() {
    for (ranks, mib) in [(4u64, 60u64), (2, 60)] {
        let reports = held(ranks as u32, &format!("{mib}MiB"));
        assert_digests(four_thousand(), &reports);
        let bytes = four_thousand().bytes();
        // The look-ahead does not count as a cache here.
        let floor = bytes + 4 * (bytes - ranks * (mib << 20));
        let read = read(&reports);
        assert!(read * 100 <= floor * 101, "{ranks} ranks: {read} bytes, the floor is {floor}");
    }
}

#[test]
#[ignore = "needs Open MPI"]
// semantics: RANK-4
fn locality_dealing_makes_nine_of_ten_reads_local() {
    let samples = Samples::awkward(8192, 1000);
    let arguments = [
        "--epochs",
        "3",
        "--batch-size",
        "32",
        "--memory",
        "2MB",
        "--look-ahead",
        "1MB",
        "--deal",
        "locality",
        "--ids",
        "--sampler",
        "torch",
    ];
    let reports = mpirun(16, &samples, &arguments);
    let of = |place: &str| -> u64 {
        reports
            .iter()
            .map(|report| report["epochs"][2]["reads"][place]["samples"].as_u64().unwrap_or(0))
            .sum()
    };
    let (local, all) = (of("memory"), of("memory") + of("peer") + of("origin"));
    assert!(local * 10 >= all * 9, "{local} of {all}");
    // Each step has the same samples as without locality.
    let dealt: Vec<Vec<u64>> = reports.iter().map(|report| delivered(report, 2)).collect();
    let plain: Vec<Vec<u64>> = (0..16).map(|rank| torch_ids(8192, 2, 16, rank)).collect();
    for step in 0..dealt[0].len() / 32 {
        let batch = |ids: &[Vec<u64>]| -> BTreeSet<u64> {
            ids.iter().flat_map(|ids| ids[step * 32..][..32].to_vec()).collect()
        };
        assert_eq!(batch(&dealt), batch(&plain), "step {step}");
    }
}

fn delivered(report: &Value, epoch: usize) -> Vec<u64> {
    report["epochs"][epoch]["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// A rank's samples in an epoch of PyTorch's order.
fn torch_ids(samples: u64, epoch: u64, world_size: u32, rank: u32) -> Vec<u64> {
    let text = [samples, epoch, world_size.into(), rank.into()].map(|number| number.to_string());
    let [samples, epoch, world_size, rank] = &text;
    order(&[
        "--sampler",
        "torch",
        "--samples",
        samples,
        "--epoch",
        epoch,
        "--world-size",
        world_size,
        "--rank",
        rank,
    ])
}
