//! The command under Open MPI, without settings of ranks.
//!
//! `FOREREAD_TEST_MPIRUN` holds the path of `mpirun`.

use std::process::Command;

use serde_json::Value;

use crate::ranks::assert_digests;
use crate::support::{DEADLINE, binary, clean, four_thousand, needed, number, watch};

const LIMIT: u64 = 100_000_000;

/// Loads five epochs under mpirun in batches of 32 with this memory per rank, and the origin
/// limited to 100 MB/s in total. Every rank's report, by rank.
#[track_caller]
fn mpirun(ranks: u32, memory: &str) -> Vec<Value> {
    let mpirun = needed("FOREREAD_TEST_MPIRUN");
    let mut command = Command::new(mpirun);
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]);
    // Separate files, because mpirun mixes long outputs of ranks.
    let reports = tempfile::tempdir().unwrap();
    let file = reports.path().join("%r");
    command.arg(binary()).arg("load").arg(four_thousand().path()).arg("--report-file").arg(&file);
    command.args(["--epochs", "5", "--batch-size", "32", "--look-ahead", "16MiB", "--memory", memory]);
    command.args(["--origin-limit", &format!("{}B/s", LIMIT / u64::from(ranks)), "--digest"]);
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

#[test]
#[ignore = "needs Open MPI"]
// semantics: RANK-1
fn full_caches_open_the_origin_in_the_first_epoch_only() {
    for (ranks, memory) in [(4, "1024MiB"), (4, "120MiB"), (2, "1024MiB")] {
        let reports = mpirun(ranks, memory);
        assert_digests(four_thousand(), &reports);
        let read: u64 = reports.iter().map(|report| number(report, "/origin_bytes")).sum();
        assert_eq!(read, four_thousand().bytes(), "{ranks} ranks with {memory}");
        for epoch in 1..5 {
            let from_origin =
                |report: &Value| number(report, &format!("/epochs/{epoch}/reads/origin/samples"));
            assert_eq!(reports.iter().map(from_origin).sum::<u64>(), 0, "{ranks} ranks, epoch {epoch}");
        }
    }
}
