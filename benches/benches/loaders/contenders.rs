//! Who is compared, and how they are asked: a Python process for each library, which forks for each job (`peers/contend.py`).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::place::Group;

/// What a contender is to the figures that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// foreread's loader, which reads each epoch anew.
    Loader,
    /// The same over shards, with memory for all: it reads them in large parts where that is quicker.
    Shards,
    /// The same with memory for all.
    Memory,
    /// foreread otherwise.
    Ours,
    /// What no loader can be below.
    Floor,
    /// Another loader.
    Peer,
}

/// One line of the table.
#[derive(Debug)]
pub struct Contender {
    /// What it is called.
    pub name: &'static str,
    /// Its module in `peers`, and its function there.
    pub module: &'static str,
    pub who: &'static str,
    pub kind: Kind,
    /// Which form of the samples it reads.
    pub form: Form,
    /// What its setting is a number of; nothing where it has none.
    pub unit: &'static str,
    /// Which are tried, from files and from a bucket; none where it cannot read from there.
    local: &'static [u32],
    bucket: &'static [u32],
}

/// A form of the samples, by the name of its directory or bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Raw,
    Mds,
    Chunks,
    Tar,
}

impl Form {
    pub const ALL: [Self; 4] = [Self::Raw, Self::Mds, Self::Chunks, Self::Tar];

    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mds => "mds",
            Self::Chunks => "chunks",
            Self::Tar => "tar",
        }
    }

    /// Whose function `convert` makes it of the raw samples.
    pub fn maker(self) -> Option<&'static str> {
        match self {
            Self::Raw => None,
            Self::Mds => Some("mosaic"),
            Self::Chunks => Some("lit"),
            Self::Tar => Some("web"),
        }
    }
}

const WORKERS: &[u32] = &[0, 2, 4];
const ONE: &[u32] = &[0];

const fn ours(name: &'static str, who: &'static str, kind: Kind) -> Contender {
    Contender { name, module: "ours", who, kind, form: Form::Raw, unit: "", local: ONE, bucket: ONE }
}

const fn peer(name: &'static str, module: &'static str, who: &'static str, form: Form) -> Contender {
    Contender { name, module, who, kind: Kind::Peer, form, unit: "workers", local: WORKERS, bucket: WORKERS }
}

/// All of them, in the table's order.
pub const CONTENDERS: [Contender; 12] = [
    Contender {
        kind: Kind::Floor,
        bucket: &[],
        unit: "",
        local: ONE,
        ..peer("os.readv into one buffer", "plain", "floor", Form::Raw)
    },
    ours("foreread.Loader", "loader", Kind::Loader),
    Contender { form: Form::Tar, ..ours("foreread.Loader, tar, memory for all", "shards", Kind::Shards) },
    ours("foreread.Loader, memory for all", "memory", Kind::Memory),
    ours("foreread.torch.DataLoader", "torch", Kind::Ours),
    Contender { local: &[0, 2], unit: "workers", ..ours("foreread.torch.wrap", "wrap", Kind::Ours) },
    peer("PyTorch DataLoader", "plain", "torch", Form::Raw),
    peer("Mosaic Streaming, MDS", "mosaic", "mosaic", Form::Mds),
    peer("LitData, chunks", "lit", "chunks", Form::Chunks),
    peer("LitData, raw files", "lit", "raw", Form::Raw),
    peer("WebDataset, tar", "web", "web", Form::Tar),
    Contender {
        local: &[1, 2, 4],
        bucket: &[8, 32],
        unit: "threads",
        ..peer("SPDL", "plain", "spdl", Form::Raw)
    },
];

impl Contender {
    /// Which settings are tried in a group.
    pub fn settings(&self, group: Group) -> &'static [u32] {
        if group == Group::Local { self.local } else { self.bucket }
    }
}

/// The processes that are asked, one a module, each begun when it is first needed; dropping them ends them.
#[derive(Debug)]
pub struct Libraries {
    python: PathBuf,
    package: PathBuf,
    running: BTreeMap<&'static str, Option<Library>>,
    /// The packages that have been imported, and Python itself.
    versions: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Library {
    process: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Libraries {
    pub fn new(python: PathBuf, package: PathBuf) -> Self {
        Self { python, package, running: BTreeMap::new(), versions: BTreeMap::new() }
    }

    /// The versions of all packages that were imported so far, by name, and Python's.
    pub fn versions(&self) -> &BTreeMap<String, String> {
        &self.versions
    }

    /// Whether a module's libraries can be imported. Says so where they cannot.
    pub fn has(&mut self, module: &'static str) -> Result<bool> {
        Ok(self.library(module)?.is_some())
    }

    fn library(&mut self, module: &'static str) -> Result<&mut Option<Library>> {
        if !self.running.contains_key(module) {
            let begun = self.begin(module)?;
            self.running.insert(module, begun);
        }
        self.running.get_mut(module).context("a library is as it was left")
    }

    fn begin(&mut self, module: &str) -> Result<Option<Library>> {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let mut command = Command::new(&self.python);
        command.arg(peers.join("contend.py")).arg(module);
        command.env("PYTHONPATH", &self.package).env("PYTHONDONTWRITEBYTECODE", "1");
        // What goes wrong is in its answers; beside that libraries talk.
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        let (Some(say), Some(hear)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{command:?} has no pipes")
        };
        let mut library = Library { process, say, hear: BufReader::new(hear) };
        let said = library.hear()?.with_context(|| format!("{command:?} has ended"))?;
        let Some(why) = said.get("error").and_then(Value::as_str) else {
            let versions = said.get("versions").and_then(Value::as_object).into_iter().flatten();
            self.versions.extend(
                versions.filter_map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned()))),
            );
            return Ok(Some(library));
        };
        eprintln!("{module}: none, as it cannot be imported: {why}");
        Ok(None)
    }

    /// Has a job done: what came out, or why nothing did.
    pub fn ask(&mut self, module: &'static str, job: &Value) -> Result<std::result::Result<Value, String>> {
        let Some(library) = self.library(module)? else { return Ok(Err("not installed".to_owned())) };
        writeln!(library.say, "{job}")
            .and_then(|()| library.say.flush())
            .with_context(|| format!("{module} has ended"))?;
        let answer = library.hear()?.with_context(|| format!("{module} has ended"))?;
        Ok(match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        })
    }
}

impl Library {
    /// The next answer; nothing where it has ended.
    fn hear(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        if self.hear.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line).with_context(|| format!("it said {line}"))?))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
