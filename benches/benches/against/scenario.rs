//! The scenarios: the command with different arguments, on one rank or two.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The command's target, arguments, environment and number of ranks.
#[derive(Clone, Debug)]
pub struct CommandScenario {
    pub name: &'static str,
    target: String,
    arguments: &'static [&'static str],
    ranks: u32,
    environment: Vec<(&'static str, String)>,
}

pub fn scenarios(data: &Path, endpoint: &str) -> Vec<CommandScenario> {
    let data = data.display().to_string();
    let local = |name, arguments, ranks| CommandScenario {
        name,
        target: data.clone(),
        arguments,
        ranks,
        environment: Vec::new(),
    };
    let keys = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    vec![
        local("memory tier", &["--memory=1GB", "--epochs=31"], 1),
        local("page-cached directory", &["--memory=0", "--epochs=11"], 1),
        local("throttled origin", &["--memory=200MB", "--origin-limit=400MB/s", "--epochs=4"], 1),
        local("two ranks on one node", &["--memory=1GB", "--epochs=21"], 2),
        CommandScenario {
            name: "object store",
            target: "s3://bench".to_owned(),
            arguments: &["--memory=0", "--epochs=3"],
            ranks: 1,
            environment: keys.map(|(name, value)| (name, value.to_owned())).to_vec(),
        },
    ]
}

impl CommandScenario {
    /// Runs the scenario and returns the seconds of the epochs after the first, on rank 0.
    pub fn run(&self, build: &Path) -> Result<f64> {
        let rendezvous = tempfile::tempdir()?;
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
        Ok(epochs.iter().skip(1).filter_map(|epoch| epoch["seconds"].as_f64()).sum())
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
