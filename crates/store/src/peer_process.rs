//! Detects the end of the process at the other end of a socket.
//!
//! A socket alone is not enough: processes forked in between hold copies of it and keep it open
//! after its owner was killed. A pidfd reports the end at once. It comes from the socket (Linux
//! 6.5), else from the pid (Linux 5.3), which may have been reused by then. The price is one more
//! descriptor per connection. Where the kernel or a sandbox provides no pidfd, the pid is polled.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::socket;

#[derive(Debug)]
pub(crate) enum PeerProcess {
    /// Readable when the process ends.
    Pidfd(OwnedFd),
    /// Only the pid is known.
    Pid(Pid),
    /// The process is in another pid namespace and cannot be observed. Only the socket can end.
    Unknown,
}

impl PeerProcess {
    /// The process at the other end of `socket`, with the pid `pid`.
    pub(crate) fn of_peer(socket: &OwnedFd, pid: i32) -> Self {
        socket::peer_pidfd(socket).map_or_else(|_| Self::of(pid), Self::Pidfd)
    }

    /// The process `pid`. Zero is a process that cannot be seen from here.
    fn of(pid: i32) -> Self {
        let Some(process) = Pid::from_raw(pid) else { return Self::Unknown };
        // An old kernel, a sandbox without the call, no free descriptor, or no such process.
        pidfd_open(process, PidfdFlags::empty()).map_or(Self::Pid(process), Self::Pidfd)
    }

    /// The descriptor that becomes readable when the process ends.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pidfd(descriptor) => Some(descriptor.as_fd()),
            Self::Pid(_) | Self::Unknown => None,
        }
    }

    /// Whether only polling [`has_exited`](Self::has_exited) detects the end.
    pub(crate) fn needs_polling(&self) -> bool {
        matches!(self, Self::Pid(_))
    }

    /// Whether the process is known to run.
    pub(crate) fn is_running(&self) -> bool {
        !matches!(self, Self::Unknown) && !self.has_exited()
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
    fn ended_process_is_detected() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let processes = [PeerProcess::of(pid), PeerProcess::Pid(Pid::from_raw(pid).unwrap())];
        assert!(processes.iter().all(|process| process.is_running() && !process.has_exited()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes.iter().all(PeerProcess::has_exited));
        assert!(PeerProcess::of(pid).has_exited());
    }

    #[test]
    fn unobservable_process_counts_as_alive() {
        let process = PeerProcess::of(0);
        assert!(!process.has_exited() && !process.is_running());
    }
}
