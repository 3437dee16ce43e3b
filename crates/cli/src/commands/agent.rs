//! `foreread agent`: one cache for all jobs of a node.
//!
//! `serve` runs in the foreground, for service managers. `start` runs `serve` as a process of its
//! own, and returns when it serves. `run` has an agent in this process, for one command and its
//! children, which find it by `FOREREAD_AGENT`.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use foreread::size::ByteSize;
use foreread::{AGENT_VARIABLE, AgentChoice, Config, Memory, default_socket};
use foreread_agent::{Agent as RunningAgent, AgentSettings, AgentStatus};
use foreread_settings::Knobs;
use foreread_store::Client;
use foreread_store::attach::{STATUS, STOP};

use crate::arguments::{Agent, AgentOptions, AgentSet, AgentTarget, Settings};
use crate::signals::Signals;
use crate::{output, settings};

/// How long `start` waits until the agent serves.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long `stop` waits until the agent is gone.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(20);

pub fn run(options: Agent) -> Result<ExitCode> {
    let done = match options {
        Agent::Run { settings, words } => return run_command(&settings, &words),
        Agent::Serve(options) => serve(&options),
        Agent::Start(options) => start(&options),
        Agent::Status(target) => status(&target),
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

fn start_agent(knobs: &Knobs, socket: PathBuf) -> Result<RunningAgent> {
    let (memory, config) = agent_config(knobs)?;
    Ok(RunningAgent::start(AgentSettings { socket, memory, config })?)
}

fn serve(options: &AgentOptions) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let signals = Signals::watch()?;
    let agent = start_agent(&knobs, options.socket.clone().unwrap_or_else(default_socket))?;
    let is_signalled = signals.flag();
    agent.wait(is_signalled);
    Ok(())
}

fn start(options: &AgentOptions) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let (memory, _) = agent_config(&knobs)?;
    let socket = options.socket.clone().unwrap_or_else(default_socket);
    if Client::connect(&socket.display().to_string()).is_ok() {
        bail!("an agent serves already at {}; `foreread agent status` shows it", socket.display());
    }
    let log = std::env::temp_dir().join(format!("foreread-agent-{}.log", std::process::id()));
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("this program has no path")?);
    command.args(["agent", "serve", "--socket"]).arg(&socket);
    for (name, value) in &options.settings.given {
        command.arg(format!("--{name}")).arg(value);
    }
    // A group of its own: signals of this terminal do not reach it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let mut child = command.spawn().context("cannot start the agent's process")?;
    if let Err(error) = wait_until_serving(&mut child, &socket) {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        std::fs::remove_file(&log).ok();
        let _ = child.kill();
        return Err(match text.trim() {
            "" => error,
            text => anyhow::anyhow!("{}", text.trim_start_matches("foreread: ").trim_start_matches("error: ")),
        });
    }
    // The process keeps writing to it. Its name has no use any more.
    std::fs::remove_file(&log).ok();
    let mut out = output::stdout();
    writeln!(
        out,
        "agent {} serves {} at {}",
        child.id(),
        ByteSize(memory),
        socket.display()
    )?;
    Ok(out.flush()?)
}

fn wait_until_serving(child: &mut Child, socket: &Path) -> Result<()> {
    let begun = Instant::now();
    while Client::connect(&socket.display().to_string()).is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("the agent ended at once: {status}");
        }
        if begun.elapsed() > START_TIMEOUT {
            bail!("the agent does not serve after {} s", START_TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Runs a command with an agent for it, and returns the command's exit code.
fn run_command(settings: &Settings<AgentSet>, words: &[OsString]) -> Result<ExitCode> {
    let Some(knobs) = settings::gather(settings)? else { return Ok(ExitCode::SUCCESS) };
    let [program, arguments @ ..] = words else { bail!("no command") };
    // The directory is private, so nobody else can use the agent.
    let directory = tempfile::Builder::new()
        .prefix("foreread-agent-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .context("cannot create a directory for the agent")?;
    let signals = Signals::watch()?;
    let agent = start_agent(&knobs, directory.path().join("node.sock"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .env(AGENT_VARIABLE, agent.socket())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut ended = None;
    let mut passed = false;
    agent.wait(|| {
        // A launcher signals this process alone. A terminal signals both.
        if !passed && signals.received().is_some() {
            passed = true;
            signals.pass_on(child.id());
        }
        ended = child.try_wait().transpose();
        ended.is_some()
    });
    let status = match ended {
        Some(status) => status,
        // It was stopped before the command has ended.
        None => child.wait(),
    };
    drop(agent);
    Ok(exit_code(status.context("cannot wait for the command")?))
}

/// The exit code of a shell for a command.
fn exit_code(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, Some(signal)) => ExitCode::from(128 + signal as u8),
        (None, None) => ExitCode::FAILURE,
    }
}

/// The socket of the agent that a command is about.
fn target(target: &AgentTarget) -> PathBuf {
    let named = std::env::var_os(AGENT_VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    target.socket.clone().or(named).unwrap_or_else(default_socket)
}

fn connect(socket: &Path) -> Result<Client> {
    Client::connect(&socket.display().to_string()).map_err(|_| {
        anyhow::anyhow!("no agent serves at {}; `foreread agent start` starts one", socket.display())
    })
}

fn status(options: &AgentTarget) -> Result<()> {
    let Some(knobs) = settings::gather(&options.settings)? else { return Ok(()) };
    let socket = target(options);
    let answer = connect(&socket)?.call(STATUS, b"")?;
    let status: AgentStatus = serde_json::from_slice(&answer).context("the agent is of another version")?;
    if settings::is_json(&knobs)? { settings::print_json(&status) } else { print(&socket, &status) }
}

fn print(socket: &Path, status: &AgentStatus) -> Result<()> {
    let mut out = output::stdout();
    let used = status.hits + status.joined + status.reads;
    let share = |count: u64| if used == 0 { 0.0 } else { 100.0 * count as f64 / used as f64 };
    writeln!(out, "agent        process {} at {}", status.process, socket.display())?;
    writeln!(
        out,
        "memory       {} of {}, {} samples",
        ByteSize(status.held_bytes),
        ByteSize(status.memory),
        status.samples
    )?;
    writeln!(
        out,
        "requests     {:.1}% from memory, {:.1}% joined another job's read, {:.1}% read from storage",
        share(status.hits),
        share(status.joined),
        share(status.reads)
    )?;
    let failures = if status.failures > 0 { format!(", {} failed", status.failures) } else { String::new() };
    writeln!(out, "storage      {} samples, {}{failures}", status.reads, ByteSize(status.read_bytes))?;
    for dataset in &status.datasets {
        let url = output::one_line(&dataset.url);
        writeln!(out, "dataset      {} samples, {}: {url}", dataset.samples, ByteSize(dataset.bytes))?;
    }
    for job in &status.jobs {
        let (name, datasets) = (output::one_line(&job.name), output::one_line(&job.datasets.join(", ")));
        writeln!(out, "job          process {} ({name}) reads {datasets}", job.process)?;
    }
    Ok(out.flush()?)
}

fn stop(options: &AgentTarget) -> Result<()> {
    let Some(_) = settings::gather(&options.settings)? else { return Ok(()) };
    let socket = target(options);
    let client = connect(&socket)?;
    // It may end before its answer arrives.
    let _ = client.call(STOP, b"");
    let begun = Instant::now();
    while Client::connect(&socket.display().to_string()).is_ok() {
        if begun.elapsed() > STOP_TIMEOUT {
            bail!("the agent at {} does not end", socket.display());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
