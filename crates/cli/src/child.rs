//! A command that this process runs, and whose end is its own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};

use crate::output;

/// The exit codes of shells for a command that does not exist or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Starts a command, which gets the signals of this process from now on. The inner error is the
/// exit code for one that cannot be started, which was reported.
pub fn spawn(command: &mut Command) -> Result<Result<Child, ExitCode>> {
    let signals = PassedSignals::record()?;
    match command.spawn() {
        Ok(child) => {
            signals.pass_to(child.id())?;
            Ok(Ok(child))
        }
        Err(error) => {
            output::complain(&format!("cannot run {}: {error}", command.get_program().display()));
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            Ok(Err(ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })))
        }
    }
}

/// Passes the signals of this process on to one that runs already.
pub fn pass_signals_to(process: u32) -> Result<()> {
    PassedSignals::record()?.pass_to(process)
}

/// Signals that end this process are for the command, which ends it.
struct PassedSignals(signal_hook::iterator::Signals);

impl PassedSignals {
    /// Records signals from now on, so that none is lost while the command starts.
    fn record() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        let signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
        Ok(Self(signals.context("cannot register signal handlers")?))
    }

    /// Passes SIGTERM and SIGHUP on to a process. SIGINT and SIGQUIT reach it from the terminal.
    fn pass_to(self, process: u32) -> Result<()> {
        use signal_hook::consts::{SIGHUP, SIGTERM};
        let Self(mut signals) = self;
        let pass = move || {
            for signal in signals.forever().filter(|signal| [SIGHUP, SIGTERM].contains(signal)) {
                let signal = rustix::process::Signal::from_named_raw(signal);
                let process = rustix::process::Pid::from_raw(process as i32);
                if let (Some(signal), Some(process)) = (signal, process) {
                    // It may have ended.
                    let _ = rustix::process::kill_process(process, signal);
                }
            }
        };
        let thread = std::thread::Builder::new().name("foreread-signals".to_owned());
        thread.spawn(pass).context("cannot start a thread")?;
        Ok(())
    }
}

/// The exit code of a shell for a command.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, Some(signal)) => ExitCode::from(128 + signal as u8),
        (None, None) => ExitCode::FAILURE,
    }
}
