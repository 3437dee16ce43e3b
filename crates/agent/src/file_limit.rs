//! The limit of open files: each 32 MiB of shared memory take a descriptor, and so does each job.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit of open files of a process.
#[derive(Clone, Copy, Debug)]
pub struct FileLimit {
    current: Option<u64>,
    maximum: Option<u64>,
}

impl FileLimit {
    /// The limit of this process.
    pub fn current() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        Self { current, maximum }
    }

    fn set(current: Option<u64>, maximum: Option<u64>) -> rustix::io::Result<()> {
        setrlimit(Resource::Nofile, Rlimit { current, maximum })
    }

    /// Raises the limit of this process to the hard one.
    pub(crate) fn raise(self) {
        if let Err(error) = Self::set(self.maximum, self.maximum) {
            tracing::debug!(%error, "the limit of open files stays");
        }
    }

    /// Has a command run with this limit, whatever that of this process is then. Programs that
    /// close all descriptors, or use `select`, depend on a low one.
    pub fn restore_in(self, command: &mut Command) {
        let restore = move || Ok(Self::set(self.current, self.maximum)?);
        // SAFETY: between fork and exec it makes one system call, with values that were copied. It
        // takes no lock and allocates nothing.
        unsafe {
            command.pre_exec(restore);
        }
    }
}
