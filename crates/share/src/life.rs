//! Whether the process at the other end lives.
//!
//! A socket alone does not say: processes that were forked meanwhile hold copies of it and keep it open after its owner
//! was killed. A descriptor of the process says so at once: the socket's own (Linux 6.5), else by the process's number
//! (Linux 5.3), which another process may have by then. The price is one more descriptor a connection. Where the kernel
//! or a sandbox gives none, the process is polled by its number.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

use crate::socket;

#[derive(Debug)]
pub(crate) enum Life {
    /// Readable when the process ends.
    Descriptor(OwnedFd),
    /// Only its number is known.
    Number(Pid),
    /// It lives where we cannot see it (another namespace of processes): the socket must do.
    Unseen,
}

impl Life {
    /// The life of the process at the other end of `socket`, whose number is `number`.
    pub(crate) fn of_other(socket: &OwnedFd, number: i32) -> Self {
        socket::other_process(socket).map_or_else(|_| Self::of(number), Self::Descriptor)
    }

    /// The life of process `number`, 0 where it cannot be seen from here.
    fn of(number: i32) -> Self {
        let Some(process) = Pid::from_raw(number) else { return Self::Unseen };
        // An old kernel, a sandbox without the call, no descriptor left, or no such process.
        pidfd_open(process, PidfdFlags::empty()).map_or(Self::Number(process), Self::Descriptor)
    }

    /// What becomes readable when the process ends.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Descriptor(descriptor) => Some(descriptor.as_fd()),
            Self::Number(_) | Self::Unseen => None,
        }
    }

    /// Whether only polling [`is_over`](Self::is_over) shows the process's end.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Number(_))
    }

    /// Whether the process is known to have ended.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Descriptor(descriptor) => {
                let mut watched = [PollFd::new(descriptor, PollFlags::IN)];
                poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            }
            Self::Number(process) => test_kill_process(*process) == Err(Errno::SRCH),
            Self::Unseen => false,
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
        let number = child.id() as i32;
        let lives = [Life::of(number), Life::Number(Pid::from_raw(number).unwrap())];
        assert!(lives.iter().all(|life| !life.is_over()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(lives.iter().all(Life::is_over));
        assert!(Life::of(number).is_over());
    }

    #[test]
    fn what_cannot_be_seen_is_not_taken_for_dead() {
        assert!(!Life::of(0).is_over());
    }
}
