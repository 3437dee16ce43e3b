//! Failures between a worker and the process whose engine it uses.

use std::fmt;
use std::io;
use std::sync::Arc;

use foreread_tier::TierError;

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The server process has ended, or serves no longer.
    Gone,
    /// The other end refused the connection, or belongs to another user.
    Refused,
    /// The caller's `stop` ended the wait.
    Interrupted,
    /// The client was inherited over a fork, so it belongs to another process.
    Forked,
    /// The request is wrong: a malformed address, or a call that is too long.
    Invalid,
    /// The other end violated the protocol, or has another version.
    Malformed,
    /// The system has no socket or memory.
    System,
    /// The engine could not deliver the sample or answer the call. See [`StoreError::tier_error`].
    Sample,
}

/// A failure: its kind and its message. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StoreError(Arc<ErrorInner>);

#[derive(Debug)]
struct ErrorInner {
    kind: StoreErrorKind,
    detail: String,
    source: ErrorCause,
}

#[derive(Debug)]
enum ErrorCause {
    None,
    System(io::Error),
    Sample(TierError),
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self(Arc::new(ErrorInner { kind, detail: detail.into(), source: ErrorCause::None }))
    }

    /// The other end is gone.
    pub fn gone() -> Self {
        Self::new(
            StoreErrorKind::Gone,
            "the main process is gone, or has closed its data source: this worker cannot continue",
        )
    }

    pub(crate) fn interrupted() -> Self {
        Self::new(StoreErrorKind::Interrupted, "the wait was interrupted")
    }

    /// A violation of the protocol.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StoreErrorKind::Malformed, detail)
    }

    /// A failure of the system.
    pub fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let source = ErrorCause::System(error.into());
        Self(Arc::new(ErrorInner { kind: StoreErrorKind::System, detail: what.into(), source }))
    }

    pub(crate) fn sample(error: TierError) -> Self {
        let detail = error.to_string();
        Self(Arc::new(ErrorInner { kind: StoreErrorKind::Sample, detail, source: ErrorCause::Sample(error) }))
    }

    /// The kind of the failure.
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// The engine's error ([`StoreErrorKind::Sample`]). Its causes are in its detail.
    pub fn tier_error(&self) -> Option<&TierError> {
        match &self.0.source {
            ErrorCause::Sample(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.source {
            ErrorCause::System(error) => write!(f, "{}: {error}", self.0.detail),
            ErrorCause::None | ErrorCause::Sample(_) => f.write_str(&self.0.detail),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.source {
            ErrorCause::None => None,
            ErrorCause::System(error) => Some(error),
            // The message is already this error's own.
            ErrorCause::Sample(error) => error.source(),
        }
    }
}
