//! The compared loaders, and the Python process of each library that runs their jobs. The process
//! forks for each job (`peers/contend.py`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use foreread_benches::loaders::record::{Role, SampleFormat, SourceGroup};
use foreread_benches::usage::touch_memory;
use serde_json::Value;

/// A compared loader: one row of the table.
#[derive(Debug)]
pub struct Contender {
    /// The name in the table.
    pub name: &'static str,
    /// The module in `peers`, and the function in it.
    pub module: &'static str,
    pub function: &'static str,
    pub role: Role,
    /// The format of the samples that it reads.
    pub format: SampleFormat,
    /// The unit of its setting. Empty without a setting.
    pub unit: &'static str,
    /// The settings to try, from files and from a bucket. Empty if the source is not supported.
    local: &'static [u32],
    bucket: &'static [u32],
}

/// The module whose function `convert` makes this format from the raw samples.
pub fn converter(format: SampleFormat) -> Option<&'static str> {
    match format {
        SampleFormat::Raw => None,
        SampleFormat::Mds => Some("mosaic"),
        SampleFormat::Chunks => Some("lit"),
        SampleFormat::Tar => Some("web"),
    }
}

const WORKERS: &[u32] = &[0, 2, 4];
const ONE: &[u32] = &[0];

const fn ours(name: &'static str, function: &'static str, role: Role) -> Contender {
    Contender {
        name,
        module: "ours",
        function,
        role,
        format: SampleFormat::Raw,
        unit: "",
        local: ONE,
        bucket: ONE,
    }
}

const fn peer(
    name: &'static str,
    module: &'static str,
    function: &'static str,
    format: SampleFormat,
) -> Contender {
    Contender {
        name,
        module,
        function,
        role: Role::Peer,
        format,
        unit: "workers",
        local: WORKERS,
        bucket: WORKERS,
    }
}

/// All contenders, in the table's order.
pub const CONTENDERS: [Contender; 12] = [
    Contender {
        role: Role::LowerBound,
        bucket: &[],
        unit: "",
        local: ONE,
        ..peer("os.readv into one buffer", "plain", "floor", SampleFormat::Raw)
    },
    ours("foreread.Loader", "loader", Role::Loader),
    Contender {
        format: SampleFormat::Tar,
        ..ours("foreread.Loader, tar, memory for all", "shards", Role::Shards)
    },
    ours("foreread.Loader, memory for all", "memory", Role::Memory),
    ours("foreread.torch.DataLoader", "torch", Role::Variant),
    Contender { local: &[0, 2], unit: "workers", ..ours("foreread.torch.wrap", "wrap", Role::Variant) },
    peer("PyTorch DataLoader", "plain", "torch", SampleFormat::Raw),
    peer("Mosaic Streaming, MDS", "mosaic", "mosaic", SampleFormat::Mds),
    peer("LitData, chunks", "lit", "chunks", SampleFormat::Chunks),
    peer("LitData, raw files", "lit", "raw", SampleFormat::Raw),
    peer("WebDataset, tar", "web", "web", SampleFormat::Tar),
    Contender {
        local: &[1, 2, 4],
        bucket: &[8, 32],
        unit: "threads",
        ..peer("SPDL", "plain", "spdl", SampleFormat::Raw)
    },
];

impl Contender {
    /// The settings to try in a group.
    pub fn settings(&self, group: SourceGroup) -> &'static [u32] {
        if group == SourceGroup::Local { self.local } else { self.bucket }
    }
}

/// Bytes of memory that are touched before each contender: more than a loader's buffers.
const TOUCHED: usize = 3 << 30;

/// The Python processes, one per module, started on first use and killed on drop.
#[derive(Debug)]
pub struct LoaderProcesses {
    python: PathBuf,
    package: PathBuf,
    running: BTreeMap<&'static str, Option<LoaderProcess>>,
    /// The versions of the imported packages and of Python.
    versions: BTreeMap<String, String>,
}

#[derive(Debug)]
struct LoaderProcess {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl LoaderProcesses {
    pub fn new(python: PathBuf, package: PathBuf) -> Self {
        Self { python, package, running: BTreeMap::new(), versions: BTreeMap::new() }
    }

    /// The versions of all packages imported so far and of Python, by name.
    pub fn versions(&self) -> &BTreeMap<String, String> {
        &self.versions
    }

    /// The modules whose libraries cannot be imported.
    pub fn unavailable(&self) -> Vec<&'static str> {
        self.running.iter().filter(|(_, process)| process.is_none()).map(|(module, _)| *module).collect()
    }

    /// Whether a module's libraries can be imported. Prints the reason if they cannot.
    pub fn has(&mut self, module: &'static str) -> Result<bool> {
        Ok(self.library(module)?.is_some())
    }

    fn library(&mut self, module: &'static str) -> Result<&mut Option<LoaderProcess>> {
        if !self.running.contains_key(module) {
            let started = self.start(module)?;
            self.running.insert(module, started);
        }
        self.running.get_mut(module).context("the library's process was started")
    }

    fn start(&mut self, module: &str) -> Result<Option<LoaderProcess>> {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let mut command = Command::new(&self.python);
        command.arg(peers.join("contend.py")).arg(module);
        command.env("PYTHONPATH", &self.package).env("PYTHONDONTWRITEBYTECODE", "1");
        // Errors arrive in the responses. Libraries write unrelated output to stderr.
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("no pipes to {command:?}")
        };
        let mut library = LoaderProcess { process, stdin, stdout: BufReader::new(stdout) };
        let greeting = library.read_response()?.with_context(|| format!("{command:?} has ended"))?;
        let Some(why) = greeting.get("error").and_then(Value::as_str) else {
            let versions = greeting.get("versions").and_then(Value::as_object).into_iter().flatten();
            self.versions.extend(
                versions.filter_map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned()))),
            );
            return Ok(Some(library));
        };
        eprintln!("{module}: skipped, cannot be imported: {why}");
        Ok(None)
    }

    /// Runs a job and returns its result, or the job's error message. Memory is touched before, so
    /// that no contender pays for pages that a virtual machine's host has to provide.
    pub fn run_job(
        &mut self,
        module: &'static str,
        job: &Value,
    ) -> Result<std::result::Result<Value, String>> {
        let Some(library) = self.library(module)? else { return Ok(Err("not installed".to_owned())) };
        touch_memory(TOUCHED);
        writeln!(library.stdin, "{job}")
            .and_then(|()| library.stdin.flush())
            .with_context(|| format!("{module} has ended"))?;
        let answer = library.read_response()?.with_context(|| format!("{module} has ended"))?;
        Ok(match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        })
    }
}

impl LoaderProcess {
    /// The next response. `None` if the process has ended.
    fn read_response(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line).with_context(|| format!("invalid response: {line}"))?))
    }
}

impl Drop for LoaderProcess {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
