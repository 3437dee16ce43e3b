//! `load --state`: a run that is terminated anywhere resumes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use foreread_tier_testing::until;
use serde_json::Value;

use crate::ranks::Rank;
use crate::support::{Samples, TestRandom, foreread, load, run, times};

/// The delivered samples of each pass: epoch, phase, ids in order.
pub type Passes = Vec<(u64, String, Vec<u64>)>;

pub fn ids(report: &Value) -> Passes {
    let epochs = report["epochs"].as_array().unwrap().iter();
    epochs
        .map(|epoch| {
            let ids = epoch["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
            (epoch["epoch"].as_u64().unwrap(), epoch["phase"].as_str().unwrap().to_owned(), ids)
        })
        .collect()
}

/// Joins the passes of two reports. Two parts of a pass become one.
pub fn joined(mut first: Passes, second: Passes) -> Passes {
    for (epoch, phase, ids) in second {
        match first.last_mut() {
            Some(last) if last.0 == epoch && last.1 == phase => last.2.extend(ids),
            _ => first.push((epoch, phase, ids)),
        }
    }
    first
}

fn command(samples: &Samples, validation: &Samples, state: &Path, more: &[&str]) -> Command {
    let target = samples.path().to_str().unwrap();
    let mut command = foreread(["load", target, "--report=json", "--ids", "--memory=1MB"]);
    command.args(["--validate", validation.path().to_str().unwrap()]).arg("--state").arg(state).args(more);
    // The defaults.
    for (name, value) in [("EPOCHS", "3"), ("BATCH_SIZE", "4"), ("SEED", "9")] {
        command.env(format!("FOREREAD_{name}"), value);
    }
    command
}

#[test]
// semantics: STATE-1
fn run_terminated_anywhere_resumes() {
    let (samples, validation) = (Samples::awkward(61, 2000), Samples::awkward(10, 2000));
    let whole = ids(&load(
        &samples,
        &[
            "--ids",
            "--epochs=3",
            "--batch-size=4",
            "--seed=9",
            "--validate",
            validation.path().to_str().unwrap(),
        ],
    ));
    let (mut draw, runs) = (TestRandom::new(), times(12, 300));
    for done in 1..=runs {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state.json");
        let mut seen = Vec::new();
        let mut signals = 0;
        loop {
            let out = tempfile::NamedTempFile::new().unwrap();
            let mut child = command(&samples, &validation, &state, &["--compute-ms=4"])
                .stdout(out.reopen().unwrap())
                .stderr(Stdio::inherit())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(draw.below(150)));
            let signal = if draw.below(2) == 0 { "-TERM" } else { "-INT" };
            Command::new("kill")
                .args([signal, &child.id().to_string()])
                .stderr(Stdio::null())
                .status()
                .unwrap();
            let status = child.wait().unwrap();
            let printed = std::fs::read_to_string(out.path()).unwrap();
            if printed.is_empty() {
                // It was terminated before it handled signals, and nothing was delivered.
                assert!(!status.success());
                continue;
            }
            seen = joined(seen, ids(&serde_json::from_str(&printed).unwrap()));
            match status.code() {
                Some(0) => break,
                code => assert!(matches!(code, Some(130 | 143)), "{status}"),
            }
            signals += 1;
            assert!(signals < 1000, "the run never ends");
        }
        assert_eq!(seen, whole, "after {signals} signals, from FOREREAD_TEST_SEED={}", draw.seed);
        if done.is_multiple_of(50) {
            println!("{done} of {runs} runs");
        }
    }
}

/// A run that takes minutes. When this returns, it handles signals.
fn started(command: &mut Command, state: &Path) -> Child {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the run starts", || state.exists());
    child
}

#[test]
// semantics: STATE-7
fn second_run_with_a_state_file_is_refused() {
    let (samples, validation) = (Samples::awkward(61, 2000), Samples::awkward(10, 2000));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state.json");
    let mut first = started(&mut command(&samples, &validation, &state, &["--compute-ms=5000"]), &state);
    let line = run(&mut command(&samples, &validation, &state, &[])).fails(1);
    let expected = format!("{} is the state of another run, process {} on ", state.display(), first.id());
    assert!(line.contains(&expected) && line.ends_with("; wait for its end, or name another file"), "{line}");
    let other = directory.path().join("other.json");
    run(&mut command(&samples, &validation, &other, &[])).ok();
    first.kill().unwrap();
    first.wait().unwrap();
    run(&mut command(&samples, &validation, &state, &[])).ok();
    let names = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 2, "a lock file was left");
}

/// Sends SIGTERM after the first epoch, twice at once, as launchers do that signal a process and
/// its group. The second one ended the run without its state. Returns standard error without the
/// log.
fn terminated(samples: &Samples, validation: &Samples, state: &Path, more: &[&str]) -> String {
    let mut command = command(samples, validation, state, &["--compute-ms=20"]);
    let run = Rank::start(command.args(more).env("RUST_LOG", "foreread_cli=debug"));
    run.wait_for_epoch(1);
    let process = run.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &process, &process]).status().unwrap().success());
    let finished = run.wait();
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
    finished.stderr.lines().filter(|line| !line.contains(" foreread_cli::")).collect()
}

#[test]
// semantics: STATE-8
fn signal_prints_where_the_run_resumes() {
    let (samples, validation) = (Samples::awkward(400, 2000), Samples::awkward(10, 2000));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state.json");
    let printed = terminated(&samples, &validation, &state, &[]);
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&state).unwrap()).unwrap();
    let expected = format!(
        "foreread: stopped at epoch {}, {} of 400 samples; the state is in {}: the same command resumes \
         there",
        saved["epoch"],
        saved["consumed"],
        state.display()
    );
    assert_eq!(printed, expected);
    std::fs::remove_file(&state).unwrap();
    assert_eq!(terminated(&samples, &validation, &state, &["-q"]), "");
}

#[test]
// semantics: STATE-4, STATE-6
fn finished_run_continues_with_another_batch_size() {
    let (samples, validation) = (Samples::awkward(20, 100), Samples::awkward(5, 100));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state.json");
    assert_eq!(ids(&run(&mut command(&samples, &validation, &state, &[])).json()).len(), 6);
    assert_eq!(ids(&run(&mut command(&samples, &validation, &state, &[])).json()).len(), 0);
    let line = run(&mut command(&samples, &validation, &state, &["--seed=10"])).fails(1);
    assert!(line.contains("the state is of another run: its seed is 9, this run's is 10"), "{line}");
    let more =
        ids(&run(&mut command(&samples, &validation, &state, &["--epochs=4", "--batch-size=7"])).json());
    let passes: Vec<_> = more.iter().map(|(epoch, phase, ids)| (*epoch, phase.as_str(), ids.len())).collect();
    assert_eq!(passes, [(3, "train", 20), (3, "validation", 5)]);
}

#[test]
// semantics: STATE-4
fn state_needs_one_rank_or_cooperating_ranks() {
    let (samples, validation) = (Samples::awkward(20, 100), Samples::awkward(5, 100));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state.json");
    let line = run(&mut command(&samples, &validation, &state, &["--rank=0", "--world-size=2"])).fails(2);
    assert!(line.contains("do not work together"), "{line}");
}

#[test]
fn unwritable_state_is_detected_before_reading() {
    let (samples, validation) = (Samples::awkward(20, 100), Samples::awkward(5, 100));
    let state = Path::new("/no/such/directory/state.json");
    let line = run(&mut command(&samples, &validation, state, &["--origin-limit=10"])).fails(1);
    assert!(line.contains("/no/such/directory/state.json"), "{line}");
}

#[test]
// semantics: SAMPLE-2
fn state_that_would_be_a_sample_is_refused() {
    let samples = Samples::awkward(30, 1000);
    let directory = samples.path().to_str().unwrap();
    let state = format!("{directory}/run.state");
    let printed = run(&mut foreread(["load", directory, "--state", &state])).fails(2);
    assert!(printed.contains("would be a sample of it; keep it elsewhere"), "{printed}");
    assert!(run(&mut foreread(["load", directory, "--state", ""])).fails(2).contains("--state"));
    let hidden = format!("{directory}/.run.state");
    run(&mut foreread(["load", directory, "--state", &hidden, "--epochs", "1"])).ok();
    let again = run(&mut foreread(["load", directory, "--state", &hidden, "--epochs", "1"]));
    let printed = &again.stderr;
    assert!(printed.contains("this run is complete; raise --epochs to continue"), "{printed}");
    again.ok();
}
