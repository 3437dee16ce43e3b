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

    /// Raises the limit of this process to the hard one, or to `most` if that is less.
    pub fn raise(self, most: Option<u64>) {
        let wanted = most.map_or(self.maximum, |most| Some(self.maximum.map_or(most, |hard| hard.min(most))));
        let is_higher = self.current.is_some_and(|now| wanted.is_none_or(|wanted| wanted > now));
        if is_higher && let Err(error) = Self::set(wanted, self.maximum) {
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
