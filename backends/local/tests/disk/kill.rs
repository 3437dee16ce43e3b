//! Processes that are killed at random moments.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use foreread_tier::CacheTier;
use foreread_types::SplitMix64;

use crate::rig::{config, copy, known, open_as, run, seed, size_of, store, taken, verify};

const CAPACITY: u64 = 24 << 20;
const IDS: u64 = 400;
const DIRECTORY: &str = "FOREREAD_TEST_KILL_DIRECTORY";
const SEED: &str = "FOREREAD_TEST_KILL_SEED";

fn open(directory: &Path) -> foreread_local::DiskTier {
    let path = directory.join("a");
    let mut config = config(&path, CAPACITY / 2).with_segment(2 << 20);
    config.directories.push((directory.join("b"), CAPACITY / 2).into());
    open_as(config).unwrap()
}

/// The process to be killed. Without a directory from its parent it does nothing.
#[test]
fn child_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let mut draw = SplitMix64(std::env::var(SEED).unwrap().parse().unwrap());
    let tier = open(Path::new(&directory));
    run(async {
        loop {
            let batch: Vec<u64> = (0..8).map(|_| draw.below(IDS)).collect();
            let known: Vec<_> = batch.iter().map(|&id| known(id)).collect();
            futures::future::join_all(known.iter().map(|known| store(&tier, known))).await;
            if draw.below(3) == 0 {
                tier.remove((0..5).map(|_| crate::rig::known(draw.below(IDS)).key).collect()).await;
            }
            if draw.below(50) == 0 {
                tier.remove((0..IDS).map(|id| crate::rig::known(id).key).collect()).await;
            }
        }
    });
}

#[test]
// semantics: DISK-8
fn killed_process_leaves_only_whole_samples() {
    let rounds = if std::env::var_os("FOREREAD_SOAK").is_some() { 500 } else { 20 };
    let mut draw = SplitMix64(seed());
    let directory = tempfile::tempdir().unwrap();
    let mut found = 0;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child_process", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .env(SEED, draw.below(u64::MAX).to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(draw.below(150_000)));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success() && status.code().is_none(), "round {round}: the child was not killed");
        let taken = taken(directory.path());
        assert!(taken <= CAPACITY, "round {round}: {taken} bytes");
        let tier = open(directory.path());
        let stored = tier.stored(foreread_types::DatasetId(0)).samples;
        let right = run(verify(&tier, known));
        assert_eq!(
            (right, tier.counts().corrupt),
            (stored, 0),
            "round {round}: a listed sample is not whole"
        );
        found += right;
        if draw.below(8) == 0 {
            run(tier.remove((0..IDS).map(|id| known(id).key).collect()));
            assert_eq!(tier.free(), tier.capacity(), "round {round}");
        }
    }
    println!("{found} samples survived {rounds} kills");
    assert!(found > 0 && size_of(0) == 0);
}

/// The same with copies of a live directory while it is written.
#[test]
fn copy_of_a_live_directory_is_a_usable_cache() {
    let mut draw = SplitMix64(seed());
    let directory = tempfile::tempdir().unwrap();
    let tier = open(directory.path());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            run(async {
                for id in 0..IDS {
                    if let Some(Err(error)) = store(&tier, &known(id)).await {
                        panic!("{error}");
                    }
                    if id % 7 == 3 {
                        tier.remove(vec![known(id - 2).key]).await;
                    }
                }
            });
        });
        while !writer.is_finished() {
            std::thread::sleep(Duration::from_micros(draw.below(20_000)));
            let moment = tempfile::tempdir().unwrap();
            copy(directory.path(), moment.path());
            let tier = open(moment.path());
            run(verify(&tier, known));
        }
    });
}
