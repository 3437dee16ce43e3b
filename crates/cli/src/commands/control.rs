//! `foreread control`: the control process of a cluster.
//!
//! `serve` runs in the foreground, for service managers. `start` runs `serve` as a process of its
//! own, and returns when it serves. The other commands ask it over the Unix socket of its user.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use foreread::size::ByteSize;
use foreread::{Error, ErrorKind, default_socket};
use foreread_agent::{
    CONTROL_CHANGE, CONTROL_STATUS, CONTROL_STOP, Control as RunningControl, ControlAnswer, ControlRequest,
    ControlSettings, ControlStatus, NodeStatus,
};
use foreread_store::Client;

use super::agent::{gain_text, http_address, job_line, policy_file, print_page, print_policy, storage_line};
use super::daemon;
use crate::arguments::{Control, ControlOptions, ControlTarget};
use crate::signals::Signals;
use crate::{output, settings};

const POLL: Duration = Duration::from_millis(20);

/// How often a node is looked at that is being drained.
const DRAIN_POLL: Duration = Duration::from_millis(250);

pub fn run(options: Control) -> Result<()> {
    match options {
        Control::Serve(options) => serve(&options),
        Control::Start(options) => start(&options),
        Control::Status(target) => status(&target),
        Control::Set { target, changes } => set(&target, &changes),
        Control::Drain { target, wait, node } => drain(&target, &node, wait),
        Control::Forget { target, node } => {
            change(&target, ControlRequest { forget: Some(node), ..ControlRequest::default() }).map(drop)
        }
        Control::Warm { target, dataset } => warm(&target, dataset),
        Control::Stop(target) => stop(&target),
    }
}

/// The socket in a directory next to that of the user's agent: each has its own files there.
fn socket_of(named: Option<&PathBuf>) -> PathBuf {
    let default = || {
        let agent = default_socket();
        let mut directory = agent.parent().unwrap_or(Path::new("/tmp/foreread")).as_os_str().to_owned();
        directory.push("-control");
        PathBuf::from(directory).join("control.sock")
    };
    let socket = named.cloned().unwrap_or_else(default);
    std::path::absolute(&socket).unwrap_or(socket)
}

fn serve(options: &ControlOptions) -> Result<()> {
    let signals = Signals::watch()?;
    let control = RunningControl::start(ControlSettings {
        socket: socket_of(options.socket.as_ref()),
        listen: options.listen.clone(),
        tokens: options.tokens.clone(),
        policy: policy_file(options.policy.as_deref())?,
        http: http_address(&options.http)?,
    })?;
    let is_signalled = signals.flag();
    while !control.is_stopped() && !is_signalled() {
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn start(options: &ControlOptions) -> Result<()> {
    http_address(&options.http)?;
    let socket = socket_of(options.socket.as_ref());
    if Client::connect(&socket.display().to_string()).is_ok() {
        bail!("a control process serves already at {}; `foreread control status` shows it", socket.display());
    }
    // The directory is the user's alone, so nobody can have put a link there.
    let log = foreread_agent::private_directory(&socket)?.join("control.log");
    let mut command = daemon::own_command(&["control", "start"]).context("this program has no path")?;
    command.args(["control", "serve", "--socket"]).arg(&socket);
    command.arg("--listen").arg(&options.listen);
    let tokens = std::path::absolute(&options.tokens).unwrap_or_else(|_| options.tokens.clone());
    command.arg("--tokens").arg(tokens);
    if let Some(policy) = &options.policy {
        command.arg("--policy").arg(policy_file(Some(policy))?);
    }
    if let Some(address) = &options.http.http {
        command.arg("--http").arg(address);
    }
    let status = || status_at(&socket).ok();
    let is_serving = |process| status().is_some_and(|status| status.cluster.process == process);
    let process = daemon::start(command, &log, is_serving)?;
    let address = status().map(|status| status.address).unwrap_or_default();
    let mut out = output::stdout();
    writeln!(
        out,
        "control process {process} serves agents at {address} and its user at {}",
        socket.display()
    )?;
    Ok(out.flush()?)
}

fn status_at(socket: &Path) -> Result<ControlStatus> {
    let answer = daemon::connect(socket, daemon::CONTROL)?.call(CONTROL_STATUS, b"")?;
    serde_json::from_slice(&answer).context("the control process is of another version")
}

fn status(target: &ControlTarget) -> Result<()> {
    let Some(knobs) = settings::gather(&target.settings)? else { return Ok(()) };
    let socket = socket_of(target.socket.as_ref());
    let status = status_at(&socket)?;
    if settings::is_json(&knobs)? { settings::print_json(&status) } else { print(&socket, &status) }
}

fn print(socket: &Path, status: &ControlStatus) -> Result<()> {
    let mut out = output::stdout();
    let cluster = &status.cluster;
    writeln!(out, "control      process {} at {}", cluster.process, output::one_line(&status.address))?;
    let connected = status.nodes.iter().filter(|node| node.is_connected).count();
    writeln!(out, "nodes        {connected} of {} connected", status.nodes.len())?;
    let (held, memory) = (ByteSize(cluster.held_bytes), ByteSize(cluster.memory));
    writeln!(out, "memory       {held} of {memory}, {} samples", cluster.samples)?;
    for origin in &cluster.stores {
        writeln!(out, "store        {}", storage_line(origin))?;
    }
    for dataset in &cluster.datasets {
        let (samples, bytes) = (dataset.samples, ByteSize(dataset.bytes));
        let held = 100.0 * dataset.held_samples as f64 / samples.max(1) as f64;
        let (url, gain) = (output::one_line(&dataset.url), gain_text(dataset.saved_by_gb));
        writeln!(
            out,
            "dataset      {samples} samples, {bytes}, {held:.0}% in memory, copies included{gain}: {url}"
        )?;
    }
    for node in &status.nodes {
        writeln!(out, "node         {}", node_line(node))?;
    }
    for job in &cluster.jobs {
        writeln!(out, "job          {} {}", output::one_line(&job.node), job_line(job))?;
    }
    print_policy(&mut out, &cluster.policy)?;
    for change in &status.changes {
        let ago = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64() - change.time;
        let [what, by] = [&change.change, &change.by].map(|text| output::one_line(text));
        writeln!(out, "change       {ago:.0} s ago by {by}: {what}")?;
    }
    print_page(&mut out, socket)?;
    Ok(out.flush()?)
}

fn node_line(node: &NodeStatus) -> String {
    let state = match (node.is_connected, node.is_draining) {
        (false, _) => format!("silent for {:.0} s", node.silent_seconds),
        (true, true) => "being drained".to_owned(),
        (true, false) => "connected".to_owned(),
    };
    let lease = |lease: &foreread_agent::NodeLease| {
        let rate = format!("{}/s", ByteSize(lease.bytes_per_second));
        format!("{rate} of {}", output::one_line(&lease.store))
    };
    let what = if node.is_connected { "may read" } else { "reserved" };
    let leases: Vec<String> = node.leases.iter().map(lease).collect();
    let leases = if leases.is_empty() { String::new() } else { format!(", {what} {}", leases.join(", ")) };
    let (name, jobs) = (output::one_line(&node.name), node.jobs);
    let (held, memory) = (ByteSize(node.held_bytes), ByteSize(node.memory));
    format!("{name} ({}): {state}, {jobs} jobs, {held} of {memory}{leases}", output::one_line(&node.user))
}

/// The user that requests it, for the log of changes.
fn asker() -> String {
    let name = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    name.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}

fn change(target: &ControlTarget, request: ControlRequest) -> Result<ControlAnswer> {
    settings::gather(&target.settings)?;
    let request = serde_json::to_vec(&ControlRequest { by: asker(), ..request })?;
    let changed =
        daemon::connect(&socket_of(target.socket.as_ref()), daemon::CONTROL)?.call(CONTROL_CHANGE, &request);
    // The process says which key, value or node is wrong.
    let answer = changed.map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
    serde_json::from_slice(&answer).context("the control process is of another version")
}

fn set(target: &ControlTarget, changes: &[String]) -> Result<()> {
    change(target, ControlRequest { set: changes.to_vec(), ..ControlRequest::default() }).map(drop)
}

fn warm(target: &ControlTarget, dataset: String) -> Result<()> {
    // Agents have other working directories.
    let dataset = match std::fs::canonicalize(&dataset) {
        Ok(path) => path.display().to_string(),
        Err(_) => dataset,
    };
    let shown = output::one_line(&dataset).to_string();
    let answer = change(target, ControlRequest { warm: Some(dataset), ..ControlRequest::default() })?;
    if answer.warming == 0 {
        bail!("no agent is connected that could fill its memory with {shown}");
    }
    let mut out = output::stdout();
    writeln!(
        out,
        "{} nodes fill their memory with {shown}; `foreread control status` shows it",
        answer.warming
    )?;
    Ok(out.flush()?)
}

fn drain(target: &ControlTarget, node: &str, wait: Option<f64>) -> Result<()> {
    let socket = socket_of(target.socket.as_ref());
    // The jobs that are left, once the node has confirmed that it takes no new ones.
    let jobs = || -> Result<Option<u64>> {
        let nodes = status_at(&socket)?.nodes;
        let found = nodes.iter().find(|there| there.name == node);
        let found = found.with_context(|| format!("no node is called {node}"))?;
        if !found.is_connected {
            bail!("{node} was not heard for {:.0} s, so its jobs are not known", found.silent_seconds);
        }
        Ok(found.is_draining.then_some(found.jobs))
    };
    jobs()?;
    set(target, &[format!("drain@{node}=true")])?;
    let begun = Instant::now();
    let left = loop {
        let left = jobs()?;
        let is_over = wait.is_some_and(|wait| begun.elapsed().as_secs_f64() >= wait);
        if left == Some(0) || is_over {
            break left;
        }
        std::thread::sleep(DRAIN_POLL);
    };
    let mut out = output::stdout();
    match left {
        Some(0) => writeln!(out, "{node} takes no new jobs, and has none; drain@{node}=none ends that")?,
        Some(left) => writeln!(out, "{node} takes no new jobs, and {left} are still there")?,
        None => writeln!(out, "{node} has not confirmed yet that it takes no new jobs")?,
    }
    Ok(out.flush()?)
}

fn stop(target: &ControlTarget) -> Result<()> {
    settings::gather(&target.settings)?;
    let socket = socket_of(target.socket.as_ref());
    daemon::stop(&socket, daemon::CONTROL, CONTROL_STOP)
}
