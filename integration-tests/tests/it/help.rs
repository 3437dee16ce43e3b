//! Completions, manual pages, and JSON for every command.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{Samples, disk, foreread, load, number, output, run};

#[test]
fn completions_offer_possible_values() {
    // The generators for elvish and PowerShell complete options only.
    for (shell, has_values) in
        [("bash", true), ("elvish", false), ("fish", true), ("powershell", false), ("zsh", true)]
    {
        let script = run(&mut foreread(["completions", shell])).ok();
        assert!(script.contains("look-ahead"), "{shell}: {script}");
        assert_eq!(script.contains("feistel"), has_values, "{shell}: {script}");
    }
    let line = run(&mut foreread(["completions", "csh"])).fails(2);
    assert!(line.contains("bash") && line.contains("foreread completions --help"), "{line}");
}

#[test]
fn bash_completion_is_read_by_bash() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("foreread.bash");
    fs::write(&script, run(&mut foreread(["completions", "bash"])).ok()).unwrap();
    let line = format!(
        ". {}; COMP_WORDS=(foreread load --sampler f); COMP_CWORD=3; _foreread foreread f --sampler; \
         echo ${{COMPREPLY[@]}}",
        script.display()
    );
    let done = output(Command::new("bash").args(["-c", &line]));
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "feistel", "{done:?}");
}

#[test]
fn manual_pages_are_one_per_command() {
    let page = run(&mut foreread(["man"])).ok();
    assert!(page.contains(".TH foreread 1"), "{page}");
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    let printed = run(foreread(["man"]).arg(&pages)).ok();
    for name in ["foreread", "foreread-load", "foreread-cache", "foreread-cache-clean"] {
        let path = pages.join(format!("{name}.1"));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!(".TH {name} 1")), "{name}: {text}");
        assert!(printed.contains(path.to_str().unwrap()), "{printed}");
    }
    let load = fs::read_to_string(pages.join("foreread-load.1")).unwrap();
    assert!(load.contains("Exit codes") && load.contains("feistel"), "{load}");
    assert!(!pages.join("foreread-help.1").exists());
    // The directory cannot be made below a file.
    let line = run(foreread(["man"]).arg(pages.join("foreread.1/x"))).fails(1);
    assert!(line.contains("foreread.1/x"), "{line}");
}

fn json(words: &[&str]) -> Value {
    run(foreread(words.iter()).args(["--report", "json"])).json()
}

#[test]
fn every_command_reports_json() {
    let samples = Samples::awkward(20, 100);
    let scratch = tempfile::tempdir().unwrap();
    let data = samples.path().to_str().unwrap();
    let file = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();

    let order = json(&["order", "--samples", "5", "--sampler", "sequential", "--epoch", "3"]);
    assert_eq!(order["ids"], serde_json::json!([0, 1, 2, 3, 4]));
    assert_eq!((number(&order, "/epoch"), number(&order, "/world_size")), (3, 1));

    let catalog = file("x.foreread");
    let index = json(&["index", data, "-o", &catalog]);
    assert_eq!((number(&index, "/samples"), number(&index, "/bytes")), (20, samples.bytes()));
    assert_eq!((index["catalog"].as_str(), index["format"].as_str()), (Some(&*catalog), Some("files")));
    assert!(index["fingerprint"].is_string() && index.get("shards").is_none(), "{index}");

    assert_eq!(number(&json(&["plan", data]), "/epochs"), 2);
    assert!(json(&["token"])["token"].as_str().is_some_and(|token| token.len() == 32));
    let measured = json(&["calibrate", data, "--seconds", "1", "-o", &file("c.toml")]);
    assert_eq!(number(&measured, "/version"), 1);

    let caches = scratch.path().join("disk");
    load(&samples, &["--epochs=2", &disk(&caches, 20_000_000)]);
    let caches = caches.to_str().unwrap();
    let listed = json(&["cache", "list", caches]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed[0]["in_use"], false);
    assert_eq!(listed[0]["location"], samples.path().to_str().unwrap());
    let removed = json(&["cache", "clean", caches, "--all"]);
    assert_eq!(removed["removed"][0]["dataset"], listed[0]["dataset"]);
    assert_eq!(removed["dry_run"], false);
    assert_eq!(json(&["cache", "list", caches]), serde_json::json!([]));
}

#[test]
fn fingerprints_are_printed_only_with_v() {
    let samples = Samples::awkward(5, 100);
    let scratch = tempfile::tempdir().unwrap();
    let (data, catalog) = (samples.path().to_str().unwrap(), scratch.path().join("c.foreread"));
    for command in [&["plan", data][..], &["index", data, "-o", catalog.to_str().unwrap()]] {
        let printed = run(&mut foreread(command)).ok();
        assert!(!printed.contains("fingerprint"), "{printed}");
        let printed = run(foreread(command).arg("-v")).ok();
        let found = printed.lines().find_map(|line| line.strip_prefix("fingerprint  ")).expect(&printed);
        assert!(found.len() == 32 && found.bytes().all(|byte| byte.is_ascii_hexdigit()), "{printed}");
    }
}

#[test]
fn demo_reports_every_row_as_json() {
    let report = json(&["demo"]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 5, "{report}");
    for run in runs {
        assert_eq!(run["epoch_seconds"].as_array().map(Vec::len), Some(3), "{run}");
        assert!(number(run, "/origin_bytes") >= number(run, "/floor_origin_bytes").min(1), "{run}");
    }
    assert_eq!(number(&report, "/samples"), 600);
}

#[test]
fn token_stays_a_line_where_a_file_wants_json() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("foreread.toml"), "report = 'json'").unwrap();
    let printed = run(foreread(["token"]).current_dir(directory.path())).ok();
    assert_eq!(printed.trim_end().len(), 32, "{printed}");
    // Other commands follow the file.
    let plan = ["plan", "--samples", "5", "--sample-bytes", "9"];
    assert_eq!(number(&run(foreread(plan).current_dir(directory.path())).json(), "/epochs"), 2);
}

#[test]
fn csv_is_refused_outside_of_simulations() {
    let line = run(foreread(["order", "--samples", "3"]).env("FOREREAD_REPORT", "csv")).fails(2);
    assert!(line.contains("csv is for simulate; expected text or json"), "{line}");
}

#[test]
// semantics: DISK-19
fn cleaning_needs_a_selection_and_can_be_tried() {
    let samples = Samples::awkward(20, 1000);
    let scratch = tempfile::tempdir().unwrap();
    load(&samples, &["--epochs=2", &disk(scratch.path(), 20_000_000)]);
    let path = scratch.path().to_str().unwrap();
    let line = run(&mut foreread(["cache", "clean", path])).fails(2);
    assert!(line.contains("--all") && line.contains("--older-than") && line.contains("--dry-run"), "{line}");
    run(&mut foreread(["cache", "clean", path, "--all", "--older-than", "3"])).fails(2);
    let listed = run(&mut foreread(["cache", "list", path])).ok();
    let tried = run(&mut foreread(["cache", "clean", path, "--all", "--dry-run"])).ok();
    assert!(tried.starts_with("would remove "), "{tried}");
    assert_eq!(run(&mut foreread(["cache", "clean", path, "--dry-run"])).ok(), tried);
    assert_eq!(run(&mut foreread(["cache", "list", path])).ok(), listed);
    let young = run(&mut foreread(["cache", "clean", path, "--older-than", "3", "--dry-run"])).ok();
    assert!(young.starts_with("skipped ") && young.contains("not 3"), "{young}");
    let removed = run(&mut foreread(["cache", "clean", path, "--all"])).ok();
    assert_eq!(
        removed.lines().next(),
        tried.lines().next().map(|it| it.replace("would remove", "removed")).as_deref()
    );
}

#[test]
fn unknown_variable_is_a_warning_and_quiet_hides_it() {
    let of = |words: &[&str]| run(foreread(words.iter()).env("FOREREAD_BATCHSIZE", "3"));
    let words = ["order", "--samples", "3"];
    let warned = of(&words);
    assert!(
        warned.stderr.contains("FOREREAD_BATCHSIZE is not a setting, and is ignored"),
        "{}",
        warned.stderr
    );
    assert_eq!(warned.ok().lines().count(), 3);
    assert_eq!(of(&[&["-q"], &words[..]].concat()).stderr, "");
    // RUST_LOG wins over both.
    let mut command = foreread(["-q", "order", "--samples", "3"]);
    let logged = run(command.env("FOREREAD_BATCHSIZE", "3").env("RUST_LOG", "warn"));
    assert!(logged.stderr.contains("FOREREAD_BATCHSIZE"), "{}", logged.stderr);
}

#[test]
fn verbose_run_names_the_settings_file_and_calibration() {
    let samples = Samples::awkward(20, 50_000);
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("foreread.toml"), "seed = 3\n").unwrap();
    let here = |words: &[&str]| {
        let mut command = foreread(words.iter());
        command.current_dir(scratch.path());
        run(&mut command)
    };
    let data = samples.path().to_str().unwrap();
    let printed = here(&["calibrate", data, "--seconds", "1"]).ok();
    assert!(
        printed.contains("written to foreread-calibration.toml; `plan` and `load` find it here"),
        "{printed}"
    );

    let load = ["load", data, "--epochs", "1"];
    let quiet = here(&load);
    assert_eq!(quiet.stderr, "");
    let line =
        "calibration  foreread-calibration.toml in the working directory measured this dataset's storage";
    assert!(quiet.stdout.contains(line), "{}", quiet.stdout);
    let verbose = here(&[&["-v"], &load[..]].concat());
    assert!(verbose.stderr.contains("settings from foreread.toml: seed"), "{}", verbose.stderr);
    assert!(verbose.stderr.contains("foreread-calibration.toml was found"), "{}", verbose.stderr);
    // Plans have times without an option, and none with the option `off`.
    assert!(here(&["plan", data, "--report", "json"]).json().get("forecast").is_some());
    let off = here(&["plan", data, "--report", "json", "--calibration", "off"]).json();
    assert!(off.get("forecast").is_none(), "{off}");

    let other = Samples::awkward(20, 100);
    let foreign = here(&["load", other.path().to_str().unwrap(), "--epochs", "1"]).ok();
    assert!(foreign.contains(&format!("measured {data}, and is not used here")), "{foreign}");
    fs::write(scratch.path().join("foreread-calibration.toml"), "version = 9").unwrap();
    let broken = here(&load);
    assert!(
        broken.stderr.contains("is not a calibration") && broken.stderr.contains("ignored"),
        "{}",
        broken.stderr
    );
    broken.ok();
}

#[test]
fn load_of_a_local_directory_explains_why_memory_is_off() {
    // On a file system in memory or on a disk the kernel caches. Elsewhere there is a memory tier.
    let samples = Samples::awkward(20, 100);
    let data = samples.path().to_str().unwrap();
    let of = |more: &[&str]| run(foreread(["load", data, "--epochs", "1"]).args(more)).ok();
    let line = "memory       off: the kernel already caches this local directory (--memory SIZE forces it)";
    assert!(of(&[]).lines().any(|printed| printed == line), "{}", of(&[]));
    assert!(!of(&["--memory", "1MB"]).contains("off:"));
    assert!(run(&mut foreread(["plan", data])).ok().contains(line));
}
