//! Errors of the disk tier.

use foreread_tier::{ErrorKind, TierError};
use foreread_types::DatasetIdentity;
use rustix::io::Errno;

use super::folder::NOT_A_FILE;

/// The tier's name in messages, metrics and reports.
pub(super) const NAME: &str = "disk";

/// The error of a system call on the path `object`.
pub(super) fn from_errno(errno: Errno, object: impl std::fmt::Display) -> TierError {
    let (kind, remedy) = match errno {
        Errno::NOSPC => {
            (ErrorKind::Full, Some("the disk is full; free some of it or give the disk tier less"))
        }
        Errno::DQUOT => (
            ErrorKind::Full,
            Some("this user's quota is used up; free some of it or give the disk tier less"),
        ),
        Errno::ROFS => {
            (ErrorKind::Denied, Some("the file system is read-only; choose a directory on another"))
        }
        Errno::ACCESS | Errno::PERM => {
            (ErrorKind::Denied, Some("make the directory writable for this user, or choose another"))
        }
        Errno::NOENT => (ErrorKind::NotFound, Some("create the directory, or choose another")),
        Errno::NOTDIR => (ErrorKind::Invalid, Some("it is not a directory; choose one that is")),
        Errno::ISDIR | Errno::NOTEMPTY => {
            (ErrorKind::Invalid, Some("there is a directory where a file of the cache belongs; move it away"))
        }
        NOT_A_FILE => (ErrorKind::Invalid, Some("it is neither a file nor a directory; move it away")),
        Errno::MFILE | Errno::NFILE => (ErrorKind::Transient, Some("too many open files; raise `ulimit -n`")),
        _ => (ErrorKind::Other, None),
    };
    let source = std::io::Error::from(errno);
    let detail = remedy.map_or_else(|| source.to_string(), str::to_owned);
    TierError::new(kind, NAME).with_object(object.to_string()).with_detail(detail).with_source(source)
}

/// Converts an error of the standard library, with or without an errno.
pub(super) fn from_io(error: &std::io::Error, object: impl std::fmt::Display) -> TierError {
    match Errno::from_io_error(error) {
        Some(errno) => from_errno(errno, object),
        None => about(ErrorKind::Other, object, error.to_string()),
    }
}

/// An error about `object`, a path or a sample.
pub(super) fn about(kind: ErrorKind, object: impl std::fmt::Display, detail: impl Into<String>) -> TierError {
    TierError::new(kind, NAME).with_object(object.to_string()).with_detail(detail)
}

/// Logs the loss and its cause. The run continues without it.
pub(super) fn warn_lost(
    identity: DatasetIdentity,
    what: impl std::fmt::Display,
    why: impl std::fmt::Display,
) {
    tracing::warn!(%identity, "the disk cache continues without {what}: {why}");
}
