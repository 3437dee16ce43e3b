//! Classifies the kernel's errors.
//!
//! The layers decide whether and when to retry. The kinds follow the meaning for a *training run*.
//! Three classes are transient. A file server is busy, restarts or has evicted this client. A
//! connection to it has ended. File descriptors run out, which passes when reads end. Errors that a
//! person must repair are not transient. `EIO` is in both classes. From a file server it is an
//! interrupted request. From a local disk it is an unreadable sector, and a retry costs the
//! device's own timeout again.

use std::os::fd::BorrowedFd;

use foreread_tier::{ErrorKind, TierError};
use rustix::io::Errno;

use crate::file_system::is_on_this_machine;

/// The tier's name in messages.
pub(crate) const NAME: &str = "local";

/// The kind of a kernel error, and additional detail.
fn classify(errno: Errno) -> (ErrorKind, Option<&'static str>) {
    match errno {
        Errno::NOENT => (ErrorKind::NotFound, None),
        Errno::NOTDIR => (ErrorKind::NotFound, Some("a part of the path is a file")),
        Errno::ACCESS | Errno::PERM => (ErrorKind::Denied, None),
        Errno::MFILE => (ErrorKind::Transient, Some("too many open files; raise `ulimit -n`")),
        Errno::NFILE => (ErrorKind::Transient, Some("too many open files on this machine")),
        errno if is_of_a_server(errno) => (ErrorKind::Transient, None),
        Errno::NAMETOOLONG => (ErrorKind::Invalid, Some("the name is too long for this file system")),
        Errno::LOOP => (ErrorKind::Other, Some("symbolic links form a cycle")),
        // The path leads to another object in the file's place.
        Errno::ISDIR | Errno::SPIPE | Errno::NXIO => (ErrorKind::Changed, Some("no longer a file")),
        _ => (ErrorKind::Other, None),
    }
}

/// Whether an error may come from a file server that is temporarily away. Lustre returns
/// `ESHUTDOWN`, `ENOTCONN` or `EIO` to an evicted client. NFS returns `ESTALE` after a failover.
/// SMB returns `EHOSTDOWN` and the socket's errors. FUSE returns `ENOTCONN` or `ECONNABORTED` until
/// its daemon is back.
pub(crate) fn is_of_a_server(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::STALE
            | Errno::INTR
            | Errno::AGAIN
            | Errno::TIMEDOUT
            | Errno::SHUTDOWN
            | Errno::NOTCONN
            | Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::CONNREFUSED
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::NETRESET
            | Errno::PIPE
            | Errno::REMCHG
            | Errno::REMOTEIO
            | Errno::NOLINK
            | Errno::COMM
            | Errno::PROTO
    )
}

/// The error of a read from an open file. The file system is checked per failed file, because a
/// server's may be mounted below a local directory.
pub(crate) fn from_read(errno: Errno, object: &str, file: BorrowedFd<'_>) -> TierError {
    if errno == Errno::IO && is_on_this_machine(file) {
        return unreadable(errno, object);
    }
    from_errno(errno, object)
}

fn unreadable(errno: Errno, object: &str) -> TierError {
    TierError::new(ErrorKind::Other, NAME)
        .with_object(object)
        .with_detail("the disk cannot read it; see the kernel's log, and restore the file")
        .with_source(std::io::Error::from(errno))
}

/// The error of a system call about `object`.
pub(crate) fn from_errno(errno: Errno, object: &str) -> TierError {
    let (kind, detail) = classify(errno);
    let source = std::io::Error::from(errno);
    let detail = match (detail, kind) {
        (Some(detail), _) => Some(detail.to_owned()),
        (None, ErrorKind::NotFound | ErrorKind::Denied) => None,
        (None, _) => Some(source.to_string()),
    };
    let error = TierError::new(kind, NAME).with_object(object).with_source(source);
    match detail {
        Some(detail) => error.with_detail(detail),
        None => error,
    }
}

/// The error of an invalid request.
pub(crate) fn invalid(object: &str, why: impl Into<String>) -> TierError {
    TierError::invalid(NAME, object, why)
}

/// The error of an object that has changed since it was indexed.
pub(crate) fn changed(object: &str, why: impl Into<String>) -> TierError {
    TierError::changed(NAME, object, why)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    // semantics: FAIL-5
    fn errors_of_evicted_and_restarting_file_servers_are_retried() {
        for errno in [
            Errno::IO,
            Errno::STALE,
            Errno::AGAIN,
            Errno::TIMEDOUT,
            // Lustre, after an eviction.
            Errno::SHUTDOWN,
            // FUSE, whose daemon ended.
            Errno::NOTCONN,
            Errno::CONNABORTED,
            // SMB, and NFS over a network that is down.
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::NETDOWN,
            Errno::CONNRESET,
            Errno::REMCHG,
            Errno::REMOTEIO,
            Errno::NOLINK,
            Errno::COMM,
        ] {
            assert!(from_errno(errno, "a").is_retryable(), "{errno}");
        }
    }

    #[test]
    // semantics: FAIL-5
    fn unreadable_sector_of_a_disk_is_not_retried() {
        // Every test machine has proc, which is not on the list of local file systems.
        let other = std::fs::File::open("/proc/self/stat").unwrap();
        assert!(from_read(Errno::IO, "a/b.jpg", other.as_fd()).is_retryable());
        let own = tempfile::tempfile().unwrap();
        assert!(from_read(Errno::STALE, "a/b.jpg", own.as_fd()).is_retryable());
        let error = from_read(Errno::IO, "a/b.jpg", own.as_fd());
        assert_eq!(error.kind(), ErrorKind::Other);
        let text = error.to_string();
        assert!(text.starts_with("local: a/b.jpg: ") && text.contains("kernel's log"), "{text}");
    }

    #[test]
    fn passing_errors_are_retryable_and_others_are_not() {
        for errno in [Errno::IO, Errno::STALE, Errno::INTR, Errno::MFILE, Errno::NFILE, Errno::TIMEDOUT] {
            assert!(from_errno(errno, "a").is_retryable(), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::ISDIR, Errno::LOOP, Errno::NOSPC, Errno::NOTDIR] {
            assert!(!from_errno(errno, "a").is_retryable(), "{errno}");
        }
    }

    #[test]
    fn error_names_the_object_and_the_remedy() {
        let text = from_errno(Errno::MFILE, "a/b.jpg").to_string();
        assert!(text.starts_with("local: a/b.jpg: ") && text.ends_with("raise `ulimit -n`"), "{text}");
        assert!(from_errno(Errno::NOENT, "x").to_string().starts_with("local: x: "));
    }
}
