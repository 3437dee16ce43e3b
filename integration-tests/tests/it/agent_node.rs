//! A store and an agent on this node, and jobs that use them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use foreread_store::Client;
use foreread_store::attach::STATUS;
use foreread_tier_testing::store::{HttpStore, NumberedObjects};
use foreread_tier_testing::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::s3::at;
use crate::support::{number, run};

/// The length of each sample, and its bytes in an agent's memory.
pub(crate) const LENGTH: u64 = 10_000;
pub(crate) const TAKEN: u64 = 10_048 + 192;

/// The seconds for which jobs wait for an agent that is late, as those of a busy machine are.
pub(crate) const PATIENT: (&str, &str) = ("FOREREAD_TEST_SILENCE", "60");

/// A store, and an agent for its bucket.
pub(crate) struct Node {
    pub(crate) store: HttpStore,
    pub(crate) directory: TempDir,
    /// The agent's process.
    pub(crate) process: u32,
}

impl Node {
    /// A bucket of `samples` samples, and an agent with memory for `kept` of them.
    pub(crate) fn new(samples: u64, kept: u64) -> Self {
        let mut node = Self::without_agent(samples, LENGTH);
        node.start(kept * TAKEN);
        node
    }

    /// A bucket of `samples` samples of `length` bytes, and no agent yet.
    pub(crate) fn without_agent(samples: u64, length: u64) -> Self {
        let store = HttpStore::start();
        store.numbered("train", NumberedObjects::new(samples, length));
        let node = Self { store, directory: tempfile::tempdir().unwrap(), process: 0 };
        fs::set_permissions(node.directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        node
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("node.sock")
    }

    /// `foreread` with the store's keys.
    pub(crate) fn foreread(&self, arguments: &[&str]) -> Command {
        let mut command = at(&self.store, arguments);
        command.env(PATIENT.0, PATIENT.1);
        command
    }

    pub(crate) fn agent(&self, arguments: &[&str]) -> Command {
        let mut command = self.foreread(&["agent"]);
        command.args(arguments).arg("--socket").arg(self.socket());
        command
    }

    pub(crate) fn start(&mut self, memory: u64) {
        self.start_with(memory, &[]);
    }

    pub(crate) fn start_with(&mut self, memory: u64, arguments: &[&str]) {
        run(self.agent(&["start", "--memory", &memory.to_string()]).args(arguments)).ok();
        self.process = number(&self.status(), "/process") as u32;
    }

    pub(crate) fn status(&self) -> Value {
        run(&mut self.agent(&["status", "--report", "json"])).json()
    }

    /// The status without a process for it, which may take long to start.
    pub(crate) fn look(&self) -> Value {
        look(&self.socket())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process as i32).unwrap(), signal).unwrap();
    }

    /// A job over the bucket that uses the agent.
    pub(crate) fn job(&self, arguments: &[&str]) -> Command {
        let mut command = self.foreread(&["load", "s3://train", "--look-ahead", "1MB", "--report", "json"]);
        command.args(["--digest", "--progress", "off"]).args(arguments);
        command.arg("--agent").arg(self.socket());
        command
    }

    /// Runs these jobs at once and returns their reports.
    pub(crate) fn all(&self, jobs: &[&[&str]]) -> Vec<Value> {
        let running: Vec<Running> =
            jobs.iter().map(|arguments| Running::start(self.job(arguments))).collect();
        running.into_iter().map(Running::report).collect()
    }

    /// The digests of a job that reads by itself.
    pub(crate) fn digests(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = self.foreread(&["load", "s3://train", "--report", "json", "--digest"]);
        digests(&run(command.args(arguments).args(["--agent", "off"])).json())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(process) = Pid::from_raw(self.process as i32) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The status of the agent at a socket, without a process for it.
pub(crate) fn look(socket: &Path) -> Value {
    let client = Client::connect(&socket.display().to_string()).unwrap();
    serde_json::from_slice(&client.call(STATUS, b"").unwrap()).unwrap()
}

/// A job that runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) out: tempfile::NamedTempFile,
    pub(crate) err: tempfile::NamedTempFile,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.errors());
        }
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let (out, err) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        command.stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
        Self { child: command.spawn().unwrap(), out, err }
    }

    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.err.path()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    pub(crate) fn report(mut self) -> Value {
        let mut status = None;
        until("the job ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {}", self.errors());
        serde_json::from_str(&fs::read_to_string(self.out.path()).unwrap()).unwrap()
    }
}

pub(crate) fn digests(report: &Value) -> Vec<String> {
    let epochs = report["epochs"].as_array().unwrap();
    epochs.iter().map(|epoch| epoch["digest"].as_str().unwrap().to_owned()).collect()
}

/// The delivered samples that were read for their use, by the agent or directly. The look-ahead may
/// still hold a sample at its next use.
pub(crate) fn fetched(report: &Value) -> u64 {
    let epochs = report["epochs"].as_array().unwrap();
    let held = epochs.iter().map(|epoch| number(epoch, "/reads/memory/samples")).sum::<u64>();
    epochs.iter().map(|epoch| number(epoch, "/samples")).sum::<u64>() - held
}

/// Asserts that a store got these requests, and at most those by which late reads are hedged: 16,
/// and three of a hundred. On a busy machine, many reads are late.
#[track_caller]
pub(crate) fn assert_requests(got: u64, expected: u64) {
    let hedged = 16 + expected * 3 / 100;
    assert!((expected..=expected + hedged).contains(&got), "{got} instead of {expected}");
}
