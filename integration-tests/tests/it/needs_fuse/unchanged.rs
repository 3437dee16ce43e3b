//! Unchanged programs over a file system on a server: the reads of its storage.

use std::fs;
use std::process::{Command, Stdio};

use foreread_lustre_testing::{LayoutSpec, StandInOptions};
use foreread_tier_testing::until;
use serde_json::Value;

use super::{Mounted, mounted};
use crate::support::{foreread, run};
use crate::unchanged::{cache_in, until_copied};

const FILES: usize = 60;
const LENGTH: usize = 100_000;

#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-8
fn unchanged_programs_read_storage_once_in_all() {
    let names: Vec<String> = (0..FILES).map(|number| format!("train/{number:03}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&**name, LENGTH)).collect();
    let options = StandInOptions::new(2).with_layout(|_, _| LayoutSpec::on([0], 1 << 20));
    // The kernel keeps pages over opens, as those of parallel file systems do.
    let options = StandInOptions { cached: true, ..options };
    let mounted = mounted(options, &files);
    let disk = tempfile::tempdir().unwrap();
    let epoch =
        format!("for f in {}/train/*; do cat $f; done | sha256sum", mounted.stand_in.root().display());
    let copied = until_copied(disk.path(), "", ":", FILES as u64);
    let epochs = |count: usize| {
        let mut command = foreread(["run", "--report", "json"]);
        command.arg("--root").arg(mounted.stand_in.root());
        command.arg(format!("--disk={}=100MB", disk.path().display()));
        let script = format!("{}; {copied}", vec![&*epoch; count].join("; "));
        run(command.args(["--", "sh", "-c", &script]))
    };
    let below = format!("cat {}/train/* | sha256sum", mounted.backing.path().display());
    let plain = Command::new("sh").args(["-c", &below]).output().unwrap();
    let plain = String::from_utf8(plain.stdout).unwrap();
    let all = (FILES * LENGTH) as u64;
    mounted.stand_in.reset_counts();
    let finished = epochs(1);
    let first = mounted.stand_in.counts().bytes;
    println!("first epoch: {first} bytes of {all}");
    assert_eq!(finished.stdout, plain);
    assert!(first as f64 <= 1.01 * all as f64, "{first} bytes of {all}");
    mounted.stand_in.reset_counts();
    let finished = epochs(2);
    let report: Value = serde_json::from_str(finished.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&finished.stdout, mounted.stand_in.counts().bytes), (&plain.repeat(2), 0), "{report}");
    assert_eq!(report["served"], 2 * FILES as u64, "{report}");
}

/// Files of a storage whose pages the kernel does not keep over opens.
fn without_pages(files: usize, length: usize) -> Mounted {
    let names: Vec<String> = (0..files).map(|number| format!("train/{number:03}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&**name, length)).collect();
    let options = StandInOptions::new(2).with_layout(|_, _| LayoutSpec::on([0], 1 << 20));
    mounted(options, &files)
}

/// Reads all files by four processes at once.
fn at_once(mounted: &Mounted, times: usize) -> String {
    let root = mounted.stand_in.root().display();
    let epoch = format!("ls -d {root}/train/* | xargs -P 4 -n 1 sha256sum | sort");
    vec![epoch; times].join("; ")
}

/// The output of a program without copies.
fn plain(script: &str) -> String {
    String::from_utf8(Command::new("sh").args(["-c", script]).output().unwrap().stdout).unwrap()
}

/// Runs a script over files whose pages are not kept, and returns the report and the bytes that the
/// storage was read for.
fn run_over(mounted: &Mounted, store: &str, script: &str) -> (Value, u64) {
    let expected = plain(script);
    assert!(!expected.is_empty());
    mounted.stand_in.reset_counts();
    let mut command = foreread(["run", "--report", "json", store, "--root"]);
    let finished = run(command.arg(mounted.stand_in.root()).args(["--", "sh", "-c", script]));
    assert_eq!(finished.stdout, expected, "{}", finished.stderr);
    println!("{}", finished.stderr);
    let report = serde_json::from_str(finished.stderr.lines().last().unwrap()).unwrap();
    (report, mounted.stand_in.counts().bytes)
}

#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-8
fn storage_without_pages_is_read_once_by_the_first_pass() {
    let mounted = without_pages(FILES, LENGTH);
    let disk = tempfile::tempdir().unwrap();
    for store in [format!("--disk={}=100MB", disk.path().display()), "--memory=100MB".to_owned()] {
        let (report, bytes) = run_over(&mounted, &store, &at_once(&mounted, 2));
        let all = (FILES * LENGTH) as f64;
        assert!(bytes as f64 <= 1.02 * all, "{store}: {bytes} bytes of {all}: {report}");
        assert_eq!((&report["opens"], &report["served"]), (&(2 * FILES).into(), &(2 * FILES).into()));
    }
}

#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-8
fn storage_without_pages_is_read_once_with_room_for_half() {
    let mounted = without_pages(FILES, LENGTH);
    let disk = tempfile::tempdir().unwrap();
    let half = FILES * LENGTH.div_ceil(4096) * 4096 / 2;
    let store = format!("--disk={}={half}", disk.path().display());
    let (report, bytes) = run_over(&mounted, &store, &at_once(&mounted, 1));
    let all = (FILES * LENGTH) as f64;
    assert!(bytes as f64 <= 1.02 * all, "{bytes} bytes of {all}: {report}");
    // Files that came together with the last room may have been refused.
    assert!(report["served"].as_u64().unwrap() >= FILES as u64 * 4 / 10, "{report}");
}

#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-7
fn killed_host_keeps_no_program_waiting() {
    let mounted = without_pages(FILES, LENGTH);
    let disk = tempfile::tempdir().unwrap();
    let script = at_once(&mounted, 2);
    let expected = plain(&script);
    for _ in 0..4 {
        let folder = tempfile::tempdir_in(&disk).unwrap();
        // The host is the parent of the shell. It dies in the first pass.
        let first = until_copied(folder.path(), "", ":", 1);
        let kills = format!("({first}; kill -9 $PPID) & {script}");
        let mut command = foreread(["run", "--root"]);
        command.arg(mounted.stand_in.root()).arg(format!("--disk={}=100MB", folder.path().display()));
        let child = command.args(["--", "sh", "-c", &kills]).stdout(Stdio::piped()).spawn().unwrap();
        // Ends when the program does, not when the host dies.
        let finished = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(finished.stdout).unwrap(), expected);
    }
}

#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-7
fn program_that_outlives_its_run_waits_for_no_copy() {
    // Each wait would take .25 s, all of them longer than the test waits.
    const FILES: usize = 1500;
    let mounted = without_pages(FILES, 100);
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let begin = |script: &str| {
        let mut command = foreread(["run", "--root"]);
        command.arg(mounted.stand_in.root()).arg(format!("--disk={}=100MB", at.join("disk").display()));
        command.args(["--", "sh", "-c", script]).current_dir(at).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    fs::create_dir(at.join("disk")).unwrap();
    // Another run's host continues to show that it lives.
    let mut other = begin("cat > /dev/null");
    until("the host begins", || cache_in(&at.join("disk")).join("ready").exists());
    let root = mounted.stand_in.root().display();
    let later = format!(
        "(while [ -d {0} ] && [ ! -e go ]; do sleep .05; done; cat {root}/train/* > new; mv new all) &",
        at.display()
    );
    assert!(begin(&later).wait().unwrap().success());
    fs::write(at.join("go"), "").unwrap();
    until("all files are read", || at.join("all").exists());
    assert_eq!(fs::metadata(at.join("all")).unwrap().len(), 100 * FILES as u64);
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
}

/// The parts of the opens of later epochs that are served, and of their bytes that are read: with
/// room for half of the files. `epoch` is a shell command that prints an epoch's names. `None`
/// without FUSE.
fn later_epochs(files: usize, epoch: impl Fn(usize) -> String) -> [f64; 2] {
    // Each read of later epochs is counted.
    let mounted = without_pages(files, LENGTH);
    let disk = tempfile::tempdir().unwrap();
    let all = (files * LENGTH) as u64;
    // Blocks of the copies count.
    let half = files as u64 * LENGTH.div_ceil(4096) as u64 * 4096 / 2;
    let root = mounted.stand_in.root();
    let script = |number: usize| {
        let names = epoch(number);
        format!("for f in $({names}); do cat {0}/train/$f; done | wc -c", root.display())
    };
    let mut before = [0; 3];
    let mut shares = [0.0; 2];
    for epochs in [1, 5] {
        let folder = disk.path().join(epochs.to_string());
        fs::create_dir(&folder).unwrap();
        mounted.stand_in.reset_counts();
        let mut command = foreread(["run", "--report", "json", "--disk-writes-per-day", "1e9"]);
        command.arg("--root").arg(root).arg(format!("--disk={}={half}", folder.display()));
        let scripts: Vec<String> = (0..epochs).map(script).collect();
        let finished = run(command.args(["--", "sh", "-c", &scripts.join("; ")]));
        let report: Value = serde_json::from_str(finished.stderr.lines().last().unwrap()).unwrap();
        assert_eq!(finished.stdout, format!("{all}\n").repeat(epochs), "{report}");
        let number = |name: &str| report[name].as_u64().unwrap();
        let now = [number("opens"), number("served"), mounted.stand_in.counts().bytes];
        let later: Vec<f64> = now.iter().zip(before).map(|(now, before)| (now - before) as f64).collect();
        shares = [later[1] / later[0], later[2] / (later[0] * LENGTH as f64)];
        before = now;
        println!("{report}");
    }
    println!("{:.3} of the opens of later epochs served; {:.3} of the bytes read", shares[0], shares[1]);
    shares
}

/// Epochs in unannounced orders, with memory for half of the files.
#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-1
fn unknown_orders_are_served_by_files_read_ahead() {
    let shares = later_epochs(120, |_| "seq -w 0 119 | shuf".to_owned());
    assert!(shares[0] >= 0.75 && shares[1] <= 0.54, "{shares:?}");
}

/// Epochs of `DistributedSampler` with a usual seed, in unannounced orders.
#[test]
#[ignore = "needs FUSE"]
// semantics: FILES-9
fn usual_orders_are_recognised_and_served_nearly_whole() {
    let command = foreread(["order"]).get_program().to_string_lossy().into_owned();
    let epoch = |number: usize| {
        format!(
            "{command} order --samples 300 --sampler torch --seed 3 --epoch {number} | \
             while read n; do printf '%03d ' $n; done"
        )
    };
    let shares = later_epochs(300, epoch);
    assert!(shares[0] >= 0.9 && shares[1] <= 0.54, "{shares:?}");
}
