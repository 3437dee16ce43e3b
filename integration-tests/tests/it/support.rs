//! Helpers of the command's tests: datasets, runs of the command with a deadline, and independently
//! computed expectations.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use foreread_tier_testing::TestRandom;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// The deadline of a command, after which it counts as hanging.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// The `foreread` of this build.
pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_foreread-under-test"))
}

/// The result of a finished command.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// The largest sampled resident set, in bytes.
    pub peak: u64,
}

impl Finished {
    /// Asserts success and returns the output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// Asserts success and parses the output as one JSON object.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Asserts failure with `code` and one line on standard error, and returns the line.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        let line = self.stderr.trim_end().to_owned();
        assert!(line.starts_with("foreread: ") && !line.contains('\n'), "{line}");
        line
    }
}

/// `foreread` with these arguments, without inherited settings, in a directory without
/// `foreread.toml`.
pub fn foreread<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).current_dir(working_directory());
    clean(&mut command);
    command
}

/// The same command with the usual effects of signals, also where the tests were started to ignore
/// some (`nohup`, `&` in a script).
pub fn with_usual_signals(command: &Command) -> Command {
    let mut outer = Command::new("env");
    outer.arg("--default-signal").arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    command.get_current_dir().map(|directory| outer.current_dir(directory));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// A directory without settings and without a calibration, which commands would find. Tests write
/// nothing there.
fn working_directory() -> PathBuf {
    let directory = std::env::temp_dir().join("foreread-integration-tests");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Removes inherited settings from a command that runs `foreread`.
pub fn clean(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("FOREREAD_") || ["RANK", "WORLD_SIZE", "RUST_LOG"].contains(&&*text) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end and samples its memory. A hanging command is killed and fails the
/// test.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    watch(command, DEADLINE, |_| ())
}

/// The same with another deadline, calling `poll` with the process id every few milliseconds.
#[track_caller]
pub fn watch(command: &mut Command, deadline: Duration, mut poll: impl FnMut(u32)) -> Finished {
    let out = tempfile::NamedTempFile::new().unwrap();
    let err = tempfile::NamedTempFile::new().unwrap();
    command.stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let mut peak = 0;
    let status = loop {
        peak = peak.max(high_water(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        poll(child.id());
        if began.elapsed() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} hangs; stderr: {}", fs::read_to_string(err.path()).unwrap());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    Finished { code: status.code(), stdout: read(out.path()), stderr: read(err.path()), peak }
}

/// The largest resident set of a process so far, in bytes. The kernel records it, so rare sampling
/// suffices.
fn high_water(process: u32) -> Option<u64> {
    memory(process, "status", "VmHWM:")
}

/// A value of a process's memory in `/proc`, in bytes. `None` after its end.
pub fn memory(process: u32, file: &str, line: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
    let line = text.lines().find_map(|found| found.strip_prefix(line))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The disk usage of a directory, in bytes of whole blocks.
pub fn taken(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 }; // gone meanwhile
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| taken(&entry.path()));
    metadata.blocks() * 512 + below.sum::<u64>()
}

/// A requirement of a test that this machine may not meet: a program's path, an address, or the
/// words to be put before a command. Such tests are marked as ignored.
#[track_caller]
pub fn needed(variable: &str) -> String {
    let unset = |_| panic!("{variable} is not set: `.ci/tools` sets what these tests need");
    std::env::var(variable).unwrap_or_else(unset)
}

/// Whether this is a long run (`cargo xtask soak`).
pub fn is_soak() -> bool {
    std::env::var_os("FOREREAD_SOAK").is_some()
}

/// A number of repetitions or a size: `usual`, or `soak` under `cargo xtask soak`.
pub fn times(usual: u64, soak: u64) -> u64 {
    if is_soak() { soak } else { usual }
}

/// Runs another program and returns its output.
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Bytes that differ between samples and do not repeat within a sample.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// A directory of samples.
pub struct Samples {
    pub directory: TempDir,
}

impl Samples {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// `count` files of about `bytes` bytes: names with spaces and letters beyond ASCII, folders in
    /// folders, hidden files, and one empty file.
    pub fn awkward(count: u64, bytes: u64) -> Self {
        let samples = Self::new();
        let classes = ["cats and dogs", "Äpfel", "a", "a-b", "zebra/striped one", "zebra", "数字/零", "B"];
        for id in 0..count {
            let class = classes[(id % classes.len() as u64) as usize];
            let name = match id % 4 {
                0 => format!("img {id}.jpg"),
                1 => format!("bild-ü{id}.png"),
                2 => format!("{id}"),
                _ => format!("x_{id:06}.JPEG"),
            };
            let length = if id == 5 { 0 } else { bytes - bytes / 10 + (id * 7919) % (bytes / 5 + 1) };
            samples.add(&format!("{class}/{name}"), &content(id, length as usize));
        }
        samples.add(".hidden", b"no sample");
        samples.add("a/.cache/x.jpg", b"no sample");
        samples
    }

    /// Calls `each` with the path below the directory and the bytes of each file, including hidden
    /// ones.
    pub fn each_file(&self, mut each: impl FnMut(&str, &[u8])) {
        let mut pending = vec![self.path().to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.is_dir() {
                    pending.push(entry);
                } else {
                    let path = entry.strip_prefix(self.path()).unwrap().to_str().unwrap();
                    each(path, &fs::read(&entry).unwrap());
                }
            }
        }
    }

    pub fn add(&self, path: &str, bytes: &[u8]) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The samples' paths in the order of their ids, computed independently of the code under test.
    /// They are sorted by (first directory, containing directory, file name), each as bytes.
    pub fn in_order(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut pending = vec![self.path().to_owned()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
                let name = entry.file_name().into_encoded_bytes();
                if name.starts_with(b".") {
                    continue;
                }
                if entry.file_type().unwrap().is_dir() {
                    pending.push(entry.path());
                    continue;
                }
                let relative = entry.path().strip_prefix(self.path()).unwrap().parent().unwrap().to_owned();
                let first = relative.iter().next().unwrap_or_default().as_encoded_bytes().to_owned();
                found.push((first, relative.into_os_string().into_encoded_bytes(), name, entry.path()));
            }
        }
        found.sort();
        found.into_iter().map(|(.., path)| path).collect()
    }

    /// The sum of all samples' lengths.
    pub fn bytes(&self) -> u64 {
        self.in_order().iter().map(|path| fs::metadata(path).unwrap().len()).sum()
    }

    /// SHA-256 over each sample's id and bytes, in the given order.
    pub fn digest(&self, ids: &[u64]) -> String {
        let paths = self.in_order();
        let mut digest = Sha256::new();
        for &id in ids {
            digest.update(id.to_le_bytes());
            digest.update(fs::read(&paths[id as usize]).unwrap());
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// 4,000 files of about 100 KB, created once for all tests that only read them.
pub fn four_thousand() -> &'static Samples {
    static SAMPLES: OnceLock<Samples> = OnceLock::new();
    SAMPLES.get_or_init(|| Samples::awkward(4000, 100_000))
}

/// The ids printed by `foreread order`.
pub fn order(arguments: &[&str]) -> Vec<u64> {
    let output = run(&mut foreread(["order"].iter().chain(arguments))).ok();
    output.lines().map(|line| line.parse().unwrap()).collect()
}

/// `foreread load --report json` on `samples`.
#[track_caller]
pub fn load(samples: &Samples, arguments: &[&str]) -> Value {
    let target = samples.path().to_str().unwrap();
    run(&mut foreread(["load", target, "--report", "json"].iter().chain(arguments))).json()
}

/// A number in a report.
#[track_caller]
pub fn number(report: &Value, pointer: &str) -> u64 {
    report.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {report}"))
}

/// `--disk` with a directory and its bytes.
pub fn disk(directory: &Path, bytes: u64) -> String {
    format!("--disk={}={bytes}", directory.display())
}

/// The path of this user's cache in a directory.
pub fn cache_root(directory: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    // A new file belongs to the process's user.
    let user = tempfile::tempfile().unwrap().metadata().unwrap().uid();
    directory.join(format!("foreread-cache-{user}"))
}

/// Asserts that every pass of a report in the default order has the digest of its order and files.
#[track_caller]
pub fn assert_digests(samples: &Samples, report: &Value) {
    let count = number(report, "/samples").to_string();
    for epoch in report["epochs"].as_array().unwrap() {
        let ids = order(&["--samples", &count, "--epoch", &epoch["epoch"].to_string()]);
        assert_eq!(epoch["digest"], samples.digest(&ids), "epoch {}", epoch["epoch"]);
    }
}
