//! The error of every tier.
//!
//! It is opaque and cheap to clone, because one sample may be awaited twice. Tiers only
//! *classify*: they map their failures to an [`ErrorKind`], and the layers decide from the kind
//! whether to retry.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Any error, as the source of another.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The kinds of failure that callers can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object (or the prefix, or the directory) does not exist.
    NotFound,
    /// The object exists and must not be read with these credentials.
    Denied,
    /// The credentials have expired.
    Expired,
    /// The object is not the indexed one: another length, time or ETag.
    Changed,
    /// The store requires fewer requests.
    Throttled,
    /// A failure that may pass: a reset connection, a timeout, a 500.
    Transient,
    /// A server was silent for the patience of a tier that waits for it itself. A second read of
    /// the same bytes would wait for the same server.
    Silent,
    /// The bytes are wrong: a checksum does not match.
    Corrupt,
    /// A cache or a peer does not hold the sample.
    Absent,
    /// There is no room to store the sample.
    Full,
    /// The request itself is wrong: a path that leaves the prefix, a name that is not UTF-8, a bad
    /// URL.
    Invalid,
    /// This tier does not support the request.
    Unsupported,
    /// An origin that lists in order found that its store does not (see
    /// [`OriginTier::list`](crate::OriginTier::list)).
    Unordered,
    /// The tier was closed while the request waited.
    Closed,
    /// Anything else. A retry is not known to help.
    Other,
}

impl ErrorKind {
    /// All kinds, by their numbers on wires. New ones are added at the end.
    pub const ALL: [Self; 15] = [
        Self::Other,
        Self::NotFound,
        Self::Denied,
        Self::Expired,
        Self::Changed,
        Self::Throttled,
        Self::Transient,
        Self::Corrupt,
        Self::Absent,
        Self::Full,
        Self::Invalid,
        Self::Unsupported,
        Self::Closed,
        Self::Silent,
        Self::Unordered,
    ];

    /// The number of the kind, for other processes. It never changes.
    pub fn number(self) -> u8 {
        Self::ALL.iter().position(|known| *known == self).unwrap_or(0) as u8
    }

    /// The kind of a number. Unknown numbers of later versions are [`Other`](Self::Other).
    pub fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Other)
    }

    /// The kind as text, for messages and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Denied => "permission denied",
            Self::Expired => "credentials expired",
            Self::Changed => "changed since it was indexed",
            Self::Throttled => "throttled",
            Self::Transient => "transient failure",
            Self::Silent => "no answer",
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

    /// Whether this failure of a cache means that the sample is lost: its bytes are wrong, of
    /// another length, or gone. After any other failure the next read may succeed, so the sample
    /// stays in the cache.
    pub const fn is_loss(self) -> bool {
        matches!(self, Self::Corrupt | Self::Changed | Self::Absent)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed operation of a tier: the tier, the object, the kind and the cause.
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

    /// An object that is not the indexed one.
    pub fn changed(tier: &str, object: &str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Changed, tier).with_object(object).with_detail(detail)
    }

    /// Sets the tier's name, for a tier that another tier is built on.
    #[must_use]
    pub fn with_tier(self, tier: &str) -> Self {
        if self.0.tier == tier { self } else { self.edit(|error| tier.clone_into(&mut error.tier)) }
    }

    fn edit(mut self, change: impl FnOnce(&mut ErrorDetails)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets the object, sample or directory of the request. An empty name is ignored.
    #[must_use]
    pub fn with_object(self, object: impl Into<String>) -> Self {
        let object = object.into();
        self.edit(|details| details.object = (!object.is_empty()).then_some(object))
    }

    /// Sets the detail of the message: the cause and the remedy.
    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        self.edit(|details| details.detail = Some(detail.into()))
    }

    /// Sets the store's `Retry-After`, if it sent one.
    #[must_use]
    pub fn with_retry_after(self, wait: impl Into<Option<Duration>>) -> Self {
        let wait = wait.into();
        self.edit(|details| details.retry_after = wait)
    }

    /// Sets the error that caused this one.
    #[must_use]
    pub fn with_source(self, source: impl Into<BoxError>) -> Self {
        self.edit(|details| details.source = Some(source.into().into()))
    }

    /// Identifies an error and its clones while one of them lives. It shows that several requests
    /// failed by one read.
    pub fn failure(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same request may succeed later without a change by the user.
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Throttled | ErrorKind::Transient | ErrorKind::Expired)
    }

    /// The store's `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The tier that failed.
    pub fn tier(&self) -> &str {
        &self.0.tier
    }

    /// The object of the request, if it has one.
    pub fn object(&self) -> Option<&str> {
        self.0.object.as_deref()
    }

    /// The message beyond tier, object and kind, if there is more.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
}

impl fmt::Display for TierError {
    /// `local: images/a.jpg: changed since it was indexed: 17 bytes instead of 20`. The source is
    /// not included. See [`std::error::Error::source`].
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

    /// A worker took a silent server for any other failure, because its wire had no number for it.
    #[test]
    fn kinds_have_numbers_that_never_change() {
        for (number, kind) in (0..).zip(ErrorKind::ALL) {
            assert_eq!((kind.number(), ErrorKind::of_number(number)), (number, kind));
        }
        assert_eq!((ErrorKind::Closed.number(), ErrorKind::Silent.number()), (12, 13));
        assert_eq!(ErrorKind::of_number(200), ErrorKind::Other);
    }
}
