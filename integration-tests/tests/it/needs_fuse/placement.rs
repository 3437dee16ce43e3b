//! The placement of samples by storage server, with one slow OST.

use std::fs;
use std::path::Path;
use std::time::Duration;

use foreread_lustre_testing::{LayoutSpec, StandIn, StandInOptions};
use serde_json::Value;

use super::mount;
use crate::support::{Samples, disk, foreread, run};

const OSTS: u32 = 16;
const SLOW: u32 = 3;
const FILES: u64 = 640;
const BYTES: u64 = 20_000;
const EPOCHS: u64 = 4;

/// One file in 16 is on the slow OST.
fn files() -> Samples {
    let samples = Samples::new();
    for number in 0..FILES {
        samples.add(
            &format!("{:02}/{number:05}", number % 10),
            &crate::support::content(number, BYTES as usize),
        );
    }
    samples
}

fn ost_of(path: &str) -> u32 {
    path.rsplit('/').next().and_then(|name| name.parse::<u32>().ok()).unwrap_or(0) % OSTS
}

/// A run with a disk for half of the files. Returns the requests to the slow OST, and the text on
/// standard error.
fn load(stand_in: &StandIn, calibration: &Path) -> (u64, String) {
    let scratch = tempfile::tempdir().unwrap();
    // A record takes five pages.
    let disk = disk(scratch.path(), FILES / 2 * 20_480);
    stand_in.reset_counts();
    let finished = run(&mut foreread([
        "load",
        stand_in.root().to_str().unwrap(),
        "--epochs",
        &EPOCHS.to_string(),
        "--memory",
        "0",
        &disk,
        "--look-ahead",
        "1MB",
        "--report",
        "json",
        "--calibration",
        calibration.to_str().unwrap(),
    ]));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    (stand_in.counts().by_ost[SLOW as usize].requests, finished.stderr)
}

#[test]
#[ignore = "needs FUSE"]
// semantics: HPC-10, HPC-11
fn placement_by_server_keeps_the_samples_of_a_slow_ost() {
    let samples = files();
    let options = StandInOptions {
        metadata_latency: Duration::ZERO,
        read_latency: Duration::from_millis(10),
        ..StandInOptions::new(OSTS).with_layout(|path, _| LayoutSpec::on([ost_of(path)], 1 << 20))
    };
    let stand_in = mount(samples.path(), options);
    stand_in.slow(SLOW, 20.0);
    let directory = tempfile::tempdir().unwrap();
    let recent = directory.path().join("recent.toml");
    let root = stand_in.root().to_str().unwrap();
    let measured = run(&mut foreread([
        "calibrate",
        root,
        "--seconds",
        "4",
        "--report",
        "json",
        "-o",
        recent.to_str().unwrap(),
    ]))
    .json();
    let servers = measured["origin"]["servers"]["server"].as_array().unwrap();
    assert_eq!(servers.len(), OSTS as usize, "{measured}");
    let most = |server: &Value| {
        let points = server["read"].as_array().unwrap().iter();
        points.map(|point| point["bytes_per_second"].as_u64().unwrap()).max().unwrap()
    };
    let slowest = servers.iter().min_by_key(|server| most(server)).unwrap();
    assert_eq!(slowest["name"], format!("OST {SLOW}"), "{measured}");
    // The same figures, two days old.
    let outdated = directory.path().join("outdated.toml");
    let made = measured["origin"]["servers"]["made"].as_u64().unwrap();
    let text = fs::read_to_string(&recent).unwrap();
    let servers_at = text.find("[origin.servers]").unwrap();
    let (head, tail) = text.split_at(servers_at);
    let older = tail.replacen(&format!("made = {made}"), &format!("made = {}", made - 2 * 86_400), 1);
    assert_ne!(older, tail, "{text}");
    fs::write(&outdated, format!("{head}{older}")).unwrap();
    let plan = |calibration: &Path| {
        let calibration = calibration.to_str().unwrap();
        run(&mut foreread(["plan", root, "--epochs", "4", "--memory", "6MB", "--calibration", calibration]))
            .ok()
    };
    assert!(plan(&recent).contains("placement    by storage server: epochs after the first take "));
    assert!(!plan(&outdated).contains("by storage server"));
    let (ignoring_requests, warnings) = load(&stand_in, &outdated);
    assert!(warnings.contains("the speeds of storage servers were measured 48 hours ago"), "{warnings}");
    let (requests, warnings) = load(&stand_in, &recent);
    assert!(!warnings.contains("hours ago"), "{warnings}");
    // All 40 samples of the slow OST are read once, instead of half of them in each epoch.
    assert_eq!(requests, FILES / u64::from(OSTS));
    assert!(ignoring_requests >= requests + (EPOCHS - 1) * 15, "{ignoring_requests}");
}
