//! `foreread run -- CMD`: a program that is not changed, with local copies of the files that it
//! reads.
//!
//! This process makes copies and the program opens them. Nothing of the program passes through it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use foreread::size::ByteSize;
use foreread::{Error, ErrorKind, SamplerKind};
use foreread_file_cache::{
    CheckOriginals, CopyStore, FileOrder, FileRun, HostCounts, RunReport, RunSettings, memory_directory,
    node_of,
};
use serde::Serialize;

use crate::arguments::{self, RunProgram, RunReportKind};
use crate::{child, output};

/// How long an agent may take to list the datasets.
#[cfg(feature = "share")]
const AGENT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

pub fn run(options: &RunProgram) -> Result<ExitCode> {
    for root in &options.root {
        if let Some(text) = root.to_str().filter(|text| text.contains("://") && !text.starts_with("file:")) {
            return Err(usage(format!(
                "--root {text}: programs that are not changed read directories; use \
                 foreread.torch.DataLoader, or mount the bucket (mountpoint-s3) and give the mount as --root"
            )));
        }
    }
    let settings = RunSettings::new(&options.root, store(options)?).map_err(named)?;
    let settings = settings.with_check(check(options.check));
    let settings = match order(options)? {
        Some(order) => settings.with_order(order),
        None => settings,
    };
    let run = match FileRun::start(settings) {
        Ok(run) => Some(run),
        Err(error) if error.is_invalid() => {
            return Err(usage(format!("--disk: {error}")));
        }
        Err(error) => {
            // The program does not depend on copies.
            output::complain(&format!("{error}; the program runs without copies"));
            None
        }
    };
    let mut variables =
        run.as_ref().map(|run| run.variables(|name| std::env::var_os(name))).unwrap_or_default();
    let [program, arguments @ ..] = &options.words[..] else { bail!("no command") };
    if let Some((run, path)) = run.as_ref().zip(found(program))
        && !run.starts(&path)
    {
        // The dynamic linker would print an error.
        variables.retain(|(name, _)| *name != "LD_PRELOAD");
    }
    let mut command = Command::new(program);
    command.args(arguments).envs(variables);
    let code = match child::spawn(&mut command)? {
        Ok(mut child) => child::exit_code(child::wait(&mut child).context("cannot wait for the command")?),
        Err(code) => return Ok(code),
    };
    match (options.report, run.as_ref().map(FileRun::report)) {
        (RunReportKind::Text, Some(report)) => print(&report),
        (RunReportKind::Json, Some(report)) => {
            let json = serde_json::to_string(&RunJson::of(&report)).context("cannot write the report")?;
            output::note(&json);
        }
        (_, None) | (RunReportKind::Off, _) => {}
    }
    Ok(code)
}

/// The file of a program, as a shell finds it.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let list = std::env::var_os("PATH")?;
    std::env::split_paths(&list).map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn usage(message: String) -> anyhow::Error {
    Error::new(ErrorKind::Usage, message).into()
}

/// A failure of the cache as the command reports it.
fn named(error: foreread_file_cache::FileCacheError) -> anyhow::Error {
    if error.is_invalid() { usage(format!("--root: {error}")) } else { error.into() }
}

fn check(check: arguments::CheckOriginals) -> CheckOriginals {
    match check {
        arguments::CheckOriginals::Auto => CheckOriginals::Auto,
        arguments::CheckOriginals::Open => CheckOriginals::Open,
        arguments::CheckOriginals::Never => CheckOriginals::Never,
    }
}

/// Where copies are kept.
fn store(options: &RunProgram) -> Result<CopyStore> {
    if options.disk.as_ref().is_some_and(|disk| disk.bytes == 0) || options.memory == Some(ByteSize(0)) {
        return Err(usage("--disk DIR=SIZE, --memory SIZE: the size must be above 0".to_owned()));
    }
    if let Some(disk) = &options.disk {
        let (directory, writes_per_day) = (disk.directory.clone(), options.disk_writes_per_day);
        if !(writes_per_day >= 0.0 && writes_per_day.is_finite()) {
            return Err(usage(format!(
                "--disk-writes-per-day {writes_per_day}: expected a number from 0 on"
            )));
        }
        let node = node_of(&directory);
        if let Some(node) = &node {
            let shown = directory.display();
            output::complain(&format!(
                "{shown} is on a file system that nodes share; {node} has a part of it"
            ));
        }
        return Ok(CopyStore::Disk { directory, bytes: disk.bytes, writes_per_day, node });
    }
    let Some(ByteSize(wanted)) = options.memory else { return store_of_agent(options) };
    let Some((directory, there)) = memory_directory() else {
        bail!("--memory: there is no /dev/shm for copies; use --disk with a directory of a tmpfs");
    };
    let most = foreread::free_memory().unwrap_or(u64::MAX).min(there);
    if wanted > most {
        output::complain(&format!(
            "--memory {} is more than the {} that /dev/shm and the memory limits have left; copies take \
             nine tenths of that",
            ByteSize(wanted),
            ByteSize(most)
        ));
    }
    Ok(CopyStore::Memory { directory, bytes: if wanted > most { most / 10 * 9 } else { wanted } })
}

/// Without support of agents.
#[cfg(not(feature = "share"))]
fn store_of_agent(_: &RunProgram) -> Result<CopyStore> {
    Err(usage("--disk DIR=SIZE or --memory SIZE is needed".to_owned()))
}

/// The place for copies of the node's agent, which makes them.
#[cfg(feature = "share")]
fn store_of_agent(options: &RunProgram) -> Result<CopyStore> {
    use std::time::Instant;

    use foreread_store::Client;
    use foreread_store::attach::{FILES, FilesAnswer, FilesRequest};

    let socket = options.agent.socket();
    let none = || {
        let shown = socket.as_ref().map_or_else(String::new, |path| format!(" at {}", path.display()));
        usage(format!("--disk DIR=SIZE or --memory SIZE is needed: no agent with a disk serves{shown}"))
    };
    let path = socket.as_ref().ok_or_else(none)?;
    let client = Client::connect(&path.display().to_string()).map_err(|_| none())?;
    let absolute = options.root.iter().map(std::path::absolute).collect::<Result<_, _>>()?;
    let request = FilesRequest { roots: absolute, check: check(options.check).name().to_owned() };
    let begun = Instant::now();
    let answer =
        client.call_with(FILES, &serde_json::to_vec(&request)?, &mut || begun.elapsed() > AGENT_TIMEOUT);
    let answer = answer.map_err(|error| usage(format!("--agent: {error}; give --disk or --memory")))?;
    let FilesAnswer { directory, bytes, writes_per_day, node } =
        serde_json::from_slice(&answer).context("the agent is of another version")?;
    Ok(CopyStore::Disk { directory, bytes, writes_per_day, node })
}

/// The order that the user has announced.
fn order(options: &RunProgram) -> Result<Option<Box<dyn FileOrder>>> {
    if let Some(path) = &options.order {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let root = std::path::absolute(&options.root[0])?.canonicalize()?;
        // Below the root, or as the program opens it.
        let file = |line: &str| {
            let below = root.join(line);
            if below.exists() { below } else { std::fs::canonicalize(line).unwrap_or(below) }
        };
        let epochs =
            text.split("\n\n").map(|epoch| epoch.lines().filter(|line| !line.is_empty()).map(file).collect());
        let epochs: Vec<Vec<PathBuf>> = epochs.collect();
        if epochs.iter().all(Vec::is_empty) {
            return Err(usage(format!("--order {}: it has no files", path.display())));
        }
        return Ok(Some(Box::new(ListedOrder { epochs, is_checked: false })));
    }
    let Some(sampler) = &options.sampler else { return Ok(None) };
    let seed = sampler.strip_prefix("torch:seed=").and_then(|seed| seed.parse().ok());
    let seed = seed.ok_or_else(|| usage(format!("--sampler {sampler}: expected torch:seed=N")))?;
    Ok(Some(Box::new(SampledOrder { seed })))
}

/// The files of each epoch, from a file. The last epoch's order is that of all later ones.
#[derive(Debug)]
struct ListedOrder {
    epochs: Vec<Vec<PathBuf>>,
    /// Whether lines without a file were reported.
    is_checked: bool,
}

impl FileOrder for ListedOrder {
    fn epoch(&mut self, epoch: u64, files: &[PathBuf]) -> Option<Vec<usize>> {
        let wanted = self.epochs.get(epoch as usize).or_else(|| self.epochs.last())?;
        let numbers: std::collections::HashMap<&Path, usize> =
            files.iter().enumerate().map(|(number, path)| (&**path, number)).collect();
        let found: Vec<usize> = wanted.iter().filter_map(|path| numbers.get(&**path).copied()).collect();
        if found.len() < wanted.len() && !std::mem::replace(&mut self.is_checked, true) {
            let absent = wanted.iter().find(|path| !numbers.contains_key(&***path));
            let (count, all) = (wanted.len() - found.len(), wanted.len());
            output::complain(&format!(
                "--order: {count} of {all} files are not below --root, such as {}",
                absent.map_or_else(String::new, |path| path.display().to_string())
            ));
        }
        Some(found)
    }
}

/// The order of `DistributedSampler` over the files in the order of their paths.
#[derive(Debug)]
struct SampledOrder {
    seed: u64,
}

impl FileOrder for SampledOrder {
    fn epoch(&mut self, epoch: u64, files: &[PathBuf]) -> Option<Vec<usize>> {
        let sampler = foreread::order::sampler(SamplerKind::Torch, files.len() as u64, self.seed).ok()?;
        let order = sampler.order(epoch).ok()?;
        Some((0..order.len()).map(|at| order.at(at).0 as usize).collect())
    }
}

/// The report as JSON.
#[derive(Serialize)]
struct RunJson {
    opens: u64,
    served: u64,
    served_bytes: u64,
    originals: std::collections::BTreeMap<&'static str, u64>,
    /// Starts of programs that do not load the library.
    unserved: u64,
    unserved_names: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostCounts>,
}

impl RunJson {
    fn of(report: &RunReport) -> Self {
        let counts = &report.counts;
        Self {
            opens: counts.opens,
            served: counts.served,
            served_bytes: counts.served_bytes,
            originals: counts.originals.iter().copied().collect(),
            unserved: counts.unserved,
            unserved_names: counts.unserved_names.clone(),
            host: report.host,
        }
    }
}

/// Prints the report on standard error: the program's output is the program's.
fn print(report: &RunReport) {
    let counts = &report.counts;
    if counts.opens == 0 {
        output::note(
            "foreread: 0 opens of files below --root were seen: the program read none, used another name of \
             the directory (give that as --root), or calls the kernel itself (static programs, Go)",
        );
    } else {
        let share = 100.0 * counts.served as f64 / counts.opens as f64;
        let reasons: Vec<String> =
            counts.originals.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let reasons =
            if reasons.is_empty() { String::new() } else { format!("; originals: {}", reasons.join(", ")) };
        output::note(&format!(
            "foreread: {} of {} opens had a local copy ({share:.1} %, {}){reasons}",
            counts.served,
            counts.opens,
            ByteSize(counts.served_bytes)
        ));
    }
    if counts.unserved > 0 {
        output::note(&format!(
            "foreread: {} starts of programs that read originals, because they are static, of 32 bits, or \
             without the environment: {}",
            counts.unserved,
            counts.unserved_names.join(", ")
        ));
    }
    match &report.host {
        Some(host) => print_host(host),
        None => output::note(
            "foreread: another run or an agent on this node made the copies, with its own options",
        ),
    }
}

fn print_host(host: &HostCounts) {
    output::note(&format!(
        "foreread: {} of {} files have copies, {} of {}; {} made here ({}), {} found, {} replaced",
        host.copies,
        host.files,
        ByteSize(host.held_bytes),
        ByteSize(host.capacity),
        host.copied,
        ByteSize(host.copied_bytes),
        host.adopted,
        host.evicted
    ));
    if host.recognised > 0 {
        output::note(&format!(
            "foreread: the order of the files was recognised in {} epochs",
            host.recognised
        ));
    }
    let mut reasons = Vec::new();
    let mut reason = |count: u64, text: &str| {
        if count > 0 {
            reasons.push(format!("{count} {text}"));
        }
    };
    reason(host.over_budget, "over the budget of writes (--disk-writes-per-day)");
    reason(host.no_room, "without room");
    reason(host.unfit, "with holes or extended attributes, in memory (tmpfs), or databases");
    reason(host.failed, "failed (a full disk, or an error: see -v)");
    reason(host.left_out, "without a place in the table");
    if !reasons.is_empty() {
        output::note(&format!("foreread: not copied: {}", reasons.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_files_and_of_the_sampler() {
        let files: Vec<PathBuf> = (0..4).map(|number| PathBuf::from(format!("/data/{number}"))).collect();
        let epoch =
            |names: &[&str]| names.iter().map(|name| PathBuf::from(format!("/data/{name}"))).collect();
        let epochs = vec![epoch(&["2", "absent", "0"]), epoch(&["3"])];
        let mut listed = ListedOrder { epochs, is_checked: false };
        let orders = [0, 1, 2].map(|number| listed.epoch(number, &files).unwrap());
        assert_eq!(orders, [vec![2, 0], vec![3], vec![3]]);
        let mut order = SampledOrder { seed: 0 }.epoch(1, &files).unwrap();
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }
}
