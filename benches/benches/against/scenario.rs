//! What is run: the command with some arguments, on one rank or two.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// One way to run the command.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    target: String,
    arguments: &'static [&'static str],
    ranks: u32,
    environment: Vec<(&'static str, String)>,
}

pub fn scenarios(data: &Path, endpoint: &str) -> Vec<Scenario> {
    let data = data.display().to_string();
    let local = |name, arguments, ranks| Scenario {
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
        Scenario {
            name: "object store",
            target: "s3://bench".to_owned(),
            arguments: &["--memory=0", "--epochs=3"],
            ranks: 1,
            environment: keys.map(|(name, value)| (name, value.to_owned())).to_vec(),
        },
    ]
}

impl Scenario {
    /// Seconds that the epochs after the first took, on rank 0.
    pub fn run(&self, build: &Path) -> Result<f64> {
        let meeting = tempfile::tempdir()?;
        let mut others = Vec::new();
        for rank in 1..self.ranks {
            let child = self.command(build, rank, meeting.path()).stdout(Stdio::null()).spawn();
            others.push(Other(child.with_context(|| format!("{} cannot be run", build.display()))?));
        }
        let output = self.command(build, 0, meeting.path()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{} failed: {said}", self.name);
        for mut other in others {
            ensure!(other.0.wait()?.success(), "{}: another rank failed", self.name);
        }
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let epochs = report["epochs"].as_array().context("the report has no epochs")?;
        Ok(epochs.iter().skip(1).filter_map(|epoch| epoch["seconds"].as_f64()).sum())
    }

    fn command(&self, build: &Path, rank: u32, meeting: &Path) -> Command {
        let mut command = Command::new(build);
        command.args(["load", &self.target, "--report=json"]).args(self.arguments);
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null()).stderr(Stdio::piped());
        // No settings of whoever runs this, and no file of settings.
        command.current_dir(meeting).env_remove("RUST_LOG");
        if self.ranks > 1 {
            command.env("FOREREAD_MEET", PathBuf::from(meeting));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.ranks.to_string());
        }
        command
    }
}

/// A rank that does not outlive a failure.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // Where it has ended, there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
