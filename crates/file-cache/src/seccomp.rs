//! Notifications of the kernel about opens: for programs that call it without libc.
//!
//! A filter has the kernel stop a process at each open, until the process with the *listener*
//! answers: by a descriptor, or by having the call continue. Decision: the filter is the smallest
//! that finds all opens. The price is 17 us per open, 50 ns per call of any other kind, and that
//! programs cannot gain rights (`no_new_privs`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Return values of a filter.
const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The first number of calls of another kind (x32), which are let through.
const OTHER_KIND: u32 = 0x4000_0000;

const OPENAT: u32 = libc::SYS_openat as u32;
const OPENAT2: u32 = libc::SYS_openat2 as u32;
#[cfg(target_arch = "x86_64")]
const OPEN: u32 = libc::SYS_open as u32;
#[cfg(target_arch = "x86_64")]
const CREAT: u32 = libc::SYS_creat as u32;

/// Stops this process and its children at each open from now on, and returns the listener.
/// Allocates nothing, so that it may run between fork and exec.
pub(crate) fn stop_at_opens() -> io::Result<OwnedFd> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let at_least = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    let finish = libc::BPF_RET | libc::BPF_K;
    #[cfg(target_arch = "x86_64")]
    let program = [
        statement(load, 4),
        jump(equal, ARCHITECTURE, 0, 7),
        statement(load, 0),
        jump(at_least, OTHER_KIND, 5, 0),
        jump(equal, OPENAT, 3, 0),
        jump(equal, OPEN, 2, 0),
        jump(equal, OPENAT2, 1, 0),
        jump(equal, CREAT, 0, 1),
        statement(finish, NOTIFY),
        statement(finish, ALLOW),
    ];
    #[cfg(target_arch = "aarch64")]
    let program = [
        statement(load, 4),
        jump(equal, ARCHITECTURE, 0, 5),
        statement(load, 0),
        jump(at_least, OTHER_KIND, 3, 0),
        jump(equal, OPENAT, 1, 0),
        jump(equal, OPENAT2, 0, 1),
        statement(finish, NOTIFY),
        statement(finish, ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let with = |flags: libc::c_ulong| {
        // SAFETY: the filter is a valid program, which the kernel copies.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) }
    };
    // SAFETY: it has no memory.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Without the second flag, signals begin a call again and again. Older kernels do not have it.
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut listener = with(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | killable);
    if listener < 0 {
        listener = with(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    }
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) })
}

/// An open that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoppedOpen {
    id: u64,
    /// The thread.
    pub(crate) process: u32,
    /// The directory of a relative path, as the program gave it.
    pub(crate) directory: i32,
    /// Where the path is in the program's memory.
    pub(crate) path: u64,
    pub(crate) flags: OpenFlags,
}

/// The flags of an open.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpenFlags {
    Known(i32),
    /// In a structure in the program's memory.
    At(u64),
}

/// The listener.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(listener: OwnedFd) -> Self {
        Self(listener)
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Receives an open. `None` if its process has ended, or a signal came.
    pub(crate) fn receive(&self) -> Option<StoppedOpen> {
        // SAFETY: all fields are numbers, and the kernel wants zeros.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the structure.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) };
        if result != 0 {
            return None;
        }
        let [first, second, third, ..] = notice.data.args;
        let (directory, path, flags) = match notice.data.nr as u32 {
            OPENAT => (first as i32, second, OpenFlags::Known(third as i32)),
            OPENAT2 => (first as i32, second, OpenFlags::At(third)),
            #[cfg(target_arch = "x86_64")]
            OPEN => (libc::AT_FDCWD, first, OpenFlags::Known(second as i32)),
            // `creat`.
            _ => (libc::AT_FDCWD, first, OpenFlags::Known(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)),
        };
        Some(StoppedOpen { id: notice.id, process: notice.pid, directory, path, flags })
    }

    /// Whether the process still waits. Otherwise its number may be another one's.
    pub(crate) fn is_waiting(&self, open: &StoppedOpen) -> bool {
        // SAFETY: the kernel reads the number.
        unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const open.id) == 0
        }
    }

    /// Has the kernel carry out the call.
    pub(crate) fn let_through(&self, open: &StoppedOpen) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let answer = libc::seccomp_notif_resp { id: open.id, val: 0, error: 0, flags };
        // SAFETY: the kernel reads the structure. A process that has ended needs no answer.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }

    /// Answers by a descriptor of a file. `false` if that is not possible.
    pub(crate) fn give(&self, open: &StoppedOpen, file: &File, is_closed_on_exec: bool) -> bool {
        /// The answer of the call is the new descriptor.
        const SEND: u32 = 2;
        let newfd_flags = if is_closed_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
        let srcfd = file.as_raw_fd() as u32;
        let given = libc::seccomp_notif_addfd { id: open.id, flags: SEND, srcfd, newfd: 0, newfd_flags };
        // SAFETY: the kernel reads the structure.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const given) >= 0 }
    }
}
