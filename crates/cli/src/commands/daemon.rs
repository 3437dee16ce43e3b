//! Processes that this program starts and leaves running: an agent, or a control process.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use foreread_store::Client;

/// How long a start waits until the process serves.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a stop waits until the process is gone.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(20);

/// The command that runs this program, without its arguments from `until` on. The program may be a
/// script, whose process is that of an interpreter.
pub(super) fn own_command(until: &[&str]) -> std::io::Result<Command> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let is_here = |found: &[OsString]| found.iter().eq(until);
    let before = words.windows(until.len()).position(is_here).unwrap_or(1);
    let (program, more) = match words.split_first() {
        Some((program, _)) if program.as_bytes().contains(&b'/') => {
            (PathBuf::from(program), &words[1..before.max(1)])
        }
        Some(_) => (std::env::current_exe()?, &words[1..before.max(1)]),
        None => (std::env::current_exe()?, &[][..]),
    };
    let mut command = Command::new(program);
    command.args(more);
    Ok(command)
}

/// Starts a process that writes to `log`, waits until it serves, and returns its number. The
/// process with the given number serves if `is_serving` says so.
pub(super) fn start(mut command: Command, log: &Path, is_serving: impl Fn(u32) -> bool) -> Result<u32> {
    let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    // A group of its own: signals of this terminal do not reach it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let mut child = command.spawn().context("cannot start the process")?;
    if let Err(error) = wait_until_serving(&mut child, is_serving) {
        let _ = child.kill();
        let text = std::fs::read_to_string(log).unwrap_or_default();
        // Warnings may come first.
        let line = text.split_once("\nforeread: ").map(|(_, why)| why);
        return Err(match text.strip_prefix("foreread: ").or(line) {
            Some(why) => anyhow!("{}", why.trim()),
            None => error.context(format!("{} may have more", log.display())),
        });
    }
    Ok(child.id())
}

/// Waits until this process serves, and not another one.
fn wait_until_serving(child: &mut Child, is_serving: impl Fn(u32) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("the process ended at once: {status}");
        }
        if is_serving(child.id()) {
            return Ok(());
        }
        if begun.elapsed() > START_TIMEOUT {
            bail!("the process does not serve after {} s", START_TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

/// Connects to the process at a socket, which messages call so.
pub(super) fn connect(socket: &Path, what: &str) -> Result<Client> {
    let shown = socket.display();
    Client::connect(&shown.to_string()).map_err(|_| {
        let command = if what == AGENT { "foreread agent" } else { "foreread control" };
        if let Some(process) = foreread_agent::directory_holder(socket) {
            return anyhow!(
                "the {what} at {shown} is process {process}, which does not answer: it is stopped, or its \
                 socket was removed; `{command} stop` ends it"
            );
        }
        let directory = socket.parent().filter(|directory| directory.exists());
        if let Some(Err(error)) = directory.map(|_| foreread_agent::private_directory(socket)) {
            return anyhow!("no {what} is used at {shown}: {error}");
        }
        anyhow!("no {what} serves at {shown}; `{command} start` starts one")
    })
}

/// The names of an agent and of a control process in messages.
pub(super) const AGENT: &str = "agent";
pub(super) const CONTROL: &str = "control process";

/// Has the process at a socket end, and waits until it has: by the call of this name, or by a
/// signal if it does not answer.
pub(super) fn stop(socket: &Path, what: &str, call: &str) -> Result<()> {
    let client = match connect(socket, what) {
        Ok(client) => client,
        Err(error) => match foreread_agent::directory_holder(socket) {
            Some(process) => return stop_by_signal(socket, what, process),
            None => return Err(error),
        },
    };
    // It may end before its answer arrives.
    let _ = client.call(call, b"");
    wait_until_gone(&client, socket, what)
}

/// Ends a process that holds the directory of a socket and does not answer.
fn stop_by_signal(socket: &Path, what: &str, process: u32) -> Result<()> {
    use rustix::process::{Pid, Signal, kill_process};
    if let Some(pid) = Pid::from_raw(process.cast_signed()) {
        // A stopped process gets the first signal after the second.
        for signal in [Signal::TERM, Signal::CONT] {
            kill_process(pid, signal).with_context(|| format!("cannot end process {process}"))?;
        }
    }
    let begun = Instant::now();
    while foreread_agent::directory_holder(socket) == Some(process) {
        if begun.elapsed() > STOP_TIMEOUT {
            bail!("the {what} at {} does not end: `kill -9 {process}` ends it", socket.display());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Waits until nothing serves at a socket any more, and until the process of this connection has
/// ended. Only then are its directories and ports free. `what` had served there.
fn wait_until_gone(client: &Client, socket: &Path, what: &str) -> Result<()> {
    let begun = Instant::now();
    while client.is_server_running() || Client::connect(&socket.display().to_string()).is_ok() {
        if begun.elapsed() > STOP_TIMEOUT {
            bail!("the {what} at {} does not end", socket.display());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
