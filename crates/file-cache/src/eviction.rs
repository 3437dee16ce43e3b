//! Removes copies that no process uses.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Has this process not ended by the signal of a lease that another process waits for. Programs
/// that it starts have the usual reaction again.
pub(crate) fn expect_lease_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    let nothing: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, so it may run at any time.
    unsafe {
        if libc::signal(libc::SIGIO, nothing as libc::sighandler_t) == libc::SIG_IGN {
            // The programs are to ignore it, too.
            libc::signal(libc::SIGIO, libc::SIG_IGN);
        }
    }
}

/// Removes a copy, unless a process has it open or mapped. Then the kernel grants no write lease,
/// and the result is `false`.
///
/// A process that opens it in between gets it whole, and keeps it.
pub(crate) fn remove_unused(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return true };
    // SAFETY: the descriptor is open, and the call has no memory.
    let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    if granted != 0 {
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EAGAIN) {
            return false;
        }
        // This file system has no leases. A process that has the file open keeps it.
        tracing::debug!(%error, path = %path.display(), "no lease");
    }
    // Closing the file ends the lease.
    let _ = std::fs::remove_file(path); // it was gone already
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    // semantics: FILES-4
    fn copy_in_use_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copy");
        std::fs::write(&path, b"bytes").unwrap();
        let open = File::open(&path).unwrap();
        assert!(!remove_unused(&path));
        // SAFETY: nothing changes the file.
        let mapped = unsafe { memmap2::Mmap::map(&open) }.unwrap();
        drop(open);
        assert!(!remove_unused(&path));
        assert_eq!(&mapped[..], b"bytes");
        drop(mapped);
        assert!(remove_unused(&path) && !path.exists() && remove_unused(&path));
    }
}
