//! `foreread calibrate`, and its use in plans.

use std::time::Duration;

use foreread_tier_testing::store::{Fault, HttpStore, Kind, When};
use serde_json::Value;

use crate::s3;
use crate::support::{Samples, foreread, number, run};

fn plan(arguments: &[&str]) -> Value {
    run(foreread(["plan", "--report", "json"]).args(arguments)).json()
}

#[test]
// semantics: TIME-2
fn plan_predicts_times_and_the_gain_of_more_room() {
    let described =
        ["--samples", "1000", "--sample-bytes", "100000", "--origin-limit", "10MB/s", "--epochs", "3"];
    let report = plan(&[&described[..], &["--memory", "0"]].concat());
    for epoch in 0..3 {
        let forecast = &report["forecast"][epoch];
        assert!((forecast["seconds"].as_f64().unwrap() - 10.0).abs() < 0.01, "{forecast}");
        assert_eq!(number(forecast, "/origin_bytes"), 100_000_000);
        assert_eq!(forecast["limiting"], "origin client limit");
    }
    // Another GB holds everything, which saves two of three epochs.
    let more = report["one_more_gigabyte"].as_array().unwrap();
    assert_eq!(
        more.iter().map(|more| more["level"].as_str().unwrap()).collect::<Vec<_>>(),
        ["memory", "disk"]
    );
    for more in more {
        assert_eq!(number(more, "/origin_bytes"), 200_000_000);
        assert!((more["seconds"].as_f64().unwrap() - 20.0).abs() < 0.01, "{more}");
    }
    let half = plan(&[&described[..], &["--memory", "50MB"]].concat());
    let later = half["forecast"][1]["seconds"].as_f64().unwrap();
    assert!((5.0..5.1).contains(&later), "{later}");
    // A trainer slower than the origin is the bottleneck.
    let slow =
        plan(&[&described[..], &["--memory", "0", "--batch-size", "100", "--compute-ms", "2000"]].concat());
    assert_eq!(slow["forecast"][0]["limiting"], "compute");
    assert!((slow["forecast"][0]["seconds"].as_f64().unwrap() - 20.0).abs() < 0.01);
}

#[test]
// semantics: TIME-1
fn plan_without_a_speed_has_no_times() {
    let described = ["plan", "--samples", "1000", "--sample-bytes", "100000"];
    let printed = run(&mut foreread(described)).ok();
    assert!(
        printed.contains("time         unknown (run `foreread calibrate`, or set --origin-limit)"),
        "{printed}"
    );
    assert!(plan(&described[1..]).get("forecast").is_none());
}

#[test]
// semantics: TIME-4
fn plans_use_the_measured_speeds() {
    let samples = Samples::awkward(300, 50_000);
    let scratch = tempfile::tempdir().unwrap();
    let (disk, file) = (scratch.path().join("disk"), scratch.path().join("measured.toml"));
    std::fs::create_dir(&disk).unwrap();
    let (data, text) = (samples.path().to_str().unwrap(), file.to_str().unwrap());
    let calibrate = ["calibrate", data, "--seconds", "3", "--report", "json", "--origin-limit", "20MB/s"];
    let report = run(foreread(calibrate).arg("--disk").arg(&disk).arg("-o").arg(&file)).json();
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0, "nothing of the measuring stays");
    assert!(number(&report, "/memory/bytes_per_second") > 0);
    assert!(number(&report, "/disk/0/read/0/bytes_per_second") > 0);
    assert_eq!(number(&report, "/origin/read/0/parallelism"), 1);
    let rates = report["origin"]["read"].as_array().unwrap();
    // The limit applies to a run's rate. After a pause one part of the run may exceed it. Without
    // the limit the rate would be a hundred times higher.
    assert!(rates.iter().all(|rate| number(rate, "/bytes_per_second") < 60_000_000), "{rates:?}");
    let planned = plan(&[data, "--memory", "0", "--calibration", text]);
    // Between the measured rates: a busy machine may have measured one request at a time as slow.
    let seconds = planned["forecast"][0]["seconds"].as_f64().unwrap();
    let expected = rates.iter().map(|rate| samples.bytes() as f64 / number(rate, "/bytes_per_second") as f64);
    let expected: Vec<f64> = expected.collect();
    let (least, most) = expected.iter().fold((f64::MAX, 0.0_f64), |(a, b), it| (a.min(*it), b.max(*it)));
    assert!(seconds >= 0.99 * least && seconds <= 1.06 * most, "{seconds} s, {expected:?} s of bytes");
    // Another origin has no calibration.
    let other = Samples::awkward(10, 100);
    assert!(plan(&[other.path().to_str().unwrap(), "--calibration", text]).get("forecast").is_none());
    let loaded =
        run(&mut foreread(["load", data, "--epochs", "1", "--calibration", text, "--report", "json"])).json();
    assert_eq!(number(&loaded, "/epochs/0/samples"), 300);
}

#[test]
fn failed_calibration_is_one_line_with_the_name() {
    let empty = tempfile::tempdir().unwrap();
    assert!(
        run(&mut foreread(["calibrate"]))
            .fails(2)
            .contains("name a dataset, a directory with --disk, or both")
    );
    let printed = run(&mut foreread(["calibrate", empty.path().to_str().unwrap()])).fails(1);
    assert!(printed.contains(empty.path().to_str().unwrap()), "{printed}");
    let printed = run(&mut foreread(["calibrate", "--disk", "/proc", "--seconds", "1"])).fails(1);
    assert!(printed.contains("/proc"), "{printed}");
    let printed = run(&mut foreread(["calibrate", "--disk", "/tmp", "--seconds", "0"])).fails(2);
    assert!(printed.contains("--seconds 0 (argument): must be at least 1"), "{printed}");
    let samples = Samples::awkward(20, 50_000);
    let data = samples.path().to_str().unwrap();
    let store = HttpStore::start();
    store.bucket("train");
    store.put("train", "a", "a sample");
    store.on(Kind::Get, When::Always, Fault::StallHeaders(Duration::from_secs(600)));
    let printed = run(&mut s3::at(&store, &["calibrate", "s3://train", "--seconds", "1"])).fails(1);
    assert!(printed.contains("not one sample came in 0.7 s; allow more time"), "{printed}");
    let printed = run(&mut foreread(["calibrate", data, "--origin-bytes", "0"])).fails(2);
    assert!(printed.contains("--origin-bytes 0 (argument): must be at least 1"), "{printed}");
    let printed = run(&mut foreread(["calibrate", data, "-o", "/nowhere/c.toml"])).fails(1);
    assert!(printed.contains("/nowhere/c.toml cannot be written"), "{printed}");
    let file = empty.path().join("c.toml");
    std::fs::write(&file, "version = 1\nmade = 0\n[memory]\nbytes_per_second = 0\nspread = 0.0\n").unwrap();
    let described = ["plan", "--samples", "10", "--sample-bytes", "10", "--calibration"];
    let printed = run(foreread(described).arg(&file)).fails(2);
    assert!(printed.contains("memory.bytes_per_second must be more than 0"), "{printed}");
    let printed = run(foreread(described).arg(empty.path().join("none"))).fails(2);
    assert!(printed.contains("none cannot be read"), "{printed}");
}

/// The limit does not delay the first sample, whose time was once taken for the origin's.
#[test]
fn measured_speed_stays_below_the_users_limit() {
    for (limit, most, length, seconds) in [("1KB/s", 1000, 50_000, "1"), ("1MB/s", 1_000_000, 2_000_000, "3")]
    {
        let (samples, scratch) = (Samples::awkward(20, length), tempfile::tempdir().unwrap());
        let arguments = ["--seconds", seconds, "--origin-limit", limit, "--report", "json"];
        let mut command = foreread(["calibrate", samples.path().to_str().unwrap()]);
        let measured = run(command.args(arguments).arg("-o").arg(scratch.path().join("c.toml"))).json();
        let rates = measured["origin"]["read"].as_array().unwrap();
        assert!(rates.iter().all(|rate| number(rate, "/bytes_per_second") <= most), "{limit}: {rates:?}");
    }
}

#[test]
// semantics: TIME-3
fn plan_covers_the_caches_of_all_ranks() {
    let described =
        ["--samples", "1000", "--sample-bytes", "100000", "--origin-limit", "10MB/s", "--epochs", "3"];
    let ranks = ["--rank", "1", "--world-size", "4", "--memory", "30MB", "--look-ahead", "1MiB"];
    let report = plan(&[&described[..], &ranks].concat());
    let together = &report["together"];
    // Everything fits in the four together, and in none alone.
    assert_eq!(number(together, "/origin_bytes"), 100_000_000);
    assert_eq!(number(together, "/floor_origin_bytes"), 100_000_000);
    assert!(number(&report, "/plan/origin_bytes") > 30_000_000, "{report}");
    let local = number(together, "/local_uses") as f64 / number(together, "/uses") as f64;
    assert!((0.25..0.75).contains(&local), "{together}");
    let first = together["forecast"][0]["seconds"].as_f64().unwrap();
    assert!((2.4..2.7).contains(&first), "{together}");
    assert_eq!(number(together, "/forecast/1/origin_bytes"), 0);
    assert!(plan(&described).get("together").is_none());
    let printed = run(foreread(["plan"]).args(described).args(ranks)).ok();
    assert!(
        printed.contains("the caches of 4 ranks as one: ") && !printed.contains("read for themselves"),
        "{printed}"
    );
}

#[test]
// semantics: PLAN-8
fn plan_counts_local_uses_as_samples_are_dealt() {
    let described = ["--samples", "3200", "--sample-bytes", "100000", "--epochs", "10", "--batch-size", "32"];
    let ranks = ["--rank", "0", "--world-size", "4", "--memory", "81MB", "--look-ahead", "1MiB"];
    let share = |deal: &str| {
        let report = plan(&[&described[..], &ranks, &["--deal", deal]].concat());
        let together = &report["together"];
        assert_eq!(together["by_locality"], deal == "locality");
        number(together, "/local_uses") as f64 / number(together, "/uses") as f64
    };
    // Each of four keeps a quarter.
    assert!((0.25..0.35).contains(&share("torch")), "{}", share("torch"));
    assert!((0.85..1.0).contains(&share("locality")), "{}", share("locality"));
}
