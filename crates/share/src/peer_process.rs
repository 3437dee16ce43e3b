//! Whether the process at the other end processes.
//!
//! A socket alone does not say: processes that were forked meanwhile hold copies of it and keep it open after its owner
//! was killed. A descriptor of the process says so at once: the socket's own (Linux 6.5), else by the process's pid
//! (Linux 5.3), which another process may have by then. The price is one more descriptor a connection. Where the kernel
//! or a sandbox gives none, the process is polled by its pid.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::socket;

#[derive(Debug)]
pub(crate) enum PeerProcess {
    /// Readable when the process ends.
    Pidfd(OwnedFd),
    /// Only its pid is known.
    Pid(Pid),
    /// It processes where we cannot see it (another namespace of processes): the socket must do.
    Unknown,
}

impl PeerProcess {
    /// The process of the process at the other end of `socket`, whose pid is `pid`.
    pub(crate) fn of_peer(socket: &OwnedFd, pid: i32) -> Self {
        socket::peer_pidfd(socket).map_or_else(|_| Self::of(pid), Self::Pidfd)
    }

    /// The process of process `pid`, 0 where it cannot be seen from here.
    fn of(pid: i32) -> Self {
        let Some(process) = Pid::from_raw(pid) else { return Self::Unknown };
        // An old kernel, a sandbox without the call, no descriptor left, or no such process.
        pidfd_open(process, PidfdFlags::empty()).map_or(Self::Pid(process), Self::Pidfd)
    }

    /// What becomes readable when the process ends.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pidfd(descriptor) => Some(descriptor.as_fd()),
            Self::Pid(_) | Self::Unknown => None,
        }
    }

    /// Whether only polling [`has_exited`](Self::has_exited) shows the process's end.
    pub(crate) fn needs_polling(&self) -> bool {
        matches!(self, Self::Pid(_))
    }

    /// Whether the process is known to have ended.
    pub(crate) fn has_exited(&self) -> bool {
        match self {
            Self::Pidfd(descriptor) => {
                let mut watched = [PollFd::new(descriptor, PollFlags::IN)];
                poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Self::Pid(process) => test_kill_process(*process) == Err(Errno::SRCH),
            Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_life_is_over_when_its_process_ends() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let processes = [PeerProcess::of(pid), PeerProcess::Pid(Pid::from_raw(pid).unwrap())];
        assert!(processes.iter().all(|process| !process.has_exited()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes.iter().all(PeerProcess::has_exited));
        assert!(PeerProcess::of(pid).has_exited());
    }

    #[test]
    fn what_cannot_be_seen_is_not_taken_for_dead() {
        assert!(!PeerProcess::of(0).has_exited());
    }
}
