//! What the kernel's errors mean for a read.
//!
//! Only classification: whether and when to try again is decided by the layers. The kinds follow what an error means
//! for a *training run*: what a busy or restarting file server answers (`EIO`, `ESTALE`, time-outs) may pass, running
//! out of descriptors passes when reads end, and everything that a person has to repair does not.

use foreread_tier::{ErrorKind, TierError};
use rustix::io::Errno;

/// The tier's name in messages.
pub(crate) const NAME: &str = "local";

/// The kind of a kernel error, and what to say beyond it.
fn classify(errno: Errno) -> (ErrorKind, Option<&'static str>) {
    match errno {
        Errno::NOENT => (ErrorKind::NotFound, None),
        Errno::NOTDIR => (ErrorKind::NotFound, Some("a part of the path is a file")),
        Errno::ACCESS | Errno::PERM => (ErrorKind::Denied, None),
        Errno::MFILE => (ErrorKind::Transient, Some("too many open files; raise `ulimit -n`")),
        Errno::NFILE => (ErrorKind::Transient, Some("too many open files on this machine")),
        Errno::IO | Errno::STALE | Errno::INTR | Errno::AGAIN | Errno::TIMEDOUT => {
            (ErrorKind::Transient, None)
        }
        Errno::NAMETOOLONG => (ErrorKind::Invalid, Some("the name is too long for this file system")),
        Errno::LOOP => (ErrorKind::Other, Some("symbolic links lead in a circle")),
        // What a path leads to when something else was put in a file's place.
        Errno::ISDIR | Errno::SPIPE | Errno::NXIO => (ErrorKind::Changed, Some("not a file any more")),
        _ => (ErrorKind::Other, None),
    }
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

/// A request that makes no sense.
pub(crate) fn invalid(object: &str, why: impl Into<String>) -> TierError {
    TierError::new(ErrorKind::Invalid, NAME).with_object(object).with_detail(why)
}

/// An object that is not the one that was indexed.
pub(crate) fn changed(object: &str, why: impl Into<String>) -> TierError {
    TierError::new(ErrorKind::Changed, NAME).with_object(object).with_detail(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_retryable_and_the_rest_is_not() {
        for errno in [Errno::IO, Errno::STALE, Errno::INTR, Errno::MFILE, Errno::NFILE, Errno::TIMEDOUT] {
            assert!(from_errno(errno, "a").is_retryable(), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::ISDIR, Errno::LOOP, Errno::NOSPC, Errno::NOTDIR] {
            assert!(!from_errno(errno, "a").is_retryable(), "{errno}");
        }
    }

    #[test]
    fn one_line_names_the_object_and_the_remedy() {
        let text = from_errno(Errno::MFILE, "a/b.jpg").to_string();
        assert!(text.starts_with("local: a/b.jpg: ") && text.ends_with("raise `ulimit -n`"), "{text}");
        assert!(from_errno(Errno::NOENT, "x").to_string().starts_with("local: x: "));
    }
}
