//! A command that this process runs, and whose end is its own.
//!
//! The command is started as it would be without this process: signals that this one was started to
//! ignore stay ignored (`nohup`), and closed descriptors stay closed. It gets the signals that
//! other processes send to this one. The signals of the terminal's keys reach it anyway. The price
//! is that a signal to the whole process group arrives twice. A terminal's stop (SIGTSTP) is for
//! each process itself. The kernel does not stop one whose group has no shell that could continue
//! it.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use anyhow::{Context, Result};

use crate::output;

/// The exit codes of shells for a command that does not exist or cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// The signals that are for the command: they end a process, or notify programs (Slurm's
/// `--signal`).
const PASSED: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Those of them that end this process once the command has ended.
const ENDING: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// The command's process. 0: it has not started. [`ENDED`]: it has ended.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// The number of a process that has ended, which another process may get.
const ENDED: i32 = -1;

/// The signals that this process was started to ignore, a bit each.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// The signals that came before it has started, a bit each.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// Starts a command, which gets the signals of this process from now on. The inner error is the
/// exit code for a command that cannot be started, which was reported.
pub fn spawn(command: &mut Command) -> Result<Result<Child, ExitCode>> {
    let ignored = pass_signals().context("cannot register signal handlers")?;
    inherited::keep(command, ignored);
    match command.spawn() {
        Ok(child) => {
            PROGRAM.store(child.id() as i32, Ordering::SeqCst);
            let early = EARLY.swap(0, Ordering::SeqCst);
            PASSED.into_iter().filter(|signal| early & bit(*signal) != 0).for_each(send);
            Ok(Ok(child))
        }
        Err(error) => {
            PROGRAM.store(ENDED, Ordering::SeqCst);
            output::complain(&format!("cannot run {}: {error}", command.get_program().display()));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            Ok(Err(ExitCode::from(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE })))
        }
    }
}

/// Waits until the command has ended. Signals are not passed on any more then.
pub fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    while !has_ended(child, 0)? {}
    child.wait()
}

/// How the command has ended, if it has.
#[cfg(feature = "share")]
pub fn try_wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    if has_ended(child, libc::WNOHANG)? { child.wait().map(Some) } else { Ok(None) }
}

/// Whether the command has ended. Its number stays its own until it is waited for.
fn has_ended(child: &Child, options: libc::c_int) -> io::Result<bool> {
    // SAFETY: all zeros are a value of this structure, which the call fills.
    let (result, found) = unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOWAIT | options;
        (libc::waitid(libc::P_PID, child.id(), &raw mut found, options), found)
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    let has_ended = found.si_signo != 0;
    if has_ended {
        PROGRAM.store(ENDED, Ordering::SeqCst);
    }
    Ok(has_ended)
}

const fn bit(signal: libc::c_int) -> u64 {
    1 << signal
}

/// Passes signals on from now on. Returns the signals that this process was started to ignore, a
/// bit each: the command begins so, and may handle them.
fn pass_signals() -> io::Result<u64> {
    let mut ignored = 0;
    // SAFETY: no handler is called. The exit code of the command would be lost if this were
    // ignored.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_IGN {
        ignored |= bit(libc::SIGCHLD);
    }
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *mut libc::c_void) = pass_on;
    for signal in PASSED {
        // SAFETY: all zeros are a value of this structure, and both calls read or fill one.
        let result = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            let result = libc::sigaction(signal, &raw const action, &raw mut before);
            if result == 0 && before.sa_sigaction == libc::SIG_IGN {
                ignored |= bit(signal);
                IGNORED.fetch_or(bit(signal), Ordering::SeqCst);
            }
            result
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(ignored)
}

/// The handler of signals. It makes system calls only, which leave `errno` as it was.
extern "C" fn pass_on(signal: libc::c_int, info: *const libc::siginfo_t, _: *mut libc::c_void) {
    // A terminal that is closed tells its first process, and a timer tells the process that has it.
    let is_own = matches!(signal, libc::SIGHUP | libc::SIGALRM);
    // SAFETY: the kernel gives a structure. Positive codes are those of the kernel itself, which
    // sends the signals of the terminal's keys to the whole group.
    let is_sent = info.is_null() || unsafe { (*info).si_code } <= 0;
    // Before the command has started, the kernel's do not reach it, and after its end neither.
    if is_sent || is_own || PROGRAM.load(Ordering::SeqCst) <= 0 {
        send(signal);
    }
}

/// Sends a signal to the command, or keeps it until that has started. After the command's end, it
/// is this process's.
fn send(signal: libc::c_int) {
    match PROGRAM.load(Ordering::SeqCst) {
        0 => drop(EARLY.fetch_or(bit(signal), Ordering::SeqCst)),
        ENDED => end_by(signal),
        // It may have ended. Its number is not used again before this process has waited for it.
        // SAFETY: it has no memory.
        program => unsafe {
            let error = io::Error::last_os_error();
            libc::kill(program, signal);
            restore(error);
        },
    }
}

/// Ends this process by a signal that ends processes, unless it was started to ignore that.
fn end_by(signal: libc::c_int) {
    let is_ignored = IGNORED.load(Ordering::SeqCst) & bit(signal) != 0;
    if ENDING.contains(&signal) && !is_ignored {
        // SAFETY: they have no memory. The signal comes again when the handler has returned.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Sets the number of the last error again, which the interrupted code may be about to read.
fn restore(error: io::Error) {
    #[cfg(target_os = "linux")]
    if let Some(number) = error.raw_os_error() {
        // SAFETY: the C library gives the place of this thread's number.
        unsafe { *libc::__errno_location() = number };
    }
    #[cfg(not(target_os = "linux"))]
    drop(error);
}

/// The exit code of a shell for a command.
pub fn exit_code(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, Some(signal)) => ExitCode::from(128 + signal as u8),
        (None, None) => ExitCode::FAILURE,
    }
}

/// The changes of Rust's runtime before `main`: it ignores SIGPIPE, and opens closed descriptors.
mod inherited {
    use super::{AtomicU64, Command, CommandExt, Ordering, bit};

    /// The closed ones of the first three descriptors, and SIGPIPE if it was ignored, a bit each.
    static FOUND: AtomicU64 = AtomicU64::new(0);

    /// Runs before Rust's runtime.
    #[cfg(target_os = "linux")]
    #[used]
    #[unsafe(link_section = ".init_array")]
    static LOOK: extern "C" fn() = look;

    #[cfg(target_os = "linux")]
    extern "C" fn look() {
        let mut found = 0;
        // SAFETY: all zeros are a value of this structure, and the calls fill one or have no
        // memory.
        unsafe {
            for descriptor in 0..3 {
                if libc::fcntl(descriptor, libc::F_GETFD) == -1 {
                    found |= bit(descriptor);
                }
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
            {
                found |= bit(libc::SIGPIPE);
            }
        }
        FOUND.store(found, Ordering::Relaxed);
    }

    /// Makes a command start with the signals and descriptors that this process was started with.
    /// This process ignored these signals.
    pub(super) fn keep(command: &mut Command, ignored: u64) {
        let found = FOUND.load(Ordering::Relaxed);
        let ignored = ignored | found & bit(libc::SIGPIPE);
        if found | ignored == 0 {
            return;
        }
        // SAFETY: between fork and exec, it makes system calls only.
        unsafe {
            command.pre_exec(move || {
                for descriptor in (0..3).filter(|descriptor| found & bit(*descriptor) != 0) {
                    libc::close(descriptor);
                }
                for signal in (1..64).filter(|signal| ignored & bit(*signal) != 0) {
                    libc::signal(signal, libc::SIG_IGN);
                }
                Ok(())
            });
        }
    }
}
