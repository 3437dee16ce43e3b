//! `foreread load --plot` and `foreread demo --plot`.

use std::fs;
use std::path::Path;

use crate::support::{Samples, foreread, run};

/// The plot in a file, after checks that hold for each.
fn plot(path: &Path) -> String {
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert!(svg.contains("seconds") && !svg.contains("NaN"), "{svg}");
    svg
}

#[test]
fn plot_of_a_run_shows_its_sources_and_totals() {
    let (samples, directory) = (Samples::awkward(40, 2000), tempfile::tempdir().unwrap());
    let file = directory.path().join("run.svg");
    let arguments = ["load", samples.path().to_str().unwrap(), "--memory", "1MiB", "--epochs", "3"];
    let more = ["--batch-size", "4", "--compute-ms", "1", "--plot", file.to_str().unwrap()];
    let printed = run(&mut foreread(arguments.iter().chain(&more))).ok();
    let svg = plot(&file);
    // The plot's totals are the report's.
    let line = printed.lines().find(|line| line.starts_with("storage ")).unwrap();
    let read = line.trim_start_matches("storage").trim().split(" (").next().unwrap();
    assert!(svg.contains(&format!("read from storage: {read}")), "{read}: {svg}");
    for text in ["40 samples", "epoch 0", "storage ", "memory ", "stalled ", "time stalled"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

#[test]
fn plot_of_ranks_is_rank_0s_or_has_the_rank_in_its_name() {
    let (samples, directory) = (Samples::awkward(40, 2000), tempfile::tempdir().unwrap());
    let load = |rank: &str, name: &str| {
        let path = samples.path().to_str().unwrap();
        let ranks = ["--rank", rank, "--world-size", "2", "--peers", "off", "--memory", "1MiB"];
        let mut command = foreread(["load", path, "--plot", name].iter().chain(&ranks));
        run(command.current_dir(directory.path())).ok();
    };
    for rank in ["1", "0"] {
        load(rank, "run.svg");
        assert_eq!(directory.path().join("run.svg").exists(), rank == "0");
        load(rank, "rank-%r.svg");
        let svg = plot(&directory.path().join(format!("rank-{rank}.svg")));
        assert!(svg.contains(&format!("rank {rank} of 2: read from storage")), "{svg}");
    }
}

#[test]
fn plot_that_cannot_be_written_is_refused_before_the_run() {
    let samples = Samples::awkward(4, 100);
    let path = samples.path().to_str().unwrap();
    for arguments in [&["load", path, "--plot", "/no/run.svg"][..], &["demo", "--plot", "/no/run.svg"]] {
        let line = run(&mut foreread(arguments)).fails(2);
        assert!(line.contains("--plot /no/run.svg: give a file in a directory that exists"), "{line}");
    }
}
