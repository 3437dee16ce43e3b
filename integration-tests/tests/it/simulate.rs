//! `foreread simulate` as a user sees it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Finished, foreread, run};

const HEADER: &str = "policy,seconds,init_stall_seconds,reads_staging,reads_pfs,reads_local,reads_remote,\
    prefetch_pfs,\
                      prefetch_local,prefetch_remote,pfs_mb,floor_pfs_mb";

/// The scenario files in the simulator's crate.
fn thesis(number: u32) -> PathBuf {
    let file = format!("../crates/simulator/scenarios/thesis-s{number}.toml");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn simulate(scenario: &Path, arguments: &[&str]) -> Finished {
    let scenario = scenario.to_str().unwrap();
    run(&mut foreread(["simulate", scenario].iter().chain(arguments)))
}

/// The first scenario with one text replaced, in a new file.
fn changed(from: &str, to: &str) -> tempfile::NamedTempFile {
    let text = fs::read_to_string(thesis(1)).unwrap();
    assert!(text.contains(from), "{from}");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text.replacen(from, to, 1)).unwrap();
    file
}

#[test]
// semantics: SIM-6
fn csv_has_its_header_and_a_row_per_policy() {
    let finished = simulate(&thesis(3), &["--report", "csv"]);
    let refusals: Vec<_> = finished.stderr.lines().filter(|line| line.contains(" refuses ")).collect();
    assert_eq!(refusals.len(), 3, "{}", finished.stderr);
    assert!(refusals[0].starts_with("foreread: lbann-dynamic refuses thesis-s3-tenth: the dataset's"));
    assert!(refusals[2].starts_with("foreread: foreread-by-server refuses thesis-s3-tenth: "));
    let output = finished.ok();
    let rows: Vec<Vec<&str>> = output.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(output.lines().next().unwrap(), HEADER);
    assert_eq!(rows.len(), 15);
    for row in &rows[1..] {
        assert_eq!(row.len(), rows[0].len());
        if row[0].starts_with("lbann") || row[0] == "foreread-by-server" {
            assert!(row[1..].iter().all(|field| field.is_empty()), "{row:?}");
            continue;
        }
        let number = |column: &str| -> f64 {
            row[rows[0].iter().position(|name| *name == column).unwrap()].parse().unwrap()
        };
        let reads = ["reads_staging", "reads_pfs", "reads_local", "reads_remote"].map(number);
        assert_eq!(reads.iter().sum::<f64>(), 150_000.0, "{row:?}");
        assert!(number("pfs_mb") >= number("floor_pfs_mb"), "{row:?}");
        assert!(number("seconds") > 760.0, "{row:?}");
    }
}

#[test]
fn json_is_one_object_and_equal_runs_are_equal() {
    let arguments = ["--report", "json", "--policy", "foreread", "--seeds", "2"];
    let first: Value = simulate(&thesis(1), &arguments).json();
    assert_eq!(first, simulate(&thesis(1), &arguments).json());
    assert_eq!(first["seeds"], 2);
    assert_eq!(first["policies"].as_array().unwrap().len(), 1);
    let foreread = &first["policies"][0];
    assert_eq!(foreread["policy"], "foreread");
    let seconds = foreread["seconds"].as_f64().unwrap();
    assert!((7.0..7.5).contains(&seconds), "{foreread}");
    let refused = simulate(&thesis(3), &["--report", "json", "--policy", "lbann-preload"]).json();
    assert!(refused["policies"][0].get("seconds").is_none());
    assert!(refused["policies"][0]["refused"].as_str().unwrap().contains("do not fit"), "{refused}");
}

#[test]
fn table_names_every_policy() {
    let table = simulate(&thesis(1), &[]).ok();
    for policy in ["lower-bound", "nopfs", "monarch", "prisma", "foreread-locality"] {
        assert!(table.lines().any(|line| line.starts_with(policy)), "{table}");
    }
    assert!(table.starts_with("thesis-s1: 4 workers, 10000 samples, "), "{table}");
}

#[test]
fn plots_are_two_files() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("bars.svg");
    let scenario = changed("epochs = 10", "epochs = 2");
    simulate(scenario.path(), &["--plot", plot.to_str().unwrap()]).ok();
    for file in ["bars.svg", "bars-cache.svg"] {
        let svg = fs::read_to_string(directory.path().join(file)).unwrap();
        // One document: the first version ended early.
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{file}");
        assert_eq!(svg.matches("</svg>").count(), 1, "{file}");
        for word in ["foreread-locality", "nopfs", "lower-bound", "seconds"] {
            assert!(svg.contains(word), "{file} does not name {word}");
        }
    }
}

#[test]
// semantics: SIM-4
fn wrong_usage_is_one_line_too() {
    let scenario = changed("workers = 4\n", "");
    let line = simulate(scenario.path(), &[]).fails(2);
    let path = scenario.path().to_str().unwrap();
    assert!(line.contains(path) && line.contains("cluster.workers: missing"), "{line}");
    let line = simulate(&thesis(1), &["--policy", "lru"]).fails(2);
    assert!(line.contains("lru") && line.contains("nopfs") && line.contains("foreread-locality"), "{line}");
    let line = simulate(&thesis(1), &["--report", "xml"]).fails(2);
    assert!(line.contains("[possible values: text, json, csv]"), "{line}");
    let line = simulate(&thesis(1), &["--seeds", "0"]).fails(2);
    assert!(line.contains("seeds"), "{line}");
    let line = simulate(&thesis(1), &["--plot", "/nowhere/at/all.svg"]).fails(2);
    assert!(line.contains("/nowhere/at/all.svg"), "{line}");
    let line = simulate(Path::new("/nowhere/scenario.toml"), &[]).fails(1);
    assert!(line.contains("/nowhere/scenario.toml"), "{line}");
}

#[test]
fn several_jobs_have_figures_in_every_form() {
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/simulator/scenarios/four-jobs.toml");
    let table = simulate(&scenario, &[]).ok();
    assert!(table.starts_with("four-jobs: 4 jobs, 20000 samples, a cache for 0.2 of them, "), "{table}");
    for name in ["bound", "min", "next-use", "announced-use", "lru", "never-evict", "private"] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name}: {table}");
    }
    let report: Value = simulate(&scenario, &["--report", "json", "--policy", "next-use"]).json();
    let reads = report["policies"][0]["origin_reads"].as_f64().unwrap();
    assert!((reads - 0.489).abs() < 0.01 && report["bound"].as_f64().unwrap() <= reads, "{report}");
    let rows = simulate(&scenario, &["--report", "csv", "--seeds", "2"]).ok();
    assert!(rows.starts_with("policy,origin_reads,writes\nmin,0.4"), "{rows}");
    for (option, value) in [("--plot", "jobs.svg"), ("--calibration", "/nowhere"), ("--policy", "nopfs")] {
        let line = simulate(&scenario, &[option, value]).fails(2);
        assert!(line.contains(option.trim_start_matches('-')), "{line}");
    }
}

#[test]
fn whole_files_have_figures_in_every_form() {
    let scenario = "../crates/simulator/scenarios/unchanged-files.toml";
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join(scenario);
    let table = simulate(&scenario, &[]).ok();
    assert!(
        table.starts_with("unchanged-files: 20000 files, 2200.0 MB, a cache for 0.5 of them, "),
        "{table}"
    );
    for name in ["bound", "copies-ahead", "never-evict", "lru"] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name}: {table}");
    }
    let report: Value = simulate(&scenario, &["--report", "json", "--policy", "copies-ahead"]).json();
    let number = |name: &str| report["policies"][0][name].as_f64().unwrap();
    assert!((number("served") - 0.847).abs() < 0.01, "{report}");
    assert!(number("origin_bytes") >= report["bound_origin_bytes"].as_f64().unwrap(), "{report}");
    let rows = simulate(&scenario, &["--report", "csv", "--seeds", "2"]).ok();
    assert!(rows.starts_with("policy,served,origin_bytes,"), "{rows}");
    assert_eq!(rows.lines().count(), 4, "{rows}");
    for (option, value) in [("--plot", "files.svg"), ("--calibration", "/nowhere"), ("--policy", "nopfs")] {
        let line = simulate(&scenario, &[option, value]).fails(2);
        assert!(line.contains(option.trim_start_matches('-')), "{line}");
    }
}

#[test]
fn plan_of_an_unchanged_program_has_its_writes() {
    let files = ["plan", "--samples=100000", "--sample-bytes=40960", "--epochs=9", "--unchanged"];
    let plan = |more: &[&str]| run(&mut foreread(files.iter().chain(more)));
    let disk = "--disk=/nowhere/scratch=2048000000";
    let report: Value = plan(&[disk, "--compute-ms=100", "--report=json"]).json();
    let unchanged = &report["unchanged"];
    let number = |at: &str| unchanged.pointer(at).and_then(Value::as_f64).unwrap_or_else(|| panic!("{at}"));
    assert_eq!((number("/files"), number("/cache"), number("/bytes")), (1e5, 0.5, 4.096e9));
    assert!((number("/unlimited/served") - 0.847).abs() < 0.01, "{unchanged}");
    assert!((number("/unlimited/written_bytes") / 4.096e9 - 0.347).abs() < 0.01, "{unchanged}");
    assert_eq!(number("/budget/bytes_per_day"), 1.024e9);
    // 1563 batches of 100 ms.
    assert!((number("/budget/epoch_seconds") - 156.3).abs() < 1e-6, "{unchanged}");
    assert!((number("/budget/limited/served") - 0.5).abs() < 0.01, "{unchanged}");
    let text = plan(&[disk]).ok();
    assert!(text.contains("\nforeread run 100000 files, ") && text.contains("per day"), "{text}");
    let text = plan(&["--memory=2048000000"]).ok();
    assert!(text.contains("\nforeread run 100000 files, ") && !text.contains("per day"), "{text}");
    assert!(plan(&[]).fails(2).contains("--unchanged needs one --disk, or --memory"));
    assert!(plan(&[disk, "--disk-writes-per-day=-1"]).fails(2).contains("--disk-writes-per-day -1"));
}

#[test]
fn settings_may_come_from_the_environment() {
    let mut command = foreread(["simulate", thesis(1).to_str().unwrap(), "--policy", "naive"]);
    let output = run(command.env("FOREREAD_REPORT", "csv")).ok();
    assert_eq!(output.lines().count(), 2, "{output}");
    assert!(output.lines().nth(1).unwrap().starts_with("naive,"), "{output}");
    let line = run(command.env("FOREREAD_POLICY", "naive")).fails(2);
    assert!(line.contains("FOREREAD_POLICY: policy can be set by an argument only (--policy)"), "{line}");
}

#[test]
fn measured_speeds_replace_the_scenarios() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let measured = "version = 1\nmade = 0\n[origin]\nurl = \"/x\"\nsample_bytes = 27000\nlatency_seconds = \
        0.0\n\
        stream_bytes_per_second = 1000000\n[[origin.read]]\nparallelism = 1\nbytes_per_second = \
        1000000\nspread = 0.0\n\
        samples = 1\n";
    fs::write(file.path(), measured).unwrap();
    let file = file.path().to_str().unwrap();
    let arguments = ["--report", "csv", "--policy", "naive", "--calibration"];
    let slow = simulate(&thesis(1), &[&arguments[..], &[file]].concat()).ok();
    let seconds: f64 = slow.lines().nth(1).unwrap().split(',').nth(1).unwrap().parse().unwrap();
    // 10,000 samples of 27 kB, ten times, at 1 MB/s for each of four workers, who wait for the
    // slowest in each batch.
    assert!((675.0..760.0).contains(&seconds), "{seconds}");
    let refused = simulate(&thesis(1), &["--calibration", "/nowhere"]).fails(2);
    assert!(refused.contains("/nowhere"), "{refused}");
}

#[test]
fn dataset_format_does_not_affect_simulations() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("foreread.toml"), "format = \"tar\"").unwrap();
    let mut command = foreread(["simulate", thesis(1).to_str().unwrap(), "--policy", "naive"]);
    assert!(run(command.current_dir(directory.path())).ok().contains("naive"));
}
