//! `foreread run`: programs that are not changed, with and without local copies of their files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::{Duration, SystemTime};

use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent_node::Running;
use crate::support::{Finished, content, foreread, number, run, times};

/// A dataset, and a directory for copies.
pub struct Dataset {
    directory: TempDir,
}

impl Dataset {
    /// `files` files of `length` bytes and more in three directories.
    pub fn new(files: u64, length: usize) -> Self {
        let dataset = Self { directory: tempfile::tempdir().unwrap() };
        for number in 0..files {
            let path = dataset.root().join(format!("c{}/{number:04}.bin", number % 3));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content(number, length + number as usize)).unwrap();
        }
        fs::create_dir(dataset.disk()).unwrap();
        dataset
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn disk(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `foreread run` with copies of at most `bytes`.
    pub fn command(&self, bytes: u64, more: &[&str], words: &[&str]) -> Command {
        let mut command = foreread(["run"]);
        if !more.contains(&"--report") {
            command.args(["--report", "json"]);
        }
        command.arg("--root").arg(self.root());
        command.arg(format!("--disk={}={bytes}", self.disk().display()));
        command.args(more).arg("--").args(words).current_dir(self.directory.path());
        command
    }

    /// Runs a shell command with copies. Returns its output and the report.
    #[track_caller]
    fn shell(&self, bytes: u64, script: &str) -> (String, Value) {
        let finished = run(&mut self.command(bytes, &[], &["sh", "-c", script]));
        let report = report(&finished);
        (finished.ok(), report)
    }

    /// Reads all files until they have copies, or these take half of the bytes.
    pub fn warm(&self, bytes: u64) {
        let files = plain(self.directory.path(), "ls -d data/c*/* | wc -l").trim().parse().unwrap();
        let read = "cat data/c*/* > /dev/null";
        let script = self.until_copied(read, u64::min(files, bytes / 16384 + 1));
        let mut more = 1;
        until("files have copies", || {
            // Copies of files that have changed since are counted, too, so each run is longer.
            let longer = format!("{script}; for time in $(seq {more}); do {read}; done");
            more *= 2;
            let (_, report) = self.shell(bytes, &longer);
            let copies = number(&report, "/host/copies");
            copies == number(&report, "/host/files") || copies * 8192 > bytes / 2
        });
    }

    /// A shell command that runs another one until so many copies are there.
    pub fn until_copied(&self, command: &str, copies: u64) -> String {
        until_copied(&self.disk(), "", command, copies)
    }

    /// The directory of the cache.
    fn cache(&self) -> PathBuf {
        cache_in(&self.disk())
    }

    /// When the last host has begun to serve runs, if there was one.
    fn host_began(&self) -> Option<SystemTime> {
        fs::metadata(self.cache().join("ready")).ok()?.modified().ok()
    }

    /// The paths of all copies.
    pub fn copies(&self) -> Vec<PathBuf> {
        let copies = self.cache().join("copies");
        // A host that was killed at once has made none, and others may remove some meanwhile.
        let folders = fs::read_dir(copies).into_iter().flatten().flatten();
        let files = folders.flat_map(|folder| fs::read_dir(folder.path())).flatten().flatten();
        files.map(|file| file.path()).collect()
    }
}

/// The directory of the cache in a directory for copies.
pub fn cache_in(disk: &Path) -> PathBuf {
    disk.join(format!("foreread-files-{}", rustix::process::geteuid().as_raw()))
}

/// A shell command that runs another one until so many copies are below a directory. `find` counts
/// them, `with` its options.
pub fn until_copied(directory: &Path, with: &str, command: &str, copies: u64) -> String {
    let named = "-path '*/copies/*/*-*' ! -name 'new-*'";
    let there = format!("find {} {named} {with} | wc -l", directory.display());
    format!("while [ $({there}) -lt {copies} ]; do {command}; done")
}

/// The report in the last line of standard error.
#[track_caller]
pub fn report(finished: &Finished) -> Value {
    let line = finished.stderr.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|_| panic!("no report: {}", finished.stderr))
}

/// The output and the report of a run, after its end.
#[track_caller]
pub fn ended(mut run: Running) -> (String, Value) {
    until("the run ends", || run.child.try_wait().unwrap().is_some());
    let errors = run.errors();
    let line = errors.lines().last().unwrap_or_default();
    let report = serde_json::from_str(line).unwrap_or_else(|_| panic!("no report: {errors}"));
    (fs::read_to_string(run.out.path()).unwrap(), report)
}

/// Compiles a C program.
pub fn compile(source: &Path, to: &Path, flags: &[&str]) -> bool {
    let cc = Command::new("cc").args(flags).arg("-o").arg(to).arg(source).output().unwrap();
    cc.status.success()
}

/// The output of a shell command without copies.
fn plain(directory: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-c", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub const ALL: u64 = 100_000_000;

/// The result of `cp -a`: names, kinds, modes, owners, lengths and times.
const LISTING: &str =
    "find out -printf '%P %y %m %u %g %s %T@ %n\\n' | sort; cat $(find out -type f | sort) | sha256sum";

#[test]
// semantics: FILES-5
fn programs_see_the_same_files_at_any_part_of_copies() {
    let dataset = Dataset::new(120, 5000);
    let scripts = [
        "tar cf - --sort=name data | sha256sum".to_owned(),
        format!("rm -rf out; cp -a data out && {LISTING}"),
        "rm -rf out; mkdir out; install -m 644 data/c*/* out && cat out/* | sha256sum".to_owned(),
        "wc -c data/c0/* | tail -1; grep -c x data/c1/0004.bin; sha256sum data/*/* | sha256sum".to_owned(),
        "cd data/c1 && cat ../c0/0003.bin ./0001.bin .//0004.bin | sha256sum".to_owned(),
        "gzip -c data/c2/0002.bin | sha256sum; cmp data/c0/0000.bin data/c0/0003.bin; \
         dd if=data/c0/0003.bin bs=7 \
         skip=3 count=5 2>/dev/null | sha256sum"
            .to_owned()
            + "; true",
    ];
    let expected = scripts.each_ref().map(|script| plain(dataset.directory.path(), script));
    for part in [0, 50, 100] {
        if part > 0 {
            dataset.warm(if part == 50 { 400_000 } else { ALL });
        }
        let bytes = if part == 100 { ALL } else { 400_000 };
        for (script, expected) in scripts.iter().zip(&expected) {
            let (found, report) = dataset.shell(bytes, script);
            assert_eq!(&found, expected, "{part} %: {script}");
            assert!(number(&report, "/opens") > 0, "{report}");
            if part == 100 && !script.contains("data/c1/0004") {
                assert!(number(&report, "/served") >= 2, "{script}: {report}");
            }
        }
    }
}

#[test]
// semantics: FILES-5
fn served_programs_read_the_copies() {
    let dataset = Dataset::new(30, 5000);
    dataset.warm(ALL);
    let copies = dataset.copies();
    assert_eq!(copies.len(), 30);
    // A copy that differs shows which file was read. Programs of the run cannot make it differ.
    let change = "for copy in disk/foreread-files-*/copies/*/*; do
        length=$(stat -c %s $copy); chmod 600 $copy
        head -c $length /dev/zero | tr '\\0' c > $copy; chmod 1444 $copy; done";
    fs::write(dataset.at("change.sh"), change).unwrap();
    let read = "cat data/c*/* | tr -d c | wc -c; cat data/c0/0003.bin | tr -d c | wc -c";
    let (found, report) = dataset.shell(ALL, &format!("env -u LD_PRELOAD sh change.sh; {read}"));
    assert_eq!((found.as_str(), number(&report, "/served")), ("0\n0\n", 31));
    // The next run finds that they were changed.
    let expected = plain(dataset.directory.path(), read);
    assert_eq!(dataset.shell(ALL, read).0, expected);
}

#[test]
// semantics: FILES-6
fn changes_of_programs_are_seen_at_once() {
    let dataset = Dataset::new(30, 5000);
    dataset.warm(ALL);
    let script = "cat data/c0/0000.bin > /dev/null; echo new > data/c0/0000.bin; cat data/c0/0000.bin
        mv data/c0/0003.bin data/c0/0006.bin; wc -c < data/c0/0006.bin
        cat data/c0/0003.bin 2>/dev/null || echo gone
        rm data/c1/0001.bin; cat data/c1/0001.bin 2>/dev/null || echo gone; echo again > data/c1/0001.bin
        cat data/c1/0001.bin; ln -sf 0004.bin data/c1/0007.bin; wc -c < data/c1/0007.bin
        mv data/c2 data/c3; mkdir data/c2; echo other > data/c2/0002.bin; cat data/c2/0002.bin
        wc -c < data/c3/0002.bin; truncate -s 7 data/c1/0010.bin; wc -c < data/c1/0010.bin";
    let (found, _) = dataset.shell(ALL, script);
    assert_eq!(found, "new\n5003\ngone\ngone\nagain\n5004\nother\n5002\n7\n");
    // The next run finds the present files.
    let expected = plain(dataset.directory.path(), "cat data/c*/* | sha256sum");
    assert_eq!(dataset.shell(ALL, "cat data/c*/* | sha256sum").0, expected);
    // Changes by others, between opens and between runs.
    dataset.warm(ALL);
    let script = "touch begun; read line; cat data/c0/0009.bin; read line";
    let mut child = dataset.command(ALL, &[], &["sh", "-c", script]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    until("the program runs", || dataset.at("begun").exists());
    fs::write(dataset.root().join("c0/0009.bin"), b"by another").unwrap();
    child.stdin.take().unwrap().write_all(b"\n\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "by another");
}

#[test]
// semantics: FILES-7
fn runs_share_copies_and_one_takes_over_from_a_killed_host() {
    let dataset = Dataset::new(60, 20_000);
    let expected = plain(dataset.directory.path(), "cat data/c*/* | sha256sum");
    let script = "while [ -e data ] && [ ! -e end ]; do cat data/c*/* | sha256sum; done";
    let start = || Running::start(dataset.command(ALL, &[], &["sh", "-c", script]));
    let epochs = |run: &Running| fs::read_to_string(run.out.path()).unwrap().lines().count();
    let mut host = start();
    until("the host reads", || epochs(&host) > 0);
    let others = [start(), start()];
    until("the other runs read", || others.iter().all(|run| epochs(run) > 0));
    let began = dataset.host_began();
    host.signal(Signal::KILL);
    host.child.wait().unwrap();
    until("another one has taken over", || dataset.host_began() > began);
    until("all files have copies", || dataset.copies().len() == 60);
    let before = others.each_ref().map(epochs);
    until("the copies are read", || {
        others.each_ref().map(epochs).iter().zip(before).all(|(now, it)| *now > it + 2)
    });
    fs::write(dataset.at("end"), b"").unwrap();
    let mut hosts = 0;
    for other in others {
        let (printed, report) = ended(other);
        assert_eq!(printed, expected.repeat(printed.lines().count()));
        assert!(number(&report, "/served") > 60, "{report}");
        hosts += u64::from(report["host"].is_object());
    }
    assert!(hosts >= 1 && dataset.copies().len() == 60, "{hosts} hosts");
}

/// A run of other datasets keeps the copies of earlier ones while there is room, and takes their
/// room then.
#[test]
// semantics: FILES-7
fn datasets_in_turn_keep_their_copies_while_there_is_room() {
    let (one, other) = (Dataset::new(40, 5000), Dataset::new(40, 6000));
    let script = |dataset: &Dataset| {
        let files = format!("cat {}/c*/*", dataset.root().display());
        format!("{files} | sha256sum; {files} | sha256sum")
    };
    // Files of the second one are larger.
    let copied = |dataset: &Dataset, copies| {
        let with = if ptr::eq(dataset, &one) { "-size -5500c" } else { "-size +5500c" };
        until_copied(&one.disk(), with, &format!("cat {}/c*/* > /dev/null", dataset.root().display()), copies)
    };
    let read = |dataset: &Dataset, bytes: u64| {
        let mut command = foreread(["run", "--report", "json", "--disk-writes-per-day", "1e9", "--root"]);
        command.arg(dataset.root()).arg(format!("--disk={}={bytes}", one.disk().display()));
        let all = format!("{}; {}", copied(dataset, 31), script(dataset));
        let finished = run(command.args(["--", "sh", "-c", &all]));
        let report = report(&finished);
        assert_eq!(finished.ok(), plain(one.directory.path(), &script(dataset)), "{report}");
        report
    };
    let host = |report: &Value, name: &str| number(report, &format!("/host/{name}"));
    for dataset in [&one, &other] {
        assert!(host(&read(dataset, ALL), "copied") > 30);
    }
    for dataset in [&one, &other, &one] {
        let report = read(dataset, ALL);
        let adopted = host(&report, "adopted");
        assert!(adopted > 30 && number(&report, "/served") >= 2 * adopted, "{report}");
    }
    // Room for one of them.
    let room = 42 * 8192;
    for dataset in [&other, &one, &other] {
        let report = read(dataset, room);
        assert!(host(&report, "held_bytes") <= room && host(&report, "copies") > 30, "{report}");
        assert!(one.copies().len() <= 42, "{}", one.copies().len());
    }
}

/// A second dataset, by the name of a link, comes to a cache that is in use: by a run that joins,
/// and by a run that takes over from a dead host.
#[test]
// semantics: FILES-7
fn second_dataset_is_served_by_a_cache_in_use() {
    let (one, other) = (Dataset::new(40, 5000), Dataset::new(40, 6000));
    let link = one.at("link");
    std::os::unix::fs::symlink(other.root(), &link).unwrap();
    let files = format!("cat {}/c*/*", link.display());
    let expected = plain(one.directory.path(), &format!("{files} | sha256sum"));
    let join = |root: &Path, script: &str| {
        let mut command = foreread(["run", "--report", "json", "--root"]);
        command.arg(root).arg(format!("--disk={}={ALL}", one.disk().display()));
        command.args(["--", "sh", "-c", script]);
        command
    };
    for kills_host in [false, true] {
        let began = one.host_began();
        let mut host = one.command(
            ALL,
            &[],
            &["sh", "-c", "while [ -e data ] && [ ! -e end ]; do cat data/c*/* > /dev/null; sleep .05; done"],
        );
        let mut host = host.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the host has copies", || one.host_began() > began && one.copies().len() >= 40);
        if kills_host {
            kill_process(Pid::from_raw(host.id() as i32).unwrap(), Signal::KILL).unwrap();
            fs::remove_dir_all(one.disk()).unwrap();
            fs::create_dir(one.disk()).unwrap();
        }
        let copied = one.until_copied(&format!("{files} > /dev/null"), if kills_host { 40 } else { 80 });
        let script = format!("{copied}; for i in 1 2; do {files} | sha256sum; done");
        let finished = run(&mut join(&link, &script));
        let found = report(&finished);
        assert!(number(&found, "/served") >= 40, "kills: {kills_host}, {found}");
        assert_eq!(finished.ok(), expected.repeat(2));
        if !kills_host {
            // The link leads elsewhere now, while the table has it for the other dataset.
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(one.root(), &link).unwrap();
            let finished = run(&mut join(&link, &format!("{files} | sha256sum")));
            assert_eq!(finished.ok(), plain(one.directory.path(), "cat data/c*/* | sha256sum"));
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(other.root(), &link).unwrap();
        }
        fs::write(one.at("end"), b"").unwrap();
        host.wait().unwrap();
        fs::remove_file(one.at("end")).unwrap();
    }
}

/// A run that takes over makes copies of the files that its program opens from then on.
#[test]
// semantics: FILES-7
fn run_that_takes_over_continues_to_copy() {
    let dataset = Dataset::new(60, 5000);
    let idle = "while [ -e data ] && [ ! -e killed ]; do sleep .05; done";
    // The first host has read records of the second run, which were not of its files.
    let script = format!(
        "for i in $(seq 30); do cat data/c0/* > /dev/null; done; {}; touch copied; {idle}
        {}; cat data/c1/* data/c2/* | sha256sum",
        dataset.until_copied("cat data/c0/* > /dev/null", 20),
        dataset.until_copied("cat data/c1/* data/c2/* > /dev/null", 60)
    );
    let expected = plain(dataset.directory.path(), "cat data/c1/* data/c2/* | sha256sum");
    let mut host = Running::start(dataset.command(ALL, &[], &["sh", "-c", idle]));
    until("the host serves runs", || dataset.host_began().is_some());
    let program = Running::start(dataset.command(ALL, &[], &["sh", "-c", &script]));
    until("the first host has copied", || dataset.at("copied").exists());
    host.signal(Signal::KILL);
    host.child.wait().unwrap();
    fs::write(dataset.at("killed"), b"").unwrap();
    let (printed, report) = ended(program);
    assert_eq!(printed, expected);
    assert!(number(&report, "/host/copied") >= 30, "{report}");
}

/// Hosts that are killed at any time leave no part of a copy that a later run would serve.
#[test]
// semantics: FILES-7
fn killed_hosts_leave_whole_copies_only() {
    let dataset = Dataset::new(60, 300_000);
    let expected = plain(dataset.directory.path(), "cat data/c*/* | sha256sum");
    for number in 0..times(6, 100) {
        let mut host = dataset.command(ALL, &[], &["sh", "-c", "cat data/c*/* | sha256sum; sleep 5"]);
        let mut host = host.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20 + number * 37 % 200));
        kill_process(Pid::from_raw(host.id() as i32).unwrap(), Signal::KILL).unwrap();
        host.wait().unwrap();
        // So that there is something to copy again.
        dataset.copies().iter().step_by(3).for_each(|copy| fs::remove_file(copy).unwrap());
        assert_eq!(dataset.shell(ALL, "cat data/c*/* | sha256sum").0, expected, "after {number} kills");
    }
    dataset.warm(ALL);
    let (found, report) = dataset.shell(ALL, "cat data/c*/* | sha256sum");
    assert_eq!((found, number(&report, "/served")), (expected, 60));
    assert_eq!(dataset.copies().len(), 60);
}

#[test]
// semantics: FILES-4
fn files_in_use_stay_while_copies_are_replaced() {
    let dataset = Dataset::new(120, 5000);
    let bytes = 40 * 8192;
    let expected = plain(dataset.directory.path(), "cat data/c*/* | sha256sum");
    let memory = dataset.at("memory");
    fs::create_dir(&memory).unwrap();
    // One process keeps files open through all epochs, until more than 20 copies were replaced.
    let copies = format!("find {} -path '*/copies/*/*-*' ! -name 'new-*' | sort", dataset.disk().display());
    let epoch = "for f in data/c*/*; do cat $f; done | sha256sum";
    let script = format!(
        "exec 3< data/c0/0000.bin 4< data/c0/0003.bin
        while [ $({copies} | wc -l) -lt 38 ]; do {epoch}; done
        {copies} > before
        while [ $({copies} | comm -23 before - | wc -l) -le 20 ]; do {epoch}; done
        wc -c <&3; wc -c <&4"
    );
    let writes = ["--disk-writes-per-day", "1000000"];
    let finished = run(&mut dataset.command(bytes, &writes, &["sh", "-c", &script]));
    let report = report(&finished);
    let printed = finished.ok();
    let epochs = printed.lines().count() - 2;
    assert_eq!(printed, format!("{}5000\n5003\n", expected.repeat(epochs)));
    assert!(number(&report, "/host/held_bytes") <= bytes, "{report}");
    assert!(number(&report, "/host/evicted") > 20 && number(&report, "/served") > 40, "{report}");
    // With the usual budget, nothing is replaced after the disk was filled, and the report says
    // why.
    let script = format!("for time in 1 2 3 4 5; do {epoch}; done");
    let (_, report) = dataset.shell(bytes, &script);
    assert!(number(&report, "/host/over_budget") > 0, "{report}");
}

#[test]
// semantics: FILES-5
fn compiled_programs_are_served_or_reported() {
    let dataset = Dataset::new(30, 5000);
    let source = dataset.at("reader.c");
    let code = "#include <fcntl.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
        int main(int c, char **v) { long n = 0; char b[4096]; for (int i = 1; i < c; i++) {\n\
        int f = open(v[i], O_RDONLY + (c > 1000)); ssize_t l;\n\
        while ((l = read(f, b, sizeof b)) > 0) n += l;\n\
        close(f); } printf(\"%ld\\n\", n); }\n";
    fs::write(&source, code).unwrap();
    dataset.warm(ALL);
    let expected = plain(dataset.directory.path(), "cat data/c*/* | wc -c");
    let builds: [(&str, &[&str], u64); 4] = [
        ("usual", &["-O2"], 30),
        ("checked", &["-O2", "-D_FORTIFY_SOURCE=2", "-Wno-unused-result"], 30),
        ("sanitized", &["-fsanitize=address", "-g"], 30),
        ("static", &["-static"], 0),
    ];
    for (name, flags, served) in builds {
        let program = dataset.at(name);
        if !compile(&source, &program, flags) {
            println!("skipped: this compiler cannot build the {name} program");
            continue;
        }
        let (found, report) = dataset.shell(ALL, &format!("./{name} data/c*/*"));
        assert_eq!((found, number(&report, "/served")), (expected.clone(), served), "{name}: {report}");
        // A static program reads the originals, and is named.
        let unserved = if served == 0 { vec![name] } else { Vec::new() };
        assert_eq!(report["unserved_names"], serde_json::json!(unserved), "{report}");
        let text = run(&mut dataset.command(ALL, &["--report", "text"], &[&format!("./{name}")])).stderr;
        assert_eq!(text.contains(&format!("environment: {name}\n")), served == 0, "{text}");
    }
    let line = run(&mut dataset.command(ALL, &["--catch", "all"], &["true"])).fails(2);
    assert!(line.contains("--catch was removed") && line.contains("originals"), "{line}");
    let said = run(&mut dataset.command(ALL, &["--report", "text"], &["true"])).stderr;
    assert!(said.contains("0 opens of files below --root were seen"), "{said}");
}

#[test]
// semantics: FILES-6
fn random_programs_see_what_they_see_without_copies() {
    let seeds = times(12, 1000);
    let first = u64::from(std::process::id());
    println!("seeds {first} to {}", first + seeds - 1);
    let dataset = Dataset::new(3, 100);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/unchanged/random_program.c");
    let program = dataset.at("random_program");
    assert!(compile(&source, &program, &["-O1"]));
    let twin = dataset.at("twin");
    for tree in [dataset.root(), twin.clone()] {
        for seed in first..first + seeds {
            for file in 0..18 {
                let path = tree.join(format!("{seed}/d{}/f{}", file % 3, file / 3));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content(seed * 100 + file, 1000 + 700 * file as usize)).unwrap();
            }
        }
    }
    let list = "find data -type f -print0 | xargs -0 cat > /dev/null";
    let room = 10 * ALL;
    let (_, report) = dataset.shell(room, &dataset.until_copied(list, 18 * seeds + 3));
    assert_eq!(number(&report, "/host/copies"), 18 * seeds + 3);
    let programs = |tree: &str| {
        let last = first + seeds - 1;
        format!("for s in $(seq {first} {last}); do echo $s $(./random_program $s {tree}/$s 400); done")
    };
    let expected = plain(dataset.directory.path(), &programs("twin"));
    let (found, report) = dataset.shell(room, &programs("data"));
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count() as u64, seeds);
    assert!(number(&report, "/served") > 3 * seeds, "{report}");
    let trees = "cd TREE; find . -type f -o -type l | sort |
        while read f; do echo $f $(cat $f 2>/dev/null | sha256sum); done";
    let of = |tree: &str| plain(dataset.directory.path(), &trees.replace("TREE", tree));
    let (data, twin) = (of("data"), of("twin"));
    let ours: Vec<&str> = data.lines().filter(|line| !line.starts_with("./c")).collect();
    assert_eq!(ours, twin.lines().collect::<Vec<_>>());
}

#[test]
// semantics: FILES-2
fn copies_are_private_and_programs_cannot_write_them() {
    let dataset = Dataset::new(9, 5000);
    dataset.warm(ALL);
    let user = rustix::process::geteuid().as_raw();
    let cache = dataset.disk().join(format!("foreread-files-{user}"));
    assert_eq!(fs::metadata(&cache).unwrap().mode() & 0o777, 0o700);
    for copy in dataset.copies() {
        assert_eq!(fs::metadata(copy).unwrap().mode() & 0o7777, 0o1444);
    }
    // Through its descriptor, a copy cannot be changed either.
    for write in ["printf x 1<> /proc/self/fd/3", "truncate -s 1 /proc/self/fd/3", "printf x > /dev/fd/3"] {
        let (found, _) =
            dataset.shell(ALL, &format!("exec 3< data/c0/0003.bin; {write}; wc -c < data/c0/0003.bin"));
        assert_eq!(found, "5003\n", "{write}");
    }
    // Opened for writing, it is the original.
    let script =
        "test \"$(stat -c %i data/c0/0000.bin)\" = \"$(stat -L -c %i /proc/self/fd/3)\" && echo same";
    let (found, _) = dataset.shell(ALL, &format!("exec 3<> data/c0/0000.bin; {script}"));
    assert_eq!(found, "same\n");
}

#[test]
// semantics: FILES-2
fn copies_in_memory_end_with_the_last_run() {
    let dataset = Dataset::new(30, 5000);
    let user = rustix::process::geteuid().as_raw();
    let cache = PathBuf::from(format!("/dev/shm/foreread-files-{user}"));
    let reads = "for i in 1 2; do cat data/c*/* | sha256sum; done";
    let script = format!("{}; {reads}", until_copied(&cache, "", "cat data/c*/* > /dev/null", 30));
    let mut command = foreread(["run", "--report", "json", "--memory", "20MB", "--root"]);
    command.arg(dataset.root()).args(["--", "sh", "-c", &script]).current_dir(dataset.directory.path());
    let finished = run(&mut command);
    let report = report(&finished);
    assert!(number(&report, "/served") >= 30, "{report}");
    assert_eq!(finished.ok(), plain(dataset.directory.path(), reads));
    let copies = cache.join("copies");
    let left = || {
        let folders = fs::read_dir(&copies).into_iter().flatten();
        folders.flat_map(|folder| fs::read_dir(folder.unwrap().path())).flatten().count()
    };
    assert_eq!(left(), 0);
    // Whichever run ends last.
    let start_with = |script: &str| {
        let mut command = foreread(["run", "--report", "off", "--memory", "20MB", "--root"]);
        command.arg(dataset.root()).args(["--", "sh", "-c", script]).current_dir(dataset.directory.path());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let start =
        || start_with("while [ -e data ] && [ ! -e end ]; do cat data/c*/* > /dev/null; sleep .05; done");
    for _ in 0..3 {
        let runs = [start(), start(), start(), start()];
        until("files are copied", || left() > 0);
        fs::write(dataset.at("end"), b"").unwrap();
        for mut run in runs {
            run.wait().unwrap();
        }
        fs::remove_file(dataset.at("end")).unwrap();
        assert_eq!(left(), 0);
    }
    // Also if the process of the run is killed while its program still reads.
    let script =
        "while [ -e data ] && [ ! -e end ]; do cat data/c*/* | sha256sum > now; mv now read; sleep .05; done";
    let kill = |run: &Child| kill_process(Pid::from_child(run), Signal::KILL).unwrap();
    let mut host = start_with(script);
    until("files are copied", || left() > 0 && dataset.at("read").exists());
    kill(&host);
    host.wait().unwrap();
    until("copies are gone", || left() == 0);
    fs::remove_file(dataset.at("read")).unwrap();
    let expected = plain(dataset.directory.path(), "cat data/c*/* | sha256sum");
    until("the program reads", || dataset.at("read").exists());
    assert_eq!(fs::read_to_string(dataset.at("read")).unwrap(), expected);
    fs::write(dataset.at("end"), b"").unwrap();
    // The output ends with the program, so the waiting process does not keep it open.
    std::io::read_to_string(host.stdout.take().unwrap()).unwrap();
    // And if several are killed together.
    fs::remove_file(dataset.at("end")).unwrap();
    let mut runs = [start(), start(), start()];
    until("files are copied", || left() > 0);
    runs.iter().for_each(kill);
    for run in &mut runs {
        run.wait().unwrap();
    }
    until("copies are gone", || left() == 0);
    fs::write(dataset.at("end"), b"").unwrap();
    // The programs look for it in the directory.
    for run in runs {
        std::io::read_to_string(run.stdout.unwrap()).unwrap();
    }
}

/// A directory in a random order is no part of the order of all.
#[test]
// semantics: FILES-9
fn random_order_of_a_directory_is_not_recognised() {
    let dataset = Dataset::new(600, 2000);
    let epoch = "for f in $(ls data/c1 | shuf); do cat data/c1/$f > /dev/null; done";
    // The second epoch begins when all files of the first one are copied.
    let copied = dataset.until_copied(":", 200);
    let script = format!("{epoch}; {copied}; for i in 2 3 4 5 6 7 8; do {epoch}; done");
    // Room for all of its files and half of the others.
    let (_, report) = dataset.shell(400 * 4096, &script);
    assert_eq!(number(&report, "/host/recognised"), 0, "{report}");
    assert!(number(&report, "/served") >= 1300 && number(&report, "/host/copied") <= 210, "{report}");
}

#[test]
fn mistakes_are_one_line() {
    let dataset = Dataset { directory: tempfile::tempdir().unwrap() };
    let line = |words: &[&str]| {
        let mut command = foreread(["run"]);
        run(command.args(words).current_dir(dataset.directory.path())).fails(2)
    };
    let said = line(&["--root", "s3://bucket/x", "--memory", "1MB", "--", "true"]);
    assert!(said.contains("foreread.torch.DataLoader") && said.contains("mountpoint-s3"), "{said}");
    let said = line(&["--root", "absent", "--memory", "1MB", "--", "true"]);
    assert!(said.contains("--root: there is no absent"), "{said}");
    let said = line(&["--root", ".", "--", "true"]);
    assert!(said.contains("--disk"), "{said}");
    let said = line(&["--root", ".", "--memory", "1MB", "--sampler", "x", "--", "true"]);
    assert!(said.contains("torch:seed=N"), "{said}");
    let missing = ["run", "--root", ".", "--memory", "1MB", "--", "no-such-program"];
    run(foreread(missing).current_dir(dataset.directory.path())).fails(127);
}
