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

/// Waits until nothing serves at a socket any more, and until the process of this connection has
/// ended. Only then are its directories and ports free. `what` had served there.
pub(super) fn wait_until_gone(client: &Client, socket: &Path, what: &str) -> Result<()> {
    let begun = Instant::now();
    while client.is_server_running() || Client::connect(&socket.display().to_string()).is_ok() {
        if begun.elapsed() > STOP_TIMEOUT {
            bail!("the {what} at {} does not end", socket.display());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
