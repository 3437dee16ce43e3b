//! Progress output: bars on a terminal (of `script`, which every Linux has), almost nothing in a
//! log.

use std::process::Command;

use crate::support::{Samples, binary, clean, foreread, run};

/// A command's output on a terminal.
fn on_a_terminal(arguments: &str, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new("script");
    command.args(["-qec", &format!("{} {arguments}", binary().display()), "/dev/null"]);
    clean(&mut command);
    command.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied());
    run(&mut command).ok()
}

#[test]
// semantics: FAIL-27
fn progress_is_shown_by_rank_0_unless_it_is_off() {
    let samples = Samples::awkward(200, 100);
    let load =
        format!("load {} --batch-size 1 --compute-ms 5 --epochs 1 --peers off", samples.path().display());
    assert!(on_a_terminal(&load, &[]).contains("/200 batches"));
    assert!(!on_a_terminal(&format!("{load} --progress off"), &[]).contains(" batches"));
    for (rank, shown) in [("0", true), ("1", false)] {
        let printed = on_a_terminal(&load, &[("RANK", rank), ("WORLD_SIZE", "2")]);
        assert_eq!(printed.contains("/100 batches"), shown, "rank {rank}: {printed}");
    }
    // A log has no bar, and no line before a minute.
    let log = run(&mut foreread(load.split(' ')));
    assert_eq!(log.stderr, "");
    let line = run(&mut foreread(load.split(' ').chain(["--progress", "some"]))).fails(2);
    assert!(line.contains("invalid value 'some' for '--progress <WORD>'"), "{line}");
    let line = run(foreread(load.split(' ')).env("FOREREAD_PROGRESS", "some")).fails(2);
    assert!(line.contains("--progress some (environment FOREREAD_PROGRESS): expected auto or off"), "{line}");
}

#[test]
// semantics: FAIL-27
fn colours_are_off_where_no_color_is_set() {
    let samples = Samples::awkward(20, 100);
    let load = format!("load {} --epochs 1 --progress off", samples.path().display());
    for (value, coloured) in [("1", false), ("", true)] {
        let printed = on_a_terminal(&load, &[("NO_COLOR", value), ("RUST_LOG", "debug")]);
        assert!(printed.contains("DEBUG"), "{printed}");
        assert_eq!(printed.contains('\u{1b}'), coloured, "NO_COLOR={value}: {printed}");
    }
}

#[test]
fn demo_compares_with_eight_readers() {
    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("demo.svg");
    let printed = run(&mut foreread(["demo", "--plot", plot.to_str().unwrap()])).ok();
    let total = |row: &str| -> f64 {
        let line =
            printed.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{row}: {printed}"));
        line[30..].split_whitespace().nth(3).unwrap().parse().unwrap()
    };
    assert!(total("8 readers, no plan") < total("plain loop, reads on demand"), "{printed}");
    assert!(total("foreread, memory for all") < total("8 readers, no plan"), "{printed}");
    // The bars of the chart come after the table, and the next commands at the end.
    let bar = |row: &str| {
        let lines = printed.lines().filter(|line| line.starts_with(row));
        lines.map(|line| line.matches(['#', '.']).count()).max().unwrap()
    };
    assert!(bar("foreread, memory for all") < bar("plain loop, reads on demand"), "{printed}");
    let last = printed.trim_end().lines().last().unwrap();
    assert!(last.starts_with("  foreread load DIR --plot run.svg"), "{printed}");
    let svg = std::fs::read_to_string(plot).unwrap();
    for text in ["8 readers, no plan: ", "foreread, memory for all: ", "waiting for data", "</svg>"] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}
