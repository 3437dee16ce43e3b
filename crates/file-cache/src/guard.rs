//! A process that removes the copies in memory when the process of a run was killed.
//!
//! Copies on a `tmpfs` outlive their process and take memory from all other jobs. A killed process
//! removes nothing. So another process waits for its end, which is the end of a pipe that the
//! kernel closes. It is a copy of this process (`fork`) in its own session, which a terminal's
//! signals do not reach. It keeps none of the open files, because readers of their pipes would wait
//! for it. The price is a sleeping process for each run with copies in memory. A launcher that
//! kills all processes of a job (cgroups) kills it, too. Then the next run removes the copies.

use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::{Duration, Instant};

use crate::caches::remove_unused;
use crate::directory::CacheDirectory;

/// The name of the process, of at most 15 bytes.
const NAME: &std::ffi::CStr = c"foreread-guard";

/// How long other runs are waited for that may have been killed at the same time.
const TOGETHER: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(20);

/// A waiting process. It ends when this is dropped, and removes nothing.
#[derive(Debug)]
pub(crate) struct Guard {
    process: libc::pid_t,
    alive: PipeWriter,
}

impl Guard {
    /// Starts the process.
    pub(crate) fn start(cache: &CacheDirectory) -> io::Result<Self> {
        let (ends, alive) = io::pipe()?;
        // The duplicate is no standard descriptor, also where these are closed.
        let (mut ends, alive) = (ends.try_clone()?, alive.try_clone()?);
        // SAFETY: nothing changes for this process. The new one has one thread and runs only
        // `wait`, which never returns. glibc leaves its allocator usable in it. It takes no lock
        // that another thread could have held.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => wait(&mut ends, cache),
            process => Ok(Self { process, alive }),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Fails if the guard has ended.
        let _ = self.alive.write_all(&[1]);
        let mut status = 0;
        // SAFETY: the status is a variable of this function. The process is a child of this one,
        // and no other code waits for it.
        while unsafe { libc::waitpid(self.process, &raw mut status, 0) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// Leaves the session, waits for the end of the other process, and ends.
fn wait(ends: &mut (impl Read + AsRawFd), cache: &CacheDirectory) -> ! {
    // SAFETY: system calls without pointers but to a constant.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
    }
    if close_others(ends.as_raw_fd()).is_ok() {
        let _ = std::env::set_current_dir("/");
        // A byte tells that the run has ended by itself.
        if matches!(ends.read(&mut [0]), Ok(0)) {
            // Of runs that are killed together, each has its locks for a moment.
            let killed = Instant::now();
            while !remove_unused(cache) && killed.elapsed() < TOGETHER {
                std::thread::sleep(POLL);
            }
        }
    }
    // SAFETY: ends the process. Functions that run at the end of the original process are not run
    // twice.
    unsafe { libc::_exit(0) }
}

/// Closes all files but one. The standard ones are `/dev/null`.
fn close_others(kept: libc::c_int) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?.into_raw_fd();
    let kept_first = kept.cast_unsigned();
    // SAFETY: nothing in this process uses the closed descriptors: it has one thread, which uses
    // `kept` alone.
    unsafe {
        for standard in 0..3 {
            libc::dup2(null, standard);
        }
        libc::close_range(3, kept_first - 1, 0);
        libc::close_range(kept_first + 1, libc::c_uint::MAX, 0);
    }
    Ok(())
}
