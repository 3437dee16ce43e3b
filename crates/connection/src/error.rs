//! Errors of connections between ranks.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The kinds of failure that callers can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WireErrorKind {
    /// The connection could not be made, broke, or was closed.
    Disconnected,
    /// A timeout.
    Timeout,
    /// The other end does not know this job's token, or is not the expected rank.
    Unauthenticated,
    /// One end of a rendezvous names this job and has another token.
    OtherToken,
    /// The other end belongs to another job.
    OtherJob,
    /// The other end belongs to this job and is in another run, or in none yet.
    OtherRun,
    /// The other end protects samples differently (see [`Wire`](crate::WireProtection)).
    OtherWire,
    /// The other end uses another protocol version.
    OtherVersion,
    /// The other end knows the token and refuses this kind of connection.
    Refused,
    /// Invalid or unexpected bytes.
    Malformed,
}

/// A failure of a connection.
#[derive(Clone, Debug)]
pub struct WireError {
    kind: WireErrorKind,
    detail: String,
    source: Option<Arc<io::Error>>,
}

impl WireError {
    /// A failure of `kind`.
    pub fn new(kind: WireErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), source: None }
    }

    /// An invalid or unexpected frame.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(WireErrorKind::Malformed, detail)
    }

    /// The connection could not be made or broke during an operation.
    pub fn io(what: &str, error: io::Error) -> Self {
        Self { kind: WireErrorKind::Disconnected, detail: what.to_owned(), source: Some(Arc::new(error)) }
    }

    /// The kind of failure.
    pub fn kind(&self) -> WireErrorKind {
        self.kind
    }

    /// Prefixes the message with the other end.
    #[must_use]
    pub fn with(mut self, label: impl fmt::Display) -> Self {
        self.detail = format!("{label}: {}", self.detail);
        self
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl std::error::Error for WireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
