//! The scenarios: the command with different arguments, on one rank or two.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use foreread_benches::usage::{Usage, touch_memory};
use serde_json::Value;

/// Bytes of memory that are touched before each run: more than a run needs.
const TOUCHED: usize = 2 << 30;

/// The command's target, arguments, environment and number of ranks.
#[derive(Clone, Debug)]
pub struct CommandScenario {
    pub name: &'static str,
    target: String,
    arguments: &'static [&'static str],
    ranks: u32,
    environment: Vec<(&'static str, String)>,
    epochs: CountedEpochs,
}

/// The epochs whose time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedEpochs {
    First,
    /// All after the first.
    Later,
}

/// Wall-clock and CPU seconds of a run. CPU time is that of all its processes, with startup.
#[derive(Clone, Copy, Debug)]
pub struct RunCost {
    pub seconds: f64,
    pub cpu: f64,
}

/// The directories of the samples.
pub struct Data<'a> {
    /// Files of 100 KB and of 320 KB.
    pub files: &'a Path,
    pub large: &'a Path,
    /// The files of 100 KB in tar shards.
    pub shards: &'a Path,
}

/// The scenarios. The store at `endpoint` has objects in `bench` and shards in `shards`.
pub fn scenarios(data: &Data<'_>, endpoint: &str) -> Vec<CommandScenario> {
    use CountedEpochs::{First, Later};
    let on = |data: &Path, name, arguments, ranks, epochs| CommandScenario {
        name,
        target: data.display().to_string(),
        arguments,
        ranks,
        environment: Vec::new(),
        epochs,
    };
    let local = |name, arguments, ranks| on(data.files, name, arguments, ranks, Later);
    let keys = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let bucket = |name, url: &str, arguments, epochs| CommandScenario {
        name,
        target: url.to_owned(),
        arguments,
        ranks: 1,
        environment: keys.map(|(name, value)| (name, value.to_owned())).to_vec(),
        epochs,
    };
    vec![
        local("memory tier", &["--memory=1GB", "--epochs=31"], 1),
        local("page-cached directory", &["--memory=0", "--epochs=11"], 1),
        local("throttled origin", &["--memory=200MB", "--origin-limit=400MB/s", "--epochs=4"], 1),
        local("two ranks on one node", &["--memory=1GB", "--epochs=21"], 2),
        bucket("object store", "s3://bench", &["--memory=0", "--epochs=3"], Later),
        on(data.files, "files into memory", &["--memory=2GB", "--epochs=1"], 1, First),
        on(data.large, "320 KB into memory", &["--memory=2GB", "--epochs=1"], 1, First),
        on(data.shards, "tar into memory", &["--memory=2GB", "--epochs=1"], 1, First),
        on(data.files, "cold, no memory tier", &["--memory=0", "--epochs=1"], 1, First),
        bucket("blocks of a bucket", "s3://shards", &["--memory=0", "--epochs=1"], First),
    ]
}

impl CommandScenario {
    /// Runs the scenario and returns the cost of the counted epochs, the time on rank 0.
    pub fn run(&self, build: &Path) -> Result<RunCost> {
        let rendezvous = tempfile::tempdir()?;
        touch_memory(TOUCHED);
        let start = Instant::now();
        let before = Usage::of_children(start);
        let mut processes = Vec::new();
        for rank in 1..self.ranks {
            let child = self.command(build, rank, rendezvous.path()).stdout(Stdio::null()).spawn();
            processes.push(RankProcess(child.with_context(|| format!("cannot run {}", build.display()))?));
        }
        let output = self.command(build, 0, rendezvous.path()).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{} failed: {stderr}", self.name);
        for mut process in processes {
            ensure!(process.0.wait()?.success(), "{}: another rank failed", self.name);
        }
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let epochs = report["epochs"].as_array().context("the report has no epochs")?;
        let seconds = epochs.iter().filter_map(|epoch| epoch["seconds"].as_f64());
        let seconds = match self.epochs {
            CountedEpochs::First => seconds.take(1).sum(),
            CountedEpochs::Later => seconds.skip(1).sum(),
        };
        Ok(RunCost { seconds, cpu: (Usage::of_children(start) - before).cpu })
    }

    fn command(&self, build: &Path, rank: u32, rendezvous: &Path) -> Command {
        let mut command = Command::new(build);
        command.args(["load", &self.target, "--report=json"]).args(self.arguments);
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null()).stderr(Stdio::piped());
        // The caller's log settings and settings files do not apply.
        command.current_dir(rendezvous).env_remove("RUST_LOG");
        if self.ranks > 1 {
            command.env("FOREREAD_MEET", PathBuf::from(rendezvous));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.ranks.to_string());
        }
        command
    }
}

/// A rank's process, killed on drop.
struct RankProcess(Child);

impl Drop for RankProcess {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
