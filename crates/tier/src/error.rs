//! What can go wrong with a read, said once for every tier.
//!
//! The error is opaque and cheap to clone (one sample may be awaited twice). Backends only *classify*: they map their
//! own failures to an [`ErrorKind`], and the layers decide from the kind whether to try again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Any error, as the source of another.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The kinds of failure that callers can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object (or the prefix, or the directory) does not exist.
    NotFound,
    /// It exists and we may not read it.
    Denied,
    /// The credentials were right once and have expired.
    Expired,
    /// The object is not the one that was indexed: another length, time or ETag.
    Changed,
    /// The store asks to be asked less.
    Throttled,
    /// A failure that may pass: a reset connection, a time-out, a 500.
    Transient,
    /// The bytes are there and wrong: a checksum does not match.
    Corrupt,
    /// A cache or a peer does not hold the sample (any more).
    Absent,
    /// There is no room to store it.
    Full,
    /// The request itself is wrong: a path that leaves the prefix, a name that is not UTF-8, a bad URL.
    Invalid,
    /// This tier cannot do what was asked.
    Unsupported,
    /// An origin that lists in order found that its store does not (see
    /// [`OriginTier::list`](crate::OriginTier::list)).
    Unordered,
    /// The tier was closed while the request waited.
    Closed,
    /// Anything else; trying again is not known to help.
    Other,
}

impl ErrorKind {
    /// A few words for the kind, as they stand in messages and in metrics' labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Denied => "permission denied",
            Self::Expired => "credentials expired",
            Self::Changed => "changed since it was indexed",
            Self::Throttled => "throttled",
            Self::Transient => "transient failure",
            Self::Corrupt => "corrupt",
            Self::Absent => "not held",
            Self::Full => "no room",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::Unordered => "not listed in order",
            Self::Closed => "closed",
            Self::Other => "failed",
        }
    }

    /// Whether a cache that fails so has lost the sample: what it keeps is wrong, of another length, or gone. After any other
    /// failure the next read may succeed, so the cache keeps what it has.
    pub const fn is_loss(self) -> bool {
        matches!(self, Self::Corrupt | Self::Changed | Self::Absent)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed operation of a tier: which tier, which object, what kind, why.
#[derive(Clone, Debug)]
pub struct TierError(Arc<ErrorDetails>);

#[derive(Clone, Debug)]
struct ErrorDetails {
    kind: ErrorKind,
    tier: String,
    object: Option<String>,
    detail: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl TierError {
    /// An error of `kind` in the tier named `tier`.
    pub fn new(kind: ErrorKind, tier: impl Into<String>) -> Self {
        let tier = tier.into();
        Self(Arc::new(ErrorDetails {
            kind,
            tier,
            object: None,
            detail: None,
            retry_after: None,
            source: None,
        }))
    }

    /// A request or a setting that cannot be right.
    pub fn invalid(tier: &str, object: &str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, tier).with_object(object).with_detail(detail)
    }

    /// An object that is not the one that was indexed.
    pub fn changed(tier: &str, object: &str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Changed, tier).with_object(object).with_detail(detail)
    }

    fn edit(mut self, change: impl FnOnce(&mut ErrorDetails)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Names the object, sample or directory that was asked for. An empty name is none.
    #[must_use]
    pub fn with_object(self, object: impl Into<String>) -> Self {
        let object = object.into();
        self.edit(|details| details.object = (!object.is_empty()).then_some(object))
    }

    /// Says in the message what the kind alone does not: the cause and the remedy.
    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        self.edit(|details| details.detail = Some(detail.into()))
    }

    /// Keeps the store's own `Retry-After`, if it sent one.
    #[must_use]
    pub fn with_retry_after(self, wait: impl Into<Option<Duration>>) -> Self {
        let wait = wait.into();
        self.edit(|details| details.retry_after = wait)
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(self, source: impl Into<BoxError>) -> Self {
        self.edit(|details| details.source = Some(source.into().into()))
    }

    /// A number that clones of one error share and no other error has, as long as one of them lives. A read that failed for
    /// several requests at once is recognised by it.
    pub fn failure(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same request may succeed later without anybody doing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Throttled | ErrorKind::Transient | ErrorKind::Expired)
    }

    /// How long the store asked to be left alone, where it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The tier that failed.
    pub fn tier(&self) -> &str {
        &self.0.tier
    }

    /// The object that was asked for, where there was one.
    pub fn object(&self) -> Option<&str> {
        self.0.object.as_deref()
    }

    /// What the message says beyond tier, object and kind, where it says more.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
}

impl fmt::Display for TierError {
    /// `local: images/a.jpg: changed since it was indexed: 17 bytes instead of 20`. The source is left to the reader
    /// of the chain ([`std::error::Error::source`]).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0.tier)?;
        if let Some(object) = &self.0.object {
            write!(f, "{object}: ")?;
        }
        write!(f, "{}", self.0.kind)?;
        match &self.0.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for TierError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn error_names_tier_object_kind_and_cause() {
        let error = TierError::new(ErrorKind::Changed, "local")
            .with_object("images/a.jpg")
            .with_detail("17 bytes instead of 20")
            .with_source(std::io::Error::other("details"));
        assert_eq!(
            error.to_string(),
            "local: images/a.jpg: changed since it was indexed: 17 bytes instead of 20"
        );
        assert_eq!((error.object(), error.detail()), (Some("images/a.jpg"), Some("17 bytes instead of 20")));
        assert_eq!(error.source().unwrap().to_string(), "details");
        assert!(!error.is_retryable());
        assert!(TierError::new(ErrorKind::Throttled, "s3").is_retryable());
        assert_eq!(error.failure(), error.clone().failure());
        assert_ne!(error.failure(), error.clone().with_detail("another").failure());
    }
}
