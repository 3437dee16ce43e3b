//! `foreread agent`: one cache for all jobs of a node.
//!
//! `serve` runs in the foreground, for service managers. `start` runs `serve` as a process of its
//! own, and returns when it serves. `run` has an agent in this process, for one command and its
//! children, which find it by `FOREREAD_AGENT`.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use foreread::size::ByteSize;
use foreread::{AGENT_VARIABLE, AgentChoice, Config, Error, ErrorKind, Memory, default_socket};
use foreread_agent::{
    Agent as RunningAgent, AgentSettings, AgentStatus, ControlLinkStatus, ControlTarget, HttpFiles,
    JobStatus, OriginStatus, PolicyValue,
};
use foreread_file_cache::{FilesStatus, HostCounts, RunStatus};
use foreread_settings::{Knobs, reader};
use foreread_store::Client;
use foreread_store::attach::{PolicyChanges, SET, STATUS, STOP};

use super::daemon;
use crate::arguments::{Agent, AgentControl, AgentHttp, AgentOptions, AgentTarget, SettingArguments};
use crate::signals::Signals;
use crate::{child, output, settings};

const POLL: Duration = Duration::from_millis(20);

pub fn run(options: Agent) -> Result<ExitCode> {
    let done = match options {
        Agent::Run { policy, http, control, settings, words } => {
            let options = StartOptions { policy: policy.as_deref(), http: &http, control: &control };
            return run_command(options, &settings, &words);
        }
        Agent::Serve(options) => serve(&options),
        Agent::Start(options) => start(&options),
        Agent::Status(target) => status(&target),
        Agent::Set { target, changes } => set(&target, &changes),
        Agent::Stop(target) => stop(&target),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// The memory and the limits of an agent.
fn agent_config(knobs: &Knobs) -> Result<(u64, Config)> {
    let mut config = foreread_settings::config(knobs)?;
    config.agent = AgentChoice::Off;
    let Memory::Bytes(memory) = config.memory else {
        return Err(knobs.refuse("memory", "an agent needs a size, such as 40GiB").into());
    };
    Ok((memory, config))
}

/// The options of an agent besides its settings.
#[derive(Clone, Copy)]
struct StartOptions<'a> {
    policy: Option<&'a Path>,
    http: &'a AgentHttp,
    control: &'a AgentControl,
}

impl<'a> From<&'a AgentOptions> for StartOptions<'a> {
    fn from(options: &'a AgentOptions) -> Self {
        Self { policy: options.policy.as_deref(), http: &options.http, control: &options.control }
    }
}

fn start_agent(knobs: &Knobs, socket: PathBuf, options: StartOptions<'_>) -> Result<RunningAgent> {
    let (memory, config) = agent_config(knobs)?;
    warn_of_short_memory(memory);
    let (policy, http) = (policy_file(options.policy)?, http_address(options.http)?);
    let control = control_target(options.control)?;
    Ok(RunningAgent::start(AgentSettings { socket, memory, config, policy, http, control })?)
}

/// The control process of the cluster, if one is named.
fn control_target(options: &AgentControl) -> Result<Option<ControlTarget>> {
    let usage = |why: &str| Error::new(ErrorKind::Usage, why);
    match (&options.control, &options.control_token) {
        (Some(_), Some(_))
            if let Some(why) = options.node.as_deref().and_then(foreread_agent::wrong_node_name) =>
        {
            Err(usage(&format!("--node: {why}")).into())
        }
        (Some(address), Some(tokens)) => Ok(Some(ControlTarget {
            address: address.clone(),
            tokens: std::path::absolute(tokens).unwrap_or_else(|_| tokens.clone()),
            node: options.node.clone(),
            share: options.share_choice(),
        })),
        (Some(_), None) => {
            Err(usage("--control needs --control-token FILE, with the token of the cluster").into())
        }
        (None, Some(_)) => Err(usage("--control-token is for --control HOST:PORT").into()),
        (None, None) if options.share.is_some() => Err(usage("--share is for --control HOST:PORT").into()),
        (None, None) => Ok(None),
    }
}

/// The kernel ends an agent that fills more memory than its control group or the machine has.
fn warn_of_short_memory(memory: u64) {
    if let Some(free) = foreread::free_memory().filter(|free| *free < memory) {
        let (memory, free) = (ByteSize(memory), ByteSize(free));
        tracing::warn!(
            "--memory {memory} is more than the {free} that the machine and its memory cgroups have left; \
             the kernel ends the agent when they are full, and jobs then read by themselves"
        );
    }
}

/// The address of `--http`. Only this machine may reach it.
pub(super) fn http_address(options: &AgentHttp) -> Result<Option<SocketAddr>> {
    let Some(text) = &options.http else { return Ok(None) };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Some(address)),
        _ => {
            let expected = "expected a loopback address and a port, such as 127.0.0.1:0 or [::1]:9464";
            Err(Error::new(ErrorKind::Usage, format!("--http {text}: {expected}")).into())
        }
    }
}

/// The absolute path of the policy file: a named one must exist.
pub(super) fn policy_file(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        let cannot = || format!("cannot read the policy file {}", named.display());
        std::fs::metadata(named).with_context(cannot)?;
        // Links stay: a new file may take the place of their target.
        return std::path::absolute(named).with_context(cannot);
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let directory = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Ok(directory.or_else(home).unwrap_or_default().join("foreread").join("agent.toml"))
}

fn serve(options: &AgentOptions) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    check_idle_exit(options)?;
    let signals = Signals::watch()?;
    let agent = start_agent(&knobs, socket_of(options)?, options.into())?;
    let is_signalled = signals.flag();
    let most = options.idle_exit.map_or(Duration::MAX, Duration::from_secs_f64);
    while !agent.is_stopped() && !is_signalled() && agent.idle_time() < most {
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn check_idle_exit(options: &AgentOptions) -> Result<()> {
    match options.idle_exit {
        Some(seconds) if !(0.0..1e9).contains(&seconds) => {
            Err(Error::new(ErrorKind::Usage, "--idle-exit: expected seconds, such as 3600").into())
        }
        _ => Ok(()),
    }
}

fn start(options: &AgentOptions) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    check_idle_exit(options)?;
    let (memory, _) = agent_config(&knobs)?;
    http_address(&options.http)?;
    let control = control_target(&options.control)?;
    warn_of_short_memory(memory);
    let socket = socket_of(options)?;
    if Client::connect(&socket.display().to_string()).is_ok() {
        bail!("an agent serves already at {}; `foreread agent status` shows it", socket.display());
    }
    // The directory is the user's alone, so nobody can have put a link there.
    let log = foreread_agent::private_directory(&socket)?.join("agent.log");
    let mut command = daemon::own_command(&["agent", "start"]).context("this program has no path")?;
    command.args(["agent", "serve", "--socket"]).arg(&socket);
    for (name, value) in &options.settings.given {
        command.arg(format!("--{name}")).arg(value);
    }
    if let Some(policy) = &options.policy {
        command.arg("--policy").arg(policy_file(Some(policy))?);
    }
    if let Some(seconds) = options.idle_exit {
        command.arg("--idle-exit").arg(seconds.to_string());
    }
    if let Some(address) = &options.http.http {
        command.arg("--http").arg(address);
    }
    if let Some(ControlTarget { address, tokens, node, .. }) = control {
        command.arg("--control").arg(address).arg("--control-token").arg(tokens);
        node.iter().for_each(|node| {
            command.arg("--node").arg(node);
        });
        options.control.share.iter().for_each(|share| {
            command.arg("--share").arg(share);
        });
    }
    let is_serving = |process| status_at(&socket).is_ok_and(|status| status.process == process);
    let process = daemon::start(command, &log, is_serving)?;
    let control = status_at(&socket).ok().and_then(|status| status.control);
    if let Some(control) = control.filter(|control| !control.is_connected) {
        tracing::warn!("the agent serves without its control process: {}", control_line(&control));
    }
    let mut out = output::stdout();
    writeln!(out, "agent {process} serves {} at {}", ByteSize(memory), socket.display())?;
    Ok(out.flush()?)
}

/// The absolute path of the socket of an agent that is to run.
fn socket_of(options: &AgentOptions) -> Result<PathBuf> {
    let socket = options.socket.clone().unwrap_or_else(default_socket);
    std::path::absolute(&socket).with_context(|| format!("no such path: {}", socket.display()))
}

/// Runs a command with an agent for it, and returns the command's exit code.
fn run_command(
    options: StartOptions<'_>,
    settings: &SettingArguments<{ reader::AGENT }>,
    words: &[OsString],
) -> Result<ExitCode> {
    let Some(knobs) = settings::gather(settings)? else { return Ok(ExitCode::SUCCESS) };
    let [program, arguments @ ..] = words else { bail!("no command") };
    remove_left_directories();
    let directory = agent_directory().context("cannot create a directory for the agent")?;
    let limit = foreread_agent::FileLimit::current();
    let socket = directory.path().join("node.sock");
    let started = start_agent(&knobs, socket.clone(), options)?;
    if let Some(address) = started.http_address() {
        // Output is often kept where others can read it, so it has no token.
        let link = HttpFiles::of(&socket).link().display().to_string();
        output::complain(&format!("the agent's page is at http://{address}/; {link} has its link"));
    }
    let mut agent = Some(started);
    let mut command = Command::new(program);
    command.args(arguments).env(AGENT_VARIABLE, &socket);
    limit.restore_in(&mut command);
    let mut child = match child::spawn(&mut command)? {
        Ok(child) => child,
        Err(code) => return Ok(code),
    };
    loop {
        if let Some(status) = child::try_wait(&mut child).context("cannot wait for the command")? {
            return Ok(child::exit_code(status));
        }
        // Its jobs then read by themselves.
        if agent.as_ref().is_some_and(RunningAgent::is_stopped) {
            agent = None;
        }
        std::thread::sleep(POLL);
    }
}

/// How the directories of `agent run` begin.
const RUN_DIRECTORY: &str = "foreread-agent-";

/// A directory without an agent is left over, and does not belong to an agent that starts just now.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// A private directory, whose path leaves room for a socket's name.
fn agent_directory() -> std::io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(RUN_DIRECTORY).permissions(Permissions::from_mode(0o700));
    builder.tempdir_in(run_directories())
}

/// Where the directories of `agent run` are. A socket's path has at most 107 bytes.
fn run_directories() -> PathBuf {
    let usual = std::env::temp_dir();
    if usual.as_os_str().len() > 70 { "/tmp".into() } else { usual }
}

/// Removes the directories of this user's earlier runs that were killed.
fn remove_left_directories() {
    let own = rustix::process::geteuid().as_raw();
    let is_left = |directory: &Path| {
        let named =
            directory.file_name().is_some_and(|name| name.as_bytes().starts_with(RUN_DIRECTORY.as_bytes()));
        let socket = directory.join("node.sock");
        let found =
            directory.symlink_metadata().ok().filter(|found| named && found.is_dir() && found.uid() == own);
        // Its lock is as old as the agent.
        let lock = directory.join("agent.lock").symlink_metadata().ok().and_then(|lock| lock.modified().ok());
        let age = lock.and_then(|started| started.elapsed().ok());
        found.is_some()
            && age.is_some_and(|age| age > LEFT_AFTER)
            && foreread_agent::directory_holder(&socket).is_none()
    };
    let found = std::fs::read_dir(run_directories()).into_iter().flatten().flatten();
    for directory in found.map(|entry| entry.path()).filter(|directory| is_left(directory)) {
        if let Err(error) = std::fs::remove_dir_all(&directory) {
            tracing::debug!(%error, directory = %directory.display(), "a directory of a killed run is left");
        }
    }
}

/// The socket of the agent that a command is about.
fn target(target: &AgentTarget) -> PathBuf {
    let named = std::env::var_os(AGENT_VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    let socket = target.socket.clone().or(named).unwrap_or_else(default_socket);
    std::path::absolute(&socket).unwrap_or(socket)
}

fn status_at(socket: &Path) -> Result<AgentStatus> {
    let answer = daemon::connect(socket, daemon::AGENT)?.call(STATUS, b"")?;
    serde_json::from_slice(&answer).context("the agent is of another version")
}

fn status(options: &AgentTarget) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let socket = target(options);
    let status = status_at(&socket)?;
    if settings::is_json(&knobs)? { settings::print_json(&status) } else { print(&socket, &status) }
}

fn print(socket: &Path, status: &AgentStatus) -> Result<()> {
    let mut out = output::stdout();
    let used = status.hits + status.joined + status.disk_reads + status.node_reads + status.reads;
    let share = |count: u64| if used == 0 { 0.0 } else { 100.0 * count as f64 / used as f64 };
    writeln!(out, "agent        process {} at {}", status.process, socket.display())?;
    writeln!(
        out,
        "memory       {} of {}, {} samples",
        ByteSize(status.held_bytes),
        ByteSize(status.memory),
        status.samples
    )?;
    if let Some(disk) = &status.disk {
        let (held, capacity, written) =
            (ByteSize(disk.held_bytes), ByteSize(disk.capacity), ByteSize(disk.written_bytes));
        let refused = match disk.refused {
            0 => String::new(),
            refused => format!(", {refused} samples not written (disk-writes-per-day)"),
        };
        match &disk.problem {
            Some(problem) => writeln!(out, "disk         not used: {}", output::one_line(problem))?,
            None => writeln!(out, "disk         {held} of {capacity}, {written} written{refused}")?,
        }
    }
    if let Some(files) = &status.files {
        writeln!(out, "files        {}", files_line(files))?;
    }
    let from_disk = match status.disk {
        Some(_) => format!("{:.1}% from disk, ", share(status.disk_reads)),
        None => String::new(),
    };
    let from_nodes = match status.node_reads {
        0 => String::new(),
        samples => format!("{:.1}% from other nodes, ", share(samples)),
    };
    writeln!(
        out,
        "requests     {:.1}% from memory, {:.1}% joined another job's read, {from_disk}{from_nodes}{:.1}% \
         read from storage",
        share(status.hits),
        share(status.joined),
        share(status.reads)
    )?;
    let failures = if status.failures > 0 { format!(", {} failed", status.failures) } else { String::new() };
    writeln!(out, "storage      {} samples, {}{failures}", status.reads, ByteSize(status.read_bytes))?;
    if let Some(control) = &status.control {
        writeln!(out, "control      {}", control_line(control))?;
    }
    for origin in &status.stores {
        writeln!(out, "store        {}", storage_line(origin))?;
    }
    for dataset in &status.datasets {
        let url = output::one_line(&dataset.url);
        let held = 100.0 * dataset.held_samples as f64 / dataset.samples.max(1) as f64;
        let (samples, bytes) = (dataset.samples, ByteSize(dataset.bytes));
        let gain = gain_text(dataset.saved_by_gb);
        writeln!(out, "dataset      {samples} samples, {bytes}, {held:.0}% in memory{gain}: {url}")?;
    }
    for job in &status.jobs {
        let of_node = if job.node.is_empty() { String::new() } else { output::one_line(&job.node) + " " };
        writeln!(out, "job          {of_node}{}", job_line(job))?;
    }
    for run in status.files.iter().flat_map(|files| &files.runs) {
        writeln!(out, "program      {}", run_line(run))?;
    }
    print_policy(&mut out, &status.policy)?;
    print_page(&mut out, socket)?;
    Ok(out.flush()?)
}

/// The policy in force.
pub(super) fn print_policy(out: &mut impl Write, policy: &[PolicyValue]) -> Result<()> {
    for value in policy {
        let [key, shown, source] =
            [&value.key, &value.value, &value.source].map(|text| output::one_line(text));
        writeln!(out, "policy       {key}={shown} ({source})")?;
    }
    Ok(())
}

/// Where the page of the process with this socket is.
pub(super) fn print_page(out: &mut impl Write, socket: &Path) -> Result<()> {
    let files = HttpFiles::of(socket);
    match files.page() {
        Some(link) => writeln!(out, "page         {}", output::one_line(&link))?,
        None if files.socket().exists() => {
            writeln!(out, "page         at the Unix socket {}", files.socket().display())?
        }
        None => {}
    }
    Ok(())
}

/// The savings by a gigabyte more of memory, if they are known and worth a word.
pub(super) fn gain_text(saved_by_gb: f64) -> String {
    if saved_by_gb < 1e5 {
        return String::new();
    }
    format!(" (1 GB more saves {}/s)", ByteSize(saved_by_gb as u64))
}

fn control_line(control: &ControlLinkStatus) -> String {
    let ControlLinkStatus { address, node, is_connected, is_draining, problem, shares_with } = control;
    let [address, node] = [address, node].map(|text| output::one_line(text));
    let state = match (is_connected, problem) {
        (true, _) if *is_draining => "connected, and being drained: no new jobs".to_owned(),
        (true, _) => "connected".to_owned(),
        (false, Some(problem)) => format!("not reached: {}", output::one_line(problem)),
        (false, None) => "not reached yet".to_owned(),
    };
    let shared = match shares_with {
        0 => String::new(),
        nodes => format!("; {nodes} nodes have one cache"),
    };
    format!("{address} as {node}: {state}{shared}")
}

fn files_line(files: &FilesStatus) -> String {
    let HostCounts { copies, files: all, copied, copied_bytes, evicted, .. } = files.host;
    let (held, capacity) = (ByteSize(files.host.held_bytes), ByteSize(files.host.capacity));
    let made = format!("{copied} made ({}), {evicted} replaced", ByteSize(copied_bytes));
    format!("{copies} of {all} files have copies, {held} of {capacity}; {made}")
}

fn run_line(run: &RunStatus) -> String {
    let share = if run.opens == 0 { 0.0 } else { 100.0 * run.served as f64 / run.opens as f64 };
    format!(
        "process {}: {} of {} opens had a local copy ({share:.1} %, {})",
        run.process,
        run.served,
        run.opens,
        ByteSize(run.served_bytes)
    )
}

pub(super) fn storage_line(origin: &OriginStatus) -> String {
    let rate = |bytes: f64| format!("{}/s", ByteSize(bytes as u64));
    let mut limit = origin.limit.map(|limit| format!(" of {}", rate(limit as f64))).unwrap_or_default();
    if origin.reserved > 0 {
        limit.push_str(&format!(" ({} reserved for nodes that are not heard)", rate(origin.reserved as f64)));
    }
    let OriginStatus { reading, queued, bytes_per_second, .. } = origin;
    let name = output::one_line(&origin.name);
    format!("{name}: {}{limit}, {reading} reads under way, {queued} wait", rate(*bytes_per_second))
}

pub(super) fn job_line(job: &JobStatus) -> String {
    let (name, datasets) = (output::one_line(&job.name), output::one_line(&job.datasets.join(", ")));
    let used = job.hits + job.joined + job.disk_reads + job.reads;
    let mut line =
        format!("process {} ({name}) reads {datasets}: {:.0}/s", job.process, job.samples_per_second);
    if used > 0 {
        let share = 100.0 * (job.hits + job.joined + job.disk_reads) as f64 / used as f64;
        line.push_str(&format!(", {share:.0}% without a read"));
    }
    if job.node_reads > 0 {
        let share = 100.0 * job.node_reads as f64 / (used + job.node_reads) as f64;
        line.push_str(&format!(", {share:.0}% from other nodes"));
    }
    if let Some(expected) = job.expected_hit_share {
        line.push_str(&format!(" ({:.0}% expected)", 100.0 * expected));
    }
    if job.weight > 1 {
        line.push_str(&format!(", weight {}", job.weight));
    }
    if let Some(cause) = &job.waits_for {
        line.push_str(&format!(
            ", stalled {:.0}%, waits for {}",
            100.0 * job.stalled_share,
            output::one_line(cause)
        ));
    }
    line
}

fn set(options: &AgentTarget, changes: &[String]) -> Result<()> {
    let Some(_) = settings::gather(&options.settings)? else { return Ok(()) };
    let changes = serde_json::to_vec(&PolicyChanges { changes: changes.to_vec() })?;
    let set = daemon::connect(&target(options), daemon::AGENT)?.call(SET, &changes);
    // The agent says which key or value is wrong.
    set.map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
    Ok(())
}

fn stop(options: &AgentTarget) -> Result<()> {
    let Some(_) = settings::gather(&options.settings)? else { return Ok(()) };
    daemon::stop(&target(options), daemon::AGENT, STOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_of_a_control_process_are_wrong_usage() {
        let cases = [
            (Some("localhost:1"), Some("/token"), Some("*"), None, "--node: '*': expected 1 to "),
            (Some("localhost:1"), Some("/token"), Some("a@b"), None, "--node: 'a@b': expected 1 to "),
            (Some("localhost:1"), None, None, None, "--control needs --control-token"),
            (None, Some("/token"), None, None, "--control-token is for --control"),
            (None, None, None, Some("off"), "--share is for --control"),
        ];
        for (control, control_token, node, share, expected) in cases {
            let [control, node, share] = [control, node, share].map(|text| text.map(str::to_owned));
            let options = AgentControl { control, control_token: control_token.map(Into::into), node, share };
            let error = control_target(&options).err().unwrap();
            assert_eq!(error.downcast_ref::<Error>().unwrap().kind(), ErrorKind::Usage);
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
